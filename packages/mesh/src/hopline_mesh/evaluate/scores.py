"""Scores of the verdicts on a recording. They are not point-adjusted: only the start of an incident counts.

An *episode* is one incident, at the time of the first verdict that names it, because no alert was sent
before. An event is detected if an episode begins between its start and its end plus a grace. An episode can
detect only one event, and is false if it begins outside every event's window. An episode that was open when
an event began does not detect it.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec

from hopline_mesh.evaluate.recording import Event
from hopline_mesh.incident import Incident, Verdict

#: Metrics have a delay, and a rule with a duration of two minutes fires two minutes late.
GRACE_S = 120.0


class Episode(msgspec.Struct, frozen=True):
    """One incident as it was reported.

    Attributes:
        id: of the incident.
        start_s: time of the first verdict that named it.
        end_s: time of the last one.
        first: as it was first reported.
        last: as it was last reported.
    """

    id: str
    start_s: float
    end_s: float
    first: Incident
    last: Incident


class Outcome(msgspec.Struct, frozen=True):
    """The result for one event.

    Attributes:
        event: the labelled event.
        episode: the one that detected it; None if it was missed.
        minutes: from its start to the first report.
        rank: rank of its root cause among the suspects as first reported, from 1; None if it is missing.
        rank_at_end: rank among the suspects as last reported.
    """

    event: Event
    episode: Episode | None = None
    minutes: float | None = None
    rank: int | None = None
    rank_at_end: int | None = None


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Number of events that a detector detected, the delays, and the suspects.

    Attributes:
        events: number of events.
        found: number of detected events.
        minutes_to_detect: median over detected events, from an event's start to the first report.
        root_cause_top1: share of detected events with the root cause as first suspect when first reported.
        root_cause_top3: as `root_cause_top1`, among the first three.
    """

    events: int
    found: int
    minutes_to_detect: float | None
    root_cause_top1: float | None
    root_cause_top3: float | None


class KindScores(Counts, frozen=True, kw_only=True):
    """Scores of the events of one kind; see `Counts`."""

    kind: str


class Scores(Counts, frozen=True, kw_only=True):
    """The scores of a detector on a recording; see also `Counts`.

    Attributes:
        under_way: number of events during which an incident was open, whenever it began. It is nearly all
            for a detector whose alarm is on most of the time; it is reported only for comparison.
        false_episodes: number of episodes that began outside every event's window.
        false_per_hour: false episodes per hour of the test.
        hours: of the test: snapshots times interval.
        root_cause_top1_at_end: as `root_cause_top1`, when last reported.
        by_kind: scores of each kind of event.
        outcomes: of each event.
        false: the false episodes.
    """

    under_way: int
    false_episodes: int
    false_per_hour: float | None
    hours: float
    root_cause_top1_at_end: float | None
    by_kind: tuple[KindScores, ...]
    outcomes: tuple[Outcome, ...]
    false: tuple[Episode, ...]


def score(
    verdicts: Sequence[Verdict], events: Sequence[Event], *, interval_s: float, grace_s: float = GRACE_S
) -> Scores:
    """Compare verdicts with labelled events.

    Args:
        verdicts: on all snapshots of the test, oldest first.
        events: those that began in the time of the test (`Recording.test_events`).
        interval_s: seconds of one snapshot.
        grace_s: how long after an event's end an episode may begin and still detect it.
    """
    found: dict[int, Episode] = {}
    false = []
    ordered = sorted(events, key=lambda event: event.start_s)
    seen = episodes(verdicts)
    for episode in seen:
        inside = [
            number
            for number, event in enumerate(ordered)
            if event.start_s <= episode.start_s <= event.end_s + grace_s
        ]
        if not inside:
            false.append(episode)
            continue
        free = [number for number in inside if number not in found]
        if free:
            found[free[0]] = episode
    outcomes = [_outcome(event, found.get(number)) for number, event in enumerate(ordered)]
    by_kind: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_kind.setdefault(outcome.event.kind, []).append(outcome)
    hours = len(verdicts) * interval_s / 3600
    return Scores(
        **_counts(outcomes),
        under_way=sum(
            any(
                episode.start_s <= event.end_s + grace_s and episode.end_s >= event.start_s
                for episode in seen
            )
            for event in ordered
        ),
        false_episodes=len(false),
        false_per_hour=len(false) / hours if hours else None,
        hours=hours,
        root_cause_top1_at_end=_share([each.rank_at_end == 1 for each in outcomes if each.episode]),
        by_kind=tuple(KindScores(kind=kind, **_counts(some)) for kind, some in sorted(by_kind.items())),
        outcomes=tuple(outcomes),
        false=tuple(false),
    )


def episodes(verdicts: Sequence[Verdict]) -> list[Episode]:
    """Return incidents in the order of their first report; within a verdict, in its order."""
    seen: dict[str, Episode] = {}
    for verdict in verdicts:
        for incident in verdict.incidents:
            before = seen.get(incident.id)
            if before is None:
                seen[incident.id] = Episode(incident.id, verdict.time_s, verdict.time_s, incident, incident)
            else:
                seen[incident.id] = msgspec.structs.replace(before, end_s=verdict.time_s, last=incident)
    return list(seen.values())


def rank(event: Event, incident: Incident) -> int | None:
    """Return the rank of the event's root cause among the suspects, from 1; None if it is missing.

    For a fault of a service, the suspect must be that service, or calls into it. For a fault of a call
    path, it must be the end that is the root cause, or the call path itself. The other end alone, or
    another call path of either end, is not enough.
    """
    for place, suspect in enumerate(incident.suspects, start=1):
        path = None if suspect.caller is None else (suspect.caller, suspect.service)
        of_service = suspect.service == event.service and (path is None or event.path is None)
        if of_service or (path is not None and path == event.path):
            return place
    return None


def _outcome(event: Event, episode: Episode | None) -> Outcome:
    if episode is None:
        return Outcome(event)
    minutes = (episode.start_s - event.start_s) / 60
    return Outcome(event, episode, minutes, rank(event, episode.first), rank(event, episode.last))


def _counts(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the values of `Counts`."""
    minutes = [outcome.minutes for outcome in outcomes if outcome.minutes is not None]
    ranks = [outcome.rank for outcome in outcomes if outcome.episode is not None]
    return {
        "events": len(outcomes),
        "found": len(ranks),
        "minutes_to_detect": median(minutes) if minutes else None,
        "root_cause_top1": _share([rank == 1 for rank in ranks]),
        "root_cause_top3": _share([rank in (1, 2, 3) for rank in ranks]),
    }


def _share(answers: Sequence[bool]) -> float | None:
    return sum(answers) / len(answers) if answers else None
