"""Forgetting nodes of a live graph under load, against a graph that is built without them.

    python -m benchmarks.forget [--quick]

A server with two workers answers and takes events. Nodes are forgotten meanwhile, then one more before each
step at which the forgetting process is killed. Afterwards answers about other nodes are compared, byte for
byte, with those of a server on a graph that is built from the final lists without the nodes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.machine import commit, machine
from benchmarks.server_process import free_port
from hopline.graph import Graph
from hopline_drift.forget.run import STEPS, Places, forget

_KILLS = ("journal", *STEPS, "search")
_WIDTH, _DEGREE, _GONE, _AT_ONCE = 16, 10, 100, 250


def build(folder: Path, names: list[str], rows: Any, edges: list[tuple[str, str]]) -> Graph:
    """A graph of lists."""
    src, dst = zip(*edges, strict=True)
    return Graph.from_edges([[*src], [*dst]], rows, ids=names).save(folder)


def package(graph: Graph, repository: Path) -> None:
    """A model of two layers that reads all neighbours."""
    import torch
    from torch_geometric.nn import SAGEConv

    import hopline

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = SAGEConv(_WIDTH, 32), SAGEConv(32, 4)

        def forward(self, x: Any, edge_index: Any) -> Any:
            return self.second(self.first(x, edge_index).relu(), edge_index)

    hopline.package(Net().eval(), graph, repository, name="net", fanouts=[-1, -1], task="multiclass")


@contextlib.contextmanager
def served(graph: Path, repository: Path, *flags: str) -> Iterator[str]:
    """A server on a free port, once it is ready."""
    port = free_port()
    words = [
        "serve",
        "--graph",
        graph,
        "--repository",
        repository,
        "--port",
        port,
        "--grpc-port",
        "-1",
        *flags,
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "hopline", *map(str, words)], stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(1200):
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{url}/readyz").status_code == 200:
                    break
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def answers(url: str, names: list[str]) -> dict[str, Any]:
    """Logits of nodes by id."""
    found: dict[str, Any] = {}
    for begin in range(0, len(names), _AT_ONCE):
        part = names[begin : begin + _AT_ONCE]
        body = {"nodes": part, "outputs": ["logits"]}
        answer = httpx.post(f"{url}/v1/models/net/score", json=body, timeout=120).json()
        found |= dict(zip(part, answer["outputs"]["logits"], strict=True))
    return found


class Load:
    """Requests about nodes, and events that join them, until it is stopped."""

    def __init__(self, url: str, names: list[str], gone: list[str]) -> None:
        self.url, self.names, self.gone = url, names, gone
        self.edges: list[tuple[str, str]] = []
        self.last_seen, self.count, self.failed = 0.0, 0, 0
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._ask, self._ask, self._send)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End, and wait."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        rng = np.random.default_rng(threading.get_ident())
        with httpx.Client(timeout=60) as client:
            while not self._stopped.is_set():
                name = str(rng.choice(self.gone if rng.random() < 0.5 else self.names))
                answer = client.post(f"{self.url}/v1/models/net/score", json={"nodes": [name]})
                self.count += 1
                if name in self.gone and answer.status_code == 200:
                    self.last_seen = time.monotonic()
                elif answer.status_code != 200 and name not in self.gone:
                    self.failed += 1

    def _send(self) -> None:
        rng = np.random.default_rng(1)
        while not self._stopped.wait(0.02):
            edge = (str(rng.choice(self.names)), str(rng.choice(self.names)))
            event = {"op": "add_edge", "src": edge[0], "dst": edge[1]}
            if httpx.post(f"{self.url}/v1/graph/events", json=event, timeout=60).json().get("applied") == 1:
                self.edges.append(edge)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="12,000 nodes in place of 50,000")
    count = 12_000 if parser.parse_args().quick else 50_000
    rng = np.random.default_rng(0)
    names = [f"person-{at:08d}" for at in range(count)]
    ends = rng.integers(0, count, (2, count * _DEGREE))
    edges = [(names[a], names[b]) for a, b in ends.T.tolist()]
    rows = rng.normal(size=(count, _WIDTH)).astype(np.float32)
    gone = [names[at] for at in rng.choice(count, _GONE + len(_KILLS), replace=False).tolist()]
    kept = [name for name in names if name not in set(gone)]
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        graph = build(folder / "graph", names, rows, edges)
        package(graph, folder / "models")
        places = Places(folder / "graph", folder / "graph.live")
        times: dict[str, float] = {}
        with served(folder / "graph", folder / "models", "--live", "--workers", "2") as url:
            load = Load(url, kept, gone[:_GONE])
            time.sleep(2)
            report = forget(
                places, gone[:_GONE], on_step=lambda step: times.setdefault(step, time.monotonic())
            )
            time.sleep(1)
            load.stop()
            killed = [_killed(places, name, step) for name, step in zip(gone[_GONE:], _KILLS, strict=True)]
            live = answers(url, kept[:10_000])
        rest = {name: row for name, row in zip(names, rows, strict=True) if name not in set(gone)}
        joined = [each for each in edges + load.edges if each[0] in rest and each[1] in rest]
        build(folder / "anew", [*rest], np.stack([*rest.values()]), joined)
        with served(folder / "anew", folder / "models") as url:
            anew = answers(url, kept[:10_000])
        differing = sum(live[name] != anew[name] for name in live)
        seconds = {
            step: round(times[after] - times[step], 3)
            for step, after in zip([*times], [*times][1:], strict=False)
        }
        found = {
            "benchmark": "forget",
            "nodes": count,
            "edges": len(joined),
            "forgotten": len(gone),
            "requests": load.count,
            "failed": load.failed,
            "events": len(load.edges),
            "last_seen_s": round(load.last_seen - times["removed"], 3),
            "step_s": seconds,
            "left": sum(map(len, report.left.values())),
            "found_before": {name: len(files) for name, files in report.found.items()},
            "kills": len(killed),
            "kills_resumed": sum(killed),
            "compared": len(live),
            "differing": differing,
            "machine": machine(),
            "commit": commit(),
        }
        for name, value in found.items():
            print(f"{name:>16}  {value}")
        print(json.dumps(found))
        sys.exit(int(bool(differing or found["left"] or not all(killed) or load.failed)))


def _killed(places: Places, name: str, step: str) -> bool:
    """True if a node is forgotten although the process is killed before a step."""
    pid = os.fork()
    if pid == 0:
        forget(
            places, [name], on_step=lambda at: os.kill(os.getpid(), signal.SIGKILL) if at == step else None
        )
        os._exit(0)
    if os.waitpid(pid, 0)[1] != signal.SIGKILL:
        return False
    return forget(places, [name] if step == "journal" else []).is_clean


if __name__ == "__main__":
    main()
