"""Token buckets that all workers of a server share, without locks.

A client's rate is for the whole server, independent of how the kernel distributes its connections. With a
share per worker, a client with one connection would have a fraction of its rate. So a bucket's one word
(`limiter.py`) is in a file that all workers map, and is changed by compare-and-swap. Admissions are counted
exactly, and a worker that dies or is stopped does not block others. Imported only if there are several
workers.
"""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

import numpy as np

from hopline.errors import ConfigError
from hopline.kernels.intrinsics import compare_exchange
from hopline.kernels.jit import njit
from hopline.scheduling.limiter import MAX_DEBT_NS, LocalBucket, LocalLimits, Rate, converted
from hopline.types import AnyArray

logger = logging.getLogger(__name__)

#: Slots for clients in the file, 32 bytes each.
_SLOTS = 65_536
#: In place of an interval: a worker converts the level of the bucket to another rate.
_CONVERTING = -1
#: Looks at the rate until that conversion, of a microsecond, must have ended.
_TRIES = 10_000


@njit(nogil=True, cache=True)
def _take(words, intervals, bursts, slot, now, interval, burst):  # type: ignore[no-untyped-def]
    """Take at the rate in the file; at the given one if a worker died while it converted the level."""
    tries = _TRIES
    while True:
        seen = words[slot]  # before the rate: a conversion in between changes it
        each, most = intervals[slot], bursts[slot]
        if each == _CONVERTING:
            if tries and compare_exchange(intervals, slot, _CONVERTING, _CONVERTING):
                tries -= 1
                continue
            each, most = interval, burst
        begin = max(seen, now)
        wait = begin - now - (most - 1) * each
        if wait > 0:
            return wait
        if compare_exchange(words, slot, seen, begin + each):
            return 0


@njit(nogil=True, cache=True)
def _charge(words, slot, now, cost, most):  # type: ignore[no-untyped-def]
    while True:
        seen = words[slot]
        if compare_exchange(words, slot, seen, min(max(seen, now) + cost, now + most)):
            return


@njit(nogil=True, cache=True)
def _swap(words, slot, seen, new):  # type: ignore[no-untyped-def]
    return compare_exchange(words, slot, seen, new)


@njit(nogil=True, cache=True)
def _find(tags, tag):  # type: ignore[no-untyped-def]
    """Return the slot of a tag, reserving one if needed; -1 if there is no room."""
    slots = tags.shape[0]
    slot = tag % slots
    for _ in range(slots):
        seen = tags[slot]
        if seen == 0 and compare_exchange(tags, slot, seen, tag):
            return slot
        if tags[slot] == tag:
            return slot
        slot = (slot + 1) % slots
    return -1


class SharedBucket:
    """The bucket of one client in all workers.

    Its rate is that in the file: a worker that does not know of a change yet takes at the new rate too.

    Args:
        words: int64 [slots], shared: when each bucket is full again, in nanoseconds of the host's clock.
        intervals, bursts: int64 [slots], shared: the rate of each bucket.
        slot: the slot of this bucket.
    """

    __slots__ = ("_bursts", "_interval_ns", "_intervals", "_slot", "_words", "rate")

    def __init__(
        self, rate: Rate, words: AnyArray, intervals: AnyArray, bursts: AnyArray, slot: int
    ) -> None:
        self.rate = rate
        self._words, self._intervals, self._bursts = words, intervals, bursts
        self._slot = slot
        self._interval_ns = rate.interval_ns

    def take(self, now_ns: int) -> int:
        """As `LocalBucket`."""
        shared = (self._words, self._intervals, self._bursts)
        return int(_take(*shared, self._slot, now_ns, self._interval_ns, self.rate.burst))

    def wait(self, now_ns: int) -> int:
        """As `LocalBucket`."""
        interval_ns, burst = self._rate_now()
        return max(0, int(self._words[self._slot]) - now_ns - (burst - 1) * interval_ns)

    def charge(self, count: int, now_ns: int) -> None:
        """As `LocalBucket`."""
        interval_ns, burst = self._rate_now()
        most = (burst - 1) * interval_ns + MAX_DEBT_NS
        _charge(self._words, self._slot, now_ns, min(count * interval_ns, most), most)

    def _rate_now(self) -> tuple[int, int]:
        interval_ns = int(self._intervals[self._slot])
        if interval_ns == _CONVERTING:
            return self._interval_ns, self.rate.burst
        return interval_ns, int(self._bursts[self._slot])


Bucket = LocalBucket | SharedBucket


class SharedLimits:
    """The buckets of all workers.

    Args:
        file: mapped by all workers; created if missing. All zero bytes means no buckets.
        num_workers: number of workers that share it.
    """

    def __init__(self, file: Path, num_workers: int) -> None:
        try:
            with file.open("ab") as made:  # another worker may do the same: the size is the same
                # A page without its place on a disk that is full kills the process that writes to it.
                os.posix_fallocate(made.fileno(), 0, 4 * _SLOTS * 8)
        except OSError as error:
            raise ConfigError(
                f"{file.parent} has no room for the rates of clients (2 MiB): {error.strerror}; set TMPDIR "
                "to another folder"
            ) from None
        mapped = np.memmap(file, np.int64, "r+", shape=(4, _SLOTS))
        self._tags, self._words, self._intervals, self._bursts = map(np.asarray, mapped)
        self._num_workers = num_workers
        # Compiled before requests arrive: admits and charges nothing.
        blank = np.zeros(1, np.int64)
        _take(blank, blank, blank, 0, 0, 0, 0)
        _charge(self._words, 0, 0, 0, 2**62)
        _swap(self._words, 0, -1, -1)

    def bucket(self, name: str, rate: Rate, now_ns: int) -> Bucket:
        """As `LocalLimits.bucket`; with a worker's share of the rate if there is no room."""
        slot = int(_find(self._tags, _tag(name)))
        if slot >= 0:
            self._adopt(slot, rate, now_ns)
            return SharedBucket(rate, self._words, self._intervals, self._bursts, slot)
        logger.warning("more than %d clients have a rate: %r gets a share in each worker", _SLOTS, name)
        return LocalBucket(Rate(rate.per_s / self._num_workers, max(1, rate.burst // self._num_workers)))

    def _adopt(self, slot: int, rate: Rate, now_ns: int) -> None:
        """Convert the level of a bucket to a rate; the first worker with the rate does it for all."""
        interval_ns, burst = int(self._intervals[slot]), int(self._bursts[slot])
        if interval_ns == _CONVERTING or (interval_ns, burst) == (rate.interval_ns, rate.burst):
            return
        if not _swap(self._intervals, slot, interval_ns, _CONVERTING):
            return  # another worker was faster
        if interval_ns:
            while True:
                seen = int(self._words[slot])
                word = converted(seen, now_ns, interval_ns, burst, rate)
                if word == seen:  # another word in any case: `_take` then notices that the rate has changed
                    word += 1 if seen > now_ns else -1
                if _swap(self._words, slot, seen, word):
                    break
        self._bursts[slot] = rate.burst
        self._intervals[slot] = rate.interval_ns


Limits = LocalLimits | SharedLimits


def _tag(name: str) -> int:
    """Hash a name to a positive 62-bit number; for a million clients, a collision has probability 1e-7."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2 or 1
