"""Models in one server: eight asked as usual, one that is flooded, one that crashes, one that leaks.

The two faulty ones have processes of their own, the flooded one a limit of its rate.
Turn by turn the eight are asked alone, and while the others misbehave; the ratio of the medians of p99.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from benchmarks.lifecycle_phases import open_loop
from benchmarks.lifecycle_phases.server import hopline
from hopline.artifact import TableSpec, read_artifact, write_spec

NUM_GOOD = 8
RATE, FLOOD, FAULTY_RATE = 400.0, 2000.0, 20.0
_CONNECTIONS = 16
_SERVING = {
    # what a platform's team would set for models that it does not trust
    "flooded": "rate_per_s = 200\nmax_concurrency = 32\n",
    "crashing": "isolate = true\n",
    "leaking": 'isolate = true\nmemory_bytes = "400 MiB"\n',
}


def measure(
    repository: Path, model: str, bodies: Sequence[str], seconds: float, rounds: int
) -> dict[str, Any]:
    """isolation_p99_ratio and what it is made of.

    Args:
        repository, model: whose version 1 all of them are copies of.
    """
    folder = _ten(repository, model)
    good = [open_loop.Target(f"/v1/models/good{n}/score", bodies) for n in range(NUM_GOOD)]
    alone: list[float] = []
    beside: list[float] = []
    errors = 0
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    factory = "benchmarks.lifecycle_phases.faulty:open_faulty"
    told: dict[str, dict[str, int]] = {name: {} for name in _SERVING}
    with hopline(folder, worker__model_factory=factory) as server:

        def ask(seed: int) -> open_loop.Figures:
            return open_loop.measure(
                server.port, good, rate=RATE, seconds=seconds, connections=_CONNECTIONS, seed=seed
            )

        ask(0)
        for turn in range(rounds):
            alone.append(ask(2 * turn + 1).p99_ms)
            others = {
                name: open_loop.start(
                    server.port,
                    [open_loop.Target(f"/v1/models/{name}/score", bodies)],
                    rate=FLOOD if name == "flooded" else FAULTY_RATE,
                    seconds=seconds + 3,
                    connections=32 if name == "flooded" else 4,
                    nice=10,
                )
                for name in _SERVING
            }
            found = ask(2 * turn + 1)
            beside.append(found.p99_ms)
            errors += found.errors
            for name, process in others.items():
                for status, count in open_loop.result(process).statuses.items():
                    told[name][status] = told[name].get(status, 0) + count
        restarts = {
            name: int(server.metric(f'hopline_model_process_restarts_total{{model="{name}"'))
            for name in ("crashing", "leaking")
        }
    return {
        "isolation_p99_ratio": round(median(beside) / median(alone), 3),
        "alone_p99_ms": alone,
        "beside_p99_ms": beside,
        "errors_of_the_eight": errors,
        "answers_of_the_others": told,
        "restarts": restarts,
    }


def _ten(repository: Path, model: str) -> Path:
    """A repository of copies under other names."""
    folder = repository.parent / "ten"
    shutil.rmtree(folder, ignore_errors=True)
    for name in (*(f"good{n}" for n in range(NUM_GOOD)), *_SERVING):
        version = folder / name / "1"
        shutil.copytree(repository / model / "1", version)
        spec = read_artifact(version)
        assert isinstance(spec, TableSpec)
        write_spec(version, msgspec.structs.replace(spec, name=name))
        if name in _SERVING:
            (folder / name / "serving.toml").write_text(_SERVING[name])
    return folder
