"""Troubles of workloads, from failures of their pods and from failed changes."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hopline_mesh.changes import KubernetesTrouble, TroubleKind
from hopline_mesh.kubernetes.backends import Backends, Key
from hopline_mesh.kubernetes.history import History
from hopline_mesh.kubernetes.operation import Cause, Failure
from hopline_mesh.kubernetes.pod import PodFailure, PodState
from hopline_mesh.kubernetes.workload import WorkloadKey


class Ailments:
    """Failing pods, and the troubles of their workloads.

    Args:
        backends: pods and services.
        history: troubles that ended.
    """

    def __init__(self, backends: Backends, history: History[KubernetesTrouble]) -> None:
        self._backends = backends
        self._history = history
        self._evidence: dict[Key, tuple[PodFailure, ...]] = {}
        self._ongoing: dict[tuple[TroubleKind, str], KubernetesTrouble] = {}
        # Troubles of pods that disappeared before the next `look`.
        self._gone: dict[tuple[TroubleKind, str], KubernetesTrouble] = {}
        #: Pods that fail, or that cannot start.
        self.pods: set[Key] = set()

    def pod_seen(self, key: Key, pod: PodState, evidence: tuple[PodFailure, ...], now_s: float) -> None:
        """Note the present state of a pod."""
        lasting = tuple(each for each in evidence if each.until_s > now_s)
        if lasting:
            self._evidence[key] = lasting
        else:
            self._evidence.pop(key, None)
        if lasting or pod.unstartable:
            self.pods.add(key)
        else:
            self.pods.discard(key)

    def pod_going(self, key: Key, now_s: float) -> None:
        """Note that a pod is about to be removed."""
        for each in self._evidence.pop(key, ()):
            for service in self._backends.names_of_pod(key):
                since_s = _since(each.since_s, now_s)
                detail = f"pod {key[1]}, {each.detail}"
                self._gone[each.kind, service] = KubernetesTrouble(
                    each.kind, service, since_s, now_s, detail
                )
        self.pods.discard(key)

    def of_pods(self, workload: WorkloadKey, since_s: float) -> tuple[Cause, str] | None:
        """Return why a pod of a workload fails that was created since then; a permanent cause comes first."""
        sick: tuple[Cause, str] | None = None
        for key in sorted(self.pods & self._backends.pods_of(workload)):
            pod = self._backends.pods[key]
            if pod.created_s < since_s:
                continue
            if pod.unstartable:
                return "unstartable", f"pod {key[1]}, {pod.unstartable}"
            sick = sick or ("sick", f"pod {key[1]}, {self._evidence[key][0].detail}")
        return sick

    def look(self, failed: Mapping[WorkloadKey, Failure], now_s: float) -> None:
        """Update the troubles.

        Args:
            failed: failed changes.
            now_s: a trouble without a sign by now has ended.
        """
        found: dict[tuple[TroubleKind, str], KubernetesTrouble] = {}
        for key, evidence in list(self._evidence.items()):
            lasting = tuple(each for each in evidence if each.until_s > now_s)
            if len(lasting) < len(evidence):
                self.pod_seen(key, self._backends.pods[key], lasting, now_s)
            for each in lasting:
                for service in self._backends.names_of_pod(key):
                    detail = f"pod {key[1]}, {each.detail}"
                    self._note(
                        found,
                        KubernetesTrouble(each.kind, service, _since(each.since_s, now_s), None, detail),
                    )
        for workload, failure in failed.items():
            if failure.cause != "sick":
                for service in self._backends.names_of(workload):
                    since_s = min(failure.since_s, now_s)
                    self._note(
                        found, KubernetesTrouble("stuck_rollout", service, since_s, None, failure.detail)
                    )
        for of, trouble in self._ongoing.items():
            if of not in found:
                self._history.add(msgspec.structs.replace(trouble, end_s=max(now_s, trouble.start_s)))
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
            if trouble.start_s > now_s:
                self._ongoing[of] = msgspec.structs.replace(trouble, start_s=now_s)

    def _note(
        self, found: dict[tuple[TroubleKind, str], KubernetesTrouble], trouble: KubernetesTrouble
    ) -> None:
        """Merge the same trouble of several pods of a workload; it begins with the first."""
        key = trouble.kind, trouble.service
        known = found.get(key) or self._ongoing.get(key)
        start_s = trouble.start_s if known is None else known.start_s
        if known is None:
            start_s = self._history.reopened_s(*key, start_s) or start_s
            self._history.reopen(*key)
        if key not in found:
            found[key] = KubernetesTrouble(trouble.kind, trouble.service, start_s, None, trouble.detail)


def _since(since_s: float, now_s: float) -> float:
    """Return a start by the cluster's clock, which may be ahead or missing."""
    return min(since_s, now_s) if since_s > 0 else now_s
