"""The model in NumPy, edge by edge: slow and short, the reference for the other implementations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.model.weights import Weights

FloatArray = NDArray[np.float32]
Rounding = Callable[[FloatArray], FloatArray]

#: Slope of LeakyReLU below 0, in attention as PyG's GATv2Conv has it and between layers.
SLOPE = 0.2


def leaky(x: FloatArray) -> FloatArray:
    """LeakyReLU."""
    return np.where(x > 0, x, np.float32(SLOPE) * x)


def exact(rows: FloatArray) -> FloatArray:
    """Nothing is rounded."""
    return rows


def bfloat16(rows: FloatArray) -> FloatArray:
    """Rounded to bfloat16, to the nearest, to even where there are two."""
    bits = np.ascontiguousarray(rows, np.float32).view(np.uint32)
    odd = bits >> np.uint32(16) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)).view(np.float32)


def product(rows: FloatArray, weight: FloatArray) -> FloatArray:
    """rows @ weight.T of whole numbers of eight bits: each row and each row of the weight has its scale."""

    def quantised(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
        largest = np.maximum(np.abs(matrix).max(axis=1, keepdims=True), np.float32(1e-30))
        return np.rint(matrix * (np.float32(127) / largest)), largest / np.float32(127)

    whole, scales = quantised(rows)
    columns, column_scales = quantised(weight)
    return (whole @ columns.T) * scales * column_scales.T


def attend(
    source: FloatArray, target: FloatArray, edge: FloatArray, attention: FloatArray, ends: NDArray[np.int32]
) -> FloatArray:
    """One layer's attention: for each node the weighted sum of those that it listens to.

    GATv2 (Brody, Alon and Yahav, 2022): score = a · LeakyReLU(source_j + target_i + edge_ij) for each head,
    softmax over the entries of i.

    Args:
        source: float32 [n, hidden], rows of the neighbours.
        target: float32 [n, hidden], rows of the attending nodes, with the temporal term.
        edge: float32 [e, hidden].
        attention: float32 [heads, hidden / heads].
        ends: int32 [2, e]: neighbour, and attending node.

    Returns: float32 [n, hidden]; 0 for a node without neighbours.
    """
    heads, channels = attention.shape
    result = np.zeros_like(target)
    for i in np.unique(ends[1]):
        entries = np.flatnonzero(ends[1] == i)
        rows = source[ends[0][entries]].reshape(-1, heads, channels)
        mixed = leaky(rows + (target[i] + edge[entries]).reshape(-1, heads, channels))
        scores = (mixed * attention).sum(axis=2)
        shares = np.exp(scores - scores.max(axis=0))
        shares /= shares.sum(axis=0)
        result[i] = (rows * shares[:, :, None]).sum(axis=0).reshape(-1)
    return result


def encode(
    weights: Weights,
    sources: NDArray[np.int32],
    targets: NDArray[np.int32],
    x: FloatArray,
    h: FloatArray,
    e: FloatArray,
    node_mask: NDArray[np.bool_] | None = None,
    rounded: Rounding = exact,
    eight_bits: bool = False,
) -> FloatArray:
    """Embeddings of all nodes, float32 [n, d_out]; 0 for masked ones.

    Args:
        rounded: what is done to both sides of a product.
        eight_bits: whether what a layer makes for the next one is multiplied as `product` does.
    """
    mask = np.ones(len(x), bool) if node_mask is None else node_mask
    kept = mask[sources] & mask[targets]
    edges = np.stack([sources[kept], targets[kept]])
    state = x
    for layer, listens in enumerate(weights.shape.listens):
        at = f"layers.{layer}."

        def made(end: str, at: str = at, layer: int = layer, state: FloatArray = state) -> FloatArray:
            weight, bias = weights[f"{at}{end}.weight"], weights[f"{at}{end}.bias"]
            if layer and eight_bits:
                return product(state, weight) + bias
            return rounded(state) @ rounded(weight).T + bias

        source = made("source")
        target = source if weights.shape.shared else made("target")
        target = target + rounded(h) @ rounded(weights[at + "temporal.weight"]).T
        read = weights[at + "edge.weight"].shape[1]
        edge = rounded(e[kept][:, :read]) @ rounded(weights[at + "edge.weight"]).T
        ends = edges if listens == "callers" else edges[::-1]
        heard = attend(source, target, edge, weights[at + "attention"], ends)
        if layer == 0:
            own = rounded(h) @ rounded(weights["own_temporal.weight"]).T
            if weights.shape.own_inputs:
                own = own + rounded(x) @ rounded(weights["own.weight"]).T
        else:
            own = state
        state = heard + own + weights[at + "bias"]
        if layer + 1 < weights.shape.layers:
            state = leaky(state)
    z = rounded(state) @ rounded(weights["out.weight"]).T + weights["out.bias"]
    return np.where(mask[:, None], z, np.float32(0))


def decode(
    weights: Weights,
    z: FloatArray,
    sources: NDArray[np.int32],
    targets: NDArray[np.int32],
    g: FloatArray,
    rounded: Rounding = exact,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Decode embeddings: expected values of nodes and edges, and logits of call paths.

    Args:
        z: float32 [n, d_out].
        g: float32 [e, d_edge_temporal].
        rounded: as of `encode`.

    Returns: nodes float32 [n, n_node_targets]; edges float32 [e, n_edge_targets]; logit that there is
        such an edge, float32 [e].
    """
    near = rounded(z)
    inner = leaky(near @ rounded(weights["nodes.hidden.weight"]).T + weights["nodes.hidden.bias"])
    nodes = rounded(inner) @ rounded(weights["nodes.out.weight"]).T + weights["nodes.out.bias"]
    inner = leaky(
        near[sources] @ rounded(weights["edges.caller.weight"]).T
        + near[targets] @ rounded(weights["edges.callee.weight"]).T
        + g @ weights["edges.temporal.weight"].T
        + weights["edges.hidden.bias"]
    )
    edges = inner @ weights["edges.out.weight"].T + weights["edges.out.bias"]
    queries = near @ rounded(weights["link.weight"])
    logits = (queries[sources] * z[targets]).sum(axis=1) + weights["link.bias"]
    return nodes, edges, logits
