"""Finds the offset that may be committed when messages are completed out of order."""

from __future__ import annotations

from collections import deque


class Settled:
    """Offsets of one partition, delivered in ascending order and settled in any order.

    A commit means that everything before an offset is done; so one unsettled message blocks the commit of
    later ones.
    """

    __slots__ = ("_delivered", "_done")

    def __init__(self) -> None:
        self._delivered: deque[int] = deque()
        self._done: set[int] = set()

    def delivered(self, offset: int) -> None:
        """Record a delivered message; one that was delivered before changes nothing."""
        if not self._delivered or offset > self._delivered[-1]:
            self._delivered.append(offset)

    def settle(self, offset: int) -> None:
        """Record a settled message; one that was never delivered here changes nothing."""
        if self._delivered and offset >= self._delivered[0]:
            self._done.add(offset)

    def take(self) -> int | None:
        """The offset to commit, None if nothing is new."""
        last = None
        while self._delivered and self._delivered[0] in self._done:
            last = self._delivered.popleft()
            self._done.remove(last)
        return None if last is None else last + 1
