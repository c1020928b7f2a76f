"""All nodes with the model's fanouts: Hopline and PyG in turns, the answers, the memory, the limit."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.batch_phases.command import clear, hopline, pyg
from hopline.artifact import read_spec
from hopline.engine.answer import Answerer
from hopline.engine.kernels import gather
from hopline.engine.model import Model
from hopline.graph import Graph
from hopline.sampling.keyed import frozen
from hopline.types import ScoreRequest

CHECKED = 10_000
_CHUNK = 500


def measure(workload: Path, serve_dir: Path, scratch: Path, rounds: int, batches: int) -> dict[str, Any]:
    """nodes_per_s, pyg_nodes_per_s, ratio, peak_rss_bytes, max_abs_diff_online and what belongs to them."""
    out = scratch / "sampled"
    hopline(serve_dir, f"npy:{out}", "--restart")  # kernels compiled, files in the page cache
    ours: list[dict[str, Any]] = []
    theirs = []
    for _ in range(rounds):
        ours.append(hopline(serve_dir, f"npy:{out}", "--restart"))
        theirs.append(pyg(workload, "sampled", batches))
        ours.append(hopline(serve_dir, f"npy:{out}", "--restart"))
    rate, pyg_rate = median(run["rows_per_s"] for run in ours), median(theirs)
    graph = Graph.open(serve_dir / "graph")
    gathered = sum(level["gathered_bytes"] for level in ours[0]["levels"])
    bandwidth = gather_rate(graph)
    found = {
        "nodes_per_s": round(rate),
        "pyg_nodes_per_s": round(pyg_rate),
        "ratio": round(rate / pyg_rate, 2),
        "peak_rss_bytes": max(run["peak_rss_bytes"] for run in ours),
        "max_abs_diff_online": difference_online(serve_dir, graph, out),
        "gathered_bytes": gathered,
        "gather_limit_bytes_per_s": round(bandwidth),
        "share_of_limit": round(gathered / bandwidth * rate / ours[0]["rows"], 3),
    }
    clear(out)
    small = hopline(serve_dir, f"npy:{out}", "--restart", "--memory", "400MiB")
    found |= {
        "nodes_per_s_400_mib": round(small["rows_per_s"]),
        "peak_rss_bytes_400_mib": small["peak_rss_bytes"],
    }
    clear(out)
    return found


def difference_online(serve_dir: Path, graph: Graph, out: Path) -> float:
    """Largest difference of the table from the online answers to some nodes."""
    folder = serve_dir / "repository" / "sage" / "1"
    answerer = Answerer(Model(folder, read_spec(folder), graph), ("embedding",), 1)
    table = np.load(out / "embedding.npy", mmap_mode="r")
    nodes = np.random.default_rng(5).choice(graph.num_nodes, min(CHECKED, graph.num_nodes), replace=False)
    worst = 0.0
    for a in range(0, len(nodes), _CHUNK):
        chunk = nodes[a : a + _CHUNK]
        (result,) = answerer.answer([ScoreRequest("sage", nodes=chunk.tolist(), outputs=("embedding",))])
        if isinstance(result, Exception):
            raise result
        worst = max(worst, float(np.abs(result.outputs["embedding"] - table[chunk]).max()))
    return worst


def gather_rate(graph: Graph, threads: int = 2) -> float:
    """Bytes a second at which these threads copy random rows of the features: the limit of a run that did
    nothing but read what its levels read."""
    features = frozen(graph.node().features)
    ids = [np.random.default_rng(k).integers(0, len(features), 200_000) for k in range(threads)]
    outs = [np.empty((1024, features.shape[1]), np.float32) for _ in range(threads)]

    def copy(k: int) -> None:
        for a in range(0, len(ids[k]) - 1023, 1024):
            gather(features, ids[k][a : a + 1024], 0, features.shape[1], outs[k], 0)

    best = 0.0
    for _ in range(4):
        running = [threading.Thread(target=copy, args=(k,)) for k in range(threads)]
        began = time.perf_counter()
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        best = max(best, sum(len(i) for i in ids) * features.shape[1] * 4 / (time.perf_counter() - began))
    return best
