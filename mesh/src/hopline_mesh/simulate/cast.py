"""Chooses the service or call path of each fault and operation for which the plan names none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hopline.errors import ConfigError
from hopline_mesh.simulate.plan import EDGE_FAULTS, Fault, MeshPlan, Operation
from hopline_mesh.simulate.topology import Floats, Topology

#: Services and paths with less traffic than this share of the busiest are not chosen, because effects on
#: them would be invisible.
_SEEN = 0.02


def cast(
    plan: MeshPlan, topology: Topology, rng: np.random.Generator
) -> tuple[tuple[Fault, ...], tuple[Operation, ...]]:
    """Return faults and operations with names and Unix times, oldest first.

    Raises:
        ConfigError: a name that the mesh does not have, or a call path that it does not have.
    """
    rates, flows = _traffic(topology, plan.rate)
    chooser = _Chooser(topology, rates, flows, rng)
    faults = [
        replace(chooser.of_fault(fault), start_s=plan.start_s + fault.start_s)
        for fault in sorted(plan.faults, key=lambda each: each.start_s)
    ]
    operations = [
        replace(chooser.of_operation(each), start_s=plan.start_s + each.start_s)
        for each in sorted(plan.operations, key=lambda each: each.start_s)
    ]
    return tuple(faults), tuple(operations)


class _Chooser:
    def __init__(self, topology: Topology, rates: Floats, flows: Floats, rng: np.random.Generator) -> None:
        self._topology, self._rng = topology, rng
        steady = (topology.spare_of < 0) & ~topology.idle
        can_be_seen = topology.visibility.sidecar[topology.src]
        self._services = np.flatnonzero(steady & (rates > _SEEN * rates.max()))
        seen = steady[topology.src] & steady[topology.dst] & (flows > _SEEN * flows.max(initial=0.0))
        self._paths = np.flatnonzero(seen & can_be_seen)
        self._spares: list[int] = list(np.flatnonzero(topology.spare_of >= 0))
        self._added: list[str] = []

    def of_fault(self, fault: Fault) -> Fault:
        topology, names = self._topology, self._topology.names
        if fault.kind not in EDGE_FAULTS:
            service = self._known(fault.service) or names[self._rng.choice(self._services)]
            return replace(fault, service=service)
        callee, caller = self._known(fault.service), self._known(fault.caller)
        if callee and caller:
            fits = np.flatnonzero(
                (topology.dst == names.index(callee)) & (topology.src == names.index(caller))
            )
        else:
            fits = self._paths
            if callee:
                fits = np.flatnonzero(topology.dst == names.index(callee))
            elif caller:
                fits = np.flatnonzero(topology.src == names.index(caller))
        if not fits.size:
            raise ConfigError(
                f"{fault.kind}: {caller or 'no service'} does not call {callee or 'any service'}"
            )
        edge = int(self._rng.choice(fits))
        return replace(fault, service=names[topology.dst[edge]], caller=names[topology.src[edge]])

    def of_operation(self, operation: Operation) -> Operation:
        topology, names = self._topology, self._topology.names
        known = self._known(operation.service)
        if operation.kind == "add":
            service = known or (names[self._spares.pop(0)] if self._spares else "")
            if not service or topology.spare_of[names.index(service)] < 0:
                raise ConfigError(f"add: {service or 'the mesh'} is not a spare service; raise `spares`")
            self._added.append(service)
        elif operation.kind == "remove":
            service = known or (self._added.pop(0) if self._added else "")
            if not service:
                raise ConfigError("remove: no service was added before; name a service")
            if topology.spare_of[names.index(service)] >= 0:
                self._spares.append(names.index(service))
        else:
            service = known or names[self._rng.choice(self._services)]
        if operation.kind == "scale" and not operation.replicas:
            usual = int(topology.replicas[names.index(service)])
            return replace(operation, service=service, replicas=usual + int(self._rng.integers(2, 5)))
        return replace(operation, service=service)

    def _known(self, name: str) -> str:
        """Return the full name of a workload; "" is unchanged."""
        if not name:
            return name
        found, names = self._topology.find(name), self._topology.names
        if found is None:
            raise ConfigError(f"the mesh has no service {name!r}; it has {', '.join(names[:8])}, …")
        return names[found]


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
