"""An incident as others are told of it: with names instead of slots."""

from __future__ import annotations

from hopline_mesh.incident import Evidence, Incident, Suspect
from hopline_mesh.roster import Roster
from hopline_mesh.tagae.clues import Clue
from hopline_mesh.tagae.tracker import TrackedIncident

#: Of one suspect.
_MOST_EVIDENCE = 8


def told(trouble: TrackedIncident, roster: Roster) -> Incident:
    """The incident as it is now."""
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
        trouble.id,
        trouble.start_s,
        trouble.end_s,
        trouble.peak,
        tuple(
            Suspect(
                name(blame.service),
                blame.score,
                name(blame.caller) if blame.caller >= 0 else None,
                tuple(evidence(clue) for clue in blame.clues[:_MOST_EVIDENCE]),
            )
            for blame in trouble.blames
        ),
    )
