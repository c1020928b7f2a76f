"""A random mesh in layers: services, their properties, and call paths.

Entries on top, tiers below, stores at the bottom; some back ends are shared by many. Knows no time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hopline.errors import ConfigError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

_NAMESPACES = ("shop", "pay", "stock", "user", "ads", "core")
_ENTRIES = ("gateway", "web", "mobile", "partner")
_TIERS = (
    "cart", "orders", "checkout", "catalog", "search", "prices", "reviews", "profile", "billing",
    "shipping", "stock", "offers", "media", "mail", "fraud", "tax", "loyalty", "quotes", "returns", "ads",
)  # fmt: skip
_STORES = ("sql", "cache", "index", "queue", "ledger", "blobs")
_UTILISATION = 0.42


@dataclass(frozen=True, eq=False)
class Topology:
    """Services and calls; arrays over services [s] or edges [e], edges sorted by their caller's layer.

    A service here is a workload: usually it has a Kubernetes Service of the same name to itself.
    """

    names: tuple[str, ...]  # `namespace/workload`
    services: tuple[str, ...]  # the Kubernetes Service in front of each; several may have the same
    spare_of: Ints  # [s], the service whose traffic a spare can take; -1 if it is not a spare
    layer: Ints  # [s], calls go from a lower layer to a higher one, except the last `num_back` edges
    entry_share: Floats  # [s], share of the mesh's load that enters at the service
    own_ms: Floats  # [s], time of a request in the service itself, without queueing
    spread: Floats  # [s], coefficient of variation of that time
    workers: Ints  # [s], requests that one pod can process in parallel
    replicas: Ints  # [s], pods at the start
    max_replicas: Ints  # [s], maximum pods of autoscaling; `replicas` without autoscaling
    cpu_s: Floats  # [s], CPU seconds for one request
    cpu_request: Floats  # [s], cores that a pod requests
    memory_bytes: Floats  # [s], of a nearly idle pod
    memory_limit: Floats  # [s], bytes at which a pod is killed
    gc_s: Floats  # [s], seconds between two large garbage collections, at usual load
    idle: Flags  # [s], has no traffic for much of the time
    grpc: Flags  # [s], serves gRPC: its errors have HTTP status 200
    sidecar: Flags  # [s], its pods have a proxy
    containers: Flags  # [s], CPU and memory of its pods are scraped
    durations: Flags  # [s], its proxies' latencies are scraped
    src: Ints  # [e]
    dst: Ints  # [e]
    calls: Floats  # [e], per request of the caller
    network_ms: Floats  # [e], round-trip time of the network
    timeout_ms: Floats  # [e], after which the caller stops waiting
    retries: Ints  # [e], attempts after a failed one
    critical: Floats  # [e], share of the caller's requests that fail if the call fails
    retry_budget: Floats  # [e], largest number of retries, as a share of the calls; inf for no limit
    tcp: bool = True  # proxies count TCP connections
    num_back: int = 0  # number of edges back to a caller, which close cycles

    @cached_property
    def reported(self) -> tuple[str, ...]:
        """Names in metrics: those of the workloads, and of Services where a workload has no proxy."""
        rows = zip(self.names, self.services, self.sidecar, strict=True)
        return tuple(name if has_proxy else service for name, service, has_proxy in rows)

    def find(self, name: str) -> int:
        """Return the number of a service.

        Args:
            name: of the workload, with or without namespace, or of a Service with one workload.

        Raises:
            ConfigError: the name fits no service, or several.
        """
        whole = (self.names, self.services)
        for names in (*whole, *(tuple(each.partition("/")[2] for each in some) for some in whole)):
            if names.count(name) == 1:
                return names.index(name)
        raise ConfigError(f"the mesh has no service {name!r}; it has {', '.join(self.names[:8])}, …")

    def edge(self, caller: str, callee: str) -> int:
        """Return the number of a call path that exists, by the names of both workloads."""
        src, dst = self.names.index(caller), self.names.index(callee)
        return int(np.flatnonzero((self.src == src) & (self.dst == dst))[0])

    @property
    def back(self) -> slice:
        """Slice of the edges that go back to a caller."""
        return slice(len(self.src) - self.num_back, len(self.src))

    @cached_property
    def groups(self) -> Ints:
        """Number of each workload's Service, int64 [s]: equal for workloads behind the same one."""
        return np.unique(np.array(self.services), return_inverse=True)[1].astype(np.int64)

    @cached_property
    def levels(self) -> list[slice]:
        """Slices of the edges, one for each layer of callers, top first; without those that go back."""
        layers = self.layer[self.src[: self.back.start]]
        bounds = np.searchsorted(layers, np.arange(int(self.layer.max()) + 2))
        return [slice(int(a), int(b)) for a, b in pairwise(bounds) if b > a]


def build(services: int, spares: int, rate: float, rng: np.random.Generator, peak: float = 1.0) -> Topology:
    """Build a random mesh in which every service is reachable from an entry.

    At `peak * rate` requests per second each service has a utilisation of about 42 %.

    Args:
        services: number of services, at least 3.
        spares: number of additional services, each a copy of a tier service without callers yet.
        rate: requests per second that enter at the middle of the day.
        peak: the load that pods are sized for, relative to `rate`.
    """
    layer = _layers(services, rng)
    depth = int(layer.max())
    pairs = _pairs(layer, rng)
    spares = min(spares, int(np.count_nonzero((layer > 0) & (layer < depth))))
    copied = rng.choice(np.flatnonzero((layer > 0) & (layer < depth)), size=spares, replace=False)
    spare_of = np.concatenate([np.full(services, -1), copied]).astype(np.int64)
    calls = {}
    for caller in range(services):
        callees = [dst for src, dst in pairs if src == caller]
        weights = rng.gamma(2.0, 1.0, len(callees))
        # A request makes one to two calls in total for any fan-out, so that load does not explode.
        total = rng.uniform(0.9, 1.6)
        for callee, weight in zip(callees, weights, strict=True):
            calls[caller, callee] = max(0.03, float(total * weight / weights.sum()))
    for number, original in enumerate(copied):
        for (caller, callee), amount in list(calls.items()):
            if caller == original:
                calls[services + number, callee] = amount
            elif callee == original and caller < services:
                calls[caller, services + number] = amount
    layer = np.concatenate([layer, layer[copied]]).astype(np.int64)
    order = sorted(calls, key=lambda pair: (layer[pair[0]], pair))
    src, dst = (np.array([pair[side] for pair in order], dtype=np.int64) for side in (0, 1))
    amounts = np.array([calls[pair] for pair in order])
    n, e = len(layer), len(order)
    entry_share = np.zeros(n)
    entries = np.flatnonzero(layer == 0)
    entry_share[entries] = rng.dirichlet(np.full(len(entries), 4.0))
    usual = _usual_rates(entry_share * rate, src, dst, amounts, spare_of)
    own_ms = np.exp(rng.uniform(np.log(1.5), np.log(25.0), n))
    own_ms[layer == depth] *= 0.4
    replicas = rng.integers(2, 6, n)
    replicas[entries] = rng.integers(3, 6, len(entries))
    busy = peak * usual * own_ms / 1000  # workers, at the busiest hour
    workers = np.maximum(2, np.ceil(busy / _UTILISATION / replicas)).astype(np.int64)
    cpu_s = own_ms / 1000 * rng.uniform(0.25, 0.7, n)
    scaled = rng.random(n) < 0.75
    scaled[layer == depth] = False
    for values in (own_ms, replicas, workers, cpu_s):
        values[services:] = values[copied]
    # Only services with little traffic: a busy service that stops would be an outage.
    idle = (rng.random(n) < 0.3) & (layer == depth - 1) & (usual < 0.05 * rate)
    idle[copied] = idle[services:] = False
    memory = np.exp(rng.uniform(np.log(60e6), np.log(900e6), n))
    names = _names(layer, depth, services, spare_of, rng)
    return Topology(
        names=names,
        services=names,
        spare_of=spare_of,
        layer=layer,
        entry_share=entry_share,
        own_ms=own_ms,
        spread=rng.uniform(0.3, 0.8, n),
        workers=workers,
        replicas=replicas.astype(np.int64),
        max_replicas=np.where(scaled, replicas * 3, replicas).astype(np.int64),
        cpu_s=cpu_s,
        cpu_request=np.maximum(0.05, usual * cpu_s / replicas / 0.5 + 0.02),
        memory_bytes=memory,
        memory_limit=memory * rng.uniform(2.2, 3.5, n),
        gc_s=rng.uniform(90.0, 900.0, n),
        idle=idle,
        grpc=rng.random(n) < 0.4,
        sidecar=np.ones(n, dtype=bool),
        containers=np.ones(n, dtype=bool),
        durations=np.ones(n, dtype=bool),
        src=src,
        dst=dst,
        calls=amounts,
        network_ms=rng.uniform(0.3, 1.2, e),
        timeout_ms=rng.choice(np.array([1000.0, 2000.0, 5000.0]), e),
        retries=rng.choice(np.array([0, 1, 2]), e, p=[0.3, 0.5, 0.2]),
        critical=rng.choice(np.array([1.0, 1.0, 0.3, 0.0]), e),
        retry_budget=np.full(e, np.inf),
    )


def _layers(services: int, rng: np.random.Generator) -> Ints:
    """Return the layer of each service: a few entries, three to five tiers, a fifth of them stores."""
    entries = max(1, min(4, services // 15))
    tiers = max(1, min(4, (services - entries) // 5))
    stores = max(1, services // 5)
    middle = services - entries - stores
    inner = np.concatenate([np.arange(tiers), rng.integers(0, tiers, max(0, middle - tiers))])[:middle] + 1
    depth = int(inner.max(initial=0)) + 1
    return np.concatenate([np.zeros(entries), np.sort(inner), np.full(stores, depth)]).astype(np.int64)


def _pairs(layer: Ints, rng: np.random.Generator) -> set[tuple[int, int]]:
    """Return call paths: every service below the entries has a caller; popular ones have more."""
    n, depth = len(layer), int(layer.max())
    pairs = set()
    popularity = rng.pareto(1.5, n) + 0.2
    for callee in np.flatnonzero(layer > 0):
        above = np.flatnonzero(layer == layer[callee] - 1)
        pairs.add((int(rng.choice(above)), int(callee)))
    for caller in np.flatnonzero(layer < depth):
        below = np.flatnonzero(layer > layer[caller])
        weight = popularity[below] / (layer[below] - layer[caller])
        wanted = min(len(below), int(rng.integers(1, 4)))
        # In a large mesh a service calls only a few others, so that fan-out is realistic.
        for callee in rng.choice(below, size=wanted, replace=False, p=weight / weight.sum()):
            pairs.add((int(caller), int(callee)))
    return pairs


def _usual_rates(entry: Floats, src: Ints, dst: Ints, calls: Floats, spare_of: Ints) -> Floats:
    """Return requests per second of each service, without spares (edges are sorted by layer)."""
    rates = entry.copy()
    for caller, callee, amount in zip(src, dst, calls, strict=True):
        if spare_of[caller] < 0 and spare_of[callee] < 0:
            rates[callee] += rates[caller] * amount
    return rates


def _names(
    layer: Ints, depth: int, services: int, spare_of: Ints, rng: np.random.Generator
) -> tuple[str, ...]:
    """Return names by the role of each service; a repeated word gets a number."""
    names: list[str] = []
    seen: dict[str, int] = {}
    for service in range(services):
        words = _ENTRIES if layer[service] == 0 else _STORES if layer[service] == depth else _TIERS
        word = words[service % len(words)] if layer[service] == 0 else str(rng.choice(words))
        space = _NAMESPACES[int(rng.integers(len(_NAMESPACES)))] if layer[service] else "edge"
        seen[word] = seen.get(word, 0) + 1
        names.append(f"{space}/{word}" + (f"-{seen[word]}" if seen[word] > 1 else ""))
    return tuple(names + [f"{names[original]}-next" for original in spare_of[services:]])
