"""Path patterns such as `/v1/models/{model}`, and the search for the one that a path matches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

EntryT = TypeVar("EntryT")


class Match(NamedTuple, Generic[EntryT]):
    """What a path matches.

    Attributes:
        entries: of the pattern, in their order.
        values: parameter -> its part of the path.
    """

    entries: tuple[EntryT, ...]
    values: dict[str, str]


class PathTable(Generic[EntryT]):
    """Entries by pattern; the first pattern that matches a path applies.

    Args:
        entries: pattern, entry. Patterns with the same text share their entries.
    """

    def __init__(self, entries: Iterable[tuple[str, EntryT]]) -> None:
        by_pattern: dict[str, list[EntryT]] = {}
        for pattern, entry in entries:
            by_pattern.setdefault(pattern, []).append(entry)
        #: Number of parts -> patterns, split, with their entries.
        self._patterns: dict[int, list[tuple[list[str], tuple[EntryT, ...]]]] = {}
        for pattern, found in by_pattern.items():
            parts = split_path(pattern)
            self._patterns.setdefault(len(parts), []).append((parts, tuple(found)))

    def find(self, parts: Sequence[str]) -> Match[EntryT] | None:
        """Return what the parts of a path match; None for an unknown path."""
        for pattern, entries in self._patterns.get(len(parts), ()):
            values = _values(pattern, parts)
            if values is not None:
                return Match(entries, values)
        return None


def split_path(path: str) -> list[str]:
    """Split a path at its slashes; those at both ends do not count."""
    return path.strip("/").split("/")


def _values(pattern: Sequence[str], parts: Sequence[str]) -> dict[str, str] | None:
    values = {}
    for wanted, part in zip(pattern, parts, strict=True):
        if wanted.startswith("{"):
            values[wanted[1:-1]] = part
        elif wanted != part:
            return None
    return values
