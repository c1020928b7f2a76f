"""The time of the question as an input: `seed_time` of PyG's loaders, a time for each seed.

A loader makes a subgraph for each seed, and `batch` says whose each row is: `seed_time[batch] - time`. An
engine computes all rows of a plan for one time, so that `seed_time` has one number, for all rows.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from hopline.errors import NotSplittable, PackagingError
from hopline.graph.node_times import OFFSET
from hopline.packaging import edges as lists
from hopline.packaging.advice import TIMES
from hopline.packaging.arguments import Binding, mentions
from hopline.packaging.proxy import value_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hopline.graph import Graph


_INDEXING = (operator.getitem, torch.index_select, "index_select")


def is_seed_time(slot: str) -> bool:
    """True for the slot that holds the time of the question."""
    return slot.startswith("seed_time:")


def with_seed_time(binding: Binding, module: nn.Module, targets: Sequence[str], graph: Graph) -> Binding:
    """The binding of a model that may read the time of the question, which is the graph's latest time.

    Raises: PackagingError: it reads that time, and the graph has no times.
    """
    is_named = "seed_time" in binding.roles.values()
    if not is_named and not ("data" in binding.roles.values() and mentions(module, "seed_time")):
        return binding
    if graph.clock is None:
        raise PackagingError(
            "the model reads seed_time, and the graph has neither times of nodes (Graph.from_pyg(data, "
            "node_time='time'), NodeTable.time) nor of edges"
        )
    # a HeteroData collects `time` of all types that have one
    left_out = {
        key: tuple(name for name in names if "__" not in key or name not in TIMES)
        for key, names in binding.left_out.items()
    }
    return replace(binding, seeds=targets[0], seed_time=graph.clock, left_out=left_out)


def is_time(node: fx.Node, values: Mapping[fx.Node, Any]) -> bool:
    """True for a value of 64 bits that is computed from a time, which no state holds exactly."""
    if getattr(values.get(node), "dtype", None) != torch.int64:
        return False
    slot = lists.slot_of(node)
    if slot is not None:
        return slot.startswith(("seed_time:", "edge_time:"))
    return OFFSET in node.args or any(is_time(each, values) for each in node.all_input_nodes)


def for_one_seed(module: fx.GraphModule) -> None:
    """Have a traced model read the time of one question, and answer all rows.

    Raises: NotSplittable: it reads times of other seeds than that of each row.
    """
    for node in list(module.graph.nodes):
        if not is_seed_time(str(lists.slot_of(node))):
            continue
        for user in list(node.users):
            if user.target in _INDEXING and user.args[0] is node and isinstance(user.args[-1], fx.Node):
                continue
            cuts, all_seeds = list(user.users), (slice(None, user, None), len(value_of(node)))
            is_size = lists.size_of(user) is not None and all(c.target is operator.getitem for c in cuts)
            if not is_size or any((cut.args[1], len(value_of(cut))) != all_seeds for cut in cuts):
                raise NotSplittable(
                    "seed_time is read as seed_time[batch], a time for each row, or its size in "
                    "h[: seed_time.size(0)]; forward reads it in another way"
                )
            for cut in cuts:
                cut.replace_all_uses_with(cut.args[0])
                module.graph.erase_node(cut)
