"""Replaces convs of a traced model by their dense forms, and lifts source-side code one level down.

Lifting makes the state below hold what the conv reads of a neighbour (W h) instead of h: computed once
for each node, stored in the state cache, and narrower to gather. Only where it pays (see `_lift`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch_geometric.nn import Linear

from hopline.errors import NotSplittable
from hopline.packaging.analysis import analyse
from hopline.packaging.arguments import Binding
from hopline.packaging.dense import ConvCall, ConvInput, DenseConv, build
from hopline.packaging.dense.base import linear
from hopline.packaging.edges import Domain, is_aggregation, size_of, slot_of
from hopline.packaging.head import embedding_of
from hopline.packaging.regions import Reduced, Region, reduction, region
from hopline.packaging.settings import Device
from hopline.packaging.trace import Closed, Traced, check_draws, conv_arguments, describe, trace

_KNOWN = {"x", "edge_index", "edge_attr"}
#: A linear map runs below a sum if it makes rows this much narrower: it runs for each neighbour there.
_NARROWER = 0.5


@dataclass(slots=True)
class LoweredConv:
    """A conv call as the splitter sees it.

    Attributes:
        dense: its dense form; a submodule of the traced module at `path`.
        source, destination: the values that it reads, after lifting.
        edge_attr: the edge-level value that it reads.
        query: the value of the query row of an attention, computed one level below or by the stage's
            query file.
    """

    dense: DenseConv
    path: str
    source: fx.Node
    destination: fx.Node | None
    edge_attr: fx.Node | None
    query: fx.Node | None = None

    @property
    def rule(self) -> str:
        """The way in which its neighbours are read, for the report."""
        kinds = {need.kind for need in self.dense.needs}
        return "attention" if "attend" in kinds else "reduce" if "reduce" in kinds else "dense form"

    def value(self, need: ConvInput) -> fx.Node:
        """The value that an input of the dense form has columns of."""
        value = self.source if need.value == "source" else self.destination
        assert value is not None  # else the form needs own rows that its call does not pass
        return value


Lowered = dict[fx.Node, LoweredConv | Region]


def trace_and_lower(
    model: nn.Module, binding: Binding, targets: tuple[str, ...], slots: dict[str, Tensor], *,
    device: Device = "cpu", draws: Sequence[str] = (),
) -> tuple[Traced, Lowered]:  # fmt: skip
    """Trace a model, with each part as one value if it can be, and build the form of its aggregations.

    Args:
        targets, slots: as for `trace`. device: where attention is computed.
        draws: where the model draws random numbers.

    Raises: NotSplittable: as `trace`, `analyse`, `lower`; of a traced part, for both reasons.
    """
    opened: frozenset[str] = frozenset()
    first = ""
    while True:
        try:
            traced = trace(model, binding, targets, slots, opened)
            if draws:
                check_draws(traced, partial(trace, model, binding, targets, slots, opened), list(draws))
            analyse(traced, binding, slots)
            return traced, lower(traced, device)
        except NotSplittable as error:
            if isinstance(error, Closed) and not error.parts <= opened:
                first = first or str(error)
                opened |= error.parts
            elif first:
                raise NotSplittable(f"{first}; by its code: {error}") from error
            else:
                raise


def lower(traced: Traced, device: Device = "cpu") -> Lowered:
    """Build the dense form of every conv call, and the form of every other aggregation.

    Raises: Closed: convs have no dense form. NotSplittable: an aggregation has no form.
    """
    traced.module.add_module("dense", nn.Module())
    found: Lowered = {}
    refused: dict[str, NotSplittable] = {}
    for number, node in enumerate(traced.convs):
        path = f"dense.c{number}"
        if is_aggregation(traced.module, node):
            reduced = reduction(traced, node)
            if reduced is None:
                found[node] = region(traced, node, path)
                continue
            dense, source = reduced
            traced.module.add_submodule(path, dense)
            found[node] = LoweredConv(dense, path, source, None, None)
            _commute(traced, node, found)
            continue
        try:
            found[node] = _lower(traced, node, path, device)
        except NotSplittable as error:
            refused.setdefault(str(node.target), error)
    if refused:
        raise Closed(str(next(iter(refused.values()))), frozenset(refused))
    return found


def _lower(traced: Traced, node: fx.Node, path: str, device: Device) -> LoweredConv:
    arguments = conv_arguments(traced.module, node)
    where = describe(traced.module, node)
    unknown = sorted(set(arguments) - _KNOWN)
    if unknown:
        raise NotSplittable(f"{where} is called with {', '.join(unknown)}, which no dense form accepts")
    source, destination, paired = _sides(arguments.get("x"), where)
    key = str(slot_of(arguments["edge_index"])).split(":", 1)[1]
    if key == "*":
        raise NotSplittable(f"{where} would mix the relations")
    attr = arguments.get("edge_attr")
    if attr is not None and traced.domains.get(attr) != Domain("edge", key):
        raise NotSplittable(f"{where} reads edge attributes that are not those of {key!r}")
    same_type = destination is None or traced.domains[source] == traced.domains[destination]
    has_edge_code = attr is not None and (slot_of(attr) is None or traced.values[attr].dim() != 2)
    call = ConvCall(
        conv=traced.module.get_submodule(str(node.target)),
        name=str(node.target).removeprefix("model.") if node.target != "model" else "the model",
        edge_type=key, source_dim=int(traced.values[source].shape[1]),
        destination_dim=0 if destination is None else int(traced.values[destination].shape[1]),
        paired=paired, same_type=same_type, has_edge_attr=attr is not None,
        in_blocks=device == "cuda" or has_edge_code, is_same_value=destination is source,
    )  # fmt: skip
    dense = build(call)
    lowered = LoweredConv(dense, path, source, destination, attr)
    if dense.is_query_destination:
        lowered.query = destination
    if dense.prepare_query is not None and destination is not None:
        lowered.query = _insert(traced, lowered, "query", dense.prepare_query, destination, node)
    _lift(traced, lowered, node)
    traced.module.add_submodule(path, dense)
    return lowered


def _sides(x: object, where: str) -> tuple[fx.Node, fx.Node | None, bool]:
    if isinstance(x, fx.Node):
        return x, x, False
    if isinstance(x, list | tuple) and len(x) == 2:
        source, destination = x
        if isinstance(source, fx.Node) and (destination is None or isinstance(destination, fx.Node)):
            return source, destination, True
    raise NotSplittable(f"{where} does not get node rows as its x")


def _lift(traced: Traced, conv: LoweredConv, node: fx.Node) -> None:
    """Move source code below where it must be, or where it makes the state of a block little wider.

    Level 0 is raw features, which are gathered anyway: a file there gains nothing.
    """
    dense, source = conv.dense, traced.values[conv.source]
    if dense.prepare_source is None:
        return
    with torch.no_grad():
        width = dense.prepare_source(source[:1]).shape[1]
    if not dense.must_lift and (traced.levels[conv.source] == 0 or width > 1.25 * source.shape[1]):
        return
    conv.source = _insert(traced, conv, "source", dense.prepare_source, conv.source, node)
    dense.lifted_source = True
    if dense.is_query_source:
        conv.query = conv.source


def _commute(traced: Traced, node: fx.Node, found: Lowered) -> None:
    """Have a linear map before or after a reduction run where it is cheaper: for each node, or below it.

    A sum is linear, so that the order is free. Below, the map runs for every neighbour whose row is not
    cached, so that rows must become much narrower by it.
    """
    conv: Any = found[node]
    dense: Reduced = conv.dense
    source = conv.source
    if dense.needs[0].reduce == "max" or traced.values[node].dim() != 2:
        return
    before, user = linear_of(traced, source), next(iter(node.users), None)
    if before is not None:
        rows = source.all_input_nodes[0]
        readers = [each for each in source.users if size_of(each) is None]
        is_shared = len(readers) > 1 or len(readers[0].users) > 1 or before.bias is not None
        much_narrower = before.weight.shape[0] <= _NARROWER * before.weight.shape[1]
        if not is_shared and not (much_narrower and traced.levels[rows] > 0):
            conv.source, dense.after = rows, linear(before.weight)
        return
    after = linear_of(traced, user) if user is not None and len(node.users) == 1 else None
    ends = [(end, many) for end in traced.outputs.values() for many in (False, True)]
    is_answered = any(embedding_of(traced, end, several=many) is node for end, many in ends)
    if user is None or after is None or not traced.levels[source] or is_answered:
        return
    if 2 * after.weight.shape[0] > _NARROWER * after.weight.shape[1]:  # the own row often has a map too
        return
    conv.source = _insert(traced, conv, "source", linear(after.weight), source, node)
    dense.bias = None if after.bias is None else after.bias.detach()
    found[user] = found.pop(node)


def linear_of(traced: Traced, node: fx.Node) -> Any:
    """The module of a value that is a linear map of rows, without hooks; None for other values."""
    part: Any = traced.module.get_submodule(str(node.target)) if node.op == "call_module" else None
    if type(part) not in (nn.Linear, Linear) or "forward" in vars(part):
        return None
    return None if part._forward_hooks or part._forward_pre_hooks else part


def _insert(
    traced: Traced, conv: LoweredConv, side: str, prepare: nn.Module, value: fx.Node, before: fx.Node
) -> fx.Node:
    target = f"{conv.path.replace('dense.', 'dense.p_')}_{side}"
    traced.module.add_submodule(target, prepare)
    with traced.module.graph.inserting_before(before):
        node = traced.module.graph.call_module(target, (value,))
    traced.domains[node] = traced.domains[value]
    traced.levels[node] = traced.levels[value]
    with torch.no_grad():
        traced.values[node] = prepare(traced.values[value])
    return node
