"""How long graph work tells where it is."""

from __future__ import annotations

from collections.abc import Callable

#: Called with a stage's label and the part of it that is done, 0 to 1.
Progress = Callable[[str, float], None]


def silent(stage: str, done: float) -> None:
    """The progress of those who do not ask."""
