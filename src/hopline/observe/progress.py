"""Shows the steps of long work on stderr: a spinner on a terminal, else one line per step."""

from __future__ import annotations

import contextlib
import random
import sys
import time
from collections.abc import Iterator

from hopline.types import Progress, silent


@contextlib.contextmanager
def shown(progress: Progress | bool | None, what: str = "") -> Iterator[Progress]:
    """Show the steps that a library function reports.

    Args:
        progress: True shows steps, False shows nothing, None shows them if stderr is a terminal or in a
            notebook. A function is called instead of showing anything.
        what: prefix of the lines if stderr is not a terminal.
    """
    if callable(progress):
        yield progress
        return
    on_terminal = sys.stderr.isatty() and not _in_notebook()
    if progress is False or (progress is None and not on_terminal and not _in_notebook()):
        yield silent
    elif on_terminal:
        with _spinners() as spinning:
            yield spinning
    else:
        yield _Lines(what)


def _in_notebook() -> bool:
    """True if this is the kernel of a notebook, which shows output without a terminal."""
    return "ipykernel" in sys.modules


@contextlib.contextmanager
def _spinners() -> Iterator[Progress]:
    drawn = random.getstate()
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

    random.setstate(drawn)  # rich draws a number when it is imported
    console = Console(stderr=True)
    utf8 = console.encoding.lower().startswith("utf")
    columns = (
        SpinnerColumn("dots" if utf8 else "line", finished_text="[green]✓" if utf8 else "ok"),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
    )
    # Output that a model prints while it runs stays on stdout, unless that is the same terminal.
    with Bars(*columns, console=console, redirect_stdout=sys.stdout.isatty()) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(stage: str, done: float) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=1.0)
            bars.update(tasks[stage], completed=done)

        yield progress


class _Lines:
    """Prints a line when a step begins, with the seconds since the first step."""

    def __init__(self, what: str) -> None:
        self._what = f"{what}: " if what else ""
        self._began = time.monotonic()
        self._seen: set[str] = set()

    def __call__(self, stage: str, done: float) -> None:
        if stage not in self._seen:
            self._seen.add(stage)
            seconds = time.monotonic() - self._began
            print(f"{self._what}{stage} ({seconds:.1f} s)", file=sys.stderr, flush=True)
