"""Progress bars of commands, on stderr; stdout is for results."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text


class Advance(Protocol):
    """Moves the bar of a step. The label up to a comma names the bar, and the rest may change."""

    def __call__(self, label: str, done: float, total: float | None = 1.0) -> None:
        """Show an amount of a total; None is an unknown total."""


class RowRate(ProgressColumn):
    """A column: rows per second, once the rate is known."""

    def render(self, task: Task) -> Text:
        """The rate of a task."""
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f} rows/s" if speed else "", style="progress.data.speed")


@contextlib.contextmanager
def progress_bars(*more: ProgressColumn, quiet: bool = False, transient: bool = False) -> Iterator[Advance]:
    """A bar for each step; nothing if stderr is not a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), *more, TimeRemainingColumn())
    disable = quiet or not console.is_terminal
    with Progress(*columns, console=console, disable=disable, transient=transient) as bars:
        tasks: dict[str, TaskID] = {}

        def advance(label: str, done: float, total: float | None = 1.0) -> None:
            name = label.partition(",")[0]
            if name not in tasks:
                tasks[name] = bars.add_task(label, total=total, completed=done)  # type: ignore[arg-type]
            bars.update(tasks[name], total=total, completed=done, description=label)

        yield advance
