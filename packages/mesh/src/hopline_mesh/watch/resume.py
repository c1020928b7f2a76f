"""Restores the state of an earlier watch, if it is intact and matches the settings.

The newest usable checkpoint is restored, and the intervals since then are judged again. This gives the same
verdicts and the same incidents as before.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hopline.errors import HoplineError
from hopline_mesh.detect import MeshDetector
from hopline_mesh.out.board import Board
from hopline_mesh.roster import Roster
from hopline_mesh.schema import Schema
from hopline_mesh.state import Seen, StateFolder

logger = logging.getLogger("hopline_mesh")

#: Maximum number of intervals that are judged again.
_MOST_REPLAYED = 480


@dataclass(frozen=True, slots=True)
class Resumed:
    """The state with which a watch continues.

    Attributes:
        detector: up to date as of `last_s`.
        roster: with all names that it knows.
        last_s: time of the newest known interval; -inf for none.
        trained: whether the detector was trained, or only learned while it ran.
        note: see `StateFolder.note`.
        summary: what was restored, for people.
    """

    detector: MeshDetector
    roster: Roster
    last_s: float
    trained: bool
    note: dict[str, Any]
    summary: str


def resume(
    folder: StateFolder,
    fresh: Callable[[], MeshDetector],
    restore: Callable[..., MeshDetector] = MeshDetector.restore,
    *,
    schema: Schema,
    shape: Mapping[str, Any],
    board: Board,
) -> Resumed:
    """Restore the state of a folder; never fails because of its content.

    Args:
        fresh: creates a detector without any state.
        restore: creates a detector from an exported state; see `MeshDetector.restore`.
        board: gets the verdicts of the intervals that are judged again.
    """
    roster, detector, after_s, trained = Roster(), fresh(), float("-inf"), False
    summary = "no saved state; learns from zero"
    for checkpoint in folder.checkpoints():
        if checkpoint.shape != shape:
            other = sorted(
                k for k in {*shape, *checkpoint.shape} if shape.get(k) != checkpoint.shape.get(k)
            )
            summary = f"the saved state is for other settings ({', '.join(other)}); learns from zero"
            logger.warning("state: %s: %s", checkpoint.path, summary)
            break
        try:
            detector = restore(checkpoint.meta["detector"], checkpoint.arrays)
        except Exception as error:  # no content of a file may stop the watch from starting
            logger.warning("state: %s: cannot be restored: %s; it is ignored", checkpoint.path, error)
            detector = fresh()
            continue
        roster, after_s = Roster(checkpoint.names), checkpoint.time_s
        trained, summary = bool(checkpoint.meta.get("trained")), "restored"
        try:
            board.restore(checkpoint.meta["shown"])
        except (HoplineError, KeyError) as error:
            logger.warning("state: %s: past incidents cannot be restored: %s", checkpoint.path, error)
        break
    last_s, replayed = after_s, 0
    history: deque[Seen] = deque(maxlen=_MOST_REPLAYED)
    history.extend(each for each in folder.history(roster, after_s) if each.snapshot.schema == schema)
    for seen in history:
        try:
            verdict = detector.step(seen.snapshot, seen.context)
        except Exception:  # as in the loop: skip an interval that cannot be judged
            logger.exception("state: the interval at %.0f s is left out", seen.snapshot.time_s)
            continue
        board.publish(verdict, seen.snapshot, detector.scores(seen.snapshot), seen.context)
        last_s, replayed = seen.snapshot.time_s, replayed + 1
    if replayed and summary != "restored":
        summary = f"{summary}, from {replayed} saved intervals"
    return Resumed(detector, roster, last_s, trained, folder.note(), summary)
