"""The response cache: a version that caches its answers.

It wraps one version on one graph snapshot, and is released with it: neither needs to be part of a key. It
caches answers at full quality, for `cache_ttl_s` and no longer than the feature rows of a store that they
stand on; errors and degraded answers are not. Equal requests that run at the same time are computed once
(`single_flight.py`).

A request that is answered from here takes no place in a queue and nothing of a model's rate. It is reported
to recorders like any other, with no queueing and a stage "cache" of 0 seconds in place of the computing, so
that the prediction log is whole; in the metrics it is a finished request without times of stages.

Eviction is in SIEVE's order (see `hopline.memory.sieve`). Entries differ in size, so that room for one may
take several evictions. Entries also expire: an expired answer is not spared.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from hopline.answering.limits import ModelLimits
from hopline.answering.queued import deadlines_of
from hopline.answering.served import Ran, Recorder, Version
from hopline.answering.single_flight import SingleFlight
from hopline.config.schema import Config
from hopline.errors import HoplineError
from hopline.memory import sieve
from hopline.observe.metrics import Metrics
from hopline.request_fields import FIELDS, values_of
from hopline.scheduling.work import Work
from hopline.types import AnyArray, ModelInfo, ScoreRequest, ScoreResult

#: What answers from a cache say instead of the times of stages.
FROM_CACHE: Mapping[str, float] = {"cache": 0.0}

#: Bytes of an entry's own objects, of its place in the mapping, and of the head of each array (measured).
_ENTRY_BYTES, _ARRAY_BYTES = 700, 160
#: What a caller said that changes the answer.
_said = values_of(tuple(field for field in FIELDS if field.changes_answer))
#: Longer content is kept as its digest.
_LONGEST = 160
#: Never begins a MessagePack value, so that no content looks like a digest.
_DIGEST = b"\xc1"


def content_key(request: ScoreRequest) -> bytes | None:
    """The key of a request to one version of a model; 0.4 µs for one node.

    int64 arrays of node ids have the key of the same list, whichever transport made them.

    Returns: None where the content is nothing that transports make; it cannot be cached then.
    """
    nodes: Any = request.nodes
    if type(nodes) is np.ndarray and nodes.dtype == np.int64 and nodes.ndim == 1:
        nodes = nodes.tolist()
    try:
        if request.pairs is None and not request.inline:
            key = _encode((nodes, request.columns, _said(request)))
        else:
            key = _encode((nodes, request.columns, _said(request), request.pairs, request.inline))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    if len(key) > _LONGEST:
        return _DIGEST + hashlib.blake2b(key, digest_size=32).digest()
    return key


def _other(value: Any) -> Any:
    """Arrays and NumPy's scalars; raises for anything else."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufSU":
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.ravel().tolist()
    raise TypeError(f"{type(value).__name__} has no key")


#: The order of names in mappings means nothing.
_encode = msgspec.msgpack.Encoder(enc_hook=_other, order="deterministic").encode


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


class CachedVersion:
    """See `Version`."""

    def __init__(
        self,
        inner: Version,
        limits: ModelLimits,
        config: Config,
        metrics: Metrics,
        recorders: Sequence[Recorder] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inner = inner
        self.name = inner.name
        self.version = inner.version
        self.graph_version = inner.graph_version
        self._recorders = recorders
        self._clock = clock
        self._kept = CachedAnswers(limits.cache_bytes, limits.cache_ttl_s)
        self._entries = self._kept.entries
        self._flights = SingleFlight(
            inner.accept, deadlines_of(limits, config), self._delivered, self._waited, clock
        )
        self._is_open = True
        self._num_hits = self._num_reported = self._num_misses = 0
        self._metrics = metrics.model(self.name, self.version)
        labels = (self.name, self.version)
        self._hits = metrics.counter(
            "hopline_response_cache_hits_total", "Requests answered from memory.", ("model", "version")
        )(*labels)
        self._misses = metrics.counter(
            "hopline_response_cache_misses_total",
            "Requests that were computed, though answers are kept.",
            ("model", "version"),
        )(*labels)
        self._joined = metrics.counter(
            "hopline_response_cache_joined_total",
            "Requests that waited for the answer of an equal one under way.",
            ("model", "version"),
        )(*labels)
        self._bytes = metrics.gauge(
            "hopline_response_cache_bytes", "Memory of cached answers.", ("model", "version")
        )(*labels)
        self._read_bytes: Callable[[], float] = lambda: self._kept.num_bytes
        self._bytes.set_function(self._read_bytes)
        #: What recorders get after this turn of the loop.
        self._pending: tuple[list[ScoreRequest], list[ScoreResult | HoplineError | None], list[float]] = (
            [], [], [],
        )  # fmt: skip

    def accept(self, work: Work) -> None:
        """Answer from memory, or else wait for an equal request, or else compute.

        Raises: HoplineError: refused immediately; nothing is delivered.
        """
        request = work.request
        key = content_key(request)
        if key is None or request.is_copy:  # a copy is there to be computed
            self.inner.accept(work)
            return
        entry = self._entries.get(key)
        if entry is not None:
            now = self._clock()
            if now < entry.expires and (request.deadline is None or now < request.deadline):
                entry.is_visited = True
                self._num_hits += 1
                result = entry.at(now)
                if self._recorders:
                    self._report(request, result, 0.0)
                work.finish(result)
                return
        if self._is_open and self._flights.joins(key, work):
            self._joined.value += 1
            return
        self._num_misses += 1
        self._misses.value += 1
        if request.deadline is not None and request.deadline <= self._clock():
            self.inner.accept(work)  # refuses and counts it
        else:
            self._flights.begin(key, work)

    def reject_early(self) -> None:
        """No request is: an answer from memory takes no place."""

    def info(self, versions: tuple[str, ...]) -> ModelInfo:
        """As `Version.info`."""
        return self.inner.info(versions)

    def statistics(self) -> dict[str, Any]:
        """As `Version.statistics`, with hits and misses as the protocol's statistics have them."""
        found = self.inner.statistics()
        new = self._num_hits - self._num_reported
        if new:
            self._num_reported += new
            self._hits.inc(new)
            self._metrics.outcome("ok", new)
        stats = dict(found["inference_stats"])
        stats["success"] = {**stats["success"], "count": stats["success"]["count"] + self._num_hits}
        stats["cache_hit"] = {"count": self._num_hits, "ns": 0}
        stats["cache_miss"] = {"count": self._num_misses, "ns": 0}
        return {**found, "inference_stats": stats}

    def warm_up(self) -> None:
        """As `Version.warm_up`; nothing of it is kept."""
        self.inner.warm_up()

    @property
    def queued_rows(self) -> int:
        """Predicted rows that wait."""
        return self.inner.queued_rows

    def close(self, why: str) -> None:
        """Take no more requests; those taken still finish."""
        self._is_open = False
        self._kept.clear()  # so that every request goes to the one that refuses it
        self.inner.close(why)

    async def join(self) -> None:
        """Wait until every request taken has its outcome."""
        await self.inner.join()
        self._flush()

    async def release(self) -> None:
        """As `Version.release`."""
        self.statistics()
        self._bytes.unset_function(self._read_bytes)
        self._kept.clear()
        await self.inner.release()

    def _delivered(self, key: bytes, result: ScoreResult, began: float) -> None:
        if self._is_open and not result.degraded:
            self._kept.keep(key, result, began, self._clock())

    def _waited(
        self, request: ScoreRequest, outcome: ScoreResult | HoplineError | None, waited_s: float
    ) -> None:
        """Count and report a request that waited for an equal one."""
        if outcome is None:
            self._metrics.outcome("cancelled")
            return
        if isinstance(outcome, HoplineError):
            self._metrics.outcome(outcome.code)
        else:
            self._metrics.outcome("ok")
            self._metrics.degraded(outcome.degraded)
        if self._recorders:
            self._report(request, outcome, waited_s)

    def _report(self, request: ScoreRequest, outcome: ScoreResult | HoplineError, waited_s: float) -> None:
        """Report to recorders later: together it costs a fraction, and answers go out first."""
        requests, outcomes, queue_s = self._pending
        if not requests:
            asyncio.get_running_loop().call_soon(self._flush)
        requests.append(request)
        outcomes.append(outcome)
        queue_s.append(waited_s)

    def _flush(self) -> None:
        requests, outcomes, queue_s = self._pending
        if not requests:
            return
        self._pending = ([], [], [])
        Ran(self.inner, requests, outcomes, queue_s, 0.0, FROM_CACHE, time.time()).pass_to(self._recorders)
