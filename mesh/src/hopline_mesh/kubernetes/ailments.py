"""Troubles of services, from what is wrong with their pods and from changes that went wrong."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hopline_mesh.changes import Trouble, TroubleKind
from hopline_mesh.kubernetes.backends import Backends, Key
from hopline_mesh.kubernetes.history import History
from hopline_mesh.kubernetes.operation import Cause, Failure
from hopline_mesh.kubernetes.pod import Evidence, PodState
from hopline_mesh.kubernetes.workload import WorkloadKey


class Ailments:
    """Which pods are ill, and the troubles that come of it.

    Args:
        backends: pods and services.
        history: troubles that ended.
    """

    def __init__(self, backends: Backends, history: History[Trouble]) -> None:
        self._backends = backends
        self._history = history
        self._evidence: dict[Key, tuple[Evidence, ...]] = {}
        self._ongoing: dict[tuple[TroubleKind, str], Trouble] = {}
        # Of pods that went before anybody asked.
        self._gone: dict[tuple[TroubleKind, str], Trouble] = {}
        #: Pods that are ill, or that cannot start.
        self.pods: set[Key] = set()

    def pod_seen(self, key: Key, pod: PodState, evidence: tuple[Evidence, ...], now_s: float) -> None:
        """A pod is as it is now."""
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
        """A pod is about to be forgotten."""
        for each in self._evidence.pop(key, ()):
            for service in self._backends.services_of_pod(key):
                since_s = _since(each.since_s, now_s)
                detail = f"pod {key[1]}, {each.detail}"
                self._gone[each.kind, service] = Trouble(each.kind, service, since_s, now_s, detail)
        self.pods.discard(key)

    def of_pod(self, key: Key) -> tuple[Cause, str]:
        """Why a pod is ill, first what will not pass by itself."""
        pod = self._backends.pods[key]
        where = f"pod {key[1]}"
        if pod.unstartable:
            return "unstartable", f"{where}, {pod.unstartable}"
        return "sick", f"{where}, {self._evidence[key][0].detail}"

    def look(self, failed: Mapping[WorkloadKey, Failure], now_s: float) -> None:
        """Bring troubles up to date.

        Args:
            failed: changes that went wrong.
            now_s: what was not seen again by now is over.
        """
        found: dict[tuple[TroubleKind, str], Trouble] = {}
        for key, evidence in list(self._evidence.items()):
            lasting = tuple(each for each in evidence if each.until_s > now_s)
            if len(lasting) < len(evidence):
                self.pod_seen(key, self._backends.pods[key], lasting, now_s)
            for each in lasting:
                for service in self._backends.services_of_pod(key):
                    detail = f"pod {key[1]}, {each.detail}"
                    self._note(
                        found, Trouble(each.kind, service, _since(each.since_s, now_s), None, detail)
                    )
        for workload, failure in failed.items():
            if failure.cause != "sick":
                for service in self._backends.services_of(workload):
                    since_s = min(failure.since_s, now_s)
                    self._note(found, Trouble("stuck_rollout", service, since_s, None, failure.detail))
        for of, trouble in self._ongoing.items():
            if of not in found:
                self._history.add(msgspec.structs.replace(trouble, end_s=max(now_s, trouble.start_s)))
        for of, trouble in self._gone.items():
            if of not in found and of not in self._ongoing:
                self._history.add(trouble)
        self._gone.clear()
        self._ongoing = found

    def going_on(self) -> list[Trouble]:
        """Troubles as of the last look."""
        return list(self._ongoing.values())

    def shift(self, now_s: float) -> None:
        """The clock was set back: nothing began later than now."""
        for of, trouble in self._ongoing.items():
            if trouble.start_s > now_s:
                self._ongoing[of] = msgspec.structs.replace(trouble, start_s=now_s)

    def _note(self, found: dict[tuple[TroubleKind, str], Trouble], trouble: Trouble) -> None:
        """Several pods of a service with the same trouble are one, which begins with the first."""
        key = trouble.kind, trouble.service
        known = found.get(key) or self._ongoing.get(key)
        start_s = trouble.start_s if known is None else known.start_s
        if known is None:
            start_s = self._history.reopened_s(*key, start_s) or start_s
            self._history.reopen(*key)
        if key not in found:
            found[key] = Trouble(trouble.kind, trouble.service, start_s, None, trouble.detail)


def _since(since_s: float, now_s: float) -> float:
    """A beginning by the cluster's clock, which may be ahead, or not be told."""
    return min(since_s, now_s) if since_s > 0 else now_s
