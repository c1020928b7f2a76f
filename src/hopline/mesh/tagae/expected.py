"""Planned changes: what of a service counts for less while its pods are replaced, added or removed.

Scaling and rollouts change what a service uses, and not whether it answers: its processor, memory and
traffic are taken as they come, slow or failing requests count for less, but count. What is drained, added
or removed is not judged at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hopline.mesh.changes import Change, ChangeKind, Context, Trouble
from hopline.mesh.roster import Roster
from hopline.mesh.tagae.roles import Role

#: What deviations are multiplied by, by role.
_REPLACED: dict[Role, float] = {
    "load": 0.5, "calls": 0.5, "traffic": 0.0, "latency": 0.5, "outgoing": 0.5, "errors": 0.6,
    "memory": 0.0, "resource": 0.0,
}  # fmt: skip
_GONE: dict[Role, float] = dict.fromkeys(_REPLACED, 0.0)
_SHARES: dict[ChangeKind, dict[Role, float]] = {
    "scale": _REPLACED,
    "rollout": _REPLACED,
    "drain": _REPLACED,
    "added": _GONE,
    "removed": _GONE,
}
#: Intervals, and seconds, that a change is still felt after its end: rates look back a minute.
_AFTER_INTERVALS, _AFTER_S = 2, 90.0
#: A change that takes longer is no excuse any more.
LONGEST_S = 1800.0


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


def troubles(context: Context, time_s: float, interval_s: float) -> list[Trouble]:
    """Troubles at that time; one that began and ended within an interval counts in that one."""
    return [
        trouble
        for trouble in context.troubles
        if trouble.start_s <= time_s + interval_s
        and (trouble.end_s is None or time_s <= trouble.end_s + 1.5 * interval_s)
    ]


def shares(
    changes: Sequence[Change], roster: Roster, roles: Sequence[Role]
) -> dict[int, NDArray[np.float32]]:
    """For each slot with a change: float32 [columns], what deviations are multiplied by."""
    found: dict[int, NDArray[np.float32]] = {}
    for change in changes:
        slot = roster.find(change.service)
        if slot is None:
            continue
        row = np.array([_SHARES[change.kind][role] for role in roles], np.float32)
        found[slot] = np.minimum(found[slot], row) if slot in found else row
    return found
