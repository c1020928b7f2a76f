"""Differences between a sparse matrix (`adj_t`) and a list of edges, which is what a server reads.

A matrix has one entry for a pair of nodes: torch's own merges repeated edges, torch_sparse's keeps them.
PyG's convolutions also treat its diagonal and its values differently from those of a list. The gate detects
that answers differ; this module finds the reason.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from hopline.errors import PackagingError
from hopline.graph import Graph, csc
from hopline.packaging.arguments import Binding
from hopline.packaging.check_graph import CheckEdges, CheckGraph
from hopline.packaging.probe import part_of
from hopline.packaging.reference import Pairs, Reference, differ


class Adjacent(dict[str, Tensor]):
    """Slots and the `adj_t` built from them: each edge index is a separate tensor."""

    def __init__(self, slots: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.slots = slots

    def __missing__(self, key: str) -> Tensor:
        if not key.startswith("adj_t:"):
            return self.slots[key]
        self[key] = self.slots[key.replace("adj_t", "edge_index")].clone()
        return self[key]


@contextmanager
def weights_of(model: nn.Module, given: Adjacent) -> Iterator[None]:
    """Give convolutions over an `adj_t` the edge weights that it represents."""

    def hook(conv: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = inspect.signature(conv.forward).bind_partial(*args, **kwargs).arguments
        for name, edges in given.items():
            weight = name.replace("adj_t", "edge_weight")
            if weight in given.slots and any(value is edges for value in arguments.values()):
                return args, {"edge_weight": given[weight], **kwargs}
        return None

    takes = _convs(model, weighted=True)
    handles = [part.register_forward_pre_hook(hook, with_kwargs=True) for part in takes]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Listed(Reference):
    """As `Reference`, over lists of edges."""

    def call(self, module: nn.Module, slots: Mapping[str, Tensor]) -> Any:
        given = Adjacent(slots)
        with weights_of(module, given):
            return self.binding.call(module, given)


def explain_sparse(reference: Reference, check: CheckGraph, pairs: Pairs | None, repeated: str) -> str:
    """Why the module's answers over a sparse matrix differ from those over a list; "" if they do not.

    Args:
        check: a graph with the traits of the served graph: repeated edges, self-loops, weights.
        repeated: an edge that the served graph has twice, in words; "" if there is none.
    """
    listed = copy.copy(reference)
    listed.__class__ = _Listed

    def agree(graph: CheckGraph) -> bool:
        try:
            return not differ(reference.answers(graph, pairs), listed.answers(graph, pairs)).any()
        except PackagingError:  # code over the matrix itself, adj_t.sum(1), accepts no list
            return False

    if agree(check):
        return ""
    once = part_of(check, {key: ~_repeats(edges) for key, edges in check.edges.items()})
    without_loops = part_of(check, {key: ~_loops(edges) for key, edges in check.edges.items()})
    plain = part_of(once, {key: ~_loops(edges) for key, edges in once.edges.items()})
    found = []
    if repeated and not agree(without_loops) and (agree(once) or agree(plain)):
        found.append(
            f"the graph has repeated edges ({repeated}), which torch's sparse matrix merges into one and "
            "the graph does not: build the graph without them"
        )
    if not agree(once) and (agree(without_loops) or agree(plain)):
        found.append(
            "the graph has self-loops, and its convolutions add their own to a sparse matrix (torch.sparse "
            "sums both, torch_sparse replaces those of the graph): build the graph without self-loops and "
            "train on it"
        )
    weighted = any(edges.weight is not None for edges in check.edges.values())
    names = sorted({type(part).__name__ for part in _convs(reference.module, weighted=False)})
    if not found and weighted and (agree(_unweighted(check)) or agree(_unweighted(plain))):
        found.append(
            f"{', '.join(names) or 'a convolution'} multiplies by the values of a sparse matrix, and "
            "accepts no weights with a list of edges: build the graph without weights, or use a "
            "convolution that has an edge_weight argument, for example GraphConv"
        )
    if not found:
        return ""
    return (
        f"its answers over an adj_t are not those over the same edges as a list: {'; '.join(found)}; or "
        "use edge_index in forward, and train with that"
    )


def repeated(binding: Binding, graph: Graph, key: str) -> str:
    """A repeated edge of a type that the model reads as a sparse matrix, in words; "" for none."""
    if not binding.reads_sparse or key not in binding.relations:
        return ""
    edges = graph.edges[key]
    if edges.has_repeated_edges is False:
        return ""
    source, target = csc.repeated_edge(np.asarray(edges.indptr[:]), np.asarray(edges.indices[:]))
    return "" if source < 0 else f"{key} holds row {source} to row {target} more than once"


def _convs(module: nn.Module, *, weighted: bool) -> list[MessagePassing]:
    """The convolutions of a module that accept edge weights, or the others."""
    convs = [part for part in module.modules() if isinstance(part, MessagePassing)]
    return [c for c in convs if ("edge_weight" in inspect.signature(c.forward).parameters) == weighted]


def _repeats(edges: CheckEdges) -> NDArray[np.bool_]:
    """Edges between a pair of nodes after the first one, bool [E]."""
    _, first = np.unique(edges.edge_index, axis=1, return_index=True)
    repeats = np.ones(len(edges.indices), np.bool_)
    repeats[first] = False
    return repeats


def _loops(edges: CheckEdges) -> NDArray[np.bool_]:
    """bool [E]."""
    same_type = edges.src == edges.dst
    return (edges.indices == edges.destinations) & same_type


def _unweighted(graph: CheckGraph) -> CheckGraph:
    def of(edges: CheckEdges) -> CheckEdges:
        return edges if edges.weight is None else replace(edges, weight=np.ones_like(edges.weight))

    return CheckGraph(graph.features, {key: of(edges) for key, edges in graph.edges.items()})
