"""Trains beside the loop: when it is time, in a process of its own, and how what it learned is taken over.

What was seen during the training is judged again by the new detector, a few intervals at a time, until it
is up to date; it takes over while nothing is wrong, if that is soon. Knows one kind of detector.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hopline_mesh.errors import StateDamaged
from hopline_mesh.incident import Verdict
from hopline_mesh.state import Seen
from hopline_mesh.state.checkpoint import read_checkpoint
from hopline_mesh.tagae import Tagae, TagaeSettings
from hopline_mesh.watch.child import Task

logger = logging.getLogger("hopline_mesh")

#: Seconds of catching up in one interval.
_CATCH_UP_S = 0.5
#: Intervals after which it takes over in the middle of an incident too; a quarter of it the first time.
_PATIENCE = 240
#: Intervals around trouble that are not learned from, each side.
_MARGIN = 4


@dataclass(frozen=True, slots=True)
class Schedule:
    """When to train.

    Attributes:
        interval_s: of snapshots.
        first: snapshots after which to train for the first time.
        every_s: seconds between trainings; 0: only the first one.
        hours: of history that is learned from.
        longest_s: a training that takes longer is ended.
    """

    interval_s: float = 15.0
    first: int = 240
    every_s: float = 3600.0
    hours: float = 6.0
    longest_s: float = 1800.0


class Trainer:
    """Trainings of one watch; see `Learning`.

    Args:
        folder: the state folder with the history.
        settings: of the detector.
        trained: see `Learning`.
        outcome: is told "ok" or "failed" after each training.
    """

    def __init__(
        self,
        folder: Path,
        settings: TagaeSettings,
        schedule: Schedule,
        *,
        trained: bool,
        outcome: Callable[[str], None] = lambda outcome: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._schedule = schedule
        self.trained = trained
        self._outcome = outcome
        self._monotonic = monotonic
        self._snapshots = 0
        self._ended_at = monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._began_at = 0.0
        self._task: Task | None = None
        #: what was seen since the training began, and how much of it the new detector has judged
        self._since: list[Seen] = []
        self._next: Tagae | None = None
        self._judged = 0
        self._trouble: list[tuple[float, float]] = []
        self._calm = True

    def saw(self, seen: Seen, verdict: Verdict) -> None:
        """Take note of an interval."""
        self._snapshots += 1
        self._calm = verdict.state in ("normal", "learning") and not verdict.incidents
        now_s, margin = seen.snapshot.time_s, _MARGIN * self._schedule.interval_s
        for incident in verdict.incidents:
            self._trouble.append((incident.start_s - margin, (incident.end_s or now_s) + margin))
        self._trouble = _merged(self._trouble, now_s - 3600 * self._schedule.hours)
        if self._process is not None or self._next is not None:
            self._since.append(seen)

    def advance(self, names: Sequence[str], seen: Seen) -> Tagae | None:
        """Begin, go on with or end a training; see `Learning`."""
        if self._next is not None:
            return self._catch_up()
        if self._process is not None:
            self._look()
        elif self._is_due() and self._calm:
            self._begin(names, seen)
        return None

    def close(self) -> None:
        """End a training that is under way."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget()

    def _is_due(self) -> bool:
        if not self.trained:
            return self._snapshots >= self._schedule.first
        return 0 < self._schedule.every_s <= self._monotonic() - self._ended_at

    def _begin(self, names: Sequence[str], seen: Seen) -> None:
        until_s = seen.snapshot.time_s
        self._task = Task(
            folder=str(self._folder),
            out=str(self._folder / "trained.part"),
            names=list(names),
            schema=seen.snapshot.schema,
            since_s=until_s - 3600 * self._schedule.hours,
            until_s=until_s,
            without=self._trouble,
            detector=self._settings,
        )
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from hopline_mesh.watch.child import main; main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environment,
            )
            assert self._process.stdin is not None
            self._process.stdin.write(msgspec.json.encode(self._task))
            self._process.stdin.close()
        except OSError as error:
            self._fail(str(error))
            return
        self._began_at = self._monotonic()
        logger.info("training: began, on %.1f h at most", self._schedule.hours)

    def _look(self) -> None:
        """Take over the result where there is one."""
        process, task = self._process, self._task
        assert process is not None
        assert task is not None
        if process.poll() is None:
            if self._monotonic() - self._began_at > self._schedule.longest_s:
                process.kill()
                process.wait()
                self._fail(f"took longer than {self._schedule.longest_s:.0f} s")
            return
        assert process.stderr is not None
        said = process.stderr.read().decode("utf-8", "replace").strip()
        process.stderr.close()
        self._process = None
        if process.returncode:
            last = said.splitlines()[-1] if said else f"ended with {process.returncode}"
            self._fail(last)
            return
        if said:
            logger.warning("training: %s", said.splitlines()[-1])
        try:
            header, arrays = read_checkpoint(Path(task.out))
            self._next, self._judged = self._restored(header, arrays), 0
        except (StateDamaged, KeyError, ValueError, TypeError) as error:
            self._fail(str(error))
        else:
            Path(task.out).unlink(missing_ok=True)
            for told in header["abnormal"]:
                logger.warning("training: not learned from, since it was no normal time: %s", told)

    def _restored(self, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> Tagae:
        detector = Tagae.restore(header["meta"], arrays, self._settings)
        learned_s = float(header["time_s"])
        self._since = [seen for seen in self._since if seen.snapshot.time_s > learned_s]
        return detector

    def _catch_up(self) -> Tagae | None:
        assert self._next is not None
        end = self._monotonic() + _CATCH_UP_S
        while self._judged < len(self._since) and self._monotonic() < end:
            seen = self._since[self._judged]
            self._next.step(seen.snapshot, seen.context)
            self._judged += 1
        if self._judged < len(self._since):
            return None
        # What goes on and on, or what only a detector that has learned nothing takes for trouble, must not
        # keep what was learned away for ever.
        if not self._calm and len(self._since) < (_PATIENCE if self.trained else _PATIENCE // 4):
            return None
        detector = self._next
        seconds = self._monotonic() - self._began_at
        self.trained = True
        self._forget()
        self._outcome("ok")
        logger.info("training: done after %.0f s, and taken over", seconds)
        return detector

    def _fail(self, reason: str) -> None:
        self._forget()
        self._snapshots = 0  # the first one is tried again after as many
        self._outcome("failed")
        logger.warning("training: failed: %s; the watch goes on with what it knows", reason)

    def _forget(self) -> None:
        if self._process is not None and self._process.stderr is not None:
            self._process.stderr.close()
        self._process = self._next = None
        self._since, self._judged = [], 0
        self._ended_at = self._monotonic()


def _merged(times: list[tuple[float, float]], after_s: float) -> list[tuple[float, float]]:
    """Times that overlap as one, without those that are over."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(times):
        if end < after_s:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
