"""Trains a new detector in the background, in a separate process, and swaps it in.

The new detector judges the intervals since the training again, a few at a time, until it is up to date. It
takes over when there is no incident, or after a maximum wait. Knows one kind of detector.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from hopline_mesh.detect import DetectorSettings, MeshDetector
from hopline_mesh.errors import StateDamaged
from hopline_mesh.incident import Verdict
from hopline_mesh.state import Seen
from hopline_mesh.state.checkpoint import read_checkpoint
from hopline_mesh.watch.child import Task

logger = logging.getLogger("hopline_mesh")

#: Seconds that the new detector may catch up in one interval.
_CATCH_UP_S = 0.5
#: Intervals after which it takes over even during an incident; a quarter of it the first time.
_MAX_WAIT = 240
#: What Python, C++ and LLVM print if they cannot allocate memory.
_NO_MEMORY = ("MemoryError", "allocate memory", "bad_alloc", "out of memory")
#: A training that takes longer is killed, seconds.
_LONGEST_S = 1800.0
#: Intervals before and after an incident that are left out of trainings.
_MARGIN = 4


class Trainer:
    """Trainings of one watch. Called after each step, on the thread of the steps.

    Args:
        folder: the state folder with the history.
        settings: of the detector, with the times of trainings.
        interval_s: seconds between snapshots.
        trained: whether the present detector was trained.
        outcome: called with "ok" or "failed" after each training.
        abnormal: of an earlier watch, as `export` returned it.
        is_real: whether an incident is one; the time of another is normal.
    """

    def __init__(
        self,
        folder: Path,
        settings: DetectorSettings,
        interval_s: float,
        *,
        trained: bool,
        outcome: Callable[[str], None] = lambda outcome: None,
        abnormal: Mapping[str, Sequence[float]] | None = None,
        is_real: Callable[[str], bool] = lambda id: True,
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._interval_s = interval_s
        self.trained = trained
        self._outcome = outcome
        self._is_real = is_real
        #: times of incidents by their ids and starts, with a margin
        self._abnormal = {id: (float(times[0]), float(times[1])) for id, times in (abnormal or {}).items()}
        self._snapshots = 0
        self._calm = True
        self._began_at = self._ended_at = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        #: task, result and messages of the process
        self._files: list[BinaryIO] = []
        self._next: MeshDetector | None = None
        #: intervals since the training began, and how many of them the new detector has judged
        self._since: list[Seen] = []
        self._judged = 0

    def saw(self, seen: Seen, verdict: Verdict) -> None:
        """Note a judged interval."""
        self._snapshots += verdict.state != "blind"
        self._calm = verdict.state in ("normal", "learning") and not verdict.incidents
        now_s, margin = seen.snapshot.time_s, _MARGIN * self._interval_s
        for incident in verdict.incidents:
            # With the start, because an incident may return under its id: a pod that crashes again.
            times = incident.start_s - margin, (incident.end_s or now_s) + margin
            self._abnormal[f"{incident.id} {incident.start_s:.0f}"] = times
        oldest_s = now_s - 3600 * self._settings.fine_tune_hours
        self._abnormal = {id: times for id, times in self._abnormal.items() if times[1] >= oldest_s}
        if self._process is not None or self._next is not None:
            self._since.append(seen)

    def advance(self, names: Sequence[str], seen: Seen) -> MeshDetector | None:
        """Begin, continue or end a training; takes `_CATCH_UP_S` at most.

        Args:
            names: of the roster.
            seen: the newest interval.

        Returns: a detector, up to date, that replaces the present one; else None.
        """
        if self._next is not None:
            return self._catch_up()
        if self._process is not None:
            self._poll()
        elif self._is_due() and self._calm:
            self._begin(self.task(names, seen))
        return None

    def export(self) -> dict[str, tuple[float, float]]:
        """Return the times to leave out of trainings, JSON-compatible; a restart must not lose them."""
        return dict(self._abnormal)

    def task(self, names: Sequence[str], seen: Seen) -> Task:
        """Return the training that is due after an interval; see `advance`."""
        until_s = seen.snapshot.time_s
        return Task(
            folder=str(self._folder),
            names=list(names),
            schema=seen.snapshot.schema,
            since_s=until_s - 3600 * self._settings.fine_tune_hours,
            until_s=until_s,
            without=[times for key, times in self._abnormal.items() if self._is_real(key.split()[0])],
            detector=self._settings,
        )

    def close(self) -> None:
        """Stop a running training."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._forget()

    def _is_due(self) -> bool:
        if not self.trained:
            return self._snapshots >= self._settings.train_at
        return 0 < self._settings.fine_tune_interval_s <= time.monotonic() - self._ended_at

    def _begin(self, task: Task) -> None:
        # In memory: the state folder is full of history by design, and its volume hardly larger.
        self._began_at = time.monotonic()
        try:
            for _ in range(3):
                self._files.append(os.fdopen(os.memfd_create("mesh-training"), "w+b"))
            stdin, stdout, stderr = self._files
            stdin.write(msgspec.json.encode(task))
            stdin.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from hopline_mesh.watch.child import main; main()"],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            )
        except OSError as error:
            self._fail(str(error))
            return
        logger.info("training: started, on at most %.1f h", self._settings.fine_tune_hours)

    def _poll(self) -> None:
        """Restore the new detector if the training has finished."""
        process = self._process
        assert process is not None
        if process.poll() is None:
            if time.monotonic() - self._began_at > _LONGEST_S:
                self.close()
                self._fail(f"took longer than {_LONGEST_S:.0f} s")
            return
        _, stdout, stderr = self._files
        stderr.seek(0)
        output = stderr.read().decode("utf-8", "replace").strip()
        last = output.splitlines()[-1] if output else f"exit status {process.returncode}"
        if process.returncode:
            if any(words in output for words in _NO_MEMORY):
                last = f"not enough memory; raise the container's limit, or lower fine_tune_hours ({last})"
            self._fail(last)
            return
        if output:
            logger.warning("training: %s", last)
        try:
            header, arrays = read_checkpoint(Path(f"/proc/self/fd/{stdout.fileno()}"))
            learned_s = float(header["time_s"])
            found = MeshDetector.restore(header["meta"], arrays)
        except (StateDamaged, KeyError, ValueError, TypeError) as error:
            self._fail(str(error))
            return
        self._release()
        self._next = found
        self._since = [seen for seen in self._since if seen.snapshot.time_s > learned_s]
        for text in header["abnormal"]:
            logger.warning("training: left out as abnormal: %s", text)

    def _catch_up(self) -> MeshDetector | None:
        assert self._next is not None
        end = time.monotonic() + _CATCH_UP_S
        while self._judged < len(self._since) and time.monotonic() < end:
            seen = self._since[self._judged]
            self._next.step(seen.snapshot, seen.context)
            self._judged += 1
        if self._judged < len(self._since):
            return None
        # A long incident, or one that only the untrained detector sees, must not delay the new detector for
        # ever.
        if not self._calm and len(self._since) < (_MAX_WAIT if self.trained else _MAX_WAIT // 4):
            return None
        detector = self._next
        seconds = time.monotonic() - self._began_at
        self.trained = True
        self._forget()
        self._outcome("ok")
        logger.info("training: done after %.0f s; the new detector is in use", seconds)
        return detector

    def _fail(self, reason: str) -> None:
        self._forget()
        self._snapshots = 0  # the first training is retried after the same number of snapshots
        self._outcome("failed")
        logger.warning("training: failed: %s; the watch continues with the previous detector", reason)

    def _forget(self) -> None:
        self._release()
        self._next = None
        self._since, self._judged = [], 0
        self._ended_at = time.monotonic()

    def _release(self) -> None:
        """Forget the process that has ended, and free the memory of its files."""
        self._process = None
        for file in self._files:
            file.close()
        self._files = []
