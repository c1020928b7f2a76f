"""Lists of edges in a traced model: a graph's own, the reverse of these, and both with other self-loops.

A value of a traced model is rows of something, its *domain*. Code that groups rows of edges by their
destinations (`softmax`, `scatter`, an aggregation) or that changes the list of edges stays one value, so
that it differs from code that computes each row separately.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch_geometric.nn import Aggregation, Linear, MessagePassing
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import (
    add_remaining_self_loops,
    add_self_loops,
    degree,
    remove_self_loops,
    scatter,
    softmax,
)

from hopline.graph.schema import reverse_key
from hopline.packaging.dense.base import linear
from hopline.packaging.proxy import value_of

#: Between the keys of edge types whose edges the model has in one list.
_AND = " and "
#: A map of neighbours' rows runs below if it makes them at most this many times as wide: they are kept.
_WIDER = 2.0
#: Methods that answer the same edges.
_SAME = frozenset({"clone", "contiguous", "detach", "long", "cpu", "cuda"})
#: Functions that repeat numbers, and change nothing else.
_COPIES = frozenset(
    {torch.stack, torch.unsqueeze, "repeat", "expand", "unsqueeze", "view", "reshape", *_SAME, "to"}
)
#: Directions of PyG's messages: along the edges, and against them.
FLOWS = ("source_to_target", "target_to_source")
#: Functions over all edges of a node, and such that answer another list of edges.
GROUPED: tuple[Callable[..., Any], ...] = (softmax, scatter, degree)
LOOPS: tuple[Callable[..., Any], ...] = (
    gcn_norm, add_self_loops, add_remaining_self_loops, remove_self_loops,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Domain:
    """Owner of a value's rows: a node type, or an edge type.

    Attributes:
        loops: of an edge type, what the model did to self-loops: "" nothing, "without" them, "with" one
            for each node in their place, "more" for one in addition. Added ones come last, in the order
            of nodes.
    """

    kind: str
    type: str
    loops: str = ""

    def __str__(self) -> str:
        return f"{self.kind} type {self.type!r}"

    def keys(self, relations: Sequence[str]) -> tuple[str, ...]:
        """The edge types: one, several lists of edges in one, or all `relations`."""
        return tuple(relations) if self.type == "*" else tuple(self.type.split(_AND))

    @property
    def adds_loops(self) -> bool:
        """True if each node has an edge to itself that the model added."""
        return self.loops in ("with", "more")


def neighbour_rows(rows: Tensor, edge_index: Tensor) -> Tensor:
    """Rows of nodes [n, …] as rows of edges [E, …]: that of the edge's source."""
    return rows.index_select(0, edge_index[0])


def own_rows(rows: Tensor, edge_index: Tensor) -> Tensor:
    """Rows of nodes [n, …] as rows of edges [E, …]: that of the edge's destination."""
    return rows.index_select(0, edge_index[1])


def slot_of(node: fx.Node) -> str | None:
    """The slot that a value reads, None for computed values."""
    if node.op == "call_function" and node.target is operator.getitem:
        base = node.args[0]
        if isinstance(base, fx.Node) and base.op == "placeholder":
            return str(node.args[1])
    return None


def edges_of(node: Any) -> Domain | None:
    """The edges that an edge index holds: the model's argument, or that with other self-loops."""
    while (copied := _copied(node)) is not None:
        node = copied
    if not isinstance(node, fx.Node):
        return None
    if listed := listed_by(node, 1):
        return joined([edges_of(each) for each in listed])
    if (other := flipped(node)) is not None:
        back, edges = flipped(other), edges_of(other)
        if back is not None or edges is None or edges.loops or edges.type.count("__") != 2:
            return None if back is None else edges_of(back)
        return Domain("edge", reverse_key(edges.type))
    if node.target is not operator.getitem:
        return None
    slot = slot_of(node)
    if slot is not None:
        role, _, edge_type = slot.partition(":")
        return Domain("edge", edge_type) if role in ("edge_index", "adj_t") else None
    return edges_after(node.args[0]) if node.args[1] == 0 else None


def flipped(node: fx.Node) -> Any:
    """The value whose two rows a value has in the other order; None for other values."""
    given: Any = [*node.args[1:], *node.kwargs.values()]
    if node.target in ("flip", torch.flip):
        dims = given[0] if isinstance(given[0], list | tuple) else given
        return node.args[0] if [*dims] in ([0], [-2]) else None
    if node.target is operator.getitem and given == [[1, 0]]:
        return node.args[0]
    return _stacked(node, [1, 0])


def _copied(node: Any) -> Any:
    """The value whose two rows a value has in the same order; None for other values."""
    if not isinstance(node, fx.Node):
        return None
    if node.op != "call_method":
        return _stacked(node, [0, 1])
    if node.target == "to":  # a device, or the type that it has; a tensor would have any type
        given = [*node.args[1:], *node.kwargs.values()]
        others = [each for each in given if isinstance(each, fx.Node | torch.dtype)]
        return node.args[0] if {*others} <= {torch.int64} else None
    return node.args[0] if node.target in _SAME else None


def _stacked(node: fx.Node, rows: list[int]) -> Any:
    """The value whose rows a `torch.stack` lists in this order; None for other values."""
    given = [*node.args[1:], *node.kwargs.values()]
    parts: Any = node.args[0] if node.target is torch.stack and given in ([], [0]) else ()
    ends = [end_of(part) for part in parts]
    if [end and end[1] for end in ends] == rows and ends[0][0] == ends[1][0]:  # type: ignore[index]
        return parts[0].args[0]
    return None


def listed_by(node: fx.Node, dim: int) -> list[Any]:
    """The values that `torch.cat` joins in a dimension; none for other values."""
    if node.target is not torch.cat:
        return []
    given: dict[str, Any] = {**dict(zip(("tensors", "dim"), node.args, strict=False)), **node.kwargs}
    return list(given["tensors"]) if given.get("dim", 0) == dim else []


def joined(parts: Sequence[Domain | None]) -> Domain | None:
    """The edges of several lists in one; None if any are not a graph's own edges."""
    types = [part.type for part in parts if part is not None and part.kind == "edge" and not part.loops]
    return Domain("edge", _AND.join(types)) if len(types) == len(parts) else None


def edges_after(node: Any) -> Domain | None:
    """The edges that a call of a function of `LOOPS` answers, with their attributes, as a tuple."""
    if getattr(node, "target", None) not in LOOPS:
        return None
    given = arguments_of(node)
    before = edges_of(given["edge_index"])
    if before is None:
        return None
    if node.target is remove_self_loops:
        return None if before.adds_loops else replace(before, loops="without")
    if node.target is add_self_loops:
        added = {"": "more", "without": "with"}.get(before.loops)
        return None if added is None else replace(before, loops=added)
    if node.target is gcn_norm and not given["add_self_loops"]:
        return before
    return None if before.loops == "more" else replace(before, loops="with")


def loops_of(node: fx.Node) -> fx.Node | None:
    """The call of a function of `LOOPS` whose attributes of edges a value is; None for other values."""
    if node.target is not operator.getitem or node.args[1] != 1 or not isinstance(node.args[0], fx.Node):
        return None
    return node.args[0] if node.args[0].target in LOOPS else None


def end_of(node: Any) -> tuple[Domain, int] | None:
    """The edges whose sources (0) or destinations (1) a value numbers; None for other values."""
    if not isinstance(node, fx.Node) or node.target is not operator.getitem or node.args[1] not in (0, 1):
        return None
    edges = edges_of(node.args[0])
    return None if edges is None else (edges, int(node.args[1]))  # type: ignore[arg-type]


def arguments_of(node: fx.Node, function: Any = None) -> dict[str, Any]:
    """The arguments of a call by name, with defaults.

    Args:
        function: that is called; None for the value's own target.
    """
    bound = inspect.signature(function or node.target).bind(*node.args, **node.kwargs)  # type: ignore[arg-type]
    bound.apply_defaults()
    return bound.arguments


def is_aggregation(module: fx.GraphModule, node: fx.Node) -> bool:
    """True if a value is made of groups of rows: by `scatter`, `degree` or an aggregation with an index."""
    if node.op == "call_module":
        part = module.get_submodule(str(node.target))
        return isinstance(part, Aggregation) and grouping(module, node).index is not None
    return node.op == "call_function" and node.target in (scatter, degree)


@dataclass(frozen=True, slots=True)
class Grouping:
    """Rows that a call groups, and the numbers of their groups.

    Attributes:
        rows: None for `degree`, which counts them.
        index: the number of the group of each row.
        dim: that is grouped.
        is_plain: the call passes nothing else that its result depends on.
    """

    rows: Any
    index: Any
    dim: int = 0
    is_plain: bool = True

    @property
    def edges(self) -> Domain | None:
        """The edges whose destinations the groups are; None for other groups."""
        end = end_of(self.index)
        return None if end is None or end[1] != 1 else end[0]


def grouping(module: fx.GraphModule, node: fx.Node) -> Grouping:
    """The rows that an aggregation or a softmax groups, and by which numbers."""
    function = None
    if node.op == "call_module":
        function = module.get_submodule(str(node.target)).forward
    given = arguments_of(node, function)
    if node.target is degree:
        return Grouping(None, given["index"])
    rows, index = (given.pop(name, None) for name in (next(iter(given)), "index"))
    others = given.get("ptr"), given.get("max_num_elements")
    return Grouping(rows, index, given.get("dim", 0), others == (None, None))


def add_loops(graph: fx.Graph) -> None:
    """Rewrite `torch.cat([edge_index, torch.arange(n).repeat(2, 1)], 1)` as a call of `add_self_loops`."""
    for node in graph.nodes:
        parts = listed_by(node, 1) or listed_by(node, -1)
        loops = {part: number for part in parts if (number := _number_of_loops(part)) is not None}
        lists = [part for part in parts if edges_of(part) is not None]
        if len(parts) == 2 and len(loops) == len(lists) == 1:
            with graph.inserting_before(node):
                number = {"num_nodes": next(iter(loops.values()))}
                made = graph.call_function(add_self_loops, tuple(lists), number)
            made.meta.update(node.meta)
            node.target, node.args, node.kwargs = operator.getitem, (made, 0), {}


def _number_of_loops(node: fx.Node) -> Any:
    """The number n of nodes, of a value that lists each of them twice, [2, n]; None for other values."""
    found, value, left = [], value_of(node), [node]
    for each in left:
        if each.target is torch.arange and each.args[:-1] in ((), (0,)):
            found.append(each.args[-1])
        elif each.target in _COPIES:
            left += [one for one in each.all_input_nodes if size_of(one) is None]
        else:
            return None
    number = found[0] if len({*found}) == 1 else None
    if not isinstance(number, fx.Node) or size_of(number) is None or not isinstance(value, Tensor):
        return None
    return number if torch.equal(value, torch.arange(value_of(number)).repeat(2, 1)) else None


def name_ends(graph: fx.Graph, relations: Sequence[str]) -> None:
    """Rewrite `x[edge_index[0]]` and `x.index_select(0, edge_index[1])` as rows of the edges' ends.

    And `edge_index[:, edge_type == 1]` as the edges of the second relation; not what makes sparse matrices.
    """
    dense = [node for node in graph.nodes if not any("sparse_" in str(user.target) for user in node.users)]
    turned = {node: edges for node in dense if flipped(node) is not None and (edges := edges_of(node))}
    slots = next(iter(graph.nodes))
    for node, edges in turned.items():
        node.op, node.target, node.kwargs = "call_function", operator.getitem, {}
        node.args = (slots, f"edge_index:{edges.type}")
    for node in graph.nodes:
        if node.op == "call_function" and node.target is operator.getitem and len(node.args) == 2:
            rows, index = node.args
            slot, number = slot_of(rows) or "", _relation(index[-1] if isinstance(index, tuple) else index)
            if slot.endswith(":*") and number in range(len(relations)):
                node.args = (rows.args[0], slot.replace("*", relations[number]))
                continue
        elif node.target in ("index_select", torch.index_select) and node.args[1:2] == (0,):
            if len(node.args) != 3:
                continue
            rows, _, index = node.args
        elif node.target is torch.bmm:
            _multiply_by_relation(graph, node, relations)
            continue
        else:
            continue
        end = end_of(index)
        if end is not None:
            node.op, node.target = "call_function", (neighbour_rows, own_rows)[end[1]]
            node.args, node.kwargs = (rows, index.args[0]), {}


def turn_edges(module: fx.GraphModule, relations: Sequence[str]) -> None:
    """Rewrite groups by the sources of edges as groups by the destinations of the reverse edges.

    So all that groups, and each conv, reads edges that enter a node: of a type of the graph, or of the type
    that has its edges against their direction.
    """
    graph = module.graph
    reverse = {key: reverse_key(key) for key in relations}
    reverse |= {other: key for key, other in reverse.items()}
    known: dict[tuple[fx.Node, str], fx.Node] = {}

    def turned(node: fx.Node, into: str, before: fx.Node) -> fx.Node:
        """The same value of edges, by edge of the type `into`; unchanged if it has other rows."""
        if (node, into) in known:
            return known[node, into]
        new = known[node, into] = node
        role, _, key = (slot_of(node) or "").partition(":")
        is_fixed = node.op in ("placeholder", "get_attr") or (role != "" and key != reverse[into])
        loops = loops_of(node)
        # a fill by name is over the edges that enter a node
        is_fixed |= loops is not None and isinstance(arguments_of(loops).get("fill_value"), str)
        if is_fixed or _is_grouped(module, node):
            return node
        inputs = {each: turned(each, into, before) for each in node.all_input_nodes}
        if role or any(one is not other for one, other in inputs.items()):
            with graph.inserting_before(before):
                new = graph.node_copy(node, inputs.__getitem__)
            if role:
                new.args = (new.args[0], f"{role}:{into}")
            elif (end := end_of(node)) is not None:
                new.args = (new.args[0], 1 - end[1])
            elif node.target in (neighbour_rows, own_rows):
                new.target = own_rows if node.target is neighbour_rows else neighbour_rows
            elif node.target is gcn_norm:
                given = arguments_of(new)
                new.args, new.kwargs = (), given | {"flow": FLOWS[given["flow"] == FLOWS[0]]}
        known[node, into] = new
        return new

    slots = {(slot_of(node) or "").partition(":")[2] for node in graph.nodes}
    reads_reverse = not slots.isdisjoint(map(reverse_key, relations))
    for node in list(graph.nodes):
        end = None
        if node.target is softmax or is_aggregation(module, node):
            end = end_of(grouping(module, node).index)
        elif node.target in LOOPS or _is_grouped(module, node):
            read = [edges for each in node.all_input_nodes if (edges := edges_of(each)) is not None]
            end = (read[0], 1) if read else None
        if end is not None and end[0].type in reverse and (reads_reverse or not end[1]):
            into = end[0].type if end[1] else reverse[end[0].type]
            new = {each: turned(each, into, node) for each in node.all_input_nodes}
            node.args, node.kwargs = fx.node.map_arg((node.args, node.kwargs), new.__getitem__)


def _is_grouped(module: fx.GraphModule, node: fx.Node) -> bool:
    return is_conv(module, node) or node.target is softmax or is_aggregation(module, node)


def is_conv(module: fx.GraphModule, node: fx.Node) -> bool:
    """True if a value is the result of a message-passing module."""
    return node.op == "call_module" and isinstance(module.get_submodule(str(node.target)), MessagePassing)


def _multiply_by_relation(graph: fx.Graph, node: fx.Node, relations: Sequence[str]) -> None:
    """Rewrite rows [E, 1, d] times a matrix for each edge as those of each relation times its matrix."""
    given: tuple[Any, ...] = node.args
    rows, matrices = given
    if rows.target != "unsqueeze" or matrices.target is not torch.index_select:
        return
    ends, weight, where = rows.args[0], matrices.args[0], matrices.args[1:]
    if rows.args[1] != 1 or where[0] != 0 or slot_of(where[1]) != "edge_type:*":
        return
    if ends.target not in (neighbour_rows, own_rows) or slot_of(ends.args[1]) != "edge_index:*":
        return
    parts = []
    with graph.inserting_before(node):
        for number, key in enumerate(relations):
            edges = graph.call_function(operator.getitem, (where[1].args[0], f"edge_index:{key}"))
            part = graph.call_function(ends.target, (ends.args[0], edges))
            matrix = graph.call_function(operator.getitem, (weight, number))
            parts.append(graph.call_function(torch.matmul, (part, matrix)))
        node.target, node.args = torch.unsqueeze, (graph.call_function(torch.cat, (parts,)), 1)


def linear_of(module: fx.GraphModule, node: fx.Node) -> Any:
    """The module of a value that is a linear map of rows, without hooks; None for other values."""
    part: Any = module.get_submodule(str(node.target)) if node.op == "call_module" else None
    if type(part) not in (nn.Linear, Linear) or "forward" in vars(part):
        return None
    return None if part._forward_hooks or part._forward_pre_hooks else part


def map_ends(module: fx.GraphModule) -> None:
    """Have linear maps of rows of edges' ends run once for each node, and not for each of its edges.

    `lin(x_j)` becomes `lin(x)_j`, and `lin(cat([x_i, x_j, e]))` the sum of a map of each of the three.
    """
    graph = module.graph
    for node in list(graph.nodes):
        whole, column = linear_of(module, node), []
        rows: Any = next(iter(node.args), None)
        if whole is None or not isinstance(rows, fx.Node):
            continue
        if rows.target is operator.getitem and isinstance(rows.args[1], tuple):  # h[:, 0]: one of several
            if rows.args[1][:-1] != (slice(None),) or not isinstance(rows.args[0], fx.Node):
                continue
            rows, *column = rows.args
        parts = listed_by(rows, -1) or listed_by(rows, 1 + len(column)) or [rows]
        values: list[Any] = [value_of(part) if isinstance(part, fx.Node) else None for part in parts]
        if not all(isinstance(value, Tensor) and value.dim() == 2 + len(column) for value in values):
            continue
        widths = [value.shape[-1] for value in values]
        if sum(widths) != whole.weight.shape[1]:  # the module fails, which `analyse` reports
            continue
        weights = whole.weight.split(widths, dim=1)
        most = {own_rows: math.inf, neighbour_rows: _WIDER}
        pairs = list(zip(parts, weights, strict=True))
        of_ends = [len(w) <= w.shape[1] * most.get(part.target, 0) for part, w in pairs]
        if not any(of_ends):
            continue
        terms: list[fx.Node] = []
        with graph.inserting_before(node):
            for (part, weight), is_end in zip(pairs, of_ends, strict=True):
                base = part.args[0] if is_end else part
                if column:
                    base = graph.call_function(operator.getitem, (base, *column))
                path = f"maps.{node.name}_{len(terms)}"
                module.add_submodule(path, linear(weight, None if terms else whole.bias))
                term = graph.call_module(path, (base,))
                terms.append(graph.call_function(part.target, (term, part.args[1])) if is_end else term)
            whole = reduce(lambda one, other: graph.call_function(operator.add, (one, other)), terms)
            node.replace_all_uses_with(whole)


def _relation(mask: Any) -> Any:
    """The number of the relation whose edges a mask selects; -1 for another value."""
    is_mask = isinstance(mask, fx.Node) and mask.target is operator.eq
    return mask.args[1] if is_mask and slot_of(mask.args[0]) == "edge_type:*" else -1


def size_of(node: fx.Node) -> tuple[fx.Node, int | None] | None:
    """The tensor whose size a value is, and the dimension; None for all of them, or for another value."""
    sizes, dim = node, None
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        sizes, dim = node.args[0], node.args[1]
        if sizes.op == "call_method" and sizes.args[1:]:
            return None
    elif node.op == "call_method" and node.target == "size" and len(node.args) == 2:
        dim = node.args[1]
    elif node.op != "call_method" or node.target not in ("numel", "size"):
        return None
    is_shape = sizes.target is getattr and sizes.args[1] == "shape"
    is_shape |= sizes.op == "call_method" and sizes.target in ("size", "numel")
    of = sizes.args[0] if is_shape else None
    if not isinstance(of, fx.Node) or not isinstance(dim, int | None):
        return None
    return of, dim


def is_number_of_edges(node: fx.Node) -> bool:
    """True if a value is `edge_index.size(1)`, or the size of one of its rows, of known edges."""
    of, dim = size_of(node) or (None, None)
    if edges_of(of) is not None:
        return dim in (1, -1)
    return end_of(of) is not None and dim in (0, -1, None)
