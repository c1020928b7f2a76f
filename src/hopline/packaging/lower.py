"""Replaces convs of a traced model by their dense forms, and lifts source-side code one level down.

Lifting makes the state below hold what the conv reads of a neighbour (W h) instead of h: computed once
for each node, stored in the state cache, and narrower to gather. Only where it pays (see `_lift`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, fx, nn

from hopline.errors import NotSplittable
from hopline.packaging.analysis import analyse
from hopline.packaging.arguments import Binding
from hopline.packaging.dense import ConvCall, ConvInput, DenseConv, build
from hopline.packaging.edges import Domain, is_aggregation, slot_of
from hopline.packaging.regions import Region, reduction, region
from hopline.packaging.settings import Device
from hopline.packaging.trace import Closed, Traced, check_draws, conv_arguments, describe, trace

_KNOWN = {"x", "edge_index", "edge_attr", "edge_weight", "edge_type"}


@dataclass(slots=True)
class LoweredConv:
    """A conv call as the splitter sees it.

    Attributes:
        dense: its dense form; a submodule of the traced module at `path`.
        source, destination: the values that it reads, after lifting.
        edge_attr: the edge-level value that it reads.
        edge_types: keys.
        query: the value of the query row of an attention, computed one level below or by the stage's
            query file.
    """

    dense: DenseConv
    path: str
    source: fx.Node
    destination: fx.Node | None
    edge_attr: fx.Node | None
    edge_types: tuple[str, ...]
    query: fx.Node | None = None

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

    Raises:
        NotSplittable: as `trace`, `analyse` and `lower`; of a part whose code was traced, for both reasons.
    """
    opened: frozenset[str] = frozenset()
    first = ""
    while True:
        try:
            traced = trace(model, binding, targets, slots, opened)
            if draws:
                check_draws(traced, partial(trace, model, binding, targets, slots, opened), list(draws))
            analyse(traced, binding, slots)
            return traced, lower(traced, binding, device)
        except NotSplittable as error:
            if isinstance(error, Closed) and not error.parts <= opened:
                first = first or str(error)
                opened |= error.parts
            elif first:
                raise NotSplittable(f"{first}; by its code: {error}") from error
            else:
                raise


def lower(traced: Traced, binding: Binding, device: Device = "cpu") -> Lowered:
    """Build the dense form of every conv call, and the form of every other aggregation.

    Raises:
        Closed: convs that have no dense form; the message says why the first one has none.
        NotSplittable: an aggregation has no form.
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
            found[node] = LoweredConv(dense, path, source, None, None, (dense.needs[0].edge_type,))
            continue
        try:
            found[node] = _lower(traced, binding, node, path, device)
        except NotSplittable as error:
            refused.setdefault(str(node.target), error)
    if refused:
        raise Closed(str(next(iter(refused.values()))), frozenset(refused))
    return found


def _lower(traced: Traced, binding: Binding, node: fx.Node, path: str, device: Device) -> LoweredConv:
    arguments = conv_arguments(traced.module, node)
    where = describe(traced.module, node)
    unknown = sorted(set(arguments) - _KNOWN)
    if unknown:
        raise NotSplittable(f"{where} is called with {', '.join(unknown)}, which no dense form accepts")
    source, destination, paired = _sides(arguments.get("x"), where)
    key = str(slot_of(arguments["edge_index"])).split(":", 1)[1]
    edge_types = binding.relations if key == "*" else (key,)
    if key == "*" and slot_of(arguments.get("edge_type", source)) != "edge_type:*":
        raise NotSplittable(f"{where} reads the edges of all relations but not their unchanged edge_type")
    weight = arguments.get("edge_weight")
    if weight is not None and slot_of(weight) != f"edge_weight:{key}":
        raise NotSplittable(
            f"{where} reads a computed edge weight; store it as the graph's edge weight or attribute"
        )
    attr = arguments.get("edge_attr")
    if attr is not None and traced.domains.get(attr) != Domain("edge", key):
        raise NotSplittable(f"{where} reads edge attributes that are not those of {key!r}")
    same_type = destination is None or traced.domains[source] == traced.domains[destination]
    has_edge_code = attr is not None and (slot_of(attr) is None or traced.values[attr].dim() != 2)
    call = ConvCall(
        conv=traced.module.get_submodule(str(node.target)),
        name=str(node.target).removeprefix("model.") if node.target != "model" else "the model",
        edge_types=edge_types, source_dim=int(traced.values[source].shape[1]),
        destination_dim=0 if destination is None else int(traced.values[destination].shape[1]),
        paired=paired, same_type=same_type, has_edge_attr=attr is not None,
        has_edge_weight=weight is not None, in_blocks=device == "cuda" or has_edge_code,
        is_same_value=destination is source,
    )  # fmt: skip
    dense = build(call)
    lowered = LoweredConv(dense, path, source, destination, attr, edge_types)
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
    """Move source and destination code below where it must be or where it makes the state narrower.

    Level 0 is raw features, which are gathered anyway: a file there gains nothing.
    """
    dense = conv.dense
    prepare = dense.prepare_source
    if prepare is None:
        return
    source_dim = int(traced.values[conv.source].shape[1])
    with torch.no_grad():
        width = int(prepare(traced.values[conv.source][:1]).shape[1])
    if not dense.must_lift:
        own = dense.prepare_destination
        if own is not None and conv.destination is not None:
            with torch.no_grad():
                width += int(own(traced.values[conv.destination][:1]).shape[1])
        # A lifted Gemm runs for every neighbour instead of once for the node (unless it is in the
        # state cache), so that a reduction must become much narrower; an attention's runs as often either
        # way.
        block = dense.needs[0].kind == "sources"
        if traced.levels[conv.source] == 0 or width > source_dim * (1.25 if block else 0.5):
            return
    conv.source = _insert(traced, conv, "source", prepare, conv.source, node)
    dense.lifted_source = True
    if dense.is_query_source:
        conv.query = conv.source
    if dense.must_lift or dense.prepare_destination is None or conv.destination is None:
        return
    if traced.levels[conv.destination] == 0:
        return
    conv.destination = _insert(
        traced, conv, "destination", dense.prepare_destination, conv.destination, node
    )
    dense.lifted_destination = True


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
