"""The model in PyTorch, for training: the same weights by the same names, differentiable.

Several graphs are one graph without edges between them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from hopline_mesh.model.reference import SLOPE
from hopline_mesh.model.shape import ModelShape
from hopline_mesh.model.weights import Weights

Parameters = dict[str, Tensor]


class Inputs(NamedTuple):
    """As in `Frame`; `edges` is int64 [2, e], callers and callees."""

    x: Tensor
    h: Tensor
    edges: Tensor
    e: Tensor
    g: Tensor


def parameters(weights: Weights, device: str = "cpu") -> Parameters:
    """Trainable copies of a model's weights."""
    return {
        name: torch.tensor(array, device=device, requires_grad=True)
        for name, array in weights.arrays.items()
    }


def attend(source: Tensor, target: Tensor, edge: Tensor, attention: Tensor, ends: Tensor) -> Tensor:
    """`reference.attend`."""
    heads, channels = attention.shape
    heard, listener = ends
    rows = source[heard]
    mixed = leaky_relu(rows + target[listener] + edge, SLOPE).view(-1, heads, channels)
    scores = (mixed * attention).sum(dim=2)
    where = listener[:, None].expand_as(scores)
    highest = scores.new_full((len(target), heads), -torch.inf)
    highest = highest.scatter_reduce(0, where, scores.detach(), "amax")
    shares = (scores - highest[listener]).exp()
    total = shares.new_zeros(len(target), heads).index_add(0, listener, shares)
    shares = shares / total[listener]
    message = (rows.view(-1, heads, channels) * shares[:, :, None]).flatten(1)
    return torch.zeros_like(target).index_add(0, listener, message)


def encode(shape: ModelShape, weights: Parameters, given: Inputs) -> Tensor:
    """Embeddings, float32 [n, d_out]."""
    state = given.x
    for layer, listens in enumerate(shape.listens):
        at = f"layers.{layer}."
        source = state @ weights[at + "source.weight"].T + weights[at + "source.bias"]
        target = source
        if not shape.shared:
            target = state @ weights[at + "target.weight"].T + weights[at + "target.bias"]
        target = target + given.h @ weights[at + "temporal.weight"].T
        read = weights[at + "edge.weight"].shape[1]
        edge = given.e[:, :read] @ weights[at + "edge.weight"].T
        ends = given.edges if listens == "callers" else given.edges.flip(0)
        heard = attend(source, target, edge, weights[at + "attention"], ends)
        if layer == 0:
            own = given.h @ weights["own_temporal.weight"].T
            if shape.own_inputs:
                own = own + given.x @ weights["own.weight"].T
        else:
            own = state
        state = heard + own + weights[at + "bias"]
        if layer + 1 < shape.layers:
            state = leaky_relu(state, SLOPE)
    return state @ weights["out.weight"].T + weights["out.bias"]


def decode_nodes(weights: Parameters, z: Tensor) -> Tensor:
    """Expected numbers of each node, float32 [n, n_node_targets]."""
    inner = leaky_relu(z @ weights["nodes.hidden.weight"].T + weights["nodes.hidden.bias"], SLOPE)
    return inner @ weights["nodes.out.weight"].T + weights["nodes.out.bias"]


def decode_edges(weights: Parameters, z: Tensor, edges: Tensor, g: Tensor) -> Tensor:
    """Expected numbers of each edge, float32 [e, n_edge_targets]."""
    inner = (z @ weights["edges.caller.weight"].T)[edges[0]] + (z @ weights["edges.callee.weight"].T)[
        edges[1]
    ]
    inner = leaky_relu(inner + g @ weights["edges.temporal.weight"].T + weights["edges.hidden.bias"], SLOPE)
    return inner @ weights["edges.out.weight"].T + weights["edges.out.bias"]


def link_logits(weights: Parameters, z: Tensor, pairs: Tensor) -> Tensor:
    """Logit of a call path for each pair of caller and callee, int64 [2, p]; a directed inner product."""
    return ((z @ weights["link.weight"])[pairs[0]] * z[pairs[1]]).sum(dim=1) + weights["link.bias"]
