"""Options that several commands share, and the settings that they give."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hopline.errors import BadRequest
from hopline_mesh.settings import DEFAULT_FILE, MeshSettings, load_settings

if TYPE_CHECKING:
    from hopline_mesh.evaluate.recording import Period

PrometheusUrl = Annotated[str | None, typer.Option(metavar="URL", help="URL of Prometheus.")]
MeshKind = Annotated[
    str | None, typer.Option(help="Source of the metrics: istio, linkerd or file (see --query-file).")
]
QueryFile = Annotated[Path | None, typer.Option(help="File with a query for each column, for --mesh file.")]
SettingsFile = Annotated[
    Path | None, typer.Option(help="Settings file. Default: hopline-mesh.toml, if it exists.")
]
AnySetting = Annotated[
    list[str] | None,
    typer.Option("--set", help="Set any setting, such as --set window_size=60; repeatable."),
]


def resolve_settings(
    file: Path | None, flags: dict[str, Any], settings: list[str] | None = None
) -> MeshSettings:
    """Return the settings of a command: file, environment, flags, and `--set key=value` above them.

    Args:
        file: None is hopline-mesh.toml, if it exists.
        flags: key -> value; None if a flag was not given.

    Raises:
        ConfigError: see `load_settings`.
        BadRequest: a `--set` without "=".
    """
    given = dict(flags)
    for item in settings or []:
        name, equals, value = item.partition("=")
        if not equals:
            raise BadRequest(f"--set {item}: must be key=value, such as window_size=60")
        given[name.rpartition(".")[2]] = value
    if file is None and DEFAULT_FILE.is_file():
        file = DEFAULT_FILE
    return load_settings(file, os.environ, given)


def read_period(text: str, flag: str) -> Period:
    """Read `A..B`, two times.

    Raises:
        BadRequest: the text has another form.
    """
    from hopline_mesh.evaluate.recording import Period
    from hopline_mesh.evaluate.times import parse

    first, dots, last = text.partition("..")
    start_s, end_s = parse(first), parse(last)
    if not dots or start_s is None or end_s is None or start_s >= end_s:
        raise BadRequest(
            f"{flag} {text}: must be A..B, two times, such as 2026-01-01T00:00Z..2026-01-01T06:00Z"
        )
    return Period(start_s, end_s)


def few(names: Sequence[str], count: int = 5) -> str:
    """Return the first of some names, with a sign if there are more."""
    return ", ".join(names[:count]) + (", …" if len(names) > count else "")


def count_of(number: int, noun: str) -> str:
    """Return a number with a noun, in the plural unless the number is 1: "1 fault", "1,440 faults"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def say(console: Console, text: str, style: str = "") -> None:
    """Print text without markup, highlights or line breaks."""
    console.print(Text(text, style), soft_wrap=True)


def numbers_table(*headings: str) -> Table:
    """Return a table whose first column has names, and all others numbers."""
    table = Table(*headings, box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    return table


@contextlib.contextmanager
def bars(*, quiet: bool) -> Iterator[Callable[[str, float, float | None], None]]:
    """Show a progress bar for each name on stderr; nothing if stderr is not a terminal.

    Yields: a function of a name, what is done, and the total (None: unknown).
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as shown:
        tasks: dict[str, Any] = {}

        def advance(name: str, done: float, total: float | None) -> None:
            if name not in tasks:
                tasks[name] = shown.add_task(name, total=total)
            shown.update(tasks[name], completed=done, total=total)

        yield advance
