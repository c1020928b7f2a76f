"""Prints results of commands, wide enough that ids are never cut or wrapped."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console, Group
from rich.measure import Measurement
from rich.table import Table

#: Width of a pipe or a file: lines are not wrapped, so that `grep` and `cut` find whole lines.
_UNBOUNDED = 10_000


class Screen(Console):
    """A console on stdout that wraps text only between words, and tables only in columns not `whole`.

    The terminal itself wraps lines that are still too long.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not self.is_terminal and "width" not in options and "COLUMNS" not in os.environ:
            self.width = _UNBOUNDED

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as the base class does, with titles and captions of tables at full width."""
        match objects:
            case [Group(renderables=parts)]:
                for part in parts:
                    self.print(part, **options)
            case [Table() as table] if table.title or table.caption:
                # A table wraps its title and caption at its own width, which may be small.
                title, caption = table.title, table.caption
                table.title = table.caption = None
                if title:
                    self.print(title, **{"style": "italic", "highlight": False, **options})
                self.print(table, **options)
                if caption:
                    self.print(caption, **{"style": "dim", "highlight": False, **options})
            case _:
                self._print_whole(objects, options)

    def say(self, text: str) -> None:
        """Print a text unchanged."""
        self.print(text, highlight=False, markup=False, soft_wrap=True)

    def _print_whole(self, objects: tuple[Any, ...], options: dict[str, Any]) -> None:
        before = self.width
        everything = self.options.update(max_width=_UNBOUNDED)
        needed = [Measurement.get(self, everything, each).minimum for each in objects]
        self.width = max(before, *needed, 0)
        super().print(*objects, **options)
        self.width = before


def whole(table: Table, *names: str) -> Table:
    """The table, with columns of these names never wrapped; other columns become narrower."""
    for column in table.columns:
        if column.header in names:
            column.no_wrap = True
    return table
