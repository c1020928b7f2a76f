"""Chooses the service or call path of each fault and operation for which the plan names none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hopline.errors import ConfigError
from hopline_mesh.simulate.plan import EDGE_FAULTS, Fault, Operation
from hopline_mesh.simulate.topology import Floats, Topology

#: Services and paths with less traffic than this share of the busiest are not chosen, because effects on
#: them would be invisible.
_SEEN = 0.02


class Cast:
    """Gives faults and operations their services.

    Args:
        rate: requests per second that enter the mesh.
    """

    def __init__(self, topology: Topology, rate: float, rng: np.random.Generator) -> None:
        self._topology, self._rng = topology, rng
        rates, flows = _traffic(topology, rate)
        steady = (topology.spare_of < 0) & ~topology.idle
        self._services = np.flatnonzero(steady & (rates > _SEEN * rates.max()))
        seen = steady[topology.src] & steady[topology.dst] & (flows > _SEEN * flows.max(initial=0.0))
        self._paths = np.flatnonzero(seen & topology.sidecar[topology.src])
        self._spares: list[int] = np.flatnonzero(topology.spare_of >= 0).tolist()
        self._added: list[int] = []

    def of_fault(self, fault: Fault) -> Fault:
        """Return the fault with the full names of its service and caller.

        Raises:
            ConfigError: the mesh does not have this service or call path.
        """
        topology, names = self._topology, self._topology.names
        service, caller = self._find(fault.service), self._find(fault.caller)
        if fault.kind not in EDGE_FAULTS:
            service = self._rng.choice(self._services) if service is None else service
            return replace(fault, service=names[service])
        fits = self._paths
        if service is not None or caller is not None:
            to_it = True if service is None else topology.dst == service
            from_it = True if caller is None else topology.src == caller
            fits = np.flatnonzero(to_it & from_it)
        if not fits.size:
            raise ConfigError(
                f"{fault.kind}: {'no service' if caller is None else names[caller]} does not call "
                f"{'any service' if service is None else names[service]}"
            )
        edge = int(self._rng.choice(fits))
        return replace(fault, service=names[topology.dst[edge]], caller=names[topology.src[edge]])

    def of_operation(self, operation: Operation) -> Operation:
        """Return the planned change with the full name of its service, and for `scale` the number of pods.

        Raises:
            ConfigError: the mesh does not have this service, or no service fits.
        """
        topology, kind, service = self._topology, operation.kind, self._find(operation.service)
        if service is None:
            if kind == "add":
                service = self._spares.pop(0) if self._spares else None
            elif kind == "remove":
                service = self._added.pop(0) if self._added else None
            else:
                service = int(self._rng.choice(self._services))
        if kind == "add" and (service is None or topology.spare_of[service] < 0):
            raise ConfigError(
                f"add: {operation.service or 'the mesh'} is not a spare service; raise `spares`"
            )
        if service is None:
            raise ConfigError("remove: no service was added before; name a service")
        if kind == "add":
            self._added.append(service)
        elif kind == "remove" and topology.spare_of[service] >= 0:
            self._spares.append(service)
        replicas = operation.replicas
        if kind == "scale" and not replicas:
            replicas = int(topology.replicas[service]) + int(self._rng.integers(2, 5))
        return replace(operation, service=topology.names[service], replicas=replicas)

    def _find(self, name: str) -> int | None:
        return self._topology.find(name) if name else None


def _traffic(topology: Topology, rate: float) -> tuple[Floats, Floats]:
    """Return usual requests per second of services and of call paths."""
    rates = topology.entry_share * rate
    flows = np.zeros(len(topology.src))
    # Behind one Service each workload gets its share of the pods.
    groups, replicas = topology.groups, topology.replicas.astype(np.float64)
    share = replicas / np.bincount(groups, replicas)[groups]
    for level in topology.levels:
        flows[level] = rates[topology.src[level]] * (topology.calls * share[topology.dst])[level]
        used = topology.spare_of[topology.dst[level]] < 0
        rates = rates + np.bincount(topology.dst[level], flows[level] * used, len(rates))
    return rates, flows
