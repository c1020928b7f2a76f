"""The fraud API's requests at random moments over gRPC: calls, or the requests of one stream.

A separate process, like the generator over HTTP:

    python -m benchmarks.lifecycle_phases.open_loop_grpc < orders.json

prints one JSON object. A request has a tensor for each column, as raw contents, as tritonclient sends them.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.lifecycle_phases.open_loop import percentile
from hopline.process.time_slice import SHORT_S, want_slices

_SERVICE = "/inference.GRPCInferenceService"
_WARM_UP = 200


def measure(
    port: int, model: str, bodies: Sequence[str], *, rate: float, seconds: float, stream: bool
) -> dict[str, Any]:
    """p50_ms, p99_ms, errors, requests; `bodies` are those of the JSON API, of one row each."""
    orders = {"port": port, "model": model, "bodies": list(bodies[:500]), "rate": rate}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.lifecycle_phases.open_loop_grpc"],
        input=json.dumps(orders | {"seconds": seconds, "stream": stream}),
        stdout=subprocess.PIPE,
        text=True,
        timeout=seconds + 60,
        check=True,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


class Times:
    """Results of the requests.

    Attributes:
        seconds: of each good answer.
        errors: answers of another kind, and requests without one.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.errors = 0

    def failed(self, why: object) -> None:
        """Count an error; the first one is printed."""
        self.errors += 1
        if self.errors == 1:
            print(f"    gRPC: {why}", file=sys.stderr)

    def figures(self, requests: int) -> dict[str, Any]:
        """As JSON."""
        ordered = sorted(self.seconds)
        return {
            "p50_ms": percentile(ordered, 0.5),
            "p99_ms": percentile(ordered, 0.99),
            "errors": self.errors,
            "requests": requests,
        }


class Calls:
    """A call for each request."""

    def __init__(self, channel: Any, times: Times) -> None:
        self._call = channel.unary_unary(f"{_SERVICE}/ModelInfer")
        self._times = times
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, request: bytes) -> None:
        task = asyncio.create_task(self._ask(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, request: bytes) -> None:
        import grpc

        began = time.perf_counter()
        try:
            await self._call(request, timeout=10)
            self._times.seconds.append(time.perf_counter() - began)
        except grpc.aio.AioRpcError as error:
            self._times.failed(f"{error.code().name}: {error.details()}")

    async def end(self) -> None:
        await asyncio.gather(*self._tasks)


class Stream:
    """All requests in one stream, answered in their order."""

    def __init__(self, channel: Any, times: Times) -> None:
        from hopline.transports.proto import message

        response = message("inference.ModelStreamInferResponse")
        self._call = channel.stream_stream(f"{_SERVICE}/ModelStreamInfer", None, response.FromString)()
        self._times = times
        self._begun: deque[float] = deque()
        self._to_send: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read())]

    def ask(self, request: bytes) -> None:
        self._begun.append(time.perf_counter())
        self._to_send.put_nowait(request)

    async def _write(self) -> None:
        while (request := await self._to_send.get()) is not None:
            await self._call.write(request)
        await self._call.done_writing()

    async def _read(self) -> None:
        async for answer in self._call:
            took = time.perf_counter() - self._begun.popleft()
            if answer.error_message:
                self._times.failed(answer.error_message)
            else:
                self._times.seconds.append(took)

    async def end(self) -> None:
        self._to_send.put_nowait(None)
        await asyncio.gather(*self._tasks)
        for _ in self._begun:
            self._times.failed("the stream ended before the answer")


def _requests(model: str, bodies: Sequence[str]) -> list[bytes]:
    import numpy as np

    from hopline.transports.proto import message
    from hopline.transports.tensors import encode_raw, tensor_from_array

    found = []
    for body in bodies:
        (row,) = json.loads(body)["rows"]
        request = message("inference.ModelInferRequest")(model_name=model)
        for name, value in row.items():
            values = np.array([float("nan") if value is None else value])
            tensor = tensor_from_array(name, values)
            request.inputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
            request.raw_input_contents.append(encode_raw(tensor))
        found.append(request.SerializeToString())
    return found


async def _run(orders: dict[str, Any]) -> dict[str, Any]:
    import grpc

    requests = _requests(orders["model"], orders["bodies"])
    kind: Callable[[Any, Times], Calls | Stream] = Stream if orders["stream"] else Calls
    async with grpc.aio.insecure_channel(f"127.0.0.1:{orders['port']}") as channel:
        warm = kind(channel, Times())
        for number in range(_WARM_UP):
            warm.ask(requests[number % len(requests)])
            await asyncio.sleep(1 / orders["rate"])
        await warm.end()
        times = Times()
        asked = kind(channel, times)
        rng = random.Random(0)
        loop = asyncio.get_running_loop()
        due = loop.time()
        end = due + orders["seconds"]
        number = 0
        while (due := due + rng.expovariate(orders["rate"])) < end:
            if (pause := due - loop.time()) > 0:
                await asyncio.sleep(pause)
            asked.ask(requests[number % len(requests)])
            number += 1
        await asked.end()
    return times.figures(number)


if __name__ == "__main__":
    import uvloop

    # As the generator over HTTP: what is measured must be the server's time, not this process's.
    gc.disable()
    want_slices(SHORT_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(_run(json.loads(sys.stdin.read())))))
