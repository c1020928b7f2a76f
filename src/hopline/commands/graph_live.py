"""`hopline graph events` and `hopline graph status`: change and inspect a server's live graph.

Files of events are split into request bodies: JSON, one event a line or a list, and Arrow streams.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, NamedTuple

import msgspec
import typer
from rich.markup import escape
from rich.progress import TimeElapsedColumn
from rich.table import Table

from hopline.client import Client, EventsOutcome
from hopline.commands.connection import ApiKey, Token, Url, open_client, server_url
from hopline.commands.options import AsJson
from hopline.commands.progress import progress_bars
from hopline.commands.screen import Screen, whole
from hopline.errors import BadRequest, LogFull, Unavailable
from hopline.types import RefusedEvent

#: First bytes of an Arrow IPC stream.
_ARROW = b"\xff\xff\xff\xff"
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Part(NamedTuple):
    """A group of events of a file.

    Attributes:
        body: request body.
        num_events: number of events in it.
        have_ids: True if all events have ids, so that sending them again is safe.
    """

    body: bytes
    num_events: int
    have_ids: bool


@contextlib.contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    """Open a file, or stdin for "-". Raises: BadRequest: the file cannot be read."""
    if file == "-":
        yield sys.stdin.buffer
        return
    with contextlib.ExitStack() as stack:
        try:
            source = stack.enter_context(Path(file).open("rb"))
        except OSError as error:
            raise BadRequest(f"{file} cannot be read: {error.strerror}") from None
        yield source


def _parts(source: BinaryIO, size: int, name: str) -> Iterator[_Part]:
    """The events of a file in order, `size` at a time.

    Raises: BadRequest: a broken list or Arrow stream; the server reports broken lines.
    """
    begin = source.read(16)
    source = io.BufferedReader(_Prefixed(begin, source))  # stdin cannot seek back
    if begin.startswith(_ARROW):
        yield from _arrow_parts(source, size, name)
        return
    lines: Iterator[bytes] = iter(source)
    if begin.lstrip()[:1] == b"[":
        try:
            lines = iter([bytes(raw) for raw in msgspec.json.decode(source.read(), type=list[msgspec.Raw])])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadRequest(f"{name} begins like a JSON list but is not one: {error}") from None
        # In a list an event may span several lines; the server reads one event per line.
        lines = (line.replace(b"\n", b" ").replace(b"\r", b" ") for line in lines)
    while chunk := list(itertools.islice(filter(None, map(bytes.strip, lines)), size)):
        yield _Part(b"\n".join(chunk), len(chunk), all(map(_has_id, chunk)))


def _arrow_parts(source: BinaryIO, size: int, name: str) -> Iterator[_Part]:
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(source) as reader:
            for batch in reader:
                for begin in range(0, batch.num_rows, size):
                    part, out = batch.slice(begin, size), io.BytesIO()
                    with pa.ipc.new_stream(out, part.schema) as stream:
                        stream.write_batch(part)
                    have_ids = "id" in part.schema.names and not part.column("id").null_count
                    yield _Part(out.getvalue(), part.num_rows, have_ids)
    except (pa.ArrowException, OSError) as error:
        raise BadRequest(f"{name} is not an Arrow IPC stream: {error}") from None


def _has_id(event: bytes) -> bool:
    try:
        return _fields.decode(event).get("id", b"null") != b"null"
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False


class _Prefixed(io.RawIOBase):
    """A stream that returns bytes already read from it again."""

    def __init__(self, begin: bytes, source: BinaryIO) -> None:
        self._begin, self._source = begin, source

    def readable(self) -> bool:
        return True

    def readinto(self, into: memoryview) -> int:  # type: ignore[override]
        data, self._begin = self._begin[: len(into)], self._begin[len(into) :]
        data = data or self._source.read(len(into))
        into[: len(data)] = data
        return len(data)


#: Most refused events that are shown; --refused gets all of them.
_SHOWN = 10
#: Seconds between attempts while the writer is unavailable.
_PAUSE_S = 0.5

File = Annotated[
    str,
    typer.Argument(
        metavar="FILE", help="JSON events, one a line or as a list, or an Arrow stream; - reads stdin."
    ),
]


def events(
    file: File,
    batch: Annotated[int, typer.Option(help="Events per request.", min=1, max=100_000)] = 1000,
    retry_s: Annotated[
        float, typer.Option(help="Seconds to retry a batch while the server cannot accept it.", min=0)
    ] = 60.0,
    refused: Annotated[
        Path | None, typer.Option(help="Write refused events with the reason to this file.")
    ] = None,
    url: Url = None,
    api_key: ApiKey = None,
    token: Token = None,
) -> None:
    """Send events to a server's live graph, in order.

    The exit code is 1 if an event was refused. Events should have ids: then a file can be sent again after
    a failure, and events that the graph already has are skipped.
    """
    sums = _Sums()
    out = None if refused is None else refused.open("w")
    name = "stdin" if file == "-" else file
    try:
        with open_client(url, api_key, token) as client, _opened(file) as source:
            size = 0 if file == "-" else Path(file).stat().st_size
            with progress_bars(TimeElapsedColumn(), transient=True) as advance:
                for part in _parts(source, batch, name):
                    outcome = _send_events(client, part, retry_s)
                    for each in outcome.refused:
                        if out is not None:
                            index = sums.sent + each.index
                            out.write(json.dumps(msgspec.to_builtins(each) | {"index": index}) + "\n")
                    sums.add(outcome, part.num_events)
                    advance(f"events, {sums.sent:,} sent", source.tell() if size else 0, size or None)
    finally:
        if out is not None:
            out.close()
    sums.show()
    if sums.refused:
        raise typer.Exit(1)


def status(url: Url = None, api_key: ApiKey = None, token: Token = None, as_json: AsJson = False) -> None:
    """Show a server's live graph: version, age, counts."""
    with open_client(url, api_key, token) as client:
        state = client.graph_state()
    if as_json:
        typer.echo(msgspec.json.encode(state))
        return
    age = "age unknown" if state.age_ms is None else f"as of {state.age_ms / 1e3:,.1f} s ago"
    Screen().print(
        f"[bold]{escape(server_url(url))}[/]  version {state.graph_version}  "
        f"{age}  "
        f"writer {'up' if state.writer == 'up' else '[red]' + state.writer + '[/]'}",
        highlight=False,
    )
    table = Table("type", "count", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    for name, count in itertools.chain(state.nodes.items(), state.edges.items()):
        table.add_row(name, f"{count:,}")
    Screen(markup=False).print(whole(table, "type"))


class _Sums:
    """Totals of all batches."""

    def __init__(self) -> None:
        self.sent = self.applied = self.accepted = self.duplicates = self.refused = 0
        self.version = ""
        self._first: list[tuple[int, RefusedEvent]] = []

    def add(self, outcome: EventsOutcome, count: int) -> None:
        self.applied += outcome.applied
        self.accepted += outcome.accepted
        self.duplicates += len(outcome.duplicates)
        self.refused += outcome.num_refused or len(outcome.refused)
        self.version = outcome.graph_version
        if len(self._first) < _SHOWN:
            self._first += [(self.sent + each.index, each) for each in outcome.refused]
        self.sent += count

    def show(self) -> None:
        where = f"; the graph is {self.version}" if self.version else ""
        done = f"{self.applied:,} events applied, {self.duplicates:,} already known"
        if self.accepted:  # the graph follows a stream
            done = f"{self.accepted:,} events sent to the graph's stream"
            where = f"; the graph has them from {self.version} on"
        typer.echo(f"{done}, {self.refused:,} refused{where}")
        for index, each in self._first[:_SHOWN]:
            named = f" ({each.id})" if each.id else ""
            typer.echo(f"  event {index}{named}: {each.code}: {each.reason}", err=True)
        if self.refused > _SHOWN:
            typer.echo(f"  and {self.refused - _SHOWN:,} more", err=True)


def _send_events(client: Client, part: _Part, retry_s: float) -> EventsOutcome:
    """Send events, with retries while the server does not accept them.

    Raises: Unavailable: after `retry_s`, or if events without ids may have been applied.
    """
    end = time.monotonic() + retry_s
    while True:
        try:
            return client.send_events(part.body)
        except Unavailable as error:
            lost = (
                not part.have_ids
                and not isinstance(error, LogFull)
                and "nothing was sent" not in str(error)
            )
            if lost or time.monotonic() + _PAUSE_S > end:
                raise
            time.sleep(max(_PAUSE_S, min(error.retry_after_s, 5.0)))
