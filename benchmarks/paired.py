"""Cost of one request in two checkouts, in turns: for changes that may slow down the hot path.

    python -m benchmarks.paired FOLDER OTHER [--turns 40] [--requests 300] [--only http_c1,submit]

OTHER is another checkout of this repository with its `.venv`; FOLDER keeps the graph and the models for the
next time. Both have a server with two models of the same weights, `sage` with fanouts and `all` without,
and a process that calls `Service.submit`. All of them wait while one is asked.

http_c1, http_c32    one node over one connection, and over 32 at the same time
grpc, stream         one node by ModelInfer, and by one ModelStreamInfer
submit               `Service.submit` to the outcome, in process

Figures are microseconds of processor time of the event loop's thread for each request, read from the
scheduler: what else runs on the machine is no part of them, except through its caches. `p50` is what the
client waited. Prints a table: medians and minima of turns, and the median of the turns' ratios. The last
line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import queue
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

CASES = ("http_c1", "http_c32", "grpc", "stream", "submit")
MODELS = ("sage", "all")
NUM_NODES = 2000
ROOT = Path(__file__).resolve().parents[1]
_DIM, _GRAPH_NODES, _GRAPH_EDGES = 64, 50_000, 500_000


def build(folder: Path) -> None:
    """Write the graph and the models, by this checkout's packager."""
    import numpy as np
    import torch
    from torch_geometric.nn import SAGEConv

    from hopline import Graph, package

    class Sage(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = SAGEConv(_DIM, _DIM)
            self.conv2 = SAGEConv(_DIM, _DIM)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    random = np.random.default_rng(0)
    torch.manual_seed(0)
    edges = random.integers(0, _GRAPH_NODES, (2, _GRAPH_EDGES))
    graph = Graph.from_edges(edges, random.standard_normal((_GRAPH_NODES, _DIM), dtype=np.float32))
    graph.save(folder / "graph")
    for name, fanouts in zip(MODELS, ([10, 5], [-1, -1]), strict=True):
        package(Sage().eval(), graph, folder / "repository", name=name, fanouts=fanouts, task="embedding")


def answer_turns(folder: Path) -> None:
    """Be the process that calls `Service.submit`: a line of standard input is a turn."""
    import uvloop

    from hopline.service import Service
    from hopline.types import ScoreRequest

    async def ask(service: Service, model: str, count: int) -> list[float]:
        loop = asyncio.get_running_loop()
        taken: list[float] = []
        for at in range(count):
            outcome: asyncio.Future[object] = loop.create_future()
            began = time.perf_counter()
            service.submit(ScoreRequest(model, nodes=[at % NUM_NODES]), outcome.set_result)
            await outcome
            taken.append(time.perf_counter() - began)
        return taken

    async def main() -> None:
        service = Service(_config(folder))
        await service.start()
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            model, count = line.split()
            began = time.thread_time()
            taken = await ask(service, model, int(count))
            used = time.thread_time() - began
            print(used * 1e6 / int(count), statistics.median(taken) * 1e6, flush=True)

    uvloop.run(main())


def _config(folder: Path) -> Any:
    from hopline.config.schema import Config

    config = Config()
    return dataclasses.replace(
        config,
        graph=dataclasses.replace(config.graph, path=folder / "graph"),
        models=dataclasses.replace(config.models, repository=folder / "repository"),
    )


class Submitter:
    """A process that calls `Service.submit`."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        command = [_python(checkout), str(Path(__file__).resolve()), "--submit", str(folder)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=checkout
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def turn(self, case: str, model: str, count: int) -> tuple[float, float]:
        """Microseconds: (processor time for each request, median wait)."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{model} {count}\n")
        self.process.stdin.flush()
        used, p50 = self.process.stdout.readline().split()
        return float(used), float(p50)

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait()


class Server:
    """A server process, and one client of each kind."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        import grpc

        self.http_port, self.grpc_port = _free_port(), _free_port()
        command = [
            *(_python(checkout), "-m", "hopline.cli", "serve", "--graph", str(folder / "graph")),
            *("--repository", str(folder / "repository"), "--port", str(self.http_port)),
            *("--grpc-port", str(self.grpc_port), "--set", "server.spin_us=0"),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 120
        while True:
            try:
                if b" 200 " in self._exchange_once(b"GET /v2/health/ready HTTP/1.1\r\nhost: x\r\n\r\n"):
                    break
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{checkout}: the server did not start")
            time.sleep(0.2)
        self.connections = [socket.create_connection(("127.0.0.1", self.http_port)) for _ in range(32)]
        for each in self.connections:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}")
        service = "/inference.GRPCInferenceService/"
        self.infer = self.channel.unary_unary(f"{service}ModelInfer")
        self.asked: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        stream = self.channel.stream_stream(f"{service}ModelStreamInfer")
        self.answers: Iterator[bytes] = stream(iter(self.asked.get, None))

    def _exchange_once(self, request: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.http_port)) as connection:
            connection.sendall(request)
            return connection.recv(65536)

    def used_us(self) -> float:
        """Processor time of the thread of the event loop."""
        return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[0]) / 1e3

    def turn(self, case: str, model: str, count: int) -> tuple[float, float]:
        """As `Submitter.turn`."""
        ask: Callable[[str, int], list[float]] = getattr(self, f"_{case}")
        before = self.used_us()
        taken = ask(model, count)
        time.sleep(0.001)  # what follows the last answer
        return (self.used_us() - before) / count, statistics.median(taken) * 1e6

    def _http_c1(self, model: str, count: int) -> list[float]:
        connection, taken = self.connections[0], []
        for at in range(count):
            request = _http_request(model, at)
            began = time.perf_counter()
            connection.sendall(request)
            answer = connection.recv(65536)
            taken.append(time.perf_counter() - began)
            assert answer.startswith(b"HTTP/1.1 200"), answer
        return taken

    def _http_c32(self, model: str, count: int) -> list[float]:
        taken = []
        for first in range(0, count, 32):
            began = time.perf_counter()
            for at, connection in enumerate(self.connections):
                connection.sendall(_http_request(model, first + at))
            for connection in self.connections:
                assert connection.recv(65536).startswith(b"HTTP/1.1 200")
            taken.append(time.perf_counter() - began)
        return taken

    def _grpc(self, model: str, count: int) -> list[float]:
        taken = []
        for at in range(count):
            request = _grpc_request(model, at)
            began = time.perf_counter()
            self.infer(request)
            taken.append(time.perf_counter() - began)
        return taken

    def _stream(self, model: str, count: int) -> list[float]:
        taken = []
        for at in range(count):
            request = _grpc_request(model, at)
            began = time.perf_counter()
            self.asked.put(request)
            next(self.answers)
            taken.append(time.perf_counter() - began)
        return taken

    def close(self) -> None:
        """End it."""
        self.asked.put(None)
        self.channel.close()
        self.process.terminate()
        self.process.wait()


def _http_request(model: str, at: int) -> bytes:
    body = b'{"nodes":[%d]}' % (at % NUM_NODES)
    return (
        b"POST /v1/models/%b/score HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (model.encode(), len(body), body)
    )


def _grpc_request(model: str, at: int) -> bytes:
    from hopline.transports.proto import message

    request = message("inference.ModelInferRequest")()
    request.model_name = model
    tensor = request.inputs.add()
    tensor.name, tensor.datatype = "node_ids", "INT64"
    tensor.shape.append(1)
    request.raw_input_contents.append((at % NUM_NODES).to_bytes(8, "little"))
    encoded: bytes = request.SerializeToString()
    return encoded


def _python(checkout: Path) -> str:
    return str(checkout / ".venv" / "bin" / "python")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("other", type=Path, nargs="?")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--requests", type=int, default=320)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--submit", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.submit:
        answer_turns(options.submit)
        return
    folder: Path = options.folder.resolve()
    if not (folder / "repository").exists():
        build(folder)
    os.environ["OMP_NUM_THREADS"] = "1"
    cases = [each for each in options.only.split(",") if each]
    models = options.models.split(",")
    with ExitStack() as stack:
        sides: list[dict[str, Server | Submitter]] = []
        for checkout in (options.other.resolve(), ROOT):
            side: dict[str, Server | Submitter] = {}
            if set(cases) - {"submit"}:
                server = Server(checkout, folder)
                stack.callback(server.close)
                side |= dict.fromkeys(CASES[:-1], server)
            if "submit" in cases:
                submitter = Submitter(checkout, folder)
                stack.callback(submitter.close)
                side["submit"] = submitter
            sides.append(side)
        lines: dict[tuple[str, str], list[list[tuple[float, float]]]] = {}
        for turn in range(-2, options.turns):
            for model in models:
                for case in cases:
                    figures = lines.setdefault((case, model), [[], []])
                    for at in (0, 1) if turn % 2 else (1, 0):
                        found = sides[at][case].turn(case, model, options.requests)
                        if turn >= 0:
                            figures[at].append(found)
    report(lines)


def report(lines: dict[tuple[str, str], list[list[tuple[float, float]]]]) -> None:
    """Print the table."""
    print(
        f"{'':20} {'other':>7} {'here':>7} {'ratio':>6}   {'minima':>14} {'ratio':>6}   "
        f"{'p50':>15} {'ratio':>6}"
    )
    result: dict[str, Any] = {}
    for (case, model), (other, here) in lines.items():
        cpu = [[each[0] for each in side] for side in (other, here)]
        p50 = [[each[1] for each in side] for side in (other, here)]
        medians = [statistics.median(side) for side in cpu]
        ratio = statistics.median([b / a for a, b in zip(*cpu, strict=True)])
        low = [min(side) for side in cpu]
        waits = [statistics.median(side) for side in p50]
        wait_ratio = statistics.median([b / a for a, b in zip(*p50, strict=True)])
        print(
            f"{case:>10} {model:<9} {medians[0]:7.1f} {medians[1]:7.1f} {ratio:6.3f}   {low[0]:6.1f} "
            f"{low[1]:7.1f} {low[1] / low[0]:6.3f}   {waits[0]:7.1f} {waits[1]:7.1f} {wait_ratio:6.3f}"
        )
        result[f"{case}_{model}"] = {
            "us": medians,
            "ratio": ratio,
            "min_us": low,
            "p50_us": waits,
            "p50_ratio": wait_ratio,
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
