"""Beyond one host: edges in a Redis Cluster of three masters, compared with the local graph bit by bit."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import load, server_process
from benchmarks.hopline_server import REQUEST
from benchmarks.large_phases.disk import figures_of, server_command
from benchmarks.large_phases.model import NUM_OUTPUTS
from hopline.graph import Graph

_COMPARED = 500


def measure(folder: Path, seconds: float) -> dict[str, Any]:
    """Push the graph of `folder`, serve it without and with a state cache, and compare answers."""
    graph = Graph.open(folder / "graph")
    nodes = np.random.default_rng(3).integers(0, graph.num_nodes, _COMPARED).tolist()
    with tempfile.TemporaryDirectory() as cache, masters(3) as url:
        began = time.monotonic()
        push = ["-m", "hopline.cli", "graph", "push", str(folder / "graph"), url, "--json"]
        pushed = subprocess.run(
            [server_command(folder, 0)[0], *push], check=True, stdout=subprocess.PIPE, text=True
        )
        figures: dict[str, Any] = json.loads(pushed.stdout)
        figures["push_s"] = round(time.monotonic() - began, 1)
        with served(folder, f"graph.path={folder / 'graph'}", "state_cache.memory_bytes=0") as port:
            local = [_answer(port, node) for node in nodes]
        for name, cache_bytes in (("no_state_cache", 0), ("state_cache", 256 << 20)):
            settings = (
                f"graph.store={url}",
                f"graph.cache={cache}",
                f"state_cache.memory_bytes={cache_bytes}",
            )
            with served(folder, *settings) as port:
                found = [_answer(port, node) for node in nodes]
                figures[f"{name}_equal"] = sum(a == b for a, b in zip(local, found, strict=True))
                for connections in (1, 32):
                    before = _counts(port)
                    row = load.run(
                        port,
                        REQUEST,
                        connections=connections,
                        seconds=seconds,
                        num_ids=graph.num_nodes,
                        seed=connections,
                    )
                    trips = _counts(port) - before
                    figures[f"{name}_c{connections}"] = {
                        **figures_of(row),
                        "round_trips_per_request": round(trips / max(1, row.num_requests), 2),
                    }
        figures["compared"] = _COMPARED
    return figures


@contextlib.contextmanager
def served(folder: Path, *settings: str) -> Iterator[int]:
    """The port of a server for the length of a `with` block."""
    port = server_process.free_port()
    with server_process.serve(
        server_command(folder, port, *settings), port, REQUEST, num_outputs=NUM_OUTPUTS, timeout_s=600
    ):
        yield port


@contextlib.contextmanager
def masters(count: int) -> Iterator[str]:
    """The URL of a Redis Cluster of so many masters, which keep nothing on disk."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            port = server_process.free_port()
            while port > 55_000:  # the cluster's bus is 10,000 above it
                port = server_process.free_port()
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            command = [
                "redis-server",
                "--port",
                str(port),
                "--dir",
                folder,
                "--save",
                "",
                "--appendonly",
                "no",
            ]
            command += ["--cluster-enabled", "yes", "--maxmemory-policy", "noeviction"]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
            ports.append(port)
        addresses = [f"127.0.0.1:{port}" for port in ports]
        for port in ports:
            _until(port, "PING", "PONG")
        create = ["redis-cli", "--cluster", "create", *addresses, "--cluster-yes"]
        subprocess.run(create, check=True, stdout=subprocess.DEVNULL)
        for port in ports:
            _until(port, "CLUSTER INFO", "cluster_state:ok")
        yield f"redis+cluster://{','.join(addresses)}"


def _until(port: int, command: str, expected: str) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        done = subprocess.run(
            ["redis-cli", "-p", str(port), *command.split()], capture_output=True, text=True, check=False
        )
        if expected in done.stdout:
            return
        time.sleep(0.05)
    raise RuntimeError(f"redis-server on port {port} does not answer {expected}")


def _answer(port: int, node: int) -> bytes:
    status, body = server_process.ask(port, REQUEST, node)
    if status != 200:
        raise server_process.ServerFailed(f"status {status}: {body[:300]!r}")
    outputs: bytes = json.dumps(json.loads(body)["outputs"]).encode()
    return outputs


def _counts(port: int) -> float:
    """Reads of the graph store so far."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        text = response.read().decode()
    lines = [line for line in text.splitlines() if line.startswith("hopline_graph_store_reads_total{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)
