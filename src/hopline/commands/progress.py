"""Progress bars of commands, on stderr; stdout is for results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

#: Called with the label of a step, the amount done, and the total (None: unknown).
Advance = Callable[[str, float, float | None], None]


class RowRate(ProgressColumn):
    """A column: rows per second, once the rate is known."""

    def render(self, task: Task) -> Text:
        """The rate of a task."""
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f} rows/s" if speed else "", style="progress.data.speed")


@contextlib.contextmanager
def progress_bars(*more: ProgressColumn, quiet: bool = False, transient: bool = False) -> Iterator[Advance]:
    """A bar for each step; nothing if stderr is not a terminal.

    Args:
        more: columns after the bar.
        transient: remove the bars at the end.

    Yields: `Advance`; the label up to a comma names the bar, and the rest may change.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), *more, TimeRemainingColumn())
    disable = quiet or not console.is_terminal
    with Progress(*columns, console=console, disable=disable, transient=transient) as bars:
        tasks: dict[str, TaskID] = {}

        def advance(label: str, done: float, total: float | None) -> None:
            name = label.partition(",")[0]
            if name not in tasks:
                tasks[name] = bars.add_task(label, total=total, completed=done)  # type: ignore[arg-type]
            bars.update(tasks[name], total=total, completed=done, description=label)

        yield advance
