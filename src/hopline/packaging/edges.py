"""Lists of edges in a traced model: a graph's own, and these with other self-loops.

A value of a traced model is rows of something, its *domain*. Code that groups rows of edges by their
destinations (`softmax`, `scatter`, an aggregation) or that changes the list of edges stays one value, so
that it differs from code that computes each row separately.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch_geometric.nn import Aggregation
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import (
    add_remaining_self_loops,
    add_self_loops,
    degree,
    remove_self_loops,
    scatter,
    softmax,
)


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


#: Between the keys of edge types whose edges the model has in one list.
_AND = " and "
#: Methods that answer the same edges.
_SAME = frozenset({"clone", "contiguous", "detach", "long"})
#: Functions over all edges of a node, and such that answer another list of edges.
GROUPED: tuple[Callable[..., Any], ...] = (softmax, scatter, degree)
LOOPS: tuple[Callable[..., Any], ...] = (
    gcn_norm, add_self_loops, add_remaining_self_loops, remove_self_loops,
)  # fmt: skip


def slot_of(node: fx.Node) -> str | None:
    """The slot that a value reads, None for computed values."""
    if node.op == "call_function" and node.target is operator.getitem:
        base = node.args[0]
        if isinstance(base, fx.Node) and base.op == "placeholder":
            return str(node.args[1])
    return None


def edges_of(node: Any) -> Domain | None:
    """The edges that an edge index holds: the model's argument, or that with other self-loops."""
    while isinstance(node, fx.Node) and node.op == "call_method" and node.target in _SAME:
        node = node.args[0]
    if not isinstance(node, fx.Node):
        return None
    if listed := listed_by(node, 1):
        return joined([edges_of(each) for each in listed])
    if node.target is not operator.getitem:
        return None
    slot = slot_of(node)
    if slot is not None:
        role, _, edge_type = slot.partition(":")
        return Domain("edge", edge_type) if role == "edge_index" else None
    return edges_after(node.args[0]) if node.args[1] == 0 else None


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
    if before is None or given.get("flow", "source_to_target") != "source_to_target":
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


def name_ends(graph: fx.Graph, relations: Sequence[str]) -> None:
    """Rewrite `x[edge_index[0]]` and `x.index_select(0, edge_index[1])` as rows of the edges' ends.

    And `edge_index[:, edge_type == 1]` as the edges of the second relation.
    """
    for node in graph.nodes:
        if node.op == "call_function" and node.target is operator.getitem and len(node.args) == 2:
            rows, index = node.args
            slot, number = slot_of(rows) or "", _relation(index[-1] if isinstance(index, tuple) else index)
            if slot.endswith(":*") and number in range(len(relations)):
                node.args = (rows.args[0], slot.replace("*", relations[number]))
                continue
        elif (
            node.target in ("index_select", torch.index_select)
            and node.args[1:2] == (0,)
            and len(node.args) == 3
        ):
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
