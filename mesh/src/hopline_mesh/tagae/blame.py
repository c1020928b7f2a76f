"""Who is to blame: suspects, ranked, from the clues of one trouble.

Trouble spreads in known directions. Whoever waits for a slow or failing service is slow or failing itself:
latency and errors go from callee to caller. Whoever fails, or is slow, sends less on: less load goes from
caller to callee, and so does more. What a service uses (processor, memory) is its own. Latency that the
caller sees and the callee does not, arises between them.

So each clue counts for the service where it was found as far as nobody whom it may come from has clues as
strong; the rest is passed on to them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hopline_mesh.tagae.clues import Clue

#: How much of what a service shows is passed on to whom it waits for, at most, and how much of that
#: arrives; and how far.
_PASSED, _KEPT, _ROUNDS = 0.85, 0.6, 4

#: What a service has of its own, whatever its neighbours do.
_OWN = ("resource", "memory", "trouble", "gone")


@dataclass(slots=True)
class Blame:
    """One suspect.

    Attributes:
        service: slot.
        caller: slot of the caller where one call path is to blame; -1 otherwise.
        score: how much speaks for it.
        clues: that speak for it, strongest first.
    """

    service: int
    caller: int
    score: float
    clues: list[Clue]


def _weight(score: float) -> float:
    """Scores span decades; what is a hundred times too much is not a hundred times as telling."""
    return math.log2(1.0 + max(score, 0.0))


def suspects(clues: Sequence[Clue], calls: Sequence[tuple[int, int]], most: int = 5) -> list[Blame]:
    """Services and call paths, most suspect first.

    Args:
        clues: that belong together.
        calls: all call paths at the services of the clues, caller and callee.
    """
    own: dict[int, float] = defaultdict(float)  # what a service uses
    slow: dict[int, float] = defaultdict(float)  # latency and errors where it serves
    wait: dict[tuple[int, int], float] = defaultdict(float)  # latency and errors as a caller sees them
    less: dict[int, float] = defaultdict(float)  # load that is missing
    senders: dict[int, set[int]] = defaultdict(set)  # whose calls are missing there, where that is known
    more: dict[int, float] = defaultdict(float)  # load that is too much
    failing: dict[int, float] = defaultdict(float)  # errors where it serves
    floods: dict[tuple[int, int], float] = defaultdict(float)  # a caller sends more than it gets more
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
            continue  # seen at the call paths, and there with the callee's name
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

    # Latency that only the caller sees belongs to the way between them.
    between = {}
    for edge, weight in wait.items():
        at = edge[1]
        if max(slow.get(at, 0.0), own.get(at, 0.0)) < 0.5 * weight:
            between[edge] = weight
        else:
            slow[at] = max(slow.get(at, 0.0), weight)

    symptom: dict[int, float] = dict(slow)
    stops: dict[int, float] = {}  # sends less on than it gets
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
        # One that fails, or that calls do not reach, is called again and again, and is to blame.
        if failing.get(callee, 0.0) < weight and (caller, callee) not in between:
            own[caller] = max(own.get(caller, 0.0), weight)
            flooded[callee] = caller
            symptom[callee] = symptom.get(callee, 0.0) + 0.7 * own.get(callee, 0.0)
            own[callee] *= 0.3

    # What a service shows is passed on to those it waits for, as far as they show something themselves.
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
    for edge, weight in between.items():
        caller, callee = edge
        same_callee = sum(1 for other in between if other[1] == callee)
        same_caller = sum(1 for other in between if other[0] == caller)
        if same_callee > 1:
            score[callee] += weight
        elif same_caller > 2 and same_caller > 0.6 * len(callees.get(caller, [])):
            score[caller] += 0.5 * weight
        else:
            paths[edge] = weight + 0.5 * score[callee]
    found = [Blame(at, -1, value, []) for at, value in score.items() if value > 0]
    for (caller, callee), value in paths.items():
        found = [blame for blame in found if blame.service != callee or blame.score > value]
        found.append(Blame(callee, caller, value, []))
    found.sort(key=lambda blame: (-blame.score, blame.service, blame.caller))
    found = found[:most]
    for blame in found:
        mine = [clue for clue in clues if blame.service in (clue.service, clue.caller)]
        # Who sends less on shows it where its calls are missing.
        below = callees.get(blame.service, [])
        blame.clues = sorted(
            mine or [clue for clue in clues if clue.service in below],
            key=lambda clue: (clue.service != blame.service, -clue.score),
        )
    return found
