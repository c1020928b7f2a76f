"""Phase `features`: a graph's features stored narrow, against the same features in float32.

What, for each of int8, float16 and bfloat16:

    memory_ratio     bytes of the stored matrix with its scales, over float32
    gather_speedup   what the lowest layer reads for 1,024 seeds with fanouts [10, 5]: own rows and the mean
                     of their sampled neighbours, side by side, by the kernel that requests use
    accuracy_drop    points that a trained GraphSAGE loses on test nodes, the larger of two data sets:
                     "Amazon Computers" (accuracy) and Tolokers (ROC AUC: four of five are of one class).
                     Columns are standardised, of Amazon after rows were made to sum to one (PyG's
                     NormalizeFeatures): flags as they are would lose nothing, being exact in all

Of what: the gather on the serving benchmark's graph (1 M nodes, 20 M edges, 128 features; with --quick on
the 50 k one, unless the large one is drawn already), uniform seeds, new ones in each round. Against:
float32 through the same kernel. All in huge pages, one thread, in turns; medians of the thread's processor
time.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import hopline
from benchmarks import workload
from benchmarks.compress_phases.int8 import Sage
from examples import amazon_computers
from hopline import Graph
from hopline.artifact import read_spec
from hopline.engine.interner import Interner
from hopline.engine.kernels import gather_reduce
from hopline.engine.model import Model
from hopline.engine.narrow_kernels import Matrix, matrix_of
from hopline.graph.ids import RangeIds
from hopline.graph.narrow import encode
from hopline.graph.parts import Adjacency, Nodes
from hopline.graph.residency import in_huge_pages
from hopline.graph.schema import EDGE_TYPE, NODE_TYPE, EdgeTypeSchema, GraphSchema, NodeTypeSchema, edge_key
from hopline.sampling import BlockBuffers, Sampler, layer_key
from hopline.types import FloatArray, IdArray

NARROW = ("int8", "float16", "bfloat16")
SEEDS = 1024
_LAYERS = len(workload.FANOUTS)


def measure(quick: bool) -> dict[str, Any]:
    """Figures under `int8_features`, `float16_features` and `bfloat16_features`; see the module."""
    torch.set_num_threads(1)
    figures = _gathers(quick)
    drops = {name: _accuracies(name, quick=quick) for name in ("amazon_computers", "tolokers")}
    for dtype, found in figures.items():
        found["accuracy"] = {name: [points["float32"], points[dtype]] for name, points in drops.items()}
        worst = max(before - after for before, after in found["accuracy"].values())
        found["accuracy_drop"] = round(worst, 3)
    return {f"{dtype}_features": found for dtype, found in figures.items()}


def _gathers(quick: bool) -> dict[str, dict[str, Any]]:
    drawn = (
        workload.cache_dir() / f"full-{workload.FULL.seed}-v{workload.FORMAT}" / "workload.json"
    ).is_file()
    folder = workload.ensure(workload.FULL if drawn or not quick else workload.SMALL)
    sampler, features = _graph(folder)
    stored = {"float32": features, **{dtype: _narrow(features, dtype) for dtype in NARROW}}
    matrices: dict[str, Matrix] = {dtype: _resident(each, sampler) for dtype, each in stored.items()}
    num_nodes, dim = features.shape
    rng = np.random.default_rng(7)
    out = np.empty((SEEDS * (workload.FANOUTS[0] + 1), 2 * dim), np.float32)
    times: dict[str, list[float]] = {dtype: [] for dtype in matrices}
    for turn in range(25 if quick else 60):
        seeds = rng.permutation(num_nodes)[:SEEDS]
        frontier = _frontier(sampler, seeds)
        block = _sampler(sampler, 0).sample(frontier, BlockBuffers())
        neighbors, offsets = block.neighbors.copy(), block.offsets.copy()
        for dtype, base in matrices.items():
            began = time.thread_time()
            gather_reduce(base, frontier, 0, dim, out, 0, base, neighbors, offsets, True, 0, dim, out, dim)
            if turn:  # the first one compiles
                times[dtype].append(time.thread_time() - began)
    wide_s = statistics.median(times["float32"])
    return {
        dtype: {
            "memory_ratio": round(stored[dtype].nbytes / features.nbytes, 4),
            "gather_speedup": round(wide_s / statistics.median(times[dtype]), 3),
            "gather_ms": [round(1e3 * s, 3) for s in (wide_s, statistics.median(times[dtype]))],
            "num_nodes": num_nodes,
        }
        for dtype in NARROW
    }


def _graph(folder: Path) -> tuple[Adjacency, FloatArray]:
    indptr, indices = np.load(folder / "indptr.npy"), np.load(folder / "indices.npy")
    adjacency = Adjacency(
        *EDGE_TYPE,
        indptr,
        indices.astype(np.int32),
        None,
        None,
        None,
        None,
        True,
        int(np.diff(indptr).max()),
    )
    features: FloatArray = np.load(folder / "features.npy")
    return adjacency, features


def _narrow(features: FloatArray, dtype: str) -> Any:
    return features.astype(np.float16) if dtype == "float16" else encode(features, dtype)


def _resident(features: Any, adjacency: Adjacency) -> Matrix:
    """As a server of one worker holds it."""
    num_nodes, dim = features.shape
    empty = Adjacency(
        *EDGE_TYPE,
        np.zeros(num_nodes + 1, np.int64),
        adjacency.indices[:0],
        None,
        None,
        None,
        None,
        False,
        0,
    )
    schema = GraphSchema(
        {NODE_TYPE: NodeTypeSchema(dim)}, {edge_key(*EDGE_TYPE): EdgeTypeSchema(*EDGE_TYPE)}
    )
    graph = Graph(schema, {NODE_TYPE: Nodes(features, RangeIds(num_nodes))}, {empty.key: empty})
    return matrix_of(in_huge_pages(graph).node().features)


def _sampler(adjacency: Adjacency, level: int) -> Sampler:
    fanout = workload.FANOUTS[_LAYERS - 1 - level]
    return Sampler(adjacency, fanout, "uniform", layer_key(0, level, adjacency.key))


def _frontier(adjacency: Adjacency, seeds: IdArray) -> IdArray:
    """The distinct nodes whose first-layer rows are computed: seeds, and what they sample."""
    block = _sampler(adjacency, 1).sample(seeds, BlockBuffers())
    interner = Interner()
    interner.start(seeds.shape[0] + block.neighbors.shape[0])
    interner.add(seeds)
    interner.add(block.neighbors)
    return interner.distinct.copy()


def _accuracies(name: str, *, quick: bool) -> dict[str, float]:
    """`_quality` on test nodes in percent, by how features are stored; trained on float32."""
    x, edges, y, train, test = _data(name)
    graph = Graph.from_edges(edges, x)
    model = _train(graph, x, y, train, epochs=12 if quick else 40)
    with tempfile.TemporaryDirectory(prefix="hopline-features-") as folder:
        packaged = hopline.package(model, graph, folder, name="sage", fanouts=[10, 10], task="multiclass")
        spec = read_spec(packaged.path)
        found = {}
        for dtype in ("float32", *NARROW):
            served = Model(packaged.path, spec, graph.with_features_as(dtype))
            logits = np.concatenate(
                [
                    served.logits(served.final_states({NODE_TYPE: test[a : a + SEEDS]})[NODE_TYPE]).copy()
                    for a in range(0, len(test), SEEDS)
                ]
            )
            found[dtype] = round(100 * _quality(logits, y[test]), 3)
    return found


def _quality(logits: FloatArray, labels: IdArray) -> float:
    """Accuracy; of two classes the area under the ROC curve."""
    if logits.shape[1] > 2:
        return float((logits.argmax(axis=1) == labels).mean())
    score, positive = logits[:, 1] - logits[:, 0], labels == 1
    ranks = np.empty(len(score))
    ranks[np.argsort(score, kind="stable")] = np.arange(1, len(score) + 1)
    count = int(positive.sum())
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(score) - count)))


def _standardised(x: FloatArray) -> FloatArray:
    deviation = x.std(axis=0)
    scaled: FloatArray = ((x - x.mean(axis=0)) / np.where(deviation > 0, deviation, 1)).astype(np.float32)
    return scaled


def _data(name: str) -> tuple[FloatArray, IdArray, IdArray, IdArray, IdArray]:
    """Features, edges [2, E], labels, training rows, test rows."""
    if name == "amazon_computers":
        products = amazon_computers.load(0)
        x = products.x / np.maximum(products.x.sum(axis=1, keepdims=True), 1)
        return _standardised(x), products.edge_index, products.y, products.train, products.test
    data_folder = Path(os.environ.get("HOPLINE_DATA") or "../shared/data")
    with np.load(data_folder / "graphs" / "tolokers.npz") as data:
        x = _standardised(data["x"])
        train, test = (np.flatnonzero(data[f"{part}_masks"][0]) for part in ("train", "test"))
        return x, data["edge_index"].astype(np.int64), data["y"].astype(np.int64), train, test


def _train(graph: Graph, features: FloatArray, labels: IdArray, train: IdArray, epochs: int) -> Sage:
    torch.manual_seed(0)
    x, y, rows = torch.from_numpy(features), torch.from_numpy(labels), torch.from_numpy(train)
    model = Sage(x.shape[1], 64, int(labels.max()) + 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=5e-4)
    for epoch in range(epochs):
        edges: Tensor = amazon_computers.adjacency(graph, 5, epoch)
        loss = torch.nn.functional.cross_entropy(model(x, edges)[rows], y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()
