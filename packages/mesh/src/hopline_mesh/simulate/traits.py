"""Properties of real meshes that make them harder to watch, added to a mesh of `topology.build`.

Workloads with other names than their Services, several workloads behind one Service, calls in cycles, retry
budgets, services without a sidecar, missing series, no TCP metrics. Knows no time.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from hopline.errors import ConfigError
from hopline_mesh.simulate.topology import Ints, Topology

#: Retries that a budget allows, as a share of a path's calls (Linkerd's and Envoy's default).
RETRY_BUDGET = 0.2
#: Pods of a second workload behind a Service, as a share of those of the first.
_CANARY_PODS = 0.35
#: Calls per request of a path back to a caller: few, so that no loop grows.
_BACK_CALLS = (0.02, 0.08)
#: Arrays of a topology that a second workload has in common with the first, and a second path.
_OF_SERVICE = (
    "layer", "spare_of", "entry_share", "own_ms", "spread", "workers", "cpu_s", "cpu_request",
    "memory_bytes", "memory_limit", "gc_s", "idle", "grpc", "sidecar", "containers", "durations",
)  # fmt: skip
_OF_PATH = ("calls", "network_ms", "timeout_ms", "retries", "critical", "retry_budget")


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties of a mesh; the defaults have none of them.

    Attributes:
        versions: share of services whose workload is named `cart-v1`, behind a Service `cart`.
        canaries: share of inner services with a second workload behind the same Service. Requests are
            distributed by ready pods.
        cycles: paths back to a caller, as a share of the inner services.
        retry_budgets: share of call paths on which at most 20 % more requests are retries.
        without_sidecar: share of inner services whose pods have no proxy: only their callers' proxies
            measure them, under the name of the Service. Their own calls are not measured.
        missing_series: share of services of which container metrics or latencies are never scraped.
        tcp: whether proxies count TCP connections. Istio does only for TCP services.
    """

    versions: float = 0.0
    canaries: float = 0.0
    cycles: float = 0.0
    retry_budgets: float = 0.0
    without_sidecar: float = 0.0
    missing_series: float = 0.0
    tcp: bool = True

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not 0.0 <= value <= 1.0:
                raise ConfigError(f"trait {each.name} is {value}, not within 0 to 1")


def draw(seed: int) -> Traits:
    """Draw all properties, each within what is usual for a real mesh."""
    rng = np.random.default_rng([seed, 6])
    return Traits(
        versions=float(rng.uniform(0.3, 1.0)),
        canaries=float(rng.uniform(0.1, 0.3)),
        cycles=float(rng.uniform(0.1, 0.3)),
        retry_budgets=float(rng.uniform(0.2, 0.8)),
        without_sidecar=float(rng.uniform(0.08, 0.2)),
        missing_series=float(rng.uniform(0.08, 0.25)),
        tcp=False,
    )


def add(traits: Traits, mesh: Topology, rng: np.random.Generator) -> Topology:
    """Return the mesh with these properties; the same mesh for the default traits."""
    if traits == Traits():
        return mesh
    inner = np.flatnonzero((mesh.layer > 0) & (mesh.spare_of < 0) & ~mesh.idle)
    # Workloads are named `cart-v1`; their Services keep the name.
    chosen = _some(traits.versions, np.arange(len(mesh.names)), rng)
    names = tuple(f"{name}-v1" if at in chosen else name for at, name in enumerate(mesh.names))
    canaries = _some(traits.canaries, inner, rng)
    mesh = _with_canaries(replace(mesh, names=names), canaries)
    mesh = _with_cycles(traits.cycles, mesh, inner, rng)
    budgets = np.where(rng.random(len(mesh.src)) < traits.retry_budgets, RETRY_BUDGET, np.inf)
    sidecar, containers, durations = mesh.sidecar.copy(), mesh.containers.copy(), mesh.durations.copy()
    sidecar[_some(traits.without_sidecar, np.setdiff1d(inner, canaries), rng)] = False
    lacking = _some(traits.missing_series, np.flatnonzero(sidecar), rng, least=2)
    containers[lacking[::2]] = False
    durations[lacking[1::2]] = False
    return replace(
        mesh,
        retry_budget=budgets,
        sidecar=sidecar,
        containers=containers,
        durations=durations,
        tcp=traits.tcp,
    )


def _some(share: float, of: Ints, rng: np.random.Generator, least: int = 1) -> Ints:
    """Draw a share of numbers, at least `least` if the share is above 0; ascending."""
    count = min(len(of), max(least, round(share * len(of)))) if share > 0 else 0
    return np.sort(rng.choice(of, size=count, replace=False))


def _with_canaries(mesh: Topology, originals: Ints) -> Topology:
    """Add a second workload behind the Services of some, with the same callers and callees."""
    size = len(mesh.names)
    rows = np.concatenate([np.arange(size), originals])
    replicas = mesh.replicas[rows]
    replicas[size:] = np.maximum(1, np.round(_CANARY_PODS * replicas[size:]))
    first = [mesh.names[original] for original in originals]
    added = tuple(
        f"{name.removesuffix('-v1')}-v2" if name.endswith("-v1") else f"{name}-canary" for name in first
    )
    both = {original: (original, size + at) for at, original in enumerate(originals.tolist())}
    # A call path becomes one between each workload of the caller and each of the callee.
    paths = [
        (edge, caller, callee)
        for edge, (src, dst) in enumerate(zip(mesh.src.tolist(), mesh.dst.tolist(), strict=True))
        for caller in both.get(src, (src,))
        for callee in both.get(dst, (dst,))
    ]
    layer = mesh.layer[rows]
    paths.sort(key=lambda path: (layer[path[1]], path[1:]))
    edges, src, dst = np.array(paths, dtype=np.int64).T
    kept: dict[str, Any] = {name: getattr(mesh, name)[rows] for name in _OF_SERVICE}
    kept |= {name: getattr(mesh, name)[edges] for name in _OF_PATH}
    return replace(
        mesh,
        names=mesh.names + added,
        services=tuple(mesh.services[row] for row in rows),
        replicas=replicas,
        max_replicas=np.where(mesh.max_replicas > mesh.replicas, 3, 1)[rows] * replicas,
        src=src,
        dst=dst,
        **kept,
    )


def _with_cycles(share: float, mesh: Topology, inner: Ints, rng: np.random.Generator) -> Topology:
    """Add paths from services back to one of their callers, or to a caller of those."""
    below = inner[mesh.layer[inner] > 1]
    found = []
    for service in _some(share, below, rng).tolist():
        callers = mesh.src[mesh.dst == service]
        above = np.union1d(callers, mesh.src[np.isin(mesh.dst, callers)])
        fits = above[(mesh.layer[above] > 0) & (mesh.spare_of[above] < 0) & (above != service)]
        if len(fits):
            found.append((service, int(rng.choice(fits))))
    count = len(found)
    src, dst = np.array(found, dtype=np.int64).reshape(-1, 2).T
    more = {
        "src": src,
        "dst": dst,
        "calls": rng.uniform(*_BACK_CALLS, count),
        "network_ms": rng.uniform(0.3, 1.2, count),
        "timeout_ms": np.full(count, 1000.0),
        "retries": np.ones(count, np.int64),
        "critical": np.full(count, 0.3),
        "retry_budget": np.full(count, np.inf),
    }
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(mesh, name), values]) for name, values in more.items()
    }
    return replace(mesh, num_back=count, **joined)
