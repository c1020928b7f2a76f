"""Sets of rows as spans: sorted, disjoint [begin, end)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Span = tuple[int, int]


def merged(spans: Iterable[Span]) -> list[Span]:
    """Sort spans, join those that touch or overlap, and drop empty ones."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if begin >= end:
            continue
        if found and found[-1][1] >= begin:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def missing(done: Iterable[Span], num_rows: int, most: int) -> Iterator[Span]:
    """The parts of [0, num_rows) that are not done, in spans of at most `most` rows."""
    at = 0
    for begin, end in [*merged(done), (num_rows, num_rows)]:
        until = min(begin, num_rows)
        while at < until:
            yield at, min(at + most, until)
            at = min(at + most, until)
        at = max(at, end)


def count(spans: Iterable[Span]) -> int:
    """Rows of disjoint spans."""
    return sum(end - begin for begin, end in spans)


def leading(spans: Iterable[Span]) -> int:
    """The largest n such that rows [0, n) are all in these spans."""
    found = merged(spans)
    return found[0][1] if found and found[0][0] == 0 else 0
