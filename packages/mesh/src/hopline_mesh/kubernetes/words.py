"""Texts from events, for people: why an autoscaler chose a size, which node was cordoned."""

from __future__ import annotations

from typing import TypeVar

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

_Key = TypeVar("_Key")
_Note = TypeVar("_Note")


class Words:
    """Notes from events.

    Args:
        keep_s: how long a reason is used.
    """

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._reasons: dict[WorkloadKey | str, tuple[float, str]] = {}
        self._cordoned: dict[str, None] = {}

    def heard(self, event: KubernetesEvent, target: WorkloadKey | None, now_s: float) -> None:
        """Note an event of a watch or a list.

        Args:
            target: for an autoscaler's event, the workload that it scales.
        """
        at = event.last_timestamp or event.event_time or event.metadata.creation_timestamp
        at_s = now_s if at is None else at.timestamp()
        if event.reason == "SuccessfulRescale" and target is not None:
            if now_s - at_s <= self._keep_s:
                _put(self._reasons, target, (at_s, (event.message or "")[:LENGTH]))
        elif event.reason == "NodeNotSchedulable":
            _put(self._cordoned, event.involved_object.name, None)
        elif event.reason in ("NodeSchedulable", "RemovingNode"):
            self._cordoned.pop(event.involved_object.name, None)

    def of(self, operation: Operation) -> str:
        """Return an operation's detail, with the autoscaler's reason."""
        at_s, reason = self._reasons.get(operation.subject, (0.0, ""))
        if operation.kind != "scale" or not reason or at_s < operation.start_s - TOGETHER_S:
            return operation.detail
        return f"{operation.detail}; autoscaler: {reason}"

    def of_ending(self, pod: PodState) -> str:
        """Return why a pod ends."""
        if pod.node in self._cordoned:
            return f"pods move away from {pod.node}, which is cordoned"
        return "pods are evicted" if pod.evicted else "pods are deleted"


def _put(notes: dict[_Key, _Note], key: _Key, note: _Note) -> None:
    notes.pop(key, None)
    notes[key] = note
    if len(notes) > LIMIT:
        del notes[next(iter(notes))]
