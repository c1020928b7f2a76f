"""Istio's counters of a live mesh: the counts of each proxy for each call path.

As in a real mesh every pod has separate counters, which start at 0 and disappear with the pod. Each request
is counted by the caller's proxy and by the callee's.
"""

from __future__ import annotations

import numpy as np

from hopline_mesh.simulate.columns import Columns
from hopline_mesh.simulate.lognormal import Latencies
from hopline_mesh.simulate.topology import Floats, Ints
from hopline_mesh.simulate.world import World

#: Upper bounds of the buckets of istio_request_duration_milliseconds; the last one, +Inf, is not in here.
BOUNDS_MS = np.array(
    [0.5, 1, 5, 10, 25, 50, 100, 250, 500, 1e3, 2.5e3, 5e3, 1e4, 3e4, 6e4, 3e5, 6e5, 1.8e6, 3.6e6]
)
#: Ends of a request, as columns of `Counters.ends`.
FINE, FAILED, TIMED_OUT, NO_POD = range(4)

_COLUMNS = np.dtype(
    [
        ("path", np.int64),  # number of the call path
        ("serial", np.int64),  # pod of the proxy
        ("ends", np.int64, 4),  # requests by how they ended
        ("buckets", np.int64, len(BOUNDS_MS) + 1),  # requests by duration, not cumulative
        ("total_ms", np.float64),  # sum of durations
        ("opened", np.int64),  # connections
        ("closed", np.int64),
    ]
)


class Counters(Columns):
    """Counters of one reporter, one row for each call path and pod that ever counted it.

    Args:
        owners: int64 [paths], services whose pods count each call path.
    """

    def __init__(self, owners: Ints) -> None:
        super().__init__(_COLUMNS)
        self._owners = owners
        self._index: dict[tuple[int, int], int] = {}

    def pair(self, pods: dict[int, list[int]], alive: set[int]) -> None:
        """Add rows for new pairs of a path and a serving pod; drop those of pods that are gone.

        Args:
            pods: serials of the serving pods of each service.
            alive: serials of all pods.
        """
        self.keep([serial in alive for serial in self.serial.tolist()])
        pairs = zip(self.path.tolist(), self.serial.tolist(), strict=True)
        self._index = {pair: row for row, pair in enumerate(pairs)}
        places = [
            (path, column, serial)
            for path, owner in enumerate(self._owners.tolist())
            for column, serial in enumerate(pods.get(owner, ()))
        ]
        added = [(path, serial) for path, _, serial in places if (path, serial) not in self._index]
        self._index |= {pair: row for row, pair in enumerate(added, len(self))}
        new = self.added(len(added))
        new["path"], new["serial"] = np.array(added, dtype=np.int64).reshape(-1, 2).T
        # The pods that count each path at present: row here, path, and position of the pod in its service.
        self._at = np.array(
            [(self._index[path, serial], path, column) for path, column, serial in places], dtype=np.int64
        ).reshape(-1, 3)
        _, where, column = self._at.T
        self._shares = np.zeros((len(self._owners), max(map(len, pods.values()), default=1)))
        self._shares[where, column] = 1.0
        self._shares /= np.maximum(self._shares.sum(axis=1, keepdims=True), 1.0)

    def count(self, counts: Ints, ends: Floats, latencies: Latencies, rng: np.random.Generator) -> None:
        """Distribute requests of paths over pods, and count them there.

        Args:
            counts: [paths].
            ends: [paths, 4], share of the requests by how they ended.
            latencies: [paths].
        """
        rows, where, column = self._at.T
        if not rows.size:
            return
        each = rng.multinomial(counts, self._shares)[where, column]
        self.ends[rows] += rng.multinomial(each, ends[where] / ends[where].sum(axis=1, keepdims=True))
        self.buckets[rows] += rng.multinomial(each, latencies.buckets(BOUNDS_MS)[where])
        noise = 1.0 + rng.normal(0.0, 0.5, len(each)) / np.sqrt(np.maximum(each, 1))
        self.total_ms[rows] += each * latencies.overall_ms()[where] * np.maximum(noise, 0.1)

    def connect(self, flying: Floats, rng: np.random.Generator) -> None:
        """Open and close connections, so that as many are open as requests are in flight [paths]."""
        rows, where, column = self._at.T
        if not rows.size:
            return
        wanted = rng.poisson((flying[:, None] * self._shares)[where, column])
        open_now = self.opened[rows] - self.closed[rows]
        self.opened[rows] += np.maximum(wanted - open_now, 0)
        self.closed[rows] += np.maximum(open_now - wanted, 0)


class Traffic:
    """Both reporters' counters of a world; call `count` after each of its steps.

    Paths are those of the topology, followed by one for each entry: requests from outside.

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
        self._entries = np.flatnonzero(topology.entry_share > 0)
        self.src = np.concatenate([topology.src, np.full(len(self._entries), -1)])
        self.dst = np.concatenate([topology.dst, self._entries])
        self.source, self.destination = Counters(topology.src), Counters(self.dst)
        self._serving: bytes | None = None

    def count(self, step_s: float) -> None:
        """Count the requests of the last step."""
        world, rng, flow, dst = self._world, self._rng, self._world.flow, self._world.topology.dst
        self._pair()
        sent = rng.poisson(flow.sent * step_s)
        arrives = np.clip(flow.received / np.maximum(flow.sent, 1e-12), 0.0, 1.0)
        from_callers = np.bincount(dst, flow.received, len(world.topology.names))
        entering = np.maximum(flow.arrived - from_callers, 0.0)[self._entries]
        got = np.concatenate([rng.binomial(sent, arrives), rng.poisson(entering * step_s)])
        failed = flow.errors[dst] * arrives
        lost = np.clip((flow.failed - failed) / np.maximum(1.0 - failed, 1e-9), 0.0, 1.0)
        ends = np.zeros((len(dst), 4))
        ends[:, FINE], ends[:, FAILED], ends[:, TIMED_OUT] = (
            (1 - lost) * (1 - failed),
            (1 - lost) * failed,
            lost,
        )
        ends[(world.ready[dst] == 0) & (sent > 0)] = np.eye(4)[NO_POD]
        self.source.count(sent, ends, flow.client, rng)
        ends = np.zeros((len(self.dst), 4))
        ends[:, FINE], ends[:, FAILED] = 1.0 - flow.errors[self.dst], flow.errors[self.dst]
        server = flow.server.of(self.dst)
        self.destination.count(got, ends, server, rng)
        received = np.concatenate([flow.received, flow.arrived[self._entries]])
        self.destination.connect(received * (server.overall_ms() / 1000.0), rng)

    def _pair(self) -> None:
        """Update the rows if the serving pods have changed."""
        pods = self._world.pods
        serving = pods.ready(self._world.now_s)
        serials, services = pods.serial[serving], pods.service[serving].tolist()
        if serials.tobytes() == self._serving:
            return
        self._serving = serials.tobytes()
        by_service: dict[int, list[int]] = {}
        for serial, service in zip(serials.tolist(), services, strict=True):
            by_service.setdefault(service, []).append(serial)
        alive = set(pods.serial.tolist())
        if not self._per_pod:
            by_service = {service: [-1 - service] for service in by_service}
            alive = {-1 - service for service in range(len(self._world.topology.names))}
        self.source.pair(by_service, alive)
        self.destination.pair(by_service, alive)
