"""The monitoring of a simulated mesh: snapshots with sampling noise, a window, idle services and gaps."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.roster import Roster
from hopline_mesh.schema import NODE_FEATURES, Schema
from hopline_mesh.simulate.lognormal import Latencies
from hopline_mesh.simulate.topology import Floats, Ints
from hopline_mesh.simulate.world import World
from hopline_mesh.snapshot import Gap, Snapshot

#: A call path without a request for this time is no longer reported.
FORGET_S = 600.0
#: Rates and latencies are taken over this time, as Prometheus' `rate(...[1m])` does.
_WINDOW_S = 60.0
#: Columns of services that come from one source; they fail together.
_SOURCES = {"istio": slice(0, 4), "cadvisor": slice(4, 6), "envoy": slice(6, 7)}


class Monitor:
    """Measures a world after every step, over a window."""

    def __init__(self, world: World, rng: np.random.Generator) -> None:
        plan, topology = world.plan, world.topology
        self._world, self._roster, self._rng = world, Roster(), rng
        self._kept: deque[tuple[float, Floats, Floats]] = deque()
        self._missing, self._noise = plan.missing, plan.noise
        self._slots = np.full(len(topology.names), -1, dtype=np.int32)
        self._seen_s = np.full(len(topology.src), -np.inf)
        # Container metrics have the workload's name; calls to a service without a proxy the Service's.
        is_named = np.array([a == b for a, b in zip(topology.names, topology.reported, strict=True)])
        proxy, timed = topology.sidecar, topology.sidecar & topology.durations
        scraped = topology.containers & is_named
        everywhere = np.ones(len(topology.src), dtype=bool)
        # Whether monitoring ever has a column of a service [s, 7] or of a call path [e, 4].
        self._of_service = np.column_stack(
            [proxy, proxy, timed, timed, scraped, scraped, proxy & topology.tcp]
        )
        self._of_path = np.column_stack(
            [everywhere, everywhere, topology.durations[topology.src], timed[topology.dst]]
        )

    def look(self, step_s: float) -> None:
        """Measure the last step."""
        world, rng, flow, exact = self._world, self._rng, self._world.flow, self._noise == 0.0
        counts, sent = flow.arrived * step_s, flow.sent * step_s
        if not exact:
            counts, sent = rng.poisson(counts).astype(np.float64), rng.poisson(sent).astype(np.float64)
        failed = counts * flow.errors if exact else rng.binomial(counts.astype(np.int64), flow.errors)
        edge_failed = sent * flow.failed if exact else rng.binomial(sent.astype(np.int64), flow.failed)
        got = sent * flow.received / np.maximum(flow.sent, 1e-12)
        # Sums that can be added over the window [7, s] and [11, e].
        nodes = np.stack([counts, failed, world.cpu_cores * step_s, *flow.server.sums(counts)])
        callee = flow.server.of(world.topology.dst)
        edges = np.stack([sent, edge_failed, got, *flow.client.sums(sent), *callee.sums(got)])
        self._kept.append((step_s, nodes, edges))
        length = sum(step for step, *_ in self._kept)
        while len(self._kept) > 1 and length - self._kept[0][0] >= _WINDOW_S - 1e-6:
            length -= self._kept.popleft()[0]
        self._length_s = length
        self._node_sums = sum((kept for _, kept, _ in self._kept), np.zeros(1))
        self._edge_sums = sum((kept for *_, kept in self._kept), np.zeros(1))
        self._seen_s[flow.sent > 1e-6] = world.now_s

    def snapshot(self) -> Snapshot:
        """Return the snapshot at this time."""
        world, topology, now_s = self._world, self._world.topology, self._world.now_s
        alive = np.flatnonzero(world.fleet.running)
        for service in alive[self._slots[alive] < 0]:
            self._slots[service] = self._roster.slot(topology.reported[service])
        paths = np.flatnonzero(
            (now_s - self._seen_s < FORGET_S)
            & topology.sidecar[topology.src]
            & world.fleet.running[topology.src]
            & world.fleet.running[topology.dst]
        )
        nodes, edges = self._nodes(alive), self._edges(paths)
        gaps = self._lose(nodes, edges)
        if not topology.tcp:
            gaps = (Gap("node.connections", "no series"), *gaps)
        return Snapshot(
            time_s=now_s,
            schema=Schema(),
            roster=self._roster,
            nodes=self._slots[alive],
            node_features=nodes,
            edge_src=self._slots[topology.src[paths]],
            edge_dst=self._slots[topology.dst[paths]],
            edge_features=edges,
            gaps=gaps,
        )

    def _nodes(self, alive: Ints) -> NDArray[np.float32]:
        """Return the values of these services [n, 7], as in `NODE_FEATURES`; draws in this order."""
        world = self._world
        counts, failed, cpu, *moments = self._node_sums[:, alive]
        latencies = Latencies.of_sums(moments, counts)
        memory = np.bincount(world.pods.service, world.pods.memory_bytes, len(world.topology.names))
        flying = world.flow.in_flight[alive]
        columns = [
            counts / self._length_s,
            _ratio(failed, counts),
            self._quantile(latencies, counts, 0.5),
            self._quantile(latencies, counts, 0.99),
            cpu / self._length_s * self._error(np.full(len(alive), 0.01)),
            memory[alive] * self._error(np.full(len(alive), 0.003)),
            self._rng.poisson(flying) if self._noise else flying,
        ]
        return np.where(self._of_service[alive], np.column_stack(columns), np.nan).astype(np.float32)

    def _edges(self, paths: Ints) -> NDArray[np.float32]:
        """Return the values of these call paths [n, 4], as in `EDGE_FEATURES`; draws in this order."""
        sent, failed, got, *moments = self._edge_sums[:, paths]
        columns = [
            sent / self._length_s,
            _ratio(failed, sent),
            self._quantile(Latencies.of_sums(moments[:4], sent), sent, 0.99),
            self._quantile(Latencies.of_sums(moments[4:], got), got, 0.99),
        ]
        return np.where(self._of_path[paths], np.column_stack(columns), np.nan).astype(np.float32)

    def _quantile(self, latencies: Latencies, counts: Floats, share: float) -> Floats:
        """Return a quantile of the window's requests; NaN without any, with a larger error for few."""
        usual, few = (0.01, 0.5) if share < 0.9 else (0.03, 2.0)
        rough = usual + few / np.sqrt(np.maximum(counts, 1.0))
        return np.where(counts > 0.0, latencies.quantile(share) * self._error(rough), np.nan)

    def _error(self, size: Floats) -> Floats:
        """Return the error factor of measurements, with heavy tails; 1 without noise."""
        if not self._noise:
            return np.ones(len(size))
        off: Floats = self._rng.standard_t(4, len(size)).clip(-8, 8)
        return np.exp(np.clip(size * self._noise, 0.0, 0.3) * off)

    def _lose(self, nodes: NDArray[np.float32], edges: NDArray[np.float32]) -> tuple[Gap, ...]:
        """Drop the values of failed scrapes: of single services now and then, of a whole source rarely."""
        if not self._missing:
            return ()
        gaps = []
        for source, columns in _SOURCES.items():
            lost = self._rng.random(len(nodes)) < self._missing
            if self._rng.random() < self._missing / 4:
                lost[:] = True
                gaps += [
                    Gap(f"node.{name}", f"{source} was not scraped") for name in NODE_FEATURES[columns]
                ]
            nodes[lost, columns] = np.nan
        edges[self._rng.random(len(edges)) < self._missing] = np.nan
        return tuple(gaps)


def _ratio(part: Floats, whole: Floats) -> Floats:
    return np.where(whole > 0.0, part / np.maximum(whole, 1e-12), np.nan)
