"""Memory of a pass, reused in each step: packed weights, rows of each layer, and the plan of both."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.model import plan as at
from hopline_mesh.model.attention import LINE, VECTOR_HEADS
from hopline_mesh.model.eight_bits import HAS_EIGHT_BITS, LARGEST, SHIFT
from hopline_mesh.model.emit import LANES
from hopline_mesh.model.lanes import PANEL, TILE_ROWS
from hopline_mesh.model.products import MOST_ROWS
from hopline_mesh.model.weights import FloatArray, Weights

_LINE_BYTES = 64


def padded(columns: int) -> int:
    """Columns rounded up to whole panels of packed weights."""
    return -(-columns // PANEL) * PANEL


def aligned(shape: tuple[int, ...]) -> FloatArray:
    """Zeros that begin at a cache line."""
    count = int(np.prod(shape))
    memory = np.zeros(count + _LINE_BYTES // 4, np.float32)
    skip = -memory.ctypes.data % _LINE_BYTES // 4
    return memory[skip : skip + count].reshape(shape)


def packed(matrix: FloatArray, depth: int | None = None) -> FloatArray:
    """A weight [out, in] as the product's kernel reads it: panels [in, 32], the last filled up with 0.

    Args:
        depth: number of inputs, if it must be larger; additional ones are 0.
    """
    columns, inputs = matrix.shape
    depth = inputs if depth is None else depth
    wide = np.zeros((padded(columns), depth), np.float32)
    wide[:columns, :inputs] = matrix
    result = aligned((padded(columns) // PANEL, depth, PANEL))
    result[:] = wide.reshape(padded(columns) // PANEL, PANEL, depth).transpose(0, 2, 1)
    return result


def packed_halves(matrix: FloatArray, depth: int | None = None) -> FloatArray:
    """Pack a weight as bfloat16, in pairs of inputs: panels [in / 2, 32, 2], in a float32's memory."""
    columns, inputs = matrix.shape
    depth = inputs if depth is None else depth
    depth += depth % 2
    wide = np.zeros((padded(columns), depth), np.uint16)
    wide[:columns, :inputs] = bfloat16(matrix)
    panels = wide.reshape(padded(columns) // PANEL, PANEL, depth // 2, 2).transpose(0, 2, 1, 3)
    result = aligned((padded(columns) // PANEL, depth // 2, PANEL))
    result.view(np.uint16).reshape(panels.shape)[:] = panels
    return result


def packed_bytes(matrix: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Pack a weight in eight bits, in groups of four inputs: panels [in / 4, 32, 4].

    Returns: panels and, for each column, its scale and where its sums start (int32); memory of float32.
    """
    columns, depth = matrix.shape
    largest = np.maximum(np.abs(matrix).max(axis=1, keepdims=True), 1e-30)
    whole = np.zeros((padded(columns), depth), np.int8)
    whole[:columns] = np.rint(matrix * (np.float32(LARGEST) / largest))
    panels = whole.reshape(padded(columns) // PANEL, PANEL, depth // 4, 4).transpose(0, 2, 1, 3)
    result = aligned((padded(columns) // PANEL, depth // 4, PANEL))
    result.view(np.int8).reshape(panels.shape)[:] = panels
    start = aligned((padded(columns),))
    start.view(np.int32)[:] = -SHIFT * whole.astype(np.int32).sum(axis=1)
    return result, widened(largest[:, 0] / np.float32(LARGEST), padded(columns)), start


def bfloat16(array: FloatArray) -> NDArray[np.uint16]:
    """The upper halves of finite float32 numbers, rounded to the nearest, to even where there are two."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(
        np.uint16
    )


def widened(vector: FloatArray, columns: int) -> FloatArray:
    """A vector filled up with 0."""
    result = aligned((columns,))
    result[: len(vector)] = vector
    return result


def rows_of(matrix: FloatArray, columns: int, rows: int | None = None) -> FloatArray:
    """A weight [out, in] as one row of `columns` for each input.

    Args:
        rows: number of rows, if it must be larger; additional ones are 0.
    """
    result = aligned((max(1, matrix.shape[1] if rows is None else rows), columns))
    result[: matrix.shape[1], : matrix.shape[0]] = matrix.T
    return result


def pairs_of(matrix: FloatArray, columns: int, rows: int) -> FloatArray:
    """`rows_of` as bfloat16, a row of pairs for each two inputs, in a float32's memory."""
    halves = bfloat16(rows_of(matrix, columns, rows))
    result = aligned((max(1, rows // 2), columns))
    result.view(np.uint16).reshape(-1, columns, 2)[: rows // 2] = (
        halves[:rows].reshape(-1, 2, columns).swapaxes(1, 2)
    )
    return result


def two_pairs_of(matrix: FloatArray, columns: int, rows: int) -> FloatArray:
    """`pairs_of` twice for each two inputs: of a weight as bfloat16, and of what that leaves out."""
    coarse = as_halves(matrix)
    parts = [pairs_of(part, columns, rows) for part in (coarse, matrix - coarse)]
    result = aligned((len(parts[0]), 2 * columns))
    result[:] = np.hstack(parts)
    return result


def as_halves(array: FloatArray) -> FloatArray:
    """Rounded to bfloat16, in float32."""
    return (bfloat16(array).astype(np.uint32) << np.uint32(16)).view(np.float32)


def fours(columns: int) -> int:
    """Columns rounded up to whole fours."""
    return -(-columns // 4) * 4


def vectors(columns: int) -> int:
    """Columns rounded up to whole vectors."""
    return -(-columns // LANES) * LANES


class Buffers:
    """The buffers of a pass, and their addresses.

    Args:
        halves: whether products use bfloat16, and those from one layer to the next eight bits, if the CPU
            can.
        usual_edge: float32 [d_edge], numbers that most call paths have.
        keep: whether rows of all layers exist after a pass; else each layer's rows replace those below it,
            and a pass uses little more than half of the memory.

    Attributes:
        plan: int64, as `plan.py` has it; addresses of inputs are set by each pass.
        z: float32 [nodes, padded d_out]; likewise the other outputs.
        scratch_bytes: for each thread.
    """

    def __init__(
        self, weights: Weights, *, halves: bool, usual_edge: FloatArray, keep: bool = True
    ) -> None:
        shape = weights.shape
        self._halves, self._usual, self._keeps = halves, usual_edge, keep
        self._shared = shape.shared
        self._eight_bits = halves and HAS_EIGHT_BITS
        heads = (shape.heads, shape.hidden // shape.heads)
        self._halves_edges = halves and shape.d_edge > 0 and heads in VECTOR_HEADS
        self._edge_halves = fours(shape.d_edge) // 2 if self._halves_edges else 0
        self.plan: NDArray[np.int64] = np.zeros(at.LAYERS + at.LAYER_PLACES * shape.layers, np.int64)
        self.num_nodes = self.num_edges = 0
        self._weights: list[FloatArray] = []
        self._rows: dict[str, FloatArray] = {}
        plan = self.plan
        plan[at.NUM_LAYERS] = shape.layers
        plan[at.D_IN], plan[at.D_TEMPORAL], plan[at.D_EDGE] = shape.d_in, shape.d_temporal, shape.d_edge
        plan[at.D_EDGE_TEMPORAL] = shape.d_edge_temporal
        plan[at.D_OUT], plan[at.D_DECODER] = shape.d_out, shape.d_decoder
        plan[at.HEADS], plan[at.CHANNELS] = shape.heads, shape.hidden // shape.heads
        plan[at.OWN_INPUTS], plan[at.SHARED] = shape.own_inputs, shape.shared
        plan[at.EDGE_LAYERS], plan[at.HALVES] = shape.edge_layers, halves
        plan[at.EIGHT_BITS] = self._eight_bits
        self.out = padded(shape.d_out)
        self.inner = padded(shape.d_decoder)
        self.node = padded(max(1, shape.n_node_targets))
        self.edge = -(-max(1, shape.n_edge_targets) // 4) * 4
        plan[at.OUT_BYTES], plan[at.DECODER_BYTES] = 4 * self.out, 4 * self.inner
        plan[at.NODE_BYTES], plan[at.EDGE_BYTES] = 4 * self.node, 4 * self.edge
        self._hidden, self._layers = padded(shape.hidden), shape.layers
        widest = max(self._hidden, self.out, self.inner, vectors(shape.d_in))
        plan[at.ROUNDED_TEMPORAL] = 2 * MOST_ROWS * widest
        plan[at.ROUNDED_BYTES] = 2 * MOST_ROWS * (widest + vectors(shape.d_temporal))
        self._place_weights(weights)

    def _keep(self, place: int, array: FloatArray) -> None:
        self._weights.append(array)
        self.plan[place] = array.ctypes.data

    def _below(self, matrix: FloatArray) -> FloatArray:
        """A weight, packed for rows that the pass itself makes: these are filled up to whole panels."""
        pack = packed_halves if self._halves else packed
        return pack(matrix, padded(matrix.shape[1]))

    def _of_inputs(self, matrix: FloatArray) -> FloatArray:
        """A weight, packed for rows of inputs."""
        return packed_halves(matrix) if self._halves else packed(matrix)

    def _place_edge_weights(self, here: int, weights: Weights, name: str) -> None:
        """What a layer reads of call paths, in whole fours."""
        shape = weights.shape
        weight = weights[name + "edge.weight"]
        read, channels = weight.shape[1], shape.hidden // shape.heads
        if self._halves:
            weight = as_halves(weight)
        linear = weight.reshape(shape.heads, channels, read) * weights[name + "attention"][:, :, None]
        linear = LINE * linear.sum(axis=1)[:4]
        if self._halves_edges:
            self._keep(here + at.W_EDGE, pairs_of(weight, shape.hidden, fours(read)))
            self._keep(here + at.EDGE_LINEAR, two_pairs_of(linear, 4, fours(read)))
        else:
            self._keep(here + at.W_EDGE, rows_of(weight, shape.hidden, fours(read)))
            self._keep(here + at.EDGE_LINEAR, rows_of(linear, 4, fours(read)))
        self._keep(here + at.EDGE_START, widened(weight @ self._usual[:read], self._hidden))

    def _place_weights(self, weights: Weights) -> None:
        shape, hidden = weights.shape, self._hidden
        self._keep(at.USUAL_EDGE, widened(self._usual, max(4, fours(shape.d_edge))))
        for layer in range(shape.layers):
            here, name = at.LAYERS + at.LAYER_PLACES * layer, f"layers.{layer}."
            for end, places in (
                ("source", (at.W_SOURCE, at.SOURCE_SCALES, at.SOURCE_START, at.B_SOURCE)),
                ("target", (at.W_TARGET, at.TARGET_SCALES, at.TARGET_START, at.B_TARGET)),
            ):
                if end == "target" and shape.shared:
                    continue
                weight, (matrix, scales, start, bias) = weights[f"{name}{end}.weight"], places
                if layer and self._eight_bits:
                    for place, array in zip((matrix, scales, start), packed_bytes(weight), strict=True):
                        self._keep(here + place, array)
                else:
                    self._keep(here + matrix, (self._below if layer else self._of_inputs)(weight))
                self._keep(here + bias, widened(weights[f"{name}{end}.bias"], hidden))
            self._keep(here + at.W_TEMPORAL, self._of_inputs(weights[name + "temporal.weight"]))
            self._keep(here + at.ATTENTION, widened(weights[name + "attention"].reshape(-1), hidden))
            self._place_edge_weights(here, weights, name)
            self._keep(here + at.BIAS, widened(weights[name + "bias"], hidden))
        if shape.own_inputs:
            self._keep(at.W_OWN, self._of_inputs(weights["own.weight"]))
        self._keep(at.W_OWN_TEMPORAL, self._of_inputs(weights["own_temporal.weight"]))
        self._keep(at.W_OUT, self._below(weights["out.weight"]))
        self._keep(at.B_OUT, widened(weights["out.bias"], self.out))
        self._keep(at.W_LINK, self._below(weights["link.weight"].T))
        self._keep(at.W_CALLER, self._below(weights["edges.caller.weight"]))
        self._keep(at.B_CALLER, widened(weights["edges.hidden.bias"], self.inner))
        self._keep(at.W_CALLEE, self._below(weights["edges.callee.weight"]))
        self._keep(at.W_HIDDEN, self._below(weights["nodes.hidden.weight"]))
        self._keep(at.B_HIDDEN, widened(weights["nodes.hidden.bias"], self.inner))
        self._keep(at.W_NODES, self._below(weights["nodes.out.weight"]))
        self._keep(at.B_NODES, widened(weights["nodes.out.bias"], self.node))
        self._keep(at.W_EDGE_TEMPORAL, rows_of(weights["edges.temporal.weight"], self.inner))
        out = np.zeros((self.edge, shape.d_decoder), np.float32)
        out[: shape.n_edge_targets] = weights["edges.out.weight"]
        self._keep(at.W_EDGES, rows_of(out.T, self.inner))
        self._keep(at.B_EDGES, widened(weights["edges.out.bias"], self.edge))
        self._keep(at.LINK_BIAS, widened(weights["link.bias"], 1))
        widest = max(hidden, self.out, self.inner, self.node)
        self._keep(at.NOTHING, aligned((widest,)))

    def fit(self, num_nodes: int, num_edges: int) -> bool:
        """Allocate memory for more rows; returns whether memory moved, which loses its content."""
        moved = False
        if num_nodes > self.num_nodes:
            self.num_nodes = num_nodes * 5 // 4 + 8 if self.num_nodes else num_nodes
            self._fit_nodes()
            moved = True
        if num_edges > self.num_edges or not self._rows.get("links", np.zeros(0)).size:
            self.num_edges = max(1, num_edges * 5 // 4 + 8 if self.num_edges else num_edges)
            self._fit_edges()
            moved = True
        return moved

    def _row(self, name: str, place: int, shape: tuple[int, ...]) -> None:
        self._rows[name] = aligned(shape)
        self.plan[place] = self._rows[name].ctypes.data

    def _fit_nodes(self) -> None:
        n, plan = self.num_nodes, self.plan
        for layer in range(self._layers):
            here = at.LAYERS + at.LAYER_PLACES * layer
            below = here - at.LAYER_PLACES
            if layer:
                plan[here + at.OWN_ROWS] = plan[below + at.RESULT_ROWS]
            if self._keeps or layer < 2:  # others' rows of the layer below are still read
                self._row(f"source.{layer}", here + at.SOURCE_ROWS, (n, self._hidden))
            else:
                plan[here + at.SOURCE_ROWS] = plan[below - at.LAYER_PLACES + at.SOURCE_ROWS]
            self._row(f"linear.{layer}", here + at.LINEAR_ROWS, (n, 4))
            if not self._shared:
                if self._keeps or layer == 0:
                    self._row(f"target.{layer}", here + at.TARGET_ROWS, (n, self._hidden))
                else:
                    plan[here + at.TARGET_ROWS] = plan[below + at.TARGET_ROWS]
            if self._keeps or layer == 0:
                self._row(f"result.{layer}", here + at.RESULT_ROWS, (n, self._hidden))
            else:
                plan[here + at.RESULT_ROWS] = plan[here + at.OWN_ROWS]
        self._row("z", at.Z, (n, self.out))
        self._row("query", at.QUERY, (n, self.out))
        self._row("caller", at.CALLER, (n, self.inner))
        self._row("callee", at.CALLEE, (n, self.inner))
        self._row("node_hidden", at.NODE_HIDDEN, (n, self.inner))
        self._row("nodes", at.NODE_OUT, (n, self.node))

    def _fit_edges(self) -> None:
        e = self.num_edges
        self._row("edges", at.EDGE_OUT, (e, self.edge))
        self._row("links", at.LINKS, (e,))
        if self._halves_edges:
            self._row("edge_halves", at.EDGE_HALVES, (e, self._edge_halves))
        scores = -(-max(16 * (e + 4), 4 * self.inner) // _LINE_BYTES) * _LINE_BYTES
        each = int(self.plan[at.ROUNDED_BYTES]) + 2 * TILE_ROWS * 4 * self._hidden + scores
        self.plan[at.SCRATCH_BYTES] = each
        self._row("scratch", at.SCRATCH, (2 * each // 4,))

    def rows(self, name: str) -> FloatArray:
        """Rows by name: `z`, `nodes`, `edges`, `links`, or, where they are kept, of a layer: `result.0`."""
        return self._rows[name]

    @property
    def num_bytes(self) -> int:
        """Memory of rows and weights."""
        return sum(array.nbytes for array in (*self._rows.values(), *self._weights))
