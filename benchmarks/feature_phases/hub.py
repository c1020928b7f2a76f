"""A node with 10 M in-neighbours: what requests that touch it cost, compared with those that do not.

    in-neighbours of        the hub   a toucher                  another
    are                     leaves    the hub and other others   others

Touchers and others have equally many in-neighbours, no more than are sampled, so that every request of a
toucher reads the hub and its sampled leaves, and all requests read equally many rows. Features lie in the
graph; without state caches, which would sample the hub once and for all.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np

from benchmarks.feature_phases.server import hopline
from benchmarks.hopline_server import REQUEST
from benchmarks.workload import cache_dir
from hopline.types import IdArray

DIM, NUM_OUTPUTS = 8, 16
FANOUT = 5
NUM_TOUCHERS = NUM_OTHERS = 100_000
_FORMAT = 1
#: One request in so many of those that touch the hub is for the hub itself.
_HUB_EVERY = 20


def measure(num_leaves: int, num_requests: int) -> dict[str, float]:
    """p99 in ms of both kinds, asked in turns over one connection, and `hub_p99_ratio`.

    Args:
        num_leaves: in-neighbours of the hub.
        num_requests: of each kind.
    """
    serve_dir = _ensure(num_leaves)
    rng = np.random.default_rng(6)
    touching = rng.integers(1, 1 + NUM_TOUCHERS, num_requests)
    touching[::_HUB_EVERY] = 0
    others = rng.integers(1 + NUM_TOUCHERS, 1 + NUM_TOUCHERS + NUM_OTHERS, num_requests)
    nodes = np.stack([touching, others], axis=1).ravel()
    with hopline(serve_dir, {"state_cache.memory_bytes": 0}, NUM_OUTPUTS) as server:
        _ask(server.port, nodes[: num_requests // 5])
        seconds = _ask(server.port, nodes).reshape(-1, 2)
    hub_ms, other_ms = 1e3 * np.percentile(seconds, 99, axis=0)
    return {
        "hub_p99_ms": round(float(hub_ms), 3),
        "other_p99_ms": round(float(other_ms), 3),
        "hub_p99_ratio": round(float(hub_ms / other_ms), 3),
    }


def _ask(port: int, nodes: IdArray) -> np.ndarray:
    """Seconds of each request; one connection, one at a time."""
    seconds = np.empty(nodes.shape[0])
    with closing(socket.create_connection(("127.0.0.1", port), 10.0)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number, node in enumerate(nodes.tolist()):
            body = REQUEST.for_node(node)
            request = (
                f"{REQUEST.method} {REQUEST.path} HTTP/1.1\r\nHost: a\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
            ).encode()
            began = time.perf_counter()
            connection.sendall(request)
            answer = connection.recv(65536)
            seconds[number] = time.perf_counter() - began
            # an answer of 16 numbers comes in one piece
            assert answer.startswith(b"HTTP/1.1 200"), answer[:300]
            assert answer.endswith(b"}"), answer[-300:]
    return seconds


def _ensure(num_leaves: int) -> Path:
    """The folder with graph and model, built first if it is missing."""
    folder = cache_dir() / f"hub-{num_leaves}-v{_FORMAT}"
    if not (folder / "repository" / "sage" / "1" / "model.json").is_file():
        # a separate process: torch and the edges must not stay in memory
        line = [sys.executable, "-m", "benchmarks.feature_phases.hub", str(folder), str(num_leaves)]
        subprocess.run(line, check=True)
    return folder


def _build(folder: Path, num_leaves: int) -> None:
    import torch
    from torch_geometric.nn import SAGEConv

    from hopline import Graph, package

    class Sage(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = SAGEConv(DIM, NUM_OUTPUTS)
            self.conv2 = SAGEConv(NUM_OUTPUTS, NUM_OUTPUTS)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    def graph(num_leaves: int, num_each: int) -> Graph:
        """The hub is node 0, then come touchers, others and leaves."""
        rng = np.random.default_rng(7)
        first_other, first_leaf = 1 + num_each, 1 + 2 * num_each
        num_nodes = first_leaf + num_leaves
        drawn = rng.integers(first_other, first_leaf, (2 * num_each, FANOUT))
        drawn[:num_each, 0] = 0
        sources = np.concatenate([drawn.ravel(), np.arange(first_leaf, num_nodes)])
        destinations = np.concatenate(
            [np.repeat(np.arange(1, first_leaf), FANOUT), np.zeros(num_leaves, np.int64)]
        )
        features = rng.standard_normal((num_nodes, DIM), np.float32)
        return Graph.from_edges((sources, destinations), features)

    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(8)
    model = Sage().eval()
    # packaging checks itself on whole neighbourhoods: on a small hub, of the same schema
    small, repository = graph(1000, 1000), folder / "repository"
    package(model, small, repository, name="sage", fanouts=[FANOUT, FANOUT], task="embedding")
    graph(num_leaves, NUM_TOUCHERS).save(folder / "graph")


if __name__ == "__main__":
    _build(Path(sys.argv[1]), int(sys.argv[2]))
