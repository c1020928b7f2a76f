"""Models in one server: eight asked as usual, one that is flooded, one that crashes, one that leaks.

The two faulty ones have separate processes, the flooded one a limit of its rate.
Turn by turn the eight are asked alone, and while the others misbehave; the ratio of the medians of p99.
A turn in which a hypervisor gave the processors to another machine reports that, and is repeated;
`ratio_of_all` has it too.

Those who flood, and who ask the faulty ones, would be on other machines: here they take only what the
server and the callers of the eight leave of the processors. `answers_of_the_others` shows that they still
ask as often as they should.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from benchmarks import load
from benchmarks.lifecycle_phases import open_loop
from benchmarks.lifecycle_phases.server import hopline
from benchmarks.machine import stolen_s
from hopline.artifact import write_spec
from hopline_tabular.spec import read_tabular

NUM_GOOD = 8
RATE, FLOOD, FAULTY_RATE = 400.0, 2000.0, 20.0
_CONNECTIONS, _FLOOD_CONNECTIONS = 16, 64
#: Of the processors' time in a turn, that others may have had of it; and turns at most, in those wanted.
_STOLEN, _AGAIN = 0.01, 2
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
    load.require_wrk()
    folder = _ten(repository, model)
    good = [open_loop.Target(f"/v1/models/good{n}/score", bodies) for n in range(NUM_GOOD)]
    alone: list[float] = []
    beside: list[float] = []
    calm: list[bool] = []
    allowed_s = _STOLEN * seconds * (os.cpu_count() or 1)
    errors = 0
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    factory = "benchmarks.lifecycle_phases.faulty:open_faulty"
    told: dict[str, dict[str, int]] = {name: {} for name in _SERVING}
    with hopline(folder, worker__model_factory=factory) as server:

        def ask(seed: int) -> tuple[open_loop.Figures, bool]:
            before_s = stolen_s()
            found = open_loop.measure(
                server.port, good, rate=RATE, seconds=seconds, connections=_CONNECTIONS, seed=seed
            )
            return found, stolen_s() - before_s <= allowed_s

        ask(0)
        while sum(calm) < rounds and len(calm) < _AGAIN * rounds:
            turn = len(calm)
            found, was_calm = ask(2 * turn + 1)
            alone.append(found.p99_ms)
            flood = _flood(server.port, bodies[0], seconds + 3)
            others = {
                name: open_loop.start(
                    server.port,
                    [open_loop.Target(f"/v1/models/{name}/score", bodies)],
                    rate=FAULTY_RATE,
                    seconds=seconds + 3,
                    connections=4,
                    behind=True,
                )
                for name in ("crashing", "leaking")
            }
            found, was_calm_beside = ask(2 * turn + 1)
            beside.append(found.p99_ms)
            calm.append(was_calm and was_calm_beside)
            errors += found.errors
            for name, process in others.items():
                for status, count in open_loop.result(process).statuses.items():
                    told[name][status] = told[name].get(status, 0) + count
            text, _ = flood.communicate(timeout=seconds + 30)
            answers, refused = map(int, re.findall(r"ANSWERS (\d+) (\d+)", text)[0])
            told["flooded"]["200"] = told["flooded"].get("200", 0) + answers - refused
            told["flooded"]["429"] = told["flooded"].get("429", 0) + refused
        restarts = {
            name: int(server.metric(f'hopline_model_process_restarts_total{{model="{name}"'))
            for name in ("crashing", "leaking")
        }
    # With too few of them, all count.
    counted = [turn for turn in range(len(calm)) if calm[turn] or sum(calm) < rounds / 2]
    ratio = median(beside[turn] for turn in counted) / median(alone[turn] for turn in counted)
    return {
        "isolation_p99_ratio": round(ratio, 3),
        "ratio_of_all": round(median(beside) / median(alone), 3),
        "calm_turns": sum(calm),
        "counted_turns": counted,
        "alone_p99_ms": alone,
        "beside_p99_ms": beside,
        "errors_of_the_eight": errors,
        "answers_of_the_others": told,
        "restarts": restarts,
    }


def _flood(port: int, body: str, seconds: float) -> subprocess.Popen[str]:
    """About `FLOOD` requests a second by wrk: a flood comes from elsewhere, and must not cost much here."""
    pause_ms = round(1000 * _FLOOD_CONNECTIONS / FLOOD)
    return subprocess.Popen(
        [
            *("wrk", "-t", "1", "-c", str(_FLOOD_CONNECTIONS), "-d", f"{seconds:.0f}s"),
            *("-s", str(Path(__file__).with_name("flood.lua")), f"http://127.0.0.1:{port}"),
            *("--", "/v1/models/flooded/score", body, str(pause_ms)),
        ],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=open_loop.step_behind,
    )


def _ten(repository: Path, model: str) -> Path:
    """A repository of copies under other names."""
    folder = repository.parent / "ten"
    shutil.rmtree(folder, ignore_errors=True)
    for name in (*(f"good{n}" for n in range(NUM_GOOD)), *_SERVING):
        version = folder / name / "1"
        shutil.copytree(repository / model / "1", version)
        spec = read_tabular(version)
        write_spec(version, msgspec.structs.replace(spec, name=name))
        if name in _SERVING:
            (folder / name / "serving.toml").write_text(_SERVING[name])
    return folder
