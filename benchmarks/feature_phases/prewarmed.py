"""A start with `features.prewarm_nodes`: the first 1,000 requests beside those of the steady state.

Both at the same moderate rate, drawn from the same Zipf stream; between them the server gets as many
requests as it takes, until its caches hold what such a stream leaves in them.
"""

from __future__ import annotations

import sys
from pathlib import Path

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


def measure(store: RedisProcess, serve_dir: Path, num_nodes: int, num_between: int) -> dict[str, float]:
    """p99 in ms of the first and of the steady state's requests, the start's seconds, the ratio.

    Args:
        store: holds all rows.
        num_between: requests between the two.
    """
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
        "first_p99_ms": round(p99_ms(first), 3),
        "steady_p99_ms": round(p99_ms(steady), 3),
        "ready_s": round(ready_s, 2),
        "prewarm_p99_ratio": round(p99_ms(first) / p99_ms(steady), 3),
    }
