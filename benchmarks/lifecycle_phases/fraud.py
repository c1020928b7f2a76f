"""The fraud API under a checkout's load: 800 requests a second at random moments.

One transaction for each request: preprocessing, trees and the rules block / second factor / allow, through
a pipeline. Over HTTP, and over gRPC as the payment service asks. Then the highest rate whose p99 stays
below 50 ms, with dynamic batching and without (one request at a time).
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.lifecycle_phases import open_loop
from benchmarks.lifecycle_phases.server import hopline
from hopline.time_slice import SHORT_S, want_slices

RATE, LIMIT_MS = 800.0, 50.0
_CONNECTIONS, _MANY = 32, 256
#: A run in which more requests than this fail does not count.
_MAX_ERRORS = 0
_FIRST, _FACTOR = 1000.0, 1.25


def measure(repository: Path, model: str, bodies: Sequence[str], seconds: float) -> dict[str, Any]:
    """p99_ms_at_800, errors, max_rps_p99_50ms; `unbatched` and `grpc` beside."""
    target = open_loop.Target(f"/v1/models/{model}/score", bodies)
    told: dict[str, Any] = {}
    with hopline(repository, grpc=True, models__state=repository.parent / "state-fraud") as server:
        _warm(server.port, target)
        steady = open_loop.measure(
            server.port, [target], rate=RATE, seconds=seconds, connections=_CONNECTIONS
        )
        told |= {"p50_ms_at_800": steady.p50_ms, "p99_ms_at_800": steady.p99_ms, "errors": steady.errors}
        told["requests_at_800"] = steady.sent
        told["generator_late_p99_ms"] = steady.late_p99_ms
        told["grpc"] = _grpc(server.grpc_port, model, bodies, seconds)
        told["max_rps_p99_50ms"], told["p99_ms_at_max"] = _highest(server.port, target, seconds / 2)
    state = repository.parent / "state-fraud-alone"
    with hopline(repository, batching__max_rows=1, models__state=state) as server:
        _warm(server.port, target)
        steady = open_loop.measure(
            server.port, [target], rate=RATE, seconds=seconds, connections=_CONNECTIONS
        )
        highest, _ = _highest(server.port, target, seconds / 2)
        told["unbatched"] = {
            "p99_ms_at_800": steady.p99_ms,
            "errors": steady.errors,
            "max_rps_p99_50ms": highest,
        }
    return told


def _warm(port: int, target: open_loop.Target) -> None:
    open_loop.measure(port, [target], rate=RATE, seconds=1.0, connections=_CONNECTIONS)


def _highest(port: int, target: open_loop.Target, seconds: float) -> tuple[float, float]:
    """Raise the rate until p99 or errors pass the limit: answers a second and p99 of the last good one."""
    rate, best, p99_ms = _FIRST, 0.0, 0.0
    while True:
        run = open_loop.measure(port, [target], rate=rate, seconds=seconds, connections=_MANY)
        if run.p99_ms > LIMIT_MS or run.errors > _MAX_ERRORS or run.rps < 0.95 * rate:
            return best, p99_ms
        best, p99_ms = run.rps, run.p99_ms
        rate *= _FACTOR


def _grpc(port: int, model: str, bodies: Sequence[str], seconds: float) -> dict[str, Any]:
    """The same rate over gRPC, from a process of its own."""
    orders = {"port": port, "model": model, "bodies": list(bodies[:500]), "seconds": seconds}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.lifecycle_phases.fraud"],
        input=json.dumps(orders),
        stdout=subprocess.PIPE,
        text=True,
        timeout=seconds + 60,
        check=True,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


async def _ask_grpc(orders: dict[str, Any]) -> dict[str, Any]:
    import grpc

    from hopline.transports.proto import message

    request_type = message("inference.ModelInferRequest")
    requests = []
    for body in orders["bodies"]:
        (row,) = json.loads(body)["rows"]
        request = request_type(model_name=orders["model"])
        for name, value in row.items():
            item = request.inputs.add(name=name, shape=[1])
            if isinstance(value, str):
                item.datatype = "BYTES"
                item.contents.bytes_contents.append(value.encode())
            elif isinstance(value, int):
                item.datatype = "INT64"
                item.contents.int64_contents.append(value)
            else:
                item.datatype = "FP64"
                item.contents.fp64_contents.append(float("nan") if value is None else value)
        requests.append(request.SerializeToString())
    seconds: list[float] = []
    errors = 0
    async with grpc.aio.insecure_channel(f"127.0.0.1:{orders['port']}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")

        async def ask(number: int) -> None:
            nonlocal errors
            began = time.perf_counter()
            try:
                await call(requests[number % len(requests)], timeout=10)
                seconds.append(time.perf_counter() - began)
            except grpc.aio.AioRpcError as error:
                errors += 1
                if errors == 1:
                    print(f"    gRPC: {error.code().name}: {error.details()}", file=sys.stderr)

        for number in range(200):
            await ask(number)
        seconds.clear()
        rng = random.Random(0)
        loop = asyncio.get_running_loop()
        due = loop.time()
        end = due + orders["seconds"]
        tasks = set()
        number = 0
        while due < end:
            due += rng.expovariate(RATE)
            if (pause := due - loop.time()) > 0:
                await asyncio.sleep(pause)
            task = loop.create_task(ask(number))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            number += 1
        await asyncio.gather(*tasks)
    seconds.sort()
    return {
        "p50_ms": open_loop.percentile(seconds, 0.5),
        "p99_ms": open_loop.percentile(seconds, 0.99),
        "errors": errors,
        "requests": number,
    }


if __name__ == "__main__":
    import uvloop

    # As the generator over HTTP: what is measured shall be the server's time, not this one's.
    gc.disable()
    want_slices(SHORT_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(_ask_grpc(json.loads(sys.stdin.read())))))
