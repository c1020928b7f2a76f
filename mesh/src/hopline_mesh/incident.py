"""What the watch says: a verdict for each interval, and incidents over several.

Plain values that travel as JSON (page, gRPC, Alertmanager). Knows no model.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from hopline_mesh.snapshot import Gap


class Evidence(msgspec.Struct, frozen=True):
    """One number that was not what was expected.

    Attributes:
        feature: column of the schema, or the kind of a trouble that Kubernetes reports.
        service: the service that it was measured of; of an edge, the callee.
        caller: the caller, where it was measured of an edge; else None.
        expected: what the model expected, in the column's unit; None where nothing was expected.
        seen: what was measured; None for a call path or service that is gone.
        score: how far from it, in units of the usual error (1.0 = the threshold of this column).
    """

    feature: str
    service: str
    caller: str | None
    expected: float | None
    seen: float | None
    score: float


class Suspect(msgspec.Struct, frozen=True):
    """A service that an incident may come from.

    Attributes:
        service: its name.
        score: how much speaks for it; suspects are ordered by it.
        caller: where one call path is to blame rather than the service, the caller; else None.
        evidence: strongest first.
    """

    service: str
    score: float
    caller: str | None
    evidence: tuple[Evidence, ...]


class Incident(msgspec.Struct, frozen=True):
    """One thing that went wrong, from its first sign to its end.

    Attributes:
        id: stays the same for the incident's whole life, and across restarts.
        start_s: time of the first interval that was out of bounds, Unix seconds.
        end_s: time of the last one, once it is over; None while it goes on.
        peak_score: the largest score so far; 1.0 is the threshold.
        suspects: most suspect first.
    """

    id: str
    start_s: float
    end_s: float | None
    peak_score: float
    suspects: tuple[Suspect, ...]


class ServiceScore(msgspec.Struct, frozen=True):
    """Score of one service in one interval; 1.0 is the threshold."""

    service: str
    score: float


class Verdict(msgspec.Struct, frozen=True):
    """What the watch thinks of one interval.

    Attributes:
        time_s: of the snapshot.
        state: "learning" before the first verdict (too few snapshots), "blind" where too much was not
            measured to say anything, else "normal" or "anomalous".
        score: largest score of the mesh; 1.0 is the threshold.
        incidents: those that go on, and those that ended in this interval.
        suppressed: services whose scores do not count at present, for a planned change.
        gaps: what was not measured.
    """

    time_s: float
    state: Literal["learning", "blind", "normal", "anomalous"]
    score: float
    incidents: tuple[Incident, ...] = ()
    suppressed: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()
