"""All neighbours: real products against PyG on the full graph, and PyG's own layer-wise inference."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.batch_phases.command import ROOT, clear, hopline, pyg


def measure(workload: Path, serve_dir: Path, scratch: Path, rounds: int, batches: int) -> dict[str, Any]:
    """layerwise_ratio, max_abs_diff_pyg and the rates."""
    out = scratch / "exact"
    hopline(serve_dir, f"npy:{out}", "--restart", "--exact")
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(hopline(serve_dir, f"npy:{out}", "--restart", "--exact")["rows_per_s"])
        theirs.append(pyg(workload, "layerwise", batches))
    clear(out)
    # Apart, so that torch is not in the memory of the harness.
    command = [sys.executable, "-m", "benchmarks.batch_phases.exact", str(scratch)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-500:])
    rate, pyg_rate = median(ours), median(theirs)
    return {
        "exact_nodes_per_s": round(rate),
        "pyg_layerwise_nodes_per_s": round(pyg_rate),
        "layerwise_ratio": round(rate / pyg_rate, 2),
        "max_abs_diff_pyg": float(done.stdout.split()[-1]),
    }


def products(scratch: Path) -> float:
    """Largest difference of exact logits from PyG's on the full graph of `examples/amazon_computers.py`."""
    import torch

    import hopline as package_of
    from examples.amazon_computers import Sage, load
    from hopline.graph import Graph
    from hopline.jobs.batch.npy import NpyFolder
    from hopline.jobs.batch.run import BatchOptions, BatchRun

    data = load(0)
    graph = Graph.from_edges(data.edge_index, data.x).save(scratch / "computers-graph", overwrite=True)
    torch.manual_seed(0)
    model = Sage(data.x.shape[1], int(data.y.max()) + 1).eval()
    with torch.no_grad():
        truth = model(torch.from_numpy(data.x), torch.from_numpy(data.edge_index)).numpy()
    report = package_of.package(
        model,
        graph,
        scratch / "computers-models",
        name="computers",
        fanouts=[10, 10],
        task="multiclass",
        overwrite=True,
    )
    out = scratch / "computers"
    options = BatchOptions(outputs=("logits",), exact=True, restart=True)
    assert graph.path is not None
    BatchRun(report.path, graph.path, scratch / "computers.run", options).run(lambda: NpyFolder(out))
    return float(np.abs(np.load(out / "logits.npy") - truth).max())


if __name__ == "__main__":
    print(products(Path(sys.argv[1])))
