"""Root causes by their rules, each a definition of its own: oracle of `blame.suspects`.

It has no code and no number of `blame`. Nothing in it depends on the order of the evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from hopline_mesh.detect.clues import Clue

OWN = ("resource", "memory", "trouble", "gone", "calls")
Edge = tuple[int, int]


def weight(clue: Clue) -> float:
    """The logarithm of the score; half of it for what has not lasted."""
    return math.log(1 + max(clue.score, 0.0), 2) / (1 if clue.is_firm else 2)


def is_server_side(clue: Clue) -> bool:
    return clue.caller < 0 or clue.feature.startswith("server")


def strongest(
    clues: Sequence[Clue],
    counts: Callable[[Clue], bool],
    factor: Callable[[Clue], float] = lambda clue: 1.0,
) -> float:
    return max((weight(clue) * factor(clue) for clue in clues if counts(clue)), default=0.0)


class Rules:
    """What the evidence of one incident says of each service and call path."""

    def __init__(self, clues: Sequence[Clue], calls: Sequence[Edge]) -> None:
        self.clues, self.calls = clues, [(a, b) for a, b in calls if a != b]
        ends = (
            {each.service for each in clues}
            | {each.caller for each in clues}
            | {x for e in calls for x in e}
        )
        self.services = sorted(ends - {-1})
        self.edges = sorted({(each.caller, each.service) for each in clues if each.caller >= 0})

    # What is seen

    def uses_more(self, at: int) -> float:
        """Use of resources, and what is reported, of the service itself; more traffic counts less."""
        mine = [each for each in self.clues if each.service == at and each.caller < 0]
        reported = strongest(mine, lambda each: each.role in ("trouble", "gone"), lambda each: 1.5)
        traffic = strongest(mine, lambda each: each.role == "traffic" and each.is_up, lambda each: 0.8)
        return max(strongest(mine, lambda each: each.role in OWN), reported, traffic)

    def answers_badly(self, at: int, roles: tuple[str, ...] = ("latency", "errors")) -> float:
        """Latency and errors that the server itself shows."""
        return strongest(
            self.clues,
            lambda each: each.service == at and each.is_up and each.role in roles and is_server_side(each),
        )

    def waits(self, edge: Edge) -> float:
        """Latency and errors of calls, as the caller sees them."""
        return strongest(
            self.clues,
            lambda each: (
                (each.caller, each.service) == edge
                and each.is_up
                and each.role in ("latency", "errors", "outgoing")
                and not is_server_side(each)
            ),
        )

    def lacks(self, at: int) -> float:
        """Requests that are missing; missing traffic counts less."""
        return strongest(
            self.clues,
            lambda each: each.service == at and not each.is_up and each.role in ("load", "traffic"),
            lambda each: 1.0 if each.role == "load" else 0.8,
        )

    def has_more(self, at: int) -> float:
        """Requests that are too many, at the service."""
        return strongest(
            self.clues,
            lambda each: each.service == at and each.caller < 0 and each.is_up and each.role == "load",
        )

    def floods(self, edge: Edge) -> float:
        """Calls that are too many, where that has lasted."""
        return strongest(
            self.clues,
            lambda each: (
                (each.caller, each.service) == edge
                and each.is_firm
                and (each.role == "calls" or (each.role == "load" and each.is_up))
            ),
        )

    # What follows

    def is_between(self, edge: Edge) -> bool:
        """Whether the caller sees what the callee does not, so that the call path has it."""
        waits = self.waits(edge)
        return waits > 0 and 2 * max(self.answers_badly(edge[1]), self.uses_more(edge[1])) < waits

    def is_slow(self, at: int) -> float:
        """Latency and errors of the service, also as its callers see them."""
        seen = [self.waits(edge) for edge in self.edges if edge[1] == at and not self.is_between(edge)]
        return max([self.answers_badly(at), *seen])

    def suspected_senders(self, at: int) -> list[int]:
        """Callers that may have sent less: those in trouble, or else all that do not get less."""
        above = self.missing_senders(at) or {a for a, b in self.calls if b == at}
        free = [each for each in above if 2 * self.lacks(each) < self.lacks(at)]
        return [each for each in free if self.is_slow(each) or self.uses_more(each)] or free

    def stops(self, at: int) -> float:
        """How much a service sends less than it should: the largest part, and a tenth of all."""
        parts = []
        for below in self.services:
            senders = self.suspected_senders(below) if self.lacks(below) else []
            if at in senders:
                parts.append(self.lacks(below) / math.sqrt(len(senders)))
        return max(parts) + sum(parts) / 10 if parts else 0.0

    def flooder(self, at: int) -> int | None:
        """The caller that sends a service too much, if the service itself does not fail."""
        fits = [
            (-self.floods(edge), edge[0])
            for edge in self.edges
            if edge[1] == at != edge[0]
            and self.floods(edge) > self.answers_badly(at, ("errors",))
            and not self.is_between(edge)
        ]
        return min(fits)[1] if fits else None

    def own(self, at: int) -> float:
        """What belongs to the service itself."""
        sent = [
            self.floods(edge)
            for edge in self.edges
            if edge[0] == at
            and self.floods(edge) > self.answers_badly(edge[1], ("errors",))
            and not self.is_between(edge)
        ]
        rest = self.uses_more(at) * (1.0 if self.flooder(at) is None else 0.3)
        return max([rest, *sent])

    def symptom(self, at: int) -> float:
        """What may be an effect of others."""
        total = self.is_slow(at) + 0.6 * self.stops(at)
        has_callers = bool(self.missing_senders(at)) or any(b == at for _, b in self.calls)
        total += self.lacks(at) * (0.1 if has_callers else 0.5)
        from_above = any(b == at and 2 * self.has_more(a) > self.has_more(at) for a, b in self.calls)
        total += self.has_more(at) * (0.1 if from_above else 0.4)
        return total + (0.0 if self.flooder(at) is None else 0.7 * self.uses_more(at))

    def missing_senders(self, at: int) -> set[int]:
        """Callers whose calls of a service are missing."""
        return {
            each.caller
            for each in self.clues
            if each.service == at
            and each.caller >= 0
            and not each.is_up
            and each.role in ("load", "traffic")
        }

    def share_and_targets(self, at: int) -> tuple[float, list[int]]:
        """The share of a symptom that goes on, and the services that get it in equal parts."""
        flooder = self.flooder(at)
        if flooder is not None:
            return 0.85, [flooder]
        reason = {
            below: max(self.is_slow(below), self.own(below), self.stops(below), self.waits((at, below)))
            for above, below in self.calls
            if above == at and self.flooder(below) != at
        }
        most = max(reason.values(), default=0.0)
        if most <= 0 or not self._has_symptom(at):
            return 0.0, []
        shown = max(self.is_slow(at), self.stops(at), 0.1)
        grown = min(max((most / shown - 0.25) / 0.35, 0.0), 1.0)
        return 0.85 * grown, [below for below, each in reason.items() if each >= 0.7 * most]

    def _has_symptom(self, at: int) -> bool:
        return bool(
            self.is_slow(at)
            or self.stops(at)
            or self.lacks(at)
            or self.has_more(at)
            or self.flooder(at) is not None
        )


def scores(clues: Sequence[Clue], calls: Sequence[Edge]) -> dict[tuple[int, int], float]:
    """Return service and caller (-1 for a service itself) -> score, of everything that is suspected."""
    rules = Rules(clues, calls)
    place = {at: number for number, at in enumerate(rules.services)}
    move = np.eye(len(place))
    for at in rules.services:
        share, targets = rules.share_and_targets(at)
        move[place[at], place[at]] -= share
        for target in targets:
            move[place[target], place[at]] += 0.6 * share / len(targets)
    mass = np.linalg.matrix_power(move, 4) @ np.array([rules.symptom(at) for at in rules.services])
    total = {at: rules.own(at) + float(mass[place[at]]) for at in rules.services}
    between = [edge for edge in rules.edges if rules.is_between(edge)]
    alone = []
    for caller, callee in between:
        to_callee = sum(b == callee for _, b in between)
        of_caller = sum(a == caller for a, _ in between)
        if to_callee > 1:
            total[callee] += rules.waits((caller, callee))
        elif of_caller > 2 and of_caller > 0.6 * sum(a == caller for a, _ in rules.calls):
            total[caller] += rules.waits((caller, callee)) / 2
        else:
            alone.append((caller, callee))
    found = {(at, -1): score for at, score in total.items() if score > 0}
    for caller, callee in alone:
        score = rules.waits((caller, callee)) + total[callee] / 2
        if found.get((callee, -1), 0.0) <= score:
            found.pop((callee, -1), None)
        found[callee, caller] = score
    return found
