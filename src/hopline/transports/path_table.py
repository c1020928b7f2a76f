"""Path patterns such as `/v1/models/{model}`, and the search for the one that a path matches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar
from urllib.parse import unquote_to_bytes

#: A part of a path as it must be written: characters that it may have, or UTF-8 as %XX (RFC 3986, 3.3).
_PART = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-F]{2})+")
#: Characters that have to be written literally, and those that are in no name, as %XX.
_MISWRITTEN = re.compile(
    rb"%(?:4[1-9A-F]|5[0-9A]|6[1-9A-F]|7[0-9A]|3[0-9]|2[DEF]|5[CF]|7[EF]|[01][0-9A-F])"
)
#: The rule of `parts_of`, for error texts.
ONE_SPELLING: Final = (
    "a path has one spelling: no empty parts, no slash at its end, no . or .., no backslash, and %XX only "
    "for characters that need it"
)

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
    """Split a pattern at its slashes; the first one does not count."""
    return path.removeprefix("/").split("/")


def parts_of(path: bytes) -> list[str] | None:
    """Return the decoded parts of a path as sent; None for any spelling but the one.

    A proxy compares paths with its rules as they are sent, so `//v2/models` must not be `/v2/models`.
    """
    if path == b"/":
        return [""]
    parts = path.split(b"/")
    if parts.pop(0) or not all(_PART.fullmatch(part) and part not in (b".", b"..") for part in parts):
        return None
    if b"%" not in path:
        return [part.decode() for part in parts]
    if _MISWRITTEN.search(path):
        return None
    try:
        return [unquote_to_bytes(part).decode() for part in parts]
    except UnicodeDecodeError:
        return None


def _values(pattern: Sequence[str], parts: Sequence[str]) -> dict[str, str] | None:
    values = {}
    for wanted, part in zip(pattern, parts, strict=True):
        if wanted.startswith("{"):
            values[wanted[1:-1]] = part
        elif wanted != part:
            return None
    return values
