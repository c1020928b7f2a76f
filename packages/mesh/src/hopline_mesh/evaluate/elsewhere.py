"""Joins two recordings of one mesh: a detector learns from one and judges the other."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.evaluate.recording import Period, Recording, recorded_period, within
from hopline_mesh.roster import Roster

_DAY_S = 86_400.0
#: Seconds after a labelled event that are not learned from either.
_AFTER_S = 120.0


def learned_elsewhere(learned: Recording, judged: Recording) -> Recording:
    """Return a recording whose training is one recording, without its events, and whose test is another.

    The training is moved back by whole days if that is needed to be before the test, because a detector
    sees time in one direction only.

    Raises:
        SnapshotInvalid: the two have other columns, another interval, or no service in common.
    """
    columns = judged.snapshots[0].schema
    _check_columns(learned, judged)
    if not math.isclose(learned.interval_s, judged.interval_s, rel_tol=0.05):
        raise SnapshotInvalid(
            f"{learned.name} has a snapshot every {learned.interval_s:g} s, and {judged.name} every "
            f"{judged.interval_s:g} s; a detector needs the same interval in both"
        )
    if not {*learned.snapshots[0].roster.names} & {*judged.snapshots[0].roster.names}:
        raise SnapshotInvalid(
            f"{learned.name} and {judged.name} have no service in common; services are matched by name"
        )
    roster = Roster(judged.snapshots[0].roster.names)
    slots = np.array([roster.slot(name) for name in learned.snapshots[0].roster.names], np.int32)
    over = learned.snapshots[-1].time_s + judged.interval_s - judged.snapshots[0].time_s
    back = max(0.0, math.ceil(over / _DAY_S) * _DAY_S)
    eventful = [Period(event.start_s, event.end_s + _AFTER_S) for event in learned.events]
    snapshots, contexts = [], []
    for snapshot, context in zip(learned.snapshots, learned.contexts, strict=True):
        if not within(snapshot.time_s, eventful):
            ours = snapshot.with_columns(columns).with_slots(roster, slots)
            snapshots.append(replace(ours, time_s=snapshot.time_s - back))
            contexts.append(context.moved(-back))
    if not snapshots:
        raise SnapshotInvalid(f"{learned.name}: no snapshot is outside of its labelled events")
    test = judged.period()
    train = recorded_period([each.time_s for each in snapshots], judged.interval_s)
    return replace(
        judged,
        snapshots=[*snapshots, *(replace(each, roster=roster) for each in judged.snapshots)],
        contexts=[*contexts, *judged.contexts],
        train=(Period(train.start_s, min(train.end_s, test.start_s)),),
        test=(test,),
    )


def _check_columns(learned: Recording, judged: Recording) -> None:
    theirs, ours = learned.snapshots[0].schema, judged.snapshots[0].schema
    for what, of_learned, of_judged in (
        ("nodes", {*theirs.node_features}, {*ours.node_features}),
        ("edges", {*theirs.edge_features}, {*ours.edge_features}),
    ):
        for name, only in ((learned.name, of_learned - of_judged), (judged.name, of_judged - of_learned)):
            if only:
                raise SnapshotInvalid(
                    f"only {name} has {', '.join(sorted(only))} in its {what}; both need the same columns"
                )
