"""Injected faults in normal hours: recall at one false incident a day, the same budget for each detector.

The judge of every choice in the detector, because nobody tunes on these faults: they are drawn from a seed
(`hopline_mesh.evaluate.inject`), in simulated meshes of other seeds than those of the tests, and in the
normal hours of online-boutique. The thresholds of each detector are scaled by the smallest factor of a grid
with which all normal hours together have at most one false incident a day. Then the same hours are judged
with faults in them.

`kill_rule` is what the regression on neighbours adds to none, in points of recall. A learned part earns its
place with at least 10.

    python -m packages.mesh.benchmarks --phases injections
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from hopline_mesh.detect import MeshDetector
from hopline_mesh.evaluate import Period, Recording, Scores
from hopline_mesh.evaluate.inject import KINDS, SEVERITIES, inject
from hopline_mesh.evaluate.recording import without
from hopline_mesh.evaluate.report import detector
from hopline_mesh.evaluate.run import Detector
from hopline_mesh.evaluate.scores import score
from hopline_mesh.simulate import calm

#: The watch, the same without the regression on neighbours, and plain rules.
NAMES = ("watch", "none", "robust", "sigma", "maximum", "static")
#: Seeds of the meshes: no test, no other benchmark and no choice of a constant used them.
SEEDS = (3301, 3302, 3303, 3304, 3305)
_SERVICES, _LEARNED_HOURS = 30, 6.0
#: Factors on all thresholds.
_GRID = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)
_PER_DAY = 1.0
#: Points of recall that a learned part must add.
_RULE = 10.0
#: Time around labelled events of a real mesh that is not taken as normal.
_BEFORE_S, _AFTER_S = 600.0, 3600.0


def measure(quick: bool) -> dict[str, Any]:
    """Results under `injections`: five meshes of 24 hours; quick: three of eight hours."""
    hours, seeds = (8.0, SEEDS[:3]) if quick else (24.0, SEEDS)
    simulated = _table([_simulated(seed, hours) for seed in seeds], NAMES)
    result: dict[str, Any] = {"simulated": simulated, "kill_rule": _kill_rule(simulated)}
    try:
        real = _normal_hours()
    except FileNotFoundError as error:
        result["online_boutique"] = {"failed": str(error)}
    else:
        result["online_boutique"] = _table([real], NAMES)
    return {"injections": result}


def _simulated(seed: int, hours: float) -> Recording:
    run = calm(_LEARNED_HOURS + hours, _SERVICES, seed=seed)
    snapshots, contexts = zip(*run, strict=True)
    begin, end = snapshots[0].time_s, snapshots[-1].time_s + run.plan.interval_s
    cut = begin + 3600 * _LEARNED_HOURS
    return Recording(
        snapshots, contexts, (), (Period(begin, cut),), (Period(cut, end),), run.plan.interval_s,
        name=f"calm {seed}",
    )  # fmt: skip


def _normal_hours() -> Recording:
    """The real mesh without the time of its labels, and of those that its publisher left out."""
    from packages.mesh.benchmarks.online_boutique_data import load

    recording = load("default")
    starts = [event.start_s for event in recording.events]
    whole = Period(recording.snapshots[0].time_s, recording.snapshots[-1].time_s + recording.interval_s)
    taken = [*recording.train, Period(min(starts) - _BEFORE_S, max(starts) + _AFTER_S)]
    return replace(recording, events=(), test=without(whole, taken))


def _table(recordings: Sequence[Recording], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    with_faults = [inject(recording, seed) for seed, recording in enumerate(recordings)]
    return {name: _row(name, recordings, with_faults) for name in names}


def _row(name: str, recordings: Sequence[Recording], with_faults: Sequence[Recording]) -> dict[str, Any]:
    fitted = []
    for recording in recordings:
        made: Any = detector(name, recording)
        made.fit(*recording.training())
        fitted.append(made)
    days = sum(len(recording.testing()[0]) * recording.interval_s for recording in recordings) / 86_400
    times, false = _smallest(fitted, recordings, max(1.0, _PER_DAY * days))
    scores = [_scores(one, times, recording) for one, recording in zip(fitted, with_faults, strict=True)]
    outcomes = [outcome for one in scores for outcome in one.outcomes]
    found = [outcome for outcome in outcomes if outcome.episode is not None]
    minutes = [outcome.minutes for outcome in found if outcome.minutes is not None]

    def recall(word: str) -> str:
        some = [outcome for outcome in outcomes if word in outcome.event.kind.split()]
        return f"{sum(outcome.episode is not None for outcome in some)}/{len(some)}"

    return {
        "found": len(found),
        "events": len(outcomes),
        "recall": round(len(found) / len(outcomes), 3),
        "false_episodes": false,
        "days": round(days, 2),
        "thresholds_times": times,
        "minutes_to_detect": round(median(minutes), 1) if minutes else None,
        "root_cause_top1": _share([outcome.rank == 1 for outcome in found]),
        "root_cause_top3": _share([outcome.rank in (1, 2, 3) for outcome in found]),
        "recall_by_mesh": [round(one.found / one.events, 3) for one in scores],
        "by_severity": {word: recall(word) for word in SEVERITIES},
        "by_kind": {word: recall(word) for word in KINDS},
    }


def _smallest(fitted: Sequence[Any], recordings: Sequence[Recording], allowed: float) -> tuple[float, int]:
    """The smallest factor on the grid with few enough false incidents, and their number; by bisection."""
    low, high = 0, len(_GRID) - 1
    counts: dict[int, int] = {}

    def count(place: int) -> int:
        if place not in counts:
            counts[place] = sum(
                _scores(one, _GRID[place], recording).false_episodes
                for one, recording in zip(fitted, recordings, strict=True)
            )
        return counts[place]

    while low < high:
        middle = (low + high) // 2
        if count(middle) <= allowed:
            high = middle
        else:
            low = middle + 1
    return _GRID[low], count(low)


def _scores(fitted: Any, times: float, recording: Recording) -> Scores:
    one: Any = _copy(fitted)
    one.scale_thresholds(times)
    verdicts = [one.step(*pair) for pair in zip(*recording.testing(), strict=True)]
    return score(verdicts, recording.test_events(), interval_s=recording.interval_s)


def _copy(fitted: Detector) -> Detector:
    return (
        MeshDetector.restore(*fitted.export())
        if isinstance(fitted, MeshDetector)
        else copy.deepcopy(fitted)
    )


def _kill_rule(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    watch, none = rows["watch"], rows["none"]
    points = 100 * (watch["found"] - none["found"]) / none["events"]
    return {
        "points": round(points, 1),
        "points_by_mesh": [
            round(100 * (a - b), 1)
            for a, b in zip(watch["recall_by_mesh"], none["recall_by_mesh"], strict=True)
        ],
        "holds": points >= _RULE,
    }


def _share(answers: Sequence[bool]) -> float | None:
    return round(sum(answers) / len(answers), 3) if answers else None
