"""L2 of the state cache: rows that the servers of a fleet share in Redis or Valkey, behind their memory.

    request ─► state cache ─► rows that it lacks ─► L2, one round trip ─► state cache ─► answer
                                                     └ not there: computed, and written there behind

A row is a pure function of model, graph version and node, so a row of another server is the row that this
one would compute. Group names have the model's files, the graph version, and all that decides about the
last bits of a result; rows have checksums. Reading pays where the missing rows of a batch cost more to
compute than to fetch. Both are measured; where reading does not pay, rows are neither read nor written.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hopline.config.schema import Config
from hopline.engine.model import Model
from hopline.engine.state_share import CacheKey, missing_rows, packed, seconds_per_row, whole
from hopline.errors import BadRequest, HoplineError
from hopline.features.answer import Reason
from hopline.features.base import FeatureGroup, FeatureStore, FetchedRows
from hopline.features.breaker import BreakerPolicy
from hopline.features.metrics import FeatureMetrics
from hopline.features.registry import open_store
from hopline.features.retry import RetryPolicy
from hopline.features.tier import Tier
from hopline.features.write_back import WriteBack
from hopline.observe.metrics import Metrics
from hopline.rollout.hashes import graph_model_hashes, hash_of
from hopline.types import FloatArray, IdArray, ScoreRequest

log = logging.getLogger(__name__)

_TIER = "state_l2"
#: Rows that wait to be written, for each state cache: beyond them, rows are dropped.
_MAX_WAITING = 20_000
#: Seconds between tries to connect.
_CONNECT_EVERY_S = 5.0
#: Weight of a new measurement in an average.
_WEIGHT = 0.1
#: Seconds between measurements of a round trip, and the rows of the larger one.
_MEASURE_EVERY_S, _MEASURED_ROWS = 10.0, 256
#: Round trips of one measurement, of each kind.
_TRIALS = 4
#: Of the batches for which too few rows were found before, or that lack no rows, one in this many is
#: tried anyway.
_TRY_EVERY = 32
#: Batches in a row that lacked no row before looking for missing rows becomes rare.
_QUIET_AFTER = 32
#: With at least this share of its rows found, the level below is not asked for as well.
_ALONE_SHARE = 0.8


class StateStore:
    """The connection to L2, of one process.

    Args:
        config: of the server, with `state_cache.l2`.
        metrics: of the server.
    """

    def __init__(self, config: Config, metrics: Metrics) -> None:
        settings = config.state_cache
        self.timeout_s = settings.l2_timeout_ms / 1e3
        self.metrics = FeatureMetrics(metrics)
        self.registry = metrics
        self._store: FeatureStore = open_store(settings.l2, "state_cache.l2")
        self.tier = Tier(
            _TIER,
            self._store,
            breaker=BreakerPolicy(max_in_a_row=3),
            retry=RetryPolicy(share=0.0),
            metrics=self.metrics,
        )
        self.is_open = False
        self._opening = asyncio.ensure_future(self._open())
        self.loop = asyncio.get_running_loop()
        self.writers: weakref.WeakSet[WriteBack] = weakref.WeakSet()
        self.measured: weakref.WeakSet[StateL2] = weakref.WeakSet()
        self.round_trip_s = math.inf
        metrics.gauge(
            "hopline_state_l2_round_trip_seconds", "Seconds of a round trip to L2.", merge="max"
        )().set_function(lambda: self.round_trip_s if self.round_trip_s < math.inf else 0.0)

    async def _open(self) -> None:
        said = False
        while not self.is_open:
            try:
                await self._store.open()
                self.is_open = True
            except HoplineError as error:
                if not said:
                    said = True
                    log.warning("%s; rows are computed until it answers", error)
                await asyncio.sleep(_CONNECT_EVERY_S)
        while True:
            for each in list(self.measured):
                await each.measure_fetch()
            await asyncio.sleep(_MEASURE_EVERY_S if self.round_trip_s < math.inf else 1.0)

    async def ask(self, group: FeatureGroup, ids: IdArray) -> FetchedRows | Reason:
        """Rows of a group, within the limit; or why there are none."""
        deadline = time.monotonic() + self.timeout_s
        return await self.tier.ask(group, ids, deadline=deadline, limit_s=self.timeout_s)

    async def close(self) -> None:
        """Close the connection."""
        self._opening.cancel()
        await asyncio.wait({self._opening})
        for writer in list(self.writers):
            await writer.close()
        await self._store.close()


@dataclass(slots=True)
class Trip:
    """One round trip for the rows that a batch lacks.

    Attributes:
        wanted: ids by state cache.
        found: ids and rows that came; not_found: ids that did not.
        task: that fetches; None before it was started.
        is_taken: whether the rows are in the state caches.
    """

    wanted: Mapping[CacheKey, IdArray]
    found: dict[CacheKey, tuple[IdArray, FloatArray]] = field(default_factory=dict)
    not_found: dict[CacheKey, IdArray] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None
    is_taken: bool = False


class _Shared:
    """The shared rows of one state cache.

    Attributes:
        group: in the store. seed: of checksums.
        compute_s, fetch_s: of a row; the latter besides the round trip.
        found_share: of the rows that were asked for.
    """

    def __init__(
        self, name: str, key: CacheKey, dim: int, store: StateStore, labels: Sequence[str]
    ) -> None:
        level, node_type = key
        digest = hash_of([name, level, node_type])
        self.group = FeatureGroup(f"states-{digest}", dim + 1)
        self.seed = int(digest, 16)
        self.write_back = WriteBack(store.tier, self.group, _MAX_WAITING, store.metrics)
        store.writers.add(self.write_back)
        self.compute_s, self.fetch_s, self.found_share = 0.0, math.inf, 1.0
        metrics = store.registry
        names = ("model", "version", "level")
        values = (*labels, f"{level}/{node_type}")
        rows = metrics.counter(
            "hopline_state_l2_rows_total", "Rows asked of L2 of the state cache.", (*names, "result")
        )
        self.hits, self.misses, self.bad = (rows(*values, each) for each in ("hit", "miss", "damaged"))
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "compute": ("Seconds to compute a row of this level.", lambda: self.compute_s),
            "fetch": (
                "Seconds to fetch a row from L2, besides the round trip.",
                lambda: self.fetch_s if self.fetch_s < math.inf else 0.0,
            ),
            "pays_from": (
                "Missing rows in a batch from which on reading L2 pays; 0: it never does.",
                lambda: self.pays_from(store.round_trip_s),
            ),
        }
        for name, (help_, read) in gauges.items():
            ending = "_rows" if name == "pays_from" else "_seconds"
            gauge = metrics.gauge(f"hopline_state_l2_{name}{ending}", help_, names, merge="max")
            gauge(*values).set_function(read)

    def gain_s(self, num_rows: int) -> float:
        """Seconds that fetching so many rows is expected to save, besides the round trip."""
        return num_rows * (self.found_share * self.compute_s - self.fetch_s)

    @property
    def may_pay(self) -> bool:
        """Whether reading pays for enough rows, if all are found."""
        return self.compute_s > self.fetch_s

    def pays_from(self, round_trip_s: float) -> float:
        """Rows from which on reading pays, if all are found; 0: it never does."""
        if not self.may_pay or round_trip_s == math.inf:
            return 0.0
        return math.ceil(round_trip_s / (self.compute_s - self.fetch_s))

    def found(self, num_rows: int, num_found: int) -> None:
        """Count a round trip."""
        self.found_share += _WEIGHT * (num_found / num_rows - self.found_share)


class StateL2:
    """L2 of the state caches of one model.

    Args:
        store: of this process.
        model: on a snapshot, with its features in the graph.
        version: it is served as.
        threads: of its runtime.
    """

    def __init__(self, store: StateStore, model: Model, version: str, threads: int) -> None:
        self._store = store
        self._model = model
        name = hash_of(
            [graph_model_hashes(model.spec)["artifact_hash"], model.graph.version, arithmetic(threads)]
        )
        labels = (model.spec.name, version)
        self._shared = {
            key: _Shared(name, key, cache.dim, store, labels) for key, cache in model.state_caches.items()
        }
        self._quiet = self._tries = 0
        self._dearest_s = 0.0
        store.measured.add(self)

    def measure(self) -> None:
        """Measure what rows cost to compute; on a thread, before requests come."""
        for key, seconds in seconds_per_row(self._model).items():
            self._shared[key].compute_s = seconds
            self._dearest_s = max(self._dearest_s, seconds)

    async def measure_fetch(self) -> None:
        """Measure what a round trip costs, and each row of it."""
        store = self._store
        for key, shared in self._shared.items():
            num_nodes = self._model.graph.nodes[key[1]].num_nodes
            many = np.arange(min(_MEASURED_ROWS, num_nodes))
            times = [math.inf, math.inf]
            for at, ids in _TRIALS * ((0, many[:1]), (1, many)):
                began = time.perf_counter()
                if not isinstance(await store.ask(shared.group, ids), FetchedRows):
                    return
                # the least: the others waited for batches of this process
                times[at] = min(times[at], time.perf_counter() - began)
            per_row = max(0.0, times[1] - times[0]) / max(1, len(many) - 1)
            shared.fetch_s = _mean(shared.fetch_s, per_row)
            store.round_trip_s = _mean(store.round_trip_s, times[0])

    def may_pay(self, num_rows: int) -> bool:
        """Whether reading may pay for a batch that lacks at most so many rows."""
        store = self._store
        if not store.is_open or num_rows * self._dearest_s <= store.round_trip_s:
            return False
        return any(shared.may_pay for shared in self._shared.values())

    def missing(self, requests: Sequence[ScoreRequest]) -> dict[CacheKey, IdArray]:
        """Rows that the state caches lack to answer requests; {} also if that is not worth finding out."""
        if self._quiet >= _QUIET_AFTER:
            self._tries += 1
            if self._tries % _TRY_EVERY:
                return {}
        found = missing_rows(self._model, _seeds(self._model, requests))
        self._quiet = 0 if found else self._quiet + 1
        return found

    def trip(self, missing: Mapping[CacheKey, IdArray]) -> Trip | None:
        """The round trip for missing rows; None if reading them does not pay."""
        store = self._store
        if not missing or not store.is_open or store.tier.breaker.state == "open":
            return None
        self._tries += 1
        tries = not self._tries % _TRY_EVERY
        chosen: dict[CacheKey, IdArray] = {}
        gain_s = 0.0
        for key, ids in missing.items():
            shared = self._shared[key]
            if shared.may_pay and (tries or shared.gain_s(ids.shape[0]) > 0.0):
                chosen[key] = ids
                gain_s += shared.gain_s(ids.shape[0])
                if shared.found_share >= _ALONE_SHARE:
                    break  # rows below are needed for the few that are missing
        return Trip(chosen) if chosen and (tries or gain_s > store.round_trip_s) else None

    def start(self, trip: Trip, then: Callable[[], object]) -> None:
        """Fetch, then call; on the event loop. Several callers may wait for one trip."""
        if trip.task is None:
            trip.task = asyncio.ensure_future(self._fetch(trip))
        trip.task.add_done_callback(lambda _: then())

    def take(self, trip: Trip) -> None:
        """Put the rows that came into the state caches; where the model runs."""
        if not trip.is_taken:
            trip.is_taken = True
            for key, (ids, rows) in trip.found.items():
                self._model.state_caches[key].write(ids, rows)

    def publish(self, missing: Mapping[CacheKey, IdArray]) -> None:
        """Write rows that were computed, behind: this only copies them. Where the model runs."""
        store = self._store
        if not store.is_open or store.tier.breaker.state != "closed":
            return
        for key, ids in missing.items():
            cache, shared = self._model.state_caches[key], self._shared[key]
            if not shared.may_pay:
                continue
            rows = np.empty((ids.shape[0], cache.dim), np.float32)
            here = np.ones(ids.shape[0], np.bool_)
            hits, misses = cache.num_hits, cache.num_misses
            here[cache.read(ids, rows)] = False
            cache.num_hits, cache.num_misses = hits, misses
            if here.any():
                ids, rows = ids[here], rows[here]
                store.loop.call_soon_threadsafe(shared.write_back.add, ids, packed(ids, rows, shared.seed))

    async def _fetch(self, trip: Trip) -> None:
        asked = [self._store.ask(self._shared[key].group, ids) for key, ids in trip.wanted.items()]
        answers = await asyncio.gather(*asked)
        for (key, ids), answer in zip(trip.wanted.items(), answers, strict=True):
            shared = self._shared[key]
            here = np.zeros(ids.shape[0], np.bool_)
            if isinstance(answer, FetchedRows):
                here = answer.found & whole(ids, answer.values, shared.seed)
                num_bad = int(answer.found.sum() - here.sum()) + answer.num_invalid
                shared.bad.inc(num_bad)
                trip.found[key] = ids[here], np.ascontiguousarray(answer.values[here, :-1])
                shared.found(ids.shape[0], int(here.sum()))
            shared.hits.inc(int(here.sum()))
            shared.misses.inc(ids.shape[0] - int(here.sum()))
            trip.not_found[key] = ids[~here]


def _seeds(model: Model, requests: Sequence[ScoreRequest]) -> dict[str, IdArray]:
    """The known nodes of requests without inline nodes: node type -> distinct global ids."""
    head = model.spec.head
    types = (head.node_type, head.dst_node_type or head.node_type)
    found: dict[str, list[IdArray]] = {}
    for request in requests:
        sides = (request.nodes,) if request.pairs is None else request.pairs
        for node_type, external in zip(types, sides, strict=False):
            try:
                ids = model.graph.nodes[node_type].ids.lookup(external)
            except BadRequest:  # its answer reports that
                continue
            found.setdefault(node_type, []).append(ids[ids >= 0])
    return {name: np.unique(np.concatenate(ids)) for name, ids in found.items()}


def _mean(before: float, new: float) -> float:
    return new if before == math.inf else before + 2 * _WEIGHT * (new - before)


def arithmetic(threads: int) -> list[str]:
    """All that decides about the last bits of a computed row, besides model and graph."""
    import llvmlite.binding
    import numba

    from hopline import __version__
    from hopline.runtimes.ort import ort

    features = llvmlite.binding.get_host_cpu_features()
    return [
        __version__,
        ort.__version__,
        numba.__version__,
        np.__version__,
        str(threads),
        llvmlite.binding.get_host_cpu_name(),
        ",".join(sorted(name for name, has in features.items() if has)),
    ]
