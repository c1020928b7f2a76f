"""Finds the rows of each level that a run computes: all that the head needs, or those of some nodes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hopline.artifact import ModelSpec
from hopline.engine.level import sampler_of
from hopline.graph import Graph
from hopline.jobs.batch.rows import below_of
from hopline.sampling import BlockBuffers, Sampler
from hopline.types import IdArray

#: Rows sampled in one call.
_ROWS = 4096


def head_types(spec: ModelSpec) -> tuple[str, ...]:
    """Node types whose final states the head reads."""
    head = spec.head
    if head.kind == "link" and head.dst_node_type not in ("", head.node_type):
        return head.node_type, head.dst_node_type
    return tuple(spec.by_type)


def needed_levels(spec: ModelSpec, graph: Graph) -> list[list[str]]:
    """For each level, the node types that are computed there, sorted; none if features are the state."""
    wanted = set(head_types(spec))
    found: list[list[str]] = []
    for level in range(spec.num_layers, -1, -1):
        stages = spec.levels[level]
        found.append(sorted(name for name in wanted if stages[name].file is not None))
        below: set[str] = set()
        for name in wanted:
            below |= below_of(stages[name], graph, name)
        wanted = below
    return found[::-1]


def samplers_of(spec: ModelSpec, graph: Graph, level: int, node_type: str) -> list[Sampler]:
    """The samplers of a stage, as the engine's `Level` creates them."""
    keys = {entry.edge_type for entry in spec.levels[level][node_type].inputs if entry.edge_type}
    return [sampler_of(spec, graph, level, key) for key in sorted(keys)]


def rows_for(
    spec: ModelSpec, graph: Graph, needed: list[list[str]], wanted: Mapping[str, IdArray]
) -> dict[tuple[int, str], IdArray]:
    """The rows that the final states of some nodes need, level by level.

    Args:
        wanted: node type -> int64 ids.

    Returns: (level, node type) -> int64 ids, ascending.
    """
    masks = {name: np.zeros(graph.nodes[name].num_nodes, np.bool_) for name in wanted}
    for name, ids in wanted.items():
        masks[name][ids] = True
    found: dict[tuple[int, str], IdArray] = {}
    for level in range(spec.num_layers, -1, -1):
        below: dict[str, np.ndarray] = {}
        for name in needed[level]:
            rows = np.flatnonzero(masks[name])
            found[level, name] = rows
            stage = spec.levels[level][name]
            for source in below_of(stage, graph, name):
                below.setdefault(source, np.zeros(graph.nodes[source].num_nodes, np.bool_))
            if name in below_of(stage, graph, name):
                below[name][rows] = True
            for sampler in samplers_of(spec, graph, level, name):
                buffers = BlockBuffers()
                for a in range(0, rows.shape[0], _ROWS):
                    block = sampler.sample(rows[a : a + _ROWS], buffers)
                    below[sampler.adjacency.src][block.neighbors] = True
        masks = below
    return found
