"""Progress of a batch run."""

from __future__ import annotations

from collections.abc import Callable

#: Called with a stage's label, rows done and rows in all.
Advance = Callable[[str, int, int], None]


def silent(label: str, done: int, total: int) -> None:
    """An `Advance` that reports nothing."""
