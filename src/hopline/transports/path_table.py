"""Path patterns such as `/v1/models/{model}`, and the search for the one that a path matches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar
from urllib.parse import unquote, unquote_to_bytes

#: A part of a path: characters that it may have, or any as %XX (RFC 3986, 3.3).
_PART = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]++|%[0-9A-Fa-f]{2})++")
#: Characters that are in no name: slashes, and those that control.
_IN_NO_NAME = re.compile(r"[/\\\x00-\x1f\x7f]")
#: The rule of `parts_of`, for error texts.
ONE_SPELLING: Final = (
    "a path has one spelling: no empty parts, no . or .., no backslash, and %XX only in names, as UTF-8"
)

EntryT = TypeVar("EntryT")


class Match(NamedTuple, Generic[EntryT]):
    """Match of a path.

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
        """Return what the parts of a path match (see `parts_of`); None for an unknown path."""
        for pattern, entries in self._patterns.get(len(parts), ()):
            values = _values(pattern, parts)
            if values is not None:
                return Match(entries, values)
        return None


def split_path(path: str) -> list[str]:
    """Split a pattern at its slashes; the first one does not count."""
    return path.removeprefix("/").split("/")


def parts_of(path: bytes) -> list[str] | None:
    """Return the parts of a path as sent, names not decoded; None if it has another spelling.

    A proxy compares paths with its rules as they are sent, so `//v2/models` must not be `/v2/models`.
    A slash at the end does not count.
    """
    parts = path.decode("latin-1").split("/")
    if len(parts) > 2 and parts[-2] and not parts[-1]:
        parts.pop()
    if parts.pop(0) or (parts != [""] and not all(map(_is_part, parts))):
        return None
    return parts


def _is_part(part: str) -> bool:
    if not _PART.fullmatch(part):
        return False
    try:
        name = unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        return False
    return name not in (".", "..") and not _IN_NO_NAME.search(name)


def _values(pattern: Sequence[str], parts: Sequence[str]) -> dict[str, str] | None:
    """Return the decoded names; None if a fixed part differs, which must be written literally."""
    values = {}
    for wanted, part in zip(pattern, parts, strict=True):
        if wanted.startswith("{"):
            values[wanted[1:-1]] = unquote(part)
        elif wanted != part:
            return None
    return values
