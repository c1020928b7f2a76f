"""Troubles of workloads, from failures of their pods and from failed changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from hopline_mesh.changes import KubernetesTrouble, TroubleKind
from hopline_mesh.kubernetes.backends import Backends, Key
from hopline_mesh.kubernetes.history import History
from hopline_mesh.kubernetes.operation import Cause, Failure
from hopline_mesh.kubernetes.workload import WorkloadKey

_Troubles = dict[tuple[TroubleKind, str], KubernetesTrouble]


class Ailments:
    """Failing pods, and the troubles of their workloads.

    Args:
        backends: pods and services.
        history: troubles that ended.

    Attributes:
        pods: keys of pods that fail, or that cannot start.
    """

    def __init__(self, backends: Backends, history: History[KubernetesTrouble]) -> None:
        self._backends = backends
        self._history = history
        self._ongoing: _Troubles = {}
        # Troubles of pods that disappeared before the next `look`.
        self._gone: _Troubles = {}
        self.pods: dict[Key, None] = {}

    def pod_seen(self, key: Key, now_s: float) -> None:
        """Note the present state of a pod."""
        pod = self._backends.pods[key]
        if pod.unstartable or pod.lasting(now_s):
            self.pods[key] = None
        else:
            self.pods.pop(key, None)

    def pod_going(self, key: Key, now_s: float) -> None:
        """Note that a pod is about to be removed."""
        if key in self.pods:
            del self.pods[key]
            for each in self._troubles_of(key, now_s):
                self._gone[each.kind, each.service] = replace(each, end_s=now_s)

    def of_pods(self, workload: WorkloadKey, since_s: float, now_s: float) -> tuple[Cause, str] | None:
        """Return why a pod of a workload that was created since then fails; permanent causes first."""
        sick: tuple[Cause, str] | None = None
        for key in sorted(self.of_workload(workload)):
            pod = self._backends.pods[key]
            if pod.created_s < since_s:
                continue
            if pod.unstartable:
                return "unstartable", f"pod {key[1]}, {pod.unstartable}"
            for each in pod.lasting(now_s):
                sick = sick or ("sick", f"pod {key[1]}, {each.detail}")
        return sick

    def of_workload(self, workload: WorkloadKey) -> set[Key]:
        """Return the failing pods of a workload."""
        return self.pods.keys() & self._backends.pods_of(workload)

    def look(self, failed: Mapping[WorkloadKey, Failure], now_s: float) -> None:
        """Update the troubles.

        Args:
            failed: failed changes.
            now_s: a trouble without a sign by now has ended.
        """
        found: _Troubles = {}
        for key in list(self.pods):
            self.pod_seen(key, now_s)
            for trouble in self._troubles_of(key, now_s):
                self._note(found, trouble)
        for workload, failure in failed.items():
            if failure.cause != "sick":
                since_s = min(failure.since_s, now_s)
                for service in self._backends.names_of(workload):
                    trouble = KubernetesTrouble("stuck_rollout", service, since_s, None, failure.detail)
                    self._note(found, trouble)
        for of, trouble in self._ongoing.items():
            if of not in found:
                self._history.add(replace(trouble, end_s=max(now_s, trouble.start_s)))
        for of, trouble in self._gone.items():
            if of not in found and of not in self._ongoing:
                self._history.add(trouble)
        self._gone.clear()
        self._ongoing = found

    def ongoing(self) -> list[KubernetesTrouble]:
        """Return the troubles as of the last `look`."""
        return list(self._ongoing.values())

    def shift(self, now_s: float) -> None:
        """Correct starts after now, because the clock was set back."""
        for of, trouble in self._ongoing.items():
            self._ongoing[of] = replace(trouble, start_s=min(trouble.start_s, now_s))

    def _troubles_of(self, key: Key, now_s: float) -> Iterator[KubernetesTrouble]:
        pod = self._backends.pods[key]
        for each in pod.lasting(now_s):
            # By the cluster's clock, which may be ahead or missing.
            since_s = min(each.since_s, now_s) if each.since_s > 0 else now_s
            for service in self._backends.names_of(pod.workload):
                detail = f"pod {key[1]}, {each.detail}"
                yield KubernetesTrouble(each.kind, service, since_s, None, detail, pod.created_s)

    def _note(self, found: _Troubles, trouble: KubernetesTrouble) -> None:
        """Merge the same trouble of several pods of a workload; it begins with the first."""
        key = trouble.kind, trouble.service
        if key not in found and key not in self._ongoing:
            trouble = replace(trouble, start_s=self._history.resume(*key, trouble.start_s))
        known = self._ongoing.get(key) or found.get(key) or trouble
        is_same = key in self._ongoing
        start_s = known.start_s if is_same else min(known.start_s, trouble.start_s)
        created_s = known.pod_created_s if is_same else min(known.pod_created_s, trouble.pod_created_s)
        found[key] = replace(found.get(key, trouble), start_s=start_s, pod_created_s=created_s)
