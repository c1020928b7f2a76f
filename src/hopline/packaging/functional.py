"""Removes changes in place from a traced graph: `F.relu_(h)` becomes a new value that later code reads.

A graph of values is ordered only by which value reads which, so a change in place would be lost, or come
too early. Each one works on a copy instead, and code that reads the changed value afterwards reads the
copy.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

from hopline.errors import NotSplittable
from hopline.packaging.proxy import CHANGED, VALUE, same_tensor, value_of


def without_changes(module: fx.GraphModule, describe: Any) -> None:
    """Rewrite a traced graph so that no value changes after it was computed.

    Args:
        describe: (module, node) -> where in the user's source it is.

    Raises:
        NotSplittable: a part of a tensor is changed through a view of it, or a module changes its
            argument and returns something else.
    """
    graph = module.graph
    newest: dict[fx.Node, fx.Node] = {}

    def latest(node: fx.Node) -> fx.Node:
        return newest.get(node, node)

    for node in list(graph.nodes):
        node.args, node.kwargs = fx.node.map_arg((node.args, node.kwargs), latest)
        changed: list[fx.Node] = node.meta.get(CHANGED) or []
        if not changed:
            continue
        target = next((n for n in changed if latest(n) in node.all_input_nodes), None)
        if target is None or not all(same_tensor(value_of(n), value_of(target)) for n in changed):
            raise NotSplittable(
                f"{describe(module, node)} changes a part of a tensor in place, which other code sees"
            )
        if node.target is operator.setitem:
            result = _replaced(graph, node, graph.call_function, (set_item, node.args))
        elif same_tensor(value_of(node), value_of(target)):
            with graph.inserting_before(node):
                copied = graph.call_function(torch.clone, (latest(target),))
            copied.meta[VALUE] = value_of(target)
            node.replace_input_with(latest(target), copied)
            result = node
        else:
            raise NotSplittable(
                f"{describe(module, node)} changes its argument in place and returns something else"
            )
        for n in changed:
            newest[n] = result
        newest[target] = result
    graph.lint()


def _replaced(graph: fx.Graph, node: fx.Node, make: Any, what: tuple[Any, Any]) -> fx.Node:
    with graph.inserting_before(node):
        made: fx.Node = make(*what)
    made.stack_trace = node.stack_trace
    made.meta[VALUE] = node.meta.get(VALUE)
    graph.erase_node(node)
    return made


def set_item(tensor: Tensor, index: Any, value: Any) -> Tensor:
    """A copy of a tensor after `copy[index] = value`."""
    if isinstance(index, Tensor) and index.dtype == torch.bool and index.shape == tensor.shape:
        filling = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=tensor.dtype)
        if filling.dim() == 0:
            return torch.where(index, filling.to(tensor.dtype), tensor)
    copied = tensor.clone()
    copied[index] = value
    return copied
