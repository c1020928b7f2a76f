"""Turns objects of the API server into planned changes and troubles of workloads.

A state machine: objects and the time are its input, and it makes no requests. Most of its state follows
from the present objects, so a missed event does no harm. Transitions (a new number of pods, a new pod
template, a pod that begins to end) are recorded when they are seen.
"""

from __future__ import annotations

from collections.abc import Iterable

from hopline_mesh.changes import Change, Context, KubernetesTrouble
from hopline_mesh.kubernetes.ailments import Ailments
from hopline_mesh.kubernetes.backends import Backends, Key, Slice, slice_of
from hopline_mesh.kubernetes.history import History
from hopline_mesh.kubernetes.objects import (
    Autoscaler,
    EndpointSlice,
    EventType,
    KubernetesEvent,
    Object,
    Pod,
    WorkloadObject,
)
from hopline_mesh.kubernetes.operations import Operations
from hopline_mesh.kubernetes.pod import pod_state
from hopline_mesh.kubernetes.resources import Resource
from hopline_mesh.kubernetes.words import Words
from hopline_mesh.kubernetes.workload import Workload, WorkloadKey, workload_of

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
        self._autoscalers: dict[Key, tuple[WorkloadKey, int]] = {}
        # LONGEST_S: frequent changes of a service must not become one change that never ends.
        self._changes: History[Change] = History(keep_s, merge_s, LONGEST_S)
        self._troubles: History[KubernetesTrouble] = History(keep_s, merge_s)
        self._ailments = Ailments(self._backends, self._troubles)
        self._words = Words(keep_s)
        self._operations = Operations(
            self._backends,
            self._workloads,
            self._ailments,
            self._words,
            self._changes,
            stuck_after_s=stuck_after_s,
            keep_s=keep_s,
        )
        self._listed: set[tuple[Resource, str | None]] = set()
        self._now_s: float | None = None

    def replaced(
        self, resource: Resource, namespace: str | None, objects: Iterable[Object], now_s: float
    ) -> None:
        """Apply a whole list: exactly these objects exist in this namespace (None: in all)."""
        self.listed(resource, namespace, self.page(resource, namespace, objects, now_s), now_s)

    def page(
        self, resource: Resource, namespace: str | None, objects: Iterable[Object], now_s: float
    ) -> set[Key]:
        """Apply a part of a list; returns the keys of these objects, for `listed`.

        A list that is not finished does no harm.
        """
        self._advance(now_s)
        first = (resource, namespace) not in self._listed
        keys = set()
        for each in objects:
            keys.add(each.metadata.key)
            self._put(resource, each, now_s, listed=True, first=first)
        return keys

    def listed(self, resource: Resource, namespace: str | None, keys: set[Key], now_s: float) -> None:
        """Finish a list: objects that are known, but not among its keys, are gone."""
        self._advance(now_s)
        for key in self._keys(resource):
            if key not in keys and namespace in (None, key[0]):
                self._drop(resource, key, now_s)
        self._listed.add((resource, namespace))
        self.heard(resource, namespace, now_s)

    def changed(self, resource: Resource, kind: EventType, body: Object, now_s: float) -> None:
        """Apply an event of a watch."""
        self._advance(now_s)
        if kind == "DELETED":
            self._drop(resource, body.metadata.key, now_s)
        else:
            self._put(resource, body, now_s, listed=False, first=False)

    def lost(self, resource: Resource, namespace: str | None, now_s: float) -> None:
        """Note that a resource is unavailable; may be called repeatedly."""
        self._operations.lost(resource, namespace, now_s)

    def heard(self, resource: Resource, namespace: str | None, now_s: float) -> None:
        """Note that the watch of a resource is open again."""
        self._operations.heard(resource, namespace, now_s)

    def context(self, now_s: float) -> Context:
        """Return planned changes and troubles by start, including those that ended within `keep_s`."""
        self._advance(now_s)
        self._operations.look(now_s)
        self._ailments.look(self._operations.failed, now_s)
        self._changes.expire(now_s)
        self._troubles.expire(now_s)
        changes = [*self._changes.items(), *self._operations.under_way()]
        troubles = [*self._troubles.items(), *self._ailments.ongoing()]
        return Context(
            tuple(sorted(changes, key=lambda each: each.start_s)),
            tuple(sorted(troubles, key=lambda each: each.start_s)),
        )

    def _put(self, resource: Resource, body: Object, now_s: float, listed: bool, first: bool) -> None:
        key = body.metadata.key
        if isinstance(body, Pod):
            self._put_pod(key, body, now_s)
        elif isinstance(body, EndpointSlice):
            self._set_slice(key, slice_of(body), now_s, first)
        elif isinstance(body, WorkloadObject):
            workload = WorkloadKey(key[0], resource.kind, key[1])
            old = self._workloads.get(workload)
            new = self._workloads[workload] = workload_of(resource.kind, body)
            if new != old:
                self._operations.workload_changed(workload, old, new, now_s, listed)
        elif isinstance(body, Autoscaler):
            target = body.spec.scale_target_ref
            workload, wanted = WorkloadKey(key[0], target.kind, target.name), body.status.desired_replicas
            self._autoscalers[key] = workload, wanted
            self._operations.autoscaled(workload, body.status.current_replicas, wanted, now_s)
        elif isinstance(body, KubernetesEvent):
            about = body.involved_object
            scaled = self._autoscalers.get((about.namespace, about.name))
            self._words.heard(body, scaled[0] if scaled is not None else None, now_s)

    def _drop(self, resource: Resource, key: Key, now_s: float) -> None:
        if resource.type is Pod:
            self._drop_pod(key, now_s)
        elif resource.type is EndpointSlice:
            self._set_slice(key, None, now_s)
        elif resource.type is WorkloadObject:
            workload = WorkloadKey(key[0], resource.kind, key[1])
            if self._workloads.pop(workload, None) is not None:
                self._operations.workload_gone(workload, now_s)
                self._backends.forget(workload)
        elif resource.type is Autoscaler and key in self._autoscalers:
            workload, wanted = self._autoscalers.pop(key)
            self._operations.autoscaled(workload, wanted, wanted, now_s)

    def _keys(self, resource: Resource) -> list[Key]:
        if resource.type is WorkloadObject:
            return [(key.namespace, key.name) for key in self._workloads if key.kind == resource.kind]
        stores: dict[object, Iterable[Key]] = {
            Pod: self._backends.pods,
            EndpointSlice: self._backends.slices,
            Autoscaler: self._autoscalers,
        }
        return list(stores.get(resource.type, ()))

    def _put_pod(self, key: Key, body: Pod, now_s: float) -> None:
        old = self._backends.pods.get(key)
        if old is not None and old.uid != body.metadata.uid:
            self._drop_pod(key, now_s)
            old = None
        new = pod_state(body, self._calm_s)
        self._backends.put_pod(key, new)
        self._ailments.pod_seen(key, now_s)
        if new.is_ending and new.planned and (old is None or not old.is_ending):
            self._operations.pod_ending(key, new, now_s)
        if new != old or key in self._ailments.pods:
            self._operations.review(new.workload, now_s)

    def _drop_pod(self, key: Key, now_s: float) -> None:
        self._ailments.pod_going(key, now_s)
        pod = self._backends.drop_pod(key)
        if pod is not None:
            self._operations.pod_gone(key, pod, now_s)
            if pod.workload not in self._workloads:
                self._backends.forget(pod.workload)

    def _set_slice(self, key: Key, new: Slice | None, now_s: float, first: bool = False) -> None:
        existed = new is not None and new.service in self._backends
        old = self._backends.set_slice(key, new)
        if old is not None and old.service not in self._backends:
            self._operations.service_removed(old.service, now_s)
        if new is not None and not existed and not first:
            self._operations.service_added(new.service, now_s)
        elif new is not None:
            self._operations.review_service(new.service, now_s)

    def _advance(self, now_s: float) -> None:
        """Detect that the clock was set, or that the process did not run."""
        if self._now_s is not None:
            step_s = now_s - self._now_s
            if step_s < 0 or step_s > JUMP_S:
                self._operations.shift(step_s, now_s)
                self._ailments.shift(now_s)
        self._now_s = now_s
