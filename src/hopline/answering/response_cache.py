"""The response cache: a version that caches its answers.

It wraps one version on one graph snapshot, and is released with it: neither needs to be part of a key. It
caches answers at full quality, for `cache_ttl_s` and no longer than the feature rows of a store that they
stand on; errors and degraded answers are not. Equal requests that run at the same time are computed once
(`single_flight.py`).

A request that is answered from here takes no place in a queue and nothing of a model's rate. It is reported
to recorders like any other, with no queueing and a stage "cache" of 0 seconds in place of the computing, so
that the prediction log is whole; in the metrics it is a finished request without times of stages.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from hopline.answering.cached_answers import FROM_CACHE, CachedAnswers
from hopline.answering.limits import ModelLimits
from hopline.answering.queued import deadlines_of
from hopline.answering.served import Ran, Recorder, Version
from hopline.answering.single_flight import SingleFlight
from hopline.config.schema import Config
from hopline.errors import HoplineError
from hopline.observe.metrics import Metrics
from hopline.request_fields import FIELDS, values_of
from hopline.scheduling.work import Work
from hopline.types import ModelInfo, ScoreRequest, ScoreResult

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
