"""Replaces convs of a traced model by their dense forms, and lifts source-side code one level down.

Lifting makes the state below hold what the conv reads of a neighbour (W h) instead of h: computed once
for each node, stored in the state cache, and narrower to gather.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from hopline.errors import NotSplittable
from hopline.packaging.analysis import analyse
from hopline.packaging.arguments import Binding
from hopline.packaging.dense.attend import build
from hopline.packaging.dense.base import ConvCall, DenseConv, linear
from hopline.packaging.edges import Domain, is_aggregation, linear_of, size_of, slot_of
from hopline.packaging.head import embedding_of
from hopline.packaging.regions import Reduced, Region, reduction, region
from hopline.packaging.settings import Device
from hopline.packaging.trace import Closed, Traced, conv_arguments, describe, trace

_KNOWN = {"x", "edge_index", "edge_attr"}
#: A linear map runs below a sum if it makes rows this much narrower: it runs for each neighbour there.
_NARROWER = 0.5


@dataclass(slots=True)
class LoweredConv:
    """A conv call as the splitter sees it.

    Attributes:
        dense: its dense form; a submodule of the traced module at `path`.
        source, destination: the values that it reads, after lifting.
        query: the value of the query row of an attention, computed one level below or by the stage's
            query file.
    """

    dense: DenseConv
    path: str
    source: fx.Node
    destination: Any
    query: fx.Node | None = None

    @property
    def rule(self) -> str:
        """The way in which its neighbours are read, for the report."""
        return "reduce" if isinstance(self.dense, Reduced) else "attention"

    @property
    def sources(self) -> list[fx.Node]:
        """The values of neighbours that it reads."""
        return [self.source]

    @property
    def own(self) -> list[fx.Node]:
        """The values of the node itself that its stage computes."""
        is_read = any(need.kind == "self" for need in self.dense.needs)
        inputs = self.query.all_input_nodes if self.query is not None and not self.is_query_state else ()
        return [*([self.destination] if is_read else ()), *inputs]

    @property
    def is_query_state(self) -> bool:
        """True if the state below holds the query row, because it is narrow."""
        return any(need.attention and need.attention.is_query_state for need in self.dense.needs)


Lowered = dict[fx.Node, LoweredConv | Region]


def trace_and_lower(
    model: nn.Module, binding: Binding, targets: tuple[str, ...], slots: dict[str, Tensor], *,
    device: Device = "cpu",
) -> tuple[Traced, Lowered]:  # fmt: skip
    """Trace a model, with each part as one value if it can be, and build the form of its aggregations.

    Args:
        targets, slots: as for `trace`. device: where attention is computed.

    Raises:
        NotServable: `Traced.refusal`, last, since other reasons have better remedies.
        NotSplittable: as `trace`, `analyse`, `lower`; of a traced part, for both reasons.
    """
    opened: frozenset[str] = frozenset()
    first = ""
    while True:
        try:
            traced = trace(model, binding, targets, slots, opened)
            analyse(traced, binding, slots)
            lowered = lower(traced, device)
            if traced.refusal is not None:
                raise traced.refusal
            return traced, lowered
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
            found[node] = LoweredConv(dense, path, source, None)
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
    source, destination = _sides(arguments.get("x"), where)
    key = str(slot_of(arguments["edge_index"])).split(":", 1)[1]
    if key == "*":
        raise NotSplittable(f"{where} would mix the relations")
    attr = arguments.get("edge_attr")
    if attr is not None and traced.domains.get(attr) != Domain("edge", key):
        raise NotSplittable(f"{where} reads edge attributes that are not those of {key!r}")
    same_type = destination is None or traced.domains[source] == traced.domains[destination]
    if device == "cuda" or (attr is not None and (slot_of(attr) is None or traced.values[attr].dim() != 2)):
        raise NotSplittable(f"{where} has its attention computed in the stage, by its own code")
    call = ConvCall(
        conv=traced.module.get_submodule(str(node.target)),
        name=str(node.target).removeprefix("model.") if node.target != "model" else "the model",
        edge_type=key, source_dim=int(traced.values[source].shape[1]),
        has_destination=destination is not None,
        same_type=same_type, has_edge_attr=attr is not None,
    )  # fmt: skip
    dense = build(call)
    lowered = LoweredConv(dense, path, source, destination)
    if dense.prepare_source is not None:
        lowered.source = _insert(traced, lowered, "source", dense.prepare_source, source, node)
    if dense.query == "destination":
        lowered.query = destination
    elif dense.query is not None and destination is not None:
        lowered.query = _insert(traced, lowered, "query", dense.query, destination, node)
    traced.module.add_submodule(path, dense)
    return lowered


def _sides(x: object, where: str) -> tuple[fx.Node, fx.Node | None]:
    if isinstance(x, fx.Node):
        return x, x
    if isinstance(x, list | tuple) and len(x) == 2:
        source, destination = x
        if isinstance(source, fx.Node) and (destination is None or isinstance(destination, fx.Node)):
            return source, destination
    raise NotSplittable(f"{where} does not get node rows as its x")


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
    before, user = linear_of(traced.module, source), next(iter(node.users), None)
    if before is not None:
        rows = source.all_input_nodes[0]
        readers = [each for each in source.users if size_of(each) is None]
        is_shared = len(readers) > 1 or len(readers[0].users) > 1 or before.bias is not None
        much_narrower = before.weight.shape[0] <= _NARROWER * before.weight.shape[1]
        if not is_shared and not (much_narrower and traced.levels[rows] > 0):
            conv.source, dense.after = rows, linear(before.weight)
        return
    after = linear_of(traced.module, user) if user is not None and len(node.users) == 1 else None
    ends = [(end, many) for end in traced.outputs.values() for many in (False, True)]
    is_answered = any(embedding_of(traced, end, several=many) is node for end, many in ends)
    if user is None or after is None or not traced.levels[source] or is_answered:
        return
    if 2 * after.weight.shape[0] > _NARROWER * after.weight.shape[1]:  # the own row often has a map too
        return
    conv.source = _insert(traced, conv, "source", linear(after.weight), source, node)
    dense.bias = None if after.bias is None else after.bias.detach()
    found[user] = found.pop(node)


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
