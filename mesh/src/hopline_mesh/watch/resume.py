"""Takes up the state that an earlier watch left, as far as it is whole and fits.

The newest checkpoint that can be used is restored, and the intervals since are judged again, which gives
the same verdicts and the same incidents as before.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

from hopline.errors import HoplineError
from hopline_mesh.out.board import Board
from hopline_mesh.roster import Roster
from hopline_mesh.schema import Schema
from hopline_mesh.state import Seen, StateFolder
from hopline_mesh.watch.judge import KeptDetector

logger = logging.getLogger("hopline_mesh")

DetectorT = TypeVar("DetectorT", bound=KeptDetector)


@dataclass(frozen=True, slots=True)
class Resumed(Generic[DetectorT]):
    """Where a watch goes on.

    Attributes:
        detector: up to date as of `last_s`.
        roster: with all names that it knows.
        last_s: time of the newest interval that is known; -inf where there is none.
        trained: whether the detector was trained, rather than only looked on.
        note: see `StateFolder.note`.
        said: how it went, for people.
    """

    detector: DetectorT
    roster: Roster
    last_s: float
    trained: bool
    note: dict[str, Any]
    said: str


def resume(
    folder: StateFolder,
    fresh: Callable[[], DetectorT],
    restore: Callable[[Mapping[str, Any], Mapping[str, NDArray[Any]]], DetectorT],
    *,
    schema: Schema,
    shape: Mapping[str, Any],
    board: Board,
    most: int = 480,
) -> Resumed[DetectorT]:
    """Take up what is there; never fails for what is in the folder.

    Args:
        fresh: makes a detector that has learned nothing.
        restore: makes one of what it exported.
        board: gets the verdicts of the intervals that are judged again.
        most: intervals that are judged again at most, where no checkpoint can be used.
    """
    roster, detector, after_s, trained = Roster(), fresh(), float("-inf"), False
    said = "nothing was kept: begins anew"
    for checkpoint in folder.checkpoints():
        if checkpoint.shape != shape:
            other = sorted(
                k for k in {*shape, *checkpoint.shape} if shape.get(k) != checkpoint.shape.get(k)
            )
            said = f"what was learned is for other settings ({', '.join(other)}): learns anew"
            logger.warning("state: %s: %s", checkpoint.path, said)
            break
        try:
            detector = restore(checkpoint.meta["detector"], checkpoint.arrays)
        except Exception as error:  # whatever is in a file must not keep the watch from starting
            logger.warning("state: %s: cannot be taken up: %s: it is left out", checkpoint.path, error)
            detector = fresh()
            continue
        roster, after_s = Roster(checkpoint.names), checkpoint.time_s
        trained, said = bool(checkpoint.meta.get("trained")), "goes on"
        try:
            board.restore(checkpoint.meta["shown"])
        except (HoplineError, KeyError) as error:
            logger.warning("state: %s: past incidents are not shown: %s", checkpoint.path, error)
        break
    last_s, replayed = after_s, 0
    history: deque[Seen] = deque(maxlen=most)
    history.extend(each for each in folder.history(roster, after_s) if each.snapshot.schema == schema)
    for seen in history:
        try:
            verdict = detector.step(seen.snapshot, seen.context)
        except Exception:  # as in the loop: an interval that cannot be judged is left out
            logger.exception("state: the interval at %.0f s is left out", seen.snapshot.time_s)
            continue
        board.publish(verdict, seen.snapshot, detector.scores(seen.snapshot))
        last_s, replayed = seen.snapshot.time_s, replayed + 1
    if replayed and said != "goes on":
        said = f"{said}, from {replayed} intervals that were kept"
    return Resumed(detector, roster, last_s, trained, folder.note(), said)
