"""One incident at a time for the whole mesh, from evidence of each interval.

A rule that fires for a service and also for its callers gives one incident, as teams group alerts into one
page. Separate incidents would only make a simple detector look worse.
"""

from __future__ import annotations

from collections.abc import Sequence

from hopline_mesh.incident import Evidence, Incident, Suspect, Verdict
from hopline_mesh.snapshot import Snapshot

#: Maximum evidence of each suspect.
_EVIDENCE = 5


class Alarm:
    """Creates incidents and verdicts from evidence.

    Args:
        name: of the detector; ids of incidents begin with it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0
        self._open: Incident | None = None

    def verdict(self, snapshot: Snapshot, score: float, evidence: Sequence[Evidence]) -> Verdict:
        """Return the verdict on an interval.

        Args:
            score: the largest anomaly score of the mesh, 1.0 is the threshold.
            evidence: series that were out of bounds for long enough; the incident stays open while there is
                any. Services are ranked by their strongest evidence.
        """
        incident = self._open
        if evidence:
            strongest = max(piece.score for piece in evidence)
            if incident is None:
                self._count += 1
                identity, start_s, peak = f"{self._name}-{self._count}", snapshot.time_s, strongest
            else:
                identity, start_s = incident.id, incident.start_s
                peak = max(incident.peak_score, strongest)
            self._open = Incident(identity, start_s, None, peak, _suspects(evidence))
            return Verdict(snapshot.time_s, "anomalous", score, (self._open,))
        self._open = None
        if incident is None:
            return Verdict(snapshot.time_s, "normal", score)
        ended = Incident(
            incident.id, incident.start_s, snapshot.time_s, incident.peak_score, incident.suspects
        )
        return Verdict(snapshot.time_s, "normal", score, (ended,))


def _suspects(evidence: Sequence[Evidence]) -> tuple[Suspect, ...]:
    by_service: dict[str, list[Evidence]] = {}
    for piece in sorted(evidence, key=lambda piece: -piece.score):
        by_service.setdefault(piece.service, []).append(piece)
    return tuple(
        Suspect(service, pieces[0].score, pieces[0].caller, tuple(pieces[:_EVIDENCE]))
        for service, pieces in by_service.items()
    )
