"""`hopline log`: show and search a prediction log."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.table import Table

from hopline.commands.screen import Screen, whole
from hopline.errors import BadRequest

if TYPE_CHECKING:
    from hopline.records.entry import Entry

app = typer.Typer(help="Show and search a prediction log.", no_args_is_help=True)

_MOST_VALUES = 4
#: Fields of logged inputs that are ids of nodes, and those with such fields.
_IDS = ("nodes", "pairs", "id", "from", "to", "neighbors")
_AROUND_IDS = ("inline", "context", "edges", "edits", "add_edge", "remove_edge", "set")


@app.callback()
def group() -> None:
    """Show and search a prediction log."""


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="LOG", help="Folder of the log, or one of its files.")],
    count: Annotated[
        int, typer.Option("--count", "-n", help="Number of last entries to show.", min=1)
    ] = 20,
    model: Annotated[
        str | None, typer.Option(help="Only entries of this model, or of one version: NAME/VERSION.")
    ] = None,
    node: Annotated[
        str | None, typer.Option(help="Only requests with this id: scored, as an end, new or edited.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Only answers from this time on, ISO 8601; UTC without a zone.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Only answers before this time.")] = None,
    outcome: Annotated[
        str | None, typer.Option(help="Only this outcome: ok, a code such as node_not_found, or failed.")
    ] = None,
    request_key: Annotated[str | None, typer.Option(help="Only requests with this key.")] = None,
    request_id: Annotated[str | None, typer.Option(help="Only the request of this id.")] = None,
    graph: Annotated[
        str | None,
        typer.Option(
            help="Only answers on this graph: a folder, all versions of a live folder, FOLDER@+N, or the "
            "graph_version of an answer."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Show the last entries of a prediction log, or the last ones of a search."""
    from hopline.records.entry import EntryWriter
    from hopline_drift.log_reader import LogReader

    name, _, version = (model or "").partition("/")
    on_graph = None if graph is None else _graph_filter(graph)
    num_unknown = 0

    def wanted(entry: Entry) -> bool:
        nonlocal num_unknown
        if (
            (name and name != entry.model)
            or (version and version != entry.version)
            or outcome not in (None, entry.outcome, "failed" if entry.outcome != "ok" else "ok")
            or request_key not in (None, entry.key)
            or request_id not in (None, entry.request_id)
            or (on_graph is not None and not on_graph(entry.graph_version))
        ):
            return False
        if node is not None and entry.inputs is None:
            num_unknown += 1
            return False
        return node is None or node in ids_of(msgspec.to_builtins(entry.inputs))

    times = _moment("--since", since, 0.0), _moment("--until", until, math.inf)
    reader = LogReader(folder)
    entries = reader.last(count, wanted, *times)
    if as_json:
        writer, lines = EntryWriter(lambda: None), bytearray()
        for entry in entries:
            writer.append(entry, lines)
        typer.echo(bytes(lines), nl=False)
        return
    table = Table("time (UTC)", "request", "model", "inputs", "answer", "ms", "degraded")
    for entry in entries:
        time = datetime.fromtimestamp(entry.time, UTC).strftime("%m-%d %H:%M:%S.%f")[:-3]
        answer = (
            ", ".join(
                f"{name} {_short(_with_unknown(array.tolist(), entry.missing))}"
                for name, array in entry.outputs.items()
            )
            if entry.outcome == "ok"
            else entry.outcome
        )
        inputs = "not logged" if entry.inputs is None else _inputs_text(msgspec.to_builtins(entry.inputs))
        total = entry.latency_ms.get("total")
        table.add_row(
            time,
            entry.request_id,
            f"{entry.model}/{entry.version}{' (copy)' if entry.is_copy else ''}",
            inputs,
            answer,
            "" if total is None else f"{total:.2f}",
            ", ".join(entry.degraded),
        )
    Screen(markup=False).print(
        whole(table, "time (UTC)", "request", "model", "ms")
    )  # ids may contain brackets
    if num_unknown:
        typer.echo(
            f"{num_unknown:,} further entries have no inputs, so their nodes are not known", err=True
        )
    if reader.num_torn or reader.num_bad:
        typer.echo(f"{reader.num_torn} incomplete last lines, {reader.num_bad} invalid lines", err=True)


def ids_of(inputs: Any, *, are_ids: bool = False) -> Iterator[str]:
    """Ids of nodes in logged inputs, as text.

    Args:
        are_ids: `inputs` is an id, or holds only ids.
    """
    if isinstance(inputs, dict):
        for name, value in inputs.items():
            if are_ids or name in _IDS or name in _AROUND_IDS:
                yield from ids_of(value, are_ids=are_ids or name in _IDS)
    elif isinstance(inputs, list | tuple):
        for each in inputs:
            yield from ids_of(each, are_ids=are_ids)
    elif are_ids and inputs is not None:
        yield str(inputs)


def _moment(option: str, text: str | None, default: float) -> float:
    """Seconds since 1970. Raises: BadRequest: not a time."""
    if text is None:
        return default
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadRequest(f"{option} {text}: write a time such as 2026-11-30T14:05 (UTC)") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _graph_filter(text: str) -> Callable[[str], bool]:
    """A test of the graph's version of entries; see the option."""
    from hopline.graph import storage
    from hopline.graph.live.history import is_versions, parse_at
    from hopline.graph.live.manifest import read_manifest
    from hopline.graph.live.version import lineage_of, version_name

    name = text
    if is_versions(Path(text)):
        folder, offset = parse_at(Path(text))
        if (manifest := read_manifest(folder)) is None:
            raise BadRequest(f"--graph {text}: {folder} is not a folder of a live graph")
        if offset is None:
            return lambda version: lineage_of(version) == manifest.lineage
        name = version_name(manifest.lineage, 0, offset)
    elif Path(text).is_dir():
        name = storage.read(Path(text)).version
    return lambda version: version == name or version.startswith(f"{name}.")


def _with_unknown(rows: list[Any], missing: Sequence[int]) -> list[Any]:
    """The rows, with "unknown" for those of unknown nodes, which have no answer."""
    return ["unknown" if row in missing else value for row, value in enumerate(rows)]


def _inputs_text(inputs: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {_short(value)}" for name, value in inputs.items() if name not in ("outputs", "degraded")
    )


def _short(value: Any) -> str:
    if isinstance(value, list):
        shown = ", ".join(_short(item) for item in value[:_MOST_VALUES])
        return f"[{shown}{', …' if len(value) > _MOST_VALUES else ''}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_short(item)}" for name, item in value.items()) + "}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
