"""Aggregations of rows of edges: as a reduction of the engine where it is one, else by code of a stage."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch_geometric.nn import Aggregation, aggr
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.nn.resolver import aggregation_resolver

from hopline.artifact import Reduce, StageInput
from hopline.errors import NotSplittable
from hopline.packaging import edges as lists
from hopline.packaging.dense.aggregate import OPENED, EdgeAggregation
from hopline.packaging.dense.base import DenseConv
from hopline.packaging.trace import Closed, Traced, describe, norm_in

#: Aggregations that the engine computes, whatever their number of neighbours.
REDUCTIONS: dict[type, Reduce] = {aggr.MeanAggregation: "mean", aggr.SumAggregation: "sum"}
REDUCTIONS[aggr.MaxAggregation] = "max"


@dataclass(slots=True)
class Region:
    """An aggregation of rows of edges in a stage, and what they are computed from.

    Attributes:
        path: of the aggregation, a submodule of the traced module.
        messages: the rows of edges; None where they are only counted.
        edges: whose they are.
        sources: values of neighbours that they are computed from.
        own: values of the node itself.
        rule, query: as of a conv.
    """

    path: str
    messages: fx.Node | None
    edges: lists.Domain
    sources: list[fx.Node]
    own: list[fx.Node]
    rule = "general stage"
    query = None


def region(traced: Traced, node: fx.Node, path: str) -> Region:
    """The code of an aggregation in a stage.

    Raises:
        NotSplittable: its aggregation, or the attributes that it gives to added self-loops, have no form.
    """
    found = lists.grouping(traced.module, node)
    edges = found.edges
    assert edges is not None  # `analyse` refuses others
    if found.rows is None:
        return Region(path, None, edges, [], [])
    sources, own = _read_by(traced, found.rows)

    def refusal(reason: str) -> NotSplittable:
        return NotSplittable(f"{describe(traced.module, node)} cannot be a stage: {reason}")

    traced.module.add_submodule(path, EdgeAggregation(_aggregation(traced, node), refusal))
    return Region(path, found.rows, edges, sources, own)


def _read_by(traced: Traced, messages: fx.Node) -> tuple[list[fx.Node], list[fx.Node]]:
    """Values of neighbours, and of the node itself, that rows of edges are computed from."""
    sources: dict[fx.Node, None] = {}
    own: dict[fx.Node, None] = {}
    seen: set[fx.Node] = set()

    def visit(each: fx.Node) -> None:
        domain = traced.domains.get(each)
        if each in seen or domain is None or domain.kind == "node":
            return
        seen.add(each)
        rows: Any = each.args[0] if each.args else None
        if each.target is lists.neighbour_rows:
            sources[rows] = None
            if domain.adds_loops:
                own[rows] = None
        elif each.target is lists.own_rows:
            own[rows] = None
        elif (call := lists.loops_of(each)) is not None:
            visit(attributes_before(traced, call)[0])
        elif lists.slot_of(each) is None and lists.edges_of(each) is None:
            for argument in each.all_input_nodes:
                visit(argument)

    visit(messages)
    return list(sources), list(own)


def attributes_before(traced: Traced, call: fx.Node) -> tuple[fx.Node, lists.Domain, Any]:
    """The attributes from which `add_self_loops` and the others make new ones, and whose they are.

    Returns: also those of added self-loops, as in `dense.groups.loop_attributes`.

    Raises:
        NotSplittable: they are coefficients of `gcn_norm`, or those of added self-loops are not known here.
    """
    where = describe(traced.module, call)
    if call.target is gcn_norm:
        raise Closed(
            f"{where} computes weights that no reduction reads",
            frozenset([norm_in(call.meta.get("nn_module_stack"))]),
        )
    given = lists.arguments_of(call)
    edges, rows = lists.edges_of(given["edge_index"]), given["edge_attr"]
    assert edges is not None
    assert isinstance(rows, fx.Node)
    fill = given.get("fill_value", 1.0)
    fill = 1.0 if fill is None else fill
    if isinstance(fill, fx.Node) or (isinstance(fill, str) and fill not in ("mean", "add", "sum")):
        raise NotSplittable(f"{where} fills added self-loops with {fill}, which has no form here")
    return rows, edges, fill


def _aggregation(traced: Traced, node: fx.Node) -> Aggregation:
    if node.op == "call_module":
        found = traced.module.get_submodule(str(node.target))
        assert isinstance(found, Aggregation)
        return found
    reduce = lists.arguments_of(node)["reduce"]
    try:
        return aggregation_resolver(reduce)
    except ValueError as error:
        raise NotSplittable(f"{describe(traced.module, node)} reduces by {reduce!r}") from error


def refuse_readouts(module: nn.Module) -> None:
    """Make a module fail where it calls an aggregation, other than one of a conv, that has no form here."""
    parts = ("aggr_module", "fused_aggr")  # of convs, and of several aggregations
    names = {part: path for path, part in module.named_modules() if not path.endswith(parts)}

    def check(part: Any, args: Any) -> None:
        place = f"{names[part]} ({type(part).__name__})"
        EdgeAggregation(part, lambda why: NotSplittable(f"{place} cannot be a stage: {why}"))

    for part in names:
        if isinstance(part, Aggregation) and type(part) not in (*OPENED, aggr.MultiAggregation):
            part.register_forward_pre_hook(check)


class Reduced(DenseConv):
    """An aggregation that the engine computes: a reduction of neighbours' rows.

    Args:
        shape: of a node's row.

    Attributes:
        after: a linear map that was before the reduction; None for none.
        bias: of one that is below it now.
    """

    bias: Tensor | None

    def __init__(self, edge_type: str, kind: Reduce, *, weighted: bool, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.needs = (StageInput("", "reduce", edge_type, reduce=kind, weighted=weighted),)
        self.shape = shape
        self.after: nn.Module | None = None
        self.register_buffer("bias", None)

    def forward(self, rows: Tensor) -> Tensor:
        """The reduction in the shape of the model's rows."""
        if len(self.shape) == 1:
            rows = rows if self.after is None else self.after(rows)
            return rows if self.bias is None else rows + self.bias
        return rows.unflatten(1, self.shape) if self.shape else rows.squeeze(1)


def reduction(traced: Traced, node: fx.Node) -> tuple[Reduced, fx.Node] | None:
    """The reduction of the engine that an aggregation is, and the value that is reduced; else None."""
    found = lists.grouping(traced.module, node)
    if found.rows is None:
        return None
    kind = REDUCTIONS.get(type(_aggregation(traced, node)))
    rows, weight = _weighted(found.rows)
    if kind is None or rows.target is not lists.neighbour_rows:
        return None
    if weight is not None and traced.values[rows].dim() != 2:
        return None
    edges, source = lists.edges_of(rows.args[1]), rows.args[0]
    assert edges is not None
    assert isinstance(source, fx.Node)
    weighted = weight is not None
    if weight is not None and lists.slot_of(weight) != f"edge_weight:{edges.type}":
        norm = _norm(weight, edges) if kind == "sum" else None
        if norm is None:
            return None
        kind, weighted = norm
        edges = replace(edges, loops="")
    several = len(edges.keys(traced.relations)) > 1
    if edges.loops or several or (kind == "max" and weighted):
        return None
    shape = tuple(traced.values[node].shape[1:])
    return Reduced(edges.type, kind, weighted=weighted, shape=shape), source


def _weighted(messages: fx.Node) -> tuple[fx.Node, fx.Node | None]:
    """Rows of edges, and the weight [E] that they are multiplied by."""
    if messages.target in (operator.mul, torch.mul, "mul") and len(messages.args) == 2:
        for one, other in (messages.args, messages.args[::-1]):
            weight = _column_of(other)
            if weight is not None and isinstance(one, fx.Node) and one.target is lists.neighbour_rows:
                return one, weight
    return messages, None


def _norm(weight: fx.Node, edges: lists.Domain) -> tuple[Reduce, bool] | None:
    """The reduction for weights that `gcn_norm` computes, and if it reads the graph's weights."""
    norm = lists.loops_of(weight)
    if norm is None or norm.target is not gcn_norm:
        return None
    given = lists.arguments_of(norm)
    inner = given["edge_weight"]
    if given["improved"] or lists.edges_of(given["edge_index"]) != replace(edges, loops=""):
        return None
    if inner is not None and lists.slot_of(inner) != f"edge_weight:{edges.type}":
        return None
    return ("gcn" if given["add_self_loops"] else "gcn_noself"), inner is not None


def _column_of(node: Any) -> fx.Node | None:
    """The value [E] that another one has as [E, 1]; None if it is something else."""
    if not isinstance(node, fx.Node) or node.op != "call_method" or not isinstance(node.args[0], fx.Node):
        return None
    shape = {"view": ((-1, 1),), "unsqueeze": ((-1,), (1,))}.get(str(node.target), ())
    return node.args[0] if node.args[1:] in shape else None
