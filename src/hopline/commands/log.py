"""`hopline log`: show a prediction log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from hopline.commands.screen import Screen, whole

app = typer.Typer(help="Show a prediction log.", no_args_is_help=True)

_MOST_VALUES = 4


@app.callback()
def group() -> None:
    """Show a prediction log."""


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="LOG", help="Folder of the log, or one of its files.")],
    count: Annotated[
        int, typer.Option("--count", "-n", help="Number of last entries to show.", min=1)
    ] = 20,
    model: Annotated[str | None, typer.Option(help="Only entries of this model.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Show the last entries of a prediction log."""
    from hopline.records.entry import EntryWriter
    from hopline.records.reader import LogReader

    reader = LogReader(folder)
    entries = reader.last(count, model)
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
    if reader.num_torn or reader.num_bad:
        typer.echo(f"{reader.num_torn} incomplete last lines, {reader.num_bad} invalid lines", err=True)


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
