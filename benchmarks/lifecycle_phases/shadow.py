"""A shadow of every request: what it costs those who wait for the current version's answers.

The same server with and without the shadow, turn by turn; the ratio of the medians of p99.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.lifecycle_phases import open_loop
from benchmarks.lifecycle_phases.server import hopline

RATE = 300.0
_CONNECTIONS = 16


def measure(
    repository: Path, graph: Path, model: str, candidate: str, num_nodes: int, seconds: float, rounds: int
) -> dict[str, Any]:
    """shadow_p99_ratio and what it is made of.

    Args:
        candidate: version that the shadow is of.
        seconds: of each turn. rounds: turns with, and turns without.
    """
    bodies = [f'{{"nodes":[{node * 7919 % num_nodes}]}}' for node in range(5000)]
    target = open_loop.Target(f"/v1/models/{model}/score", bodies)
    state = repository.parent / "state-shadow"
    without: list[float] = []
    beside: list[float] = []
    with (
        hopline(repository, graph, models__state=state) as server,
        server.admin() as admin,
    ):

        def p99_ms(seed: int) -> float:
            run = open_loop.measure(
                server.port, [target], rate=RATE, seconds=seconds, connections=_CONNECTIONS, seed=seed
            )
            if run.errors:
                raise RuntimeError(f"{run.errors} requests failed: {run.statuses}")
            return run.p99_ms

        p99_ms(0)
        compared = differing = 0
        for turn in range(rounds):
            without.append(p99_ms(2 * turn + 1))
            admin.begin_rollout(model, candidate, "shadow", gates={"max_disagreement": 1.0, "max_psi": 1e9})
            time.sleep(1.0)
            beside.append(p99_ms(2 * turn + 1))
            time.sleep(1.0)
            seen = admin.rollout(model)["rollout"]["seen"]["candidate"]
            compared += seen["compared"]
            differing += seen["differing"]
            admin.decide(model, "end")
            time.sleep(0.5)
        dropped = server.metric("hopline_rollout_copies_dropped_total")
    return {
        "shadow_p99_ratio": round(median(beside) / median(without), 3),
        "without_p99_ms": without,
        "shadow_p99_ms": beside,
        "compared": compared,
        "differing": differing,
        "dropped": int(dropped),
        "requests": int(RATE * seconds * rounds),
    }
