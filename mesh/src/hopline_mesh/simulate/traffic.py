"""Istio's counters of a live mesh: the counts of each proxy for each call path.

As in a real mesh every pod has separate counters, which start at 0 and disappear with the pod. Each request
is counted by the caller's proxy and by the callee's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.simulate.topology import Floats, Ints
from hopline_mesh.simulate.world import World

#: Upper bounds of the buckets of istio_request_duration_milliseconds; the last one, +Inf, is not in here.
BOUNDS_MS = np.array(
    [0.5, 1, 5, 10, 25, 50, 100, 250, 500, 1e3, 2.5e3, 5e3, 1e4, 3e4, 6e4, 3e5, 6e5, 1.8e6, 3.6e6]
)
#: Ends of a request, as columns of `Counters.ends`.
FINE, FAILED, TIMED_OUT, NOBODY = range(4)

_COLUMNS = np.dtype(
    [
        ("path", np.int64),
        ("serial", np.int64),
        ("ends", np.int64, 4),
        ("buckets", np.int64, len(BOUNDS_MS) + 1),
        ("total_ms", np.float64),
        ("opened", np.int64),
        ("closed", np.int64),
    ]
)


class _Pairing(NamedTuple):
    """The pods that count each call path at present: one row for each pair of path and pod."""

    rows: Ints  # of the counters
    where: Ints  # position of the path
    column: Ints  # position of the pod among those of its service
    shares: Floats  # [paths, most pods of a service], share of a path's requests that a pod gets


class Counters:
    """Counters of one reporter, one row for each call path and pod that ever counted it.

    Paths are those of the topology, followed by one for each entry: requests from outside.

    Attributes:
        path: int64 [r], number of the call path.
        serial: int64 [r], pod of the proxy.
        ends: int64 [r, 4], requests by how they ended.
        buckets: int64 [r, 20], requests by duration, not cumulative.
        total_ms: float64 [r], sum of durations.
        opened, closed: int64 [r], connections.
    """

    def __init__(self) -> None:
        self._index: dict[tuple[int, int], int] = {}
        self._rows: NDArray[np.void] = np.zeros(0, _COLUMNS)

    def __getattr__(self, column: str) -> NDArray[Any]:
        if column not in (_COLUMNS.names or ()):
            raise AttributeError(column)
        return self._rows[column]

    def pair(self, paths: Ints, owners: Ints, pods: dict[int, list[int]]) -> _Pairing:
        """Return the rows of all serving pods; adds missing rows.

        Args:
            paths: numbers of call paths.
            owners: number of the service whose pods count each path.
            pods: serials of the serving pods of each service.
        """
        where, column, pairs = [], [], []
        for at, (path, owner) in enumerate(zip(paths.tolist(), owners.tolist(), strict=True)):
            for place, serial in enumerate(pods.get(owner, ())):
                where.append(at)
                column.append(place)
                pairs.append((path, serial))
        added = [pair for pair in pairs if pair not in self._index]
        self._index |= {pair: row for row, pair in enumerate(added, len(self._rows))}
        new: NDArray[np.void] = np.zeros(len(added), _COLUMNS)
        new["path"], new["serial"] = np.array(added, dtype=np.int64).reshape(-1, 2).T
        self._rows = np.concatenate([self._rows, new])
        shares = np.zeros((len(paths), max(map(len, pods.values()), default=1)))
        shares[where, column] = 1.0
        shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1.0)
        rows = np.array([self._index[pair] for pair in pairs], dtype=np.int64)
        return _Pairing(rows, np.array(where, dtype=np.int64), np.array(column, dtype=np.int64), shares)

    def forget(self, alive: set[int]) -> None:
        """Drop counters of pods that are gone."""
        self._rows = self._rows[[serial in alive for serial in self.serial.tolist()]]
        pairs = zip(self.path.tolist(), self.serial.tolist(), strict=True)
        self._index = {pair: row for row, pair in enumerate(pairs)}


class Traffic:
    """Both reporters' counters of a world; call `count` after each of its steps.

    Args:
        per_pod: False: one set of counters per service: a third of the lines, but counters never restart.
            Instead of a pod's serial number they have -1 minus the service's number.

    Attributes:
        source, destination: counters.
        src, dst: int64 [paths], services at the ends of each path; -1 is outside of the mesh.
    """

    def __init__(self, world: World, rng: np.random.Generator, *, per_pod: bool = True) -> None:
        topology = world.topology
        self._world, self._rng, self._per_pod = world, rng, per_pod
        entries = np.flatnonzero(topology.entry_share > 0)
        self.src = np.concatenate([topology.src, np.full(len(entries), -1)])
        self.dst = np.concatenate([topology.dst, entries])
        self._edges = len(topology.src)
        self._entries = entries
        self.source, self.destination = Counters(), Counters()
        self._serving: bytes = b""

    def count(self, step_s: float) -> None:
        """Count the requests of the last step."""
        world, rng, flow = self._world, self._rng, self._world.flow
        self._pair()
        sent = rng.poisson(flow.sent * step_s)
        arrives = np.clip(flow.received / np.maximum(flow.sent, 1e-12), 0.0, 1.0)
        got = rng.binomial(sent, arrives)
        from_callers = np.bincount(world.topology.dst, flow.received, len(world.topology.names))
        entering = np.maximum(flow.arrived - from_callers, 0.0)[self._entries]
        got = np.concatenate([got, rng.poisson(entering * step_s)])
        dst = self.dst
        nobody = (world.ready[world.topology.dst] == 0) & (sent > 0)
        failed = flow.errors[world.topology.dst]
        lost = np.clip(
            (flow.failed - failed * arrives) / np.maximum(1.0 - failed * arrives, 1e-9), 0.0, 1.0
        )
        ends = np.stack([(1 - lost) * (1 - failed * arrives), (1 - lost) * failed * arrives, lost], axis=1)
        ends = np.concatenate([ends, np.zeros((len(ends), 1))], axis=1)
        ends[nobody] = (0.0, 0.0, 0.0, 1.0)
        self._add(
            self.source, self._at_caller, sent, ends,
            flow.client.buckets(BOUNDS_MS), flow.client.overall_ms(),
        )  # fmt: skip
        errors = flow.errors[dst]
        ends = np.zeros((len(dst), 4))
        ends[:, FINE], ends[:, FAILED] = 1.0 - errors, errors
        self._add(
            self.destination, self._at_callee, got, ends,
            flow.server.buckets(BOUNDS_MS)[dst], flow.server.overall_ms()[dst],
        )  # fmt: skip
        self._connect()

    def _add(
        self, counters: Counters, pairing: _Pairing, counts: Ints,
        ends: Floats, buckets: Floats, mean_ms: Floats,
    ) -> None:  # fmt: skip
        """Distribute requests of paths over pods, and count them there."""
        rng, rows, where = self._rng, pairing.rows, pairing.where
        if not rows.size:
            return
        each = rng.multinomial(counts, pairing.shares)[where, pairing.column]
        counters.ends[rows] += rng.multinomial(each, ends[where] / ends[where].sum(axis=1, keepdims=True))
        counters.buckets[rows] += rng.multinomial(each, buckets[where])
        noise = 1.0 + rng.normal(0.0, 0.5, len(each)) / np.sqrt(np.maximum(each, 1))
        counters.total_ms[rows] += each * mean_ms[where] * np.maximum(noise, 0.1)

    def _connect(self) -> None:
        """Open and close connections, so that the number of open ones equals the requests in flight."""
        counters, pairing = self.destination, self._at_callee
        if not pairing.rows.size:
            return
        flow, dst = self._world.flow, self.dst
        flying = np.concatenate([flow.received, flow.arrived[self._entries]])
        flying *= flow.server.overall_ms()[dst] / 1000.0
        wanted = self._rng.poisson((flying[:, None] * pairing.shares)[pairing.where, pairing.column])
        rows = pairing.rows
        open_now = counters.opened[rows] - counters.closed[rows]
        counters.opened[rows] += np.maximum(wanted - open_now, 0)
        counters.closed[rows] += np.maximum(open_now - wanted, 0)

    def _pair(self) -> None:
        """Update the rows if the serving pods have changed."""
        pods, now_s = self._world.pods, self._world.now_s
        serving = pods.ready(now_s)
        state = pods.serial[serving].tobytes()
        if state == self._serving:
            return
        self._serving = state
        if self._per_pod:
            alive = set(pods.serial.tolist())
            self.source.forget(alive)
            self.destination.forget(alive)
        by_service: dict[int, list[int]] = {}
        for serial, service in zip(
            pods.serial[serving].tolist(), pods.service[serving].tolist(), strict=True
        ):
            by_service.setdefault(service, []).append(serial)
        if not self._per_pod:
            by_service = {service: [-1 - service] for service in by_service}
        edges = np.arange(self._edges)
        self._at_caller = self.source.pair(edges, self.src[: self._edges], by_service)
        self._at_callee = self.destination.pair(np.arange(len(self.dst)), self.dst, by_service)
