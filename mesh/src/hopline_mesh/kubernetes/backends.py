"""The relations between Services, pods and workloads, and the names of a workload in a mesh.

Endpoints name pods, and pods name their workload; either may arrive first. The workload is the key of a
mesh, because metrics of proxies and of containers name it. A Service is a group of workloads above it: one
Service may have several (a canary), and its name is often another.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from hopline_mesh.kubernetes.objects import EndpointSlice
from hopline_mesh.kubernetes.pod import PodState
from hopline_mesh.kubernetes.workload import WorkloadKey

Key = tuple[str, str]

#: Kinds of workloads that keep running; pods of others (Jobs) are ignored unless a service names them.
LASTING = frozenset({"Deployment", "StatefulSet", "DaemonSet", "Rollout", "ReplicaSet"})


class Backends:
    """Pods, workloads and services, and their relations.

    Args:
        workloads: those that exist, also without pods; the feed updates them.
    """

    def __init__(self, workloads: Mapping[WorkloadKey, object]) -> None:
        self._workloads = workloads
        self.pods: dict[Key, PodState] = {}
        self._slices: dict[Key, tuple[str, tuple[Key, ...], int]] = {}
        self._slices_of: dict[str, set[Key]] = {}
        # A service is listed once for each slice that names the pod: twice if it has IPv4 and IPv6.
        self._services_of_pod: dict[Key, tuple[str, ...]] = {}
        self._pods_of: dict[WorkloadKey, set[Key]] = {}
        # Kept when the last pod is gone: the service still belongs to the workload.
        self._services_of: dict[WorkloadKey, frozenset[str]] = {}

    @property
    def services(self) -> Iterable[str]:
        """Names of all services with endpoint slices, also empty ones."""
        return self._slices_of.keys()

    def __contains__(self, service: object) -> bool:
        return service in self._slices_of

    def ready(self, service: str) -> int:
        """Return the number of a service's endpoints that get requests."""
        return sum(self._slices[key][2] for key in self._slices_of.get(service, ()))

    def services_of_slice(self, key: Key) -> tuple[str, ...]:
        """Return the service of a slice; empty if it is unknown."""
        known = self._slices.get(key)
        return () if known is None else (known[0],)

    def slice_keys(self) -> list[Key]:
        """Return all known slices."""
        return list(self._slices)

    def pods_of(self, workload: WorkloadKey) -> set[Key]:
        """Return the pods of a workload, including those that are ending."""
        return self._pods_of.get(workload, set())

    def names_of_pod(self, key: Key) -> tuple[str, ...]:
        """Return the names of a pod's workload; see `names_of`."""
        pod = self.pods.get(key)
        return () if pod is None else self.names_of(pod.workload, self._services_of_pod.get(key, ()))

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
        named = dict.fromkeys(name for workload in behind for name in self.names_of(workload, (service,)))
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
            self._unlink(key, known)
        self.pods[key] = pod
        self._pods_of.setdefault(pod.workload, set()).add(key)
        named = self._services_of_pod.get(key)
        if named:
            self._services_of[pod.workload] = self._services_of.get(pod.workload, frozenset()) | {*named}

    def drop_pod(self, key: Key) -> PodState | None:
        """Remove a pod; returns its last state."""
        pod = self.pods.pop(key, None)
        if pod is not None:
            self._unlink(key, pod)
        return pod

    def put_slice(self, body: EndpointSlice) -> str | None:
        """Store new or changed endpoints; returns the service's name, None for a slice without one."""
        service = service_of(body)
        if service is None:
            self.drop_slice(body.metadata.key)
            return None
        namespace = body.metadata.namespace
        pods, ready = [], 0
        for endpoint in body.endpoints or ():
            target = endpoint.target_ref
            ready += endpoint.conditions.ready is not False
            if target is not None and target.kind == "Pod":
                pods.append((target.namespace or namespace, target.name))
        self._set_slice(body.metadata.key, (service, tuple(pods), ready))
        return service

    def drop_slice(self, key: Key) -> str | None:
        """Remove endpoints; returns the service's name if these were its last ones."""
        known = self._slices.get(key)
        if known is None:
            return None
        self._set_slice(key, None)
        return None if known[0] in self._slices_of else known[0]

    def forget(self, workload: WorkloadKey) -> None:
        """Drop the services of a workload that is gone, unless pods are left."""
        if workload not in self._pods_of:
            self._services_of.pop(workload, None)

    def _set_slice(self, key: Key, new: tuple[str, tuple[Key, ...], int] | None) -> None:
        old = self._slices.pop(key, None)
        if old is not None:
            service, pods, _ = old
            for pod in pods:
                rest = list(self._services_of_pod.get(pod, ()))
                if service in rest:
                    rest.remove(service)
                if rest:
                    self._services_of_pod[pod] = tuple(rest)
                else:
                    self._services_of_pod.pop(pod, None)
            self._slices_of[service].discard(key)
            if not self._slices_of[service]:
                del self._slices_of[service]
        if new is not None:
            service, pods, _ = new
            self._slices[key] = new
            self._slices_of.setdefault(service, set()).add(key)
            for pod in pods:
                self._services_of_pod[pod] = (*self._services_of_pod.get(pod, ()), service)
        touched = {*(old[1] if old else ()), *(new[1] if new else ())}
        for workload in {self.pods[pod].workload for pod in touched if pod in self.pods}:
            self._link(workload)

    def _link(self, workload: WorkloadKey) -> None:
        services = {
            name for pod in self._pods_of.get(workload, ()) for name in self._services_of_pod.get(pod, ())
        }
        if services:
            self._services_of[workload] = frozenset(services)

    def _unlink(self, key: Key, pod: PodState) -> None:
        rest = self._pods_of.get(pod.workload)
        if rest is not None:
            rest.discard(key)
            if not rest:
                del self._pods_of[pod.workload]


def service_of(body: EndpointSlice) -> str | None:
    """Return the name of the service that a slice belongs to."""
    labels = body.metadata.labels
    if labels is None or not labels.service_name:
        return None
    return sys.intern(f"{body.metadata.namespace}/{labels.service_name}")
