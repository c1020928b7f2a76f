"""Progress bars of both commands."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


@contextlib.contextmanager
def progress_bars(*, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each step (the label up to a comma), on stderr if that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def advance(label: str, done: int, total: int) -> None:
            name = label.partition(",")[0]
            if name not in tasks:
                tasks[name] = bars.add_task(label, total=total)
            bars.update(tasks[name], completed=done, description=label)

        yield advance
