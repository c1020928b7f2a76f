"""Effects of planned changes on deviations, while pods of a service are replaced, added or removed.

Scaling and rollouts change resource use, not responses. So CPU, memory and traffic are not judged, and slow
or failing requests have less weight. Added or removed services are not judged at all. Afterwards the new
values become the baseline. An exception is CPU use beyond what the added pods explain, because an
autoscaler may be the effect of a fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.changes import Change, Context, KubernetesTrouble
from hopline_mesh.detect import kernels
from hopline_mesh.detect.series import SeriesTable
from hopline_mesh.roles import Role
from hopline_mesh.snapshot import Gap, Snapshot

#: Factors on deviations, by role, while pods are replaced; of a service that is added or removed all are 0.
_REPLACED: dict[Role, float] = {
    "load": 0.5, "calls": 0.5, "traffic": 0.0, "latency": 0.5, "outgoing": 0.5, "errors": 0.6,
    "memory": 0.0, "resource": 0.0,
}  # fmt: skip
#: Intervals, and seconds, in which a change has effects after its end, because rates cover a minute.
_AFTER_INTERVALS, _AFTER_S = 2, 90.0
#: Additional resource use of a service with more pods, as a logarithm: each pod has a base use, and is slow
#: at first.
_ROOM = 0.4
#: A change that takes longer no longer excuses anything.
LONGEST_S = 1800.0


@dataclass(frozen=True, slots=True)
class Excuse:
    """The resource use of a service that its recent planned changes explain.

    Attributes:
        fewest, most: smallest and largest wanted number of pods; None with only drains.
        is_new: whether more than their number may differ.
    """

    fewest: int | None = None
    most: int | None = None
    is_new: bool = False

    def also(self, change: Change) -> Excuse:
        """Return the excuse with one more change."""
        if change.kind == "drain":
            return self
        if change.kind != "scale" or change.before is None or change.after is None:
            return replace(self, is_new=True)
        pods = [each for each in (self.fewest, self.most, change.before, change.after) if each is not None]
        return replace(self, fewest=min(pods), most=max(pods))

    @property
    def room(self) -> float:
        """By how much what it uses may have grown, besides with its load, as a logarithm."""
        if self.is_new:
            return math.inf
        if self.fewest is None or self.most is None:
            return _ROOM
        return _ROOM + math.log(max(self.most, 1) / max(self.fewest, 1))


def under_way(context: Context, time_s: float, interval_s: float) -> list[Change]:
    """Changes that are felt at that time; a rollout that is stuck is none."""
    stuck = {trouble.service for trouble in context.troubles if trouble.kind == "stuck_rollout"}
    after = _AFTER_INTERVALS * interval_s + _AFTER_S
    return [
        change
        for change in context.changes
        if change.start_s <= time_s + interval_s
        and (change.end_s is None or time_s <= change.end_s + after)
        and time_s <= change.start_s + LONGEST_S + after
        and not (change.kind == "rollout" and change.service in stuck)
    ]


def troubles(context: Context, time_s: float, interval_s: float) -> list[KubernetesTrouble]:
    """Troubles at that time; one that began and ended within an interval counts in that one."""
    return [
        trouble
        for trouble in context.troubles
        if trouble.start_s <= time_s + interval_s
        and (trouble.end_s is None or time_s <= trouble.end_s + 1.5 * interval_s)
    ]


def with_slots(changes: Sequence[Change], snapshot: Snapshot) -> list[tuple[int, Change]]:
    """Return the changes of known services, with their slots."""
    found = ((snapshot.roster.find(change.service), change) for change in changes)
    return [(slot, change) for slot, change in found if slot is not None]


def unmatched(troubles: Sequence[KubernetesTrouble], snapshot: Snapshot) -> list[Gap]:
    """Return gaps for troubles that cannot become incidents, because no measurement has their names.

    A trouble is listed once for each name of its workload; one that the mesh knows is enough.
    """
    names: dict[tuple[str, str], list[str]] = {}
    for each in troubles:
        names.setdefault((each.kind, each.detail), []).append(each.service)
    return [
        Gap(f"kubernetes.{kind}", f"{', '.join(some)}: {detail or kind}; no measurement has this name")
        for (kind, detail), some in names.items()
        if all(snapshot.roster.find(name) is None for name in some)
    ]


def shares(changed: Iterable[tuple[int, Change]], roles: Sequence[Role], size: int) -> NDArray[np.float32]:
    """Return factors on deviations by slot, float32 [size, columns]; 1 without a change.

    Args:
        changed: changes, with the slots of their services.
    """
    factors = np.ones((size, len(roles)), np.float32)
    for slot, change in changed:
        is_judged = change.kind not in ("added", "removed")
        row = np.array([is_judged * _REPLACED[role] for role in roles], np.float32)
        factors[slot] = np.minimum(factors[slot], row)
    return factors


def usual_now(table: SeriesTable, slot: int, excuse: Excuse, *, is_troubled: bool) -> NDArray[np.bool_]:
    """Return columns of a service, bool [F], whose baseline must be learned again after its changes.

    Columns with more use than the changes explain are excluded. If only the number of pods changed during
    an incident of the service, columns that follow requests are excluded too, because they will change
    back.

    Args:
        table: of services, after the newest interval, with `quiet` of the previous one.
    """
    was_free: NDArray[np.bool_] = table.quiet[slot] == 0
    if excuse.is_new:
        return was_free
    load = float(table.slow[slot, table.load]) if table.load >= 0 else 0.0
    own = table.slow[slot] - table.slope[slot] * (load if abs(load) < kernels.MAX_DEVIATION else 0.0)
    is_amount = np.array([role == "resource" for role in table.roles]) & (table.kinds == kernels.AMOUNT)
    kept = is_amount & (own * table.spread[slot] > excuse.room)
    if is_troubled:
        kept |= np.array([role in ("resource", "traffic") for role in table.roles])
    was_free &= ~kept
    return was_free
