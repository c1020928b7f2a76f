"""Seeded graphs, inputs and weights for the model's tests."""

import numpy as np

from hopline_mesh.model.graph import MeshGraph
from hopline_mesh.model.shape import ModelShape
from hopline_mesh.model.weights import Weights

SMALL = ModelShape(6, 5, 3, 4, 2, hidden=64, d_out=12, d_edge_temporal=2, d_decoder=16)
USUAL = ModelShape(16, 24, 4, 7, 4, d_edge_temporal=8)
ODD = ModelShape(
    5, 3, 2, 3, 9, hidden=96, heads=3, layers=3, d_out=20, d_decoder=40, own_inputs=False,
    directions=("callers", "callers", "callees"), shared=False, edge_layers=2,
)  # fmt: skip
#: Of the usual columns, as a detector has it.
WATCHED = ModelShape(14, 7, 8, 7, 4, d_edge_temporal=4, own_inputs=False)
BARE = ModelShape(4, 0, 0, 1, 1, hidden=32, heads=1, layers=1, d_out=33)


def weights_of(shape, seed=0):
    """Random weights, biases too."""
    rng = np.random.default_rng(seed)
    arrays = Weights.initial(shape, seed).arrays
    return Weights(
        shape, {k: v + rng.normal(0, 0.1, v.shape).astype(np.float32) for k, v in arrays.items()}
    )


def edges_of(n, e, seed=0):
    """Distinct call paths; some services are called far more often than others."""
    rng = np.random.default_rng(seed)
    popular = (np.arange(n) + 1.0) ** -0.7
    keys = np.unique(rng.integers(0, n, 2 * e) * n + rng.choice(n, 2 * e, p=popular / popular.sum()))
    keys = rng.permutation(keys[keys // n != keys % n])[:e]
    return (keys // n).astype(np.int32), (keys % n).astype(np.int32)


def inputs_of(shape, n, e, seed=0):
    """x, h, e and g."""
    rng = np.random.default_rng(seed)
    sizes = ((n, shape.d_in), (n, shape.d_temporal), (e, shape.d_edge), (e, shape.d_edge_temporal))
    return [rng.normal(size=size).astype(np.float32) for size in sizes]


def graph_of(n, sources, targets, mask=None):
    """A graph of these edges."""
    graph = MeshGraph()
    graph.update(n, sources, targets, mask)
    return graph
