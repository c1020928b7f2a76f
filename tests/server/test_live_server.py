"""A server whose graph changes while it answers: two workers, one writer, and whatever happens to them."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hopline
from hopline.graph.live.manifest import read_manifest
from hopline_drift.log_reader import LogReader
from tests.server.live_rig import Live, Worker, World, command, same, serving, until

MODELS = ("plain", "apart", "looked")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Beside its models: one in processes of its own, and one of whose rows there is a table."""
    root = tmp_path_factory.mktemp("live")
    made = World(root, copies=("apart", "looked"))
    (made.repository / "apart" / "serving.toml").write_text("isolate = true\n")
    made.tabulate("looked", root / "looked.precomputed")
    return made


@pytest.fixture(scope="module")
def live(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("records")
    watched = {
        "prediction_log__path": folder / "log",
        "drift__enabled": True,
        "drift__path": folder / "drift",
    }
    # A window is long against what a busy machine takes to read a sample.
    drift = {"drift__window_s": 6, "drift__reference_size": 50, "live__snapshot_bytes": 20_000}
    with serving(workers=2, fresh=True, **world.settings(), **watched, **drift) as started:
        started.log = folder / "log"
        yield started


def as_json(events: list[dict[str, Any]]) -> bytes:
    return json.dumps(events).encode()


def as_lines(events: list[dict[str, Any]]) -> bytes:
    return b"\n".join(json.dumps(event).encode() for event in events)


def as_arrow(events: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa

    names = sorted({name for event in events for name in event})
    table = pa.table({name: [event.get(name) for event in events] for name in names})
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return out.getvalue()


def agree(world: World, live: Live, models: tuple[str, ...] = MODELS) -> None:
    """All workers answer as a fresh build does."""
    names = list(world.nodes)
    for model in models:
        wanted = world.wanted(model, nodes=names)
        for worker in live.workers:
            same(worker.score(model, nodes=names), wanted)


class Sender(threading.Thread):
    """Sends batches some milliseconds apart, each again until it is taken.

    Attributes:
        told: answers; failures: statuses and codes of those that were not taken at once.
    """

    def __init__(self, world: World, worker: Worker, size: int = 5) -> None:
        super().__init__()
        self._world, self._worker, self._size = world, worker, size
        self._going = threading.Event()
        self._going.set()
        self.told: list[dict[str, Any]] = []
        self.failures: list[tuple[int, str]] = []
        self.start()

    def run(self) -> None:
        import httpx

        while self._going.is_set():
            events = self._world.events(self._size)
            while True:
                try:
                    answer = self._worker.send(events)
                except httpx.TransportError as error:  # its worker is replaced: another connection
                    self.failures.append((0, type(error).__name__))
                    continue
                if answer.status_code == 200:
                    break
                assert int(answer.headers["retry-after"]) >= 1
                self.failures.append((answer.status_code, answer.headers["hopline-error"]))
                time.sleep(0.05)
            self.told.append(answer.json())
            time.sleep(0.005)

    def stop(self) -> None:
        self._going.clear()
        self.join()


@pytest.mark.release
def test_a_table_is_looked_up_for_what_has_not_changed(world: World, live: Live) -> None:
    worker = live.workers[0]
    worker.applied(world.events(2))
    worker.score("looked", nodes=list(world.nodes))

    def rows(outcome: str) -> float:
        labels = f'model="looked",version="1",outcome="{outcome}"'
        return live.server.metric(f"hopline_precomputed_rows_total{{{labels}}}")

    until(lambda: rows("looked_up") and rows("changed") and rows("new"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("encode", [as_json, as_lines, as_arrow])
def test_events_are_seen_by_all_workers_at_once_with_the_bits_of_a_fresh_build(
    world: World, live: Live, encode: Any
) -> None:
    for sender in live.workers:
        before = sender.graph()["sequence"]
        told = sender.applied(None, content=encode(world.events(25)))
        assert (told["sequence"], told["applied"], told["duplicates"]) == (before + 1, 25, [])
        assert told["graph_version"] == f"{world.graph.version}+{before + 1}"
        names = list(world.nodes)
        pairs = [[names[i], names[-i]] for i in range(20)]
        for worker in live.workers:
            for model in MODELS:
                found = worker.score(model, nodes=names)
                assert found["graph_version"] == told["graph_version"]
                assert 0 <= found["graph_age_ms"] < 5_000
                same(found, world.wanted(model, nodes=names))
                same(worker.score(model, nodes=names[-1:]), world.wanted(model, nodes=names[-1:]))
            same(
                worker.score("link", pairs=pairs),
                world.wanted("link", pairs=tuple(zip(*pairs, strict=True))),
            )
            past = worker.score("plain", nodes=names, as_of=60)
            same(past, world.wanted("plain", nodes=names, as_of=60))


def test_refused_events_say_why_and_the_others_are_applied(world: World, live: Live) -> None:
    (good,) = world.events(1)
    feature = [0.0] * 6
    bad = [
        {
            "id": "bad1",
            "op": "add_edge",
            "src": "n1",
            "dst": "nobody",
            "time": 1,
            "weight": 1.0,
            "attr": [1, 2],
        },
        {"op": "add_node", "node": "n1", "features": feature},
        {"op": "set_features", "node": "n1", "features": [1.0, 2.0]},
        {"op": "paint", "node": "n1"},
        {"op": "remove_edge", "src": "n1", "dst": "never"},
        {"op": "add_edge", "src": "n1", "dst": "n2", "weight": 1.0, "attr": [1, 2]},
    ]
    answer = live.workers[0].send([bad[0], good, *bad[1:], good])
    told = answer.json()
    assert (answer.status_code, told["applied"]) == (200, 1)
    codes = ["unknown_node", "node_exists", "schema_changed", "malformed", "unknown_node", "no_time"]
    assert [each["code"] for each in told["refused"]] == codes
    assert [each["index"] for each in told["refused"]] == [0, 2, 3, 4, 5, 6]
    assert told["refused"][0]["id"] == "bad1"
    assert "'nobody'" in told["refused"][0]["reason"]
    assert "add_edge, remove_edge, add_node, set_features" in told["refused"][3]["reason"]
    assert told["duplicates"] == [7]
    again = live.workers[1].send([good]).json()
    assert (again["applied"], again["duplicates"], again["sequence"]) == (0, [0], told["sequence"])
    agree(world, live)


def test_a_node_is_removed_by_delete_with_all_its_edges(world: World, live: Live) -> None:
    """The next answer of any worker is that of a build without it; a second removal finds none."""
    (name,) = [name for name in world.nodes if name not in world.rows[:30]][:1]
    assert any(name in each[:2] for each in world.edges)
    answer = live.workers[0].http.delete(f"/v1/graph/nodes/node/{name}")
    world.removed(name)
    assert (answer.status_code, answer.json()["applied"], answer.json()["refused"]) == (200, 1, [])
    assert answer.json()["graph_version"] == live.workers[1].graph()["graph_version"]
    agree(world, live)
    for path, status, text in [
        (f"node/{name}", 404, f"'{name}' of type 'node' is unknown"),
        ("person/n1", 400, "person"),
        ("node/n1?time=5", 400, "takes no body and no query string"),
        ("node/n1%2F2", 404, "one spelling"),
    ]:
        refused = live.workers[1].http.delete(f"/v1/graph/nodes/{path}")
        assert (refused.status_code, text in refused.text) == (status, True), refused.text
    body = live.workers[0].http.request("DELETE", "/v1/graph/nodes/node/n1", content=b"{}")
    assert (body.status_code, "takes no body" in body.text) == (400, True)
    wrong = live.workers[0].http.get("/v1/graph/nodes/node/n1")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "DELETE")
    agree(world, live)


@pytest.mark.parametrize(
    ("content", "status", "what"),
    [
        (b"", 400, "events cannot be read"),
        (b"[]", 400, "holds no event"),
        (b"{", 400, "events cannot be read"),
        (b"\xff\xff\xff\xff junk", 400, "not an Arrow IPC stream"),
        (b'"text"', 400, "not an event"),
        (b"[" * 100_000, 400, "cannot be read"),
        (b'[{"op":"set_features","node":"n1","features":[1e999,0,0,0,0,0]}]', 400, "out of range"),
        (b'[{"op":"set_features","node":"n1","features":[1e39,0,0,0,0,0]}]', 200, "not_finite"),
    ],
)
def test_bodies_that_are_no_events_are_reported(live: Live, content: bytes, status: int, what: str) -> None:
    answer = live.workers[0].send(None, content=content)
    assert answer.status_code == status, answer.text
    assert what in answer.text


def test_the_graph_and_its_writer_are_reported(world: World, live: Live) -> None:
    told = live.workers[0].applied(world.events(3))
    for worker in live.workers:
        found = worker.graph()
        assert (found["sequence"], found["graph_version"]) == (told["sequence"], told["graph_version"])
        assert found["nodes"] == {"node": len(world.nodes)}
        assert found["edges"] == {"node__to__node": len(world.edges)}
        assert found["writer"] == "up"
        assert found["age_ms"] < 60_000
    until(lambda: live.server.metric("hopline_graph_sequence") == told["sequence"])
    assert live.server.metric("hopline_graph_age_seconds") < 60
    applied = 'hopline_graph_events_total{outcome="applied"}'
    until(lambda: live.server.metric(applied) > 3)
    # another worker than the one that refused may answer, and hears of it within its next second
    until(lambda: live.server.metric('hopline_graph_events_total{outcome="refused"}') > 0)


def test_the_prediction_log_names_the_version_of_each_answer(world: World, live: Live) -> None:
    answers = {}
    for worker in live.workers:
        for model in MODELS:
            for _ in range(2):
                worker.applied(world.events(1))
                answer = worker.http.post(f"/v1/models/{model}/score", json={"nodes": ["n1"]})
                answers[answer.headers["x-request-id"]] = answer.json()["graph_version"]

    def found() -> dict[str, str]:
        entries = LogReader(live.log)
        return {each.request_id: each.graph_version for each in entries if each.request_id in answers}

    until(lambda: len(found()) == len(answers))
    assert found() == answers


def test_drift_is_watched(world: World, live: Live) -> None:
    names = list(world.nodes)

    def report() -> Any:
        for worker in live.workers:
            worker.score("plain", nodes=names)
        return live.workers[0].http.get("/v1/drift/plain").json()

    until(lambda: "degree" in json.dumps(report()), pause=0.3)
    assert not [
        line for line in live.server.log if "Traceback" in line or ("drift" in line and "ERROR" in line)
    ]


def test_a_writer_that_stands_still_costs_events_and_no_answers(world: World, live: Live) -> None:
    worker = live.workers[0]
    events = world.events(3)
    writer = live.writer
    os.kill(writer, signal.SIGSTOP)
    try:
        answer = worker.send(events, headers={"timeout-ms": "300"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "writer_unavailable")
        assert "may or may not have been applied: send it again with the same event ids" in answer.text
        assert int(answer.headers["retry-after"]) >= 1
        for each in live.workers:
            assert each.score("plain", nodes=["n1"])["graph_age_ms"] < 10_000
        until(lambda: worker.graph()["age_ms"] > 500)
    finally:
        os.kill(writer, signal.SIGCONT)
    told = worker.applied(events)
    assert told["applied"] + len(told["duplicates"]) == 3
    agree(world, live, ("plain",))


def test_kills_of_the_writer_lose_nothing_and_double_nothing(world: World, live: Live) -> None:
    begin = live.workers[0].graph()["sequence"]
    sender = Sender(world, live.workers[0])
    try:
        for _ in range(3):
            count = len(sender.told)
            until(lambda count=count: len(sender.told) > count + 5, pause=0.01)  # type: ignore[misc]
            writer = live.writer
            os.kill(writer, signal.SIGKILL)
            assert live.workers[1].score("plain", nodes=["n1"])["outputs"]
            until(lambda writer=writer: not command(writer), pause=0.01)  # type: ignore[misc]
            count = len(sender.told)
            until(lambda count=count: len(sender.told) > count + 1, pause=0.01)  # type: ignore[misc]
    finally:
        sender.stop()
    assert all(failure == (503, "writer_unavailable") for failure in sender.failures)
    # A batch whose answer was lost is found to be there when it is sent again.
    assert all(told["applied"] + len(told["duplicates"]) == 5 for told in sender.told)
    assert live.workers[0].graph()["sequence"] == begin + len(sender.told)
    agree(world, live)


@pytest.mark.release
def test_workers_that_are_killed_and_replaced_go_on_where_the_graph_is(world: World, live: Live) -> None:
    before = live.worker_pids
    os.kill(before[0], signal.SIGKILL)
    until(lambda: not command(before[0]))
    live.connect()
    live.workers[0].applied(world.events(5))
    agree(world, live)
    live.server.process.send_signal(signal.SIGHUP)

    class Anyone(Worker):
        """A connection for each call, so to whichever worker takes it."""

        def __init__(self) -> None:
            pass

        def send(self, events: Any, **options: Any) -> Any:
            import httpx

            return httpx.post(f"{live.server.url}/v1/graph/events", json=events, timeout=30)

    sender = Sender(world, Anyone())
    try:
        until(lambda: any("replaced 2 workers" in line for line in live.server.log), 40)
    finally:
        sender.stop()
    assert not set(before) & set(live.worker_pids)
    assert len(sender.told) > 5
    assert sender.failures == []
    assert sum(told["applied"] for told in sender.told) == 5 * len(sender.told)
    live.connect()
    agree(world, live)


# a shadow computes only where a processor has nothing else to do
@pytest.mark.release
@pytest.mark.quiet
def test_copies_for_a_shadow_agree_while_the_graph_changes(world: World, live: Live) -> None:
    """The candidate is the same model, in processes of its own: maybe at another version of the graph.

    It is asked for nodes that no event removes.
    """
    world.add_version("apart", "2")
    with hopline.Client(live.server.url) as client:
        admin = hopline.Admin(client)
        admin.begin_rollout("apart", "2", "shadow")
        sender = Sender(world, live.workers[0])
        try:

            def compared() -> int:
                for worker in live.workers:
                    worker.score("apart", nodes=list(world.nodes)[:30])
                seen = admin.rollout("apart")["rollout"]["seen"]["candidate"]
                assert seen["differing"] == 0, seen
                return int(seen["compared"])

            until(lambda: compared() > 20, seconds=60)
        finally:
            sender.stop()
        admin.decide("apart", "end")


def test_a_snapshot_takes_the_place_of_the_log_while_serving(world: World, live: Live) -> None:
    folder = Path(f"{world.graph.path}.live")
    before = read_manifest(folder)
    assert before is not None

    def is_replaced() -> bool:
        live.workers[0].applied(world.events(25))
        now = read_manifest(folder)
        return now is not None and len(now.snapshots) == 2 and now.snapshots[0] not in before.snapshots

    until(is_replaced)
    agree(world, live)


def test_after_a_kill_of_everything_the_graph_is_back(world: World, live: Live) -> None:
    """The last test of this server: it ends here."""
    state = live.workers[0].graph()
    sent = world.events(30)
    told = live.workers[0].applied(sent)
    agree(world, live)
    everyone = [live.pid, live.writer, *live.worker_pids]
    for pid in everyone:
        os.kill(pid, signal.SIGKILL)
    live.server.process.wait()
    with serving(workers=1, **world.settings()) as again:
        found = again.workers[0].graph()
        assert (found["sequence"], found["nodes"]) == (told["sequence"], {"node": len(world.nodes)})
        assert found["graph_version"] == f"{world.graph.version}+{state['sequence'] + 1}"
        agree(world, again)
        assert again.workers[0].applied(sent)["duplicates"] == list(range(30))
        again.workers[0].applied(world.events(5))
        agree(world, again)
    end = next(number for number, line in enumerate(again.server.log) if "draining" in line)
    assert [line for line in again.server.log[end:] if "WARNING" in line] == []  # an orderly stop
