"""Tracks incidents over intervals, from their first sign to their end. Works on slots."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from hopline_mesh.detect.blame import Blame, suspects
from hopline_mesh.detect.clues import Clue, Key, services_of
from hopline_mesh.detect.paths import Paths
from hopline_mesh.incident import Evidence, Incident, Suspect
from hopline_mesh.roster import Roster

#: Maximum number of clues of an incident: the strongest. More would only make the step slow.
_MOST_CLUES = 1024
#: Maximum evidence of one suspect that is reported.
_MOST_EVIDENCE = 8
#: A clue below this share of its threshold has ended.
_OVER = 0.8


class TrackedIncident(msgspec.Struct):
    """One incident while it is tracked.

    Attributes:
        id: its identity.
        start_s: time of its first sign.
        end_s: when it was last out of bounds; None while it is open.
        peak: largest anomaly score so far.
        clues: its evidence by series; each with its largest anomaly score.
        blames: suspects.
        clean: number of intervals since any of its evidence was out of bounds.
        blind: number of intervals since any of its evidence was measured.
        last_s: when it was last out of bounds.
    """

    id: str
    start_s: float
    last_s: float
    peak: float = 0.0
    end_s: float | None = None
    clean: int = 0
    blind: int = 0
    clues: dict[Key, Clue] = {}
    blames: list[Blame] = []

    @property
    def services(self) -> set[int]:
        """Slots of all services with evidence."""
        return services_of(self.clues.values())

    def named(self, roster: Roster) -> Incident:
        """Return the incident as of now, with names instead of slots."""

        def name(slot: int) -> str | None:
            return roster.name(slot) if slot >= 0 else None

        def evidence(clue: Clue) -> Evidence:
            service, caller = roster.name(clue.service), name(clue.caller)
            detail = "" if clue.trouble is None else clue.trouble.detail
            return Evidence(clue.feature, service, caller, clue.expected, clue.seen, clue.score, detail)

        suspects = tuple(
            Suspect(
                roster.name(blame.service),
                blame.score,
                name(blame.caller),
                tuple(evidence(clue) for clue in blame.clues[:_MOST_EVIDENCE]),
            )
            for blame in self.blames
        )
        return Incident(self.id, self.start_s, self.end_s, self.peak, suspects)


class _Index:
    """The open incidents by series and by service, so that no group is compared with each incident.

    Args:
        incidents: the open ones; new ones are appended. Numbers are positions in this list.

    Attributes:
        alive: numbers of those with present evidence.
    """

    def __init__(self, incidents: list[TrackedIncident]) -> None:
        self._incidents = incidents
        self.alive: set[int] = set()
        self._by_series: dict[Key, set[int]] = defaultdict(set)
        self._by_service: dict[int, set[int]] = defaultdict(set)
        for number, each in enumerate(incidents):
            self.add(number, each.clues)

    def add(self, number: int, clues: Mapping[Key, Clue]) -> None:
        """Note evidence of an incident."""
        for key in clues:
            self._by_series[key].add(number)
        for service in services_of(clues.values()):
            self._by_service[service].add(number)

    def find(self, group: Sequence[Clue], firm: Sequence[Clue], paths: Paths) -> int:
        """Return the number of the open incident that these clues belong to; -1 if there is none.

        An incident without present evidence continues only with the same series; evidence of another
        service is another incident. A trouble of a service counts as the same series as its measurements,
        because an OOM kill resets its memory.
        """
        shared: Counter[int] = Counter()
        for key in {clue.key for clue in firm}:
            shared.update(at for at in self._by_series.get(key, ()) if key in self._incidents[at].clues)
        reported = {clue.service for clue in firm if clue.role in ("trouble", "gone")}
        for at in {at for service in reported for at in self._by_service.get(service, ())}:
            clues = self._incidents[at].clues.values()
            shared[at] += any(clue.caller < 0 and clue.service in reported for clue in clues)
        services = services_of(group)
        near = set(services)
        for service in services:
            near.update(paths.callees(service), paths.callers(service))
        shared.update(self.alive & {at for service in near for at in self._by_service.get(service, ())})
        best = max(shared, key=lambda at: (shared[at], -at), default=-1)
        return best if shared[best] else -1


class Tracker:
    """The open incidents."""

    def __init__(self) -> None:
        self.open: list[TrackedIncident] = []

    def update(
        self,
        time_s: float,
        first_s: float,
        groups: Sequence[Sequence[Clue]],
        paths: Paths,
        present: Callable[[Sequence[Key]], Sequence[float | None]],
        patience: int,
        name: Callable[[int], str],
    ) -> list[TrackedIncident]:
        """Update the incidents from one interval.

        Args:
            time_s: of the interval.
            first_s: start of deviations that are firm now; a trouble has its start.
            groups: connected clues; a group begins an incident only with a firm clue and a suspect.
            paths: call paths at the services of all clues and open incidents.
            present: returns the anomaly scores of series in this interval; None if one was not measured.
            patience: number of clean intervals after which an incident ends.
            name: returns the name of a slot. The identity of an incident is made of names and times that
                two watches of one mesh see alike; see `_beginning`.

        Returns: incidents that ended.
        """
        index = _Index(self.open)
        for number, trouble in enumerate(self.open):
            measured = [score for score in present(list(trouble.clues)) if score is not None]
            if any(score >= _OVER for score in measured):
                index.alive.add(number)
                trouble.clean = trouble.blind = 0
                trouble.last_s = time_s
            elif measured:
                trouble.clean += 1
            else:
                trouble.blind += 1
        for group in groups:
            firm = [clue for clue in group if clue.is_firm]
            if not firm:
                continue
            number = index.find(group, firm, paths)
            if number < 0:
                blames = suspects(group, paths)
                if not blames:
                    continue  # nothing is worse than usual; faster responses are not an incident
                began_s, text = _beginning(firm, blames[0], first_s, name)
                number = len(self.open)
                self.open.append(
                    TrackedIncident(hashlib.sha256(text.encode()).hexdigest()[:16], began_s, time_s)
                )
                index.alive.add(number)
            mine = self.open[number]
            clues = {clue.key: clue for clue in group}
            for key, clue in clues.items():
                before = mine.clues.get(key)
                # The largest stays, so that what people read is not the values of the recovery.
                if before is None or _size(clue) >= _size(before):
                    mine.clues[key] = clue
            if len(mine.clues) > _MOST_CLUES:
                strongest = sorted(mine.clues.values(), key=lambda clue: -clue.score)[:_MOST_CLUES]
                mine.clues = {clue.key: clue for clue in strongest}
            index.add(number, clues)
            mine.peak = max(mine.peak, max(clue.score for clue in firm))
            mine.clean, mine.last_s = 0, time_s
            mine.blames = suspects(list(mine.clues.values()), paths)
        return self._end(lambda each: each.clean >= patience or each.blind >= 5 * patience)

    def adopt(self, others: Sequence[TrackedIncident]) -> None:
        """Continue the open incidents of another tracker with the same slots.

        An incident of this tracker with a common service is the same, and gets the other's identity and
        start. One that this tracker does not have is open until its evidence is within bounds here.
        """
        left = list(self.open)
        for other in others:
            mine = max(left, key=lambda each: len(each.services & other.services), default=None)
            if mine is None or not mine.services & other.services:
                self.open.append(other)
                continue
            left.remove(mine)
            mine.id, mine.start_s = other.id, min(mine.start_s, other.start_s)
            mine.peak = max(mine.peak, other.peak)

    def close_all(self) -> list[TrackedIncident]:
        """End all incidents."""
        return self._end(lambda each: True)

    def _end(self, is_over: Callable[[TrackedIncident], bool]) -> list[TrackedIncident]:
        """End incidents, at the time when they were last out of bounds."""
        ended = [each for each in self.open if is_over(each)]
        for each in ended:
            each.end_s = each.last_s
        self.open = [each for each in self.open if each.end_s is None]
        return ended

    def export(self) -> dict[str, Any]:
        """Return the state as a JSON object."""
        incidents = [
            msgspec.structs.asdict(each) | {"clues": list(each.clues.values())} for each in self.open
        ]
        return {"open": msgspec.to_builtins(incidents)}

    @classmethod
    def restore(cls, meta: dict[str, Any]) -> Tracker:
        """Restore the state of `export`.

        Raises:
            ValidationError: the state has another form.
        """
        tracker = cls()
        for item in meta["open"]:
            incident = msgspec.convert(item | {"clues": {}}, TrackedIncident)
            incident.clues = {clue.key: clue for clue in msgspec.convert(item["clues"], list[Clue])}
            tracker.open.append(incident)
        return tracker


def _size(clue: Clue) -> tuple[bool, float, float]:
    """Return how large a deviation is. Scores have a maximum; equal ones are compared by what was seen."""
    away = 0.0 if clue.seen is None or clue.expected is None else abs(clue.seen - clue.expected)
    return clue.is_firm, clue.score, away


def _beginning(
    firm: Sequence[Clue], first: Blame, first_s: float, name: Callable[[int], str]
) -> tuple[float, str]:
    """Return when an incident begins, and the text that its identity is made of.

    The identity of troubles is their service and the creation of the failing pod: of several crashes, each
    watch knows those since it was started. Else it is the first suspect and the start.

    Args:
        firm: the clues that begin it.
        first: suspect.
        first_s: start of measured deviations.
    """
    troubles = [(clue.trouble, name(clue.service)) for clue in firm if clue.trouble is not None]
    starts = [trouble.start_s for trouble, _ in troubles]
    if len(starts) < len(firm):
        starts.append(first_s)
    if troubles:
        at_s, service = min((each.pod_created_s or each.start_s, service) for each, service in troubles)
        return min(starts), f"{service} trouble {at_s:.0f}"
    path = f"{name(first.caller)} " if first.caller >= 0 else ""
    return min(starts), f"{path}{name(first.service)} {first_s:.0f}"
