"""Splits a large mesh into parts by namespace, with the services that each part depends on.

A part's *core* are its own services. Its *halo* are the services that the core's embeddings depend on:
those that the core attends to in the last layer, those that these attend to in the layer before, and the
callers of the core, whose embeddings the edges into the core need. With a complete halo the results of a
part equal those of the whole mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.model.encoder import Encoder, Reconstruction
from hopline_mesh.model.graph import BoolArray, IntArray, Lists, MeshGraph
from hopline_mesh.model.shape import ModelShape
from hopline_mesh.model.weights import FloatArray, Weights

#: Services above which a mesh is split: up to this size one pass takes at most 50 ms on two cores.
WHOLE_UP_TO = 20_000


class Part(NamedTuple):
    """One part of a mesh.

    Attributes:
        nodes: int32, positions in the mesh of all its nodes, ascending.
        core: bool, which of `nodes` are its own.
        edges: int32, which edges of the mesh lie within `nodes`, ascending.
        own_edges: bool, which of `edges` lead to its core.
        sources: int32, the edges' callers by position in `nodes`.
        targets: int32, their callees.
    """

    nodes: IntArray
    core: BoolArray
    edges: IntArray
    own_edges: BoolArray
    sources: IntArray
    targets: IntArray


def group_sizes(groups: IntArray, most: int) -> IntArray:
    """Group namespaces into parts of at most `most` services; a larger namespace is a separate part.

    Args:
        groups: int32 [n], the namespace of each node, from 0.

    Returns: int32 [n], the part of each node, from 0.
    """
    sizes = np.bincount(groups)
    part_of = np.zeros(len(sizes), np.int32)
    part, filled = -1, most
    for group in np.argsort(-sizes, kind="stable"):
        if sizes[group] == 0:
            continue
        if filled + sizes[group] > most:
            part, filled = part + 1, 0
        part_of[group] = part
        filled += sizes[group]
    return part_of[groups]


def split(graph: MeshGraph, parts: IntArray, shape: ModelShape, hops: int | None = None) -> list[Part]:
    """Split a mesh into parts.

    Args:
        graph: of the whole mesh.
        parts: int32 [n], the part of each node, from 0.
        shape: of the model, for the neighbours of each layer.
        hops: number of layers of the halo; None = all, and results are those of the whole mesh. 1 keeps
            only nodes at the other end of an edge that crosses the boundary.
    """
    n = graph.num_nodes
    found = []
    for part in range(int(parts.max()) + 1 if n else 0):
        core = parts == part
        if not core.any():
            continue
        seen = core | _reached(graph.callers, core, n)
        for depth, listens in enumerate(reversed(shape.listens)):
            if hops is not None and depth >= hops:
                break
            seen |= _reached(graph.callers if listens == "callers" else graph.callees, seen, n)
        nodes = np.flatnonzero(seen).astype(np.int32)
        places = np.full(n, -1, np.int32)
        places[nodes] = np.arange(len(nodes), dtype=np.int32)
        edges = np.flatnonzero(seen[graph.sources] & seen[graph.targets]).astype(np.int32)
        found.append(
            Part(
                nodes,
                core[nodes],
                edges,
                core[graph.targets[edges]],
                places[graph.sources[edges]],
                places[graph.targets[edges]],
            )
        )
    return found


def _reached(lists: Lists, rows: BoolArray, n: int) -> BoolArray:
    """Nodes that are in the list of any of these."""
    indptr = lists.indptr[: n + 1]
    owners = np.repeat(np.arange(n), np.diff(indptr))
    reached = np.zeros(n, bool)
    reached[lists.others[: indptr[n]][rows[owners]]] = True
    return reached


@dataclass(frozen=True, slots=True)
class _Ready:
    part: Part
    graph: MeshGraph
    encoder: Encoder


class PartEncoder:
    """One model over the parts of a mesh, several in parallel. Not thread-safe.

    Args:
        weights: of the model, the same for all parts.
        threads: parts that are computed at the same time.
        usual_edge: see `Encoder`.
    """

    def __init__(self, weights: Weights, threads: int = 2, usual_edge: FloatArray | None = None) -> None:
        self._weights, self._usual_edge = weights, usual_edge
        self._pool = ThreadPoolExecutor(threads, "mesh-part")
        self._ready: list[_Ready] = []
        self._version: tuple[object, int] | None = None
        self._cut: IntArray = np.zeros(0, np.int32)
        self._num_rows = 0

    @property
    def parts(self) -> Sequence[Part]:
        """Of the last pass."""
        return [each.part for each in self._ready]

    @property
    def work(self) -> float:
        """Rows of all parts with their halos, over those of the whole mesh, in the last pass."""
        rows = sum(len(each.part.nodes) + len(each.part.edges) for each in self._ready)
        return rows / max(1, self._num_rows)

    def reconstruct(
        self,
        graph: MeshGraph,
        parts: IntArray,
        x: FloatArray,
        h: FloatArray,
        e: FloatArray,
        g: FloatArray,
        hops: int | None = None,
    ) -> Reconstruction:
        """As `Encoder.reconstruct`, part by part; arrays are new ones.

        Args:
            parts: int32 [n], the part of each node; the mesh is split again if they or the graph changed.
            hops: as of `split`.
        """
        if self._version != (graph, graph.version) or not np.array_equal(self._cut, parts):
            self._prepare(split(graph, parts, self._weights.shape, hops))
            self._version, self._cut = (graph, graph.version), parts.copy()
        shape, n, num_edges = self._weights.shape, graph.num_nodes, graph.num_edges
        self._num_rows = n + num_edges
        result = Reconstruction(
            np.zeros((n, shape.d_out), np.float32),
            np.zeros((n, shape.n_node_targets), np.float32),
            np.zeros((num_edges, shape.n_edge_targets), np.float32),
            np.zeros(num_edges, np.float32),
        )

        def run(each: _Ready) -> None:
            part = each.part
            found = each.encoder.reconstruct(
                each.graph, x[part.nodes], h[part.nodes], e[part.edges], g[part.edges]
            )
            own, own_edges = part.nodes[part.core], part.edges[part.own_edges]
            result.z[own] = found.z[part.core]
            result.nodes[own] = found.nodes[part.core]
            result.edges[own_edges] = found.edges[part.own_edges]
            result.links[own_edges] = found.links[part.own_edges]

        list(self._pool.map(run, self._ready))
        return result

    def _prepare(self, parts: Sequence[Part]) -> None:
        kept = [each.encoder for each in self._ready]
        ready = []
        for place, part in enumerate(parts):
            graph = MeshGraph()
            graph.update(len(part.nodes), part.sources, part.targets)
            if place < len(kept):
                encoder = kept[place]
            else:
                encoder = Encoder(self._weights, threads=1, usual_edge=self._usual_edge)
            ready.append(_Ready(part, graph, encoder))
        self._ready = ready

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


def part_scores(
    parts: IntArray, num_parts: int, node_scores: FloatArray, callees: IntArray, edge_scores: FloatArray
) -> NDArray[np.float64]:
    """The largest score of each part, float64 [parts]: what the meta-model reads.

    Args:
        parts: int32 [n], the part of each node.
        node_scores: float32 [n].
        callees: int32 [e], positions; a call path is of its callee's part.
        edge_scores: float32 [e].
    """
    largest = np.zeros(num_parts)
    np.maximum.at(largest, parts, node_scores)
    np.maximum.at(largest, parts[callees], edge_scores)
    return largest
