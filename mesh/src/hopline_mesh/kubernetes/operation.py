"""A planned change, its progress and its failure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hopline_mesh.changes import ChangeKind
from hopline_mesh.kubernetes.workload import Workload, WorkloadKey

#: Why a change failed: `idle`: no progress for too long; `overdue`: the controller reports it;
#: `unstartable`: a container cannot be started; `sick`: new pods crash, which is a separate trouble.
Cause = Literal["idle", "overdue", "unstartable", "sick"]


@dataclass(slots=True)
class Operation:
    """A change of one workload, or of one service as such (`added`, `removed`).

    Attributes:
        kind: of the change.
        subject: the workload, or the name of the service.
        start_s: when it began.
        detail: for people.
        pods_since_s: pods that were created at or after this time belong to it.
        best: the smallest distance from completion so far.
        best_s: when that was reached. Pods that start and crash again are not progress.
        size: for `scale`, the wanted number of pods before.
        wanted: for `scale`, the wanted number of pods now.
        earliest_end_s: the change does not end before this time.
        services: Services of the workload, as last known; a deleted workload has none any more.
    """

    kind: ChangeKind
    subject: WorkloadKey | str
    start_s: float
    detail: str
    pods_since_s: float
    best: float
    best_s: float
    size: int | None = None
    wanted: int | None = None
    earliest_end_s: float = -math.inf
    services: tuple[str, ...] = ()

    def aim(self, detail: str, now_s: float) -> None:
        """Set a new aim."""
        self.detail = detail
        self.best, self.best_s = math.inf, now_s

    def note(self, distance: int, now_s: float) -> None:
        """Note the present distance from completion."""
        if distance < self.best:
            self.best, self.best_s = distance, now_s


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed change of a workload, which is no longer a planned change.

    Attributes:
        cause: of the failure.
        since_s: when it was detected.
        detail: for people.
        template, desired: the wanted state. Another wanted state is another change.
        distance: from completion.
    """

    cause: Cause
    since_s: float
    detail: str
    template: int
    desired: int
    distance: float

    def about(self, workload: Workload) -> bool:
        """Whether the wanted state of the workload is still the failed one."""
        return (self.template, self.desired) == (workload.template, workload.desired)
