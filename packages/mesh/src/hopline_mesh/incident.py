"""The results of the watch: a verdict for each interval, and incidents over several.

Plain values for JSON, gRPC and Alertmanager. Knows no model.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from hopline_mesh.snapshot import Gap


class Evidence(msgspec.Struct, frozen=True):
    """One measurement that differs from its expected value.

    Attributes:
        feature: column of the schema, or the kind of a trouble that Kubernetes reports.
        service: the measured service; for an edge, the callee.
        caller: for an edge, the caller; else None.
        expected: the expected value, in the column's unit; None if there is none.
        seen: the measured value; None for a call path or service that is gone.
        score: anomaly score (1.0 = the threshold of this column).
        detail: of a trouble, for people, such as "pod cart-1, container app restarted 6 times"; else "".
    """

    feature: str
    service: str
    caller: str | None
    expected: float | None
    seen: float | None
    score: float
    detail: str = ""


class Suspect(msgspec.Struct, frozen=True):
    """A service or call path that may be the root cause of an incident.

    Attributes:
        service: its name; for a call path, the callee.
        score: strength of its evidence; suspects are ordered by it.
        caller: for a call path, the caller; else None.
        evidence: strongest first.
    """

    service: str
    score: float
    caller: str | None
    evidence: tuple[Evidence, ...]


class Incident(msgspec.Struct, frozen=True):
    """One thing that went wrong, from its first sign to its end.

    Attributes:
        id: never changes, also across restarts.
        start_s: time of the first interval that was out of bounds, Unix seconds.
        end_s: time of the last interval that was out of bounds; None while the incident is open.
        peak_score: the largest anomaly score so far; 1.0 is the threshold.
        suspects: most likely first.
    """

    id: str
    start_s: float
    end_s: float | None
    peak_score: float
    suspects: tuple[Suspect, ...]


class Verdict(msgspec.Struct, frozen=True):
    """The result for one interval.

    Attributes:
        time_s: of the snapshot.
        state: "blind" without measurements, or with too few for a verdict; "learning" before the first
            verdict (too few snapshots); else "normal" or "anomalous".
        score: largest anomaly score of the mesh; 1.0 is the threshold.
        incidents: open ones, and those that ended in this interval.
        suppressed: services whose anomaly scores are ignored at present, because of a planned change.
        gaps: missing measurements.
    """

    time_s: float
    state: Literal["learning", "blind", "normal", "anomalous"]
    score: float
    incidents: tuple[Incident, ...] = ()
    suppressed: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()
