"""Message passing as values: rows of edges from rows of nodes at their ends, and rows of nodes from them.

PyG's `propagate` calls `message` with rows of edges (arguments that end in `_j`: of the neighbour, in `_i`:
of the node itself), `aggregate` over the edges of each node, and `update`. Here these three are traced as
code of the model, between two operations of our own. So a convolution of any class becomes values: rows of
nodes, rows of edges, and aggregations.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import Parameter
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch_geometric import utils
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import add_remaining_self_loops, scatter

from hopline.errors import NotSplittable
from hopline.packaging.edges import GROUPED, LOOPS, neighbour_rows, ones, own_rows
from hopline.packaging.proxy import value_of

#: Makes a traced value: (kind, target, args, kwargs).
Create = Callable[[str, Any, tuple[Any, ...], dict[str, Any]], Any]
#: The user's functions that are traced, as methods of a conv.
_TRACED = ("message", "aggregate", "update", "edge_update")
#: Methods of PyG that `_Passing` replaces.
_REPLACED = (
    "propagate", "edge_updater", "_check_input", "_collect", "_lift", "_set_size", "_index_select",
    "_index_select_safe", "explain_message",
)  # fmt: skip


@contextmanager
def grouped_as_values(model: nn.Module, create: Create, opens_norm: Callable[[], bool]) -> Iterator[None]:
    """Make functions over all edges of a node one value each in the code of a model.

    Args:
        opens_norm: true where `gcn_norm` is code instead, which reads degrees of the neighbours.
    """
    places = {id(vars(utils)): vars(utils)}
    for part in model.modules():
        for name in ("forward", *_TRACED):
            names = getattr(getattr(part, name, None), "__globals__", None)
            if names is not None:
                places[id(names)] = names
    wrapped = {function: _one_value(function, create) for function in (*GROUPED, *LOOPS)}
    whole = wrapped[gcn_norm]
    wrapped[gcn_norm] = lambda *args, **kwargs: (
        _norm(wrapped, create, *args, **kwargs) if opens_norm() else whole(*args, **kwargs)
    )
    replaced = [
        (names, name, value)
        for names in places.values()
        for name, value in list(names.items())
        if isinstance(value, FunctionType) and value in wrapped
    ]
    for names, name, value in replaced:
        names[name] = wrapped[value]
    made = {name: getattr(torch, name) for name in ("ones", "zeros", "full")}
    for name, function in made.items():
        setattr(torch, name, _one_value(function, create))
    try:
        yield
    finally:
        for name, function in made.items():
            setattr(torch, name, function)
        for names, name, value in replaced:
            names[name] = value


def _one_value(function: Callable[..., Any], create: Create) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        given += [each for value in given if isinstance(value, tuple | list) for each in value]
        if not any(isinstance(value, fx.Proxy) for value in given):
            return function(*args, **kwargs)
        made = create("call_function", function, args, kwargs)
        if function not in LOOPS or not isinstance(value_of(made.node), tuple):
            return made
        edges, attributes = (create("call_function", operator.getitem, (made, i), {}) for i in (0, 1))
        return edges, None if value_of(attributes.node) is None else attributes

    return call


def _norm(
    functions: dict[Any, Callable[..., Any]],
    create: Create,
    edge_index: Any,
    edge_weight: Any = None,
    num_nodes: Any = None,
    improved: bool = False,
    add_self_loops: bool = True,
    flow: str = "source_to_target",
    dtype: Any = None,
) -> tuple[Any, Any]:
    """PyG's `gcn_norm` over the given functions on edges."""
    if flow != "source_to_target" or num_nodes is None:
        raise NotSplittable("gcn_norm is called with another flow, or without the number of nodes")
    if add_self_loops:
        fill = 2.0 if improved else 1.0
        add = functions[add_remaining_self_loops]
        edge_index, edge_weight = add(edge_index, edge_weight, fill, num_nodes)
    if edge_weight is None:
        edge_weight = create("call_function", ones, (edge_index,), {})
    row, col = (create("call_function", operator.getitem, (edge_index, end), {}) for end in (0, 1))
    scale = functions[scatter](edge_weight, col, dim=0, dim_size=num_nodes, reduce="sum").pow(-0.5)
    scale = scale.masked_fill(scale == float("inf"), 0.0)
    return edge_index, scale[row] * edge_weight * scale[col]


@contextmanager
def passed_as_values(conv: MessagePassing, create: Create) -> Iterator[None]:
    """Replace a conv's `propagate` and `edge_updater` by traced values.

    Raises:
        NotSplittable: the conv passes messages in another way, or against the direction of the edges.
    """
    if conv.flow != "source_to_target":
        raise _refusal(conv, f"its flow is {conv.flow}; reverse the graph's edges instead")
    own_way = _own_way(conv)
    if own_way:
        raise _refusal(conv, own_way)
    passing, names = _Passing(conv, create), vars(conv)
    names["propagate"], names["edge_updater"] = passing.propagate, passing.edge_updater
    try:
        yield
    finally:
        del names["propagate"], names["edge_updater"]


def hooks_of(conv: MessagePassing) -> str:
    """The first kind of a conv's hooks that only PyG calls, as "message forward hooks"; "" for none."""
    of_torch = vars(nn.Module())
    kinds = (name for name in vars(conv) if name.endswith("_hooks") and name not in of_torch)
    return next((kind.strip("_").replace("_", " ") for kind in sorted(kinds) if vars(conv)[kind]), "")


def _refusal(conv: MessagePassing, reason: str) -> NotSplittable:
    return NotSplittable(f"{type(conv).__name__} cannot be a stage: {reason}")


def _own_way(conv: MessagePassing) -> str:
    """The part of PyG's message passing that a conv does in another way; "" if none."""
    if conv.explain or conv.decomposed_layers > 1:
        return "it explains its messages, or computes them in parts"
    hooks = hooks_of(conv)
    if hooks:
        return f"it has {hooks}"
    for name in _REPLACED:
        if name in vars(conv):
            return f"its {name} was replaced"
        for base in type(conv).__mro__:
            method = vars(base).get(name)
            if method is None or base.__module__.startswith("torch_geometric."):
                continue
            # PyG writes a `propagate` for each class, and keeps the class's own one as `_orig_…`.
            if method is not vars(base).get(f"_jinja_{name}") or method is vars(base).get(f"_orig_{name}"):
                return f"it has its own {name}"
    return ""


class _Passing:
    """`propagate` and `edge_updater` of one conv, as traced values."""

    def __init__(self, conv: MessagePassing, create: Create) -> None:
        self._conv = conv
        self._create = create

    def propagate(self, edge_index: Any, size: Any = None, **given: Any) -> Any:
        """As `MessagePassing.propagate`."""
        conv = self._conv
        found = _Arguments(conv, self._create, conv._user_args, edge_index, size, given)
        messages = conv.message(**found.of("message"))
        aggregated = conv.aggregate(messages, **found.of("aggregate"))
        return conv.update(aggregated, **found.of("update"))

    def edge_updater(self, edge_index: Any, size: Any = None, **given: Any) -> Any:
        """As `MessagePassing.edge_updater`."""
        conv = self._conv
        found = _Arguments(conv, self._create, conv._edge_user_args, edge_index, size, given)
        return conv.edge_update(**found.of("edge_update"))


class _Arguments:
    """The arguments that PyG collects for a conv's functions in one call of `propagate`.

    Args:
        names: that the functions read.
        given: what the call passes, by name.
    """

    def __init__(
        self,
        conv: MessagePassing,
        create: Create,
        names: list[str],
        edge_index: Any,
        size: Any,
        given: dict[str, Any],
    ) -> None:
        self._names = names
        self._conv = conv
        self._create = create
        self._edge_index = edge_index
        self._given = given
        self._found: dict[str, Any] = {"edge_index": edge_index, "adj_t": None, "ptr": None, "size": size}

    def of(self, method: str) -> dict[str, Any]:
        """Those of one function."""
        parameters = self._conv.inspector.get_param_dict(method)
        for name, parameter in parameters.items():
            if name not in self._found:
                self._found[name] = self._argument(name)
            if self._found[name] is Parameter.empty:
                self._found[name] = parameter.default
        return {name: self._found[name] for name in parameters}

    def _argument(self, name: str) -> Any:
        if name in ("index", "edge_index_i", "edge_index_j"):
            return self._create(
                "call_function", operator.getitem, (self._edge_index, int(name[-1] != "j")), {}
            )
        if name in ("dim_size", "size_i", "size_j"):
            return self._num_rows(first=int(name != "size_j"))
        if not name.endswith(("_i", "_j")):
            return self._given.get(name, Parameter.empty)
        value, side = self._given.get(name[:-2], Parameter.empty), int(name.endswith("_i"))
        if isinstance(value, tuple | list):
            value = value[side]
        if not isinstance(value, fx.Proxy | Tensor):
            return value
        known = value if isinstance(value, Tensor) else value_of(value.node)
        if isinstance(known, Tensor) and self._conv.node_dim % max(known.dim(), 1) != 0:
            raise _refusal(
                self._conv, f"nodes are dimension {self._conv.node_dim} of {name[:-2]}, not the first"
            )
        return self._create(
            "call_function", (neighbour_rows, own_rows)[side], (value, self._edge_index), {}
        )

    def _num_rows(self, *, first: int) -> Any:
        """The number of nodes at one side, else at the other: as given, or of the rows that are passed."""
        sizes: list[dict[int, Any]] = []
        for name in sorted(self._names):
            value = self._given.get(name[:-2]) if name.endswith(("_i", "_j")) else None
            sides = value if isinstance(value, tuple | list) else None
            sizes.append(dict(enumerate(sides)) if sides else {int(name.endswith("_i")): value})
        for side in (first, 1 - first):
            if self._found["size"] is not None and self._found["size"][side] is not None:
                return self._found["size"][side]
            for each in sizes:
                if isinstance(each.get(side), fx.Proxy):
                    return self._create("call_method", "size", (each[side], 0), {})
        return None
