"""A planned change, its progress and its failure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hopline_mesh.changes import Change, ChangeKind
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
        best_s: when the smallest distance from completion so far was reached. Pods that start and crash
            again are not progress.
        best: that distance.
        before, after: for `scale`, the wanted number of pods before and now.
        earliest_end_s: the change does not end before this time.
        services: Services of the workload, as last known; a deleted workload has none any more.
    """

    kind: ChangeKind
    subject: WorkloadKey | str
    start_s: float
    detail: str
    pods_since_s: float
    best_s: float
    best: float = math.inf
    before: int | None = None
    after: int | None = None
    earliest_end_s: float = -math.inf
    services: tuple[str, ...] = ()

    def restart(self, now_s: float) -> None:
        """Measure progress from here on, because there is another aim."""
        self.best, self.best_s = math.inf, now_s

    def change(self, service: str, end_s: float | None, detail: str) -> Change:
        """Return it as a change of one of its services."""
        return Change(self.kind, service, self.start_s, end_s, detail, self.before, self.after)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed change of a workload, which is no longer a planned change.

    Attributes:
        cause: of the failure.
        since_s: when the controller noticed it, or when it was detected.
        detail: for people.
        state: of the workload at that time.
    """

    cause: Cause
    since_s: float
    detail: str
    state: Workload
