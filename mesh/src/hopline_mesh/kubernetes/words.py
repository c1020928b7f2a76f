"""Texts from events, for people: why an autoscaler chose a size, which node was cordoned."""

from __future__ import annotations

from hopline_mesh.kubernetes.backends import Key
from hopline_mesh.kubernetes.objects import KubernetesEvent
from hopline_mesh.kubernetes.operation import Operation
from hopline_mesh.kubernetes.pod import PodState
from hopline_mesh.kubernetes.workload import WorkloadKey

#: Maximum number of notes of each kind; the oldest are dropped first.
LIMIT = 10_000
#: Maximum time between an autoscaler's event and the change that it describes.
TOGETHER_S = 60.0
#: Maximum length of a text.
LENGTH = 200


class Words:
    """Notes from events.

    Args:
        keep_s: how long a reason is used.
    """

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._reasons: dict[WorkloadKey, tuple[float, str]] = {}
        self._cordoned: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._reasons) + len(self._cordoned)

    def heard(self, event: KubernetesEvent, target: WorkloadKey | None, now_s: float) -> None:
        """Note an event of a watch or a list.

        Args:
            target: for an autoscaler's event, the workload that it scales.
        """
        at = event.last_timestamp or event.event_time or event.metadata.creation_timestamp
        at_s = now_s if at is None else at.timestamp()
        if event.reason == "SuccessfulRescale" and target is not None:
            if now_s - at_s <= self._keep_s:
                self._reasons.pop(target, None)
                self._reasons[target] = at_s, (event.message or "")[:LENGTH]
        elif event.reason == "NodeNotSchedulable":
            self._cordoned.pop(event.involved_object.name, None)
            self._cordoned[event.involved_object.name] = at_s
        elif event.reason in ("NodeSchedulable", "RemovingNode"):
            self._cordoned.pop(event.involved_object.name, None)
        if len(self._reasons) > LIMIT:
            del self._reasons[next(iter(self._reasons))]
        if len(self._cordoned) > LIMIT:
            del self._cordoned[next(iter(self._cordoned))]

    def of(self, operation: Operation) -> str:
        """Return an operation's detail, with the autoscaler's reason."""
        reason = (
            self._reasons.get(operation.subject) if isinstance(operation.subject, WorkloadKey) else None
        )
        if operation.kind != "scale" or reason is None or reason[0] < operation.start_s - TOGETHER_S:
            return operation.detail
        return f"{operation.detail}; autoscaler: {reason[1]}"

    def of_ending(self, key: Key, pod: PodState) -> str:
        """Return why a pod ends."""
        if pod.node in self._cordoned:
            return f"pods move away from {pod.node}, which is cordoned"
        return "pods are evicted" if pod.evicted else "pods are deleted"
