"""Edge updates that one core makes durable in a second; rows are computed on demand.

A separate process, pinned to one processor:

    python -m benchmarks.stream_phases.rates < orders.json

prints one JSON object. Rates are of wall-clock time, the disk's included; `_cpu` says what the core worked.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.stream_phases import worker
from benchmarks.stream_phases.place import PLACES, Live, Place
from benchmarks.stream_phases.updates import Updates

BATCHES = (1_000, 10_000)
#: Requests that are answered while updates are applied lazily: one in so many updates.
_UPDATES_A_REQUEST = 1_000
_TABLE_BYTES = 1 << 28


class Stopwatch:
    """Wall-clock and processor time of what runs within `with`."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 0.0

    def __enter__(self) -> Stopwatch:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s += time.perf_counter() - self._wall
        self.cpu_s += time.process_time() - self._cpu

    def rates(self, num_updates: int) -> dict[str, int]:
        return {
            "updates_per_s": round(num_updates / self.wall_s),
            "updates_per_s_cpu": round(num_updates / self.cpu_s),
        }


def measured(place: Place, folder: Path, size: int, seconds: float) -> dict[str, Any]:
    """Batches through the keeper, and requests in between, which compute what they need again."""
    from hopline.artifact import read_spec
    from hopline.engine.answer import Answerer
    from hopline.engine.model import Model, StateCachePlan
    from hopline.memory.arena import Arena
    from hopline.types import ScoreRequest

    live = Live(place, folder)
    updates = Updates(place, live.graph, seed=1)
    view = live.view()
    spec = read_spec(place.model("sampled"))
    plan = StateCachePlan(spec, view, _TABLE_BYTES, final=True)
    answerer = Answerer(
        Model(place.model("sampled"), spec, view, plan.build(Arena(plan.num_bytes))), ("embedding",), 1
    )
    nodes = np.random.default_rng(2).integers(0, place.num_nodes, 100_000).tolist()
    watch, answers_ms, count = Stopwatch(), list[float](), 0
    live.keeper.apply([updates.edges(size)])
    with view:  # compiled kernels are loaded, or compiled
        answerer.answer([ScoreRequest(spec.name, nodes=[nodes.pop()])])
    while watch.wall_s < seconds:
        changes = updates.edges(size)
        with watch:
            (applied,) = live.keeper.apply([changes])
            for _ in range(max(1, size // _UPDATES_A_REQUEST)):
                began = time.perf_counter()
                with view:
                    (answer,) = answerer.answer([ScoreRequest(spec.name, nodes=[nodes.pop()])])
                answers_ms.append(1e3 * (time.perf_counter() - began))
        count += size
        assert applied.num_applied == size, applied
        assert not isinstance(answer, Exception), answer
    live.close()
    return {
        **watch.rates(count),
        "requests": len(answers_ms),
        "request_p50_ms": round(median(answers_ms), 3),
    }


def run(place: Place, scratch: Path, seconds: float) -> dict[str, Any]:
    """All sizes, in this process."""
    found: dict[str, Any] = {}
    for size in BATCHES:
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            found[str(size)] = measured(place, Path(folder), size, seconds)
    return found


def main() -> None:
    """Entry of the process."""
    wanted = worker.orders()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    worker.tell(run(PLACES[wanted["place"]], Path(wanted["scratch"]), wanted["seconds"]))


if __name__ == "__main__":
    main()
