"""How the serving benchmark starts Hopline: the only file here that knows its interfaces."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.load import ID, Request

REQUEST = Request("/v1/models/sage/score", f'{{"nodes":[{ID}]}}')
#: Holds every layer-1 row of the workload: 1 M rows of 512 bytes.
TABLE_BYTES = 1 << 30


def prepare(workload_dir: Path) -> Path:
    """Package the workload's model and build its graph, unless that is done already.

    Runs in a separate process, so that the harness does not hold torch and the graph in memory.

    Args:
        workload_dir: a folder written by `benchmarks.workload`.
    Returns: the folder that `command` serves.
    """
    serve_dir = workload_dir / "hopline"
    if not (serve_dir / "repository" / "sage" / "1" / "model.json").is_file():
        subprocess.run([sys.executable, "-m", "benchmarks.hopline_server", str(workload_dir)], check=True)
    return serve_dir


def command(serve_dir: Path, port: int) -> list[str]:
    """The command line of one Hopline worker on loopback, its table empty at the start."""
    return [
        *(sys.executable, "-m", "hopline.cli", "serve"),
        *("--graph", str(serve_dir / "graph"), "--repository", str(serve_dir / "repository")),
        *("--port", str(port), "--grpc-port", "-1", "--set", f"state_cache.memory_bytes={TABLE_BYTES}"),
    ]


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


if __name__ == "__main__":
    build(Path(sys.argv[1]))
