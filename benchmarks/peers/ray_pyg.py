"""Ray Serve, one replica, dynamic batching, with the throughput settings of its documentation.

https://docs.ray.io/en/latest/serve/advanced-guides/performance.html
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

from benchmarks.peers.served import arguments, load

MAX_BATCH_SIZE = 32


class Replica:
    """Batches what its event loop holds."""

    def __init__(self, workload: Path, num_threads: int, batch_wait_s: float) -> None:
        self.scorer = load(workload, num_threads)
        self.score.set_batch_wait_timeout_s(batch_wait_s)

    @serve.batch(max_batch_size=MAX_BATCH_SIZE)
    async def score(self, nodes: list[int]) -> list[list[float]]:
        """Called with one node; Serve gathers the calls."""
        rows: list[list[float]] = self.scorer.score(nodes).tolist()
        return rows

    async def __call__(self, request: Request) -> JSONResponse:
        """One HTTP request."""
        query: dict[str, Any] = await request.json()
        return JSONResponse({"output": await self.score(query["node"])})


def main() -> None:
    """Serve on loopback until SIGTERM."""
    parser = arguments("Ray Serve + PyG")
    parser.add_argument("--batch-wait-ms", type=float, default=0.0)
    args = parser.parse_args()
    stopped = threading.Event()

    def on_signal(signum: int, frame: FrameType | None) -> None:
        stopped.set()

    # num_cpus is a scheduling count, not a limit: the replica, proxy and controller need slots.
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        configure_logging=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        runtime_env={"env_vars": {"OMP_NUM_THREADS": str(args.threads)}},
    )
    serve.start(http_options={"host": "127.0.0.1", "port": args.port, "access_log": False})
    deployment = serve.deployment(
        Replica,
        num_replicas=1,
        # The default of 5 would keep batches at 5.
        max_ongoing_requests=2 * MAX_BATCH_SIZE,
        ray_actor_options={"num_cpus": 1},
        logging_config={"enable_access_log": False},
    )
    serve.run(deployment.bind(args.workload.resolve(), args.threads, args.batch_wait_ms / 1e3))
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, on_signal)
    stopped.wait()
    serve.shutdown()
    ray.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
