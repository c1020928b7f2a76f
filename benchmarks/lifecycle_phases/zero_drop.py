"""Everything that changes while requests are answered: none may be lost, none answered twice.

Two workers, 500 requests a second, half over keep-alive HTTP and half over gRPC. Meanwhile: a version is
loaded, goes through a canary, is promoted, rolled back, unloaded; workers are replaced one by one (SIGHUP);
one worker gets SIGTERM. Every request carries its own node, and every answer must be that node's.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.lifecycle_phases.server import Hopline, hopline, wait_until

RATE = 500.0
_CONNECTIONS = 8


def measure(repository: Path, graph: Path, model: str, versions: tuple[str, str]) -> dict[str, Any]:
    """requests, lost, duplicated; and when what happened.

    Args:
        versions: one that serves, one that comes and goes.
    """
    first, second = versions
    state = repository.parent / "state-zero-drop"
    settings: dict[str, Any] = {
        "server__workers": 2,
        "models__state": state,
        "server__drain_delay_s": 0.5,
        "server__grpc_connection_age_s": 3,
    }
    with hopline(repository, graph, grpc=True, **settings) as server, server.admin() as admin:
        admin.load(model, first)
        admin.unload(model, second)
        orders = {"http": server.port, "grpc": server.grpc_port, "model": model, "rate": RATE}
        clients = [_client(orders, kind) for kind in ("http", "grpc")]
        steps: dict[str, float] = {}

        def step(name: str, act: Any) -> None:
            began = time.monotonic()
            act()
            steps[name] = round(time.monotonic() - began, 2)
            time.sleep(0.5)

        time.sleep(2.0)
        step("load", lambda: admin.load(model, second, serve=False))
        gates = {"max_disagreement": 1.0, "max_psi": 1e9, "min_requests": 50, "max_p99_ratio": 100.0}
        gates |= {"max_p50_ratio": 100.0}

        def canary() -> None:
            admin.begin_rollout(model, second, min_step_s=0.5, gates=gates)
            wait_until(lambda: admin.rollout(model)["rollout"] is None, 60, "the canary")

        step("canary_promoted", canary)
        step("rollback", lambda: admin.decide(model, "rollback"))
        step("unload", lambda: admin.unload(model, second))
        step("rolling_restart", lambda: _replace_all(server))
        step("sigterm_of_a_worker", lambda: _end_one(server))
        for client in clients:
            client.terminate()
        told = [json.loads(client.communicate(timeout=60)[0]) for client in clients]
    return {
        "requests": sum(part["sent"] for part in told),
        "lost": sum(part["lost"] for part in told),
        "duplicated": sum(part["duplicated"] for part in told),
        "wrong": sum(part["wrong"] for part in told),
        "errors": [text for part in told for text in part["errors"]][:5],
        "p99_ms": {kind: part["p99_ms"] for kind, part in zip(("http", "grpc"), told, strict=True)},
        "steps_s": steps,
    }


def _replace_all(server: Hopline) -> None:
    before = set(server.workers())
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: not before & set(server.workers()), 60, "the restart")
    _all_ready(server)


def _end_one(server: Hopline) -> None:
    first = server.workers()[0]
    os.kill(first, signal.SIGTERM)
    wait_until(lambda: first not in server.workers(), 60, "the worker's end")
    _all_ready(server)


def _all_ready(server: Hopline) -> None:
    wait_until(lambda: server.listeners() == 2, 60, "both workers")
    time.sleep(0.2)


def _client(orders: dict[str, Any], kind: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.lifecycle_phases.zero_drop", kind, json.dumps(orders)],
        stdout=subprocess.PIPE,
        text=True,
    )


class Callers:
    """Some callers that ask in turn until they are stopped.

    Each has one connection, which it opens again only when the server said that it would close it, or
    closed it between two requests: a request that was sent is never sent again.
    """

    def __init__(self, orders: dict[str, Any]) -> None:
        self.orders = orders
        self.stopped = asyncio.Event()
        self.sent = self.lost = self.duplicated = self.wrong = 0
        self.seconds: list[float] = []
        self.errors: list[str] = []

    async def run(self, kind: str) -> dict[str, Any]:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stopped.set)
        caller = self._over_http if kind == "http" else self._over_grpc
        await asyncio.gather(*(caller(number) for number in range(_CONNECTIONS)))
        self.seconds.sort()
        p99 = self.seconds[int(0.99 * len(self.seconds))] if self.seconds else 0.0
        return {
            "sent": self.sent,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "wrong": self.wrong,
            "errors": self.errors[:5],
            "p99_ms": round(1e3 * p99, 2),
        }

    async def _pace(self, due: float) -> None:
        pause = due - time.monotonic()
        if pause > 0:
            await asyncio.sleep(pause)

    async def _over_http(self, number: int) -> None:
        reader = writer = None
        every_s = 2 * _CONNECTIONS / self.orders["rate"]
        due, node = time.monotonic() + number * every_s / _CONNECTIONS, number
        while not self.stopped.is_set():
            await self._pace(due)
            due += every_s
            node += _CONNECTIONS
            if writer is not None and (reader.at_eof() or writer.is_closing()):  # type: ignore[union-attr]
                writer.close()
                writer = None
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.orders["http"])
            assert reader is not None
            if len(reader._buffer):  # type: ignore[attr-defined]
                self.duplicated += 1  # an answer to no request
            body = json.dumps({"nodes": [node % 1000], "outputs": ["embedding"]})
            self.sent += 1
            began = time.perf_counter()
            try:
                writer.write(
                    f"POST /v1/models/{self.orders['model']}/score HTTP/1.1\r\nHost: a\r\n"
                    f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
                )
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
                length = int(head.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
                answer = json.loads(await asyncio.wait_for(reader.readexactly(length), 10))
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                self._failed(f"http: {type(error).__name__}: {error}")
                writer = None
                continue
            self.seconds.append(time.perf_counter() - began)
            if b" 200 " not in head[:16]:
                self._failed(f"http: {answer}")
            else:
                self._check(node % 1000, answer["version"], answer["outputs"]["embedding"][0])
            if b"connection: close" in head.lower():
                writer.close()
                writer = None

    async def _over_grpc(self, number: int) -> None:
        import grpc
        import numpy as np

        from hopline.transports.proto import message

        every_s = 2 * _CONNECTIONS / self.orders["rate"]
        due, node = time.monotonic() + number * every_s / _CONNECTIONS, number
        request_type, response_type = (
            message(f"inference.ModelInfer{what}") for what in ("Request", "Response")
        )
        # A separate channel for each caller, so that both workers are asked.
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(
            f"127.0.0.1:{self.orders['grpc']}", options=options
        ) as channel:
            call = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                request_serializer=request_type.SerializeToString,
                response_deserializer=response_type.FromString,
            )
            while not self.stopped.is_set():
                await self._pace(due)
                due += every_s
                node += _CONNECTIONS
                request = request_type(model_name=self.orders["model"])
                item = request.inputs.add(name="node_ids", datatype="INT64", shape=[1])
                item.contents.int64_contents.append(node % 1000)
                request.outputs.add(name="embedding")
                self.sent += 1
                began = time.perf_counter()
                try:
                    answer = await call(request, timeout=10)
                except grpc.aio.AioRpcError as error:
                    self._failed(f"grpc: {error.code().name}: {error.details()}")
                    continue
                self.seconds.append(time.perf_counter() - began)
                row = np.frombuffer(answer.raw_output_contents[0], np.float32)
                self._check(node % 1000, answer.model_version, row.tolist())

    def _failed(self, text: str) -> None:
        self.lost += 1
        self.errors.append(text)

    def _check(self, node: int, version: str, row: list[float]) -> None:
        """Check that it is this node's answer by this version: the same as before."""
        key = (node, version)
        known = _ANSWERS.setdefault(key, row)
        if any(abs(a - b) > 1e-5 for a, b in zip(known, row, strict=True)):
            self.wrong += 1


#: (node, version) -> the first answer to it.
_ANSWERS: dict[tuple[int, str], list[float]] = {}

if __name__ == "__main__":
    import uvloop

    async def main() -> dict[str, Any]:
        return await Callers(json.loads(sys.argv[2])).run(sys.argv[1])

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(main())))
