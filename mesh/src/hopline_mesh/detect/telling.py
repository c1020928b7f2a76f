"""Converts a tracked incident to one with names instead of slots."""

from __future__ import annotations

from hopline_mesh.detect.clues import Clue
from hopline_mesh.detect.tracker import TrackedIncident
from hopline_mesh.incident import Evidence, Incident, Suspect
from hopline_mesh.roster import Roster

#: Maximum evidence of one suspect.
_MAX_EVIDENCE = 8


def named(tracked: TrackedIncident, roster: Roster) -> Incident:
    """Return the incident as of now."""
    name = roster.name

    def evidence(clue: Clue) -> Evidence:
        return Evidence(
            clue.feature,
            name(clue.service),
            name(clue.caller) if clue.caller >= 0 else None,
            clue.expected,
            clue.seen,
            clue.score,
        )

    return Incident(
        tracked.id,
        tracked.start_s,
        tracked.end_s,
        tracked.peak,
        tuple(
            Suspect(
                name(blame.service),
                blame.score,
                name(blame.caller) if blame.caller >= 0 else None,
                tuple(evidence(clue) for clue in blame.clues[:_MAX_EVIDENCE]),
            )
            for blame in tracked.blames
        ),
    )
