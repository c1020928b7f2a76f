"""The four graphs of `benchmarks.models`, as arrays: skewed at both ends, features N(0, 0.01)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.models_phases.modules import DIM, EDGE_TYPES, NODE_TYPES, NUM_LEARNED, NUM_RELATIONS
from benchmarks.workload import draw_ends
from hopline.types import FloatArray, IdArray

NUM_NODES, NUM_EDGES = 100_000, 2_000_000


@dataclass(frozen=True, slots=True)
class Drawn:
    """Features by node type, and edges int64 [2, E] by (source, relation, destination)."""

    features: dict[str, FloatArray]
    edges: dict[tuple[str, str, str], IdArray]


def draw(kind: str, scale: float = 1.0) -> Drawn:
    """Draw a graph.

    Args:
        kind: "plain", "relations", "types", or "learned": without features, as many nodes as the table
            of `lightgcn` has rows.
        scale: of the numbers of nodes and edges; of edges only where the graph is "learned".
    """
    rng = np.random.default_rng(["plain", "relations", "types", "learned"].index(kind))
    if kind == "types":
        sizes = {name: int(size * scale) for name, size in NODE_TYPES.items()}
        kinds = EDGE_TYPES
    else:
        sizes = {"node": NUM_LEARNED if kind == "learned" else int(NUM_NODES * scale)}
        count = NUM_RELATIONS if kind == "relations" else 1
        kinds = tuple(("node", "to" if count == 1 else f"r{number}", "node") for number in range(count))
    ranked = {name: rng.permutation(size) for name, size in sizes.items()}
    total = 10 * NUM_EDGES if kind == "learned" else NUM_EDGES
    num_edges = int(total * scale) // len(kinds)
    edges = {}
    for edge in kinds:
        sources, targets = (draw_ends(rng, ranked[edge[end]], num_edges) for end in (0, 2))
        order = np.lexsort((sources, targets))
        edges[edge] = np.stack([sources[order], targets[order]])
    width = 0 if kind == "learned" else DIM
    features = {name: 0.1 * rng.standard_normal((size, width), np.float32) for name, size in sizes.items()}
    return Drawn(features, edges)
