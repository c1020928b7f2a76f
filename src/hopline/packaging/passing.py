"""Message passing as values: rows of edges from rows of nodes at their ends, and rows of nodes from them.

PyG's `propagate` calls `message` with rows of edges (arguments that end in `_j`: of the neighbour, in `_i`:
of the node itself), `aggregate` over the edges of each node, and `update`. Here these three are traced as
code of the model, between two operations of our own. So a convolution of any class becomes values: rows of
nodes, rows of edges, and aggregations.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import Any
from unittest.mock import patch

import torch
from torch import fx, nn
from torch_geometric import utils
from torch_geometric.nn import Aggregation, MessagePassing
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.nn.pool import glob

from hopline.errors import NotSplittable
from hopline.packaging import forwards
from hopline.packaging.edges import FLOWS, GROUPED, LOOPS
from hopline.packaging.proxy import value_of
from hopline.packaging.user_source import is_users

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
    shared = (vars(utils), gcn_norm.__globals__, vars(forwards), vars(glob))
    places = {id(names): names for names in shared}
    for module in list(sys.modules.values()):  # helpers of a forward may be in any file of the user
        names = getattr(module, "__dict__", {})
        if is_users(str(names.get("__file__"))):
            places[id(names)] = names
    for part in model.modules():
        for name in ("forward", "reduce", *_TRACED):
            names = getattr(getattr(part, name, None), "__globals__", None)
            if names is not None:
                places[id(names)] = names
    wrapped = {function: _one_value(function, create) for function in (*GROUPED, *LOOPS)}
    whole = wrapped[gcn_norm]
    wrapped[gcn_norm] = lambda *args, **kwargs: (gcn_norm if opens_norm() else whole)(*args, **kwargs)
    identities = frozenset(map(id, wrapped))
    replaced = [
        (names, name, value)
        for names in places.values()
        if not identities.isdisjoint(map(id, list(names.values())))  # most have none of them
        for name, value in list(names.items())
        if type(value) is FunctionType and value in wrapped
    ]
    for names, name, value in replaced:
        names[name] = wrapped[value]
    # it reads the number of groups from the index
    call = vars(Aggregation)["__call__"]
    del Aggregation.__call__
    fills = ("ones", "zeros", "full", "empty")
    made: Any = {name: _one_value(getattr(torch, name), create) for name in fills}
    try:
        with patch.multiple(torch, **made):
            yield
    finally:
        Aggregation.__call__ = call
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


@contextmanager
def passed_as_values(conv: MessagePassing) -> Iterator[None]:
    """Make a conv pass messages by PyG's general code, which is traced.

    PyG writes a faster one for each class, and compares numbers of rows. A model decides nothing in them.

    Raises: NotSplittable: the conv passes messages in another way.
    """
    own_way = _own_way(conv)
    if own_way:
        raise _refusal(conv, own_way)

    def set_size(size: list[Any], side: int, rows: Any) -> None:
        if conv.node_dim % max(rows.dim(), 1) != 0:
            raise _refusal(conv, f"nodes are dimension {conv.node_dim} of its rows, not the first")
        size[side] = rows.size(0) if size[side] is None else size[side]

    def call(function: Any, edge_index: Any, size: Any = None, **given: Any) -> Any:
        if conv.flow != FLOWS[0]:  # of a pair, the code for a class sends the first against the edges too
            given = {name: each[::-1] if isinstance(each, tuple) else each for name, each in given.items()}
        return function(conv, edge_index, size=size, **given)

    replaced: dict[str, Any] = {
        "propagate": partial(call, MessagePassing.propagate),
        "edge_updater": partial(call, MessagePassing.edge_updater),
        "_check_input": lambda edge_index, size: [None, None] if size is None else list(size),
        "_set_size": set_size,
        "_lift": lambda rows, edge_index, side: rows.index_select(0, edge_index[side]),
    }
    with patch.multiple(conv, create=True, **replaced):
        yield


def _refusal(conv: MessagePassing, reason: str) -> NotSplittable:
    return NotSplittable(f"{type(conv).__name__} cannot be a stage: {reason}")


def _own_way(conv: MessagePassing) -> str:
    """The part of PyG's message passing that a conv does in another way; "" if none."""
    for name in _REPLACED:
        if name in vars(conv):
            return f"its {name} was replaced, as decomposed_layers=2 does"
        for base in type(conv).__mro__:
            method = vars(base).get(name)
            if method is None or base.__module__.startswith("torch_geometric."):
                continue
            # PyG writes a `propagate` for each class, and keeps the class's own one as `_orig_…`.
            if method is not vars(base).get(f"_jinja_{name}") or method is vars(base).get(f"_orig_{name}"):
                return f"it has its own {name}"
    return ""
