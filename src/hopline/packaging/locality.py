"""Finds out why a module cannot be served node by node, from its answers on changed graphs.

Each check changes one thing of a graph and tests answers for nodes whose neighbourhood did not change.
"decisions" are lines of the module's source that branch on values of tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from hopline.errors import NotServable, PackagingError
from hopline.graph import Graph
from hopline.packaging import probe as probes
from hopline.packaging.advice import FREEZE, FROZEN, instead_of
from hopline.packaging.check_graph import CheckGraph
from hopline.packaging.frozen import Frozen, Place
from hopline.packaging.probe import Probe
from hopline.packaging.reference import Pairs, Reference, Rows
from hopline.packaging.watch import watched
from hopline.types import FloatArray, IdArray

#: Nodes and edges of the largest graph that a module is run on; and to explain why it fails on a part.
_MOST_ROWS = 100_000
_MOST_OF_ALL = 2_000_000
#: A tensor that is this many times as large for twice the graph grows with its square; in bytes, tensors
#: that do not matter.
_SQUARE, _SMALL = 3.0, 1 << 18


def check_sizes(
    reference: Reference, probe: Probe, pairs: Pairs | None, rows: Rows, decisions: Sequence[str] = ()
) -> None:
    """Run the module on the graph and unconnected copies of it, first on two: more nodes and edges.

    Raises: NotServable: answers for the first nodes change, or a tensor grows with the square of the nodes.
    """
    edges = probe.check.edges.values()
    one = sum(map(len, probe.check.features.values())) + sum(len(each.indices) for each in edges)
    with watched() as once:
        reference.answers(probe.check, pairs)
    try:
        with watched() as twice:
            reference.answers(repeated(probe.check, 2), pairs)
        for line, size in twice.tensors.items():
            if size > _SMALL and size > _SQUARE * once.tensors.get(line, size):
                raise NotServable(
                    _depends_on_other_nodes(reference, probe, decisions)
                    or f"forward makes a tensor that grows with the square of the number of nodes "
                    f"({line}), as a dense n × n matrix does (to_dense_adj, torch.zeros(n, n), cdist): "
                    "gigabytes for a neighbourhood. Use edge_index with a convolution, or scatter"
                )
        for copies in sorted({2, max(2, _MOST_ROWS // one)}):
            graph = repeated(probe.check, copies)
            try:
                after = reference.answers(probes.beside(graph, extremes(probe.check)), pairs)
            except PackagingError as error:
                if _varies_in_width(error):
                    raise
                # it may refuse such features, for example codes made of them
                after = reference.answers(graph, pairs)
            # nodes of every copy have the same neighbourhood, but other numbers
            places = [0] if pairs is not None else [0, (copies - 1) * len(rows)]
            if any(reference.differ(rows, after[at : at + len(rows)]).any() for at in places):
                why = _depends_on_other_nodes(reference, probe, decisions) or _decided(decisions)
                why = why or "its answers depend on how many nodes or edges there are, as x.cumsum(0) does"
                raise NotServable(f"the model cannot be served node by node: {why}")
    except NotServable:
        raise
    except PackagingError as error:
        raise NotServable(f"the model cannot be served node by node: {_one_size(error)}") from error


def extremes(graph: CheckGraph) -> CheckGraph:
    """Nodes with far larger features than real ones, and one of far larger degree."""
    rng = np.random.default_rng(3)
    return probes.widened(probes.strangers(graph, 1, rng, probes.CROWD), rng, 1000.0)


def repeated(graph: CheckGraph, copies: int) -> CheckGraph:
    """A graph together with copies of itself."""
    return reduce(probes.beside, [graph] * copies)


def with_statistics(reference: Reference, small: CheckGraph, whole: CheckGraph) -> tuple[Reference, Frozen]:
    """The module with its statistics of all rows as constants, those of a graph.

    Args:
        small: a part of the graph, by which they are found.
    """
    other = copy.copy(reference)

    def followed(graph: CheckGraph, watched: Collection[Place] | None) -> dict[Place, Any]:
        frozen = Frozen({}, watched)
        other.binding = replace(reference.binding, frozen=frozen)
        other.states(graph)
        return frozen.seen

    one, two = followed(small, None), followed(repeated(small, 2), None)
    both = [(place, one[place], two[place]) for place in one if place in two]
    places = [at for at, (rows, a), (more, b) in both if rows != more and a.shape == b.shape]
    frozen = Frozen({place: value for place, (_, value) in followed(whole, places).items()})
    other.binding = replace(reference.binding, frozen=frozen)
    return other, frozen


def works_on_all(reference: Reference, graph: Graph, check: CheckGraph) -> bool:
    """True if a module that failed on a sample of a graph works on the whole graph."""
    num_nodes, num_edges = graph.num_nodes, graph.num_edges
    if num_nodes == sum(map(len, check.features.values())) or num_nodes + num_edges > _MOST_OF_ALL:
        return False
    try:
        reference.states_of_nodes(CheckGraph.of(graph))
    except PackagingError:
        return False
    return True


def explain(
    reference: Reference, probe: Probe, decisions: Sequence[str] = (), *, is_branch: bool = False
) -> str:
    """Why answers for nodes depend on more than their neighbourhoods, and the remedy; "" if unknown.

    With `is_branch`, a decision is the only other cause.
    """
    try:
        why = _depends_on_other_nodes(reference, probe, decisions)
        return why or (_decided(decisions) if is_branch else "")
    except PackagingError:  # it fails on some of the changed graphs: those show nothing
        return ""


def _decided(decisions: Sequence[str]) -> str:
    """The message that a branch on all rows changes answers; "" if there is no such branch."""
    if not decisions:
        return ""
    shown = "; ".join(decisions[:3])
    return (
        f"forward makes a condition, a Python number or codes of all nodes or edges together ({shown}), "
        f"and a server sees a part of the graph: {instead_of(shown)}"
    )


def _depends_on_other_nodes(reference: Reference, probe: Probe, decisions: Sequence[str]) -> str:
    """Fault if the module's answers change with nodes that no edge joins to the requested ones, else ""."""
    real = probe.real
    rng = np.random.default_rng(1)
    reference = reference.without_head() if reference.is_link else reference
    before = reference.answers(real)
    many = probes.strangers(real, probe.hops + 3, rng)
    found: dict[str, Rows] = {}
    scaled = {"nodes": _scaled(many, nodes=True), "edges": _scaled(many, edges=True)}
    for what, others in {"copies": real, "strangers": many, **scaled}.items():
        try:
            found[what] = reference.answers(probes.beside(real, others))[: len(before)]
        except PackagingError as error:
            if what in scaled and not _varies_in_width(error):  # it may refuse such columns
                continue
            return _one_size(error)
    changed = [what for what, after in found.items() if reference.differ(before, after).any()]
    by = [
        each for each in scaled if each in found and reference.differ(found[each], found["strangers"]).any()
    ]
    if not changed:
        order = {name: rng.permutation(len(rows)) for name, rows in real.features.items()}
        after = reference.answers(renumbered(real, order))
        if not reference.differ(before[order[reference.targets[0]]], after).any():
            return ""
    decided, freeze = _decided(decisions), FREEZE if reference.binding.frozen is None else FROZEN
    if decided:
        decided += ". If that is not the cause, "
    if reference.binding.seeds:
        decided += (
            "seed_time has a time for each seed of a loader: read it as seed_time[batch], batch being the "
            "seed's number for each row. If that is not the cause, "
        )
    if by == ["edges"]:
        return decided + (
            "it takes a sum, mean or extreme over the attributes or weights of all edges (as edge_attr / "
            "edge_attr.max() does): the answer for a node changes with edges elsewhere in the graph. "
            "Normalise the columns before the graph is built, or keep the numbers of the training graph as "
            f"buffers, or {freeze}"
        )
    if "copies" in changed or not changed:
        return decided + (
            "its answers depend on how many nodes there are or on their numbers (x.size(0), arange(n), a "
            "sum or softmax over all nodes, h @ h.T): the answer for a node changes when nodes that no "
            "edge joins to it are added or change places. Declare a table with a row for each node, "
            "embeddings={'emb': node type}; replace sums over all nodes by a function of the node alone, "
            f"or {freeze}"
        )
    return decided + (
        "it attends to or normalises over all nodes: the answer for a node changes with nodes that no edge "
        "joins to it. For attention (MultiheadAttention, GPSConv, a softmax of h @ h.T) use attention over "
        "neighbours, such as TransformerConv; for a mean, variance, quantile or maximum over rows "
        "(GraphNorm, PairNorm, x - x.mean(0)) use BatchNorm, whose statistics are fixed after training, or "
        f"LayerNorm(mode='node'), or {freeze}"
    )


def _varies_in_width(error: PackagingError) -> bool:
    return "shapes cannot be multiplied" in str(error)


def _one_size(error: PackagingError) -> str:
    if _varies_in_width(error):
        return (
            f"a width in it depends on which nodes there are ({error}), as of one_hot(x) without "
            "num_classes: give the number"
        )
    return (
        f"the model works for one number of nodes only ({error}). It identifies nodes by their row: "
        "declare a table with a row for each node, embeddings={'emb': node type}"
    )


def renumbered(graph: CheckGraph, order: dict[str, IdArray]) -> CheckGraph:
    """The same graph with its nodes in another order: row i is the former row order[i]."""
    place = {name: np.argsort(rows) for name, rows in order.items()}
    edges = {}
    for key, part in graph.edges.items():
        src, dst = place[part.src][part.indices], place[part.dst][part.destinations]
        edges[key] = part.taken(slice(None), src, dst)
    return CheckGraph({name: rows[order[name]] for name, rows in graph.features.items()}, edges)


def _scaled(graph: CheckGraph, *, nodes: bool = False, edges: bool = False) -> CheckGraph:
    """The same graph with every second row of columns a hundred times as large, the others a hundredth."""

    def scaled(rows: FloatArray) -> FloatArray:
        factors = np.where(np.arange(len(rows)) % 2, np.float32(100), np.float32(0.01))
        return rows * factors.reshape(-1, *[1] * (rows.ndim - 1))

    features = {name: scaled(rows) if nodes else rows for name, rows in graph.features.items()}
    each = dict(graph.edges)
    for key, part in graph.edges.items() if edges else ():
        attr, weight = (None if column is None else scaled(column) for column in (part.attr, part.weight))
        each[key] = replace(part, attr=attr, weight=weight)
    return CheckGraph(features, each)
