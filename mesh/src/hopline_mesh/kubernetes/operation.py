"""A planned change under way, and how one is judged to be getting nowhere."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hopline_mesh.changes import ChangeKind
from hopline_mesh.kubernetes.workload import Workload, WorkloadKey

#: Why a change went wrong: `idle` nothing moved for too long; `overdue` the controller says so;
#: `unstartable` a container cannot be started; `sick` new pods fall over, which is a trouble of its own.
Cause = Literal["idle", "overdue", "unstartable", "sick"]


@dataclass(slots=True)
class Operation:
    """A change of one workload, or of one service as such (`added`, `removed`).

    Attributes:
        kind: what changes.
        subject: the workload, or the name of the service.
        start_s: when it began.
        detail: for people.
        pods_since_s: pods that were created at or after this time belong to it.
        best: the smallest distance from the aim so far.
        best_s: when that was reached. Pods that come up and fall over again are no progress.
        size: of `scale`, how many pods there were to be before; wanted: and are to be.
        hold_s: it does not end before this time.
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
    hold_s: float = -math.inf

    def aim(self, detail: str, now_s: float) -> None:
        """It has another aim now, or more of the same to do."""
        self.detail = detail
        self.best, self.best_s = math.inf, now_s

    def note(self, distance: int, now_s: float) -> None:
        """How far it is from its aim now."""
        if distance < self.best:
            self.best, self.best_s = distance, now_s


@dataclass(frozen=True, slots=True)
class Failure:
    """A change of a workload went wrong, and is not expected change any more.

    Attributes:
        cause: why.
        since_s: when that was found.
        detail: for people.
        template, desired: what was wanted. Another wish is another change.
        distance: how far it had come.
    """

    cause: Cause
    since_s: float
    detail: str
    template: int
    desired: int
    distance: float

    def about(self, workload: Workload) -> bool:
        """Whether the workload is still to be what it failed to become."""
        return (self.template, self.desired) == (workload.template, workload.desired)
