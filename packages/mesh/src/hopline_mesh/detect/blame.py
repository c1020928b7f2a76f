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
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline_mesh.detect.clues import Clue
from hopline_mesh.detect.paths import Pairs, Paths

Floats = NDArray[np.float64]

#: Maximum share of a service's weight that is passed on to its callees, the share of it that arrives, and
#: the number of rounds.
_PASSED, _KEPT, _ROUNDS = 0.85, 0.6, 4

#: Roles that do not depend on neighbours.
_OWN = ("resource", "memory", "trouble", "gone")
#: Roles that need no measurement; they say most of what happened.
_REPORTED = ("trouble", "gone")


class Blame(msgspec.Struct, array_like=True):
    """One suspect.

    Attributes:
        service: slot.
        caller: for a call path, slot of the caller; else -1.
        score: strength of its evidence.
        clues: its evidence: troubles and that it is gone, then the strongest first; its own before others'.
    """

    service: int
    caller: int
    score: float
    clues: list[Clue]


def _weight(score: float) -> float:
    """Return the weight of a score; logarithmic, because scores span decades."""
    return math.log2(1.0 + max(score, 0.0))


def _is_measured(clue: Clue) -> bool:
    return clue.role not in _REPORTED


def suspects(clues: Sequence[Clue], paths: Paths, most: int = 5) -> list[Blame]:
    """Return suspected services and call paths, most likely first.

    Args:
        clues: of one incident.
        paths: all call paths at the services of the clues.
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
        if clue.role in _OWN or (clue.role == "calls" and clue.caller < 0):
            if clue.caller < 0:
                own[at] = max(own[at], weight * (1.5 if clue.role in _REPORTED else 1.0))
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
    # Latency that only the caller sees belongs to the call path.
    between = {
        edge: weight
        for edge, weight in wait.items()
        if max(slow.get(edge[1], 0.0), own.get(edge[1], 0.0)) < 0.5 * weight
    }
    for edge, weight in wait.items():
        if edge not in between:
            slow[edge[1]] = max(slow.get(edge[1], 0.0), weight)

    symptom: dict[int, float] = dict(slow)
    parts: dict[int, list[float]] = defaultdict(list)  # missing load that a caller may have caused
    for at, weight in less.items():
        above = sorted(senders[at]) or paths.callers(at)
        sends_less = [caller for caller in above if less.get(caller, 0.0) < 0.5 * weight]
        in_trouble = [caller for caller in sends_less if slow.get(caller) or own.get(caller)]
        for caller in in_trouble or sends_less:
            parts[caller].append(weight / len(in_trouble or sends_less) ** 0.5)
        symptom[at] = symptom.get(at, 0.0) + (0.1 if above else 0.5) * weight
    stops = {
        at: max(some) + 0.1 * sum(some) for at, some in parts.items()
    }  # sends fewer calls than it should
    for at, weight in stops.items():
        symptom[at] = symptom.get(at, 0.0) + 0.6 * weight
    for at, weight in more.items():
        above = [caller for caller in paths.callers(at) if more.get(caller, 0.0) > 0.5 * weight]
        symptom[at] = symptom.get(at, 0.0) + (0.1 if above else 0.4) * weight

    # A callee that fails or is unreachable is called repeatedly, and is itself the root cause.
    sent = {
        edge: weight
        for edge, weight in floods.items()
        if failing.get(edge[1], 0.0) < weight and edge not in between
    }
    flooded: dict[int, int] = {}  # by the caller with the strongest evidence
    for caller, callee in sorted(sent, key=lambda edge: (-sent[edge], edge[0])):
        if caller != callee:
            flooded.setdefault(callee, caller)
    for at in flooded:
        symptom[at] = symptom.get(at, 0.0) + 0.7 * own.get(at, 0.0)
        own[at] *= 0.3
    for (caller, _), weight in sent.items():
        own[caller] = max(own[caller], weight)

    symptom = _passed_on(symptom, paths, slow, own, stops, wait, flooded)
    score: dict[int, float] = defaultdict(float)
    for each in (own, symptom):
        for at, weight in each.items():
            score[at] += weight

    alone = []
    same_caller = Counter(caller for caller, _ in between)
    same_callee = Counter(callee for _, callee in between)
    for edge, weight in between.items():
        caller, callee = edge
        if same_callee[callee] > 1:
            score[callee] += weight
        elif same_caller[caller] > 2 and same_caller[caller] > 0.6 * len(paths.callees(caller)):
            score[caller] += 0.5 * weight
        else:
            alone.append(edge)
    blamed = {edge: between[edge] + 0.5 * score[edge[1]] for edge in alone}
    blames = {at: [Blame(at, -1, value, [])] for at, value in score.items() if value > 0}
    for (caller, callee), value in blamed.items():
        stronger = [blame for blame in blames.get(callee, ()) if blame.score > value]
        blames[callee] = [*stronger, Blame(callee, caller, value, [])]
    found = [blame for some in blames.values() for blame in some]
    found.sort(key=lambda blame: (-blame.score, blame.service, blame.caller))
    found = found[:most]
    for blame in found:
        mine = [clue for clue in clues if blame.service in (clue.service, clue.caller)]
        # A service that sends fewer calls has its evidence at the callees.
        below = paths.callees(blame.service)
        blame.clues = sorted(
            mine or [clue for clue in clues if clue.service in below],
            key=lambda clue: (clue.service != blame.service, _is_measured(clue), -clue.score, clue.key),
        )
    return found


def _passed_on(
    symptom: dict[int, float],
    paths: Paths,
    slow: Mapping[int, float],
    own: Mapping[int, float],
    stops: Mapping[int, float],
    wait: Mapping[tuple[int, int], float],
    flooded: Mapping[int, int],
) -> dict[int, float]:
    """Pass the weight of each service on to those of its callees that have evidence themselves.

    Args:
        symptom: weight by service.
        slow, own, stops, wait: see `suspects`.
        flooded: service -> the caller that floods it, to which its weight goes.

    Returns: weight by service, after all rounds.
    """
    is_call = paths.src != paths.dst
    src, dst = paths.src[is_call], paths.dst[is_call]
    known = {*symptom, *slow, *own, *stops, *flooded, *flooded.values()}
    size = 1 + max(int(src.max(initial=0)), int(dst.max(initial=0)), *known, 0)

    def spread(values: Mapping[int, float]) -> Floats:
        out = np.zeros(size)
        out[list(values)] = list(values.values())
        return out

    slows, stopped = spread(slow), spread(stops)
    mass = spread(symptom)
    has_symptom = np.zeros(size, bool)
    has_symptom[list(symptom)] = True
    flooder = np.full(size, -1)
    flooder[list(flooded)] = list(flooded.values())
    counts = has_symptom[src] & (flooder[dst] != src)
    src, dst = src[counts], dst[counts]
    reason = np.maximum(np.maximum(slows[dst], spread(own)[dst]), stopped[dst])
    waiting = Pairs()
    waiting.restore(*np.array(list(wait), np.int32).reshape(-1, 2).T)
    weights = np.array([*wait.values(), 0.0])  # the last one for paths on which no one waits: slot -1
    reason = np.maximum(reason, weights[waiting.find(src, dst)])
    strongest = np.zeros(size)
    np.maximum.at(strongest, src, reason)
    shown = np.maximum(np.maximum(slows, stopped), 0.1)
    share = _PASSED * np.clip((strongest / shown - 0.25) / 0.35, 0.0, 1.0)
    goes = (strongest[src] > 0) & (reason >= 0.7 * strongest[src])
    share[strongest <= 0] = 0.0
    share[list(flooded)] = _PASSED
    goes &= flooder[src] < 0
    src = np.concatenate([src[goes], np.array(list(flooded), np.int64)])
    dst = np.concatenate([dst[goes], np.array(list(flooded.values()), np.int64)])
    each = _KEPT * share / np.maximum(np.bincount(src, minlength=size), 1)
    for _ in range(_ROUNDS):
        mass = mass - share * mass + np.bincount(dst, each[src] * mass[src], size)
    reached = np.flatnonzero((mass != 0) | has_symptom)
    return dict(zip(reached.tolist(), mass[reached].tolist(), strict=True))
