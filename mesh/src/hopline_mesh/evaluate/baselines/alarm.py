"""One incident at a time for the whole mesh, from evidence of each interval.

A rule that fires for a service and also for its callers gives one incident, as teams group alerts into one
page. Separate incidents would only make a simple detector look worse. Times to begin and to end are those
of the watch's detector, for the same reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from hopline_mesh.incident import Evidence, Incident, Suspect, Verdict
from hopline_mesh.snapshot import Snapshot

#: Seconds that a deviation must last, and seconds without one after which an incident ends.
MIN_DURATION_S, CLEAN_S = 80.0, 90.0
#: Maximum evidence of each suspect.
_EVIDENCE = 5


def intervals_of(seconds: float, interval_s: float) -> int:
    """Return the number of intervals of a duration, at least two, as the watch counts them."""
    return max(2, math.ceil(seconds / interval_s)) if interval_s > 0 else 2


class Alarm:
    """Creates incidents and verdicts from evidence.

    Args:
        name: of the detector; ids of incidents begin with it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0
        self._open: Incident | None = None
        self._last_s = 0.0

    def verdict(self, snapshot: Snapshot, score: float, evidence: Sequence[Evidence]) -> Verdict:
        """Return the verdict on an interval.

        Args:
            score: the largest anomaly score of the mesh, 1.0 is the threshold.
            evidence: series that were out of bounds for long enough; the incident ends `CLEAN_S` after the
                last. Services are ranked by their strongest evidence.
        """
        incident, time_s = self._open, snapshot.time_s
        if evidence:
            self._last_s = time_s
            strongest = max(piece.score for piece in evidence)
            if incident is None:
                self._count += 1
                identity, start_s, peak = f"{self._name}-{self._count}", time_s, strongest
            else:
                identity, start_s = incident.id, incident.start_s
                peak = max(incident.peak_score, strongest)
            self._open = Incident(identity, start_s, None, peak, _suspects(evidence))
            return Verdict(time_s, "anomalous", score, (self._open,))
        if incident is None:
            return Verdict(time_s, "normal", score)
        if time_s - self._last_s < CLEAN_S:
            return Verdict(time_s, "anomalous", score, (incident,))
        self._open = None
        ended = msgspec.structs.replace(incident, end_s=self._last_s)
        return Verdict(time_s, "normal", score, (ended,))


def _suspects(evidence: Sequence[Evidence]) -> tuple[Suspect, ...]:
    by_service: dict[str, list[Evidence]] = {}
    for piece in sorted(evidence, key=lambda piece: -piece.score):
        by_service.setdefault(piece.service, []).append(piece)
    return tuple(
        Suspect(service, pieces[0].score, pieces[0].caller, tuple(pieces[:_EVIDENCE]))
        for service, pieces in by_service.items()
    )
