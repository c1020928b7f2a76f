"""Scores of the verdicts on a recording. They are not point-adjusted: only the start of an incident counts.

An *episode* is one incident, at the time of the first verdict that names it, because no alert was sent
before. An event is detected if an episode begins between its start and its end plus a grace. An episode can
detect only one event, and is false if it begins outside every event's window. An episode that was open when
an event began does not detect it.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

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


class KindScores(msgspec.Struct, frozen=True):
    """Scores of the events of one kind; see `Scores`."""

    kind: str
    events: int
    found: int
    root_cause_top1: float | None
    root_cause_top3: float | None
    minutes_to_detect: float | None


class Scores(msgspec.Struct, frozen=True):
    """The scores of a detector on a recording.

    Attributes:
        events: number of events.
        found: number of detected events.
        false_episodes: number of episodes that began outside every event's window.
        under_way: number of events during which an incident was open, whenever it began. It is nearly all
            for a detector whose alarm is on most of the time; it is reported only for comparison.
        false_per_hour: false episodes per hour of the test.
        hours: of the test: snapshots times interval.
        minutes_to_detect: median over detected events, from an event's start to the first report.
        root_cause_top1: share of detected events with the root cause as first suspect when first reported.
        root_cause_top3: as `root_cause_top1`, among the first three.
        root_cause_top1_at_end: as `root_cause_top1`, when last reported.
        by_kind: scores of each kind of event.
        outcomes: of each event.
        false: the false episodes.
    """

    events: int
    found: int
    under_way: int
    false_episodes: int
    false_per_hour: float | None
    hours: float
    minutes_to_detect: float | None
    root_cause_top1: float | None
    root_cause_top3: float | None
    root_cause_top1_at_end: float | None
    by_kind: tuple[KindScores, ...]
    outcomes: tuple[Outcome, ...]
    false: tuple[Episode, ...]

    def figures(self) -> dict[str, int | float | None]:
        """Return only the numbers, rounded, for benchmarks and `--json`."""
        return {
            "found": self.found,
            "events": self.events,
            "under_way": self.under_way,
            "false_episodes": self.false_episodes,
            "false_per_hour": _rounded(self.false_per_hour),
            "hours": _rounded(self.hours),
            "minutes_to_detect": _rounded(self.minutes_to_detect),
            "root_cause_top1": _rounded(self.root_cause_top1),
            "root_cause_top3": _rounded(self.root_cause_top3),
            "root_cause_top1_at_end": _rounded(self.root_cause_top1_at_end),
        }


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
    outcomes = tuple(_outcome(event, found.get(number)) for number, event in enumerate(ordered))
    kinds = sorted({event.kind for event in ordered})
    hours = len(verdicts) * interval_s / 3600
    total = _of_kind("", outcomes)
    return Scores(
        events=len(ordered),
        found=total.found,
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
        minutes_to_detect=total.minutes_to_detect,
        root_cause_top1=total.root_cause_top1,
        root_cause_top3=total.root_cause_top3,
        root_cause_top1_at_end=_share(
            [outcome.rank_at_end == 1 for outcome in outcomes if outcome.episode is not None]
        ),
        by_kind=tuple(
            _of_kind(kind, [outcome for outcome in outcomes if outcome.event.kind == kind])
            for kind in kinds
        ),
        outcomes=outcomes,
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

    For a fault of a service, the suspect must be that service. For a fault of a call path, it must be the
    end that is the root cause, or the call path itself; the other end alone is not enough.
    """
    for place, suspect in enumerate(incident.suspects, start=1):
        path = None if suspect.caller is None else (suspect.caller, suspect.service)
        if suspect.service == event.service or (path is not None and path == event.path):
            return place
    return None


def _outcome(event: Event, episode: Episode | None) -> Outcome:
    if episode is None:
        return Outcome(event)
    return Outcome(
        event,
        episode,
        (episode.start_s - event.start_s) / 60,
        rank(event, episode.first),
        rank(event, episode.last),
    )


def _of_kind(kind: str, outcomes: Sequence[Outcome]) -> KindScores:
    found = [outcome for outcome in outcomes if outcome.episode is not None]
    minutes = [outcome.minutes for outcome in found if outcome.minutes is not None]
    return KindScores(
        kind=kind,
        events=len(outcomes),
        found=len(found),
        root_cause_top1=_share([outcome.rank == 1 for outcome in found]),
        root_cause_top3=_share([outcome.rank is not None and outcome.rank <= 3 for outcome in found]),
        minutes_to_detect=median(minutes) if minutes else None,
    )


def _share(answers: Sequence[bool]) -> float | None:
    return sum(answers) / len(answers) if answers else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
