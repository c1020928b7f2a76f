"""Turns objects of the API server into planned changes and troubles of workloads.

A state machine: objects and the time are its input, and it makes no requests. Most of its state follows
from the present objects, so a missed event does no harm. Transitions (a new number of pods, a new pod
template, a pod that begins to end) are recorded when they are seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from hopline_mesh.changes import Change, Context, KubernetesTrouble
from hopline_mesh.kubernetes.ailments import Ailments
from hopline_mesh.kubernetes.backends import LASTING, Backends, Key, service_of
from hopline_mesh.kubernetes.history import History
from hopline_mesh.kubernetes.objects import (
    Autoscaler,
    EndpointSlice,
    KubernetesEvent,
    Object,
    Pod,
    WorkloadObject,
)
from hopline_mesh.kubernetes.operations import Operations
from hopline_mesh.kubernetes.pod import PodState, failures_of, owner_of, pod_state
from hopline_mesh.kubernetes.resources import ENDPOINT_SLICES, Resource
from hopline_mesh.kubernetes.words import Words
from hopline_mesh.kubernetes.workload import Workload, WorkloadKey, workload_of

EventType = Literal["ADDED", "MODIFIED", "DELETED"]

#: Without input for this time, the process was stopped or the clock was set.
JUMP_S = 300.0
#: Changes that follow each other are merged up to this length.
LONGEST_S = 900.0


class ChangeFeed:
    """The known planned changes and troubles.

    Time is an argument everywhere (Unix seconds). Not thread-safe.

    Args:
        stuck_after_s: a change without progress for this time is stuck.
        calm_s: time after the last sign at which an OOM kill or crash loop ends.
        keep_s: how long ended changes and troubles are listed.
        merge_s: a change or trouble of a service that begins within this time after another of its kind is
            merged with it.
    """

    def __init__(
        self,
        *,
        stuck_after_s: float = 600.0,
        calm_s: float = 300.0,
        keep_s: float = 600.0,
        merge_s: float = 60.0,
    ) -> None:
        self._calm_s = calm_s
        self._workloads: dict[WorkloadKey, Workload] = {}
        self._backends = Backends(self._workloads)
        self._autoscalers: dict[Key, tuple[WorkloadKey, int, int]] = {}
        # LONGEST_S: frequent changes of a service must not become one change that never ends.
        self._changes: History[Change] = History(keep_s, merge_s, LONGEST_S)
        self._troubles: History[KubernetesTrouble] = History(keep_s, merge_s)
        self._ailments = Ailments(self._backends, self._troubles)
        self._operations = Operations(
            self._backends, self._workloads, self._ailments, stuck_after_s, self._changes, keep_s
        )
        self._words = Words(keep_s)
        self._listed: set[tuple[str, str | None]] = set()
        self._lost: set[tuple[str, str | None]] = set()
        self._now_s: float | None = None

    def listing(self, resource: Resource, namespace: str | None) -> Listing:
        """Start a list, which arrives in pages."""
        return Listing(self, resource, namespace)

    def replaced(
        self, resource: Resource, namespace: str | None, objects: Iterable[Object], now_s: float
    ) -> None:
        """Apply a whole list: exactly these objects exist in this namespace (None: in all)."""
        listing = self.listing(resource, namespace)
        listing.page(objects, now_s)
        listing.done(now_s)

    def changed(self, resource: Resource, kind: EventType, body: Object, now_s: float) -> None:
        """Apply an event of a watch."""
        self._advance(now_s)
        if kind == "DELETED":
            self._drop(resource, body.metadata.key, now_s)
        else:
            self._put(resource, body, now_s, listed=False, first=False)

    def lost(self, resource: Resource, namespace: str | None, now_s: float) -> None:
        """Note that a resource is unavailable; may be called repeatedly."""
        self._lost.add((resource.name, namespace))
        self._operations.lost(resource.kind, now_s)

    def heard(self, resource: Resource, namespace: str | None, now_s: float) -> None:
        """Note that the watch of a resource is open again."""
        self._lost.discard((resource.name, namespace))
        if not any(name == resource.name for name, _ in self._lost):
            self._operations.heard(resource.kind, now_s)

    def context(self, now_s: float) -> Context:
        """Return planned changes and troubles by start, including those that ended within `keep_s`."""
        self._advance(now_s)
        self._operations.look(now_s)
        self._ailments.look(self._operations.failed, now_s)
        self._changes.expire(now_s)
        self._troubles.expire(now_s)
        changes = [*self._changes.items(), *self._operations.under_way(self._words.of)]
        troubles = [*self._troubles.items(), *self._ailments.ongoing()]
        return Context(
            tuple(sorted(changes, key=lambda each: each.start_s)),
            tuple(sorted(troubles, key=lambda each: each.start_s)),
        )

    def names_of_workload(self, namespace: str, name: str) -> tuple[str, ...]:
        """Return the names, as `namespace/name`, of a workload of any kind: its own, and those of Services.

        Nothing if there is no such workload.
        """
        found: dict[str, None] = {}
        for kind in sorted(LASTING):
            key = WorkloadKey(namespace, kind, name)
            if key in self._workloads or self._backends.pods_of(key):
                found.update(dict.fromkeys(self._backends.names_of(key)))
        return tuple(found)

    @property
    def services(self) -> frozenset[str]:
        """Names of all services that exist, as `namespace/service`."""
        return frozenset(self._backends.services)

    def sizes(self) -> dict[str, int]:
        """Return the number of stored objects and notes by kind."""
        return {
            "pods": len(self._backends.pods),
            "endpoint_slices": len(self._backends.slice_keys()),
            "workloads": len(self._workloads),
            "autoscalers": len(self._autoscalers),
            "operations": len(self._operations),
            "ended": len(self._changes) + len(self._troubles),
            "ill_pods": len(self._ailments.pods),
            "words": len(self._words),
        }

    def _put(self, resource: Resource, body: Object, now_s: float, listed: bool, first: bool) -> None:
        if isinstance(body, Pod):
            self._put_pod(body, now_s)
        elif isinstance(body, EndpointSlice):
            self._put_slice(body, now_s, first)
        elif isinstance(body, WorkloadObject):
            key = WorkloadKey(body.metadata.namespace, resource.kind, body.metadata.name)
            old = self._workloads.get(key)
            new = self._workloads[key] = workload_of(resource.kind, body)
            if new != old:
                self._operations.workload_changed(key, old, new, now_s, listed)
        elif isinstance(body, Autoscaler):
            self._put_autoscaler(body, now_s)
        elif isinstance(body, KubernetesEvent):
            self._put_event(body, now_s)

    def _drop(self, resource: Resource, key: Key, now_s: float) -> None:
        if resource.type is Pod:
            self._drop_pod(key, now_s)
        elif resource is ENDPOINT_SLICES:
            removed = self._backends.drop_slice(key)
            if removed is not None:
                self._operations.service_removed(removed, now_s)
        elif resource.type is WorkloadObject:
            workload = WorkloadKey(key[0], resource.kind, key[1])
            if self._workloads.pop(workload, None) is not None:
                self._operations.workload_gone(workload, now_s)
                self._backends.forget(workload)
        elif resource.type is Autoscaler:
            known = self._autoscalers.pop(key, None)
            if known is not None:
                self._operations.autoscaled(known[0], known[2], known[2], now_s)

    def _keys(self, resource: Resource) -> list[Key]:
        if resource.type is Pod:
            return list(self._backends.pods)
        if resource is ENDPOINT_SLICES:
            return self._backends.slice_keys()
        if resource.type is WorkloadObject:
            return [(key.namespace, key.name) for key in self._workloads if key.kind == resource.kind]
        return list(self._autoscalers) if resource.type is Autoscaler else []

    def _put_pod(self, body: Pod, now_s: float) -> None:
        key = body.metadata.key
        old = self._backends.pods.get(key)
        if old is not None and old.uid != body.metadata.uid:
            self._drop_pod(key, now_s)
            old = None
        workload = owner_of(body)
        new = pod_state(body, workload)
        self._backends.put_pod(key, new)
        self._ailments.pod_seen(key, new, failures_of(body, self._calm_s), now_s)
        if new.ending_s is not None and new.planned and (old is None or old.ending_s is None):
            self._operations.pod_ending(key, new, self._words.of_ending(key, new), now_s)
        if new != old or key in self._ailments.pods:
            self._operations.review(workload, now_s)

    def _drop_pod(self, key: Key, now_s: float) -> None:
        self._ailments.pod_going(key, now_s)
        pod: PodState | None = self._backends.drop_pod(key)
        if pod is not None:
            self._operations.pod_gone(key, pod, now_s)
            if pod.workload not in self._workloads:
                self._backends.forget(pod.workload)

    def _put_slice(self, body: EndpointSlice, now_s: float, first: bool) -> None:
        before = frozenset(self._backends.services_of_slice(body.metadata.key))
        existed = service_of(body) in self._backends
        service = self._backends.put_slice(body)
        for name in before:
            if name not in self._backends:
                self._operations.service_removed(name, now_s)
        if service is None:
            return
        if not existed and not first:
            self._operations.service_added(service, now_s)
        else:
            self._operations.review_service(service, now_s)

    def _put_autoscaler(self, body: Autoscaler, now_s: float) -> None:
        target, status = body.spec.scale_target_ref, body.status
        workload = WorkloadKey(body.metadata.namespace, target.kind, target.name)
        self._autoscalers[body.metadata.key] = (workload, status.current_replicas, status.desired_replicas)
        self._operations.autoscaled(workload, status.current_replicas, status.desired_replicas, now_s)

    def _put_event(self, body: KubernetesEvent, now_s: float) -> None:
        target = body.involved_object
        scaled = self._autoscalers.get((target.namespace, target.name))
        self._words.heard(body, scaled[0] if scaled is not None else None, now_s)

    def _advance(self, now_s: float) -> None:
        """Detect that the clock was set, or that the process did not run."""
        if self._now_s is not None:
            step_s = now_s - self._now_s
            if step_s < 0 or step_s > JUMP_S:
                self._operations.shift(step_s, now_s)
                self._ailments.shift(now_s)
        self._now_s = now_s


class Listing:
    """One list of objects that arrives in pages; an unfinished one does no harm."""

    def __init__(self, feed: ChangeFeed, resource: Resource, namespace: str | None) -> None:
        self._feed = feed
        self._resource = resource
        self._namespace = namespace
        self._first = (resource.name, namespace) not in feed._listed
        self._missing = {key for key in feed._keys(resource) if namespace in (None, key[0])}

    def page(self, objects: Iterable[Object], now_s: float) -> None:
        """Apply some of the objects."""
        self._feed._advance(now_s)
        for each in objects:
            self._missing.discard(each.metadata.key)
            self._feed._put(self._resource, each, now_s, listed=True, first=self._first)

    def done(self, now_s: float) -> None:
        """Finish the list: known objects that were not in it are gone."""
        self._feed._advance(now_s)
        for key in self._missing:
            self._feed._drop(self._resource, key, now_s)
        self._feed._listed.add((self._resource.name, self._namespace))
        self._feed.heard(self._resource, self._namespace, now_s)
