"""One table: each detector on a real mesh, on churn, on unkind meshes, and on injected faults.

`online_boutique` has 24 labelled faults; all detectors learn from the same normal time. `churn` are
simulated meshes whose pods are replaced all the time; `unkind` are the same with all traits drawn
(`hopline_mesh.simulate.unkind`), and a daily rhythm. Their seeds are not those of any test, other benchmark
or choice of a constant. There each detector has its documented thresholds. `injections` are faults put into
normal hours, with the thresholds of each detector scaled to one false incident a day; see there.

    python -m benchmarks.mesh [--quick]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from hopline_mesh.evaluate import Recording, Scores
from hopline_mesh.evaluate.report import detector
from hopline_mesh.evaluate.run import judge
from hopline_mesh.simulate import Simulation, high_churn, unkind
from packages.mesh.benchmarks import injections
from packages.mesh.benchmarks.churn import QUIET_HOURS, recordings_of

#: The watch, the same without the regression on neighbours; then plain rules.
NAMES = injections.NAMES
#: Seeds of the churn, and hours of each mesh, four of which are for learning.
SEEDS, _HOURS = (3401, 3402, 3403), 24.0
_QUICK_SEEDS, _QUICK_HOURS = (3401, 3402), 10.0
_SERVICES = 30


def measure(quick: bool) -> dict[str, Any]:
    """Results under `table`, by kind of recording and by detector; and all of `injections`."""
    seeds, hours = (_QUICK_SEEDS, _QUICK_HOURS) if quick else (SEEDS, _HOURS)
    churn = [high_churn(hours, _SERVICES, seed=seed, quiet_hours=QUIET_HOURS) for seed in seeds]
    injected = injections.measure(quick)
    kinds: dict[str, Callable[[], dict[str, dict[str, Any]]]] = {
        "online_boutique": _real,
        "churn": lambda: _simulated(churn),
        "unkind": lambda: _simulated([unkind(run) for run in churn]),
    }
    found: dict[str, Any] = {}
    for kind, of in kinds.items():
        try:
            found[kind] = of()
        except FileNotFoundError as error:
            found[kind] = {"failed": str(error)}
    return {"table": found | {"injections": injected["injections"]["simulated"]}} | injected


def _real() -> dict[str, dict[str, Any]]:
    from packages.mesh.benchmarks.online_boutique_data import load

    recording = load("default")
    return {name: _row([_scores(name, recording)]) for name in NAMES}


def _simulated(runs: Sequence[Simulation]) -> dict[str, dict[str, Any]]:
    both = [recordings_of(run) for run in runs]
    # Static thresholds read the CPU time as a share of what the pods request.
    return {name: _row([_scores(name, pair[name == "static"]) for pair in both]) for name in NAMES}


def _scores(name: str, recording: Recording) -> Scores:
    return judge(detector(name, recording), recording).score(recording)


def _row(scores: Sequence[Scores]) -> dict[str, Any]:
    outcomes = [outcome for one in scores for outcome in one.outcomes]
    found = [outcome for outcome in outcomes if outcome.episode is not None]
    minutes = [outcome.minutes for outcome in found if outcome.minutes is not None]

    def share(answers: Sequence[bool]) -> float | None:
        return round(sum(answers) / len(answers), 3) if answers else None

    return {
        "found": len(found),
        "events": len(outcomes),
        "false_episodes": sum(one.false_episodes for one in scores),
        "hours": round(sum(one.hours for one in scores), 1),
        "minutes_to_detect": round(median(minutes), 1) if minutes else None,
        "root_cause_top1": share([outcome.rank == 1 for outcome in found]),
        "root_cause_top3": share([outcome.rank in (1, 2, 3) for outcome in found]),
    }
