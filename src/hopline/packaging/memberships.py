"""Data sets of many graphs: a readout by `batch` is an aggregation over edges from nodes to their graph.

The module is called as PyG's loaders call it, with a number of a graph for each node. In the traced model,
what groups rows of nodes by these numbers groups rows of membership edges instead.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from torch import Tensor, fx, nn
from torch_geometric.nn import MLP
from torch_geometric.utils import degree, softmax

from hopline.graph.schema import GRAPH_TYPE, GraphSchema
from hopline.packaging import edges as lists
from hopline.packaging.check_graph import CheckGraph
from hopline.packaging.proxy import value_of
from hopline.packaging.settings import ENDING, role_of
from hopline.types import IdArray


def without_graphs(schema: GraphSchema, module: nn.Module) -> tuple[GraphSchema, dict[str, str]]:
    """The types that a model's arguments hold, and the memberships; none if it reads them as types."""
    members = schema.memberships
    names = inspect.signature(module.forward).parameters
    if any(name.endswith(ENDING) for name in names) and "batch" not in map(role_of, names):
        members = {}
    nodes = {name: each for name, each in schema.node_types.items() if not members or name != GRAPH_TYPE}
    edges = {key: each for key, each in schema.own_edge_types.items() if key not in members.values()}
    return msgspec.structs.replace(schema, node_types=nodes, edge_types=edges), members


def batch_of(graph: CheckGraph, key: str) -> IdArray:
    """The first graph of each node, int64 [N]; nodes in no graph have the number after the last."""
    edges = graph.edges[key]
    found = np.full(graph.num_nodes(edges.src), graph.num_nodes(edges.dst))
    found[edges.indices[::-1]] = edges.destinations[::-1]
    return found


def as_batch(graph: CheckGraph, members: Mapping[str, str]) -> CheckGraph:
    """The graph as a `Batch`: each node in one graph, and nodes sorted by their graphs.

    A node has a copy, with its in-edges, for each further graph that it is in. Nodes in no graph are in one
    after the others, with a further node: PyG counts graphs by the largest number.
    """
    features, origin, edges = dict(graph.features), {}, dict(graph.edges)
    count = graph.num_nodes(GRAPH_TYPE)
    features[GRAPH_TYPE] = np.zeros((count + 1, 0), np.float32)
    for name, key in members.items():
        part, rows = graph.edges[key], graph.features[name]
        alone = np.append(np.setdiff1d(np.arange(len(rows)), part.indices), len(rows))
        origin[name] = np.concatenate([part.indices, alone])
        features[name] = np.concatenate([rows, rows[:1]])[origin[name]]
        batch = np.concatenate([part.destinations, np.full(len(alone), count)])
        edges[key] = part.taken(slice(0), np.arange(len(batch)), batch, count + 1)
    for key, part in graph.edges.items():
        if key in members.values():
            continue
        into = origin.get(part.dst, np.arange(len(part.indptr) - 1))
        places, dst = part.into(into)
        src = part.indices[places]
        if part.src in origin:
            _, first = np.unique(origin[part.src], return_index=True)
            is_loop = (src == into[dst]) & (part.src == part.dst)
            src = np.where(is_loop, dst, first[src])
        edges[key] = part.taken(places, src, dst, len(into))
    return CheckGraph(features, edges)


def group_by_members(
    module: fx.GraphModule, members: Mapping[str, str], slots: Mapping[str, Tensor]
) -> None:
    """Rewrite groups by `batch` as groups by the ends of membership edges.

    Args:
        slots: on which the model was traced.
    """
    graph = module.graph
    inputs = next(iter(graph.nodes))
    keys = {f"batch:{name}": key for name, key in members.items()}
    placed: dict[fx.Node, str] = {}
    reads: set[fx.Node] = set()

    def by_edge(node: Any, key: str) -> Any:
        """Rows of nodes as rows of membership edges; anything else unchanged."""
        value = value_of(node) if isinstance(node, fx.Node) and node in reads else None
        count = len(slots[f"batch:{key.split('__')[0]}"])
        if node in placed or not isinstance(value, Tensor) or not value.dim() or len(value) != count:
            return node
        listed = graph.call_function(operator.getitem, (inputs, f"edge_index:{key}"))
        return graph.call_function(lists.neighbour_rows, (node, listed))

    for node in list(graph.nodes):
        if any(each in reads or each is inputs for each in node.all_input_nodes):
            reads.add(node)
        is_grouped = node.target is softmax or lists.is_aggregation(module, node)
        if not is_grouped:
            part = module.get_submodule(str(node.target)) if node.op == "call_module" else None
            if isinstance(part, MLP) and not part.supports_norm_batch:  # its norms do not read `batch`
                node.kwargs = {
                    key: each for key, each in node.kwargs.items() if not key.startswith("batch")
                }
            owners = {placed[each] for each in node.all_input_nodes if each in placed}
            if len(owners) == 1:
                placed[node] = owners.pop()
                with graph.inserting_before(node):
                    new = {each: by_edge(each, placed[node]) for each in node.all_input_nodes}
                node.args, node.kwargs = fx.node.map_arg((node.args, node.kwargs), new.__getitem__)
            continue
        found = lists.grouping(module, node)
        slot = lists.slot_of(found.index) if isinstance(found.index, fx.Node) else None
        if slot not in keys:
            continue
        function: Any = node.target
        if node.op == "call_module":
            function = module.get_submodule(str(node.target)).forward
        given = lists.arguments_of(node, function)
        with graph.inserting_before(node):
            listed = graph.call_function(operator.getitem, (inputs, f"edge_index:{keys[slot]}"))
            graphs = graph.call_function(operator.getitem, (inputs, f"features:{GRAPH_TYPE}"))
            given["index"] = graph.call_function(operator.getitem, (listed, 1))
            size = "num_nodes" if node.target in (softmax, degree) else "dim_size"
            given[size] = graph.call_method("size", (graphs, 0))
            if found.rows is not None:
                given[next(iter(given))] = by_edge(found.rows, keys[slot])
        node.args, node.kwargs = (), given
        if node.target is softmax:
            placed[node] = keys[slot]
