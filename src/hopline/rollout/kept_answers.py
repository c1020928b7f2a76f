"""Answers that are kept within a bound of bytes, evicted in SIEVE's order (see `hopline.memory.sieve`).

As there, nothing moves on a hit; unlike there, entries differ in size, so that room for one may take
several evictions, and they grow old. Knows nothing of requests.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np

from hopline.types import AnyArray, ScoreResult

#: What answers from a cache say instead of the times of stages.
FROM_CACHE: Mapping[str, float] = {"cache": 0.0}

#: Bytes of an entry's own objects, of its place in the mapping, and of the head of each array (measured).
_ENTRY_BYTES, _ARRAY_BYTES = 700, 160


class Kept:
    """An answer in line: `newer` and `older` are its neighbours, `is_visited` spares it once."""

    __slots__ = ("expires", "is_visited", "key", "newer", "num_bytes", "older", "result")

    def __init__(self, key: bytes, result: ScoreResult, num_bytes: int, expires: float) -> None:
        self.key = key
        self.result = result
        self.num_bytes = num_bytes
        self.expires = expires
        self.is_visited = False
        self.newer: Kept | None = None
        self.older: Kept | None = None


class KeptAnswers:
    """Args:
        max_bytes: of all answers, their keys and what holds them.
        ttl_s: how long an answer is given.

    Attributes:
        entries: key -> entry, to look at without a call; whoever finds one there checks `expires`, and sets
            `is_visited` where he uses it.
        num_bytes: in use.
    """

    def __init__(self, max_bytes: int, ttl_s: float) -> None:
        self.entries: dict[bytes, Kept] = {}
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._head: Kept | None = None
        self._tail: Kept | None = None
        self._hand: Kept | None = None

    def keep(self, key: bytes, result: ScoreResult, began: float, now: float) -> None:
        """Keep a copy of an answer; one that is larger than all there may be is not kept.

        Args:
            began: when the inputs that it stands on were read.
            now: on the same clock.
        """
        expires = began + self._ttl_s
        if expires <= now:
            return
        kept, num_bytes = _own(result)
        num_bytes += len(key)
        old = self.entries.get(key)
        if old is not None:
            self._remove(old)
        if num_bytes > self._max_bytes:
            return
        while self.num_bytes + num_bytes > self._max_bytes:
            self._evict(now)
        entry = self.entries[key] = Kept(key, kept, num_bytes, expires)
        self.num_bytes += num_bytes
        entry.older = self._head
        if self._head is not None:
            self._head.newer = entry
        else:
            self._tail = entry
        self._head = entry

    def clear(self) -> None:
        """Keep nothing."""
        self.entries.clear()
        self.num_bytes = 0
        self._head = self._tail = self._hand = None

    def _evict(self, now: float) -> None:
        entry = self._hand or self._tail
        assert entry is not None  # there are bytes in use
        while entry.is_visited and now < entry.expires:
            entry.is_visited = False
            entry = entry.newer or self._tail
            assert entry is not None
        self._hand = entry
        self._remove(entry)

    def _remove(self, entry: Kept) -> None:
        del self.entries[entry.key]
        self.num_bytes -= entry.num_bytes
        newer, older = entry.newer, entry.older
        if self._hand is entry:
            self._hand = newer
        if newer is not None:
            newer.older = older
        else:
            self._head = older
        if older is not None:
            older.newer = newer
        else:
            self._tail = newer


def _own(result: ScoreResult) -> tuple[ScoreResult, int]:
    """The answer on arrays of its own: the original's may be views that keep a whole batch in memory."""
    num_bytes = _ENTRY_BYTES
    outputs = {}
    for name, array in result.outputs.items():
        outputs[name] = copy = _copied(array)
        num_bytes += _size(copy)
    missing = result.missing
    if missing is not None:
        missing = _copied(missing)
        num_bytes += _size(missing)
    kept = ScoreResult(result.model, result.version, result.graph_version, outputs, missing, (), FROM_CACHE)
    return kept, num_bytes


def _copied(array: AnyArray) -> AnyArray:
    copy = np.array(array)
    copy.flags.writeable = False  # it is given to many
    return copy


def _size(array: AnyArray) -> int:
    num_bytes = array.nbytes + _ARRAY_BYTES
    if array.dtype.hasobject:
        num_bytes += sum(map(sys.getsizeof, array.ravel()))
    return num_bytes
