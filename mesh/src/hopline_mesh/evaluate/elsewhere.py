"""Joins two recordings of one mesh: a detector learns from one and judges the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hopline_mesh.changes import Context
from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.evaluate.recording import Period, Recording
from hopline_mesh.roster import Roster
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import Snapshot

_DAY_S = 86_400.0
#: Seconds after a labelled event that are not learned from either.
_AFTER_S = 120.0


def learned_elsewhere(learned: Recording, judged: Recording) -> Recording:
    """Return a recording whose training is one recording, without its events, and whose test is another.

    The training is moved back by whole days if that is needed to be before the test, because a detector
    sees time in one direction only.

    Raises:
        SnapshotInvalid: the two have other columns, or another interval.
    """
    first, other = judged.snapshots[0].schema, learned.snapshots[0].schema
    _check_columns(learned.name, judged.name, other, first)
    if not math.isclose(learned.interval_s, judged.interval_s, rel_tol=0.05):
        raise SnapshotInvalid(
            f"{learned.name} has a snapshot every {learned.interval_s:g} s, and {judged.name} every "
            f"{judged.interval_s:g} s; a detector needs the same interval in both"
        )
    roster = Roster(judged.snapshots[0].roster.names)
    slots = np.array([roster.slot(name) for name in learned.snapshots[0].roster.names], np.int32)
    over = learned.snapshots[-1].time_s + judged.interval_s - judged.snapshots[0].time_s
    back = max(0.0, math.ceil(over / _DAY_S) * _DAY_S)
    eventful = [Period(event.start_s, event.end_s + _AFTER_S) for event in learned.events]
    kept = [
        (snapshot, context)
        for snapshot, context in zip(learned.snapshots, learned.contexts, strict=True)
        if not any(snapshot.time_s in period for period in eventful)
    ]
    if not kept:
        raise SnapshotInvalid(f"{learned.name}: no snapshot is outside of its labelled events")
    training = [
        replace(each.with_columns(first).with_slots(roster, slots), time_s=each.time_s - back)
        for each, _ in kept
    ]
    contexts = [context.moved(-back) for _, context in kept]
    return _joined(training, contexts, judged, roster)


def _joined(
    training: Sequence[Snapshot], contexts: Sequence[Context], judged: Recording, roster: Roster
) -> Recording:
    interval_s = max(judged.interval_s, 1.0)
    begin = judged.snapshots[0].time_s
    return replace(
        judged,
        snapshots=[*training, *(replace(snapshot, roster=roster) for snapshot in judged.snapshots)],
        contexts=[*contexts, *judged.contexts],
        train=(Period(training[0].time_s, min(training[-1].time_s + interval_s, begin)),),
        test=(Period(begin, judged.snapshots[-1].time_s + interval_s),),
    )


def _check_columns(learned: str, judged: str, theirs: Schema, ours: Schema) -> None:
    for what, of_learned, of_judged in (
        ("nodes", theirs.node_features, ours.node_features),
        ("edges", theirs.edge_features, ours.edge_features),
    ):
        only = sorted({*of_learned} - {*of_judged}), sorted({*of_judged} - {*of_learned})
        for name, columns in zip((learned, judged), only, strict=True):
            if columns:
                raise SnapshotInvalid(
                    f"only {name} has {', '.join(columns)} in its {what}; both need the same columns"
                )
