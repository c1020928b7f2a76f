"""Models on a GPU against PyG on the same GPU: a split one and one served whole. Needs CUDA.

    split_call_ratio    the layers of a split GraphSAGE in ONNX Runtime, sampling included, over the PyG
                        module on the same ego-graphs in one batch, 32 seeds
    whole_call_ratio    a whole model (CUDA graphs where it allows padding) over the PyG module, one seed
    whole_rungs         sizes that run from a recording

Not run on a GPU so far: it was written where there was none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from hopline.artifact import read_spec
from hopline.engine.ego import EgoModel
from hopline.engine.model import Model
from hopline.graph import Graph
from hopline.runtimes.placement import Placement, place_models
from hopline.types import IdArray

NOT_MEASURED = "not measured"
_SEEDS = 32


def measure_gpu(place: Path, graph: Graph, seeds: IdArray) -> dict[str, Any] | str:
    """Figures of the module docstring; "not measured" where torch finds no GPU.

    Args:
        place: holds `models/pooled/1`, a whole model of `graph`.
    """
    import torch

    if not torch.cuda.is_available():
        return NOT_MEASURED
    place_models(Placement("cuda"))
    try:
        return _whole(place, graph, seeds) | _split(place, graph, seeds)
    finally:
        place_models(Placement())


def _whole(place: Path, graph: Graph, seeds: IdArray) -> dict[str, Any]:
    import torch

    from benchmarks.compress_phases.compiled import module

    folder = place / "models" / "pooled" / "1"
    model = EgoModel(folder, read_spec(folder), graph)
    peer = module().to("cuda")
    egos = [model._slots("node", seed, np.iinfo(np.int64).max) for seed in seeds[:50].tolist()]
    row = np.zeros(1, np.int64)

    def ours(i: int) -> None:
        model._whole.run_slots(egos[i], row)

    def theirs(i: int) -> None:
        with torch.no_grad():
            peer(*(torch.from_numpy(np.ascontiguousarray(a)).to("cuda") for a in egos[i].values())).cpu()

    ratio = _in_turns(ours, theirs, len(egos))
    recorded = getattr(model._whole._program, "recorded", ())
    return {"whole_call_ratio": ratio, "whole_rungs": list(recorded)}


def _split(place: Path, graph: Graph, seeds: IdArray) -> dict[str, Any]:
    import torch
    from torch_geometric.nn import GraphSAGE

    from hopline import package

    dim = int(graph.node().features.shape[1])
    sage = GraphSAGE(dim, 64, 2, 8).eval()
    report = package(sage, graph, place / "split", name="sage", fanouts=[10, 5], task="multiclass")
    model = Model(report.path, report.spec, graph)
    whole = package(
        sage, graph, place / "split", name="ego", fanouts=[10, 5], task="multiclass", runtime="torch"
    )
    sampler = EgoModel(whole.path, whole.spec, graph)
    peer = sage.to("cuda")
    batches = [seeds[i : i + _SEEDS] for i in range(0, 20 * _SEEDS, _SEEDS)]

    def ours(i: int) -> None:
        model.final_states({"node": batches[i]})

    def theirs(i: int) -> None:
        egos = [sampler._slots("node", seed, np.iinfo(np.int64).max) for seed in batches[i].tolist()]
        rows = [ego["features:node"] for ego in egos]
        starts = np.cumsum([0, *(len(part) for part in rows[:-1])])
        edges = [
            ego["edge_index:node__to__node"] + start
            for ego, start in zip(egos, starts.tolist(), strict=True)
        ]
        x = torch.from_numpy(np.concatenate(rows)).to("cuda")
        edge_index = torch.from_numpy(np.concatenate(edges, axis=1)).to("cuda")
        with torch.no_grad():
            peer(x, edge_index)[torch.from_numpy(starts).to("cuda")].cpu()

    return {"split_call_ratio": _in_turns(ours, theirs, len(batches))}


def _in_turns(ours: Callable[[int], None], theirs: Callable[[int], None], count: int) -> float:
    seconds: tuple[list[float], list[float]] = [], []
    for turn in range(4):
        for i in range(count):
            for taken, run in zip(seconds, (ours, theirs), strict=True):
                began = time.perf_counter()
                run(i)
                if turn:
                    taken.append(time.perf_counter() - began)
    return round(median(seconds[0]) / median(seconds[1]), 3)
