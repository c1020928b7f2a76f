"""A prediction log, replayed on the version that wrote it: the same answers, bit for bit."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.lifecycle_phases import open_loop
from benchmarks.lifecycle_phases.server import hopline


def measure(
    repository: Path, graph: Path, model: str, bodies: Sequence[str], seconds: float, rate: float
) -> dict[str, Any]:
    """replay_identical: whether every logged answer came again; and how many there were."""
    folder = repository.parent / "log"
    shutil.rmtree(folder, ignore_errors=True)
    target = open_loop.Target(f"/v1/models/{model}/score", bodies)
    state = repository.parent / "state-replay"
    with hopline(repository, graph, models__state=state, prediction_log__path=folder) as server:
        asked = open_loop.measure(server.port, [target], rate=rate, seconds=seconds, connections=16)
        dropped = server.metric("hopline_prediction_log_dropped_total")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "hopline.cli", "replay", str(folder)),
            *("--graph", str(graph), "--repository", str(repository), "--model", model),
            *("--require-identical", "--json"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout.strip():
        raise RuntimeError(f"hopline replay wrote no report: {done.stderr[-500:]}")
    told = json.loads(done.stdout.strip().splitlines()[-1])
    compared, identical = told["compared"], told["identical"]
    return {
        "replay_identical": done.returncode == 0 and compared > 0 and compared == identical,
        "compared": compared,
        "identical": identical,
        "requests": asked.sent,
        "errors": asked.errors,
        "dropped": int(dropped),
    }
