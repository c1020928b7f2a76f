"""Root causes: ranked suspects, from the evidence of one incident.

Effects spread in known directions. A service that waits for a slow or failing callee is slow or failing
itself, so latency and errors go from callee to caller. A slow or failing service sends fewer calls, so
missing load, and additional load, go from caller to callee. Resource use (CPU, memory) belongs to the
service itself. Latency that the caller sees and the callee does not belongs to the call path.

So the weight of each clue stays at its service if no possible source has equally strong clues; else it is
passed on to the sources.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hopline_mesh.tagae.clues import Clue

#: Maximum share of a service's weight that is passed on to its callees, the share of it that arrives, and
#: the number of rounds.
_PASSED, _KEPT, _ROUNDS = 0.85, 0.6, 4

#: Roles that do not depend on neighbours.
_OWN = ("resource", "memory", "trouble", "gone")


@dataclass(slots=True)
class Blame:
    """One suspect.

    Attributes:
        service: slot.
        caller: for a call path, slot of the caller; else -1.
        score: strength of its evidence.
        clues: its evidence, strongest first.
    """

    service: int
    caller: int
    score: float
    clues: list[Clue]


def _weight(score: float) -> float:
    """Return the weight of a score; logarithmic, because scores span decades."""
    return math.log2(1.0 + max(score, 0.0))


def suspects(clues: Sequence[Clue], calls: Sequence[tuple[int, int]], most: int = 5) -> list[Blame]:
    """Return suspected services and call paths, most likely first.

    Args:
        clues: of one incident.
        calls: all call paths at the services of the clues, caller and callee.
    """
    own: dict[int, float] = defaultdict(float)  # resource use
    slow: dict[int, float] = defaultdict(float)  # latency and errors at the server
    wait: dict[tuple[int, int], float] = defaultdict(float)  # latency and errors at the caller
    less: dict[int, float] = defaultdict(float)  # missing load
    senders: dict[int, set[int]] = defaultdict(set)  # callers whose calls are missing, if known
    more: dict[int, float] = defaultdict(float)  # additional load
    failing: dict[int, float] = defaultdict(float)  # errors at the server
    floods: dict[tuple[int, int], float] = defaultdict(float)  # a caller sends more calls per request
    for clue in clues:
        weight = _weight(clue.score) * (1.0 if clue.is_firm else 0.5)
        at, edge = clue.service, (clue.caller, clue.service)
        if clue.role in _OWN:
            if clue.caller < 0:
                own[at] = max(own[at], weight * (1.5 if clue.role in ("trouble", "gone") else 1.0))
        elif clue.role == "calls" or (clue.role == "load" and clue.caller >= 0 and clue.is_up):
            if clue.is_firm:
                floods[edge] = max(floods[edge], weight)
        elif clue.role in ("load", "traffic"):
            side = less if not clue.is_up else more if clue.role == "load" else own
            if clue.caller < 0 or side is not own:
                side[at] = max(side[at], weight * (1.0 if clue.role == "load" else 0.8))
                if side is less and clue.caller >= 0:
                    senders[at].add(clue.caller)
        elif not clue.is_up:
            continue
        elif clue.caller >= 0 and not clue.feature.startswith("server"):
            wait[edge] = max(wait[edge], weight)
        elif clue.role == "outgoing":
            continue  # the call paths show the same with the callee's name
        else:
            slow[at] = max(slow[at], weight)
            if clue.role == "errors":
                failing[at] = max(failing[at], weight)
    callees: dict[int, list[int]] = {}
    callers: dict[int, list[int]] = {}
    for caller, callee in calls:
        if caller != callee:
            callees.setdefault(caller, []).append(callee)
            callers.setdefault(callee, []).append(caller)

    # Latency that only the caller sees belongs to the call path.
    between = {}
    for edge, weight in wait.items():
        at = edge[1]
        if max(slow.get(at, 0.0), own.get(at, 0.0)) < 0.5 * weight:
            between[edge] = weight
        else:
            slow[at] = max(slow.get(at, 0.0), weight)

    symptom: dict[int, float] = dict(slow)
    stops: dict[int, float] = {}  # sends fewer calls than it should
    for at, weight in less.items():
        above = sorted(senders[at]) or callers.get(at, [])
        sends_less = [caller for caller in above if less.get(caller, 0.0) < 0.5 * weight]
        in_trouble = [caller for caller in sends_less if caller in slow or caller in own]
        for caller in in_trouble or sends_less:
            part = weight / len(in_trouble or sends_less) ** 0.5
            stops[caller] = max(stops.get(caller, 0.0), part) + 0.1 * part
        symptom[at] = symptom.get(at, 0.0) + (0.1 if above else 0.5) * weight
    for at, weight in stops.items():
        symptom[at] = symptom.get(at, 0.0) + 0.6 * weight
    for at, weight in more.items():
        above = [caller for caller in callers.get(at, []) if more.get(caller, 0.0) > 0.5 * weight]
        symptom[at] = symptom.get(at, 0.0) + (0.1 if above else 0.4) * weight

    flooded: dict[int, int] = {}
    for (caller, callee), weight in floods.items():
        # A callee that fails or is unreachable is called repeatedly, and is itself the root cause.
        if failing.get(callee, 0.0) < weight and (caller, callee) not in between:
            own[caller] = max(own.get(caller, 0.0), weight)
            flooded[callee] = caller
            symptom[callee] = symptom.get(callee, 0.0) + 0.7 * own.get(callee, 0.0)
            own[callee] *= 0.3

    # Pass the weight of a service on to its callees that have evidence themselves.
    onward: dict[int, tuple[float, list[int]]] = {}
    for at in symptom:
        reasons = {
            callee: max(
                slow.get(callee, 0.0),
                own.get(callee, 0.0),
                stops.get(callee, 0.0),
                wait.get((at, callee), 0.0),
            )
            for callee in callees.get(at, [])
            if flooded.get(callee) != at
        }
        strongest = max(reasons.values(), default=0.0)
        if strongest > 0:
            shown = max(slow.get(at, 0.0), stops.get(at, 0.0), 0.1)
            share = _PASSED * min(max((strongest / shown - 0.25) / 0.35, 0.0), 1.0)
            onward[at] = share, [to for to, reason in reasons.items() if reason >= 0.7 * strongest]
    onward |= {callee: (_PASSED, [caller]) for callee, caller in flooded.items()}
    for _ in range(_ROUNDS):
        moved = dict(symptom)
        for at, (share, reasons_at) in onward.items():
            if mass := symptom.get(at, 0.0):
                moved[at] -= share * mass
                for to in reasons_at:
                    moved[to] = moved.get(to, 0.0) + _KEPT * share * mass / len(reasons_at)
        symptom = moved
    score: dict[int, float] = defaultdict(float)
    for part in (own, symptom):
        for at, weight in part.items():
            score[at] += weight

    paths: dict[tuple[int, int], float] = {}
    same_caller = Counter(caller for caller, _ in between)
    same_callee = Counter(callee for _, callee in between)
    for edge, weight in between.items():
        caller, callee = edge
        if same_callee[callee] > 1:
            score[callee] += weight
        elif same_caller[caller] > 2 and same_caller[caller] > 0.6 * len(callees.get(caller, [])):
            score[caller] += 0.5 * weight
        else:
            paths[edge] = weight + 0.5 * score[callee]
    blames = {at: [Blame(at, -1, value, [])] for at, value in score.items() if value > 0}
    for (caller, callee), value in paths.items():
        stronger = [blame for blame in blames.get(callee, ()) if blame.score > value]
        blames[callee] = [*stronger, Blame(callee, caller, value, [])]
    found = [blame for some in blames.values() for blame in some]
    found.sort(key=lambda blame: (-blame.score, blame.service, blame.caller))
    found = found[:most]
    for blame in found:
        mine = [clue for clue in clues if blame.service in (clue.service, clue.caller)]
        # A service that sends fewer calls has its evidence at the callees.
        below = callees.get(blame.service, [])
        blame.clues = sorted(
            mine or [clue for clue in clues if clue.service in below],
            key=lambda clue: (clue.service != blame.service, -clue.score),
        )
    return found
