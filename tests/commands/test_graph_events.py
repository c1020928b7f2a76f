"""`hopline graph events`: files of all forms reach the server in order, and what became of them is said."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hopline.client import Client, EventsOutcome, RefusedEvent
from hopline.commands import graph_live
from hopline.commands.graph import app
from hopline.errors import BadRequest, LogFull, WriterUnavailable
from hopline.events.decode import Decoder
from hopline.graph.schema import GraphSchema, NodeTypeSchema

SCHEMA = GraphSchema({"node": NodeTypeSchema(2)}, {})


class Server:
    """Takes what the client sends.

    Attributes:
        bodies: of requests; fail: raised by the next ones.
    """

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.fail: list[Exception] = []
        self.refuse: tuple[int, ...] = ()

    def send_events(self, client: Client, body: bytes, **options: Any) -> EventsOutcome:
        self.bodies.append(body)
        if self.fail:
            raise self.fail.pop(0)
        count = self.decoded(len(self.bodies) - 1)
        refused = tuple(RefusedEvent(at, "unknown_node", "no such node", f"e{at}") for at in self.refuse)
        return EventsOutcome(len(self.bodies), f"g+{len(self.bodies)}", count - len(refused), (), refused)

    def decoded(self, at: int) -> int:
        """Events of a body, as a server reads them."""
        found = Decoder(SCHEMA).decode([self.bodies[at]])
        return found.changes.num_events + len(found.refused)

    def nodes(self) -> list[int]:
        found = [Decoder(SCHEMA).decode([body]).changes.nodes["node"].ids for body in self.bodies]
        return [int(each) for ids in found for each in ids]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    monkeypatch.setattr(Client, "send_events", lambda *args, **kwargs: made.send_events(*args, **kwargs))
    monkeypatch.setattr(graph_live, "_PAUSE_S", 0.01)
    return made


def events(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"op": "add_node", "node": i, "features": [1.0, float(i)], **more} for i in range(count)]


def invoke(*arguments: str, given: bytes | None = None) -> Any:
    return CliRunner().invoke(app, ["events", *arguments], input=given, catch_exceptions=False)


def test_events_that_go_to_a_stream_are_not_said_to_be_applied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sent = EventsOutcome(graph_version="g+7", accepted=3)
    monkeypatch.setattr(Client, "send_events", lambda *args, **kwargs: sent)
    (tmp_path / "events.json").write_text(json.dumps(events(3)))
    shown = invoke(str(tmp_path / "events.json")).output
    assert "3 events sent to the graph's stream, 0 refused; the graph has them from g+7 on" in shown
    assert "applied" not in shown


def arrow(listed: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa

    table, out = pa.Table.from_pylist(listed), io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return out.getvalue()


FORMS = {
    "lines": lambda listed: "\n\n".join(map(json.dumps, listed)).encode(),
    "list": lambda listed: json.dumps(listed, indent=1).encode(),
    "arrow": arrow,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", ["file", "stdin"])
def test_files_and_stdin_go_in_batches_and_in_order(
    server: Server, tmp_path: Path, form: str, where: str
) -> None:
    content = FORMS[form](events(25))
    (tmp_path / "events").write_bytes(content)
    if where == "file":
        result = invoke(str(tmp_path / "events"), "--batch", "10")
    else:
        result = invoke("-", "--batch", "10", given=content)
    assert result.exit_code == 0, result.output
    assert [server.decoded(at) for at in range(len(server.bodies))] == [10, 10, 5]
    assert server.nodes() == list(range(25))
    assert "25 events applied, 0 already known, 0 refused; the graph is g+3" in result.output


def test_refused_events_are_reported_with_their_place_in_the_file(server: Server, tmp_path: Path) -> None:
    server.refuse = (1,)
    out = tmp_path / "refused"
    result = invoke("-", "--batch", "2", "--refused", str(out), given=FORMS["lines"](events(4)))
    assert result.exit_code == 1
    assert "2 refused" in result.output
    assert "event 3 (e1): unknown_node: no such node" in result.output
    assert [json.loads(line)["index"] for line in out.read_text().splitlines()] == [1, 3]


def test_a_writer_that_is_away_is_waited_for(server: Server) -> None:
    lost = WriterUnavailable("the change may or may not have been applied", 0.01)
    server.fail = [WriterUnavailable("nothing was sent", 0.01), LogFull("no room", 0.01)]
    assert invoke("-", given=FORMS["lines"](events(2))).exit_code == 0
    assert len(server.bodies) == 3
    server.fail = [lost]
    assert invoke("-", given=FORMS["arrow"](events(2, id="a"))).exit_code == 0
    assert len(server.bodies) == 5
    server.fail = [lost]
    with pytest.raises(WriterUnavailable):  # without ids it might be done twice
        invoke("-", given=FORMS["lines"](events(2)))
    server.fail = [LogFull("no room", 0.01)] * 100
    with pytest.raises(LogFull):
        invoke("-", "--retry-s", "0.05", given=FORMS["lines"](events(2)))


@pytest.mark.parametrize(
    ("content", "what"),
    [(b"[1,", "a JSON list but is not one"), (b"\xff\xff\xff\xff\x01", "no.* an Arrow IPC stream")],
)
def test_broken_files_are_reported(server: Server, content: bytes, what: str) -> None:
    with pytest.raises(BadRequest, match=what):
        invoke("-", given=content)
    assert server.bodies == []


def test_a_file_that_is_not_there_is_reported(server: Server, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="nothing cannot be read: No such file"):
        invoke(str(tmp_path / "nothing"))
