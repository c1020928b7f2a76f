"""Start of Hopline for the serving benchmark: the only file here that knows its interfaces."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.load import ID, Request
from benchmarks.model_workload import Facts


def request(model: str) -> Request:
    """The request for one node of a model of `benchmarks.model_workload`."""
    return Request(f"/v1/models/{model}/score", f'{{"nodes":[{ID}]}}')


REQUEST = request("sage")
#: Holds every layer-1 row of the workload: 1 M rows of 512 bytes.
STATE_CACHE_BYTES = 1 << 30
#: Nodes of one request of `fill`.
_FILL_NODES = 1000


def prepare(workload_dir: Path) -> Path:
    """Package the workload's model and build its graph, unless that is done already.

    Runs in a separate process, so that the harness does not hold torch and the graph in memory.

    Args:
        workload_dir: a folder written by `benchmarks.workload`.
    Returns: the folder that `command` serves.
    """
    serve_dir = workload_dir / "hopline"
    model = Facts.read(workload_dir).model
    if not (serve_dir / "repository" / model / "1" / "model.json").is_file():
        subprocess.run([sys.executable, "-m", "benchmarks.hopline_server", str(workload_dir)], check=True)
    return serve_dir


def command(serve_dir: Path, port: int) -> list[str]:
    """The command line of one Hopline worker on loopback, its state cache empty at the start."""
    return [
        *(sys.executable, "-m", "hopline.cli", "serve"),
        *("--graph", str(serve_dir / "graph"), "--repository", str(serve_dir / "repository")),
        *(
            "--port",
            str(port),
            "--grpc-port",
            "-1",
            "--set",
            f"state_cache.memory_bytes={STATE_CACHE_BYTES}",
        ),
    ]


def fill(port: int, num_ids: int, to: Request = REQUEST) -> None:
    """Ask for every node once, so that the state cache holds every row that a request can read."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        for first in range(0, num_ids, _FILL_NODES):
            nodes = list(range(first, min(first + _FILL_NODES, num_ids)))
            connection.request("POST", to.path, json.dumps({"nodes": nodes}))
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"filling the state cache: status {answer.status}: {body[:300]!r}")


def build(workload_dir: Path) -> None:
    """Write `<workload>/hopline/graph` and `<workload>/hopline/repository/sage/1`."""
    import torch
    from torch_geometric.nn import SAGEConv

    from hopline import Graph, package

    class Sage(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = SAGEConv(128, 128)
            self.conv2 = SAGEConv(128, 64)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    indptr = np.load(workload_dir / "indptr.npy", mmap_mode="r")
    sources = np.load(workload_dir / "indices.npy")
    destinations = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    graph = Graph.from_edges((sources, destinations), np.load(workload_dir / "features.npy"))
    graph.save(workload_dir / "hopline" / "graph")
    model = Sage().eval()
    state = {
        path.name.removesuffix(".npy"): torch.from_numpy(np.load(path))
        for path in workload_dir.glob("conv*.npy")
    }
    model.load_state_dict(state)
    package(
        model,
        graph,
        workload_dir / "hopline" / "repository",
        name="sage",
        fanouts=[10, 5],
        task="embedding",
        overwrite=True,
    )


def build_typed(workload_dir: Path, facts: Facts) -> None:
    """Write the graph and the packaged model of gatv2 or hetero into `<workload>/hopline`."""
    from benchmarks.exact_nodes import module_of
    from hopline import package
    from hopline.graph import EdgeTable, Graph, NodeTable

    edges = {}
    for number, edge in enumerate(facts.edge_types):
        indptr, sources = (np.load(workload_dir / name) for name in facts.list_files(number))
        edges[edge] = EdgeTable(np.stack([sources, np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))]))
    nodes = {name: NodeTable(np.load(workload_dir / facts.features_file(name))) for name in facts.num_nodes}
    graph = Graph.from_tables(nodes, edges)
    graph.save(workload_dir / "hopline" / "graph")
    package(
        module_of(workload_dir, facts),
        graph,
        workload_dir / "hopline" / "repository",
        name=facts.model,
        fanouts=list(facts.fanouts),
        task="embedding",
        target=facts.target,
        overwrite=True,
    )


if __name__ == "__main__":
    given = Path(sys.argv[1])
    facts = Facts.read(given)
    build(given) if facts.model == "sage" else build_typed(given, facts)
