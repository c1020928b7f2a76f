"""Embeddings of a mesh, and values decoded from them: the model as it runs in each step.

    x, h ──► layer 1 ──► … ──► z ──► nodes: expected numbers of each service
              ▲  e                ├──► edges: expected numbers of each call path   (with g)
              │                   └──► links: is there a call path?
              neighbours of each service

Compiled, in memory that is reused in each step; one thread for small meshes, two for larger ones.
"""

from __future__ import annotations

from operator import is_not
from typing import NamedTuple

import numpy as np

from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.model import plan as at
from hopline_mesh.model.buffers import Buffers
from hopline_mesh.model.graph import BoolArray, Lists, MeshGraph
from hopline_mesh.model.lanes import HAS_BFLOAT16, TILE_ROWS
from hopline_mesh.model.passes import note_address, run_alone, run_shared, serve
from hopline_mesh.model.products import MOST_ROWS, Plan
from hopline_mesh.model.second import SecondThread, has_second
from hopline_mesh.model.weights import FloatArray, Weights

#: Nodes plus edges from which a second thread is faster.
SHARED_FROM = 1000
#: Rows and edges of a piece of work at most: tens of microseconds; of a small mesh less, so that threads
#: end at nearly the same time.
_EDGE_PIECE, _LEAST_EDGES, _PIECES = 512, 64, 16


#: What the plan was made for: a graph's version, the graph and the inputs.
_NOT_READY: tuple[int, *tuple[object, ...]] = (-1,)


class Reconstruction(NamedTuple):
    """Expected values of the model; views of memory that the next pass overwrites.

    Attributes:
        z: float32 [n, d_out], embeddings.
        nodes: float32 [n, n_node_targets].
        edges: float32 [e, n_edge_targets], in the order in which edges were given.
        links: float32 [e], logit that there is such a call path.
    """

    z: FloatArray
    nodes: FloatArray
    edges: FloatArray
    links: FloatArray


class Encoder:
    """Applies a model's weights. Not thread-safe.

    Args:
        weights: not changed any more.
        capacity: nodes and edges to allocate memory for first; it grows when needed.
        threads: 1 or 2; None = 2 where there are two processors.
        bfloat16: whether both sides of products are rounded to bfloat16 (sums are float32), and those from
            one layer to the next to eight bits with a scale for each row, if the CPU can; None = if it can,
            which takes half or a quarter of the time. False = everything is float32.
        usual_edge: float32 [d_edge], numbers that most call paths have, such as 1 for columns that are
            nearly always measured: they cost no time, and do not change results. Default: 0.
        keep: whether rows of all layers are kept after a pass, for `LiveEmbeddings`.
    """

    def __init__(
        self,
        weights: Weights,
        capacity: tuple[int, int] = (0, 0),
        threads: int | None = None,
        *,
        bfloat16: bool | None = None,
        usual_edge: FloatArray | None = None,
        keep: bool = False,
    ) -> None:
        self.weights = weights
        self.shape = weights.shape
        if usual_edge is None:
            usual_edge = np.zeros(weights.shape.d_edge, np.float32)
        halves = HAS_BFLOAT16 and bfloat16 is not False
        self.buffers = Buffers(weights, halves=halves, usual_edge=usual_edge, keep=keep)
        self.buffers.fit(max(1, capacity[0]), capacity[1])
        self._second: SecondThread | None = None
        if has_second(threads):
            self._second = SecondThread(serve, (self.buffers.plan,), self.shape.layers + at.PHASES_BESIDE)
        self._kept: list[object] = []
        self._ready: tuple[int, *tuple[object, ...]] = _NOT_READY
        self._callers: Lists | None = None
        self._graph_memory: tuple[object, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes that a pass uses, without its inputs and the graph."""
        return self.buffers.num_bytes

    def encode(
        self,
        graph: MeshGraph,
        x: FloatArray,
        h: FloatArray,
        e: FloatArray,
        node_mask: BoolArray | None = None,
    ) -> FloatArray:
        """Embeddings of all nodes.

        Args:
            graph: of this step.
            x: float32 [n, d_in], finite.
            h: float32 [n, d_temporal], finite.
            e: float32 [e, d_edge], finite, in the order in which the graph was given its edges.
            node_mask: bool [n], False for rows that only fill up: their rows of the result are 0. The graph
                must have been given the same mask, if any edge touches such a row.

        Returns: float32 [n, d_out], valid until the next pass.

        Raises:
            SnapshotInvalid: an array of another shape.
        """
        layers = self.shape.layers
        self._run(graph, x, h, e, None, node_mask, (1 << (layers + 1)) - 1)
        return self.buffers.rows("z")[: graph.num_nodes, : self.shape.d_out]

    def reconstruct(
        self,
        graph: MeshGraph,
        x: FloatArray,
        h: FloatArray,
        e: FloatArray,
        g: FloatArray | None = None,
        node_mask: BoolArray | None = None,
    ) -> Reconstruction:
        """Embeddings and all that is decoded from them, in one pass.

        Args:
            g: float32 [e, d_edge_temporal], finite; None only where there is no such column.

        Raises:
            SnapshotInvalid: an array of another shape.
        """
        self._run(graph, x, h, e, g, node_mask, self._whole)
        return self.result(graph)

    def ready(
        self, graph: MeshGraph, x: FloatArray, h: FloatArray, e: FloatArray, g: FloatArray | None
    ) -> Plan:
        """The plan of `reconstruct`, for a caller who lets `passes.work` do it among other work.

        All but the logits of links, which a step of the watch does not read.
        """
        version, *given = self._ready
        if version != graph.version or any(map(is_not, given, (graph, x, h, e, g))):
            self._check_temporal(graph, g)
            self.place(graph, x, h, e, g, None)
            self.buffers.plan[at.PHASE_BITS] = self._whole
            self.buffers.plan[at.WITH_LINKS] = 0
            self._ready = (graph.version, graph, x, h, e, g)
        return self.buffers.plan

    @property
    def _whole(self) -> int:
        """Phases of a pass that reconstructs."""
        return (1 << (self.shape.layers + 1)) - 1 | 1 << (self.shape.layers + at.DECODE_EDGES)

    def decode(self, graph: MeshGraph, z: FloatArray, g: FloatArray | None = None) -> Reconstruction:
        """All that is decoded from embeddings, of this encoder or given ones, float32 [n, d_out]."""
        n, layers = graph.num_nodes, self.shape.layers
        mine = self.buffers.rows("z")
        if not np.shares_memory(z, mine):
            self._idle()
            self.buffers.fit(n, graph.num_edges)
            self.buffers.rows("z")[:n, : self.shape.d_out] = z
        bits = 1 << (layers + at.DECODE_NODES) | 1 << (layers + at.DECODE_EDGES)
        self._run(graph, None, None, None, g, None, bits)
        return self.result(graph)

    def result(self, graph: MeshGraph) -> Reconstruction:
        """Views of what the last pass left."""
        n, e, shape, rows = graph.num_nodes, graph.num_edges, self.shape, self.buffers.rows
        return Reconstruction(
            rows("z")[:n, : shape.d_out],
            rows("nodes")[:n, : shape.n_node_targets],
            rows("edges")[:e, : shape.n_edge_targets],
            rows("links")[:e],
        )

    def _run(
        self,
        graph: MeshGraph,
        x: FloatArray | None,
        h: FloatArray | None,
        e: FloatArray | None,
        g: FloatArray | None,
        node_mask: BoolArray | None,
        bits: int,
    ) -> None:
        if bits >> (self.shape.layers + at.DECODE_EDGES) & 1:
            self._check_temporal(graph, g)
        self.place(graph, x, h, e, g, node_mask)
        plan = self.buffers.plan
        plan[at.PHASE_BITS], plan[at.WITH_LINKS] = bits, 1
        if self._second is None or graph.num_nodes + graph.num_edges < SHARED_FROM:
            run_alone(plan)
        else:
            self._second.start()
            run_shared(plan, self._second.control)

    def _check_temporal(self, graph: MeshGraph, g: FloatArray | None) -> None:
        if g is None and self.shape.d_edge_temporal:
            raise SnapshotInvalid(
                f"the model needs g, float32 [{graph.num_edges}, {self.shape.d_edge_temporal}]"
            )

    def place(
        self,
        graph: MeshGraph,
        x: FloatArray | None,
        h: FloatArray | None,
        e: FloatArray | None,
        g: FloatArray | None,
        node_mask: BoolArray | None,
    ) -> None:
        """Write addresses and counts of a pass into the plan, after a look at the arrays' shapes."""
        n, num_edges, shape = graph.num_nodes, graph.num_edges, self.shape
        self._idle()
        self._ready = _NOT_READY
        self.buffers.fit(n, num_edges)
        plan = self.buffers.plan
        kept: list[object] = []
        for name, place, array, rows, columns in (
            ("x", at.X, x, n, shape.d_in),
            ("h", at.H, h, n, shape.d_temporal),
            ("e", at.E, e, num_edges, shape.d_edge),
            ("g", at.G, g, num_edges, shape.d_edge_temporal),
        ):
            if array is None:
                continue
            if array.shape != (rows, columns):
                raise SnapshotInvalid(f"the model's {name} is {array.shape}, not {(rows, columns)}")
            array = np.ascontiguousarray(array, dtype=np.float32)
            kept.append(array)
            note_address(plan, place, array)
        plan[at.MASK] = 0
        if node_mask is not None:
            if node_mask.shape != (n,):
                raise SnapshotInvalid(f"the node mask is {node_mask.shape}, not {(n,)}")
            mask = np.ascontiguousarray(node_mask, dtype=np.bool_)
            kept.append(mask)
            plan[at.MASK] = mask.ctypes.data
        plan[at.NUM_NODES], plan[at.NUM_EDGES] = n, num_edges
        tiles = -(-n // (_PIECES * TILE_ROWS))
        plan[at.ROW_PIECE] = min(MOST_ROWS, max(1, tiles) * TILE_ROWS)
        plan[at.EDGE_PIECE] = min(_EDGE_PIECE, max(_LEAST_EDGES, num_edges // _PIECES))
        self._kept = kept  # as long as their addresses are used
        if self._callers is not graph.callers:
            self._point_at(graph)

    def _point_at(self, graph: MeshGraph) -> None:
        """Note where a graph's lists lie; the same memory until the graph makes room for more."""
        plan = self.buffers.plan
        plan[at.SOURCES], plan[at.TARGETS] = graph.sources.ctypes.data, graph.targets.ctypes.data
        for layer, listens in enumerate(self.shape.listens):
            here = at.LAYERS + at.LAYER_PLACES * layer
            lists = graph.callers if listens == "callers" else graph.callees
            plan[here + at.INDPTR] = lists.indptr.ctypes.data
            plan[here + at.OTHERS] = lists.others.ctypes.data
            plan[here + at.EDGES] = lists.edges.ctypes.data
        self._callers = graph.callers
        self._graph_memory = (graph.callers, graph.callees, graph.sources, graph.targets)

    def _idle(self) -> None:
        if self._second is not None:
            self._second.idle()
