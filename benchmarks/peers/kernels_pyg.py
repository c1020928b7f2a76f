"""PyG's side of `benchmarks.kernels`: times a batch size when a line on stdin asks for it.

Each line is "<seeds per call> <calls>"; the answer is one JSON line of microseconds per call.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch_geometric.sampler import NodeSamplerInput

from benchmarks.peers.pyg_model import Scorer


def main() -> None:
    """Serve timings until stdin closes."""
    scorer = Scorer(Path(sys.argv[1]), num_threads=1)
    num_nodes = len(scorer.features)
    rng = np.random.default_rng(1)
    gc.collect()
    gc.freeze()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        num_seeds, calls = map(int, line.split())
        total, parts = [], []
        for _ in range(calls):
            seeds = rng.integers(0, num_nodes, num_seeds)
            began = time.perf_counter()
            scorer.score(seeds)
            total.append(time.perf_counter() - began)
            parts.append(timed_parts(scorer, torch.from_numpy(rng.integers(0, num_nodes, num_seeds))))
        sample, gather, layers = (1e6 * np.median(column) for column in zip(*parts, strict=True))
        whole = 1e6 * float(np.median(total))
        print(
            json.dumps({"total": whole, "sample": sample, "gather": gather, "layers": layers}), flush=True
        )


@torch.inference_mode()
def timed_parts(scorer: Scorer, seeds: torch.Tensor) -> tuple[float, float, float]:
    """Seconds of sampling, gathering and the model, for one call."""
    t0 = time.perf_counter()
    sample = scorer.sampler.sample_from_nodes(NodeSamplerInput(input_id=None, node=seeds))
    t1 = time.perf_counter()
    x = scorer.features.index_select(0, sample.node)
    t2 = time.perf_counter()
    scorer.model(x, sample.row, sample.col, len(seeds)).numpy()
    return t1 - t0, t2 - t1, time.perf_counter() - t2


if __name__ == "__main__":
    main()
