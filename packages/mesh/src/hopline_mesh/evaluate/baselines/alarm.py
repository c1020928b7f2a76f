"""One incident at a time for the whole mesh, from scores and evidence of each interval.

A rule that fires for a service and also for its callers gives one incident, as teams group alerts into one
page. Separate incidents would only make a simple detector look worse. Times to begin and to end are those
of the watch's detector, for the same reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline_mesh.evaluate.baselines.vector import Places, Values
from hopline_mesh.incident import Evidence, Incident, Suspect, Verdict
from hopline_mesh.snapshot import Snapshot

#: Seconds that a deviation must last, and seconds without one after which an incident ends.
MIN_DURATION_S, CLEAN_S = 80.0, 90.0
#: If snapshots are further apart than this number of intervals, the durations start again.
_GAP = 3.0
#: Maximum evidence of each suspect.
_EVIDENCE = 5


class Alarm:
    """Measures how long deviations last, and creates incidents and verdicts.

    Args:
        name: of the detector; ids of incidents begin with it.
        min_duration_s: how long a deviation must last, in all snapshots of that time.
    """

    def __init__(self, name: str, min_duration_s: float) -> None:
        self._name = name
        self._min_duration_s = min_duration_s

    def restart(self, snapshots: Sequence[Snapshot]) -> None:
        """Forget all deviations and incidents, and take the interval of these snapshots."""
        times = [snapshot.time_s for snapshot in snapshots]
        self._interval_s = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
        self._needed = 2
        if self._interval_s > 0:
            self._needed = max(2, math.ceil(self._min_duration_s / self._interval_s))
        self._streaks: Places = np.zeros(1, dtype=np.int64)
        self._previous_s = self._last_s = -math.inf
        self._count = 0
        self._open: Incident | None = None

    def lasting(self, scores: Values, time_s: float) -> NDArray[np.bool_]:
        """Return which scores have exceeded 1 for long enough.

        Args:
            scores: float64 [n], of the next interval; n is the same in all intervals.
        """
        if time_s - self._previous_s > _GAP * self._interval_s:
            self._streaks = np.zeros(len(scores), dtype=np.int64)
        self._previous_s = time_s
        self._streaks = np.where(scores > 1, self._streaks + 1, 0)
        return self._streaks >= self._needed

    def verdict(self, snapshot: Snapshot, score: float, evidence: Sequence[Evidence]) -> Verdict:
        """Return the verdict on an interval.

        Args:
            score: the largest anomaly score of the mesh, 1.0 is the threshold.
            evidence: series that were out of bounds for long enough; the incident ends `CLEAN_S`
                and at least two intervals after the last. Services are ranked by their strongest evidence.
        """
        incident, time_s = self._open, snapshot.time_s
        if evidence:
            self._last_s = time_s
            peak = max(piece.score for piece in evidence)
            if incident is None:
                self._count += 1
                incident = Incident(f"{self._name}-{self._count}", time_s, None, peak, ())
            self._open = msgspec.structs.replace(
                incident, peak_score=max(incident.peak_score, peak), suspects=_suspects(evidence)
            )
            return Verdict(time_s, "anomalous", score, (self._open,))
        if incident is None:
            return Verdict(time_s, "normal", score)
        if time_s - self._last_s < max(CLEAN_S, 1.5 * self._interval_s):  # at least two intervals
            return Verdict(time_s, "anomalous", score, (incident,))
        self._open = None
        ended = msgspec.structs.replace(incident, end_s=self._last_s)
        return Verdict(time_s, "normal", score, (ended,))


def _suspects(evidence: Sequence[Evidence]) -> tuple[Suspect, ...]:
    """Return services by their strongest evidence; a call path if all evidence is of that path."""
    by_service: dict[str, list[Evidence]] = {}
    for piece in sorted(evidence, key=lambda piece: -piece.score):
        by_service.setdefault(piece.service, []).append(piece)
    return tuple(
        Suspect(
            service,
            pieces[0].score,
            pieces[0].caller if len({piece.caller for piece in pieces}) == 1 else None,
            tuple(pieces[:_EVIDENCE]),
        )
        for service, pieces in by_service.items()
    )
