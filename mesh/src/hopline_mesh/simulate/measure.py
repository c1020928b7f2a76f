"""The monitoring of a simulated mesh: snapshots with sampling noise, a window, idle services and gaps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.roster import Roster
from hopline_mesh.simulate.lognormal import Latencies
from hopline_mesh.simulate.topology import Flags, Floats, Ints
from hopline_mesh.simulate.world import World
from hopline_mesh.snapshot import Gap, Snapshot

#: A call path without a request for this time is no longer reported.
FORGET_S = 600.0
#: Columns that come from one source; they fail together.
_SOURCES = {
    "request_rate": "istio", "error_share": "istio", "p50_ms": "istio", "p99_ms": "istio",
    "cpu_cores": "cadvisor", "memory_bytes": "cadvisor", "connections": "envoy",
}  # fmt: skip


class Monitor:
    """Measures a world after every step, over a window."""

    def __init__(self, world: World, roster: Roster, rng: np.random.Generator) -> None:
        plan, topology = world.plan, world.topology
        self._world, self._roster, self._rng = world, roster, rng
        self._kept: deque[tuple[float, dict[str, Floats]]] = deque()
        self._window_s, self._missing, self._noise = plan.window_s, plan.missing, plan.noise
        self._slots = np.full(len(topology.names), -1, dtype=np.int32)
        self._seen_s = np.full(len(topology.src), -np.inf)
        self._sums: dict[str, Floats] = {}
        # Container metrics have the workload's name; calls to a service without a proxy the Service's.
        is_named = np.array([a == b for a, b in zip(topology.names, topology.reported, strict=True)])
        proxy, timed = topology.sidecar, topology.sidecar & topology.durations
        scraped = topology.containers & is_named
        #: Whether this mesh's monitoring ever has a column of a service or of a call path.
        self._of_service = {
            "request_rate": proxy, "error_share": proxy, "p50_ms": timed, "p99_ms": timed,
            "cpu_cores": scraped, "memory_bytes": scraped, "connections": proxy & topology.tcp,
        }  # fmt: skip
        self._of_path = {
            "client_ms": topology.durations[topology.src],
            "server_ms": timed[topology.dst],
        }

    def look(self, step_s: float) -> None:
        """Measure the last step."""
        world, rng, flow, exact = self._world, self._rng, self._world.flow, self._noise == 0.0
        counts = flow.arrived * step_s
        sent = flow.sent * step_s
        if not exact:
            counts, sent = rng.poisson(counts).astype(np.float64), rng.poisson(sent).astype(np.float64)
        failed = counts * flow.errors if exact else rng.binomial(counts.astype(np.int64), flow.errors)
        edge_failed = sent * flow.failed if exact else rng.binomial(sent.astype(np.int64), flow.failed)
        got = sent * flow.received / np.maximum(flow.sent, 1e-12)
        sums: dict[str, Floats] = {
            "counts": counts,
            "failed": failed.astype(np.float64),
            "node": flow.server.sums(counts),
            "cpu": world.cpu_cores * step_s,
            "sent": sent,
            "edge_failed": edge_failed.astype(np.float64),
            "got": got,
            "client": flow.client.sums(sent),
            "server": flow.server.of(world.topology.dst).sums(got),
        }
        self._kept.append((step_s, sums))
        length = sum(step for step, _ in self._kept)
        while len(self._kept) > 1 and length - self._kept[0][0] >= self._window_s - 1e-6:
            length -= self._kept.popleft()[0]
        self._length_s = length
        self._sums = {name: sum((kept[name] for _, kept in self._kept), np.zeros(1)) for name in sums}
        self._seen_s[flow.sent > 1e-6] = world.now_s

    def snapshot(self) -> Snapshot:
        """Return the snapshot at this time."""
        world, schema = self._world, self._world.plan.schema
        topology, now_s = world.topology, world.now_s
        alive = np.flatnonzero(world.fleet.running)
        for service in alive[self._slots[alive] < 0]:
            self._slots[service] = self._roster.slot(topology.reported[service])
        paths = np.flatnonzero(
            (now_s - self._seen_s < FORGET_S)
            & topology.sidecar[topology.src]
            & world.fleet.running[topology.src]
            & world.fleet.running[topology.dst]
        )
        nodes = _table(schema.node_features, self._node_columns(alive), self._of_service, alive)
        edges = _table(schema.edge_features, self._edge_columns(paths), self._of_path, paths)
        gaps = self._lose(nodes, edges, schema.node_features)
        if not topology.tcp and "connections" in schema.node_features:
            gaps = (Gap("node.connections", "no series"), *gaps)
        return Snapshot(
            time_s=now_s,
            schema=schema,
            roster=self._roster,
            nodes=self._slots[alive],
            node_features=nodes,
            edge_src=self._slots[topology.src[paths]],
            edge_dst=self._slots[topology.dst[paths]],
            edge_features=edges,
            gaps=gaps,
        )

    def _node_columns(self, alive: Ints) -> dict[str, Callable[[], Floats]]:
        world = self._world
        counts, failed, cpu = (self._sums[name][alive] for name in ("counts", "failed", "cpu"))
        latencies = Latencies.of_sums(self._sums["node"][:, alive], counts)
        memory = np.bincount(world.pods.service, world.pods.memory_bytes, len(world.topology.names))[alive]
        flying = world.flow.in_flight[alive]
        return {
            "request_rate": lambda: counts / self._length_s,
            "error_share": lambda: _ratio(failed, counts),
            "p50_ms": lambda: self._quantile(latencies, counts, 0.5),
            "p99_ms": lambda: self._quantile(latencies, counts, 0.99),
            "cpu_cores": lambda: cpu / self._length_s * self._error(np.full(len(alive), 0.01)),
            "memory_bytes": lambda: memory * self._error(np.full(len(alive), 0.003)),
            "connections": lambda: self._rng.poisson(flying).astype(np.float64) if self._noise else flying,
        }

    def _edge_columns(self, paths: Ints) -> dict[str, Callable[[], Floats]]:
        sent, got, failed = (self._sums[name][paths] for name in ("sent", "got", "edge_failed"))
        client = Latencies.of_sums(self._sums["client"][:, paths], sent)
        server = Latencies.of_sums(self._sums["server"][:, paths], got)
        return {
            "request_rate": lambda: sent / self._length_s,
            "error_share": lambda: _ratio(failed, sent),
            "client_ms": lambda: self._quantile(client, sent, 0.99),
            "server_ms": lambda: self._quantile(server, got, 0.99),
        }

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

    def _lose(
        self, nodes: NDArray[np.float32], edges: NDArray[np.float32], names: tuple[str, ...]
    ) -> tuple[Gap, ...]:
        """Drop the values of failed scrapes: of single services now and then, of a whole source rarely."""
        if not self._missing:
            return ()
        gaps = []
        for source in ("istio", "cadvisor", "envoy"):
            columns = [column for column, name in enumerate(names) if _SOURCES.get(name) == source]
            lost = self._rng.random(len(nodes)) < self._missing
            if self._rng.random() < self._missing / 4:
                lost[:] = True
                gaps += [Gap(f"node.{names[column]}", f"{source} was not scraped") for column in columns]
            if lost.any():
                nodes[np.ix_(np.flatnonzero(lost), np.array(columns))] = np.nan
        edges[self._rng.random(len(edges)) < self._missing] = np.nan
        return tuple(gaps)


def _table(
    names: tuple[str, ...], columns: dict[str, Callable[[], Floats]], has: dict[str, Flags], rows: Ints
) -> NDArray[np.float32]:
    """Return the named columns of some rows; NaN where monitoring has none. Draws in this order."""
    table = np.full((len(rows), len(names)), np.nan, dtype=np.float32)
    for place, name in enumerate(names):
        if name in columns:
            table[:, place] = columns[name]()
        if name in has:
            table[~has[name][rows], place] = np.nan
    return table


def _ratio(part: Floats, whole: Floats) -> Floats:
    return np.where(whole > 0.0, part / np.maximum(whole, 1e-12), np.nan)
