"""Planned changes: their beginnings, ends and failures.

Knows workloads, pods and services in the form of the feed, and not the API.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from hopline_mesh.changes import Change, ChangeKind
from hopline_mesh.kubernetes.ailments import Ailments
from hopline_mesh.kubernetes.backends import Backends, Key
from hopline_mesh.kubernetes.history import History
from hopline_mesh.kubernetes.operation import Cause, Failure, Operation
from hopline_mesh.kubernetes.pod import PodState
from hopline_mesh.kubernetes.resources import Resource
from hopline_mesh.kubernetes.words import Words
from hopline_mesh.kubernetes.workload import Workload, WorkloadKey

#: Watches of different kinds of objects are not synchronous: related events arrive within this time.
TOGETHER_S = 10.0
#: A pod that takes longer to end no longer prolongs a drain, because requests go to other pods by then.
ENDING_S = 120.0

_OF_WORKLOADS: tuple[ChangeKind, ...] = ("rollout", "scale", "drain")


class Operations:
    """The open planned changes.

    Args:
        backends: pods and services.
        workloads: states by key; the feed updates them.
        ailments: failures of pods.
        words: reasons, for people.
        history: of ended changes.
        stuck_after_s: a change without progress for this time is stuck. The `progressDeadlineSeconds` of a
            Deployment may be shorter.
        keep_s: how long a removed service is listed.

    Attributes:
        failed: failed changes of workloads, until the failure is over.
    """

    def __init__(
        self,
        backends: Backends,
        workloads: Mapping[WorkloadKey, Workload],
        ailments: Ailments,
        words: Words,
        history: History[Change],
        *,
        stuck_after_s: float,
        keep_s: float,
    ) -> None:
        self._backends = backends
        self._workloads = workloads
        self._ailments = ailments
        self._words = words
        self._history = history
        self._stuck_after_s = stuck_after_s
        self._keep_s = keep_s
        self._open: dict[tuple[WorkloadKey | str, ChangeKind], Operation] = {}
        self._lately: dict[WorkloadKey, float] = {}
        self._ending: dict[Key, float] = {}
        self._unheard: dict[tuple[Resource, str | None], float] = {}
        self.failed: dict[WorkloadKey, Failure] = {}

    def workload_changed(
        self, key: WorkloadKey, old: Workload | None, new: Workload, now_s: float, listed: bool
    ) -> None:
        """Note a new or changed workload.

        Args:
            old: the previous state; None if it was unknown.
            listed: it comes from a list, not from a watch, so the start of its changes was not seen.
        """
        if old is not None and old.uid == new.uid:
            if new.template != old.template and not new.by_hand:
                self._begin("rollout", key, now_s, "new version").restart(now_s)
            if new.desired != old.desired:
                self._scale(key, old.desired, new.desired, now_s).restart(now_s)
        self.review(key, now_s, listed=listed)

    def workload_gone(self, key: WorkloadKey, now_s: float) -> None:
        """Note a deleted workload; its pods follow."""
        self.failed.pop(key, None)
        for kind in ("rollout", "scale"):
            self._end((key, kind), now_s, "deleted")
        if self._backends.services_of(key):
            self._begin("drain", key, now_s, f"{key.kind.lower()} {key.name} deleted")
        self.review(key, now_s)

    def pod_ending(self, key: Key, pod: PodState, now_s: float) -> None:
        """Note a planned end of a pod."""
        workload, why = pod.workload, self._words.of_ending(pod)
        self._ending[key] = now_s
        drain = self._open.get((workload, "drain"))
        if drain is not None:
            drain.detail = why
            drain.restart(now_s)
            return
        of_another = (
            (workload, "rollout") in self._open
            or (workload, "scale") in self._open
            or now_s - self._lately.get(workload, -math.inf) <= TOGETHER_S
        )
        if not of_another and workload not in self.failed:
            self._begin("drain", workload, now_s, why)

    def pod_gone(self, key: Key, pod: PodState, now_s: float) -> None:
        """Note a pod that is gone."""
        drain = self._open.get((pod.workload, "drain"))
        if self._ending.pop(key, None) is not None and drain is not None:
            # The numbers of the workload may be older than the end of the pod.
            drain.earliest_end_s = now_s + TOGETHER_S
        self.review(pod.workload, now_s)

    def service_added(self, service: str, now_s: float) -> None:
        """Note a new service."""
        self._end((service, "removed"), now_s)
        self._begin("added", service, now_s, "new service")
        self.review_service(service, now_s)

    def service_removed(self, service: str, now_s: float) -> None:
        """Note a deleted service."""
        self._end((service, "added"), now_s)
        self._begin("removed", service, now_s, "service deleted")

    def autoscaled(self, target: WorkloadKey, size: int, desired: int, now_s: float) -> None:
        """Note the present and wanted size of an autoscaler; for workloads that are not watched."""
        if target in self._workloads:
            return
        if size != desired:
            self._scale(target, size, desired, now_s)
        else:
            self._end((target, "scale"), now_s)

    def review_service(self, service: str, now_s: float) -> None:
        """Note changed endpoints of a service."""
        if (service, "added") in self._open and self._backends.ready(service):
            self._end((service, "added"), now_s)

    def review(self, key: WorkloadKey, now_s: float, listed: bool = False) -> None:
        """Judge a workload's changes by its present state."""
        state = self._workloads.get(key)
        failure = self.failed.get(key)
        if failure is not None:
            if state is not None and not self._over(failure, key, state):
                if state.overdue and failure.cause == "sick":
                    self._fail(key, state, "overdue", state.overdue, now_s)
                return
            del self.failed[key]
        if state is not None:
            if state.overdue:
                self._fail(key, state, "overdue", state.overdue, now_s)
                return
            if state.rolling and not state.by_hand:
                self._begin("rollout", key, now_s, "new version", listed=listed)
            elif listed and state.observed and state.replicas != state.desired and not state.by_hand:
                self._scale(key, state.replicas, state.desired, now_s, listed=listed)
        for kind in _OF_WORKLOADS:
            operation = self._open.get((key, kind))
            if operation is not None:
                self._judge(operation, key, state, now_s)

    def look(self, now_s: float) -> None:
        """Judge all changes by the time that has passed."""
        self._lately = {key: end_s for key, end_s in self._lately.items() if now_s - end_s <= TOGETHER_S}
        for (subject, kind), operation in list(self._open.items()):
            if isinstance(subject, WorkloadKey):
                unheard_s = self._unheard_since_s(operation)
                if unheard_s is not None and now_s - unheard_s > self._stuck_after_s:
                    self._end((subject, kind), now_s, "Kubernetes is unavailable since then")
                else:
                    self.review(subject, now_s)
            elif kind == "removed" and now_s - operation.start_s > self._keep_s:
                # A removal does not end; it is no longer listed.
                del self._open[subject, kind]
            elif kind == "added" and now_s - operation.start_s > self._stuck_after_s:
                self._end((subject, kind), now_s)
        for key in list(self.failed):
            self.review(key, now_s)

    def shift(self, by_s: float, now_s: float) -> None:
        """Shift waiting times, because the clock was set or the process was stopped for a while."""
        for operation in self._open.values():
            operation.best_s += by_s
            operation.earliest_end_s += by_s
            operation.start_s = min(operation.start_s, now_s)
        for key in self._ending:
            self._ending[key] += by_s
        self._lately.clear()

    def lost(self, resource: Resource, namespace: str | None, now_s: float) -> None:
        """Note that objects are unavailable."""
        self._unheard.setdefault((resource, namespace), now_s)

    def heard(self, resource: Resource, namespace: str | None, now_s: float) -> None:
        """Note that objects are available again; progress in between was not visible."""
        if self._unheard.pop((resource, namespace), None) is not None:
            for operation in self._open.values():
                operation.best_s = now_s

    def under_way(self) -> Iterator[Change]:
        """Yield the open changes."""
        for operation in self._open.values():
            for service in self._names(operation.subject):
                yield operation.change(service, None, self._words.of(operation))

    def _judge(self, operation: Operation, key: WorkloadKey, state: Workload | None, now_s: float) -> None:
        operation.services = self._backends.services_of(key) or operation.services
        if self._done(operation, key, state, now_s):
            self._end((key, operation.kind), now_s)
            return
        failure = self._ailments.of_pods(key, operation.pods_since_s, now_s)
        if failure is not None:
            self._fail(key, state, *failure, now_s)
            return
        if state is not None and state.distance < operation.best:
            operation.best, operation.best_s = state.distance, now_s
        limit_s = self._stuck_after_s if state is None else min(self._stuck_after_s, state.deadline_s)
        waits = operation.kind == "rollout" or not (
            self._backends.pods_of(key) == set() if state is None else state.resized
        )
        heard = self._unheard_since_s(operation) is None
        if waits and heard and now_s - operation.best_s > limit_s:
            detail = "no progress"
            if state is not None:
                counts = f"{state.available} of {state.desired} pods available, {state.updated} updated"
                detail = f"{counts}, no progress"
            self._fail(key, state, "idle", f"{detail} for {limit_s:.0f} s", now_s)

    def _done(self, operation: Operation, key: WorkloadKey, state: Workload | None, now_s: float) -> bool:
        if operation.kind == "rollout":
            return state is None or state.by_hand or (state.settled and not state.rolling)
        if operation.kind == "scale":
            # A workload that is scaled to zero is not expected to serve; the change stays open.
            return state is not None and state.resized and state.desired > 0
        ending = self._ending.keys() & self._backends.pods_of(key)
        if now_s < operation.earliest_end_s or any(now_s - self._ending[pod] <= ENDING_S for pod in ending):
            return False
        if state is not None:
            return state.available >= state.desired
        # It is deleted, or of a kind that is not watched: other pods serve, or the services are deleted
        # too.
        existing = [service for service in operation.services if service in self._backends]
        return not existing or any(self._backends.ready(service) for service in existing)

    def _over(self, failure: Failure, key: WorkloadKey, state: Workload) -> bool:
        """True if a failure is over."""
        then = failure.state
        if (state.template, state.desired) != (then.template, then.desired):
            return True  # another change
        if state.settled and not state.overdue:
            return True
        if failure.cause == "overdue":
            return not state.overdue
        if failure.cause == "idle":
            return state.distance < then.distance
        return not self._ailments.of_workload(key)

    def _unheard_since_s(self, operation: Operation) -> float | None:
        """Return since when the objects of an operation are unavailable; None if they are available."""
        assert isinstance(operation.subject, WorkloadKey)
        kinds = {operation.subject.kind, *(["Pod"] if operation.kind == "drain" else [])}
        since = [
            at_s
            for (of, namespace), at_s in self._unheard.items()
            if of.kind in kinds and namespace in (None, operation.subject.namespace)
        ]
        return min(since, default=None)

    def _scale(
        self, key: WorkloadKey, before: int, after: int, now_s: float, *, listed: bool = False
    ) -> Operation:
        """Open a change of the number of pods, or set the wanted number of the open one."""
        scale = self._begin("scale", key, now_s, "", listed=listed)
        if scale.before is None:
            scale.before = before
        scale.after = after
        scale.detail = f"{scale.before} to {after} pods"
        return scale

    def _begin(
        self,
        kind: ChangeKind,
        subject: WorkloadKey | str,
        now_s: float,
        detail: str,
        *,
        listed: bool = False,
    ) -> Operation:
        """Open an operation, or return the open one."""
        operation = self._open.get((subject, kind))
        if operation is not None:
            return operation
        if isinstance(subject, WorkloadKey) and kind != "drain":
            self.failed.pop(subject, None)
        start_s = now_s
        drain = self._open.get((subject, "drain"))
        if kind in ("rollout", "scale") and drain is not None and now_s - drain.start_s <= TOGETHER_S:
            # The ends of its pods arrived before the change that causes them.
            start_s = drain.start_s
            del self._open[subject, "drain"]
        for service in self._names(subject):
            start_s = self._history.resume(kind, service, start_s)
        pods_since_s = -math.inf if listed else now_s - TOGETHER_S
        operation = Operation(kind, subject, start_s, detail, pods_since_s, best_s=now_s)
        if isinstance(subject, WorkloadKey):
            operation.services = self._backends.services_of(subject)
        self._open[subject, kind] = operation
        return operation

    def _end(self, key: tuple[WorkloadKey | str, ChangeKind], now_s: float, why: str = "") -> None:
        operation = self._open.pop(key, None)
        if operation is None:
            return
        subject = operation.subject
        if isinstance(subject, WorkloadKey) and operation.kind != "drain":
            self._lately[subject] = now_s
        detail = f"{operation.detail}; {why}" if why else operation.detail
        for service in self._names(subject):
            self._history.add(operation.change(service, max(now_s, operation.start_s), detail))

    def _fail(
        self, key: WorkloadKey, state: Workload | None, cause: Cause, detail: str, now_s: float
    ) -> None:
        for kind in _OF_WORKLOADS:
            self._end((key, kind), now_s, f"failed: {detail}")
        if state is not None:
            since_s = state.overdue_s if cause == "overdue" and state.overdue_s else now_s
            self.failed[key] = Failure(cause, since_s, detail, state)

    def _names(self, subject: WorkloadKey | str) -> tuple[str, ...]:
        if isinstance(subject, WorkloadKey):
            return self._backends.names_of(subject)
        return self._backends.names_behind(subject)
