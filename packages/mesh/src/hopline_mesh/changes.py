"""Planned changes and troubles of a mesh, in addition to its metrics.

Both come from Kubernetes, or from a recording. Knows no source.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

#: `scale`: pods are added or removed; `rollout`: a new version replaces pods; `drain`: pods move or end as
#: planned; `added` and `removed`: the service itself is new, or is removed.
ChangeKind = Literal["scale", "rollout", "drain", "added", "removed"]

#: Failures that look like changes, but were not planned.
TroubleKind = Literal["stuck_rollout", "oom_kill", "crash_loop"]


class Change(msgspec.Struct, frozen=True):
    """A planned change of one service.

    Attributes:
        kind: of the change.
        service: name as in the roster.
        start_s: when it began, Unix seconds.
        end_s: when it ended; None while it lasts.
        detail: for people, such as "3 to 7 pods".
        before, after: for `scale`, the wanted number of pods before and after; None if unknown.
    """

    kind: ChangeKind
    service: str
    start_s: float
    end_s: float | None = None
    detail: str = ""
    before: int | None = None
    after: int | None = None


class KubernetesTrouble(msgspec.Struct, frozen=True):
    """A failure of a service that Kubernetes itself reports.

    Attributes:
        kind: of the failure.
        service: name as in the roster.
        start_s: when it began, Unix seconds.
        end_s: when it ended; None while it lasts.
        detail: for people, such as "container app restarted 6 times".
        pod_created_s: when the oldest failing pod was created, Unix seconds; 0 for a failure without a pod.
            Kubernetes reports only the newest crash of a pod, so `start_s` depends on when a watch was
            started; this time does not.
    """

    kind: TroubleKind
    service: str
    start_s: float
    end_s: float | None = None
    detail: str = ""
    pod_created_s: float = 0.0


class Context(msgspec.Struct, frozen=True):
    """All planned changes and troubles at one time, newest last, including those that ended recently."""

    changes: tuple[Change, ...] = ()
    troubles: tuple[KubernetesTrouble, ...] = ()

    def moved(self, by_s: float) -> Context:
        """Return a copy with all times moved by this number of seconds."""
        if not by_s or not (self.changes or self.troubles):
            return self
        return Context(
            tuple(_moved(each, by_s) for each in self.changes),
            tuple(_moved(each, by_s) for each in self.troubles),
        )


_Item = TypeVar("_Item", Change, KubernetesTrouble)


def _moved(item: _Item, by_s: float) -> _Item:
    moved = {"start_s": item.start_s + by_s, "end_s": None if item.end_s is None else item.end_s + by_s}
    if isinstance(item, KubernetesTrouble) and item.pod_created_s:
        moved["pod_created_s"] = item.pod_created_s + by_s
    return msgspec.structs.replace(item, **moved)
