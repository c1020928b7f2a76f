"""`hopline graph events` and `hopline graph status`: change and inspect a server's live graph."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from hopline.client import Client, EventsOutcome
from hopline.client.graph import RefusedEvent
from hopline.commands.connection import ApiKey, Token, Url, open_client, server_url
from hopline.commands.event_files import Part, opened, parts
from hopline.commands.screen import Screen, whole
from hopline.errors import LogFull, Unavailable

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
        with open_client(url, api_key, token) as client, opened(file) as source:
            size = 0 if file == "-" else Path(file).stat().st_size
            with _bar(size) as advance:
                for part in parts(source, batch, name):
                    outcome = _send_events(client, part, retry_s)
                    for each in outcome.refused:
                        if out is not None:
                            index = sums.sent + each.index
                            out.write(json.dumps(msgspec.to_builtins(each) | {"index": index}) + "\n")
                    sums.add(outcome, part.num_events)
                    advance(source.tell() if size else 0, sums)
    finally:
        if out is not None:
            out.close()
    sums.show()
    if sums.refused:
        raise typer.Exit(1)


def status(
    url: Url = None,
    api_key: ApiKey = None,
    token: Token = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
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


def _send_events(client: Client, part: Part, retry_s: float) -> EventsOutcome:
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


@contextlib.contextmanager
def _bar(size: int) -> Iterator[Callable[[int, _Sums], None]]:
    """A progress bar by bytes read of the file, on stderr if that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        task = bars.add_task("0 events", total=size or None)

        def advance(at: int, sums: _Sums) -> None:
            bars.update(task, completed=at, description=f"{sums.sent:,} events")

        yield advance
