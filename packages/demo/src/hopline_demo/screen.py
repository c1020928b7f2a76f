"""Output of `hopline demo`: progress bars on a terminal, else plain lines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

_INDENT = (0, 0, 0, 2)


class Step:
    """One step of the demo while it runs."""

    def __init__(self, name: str, bars: Bars) -> None:
        self.text = ""
        self._bars = bars
        self._task = bars.add_task(name, total=1.0, stage="")

    def wait(self, stage: str) -> None:
        """Show a stage without measurable progress."""
        self._bars.update(self._task, total=None, stage=stage)

    def progress(self, stage: str, done: float) -> None:
        """Move the bar; see `hopline.types.Progress`."""
        self._bars.update(self._task, completed=done, stage=stage)

    def say(self, text: str) -> None:
        """Set the summary that is shown when the step is finished."""
        self.text = text


class Screen:
    """Prints to a terminal, or as plain text to a pipe.

    Args:
        console: console for tests.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        utf8 = self.console.encoding.lower().startswith("utf")
        self._good, self._bad = ("✓", "✗") if utf8 else ("ok", "FAILED")

    def title(self, text: str) -> None:
        """Print the first line."""
        self.console.print(f"\n[bold]{text}[/bold]\n")

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Show a bar while the block runs (on a terminal), then a line with its summary and time."""
        began = time.perf_counter()
        columns = (
            TextColumn("     [cyan]{task.description:<9}"),
            BarColumn(32),
            TextColumn("[dim]{task.fields[stage]}"),
        )
        terminal = self.console.is_terminal
        with Bars(*columns, console=self.console, transient=True, disable=not terminal) as bars:
            step = Step(name, bars)
            yield step
        self.line(name, step.text, seconds=time.perf_counter() - began)

    def line(self, name: str, text: str, *, good: bool = True, seconds: float | None = None) -> None:
        """Print the line of a finished step or check."""
        mark = Text(self._good, "green") if good else Text(self._bad, "bold red")
        took = "" if seconds is None else f"{seconds:.1f} s"
        if not self.console.is_terminal:
            self.text(f"{mark.plain} {name:<9}  {text}{took and f' ({took})'}")
            return
        row = Table.grid(padding=(0, 2), expand=True)
        row.add_column(width=len(mark))
        row.add_column(width=9)
        row.add_column(ratio=1)
        row.add_column(justify="right", width=len(took))
        row.add_row(mark, Text(name, "bold"), Text(text), Text(took, "dim"))
        self.console.print(Padding(row, _INDENT))

    def text(self, markup: str) -> None:
        """Print a paragraph: wrapped on a terminal, one line in a pipe."""
        if self.console.is_terminal:
            self.console.print(Padding(markup, _INDENT))
        else:
            self.console.print(f"  {markup}", soft_wrap=True)

    def table(self, table: Table) -> None:
        """Print a table."""
        self.console.print(Padding(table, _INDENT, expand=False))

    def paste(self, command: str) -> None:
        """Print a command to copy, on one line even if the terminal is narrow."""
        self.console.print(Text("    " + command, "bold cyan"), soft_wrap=True)

    def blank(self) -> None:
        """Print an empty line."""
        self.console.print()
