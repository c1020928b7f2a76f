"""The answers of the response cache, within a bound of bytes.

Eviction is in SIEVE's order (see `hopline.memory.sieve`). Entries differ in size, so that room for one may
take several evictions. Entries also expire: an expired answer is not spared. Knows nothing of requests.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

import msgspec
import numpy as np

from hopline.memory import sieve
from hopline.types import AnyArray, ScoreResult

#: What answers from a cache say instead of the times of stages.
FROM_CACHE: Mapping[str, float] = {"cache": 0.0}

#: Bytes of an entry's own objects, of its place in the mapping, and of the head of each array (measured).
_ENTRY_BYTES, _ARRAY_BYTES = 700, 160


class CachedAnswer:
    """An answer in `slot` of the queue; `is_visited` spares it once."""

    __slots__ = ("expires", "is_visited", "kept_at", "key", "num_bytes", "result", "slot")

    def __init__(
        self, key: bytes, result: ScoreResult, num_bytes: int, expires: float, kept_at: float, slot: int
    ) -> None:
        self.key = key
        self.result = result
        self.num_bytes = num_bytes
        self.expires = expires
        self.kept_at = kept_at
        self.is_visited = False
        self.slot = slot

    def at(self, now: float) -> ScoreResult:
        """The answer as it is given now: its features have aged."""
        result = self.result
        if result.features_age_ms < 0:
            return result
        age_ms = result.features_age_ms + math.ceil(1e3 * (now - self.kept_at))
        return msgspec.structs.replace(result, features_age_ms=age_ms)


class _Flags:
    """The flags of the answers by slot, as `sieve.victim` reads and clears them."""

    def __init__(self) -> None:
        self.slots: list[CachedAnswer | None] = []
        self.now = 0.0

    def __getitem__(self, slot: int) -> bool:
        entry = self.slots[slot]
        assert entry is not None  # only used slots are in the queue
        return entry.is_visited and self.now < entry.expires

    def __setitem__(self, slot: int, is_visited: int) -> None:
        entry = self.slots[slot]
        assert entry is not None
        entry.is_visited = bool(is_visited)


class CachedAnswers:
    """The entries of the response cache, evicted by SIEVE.

    Args:
        max_bytes: of all answers, their keys and what holds them.
        ttl_s: how long an answer is given, unless a feature row that it stands on expires before.

    Attributes:
        entries: key -> entry, to look at without a call; the reader checks `expires`, and sets
            `is_visited` where it uses the entry.
        num_bytes: in use.
    """

    def __init__(self, max_bytes: int, ttl_s: float) -> None:
        self.entries: dict[bytes, CachedAnswer] = {}
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._empty()

    def keep(self, key: bytes, result: ScoreResult, began: float, now: float) -> None:
        """Keep a copy of an answer; one that is larger than all there may be is not kept.

        Args:
            began: when the inputs that it stands on were read.
            now: on the same clock.
        """
        expires = min(began + self._ttl_s, result.features_until)
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
        if not self._free:
            self._free.append(len(self._newer))
            self._newer.append(sieve.NONE)
            self._older.append(sieve.NONE)
            self._flags.slots.append(None)
        slot = self._free.pop()
        self.entries[key] = self._flags.slots[slot] = CachedAnswer(key, kept, num_bytes, expires, now, slot)
        self.num_bytes += num_bytes
        sieve.enter(self._queue, self._newer, self._older, slot)

    def clear(self) -> None:
        """Keep nothing."""
        self.entries.clear()
        self.num_bytes = 0
        self._empty()

    def _empty(self) -> None:
        """A queue without slots, as in `sieve`; slots are added as they are needed and used again."""
        self._queue = [*sieve.EMPTY]
        self._newer: list[int] = []
        self._older: list[int] = []
        self._free: list[int] = []
        self._flags = _Flags()

    def _evict(self, now: float) -> None:
        self._flags.now = now
        entry = self._flags.slots[sieve.victim(self._queue, self._newer, self._flags, 0)]
        assert entry is not None
        self._remove(entry)

    def _remove(self, entry: CachedAnswer) -> None:
        del self.entries[entry.key]
        self.num_bytes -= entry.num_bytes
        sieve.unlink(self._queue, self._newer, self._older, entry.slot)
        self._flags.slots[entry.slot] = None
        self._free.append(entry.slot)


def _own(result: ScoreResult) -> tuple[ScoreResult, int]:
    """The answer on new arrays: the original's may be views that keep a whole batch in memory."""
    num_bytes = _ENTRY_BYTES
    outputs = {}
    for name, array in result.outputs.items():
        outputs[name] = copy = _copied(array)
        num_bytes += _size(copy)
    missing = result.missing
    if missing is not None:
        missing = _copied(missing)
        num_bytes += _size(missing)
    kept = ScoreResult(
        result.model,
        result.version,
        result.graph_version,
        outputs,
        missing,
        (),
        FROM_CACHE,
        features_age_ms=result.features_age_ms,
        as_of=result.as_of,
    )
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
