"""Embeddings between passes: an event recomputes only the rows that depend on it.

An edge that appears, disappears or changes, or a node whose numbers change, affects few rows: the node, and
the nodes that attend to it directly or through another one. They are computed by the same code as a whole
pass, so after any events the embeddings are those of a whole pass.
"""

from __future__ import annotations

import numpy as np

from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.model import plan as at
from hopline_mesh.model.encoder import Encoder
from hopline_mesh.model.graph import BoolArray, IntArray, MeshGraph
from hopline_mesh.model.touched import delete_entry, insert_entry, refresh, rename_edge
from hopline_mesh.model.weights import FloatArray, Weights

#: Memory for additional edges after the last pass.
_SPARE_EDGES = 64


class LiveEmbeddings:
    """The state of one mesh's embeddings. Not thread-safe.

    It uses float32: the order of call paths changes the last digits, and rounding to bfloat16 would turn
    that into a thousandth.

    Args:
        weights: of the model.
    """

    def __init__(self, weights: Weights) -> None:
        self._encoder = Encoder(weights, bfloat16=False, keep=True)
        self._shape = weights.shape
        self._graph = MeshGraph()
        self._marks = np.zeros(0, np.int32)
        self._rows = np.zeros(0, np.int32)
        self._stamp = 0
        self._mask: BoolArray | None = None
        self._x = self._h = self._e = np.zeros((0, 0), np.float32)
        self._reverse = np.zeros(3 * weights.shape.layers, np.int64)

    @property
    def z(self) -> FloatArray:
        """float32 [n, d_out], of now; a view that the next event changes."""
        return self._encoder.result(self._graph).z

    @property
    def num_edges(self) -> int:
        """Edges of now."""
        return self._graph.num_edges

    @property
    def ends(self) -> tuple[IntArray, IntArray]:
        """Callers and callees of now, by position; edge k is the k-th."""
        return self._graph.sources, self._graph.targets

    @property
    def e(self) -> FloatArray:
        """float32 [e, d_edge], of now."""
        return self._e[: self.num_edges]

    def reset(
        self,
        sources: IntArray,
        targets: IntArray,
        x: FloatArray,
        h: FloatArray,
        e: FloatArray,
        node_mask: BoolArray | None = None,
    ) -> FloatArray:
        """Begin with a whole interval; inputs as of `Encoder.encode`, copied.

        Returns: `z`.

        Raises:
            SnapshotInvalid: arrays that do not fit each other or the model.
        """
        n, num_edges = len(x), len(sources)
        self._graph = MeshGraph()
        self._graph.reserve(n, num_edges + _SPARE_EDGES)
        self._graph.update(n, sources, targets, node_mask)
        self._x, self._h = x.astype(np.float32), h.astype(np.float32)
        self._e = np.zeros((num_edges + _SPARE_EDGES, self._shape.d_edge), np.float32)
        self._e[:num_edges] = e
        self._mask = None if node_mask is None else node_mask.copy()
        self._marks, self._rows, self._stamp = np.zeros(n, np.int32), np.zeros(n, np.int32), 0
        self._encoder.encode(self._graph, self._x, self._h, self.e, self._mask)
        self._point()
        return self.z

    def set_node(self, node: int, x: FloatArray, h: FloatArray | None = None) -> IntArray:
        """A node's numbers changed.

        Args:
            x: float32 [d_in].
            h: float32 [d_temporal]; None = as before.

        Returns: int32, the nodes whose embeddings were recomputed.
        """
        self._x[node] = x
        if h is not None:
            self._h[node] = h
        self._rows[0] = node
        return self._refresh(1, np.zeros(0, np.int32))

    def set_edge(self, edge: int, e: FloatArray) -> IntArray:
        """An edge's numbers changed, float32 [d_edge]. Returns as `set_node`."""
        self._e[edge] = e
        return self._refresh(0, self._ends_of(edge))

    def add_edge(self, source: int, target: int, e: FloatArray) -> IntArray:
        """A call path came; its edge is the last one then. Returns as `set_node`.

        Raises:
            SnapshotInvalid: no such node.
        """
        graph = self._graph
        n, edge = graph.num_nodes, graph.num_edges
        if not (0 <= source < n and 0 <= target < n):
            raise SnapshotInvalid(f"edge of nodes {source} and {target}: positions are 0 to {n - 1}")
        if edge == len(self._e) or edge == graph.room:
            self._grow()
            graph = self._graph
        self._e[edge] = e
        graph.append(source, target)
        if self._shown(source, target):
            insert_entry(*graph.callers, n, target, source, edge)
            insert_entry(*graph.callees, n, source, target, edge)
        self._point()
        return self._refresh(0, np.array([source, target], np.int32))

    def remove_edge(self, edge: int) -> IntArray:
        """A call path went; the last edge takes its number. Returns as `set_node`.

        Raises:
            SnapshotInvalid: no such edge.
        """
        graph = self._graph
        n, last = graph.num_nodes, graph.num_edges - 1
        if not 0 <= edge <= last:
            raise SnapshotInvalid(f"edge {edge}: there are 0 to {last}")
        ends = self._ends_of(edge)
        source, target = map(int, ends)
        if self._shown(source, target):
            delete_entry(*graph.callers, n, target, edge)
            delete_entry(*graph.callees, n, source, edge)
        if edge != last:
            caller, callee = map(int, self._ends_of(last))
            if self._shown(caller, callee):
                rename_edge(graph.callers.indptr, graph.callers.edges, callee, last, edge)
                rename_edge(graph.callees.indptr, graph.callees.edges, caller, last, edge)
            self._e[edge] = self._e[last]
        graph.take_out(edge)
        self._point()
        return self._refresh(0, ends)

    def _ends_of(self, edge: int) -> IntArray:
        return np.array([self._graph.sources[edge], self._graph.targets[edge]], np.int32)

    def _shown(self, source: int, target: int) -> bool:
        return self._mask is None or bool(self._mask[source] and self._mask[target])

    def _refresh(self, count: int, ends: IntArray) -> IntArray:
        self._stamp += 1
        plan = self._encoder.buffers.plan
        found = refresh(plan, self._reverse, self._rows, count, ends, self._marks, self._stamp)
        return self._rows[:found].copy()

    def _grow(self) -> None:
        graph, room = self._graph, self.num_edges * 5 // 4 + _SPARE_EDGES
        wider = np.zeros((room, self._shape.d_edge), np.float32)
        wider[: self.num_edges] = self.e
        self._e = wider
        self._graph = MeshGraph()
        self._graph.reserve(graph.num_nodes, room)
        self._graph.update(graph.num_nodes, graph.sources, graph.targets, self._mask)

    def _point(self) -> None:
        """Write into the plan where inputs and lists lie now."""
        self._encoder.place(self._graph, self._x, self._h, self.e, None, self._mask)
        for layer, listens in enumerate(self._shape.listens):
            lists = self._graph.callees if listens == "callers" else self._graph.callers
            self._reverse[3 * layer] = lists.indptr.ctypes.data
            self._reverse[3 * layer + 1] = lists.others.ctypes.data
            self._reverse[3 * layer + 2] = listens == "callers"
        self._encoder.buffers.plan[at.PHASE_BITS] = 0
