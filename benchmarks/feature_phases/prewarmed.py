"""A start with `features.prewarm_nodes`: the first 1,000 requests compared with those of the steady state.

Both at the same moderate rate, drawn from the same Zipf stream; between them the server gets as many
requests as it takes, until its caches hold what such a stream leaves in them. A p99 of 1,000 requests is
the tenth worst of them, so one start says little: the ratio is the median over several.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.feature_phases.fetch import uvloop_runner
from benchmarks.feature_phases.redis_process import RedisProcess
from benchmarks.feature_phases.requester import Answer, Requester, p99_ms
from benchmarks.feature_phases.server import hopline
from benchmarks.feature_phases.stream import ZipfStream

NUM_FIRST = 1000
PER_SECOND = 500.0
#: Of the nodes, those that are prewarmed.
SHARE = 0.2
_CONNECTIONS = 32


def measure(
    store: RedisProcess, serve_dir: Path, num_nodes: int, num_between: int, num_starts: int
) -> dict[str, Any]:
    """p99 in ms of the first and of the steady state's requests, the start's seconds, the ratio: medians.

    Args:
        store: holds all rows.
        num_between: requests between the two.
        num_starts: servers started, one at a time.

    Returns: also `ratios`, one for each start, and `num_poor`, answers that were degraded or failed.
    """
    starts = [_start(store, serve_dir, num_nodes, num_between) for _ in range(num_starts)]
    told: dict[str, Any] = {name: round(median(start[name] for start in starts), 3) for name in starts[0]}
    told["ratios"] = [round(start["prewarm_p99_ratio"], 3) for start in starts]
    told["num_poor"] = int(sum(start["num_poor"] for start in starts))
    return told


def _start(store: RedisProcess, serve_dir: Path, num_nodes: int, num_between: int) -> dict[str, float]:
    stream = ZipfStream(num_nodes)
    settings = {"features.store": store.url, "features.prewarm_nodes": int(SHARE * num_nodes)}
    with hopline(serve_dir, settings) as server, uvloop_runner() as runner:

        async def send() -> tuple[list[Answer], list[Answer]]:
            requester = Requester(server.port, _CONNECTIONS)
            await requester.open()
            await requester.at_rate(stream.draw(NUM_FIRST), PER_SECOND)
            first = list(requester.answers)
            await requester.at_once(stream.draw(num_between))
            requester.answers.clear()
            await requester.at_rate(stream.draw(3 * NUM_FIRST), PER_SECOND)
            await requester.close()
            return first, requester.answers

        first, steady = runner.run(send())
        ready_s = server.ready_s
    poor = [answer for answer in (*first, *steady) if answer.status != 200 or answer.degraded]
    if poor:
        print(f"    {len(poor)} answers were degraded or failed", file=sys.stderr)
    return {
        "first_p99_ms": p99_ms(first),
        "steady_p99_ms": p99_ms(steady),
        "ready_s": ready_s,
        "prewarm_p99_ratio": p99_ms(first) / p99_ms(steady),
        "num_poor": float(len(poor)),
    }
