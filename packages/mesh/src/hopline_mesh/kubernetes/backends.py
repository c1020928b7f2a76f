"""The relations between Services, pods and workloads, and the names of a workload in a mesh.

Endpoints name pods, and pods name their workload; either may arrive first. The workload is the key of a
mesh, because metrics of proxies and of containers name it. A Service is a group of workloads above it: one
Service may have several (a canary), and its name is often another.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from hopline_mesh.kubernetes.objects import EndpointSlice
from hopline_mesh.kubernetes.pod import PodState
from hopline_mesh.kubernetes.workload import WorkloadKey

Key = tuple[str, str]

_Name = TypeVar("_Name")

#: Kinds of workloads that keep running; pods of others (Jobs) are ignored unless a service names them.
LASTING = frozenset({"Deployment", "StatefulSet", "DaemonSet", "Rollout", "ReplicaSet"})


class Slice(NamedTuple):
    """Some of the endpoints of a service: its name, the pods, and how many of them get requests."""

    service: str
    pods: tuple[Key, ...]
    ready: int


def slice_of(body: EndpointSlice) -> Slice | None:
    """Return the stored state of an object of the API; None for a slice without a service."""
    namespace, labels = body.metadata.namespace, body.metadata.labels
    if labels is None or not labels.service_name:
        return None
    endpoints = body.endpoints or ()
    targets = [each.target_ref for each in endpoints if each.target_ref is not None]
    return Slice(
        sys.intern(f"{namespace}/{labels.service_name}"),
        tuple(
            dict.fromkeys(
                (each.namespace or namespace, each.name) for each in targets if each.kind == "Pod"
            )
        ),
        sum(each.conditions.ready is not False for each in endpoints),
    )


class Backends:
    """Pods, workloads and services, and their relations.

    Args:
        workloads: those that exist, also without pods; the feed updates them.

    Attributes:
        pods: state of each pod.
        slices: endpoints of services.
    """

    def __init__(self, workloads: Mapping[WorkloadKey, object]) -> None:
        self._workloads = workloads
        self.pods: dict[Key, PodState] = {}
        self.slices: dict[Key, Slice] = {}
        self._slices_of: dict[str, set[Key]] = {}
        # A tuple takes a quarter of the memory of a set, and most pods are in one slice.
        self._slices_of_pod: dict[Key, tuple[Key, ...]] = {}
        self._pods_of: dict[WorkloadKey, set[Key]] = {}
        # Kept when the last pod is gone: the service still belongs to the workload.
        self._services_of: dict[WorkloadKey, frozenset[str]] = {}

    def __contains__(self, service: object) -> bool:
        """True if a service has endpoint slices, also empty ones."""
        return service in self._slices_of

    def ready(self, service: str) -> int:
        """Return the number of a service's endpoints that get requests."""
        return sum(self.slices[key].ready for key in self._slices_of.get(service, ()))

    def pods_of(self, workload: WorkloadKey) -> set[Key]:
        """Return the pods of a workload, including those that are ending."""
        return self._pods_of.get(workload, set())

    def names_of(self, workload: WorkloadKey, also: Iterable[str] = ()) -> tuple[str, ...]:
        """Return the names that a mesh may have for a workload, its own first.

        Metrics that lack the workload name the called Service instead. A Service whose name is also that of
        another workload is left out: that name is the other workload.

        Args:
            also: further Services of it.
        """
        services = sorted({*self.services_of(workload), *also})
        own = f"{workload.namespace}/{workload.name}"
        if workload.kind not in LASTING and not services:
            return ()
        return own, *(name for name in services if name != own and not self._is_workload(name))

    def names_behind(self, service: str) -> tuple[str, ...]:
        """Return the names of workloads that serve, or served, only this Service; without any, its own."""
        behind = [
            workload
            for workload, services in self._services_of.items()
            if service in services and {*self.services_of(workload)} <= {service}
        ]
        named = {name for workload in behind for name in self.names_of(workload, (service,))}
        return tuple(sorted(named)) or (service,)

    def services_of(self, workload: WorkloadKey) -> tuple[str, ...]:
        """Return the existing Services of a workload."""
        known = self._services_of.get(workload, ())
        return tuple(sorted(name for name in known if name in self._slices_of))

    def _is_workload(self, name: str) -> bool:
        namespace, _, own = name.partition("/")
        keys = (WorkloadKey(namespace, kind, own) for kind in LASTING)
        return any(key in self._workloads or key in self._pods_of for key in keys)

    def put_pod(self, key: Key, pod: PodState) -> None:
        """Store a new or changed pod."""
        known = self.pods.get(key)
        if known is not None and known.workload != pod.workload:
            _discard(self._pods_of, known.workload, key)
        self.pods[key] = pod
        self._pods_of.setdefault(pod.workload, set()).add(key)
        if services := self._services_of_pod(key):
            self._services_of[pod.workload] = self._services_of.get(pod.workload, frozenset()) | services

    def drop_pod(self, key: Key) -> PodState | None:
        """Remove a pod; returns its last state."""
        pod = self.pods.pop(key, None)
        if pod is not None:
            _discard(self._pods_of, pod.workload, key)
        return pod

    def set_slice(self, key: Key, new: Slice | None) -> Slice | None:
        """Store new or changed endpoints, or (None) remove them; returns the previous ones."""
        old = self.slices.pop(key, None)
        if old is not None:
            _discard(self._slices_of, old.service, key)
            for pod in old.pods:
                rest = tuple(each for each in self._slices_of_pod.pop(pod) if each != key)
                if rest:
                    self._slices_of_pod[pod] = rest
        if new is not None:
            self.slices[key] = new
            self._slices_of.setdefault(new.service, set()).add(key)
            for pod in new.pods:
                self._slices_of_pod[pod] = (*self._slices_of_pod.get(pod, ()), key)
        touched = {*(old.pods if old else ()), *(new.pods if new else ())}
        for workload in {self.pods[pod].workload for pod in touched if pod in self.pods}:
            services = frozenset().union(*map(self._services_of_pod, self.pods_of(workload)))
            if services:
                self._services_of[workload] = services
        return old

    def forget(self, workload: WorkloadKey) -> None:
        """Drop the services of a workload that is gone, unless pods are left."""
        if workload not in self._pods_of:
            self._services_of.pop(workload, None)

    def _services_of_pod(self, pod: Key) -> frozenset[str]:
        return frozenset(self.slices[key].service for key in self._slices_of_pod.get(pod, ()))


def _discard(members: dict[_Name, set[Key]], of: _Name, key: Key) -> None:
    """Remove a member, and an empty set."""
    members[of].discard(key)
    if not members[of]:
        del members[of]
