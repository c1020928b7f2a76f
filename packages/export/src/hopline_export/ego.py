"""Ego-graphs of seeds as the engine samples them, in the form of a batch of PyG's temporal loaders.

Each seed has a separate subgraph, since each has its own time. The engine draws a sample for each layer,
where a fanout is below the degree; `layers` of an edge says which of them read it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from hopline.engine.model import Model
from hopline.engine.plan import make_plan
from hopline.graph.node_times import times_of
from hopline.graph.schema import ColumnGroup
from hopline.sampling.keyed import NO_CUT
from hopline.types import IdArray


def batch_of(model: Model, rows: IdArray, as_of: IdArray) -> HeteroData:
    """The ego-graphs of seeds, side by side; seeds are the first nodes of their type.

    Args:
        rows: int64 [n] global ids of the type that the model answers.
        as_of: int64 [n], the time of each.

    Returns: for each node type of the graph the tensors that the model reads, `n_id` (global ids) and
        `batch` (the seed's number); for each edge type `edge_index`, `edge_attr`, `edge_weight` and
        `edge_time` if the graph has them, `e_id` (positions), and `layers`, bool [E, L], the first column
        for the layer next to the input. The seeds' type has `seed_time` int64 [n] and `batch_size`. Types
        that are out of reach have no rows.
    """
    graph, target = model.graph, model.spec.head.node_type
    keys, names = sorted(graph.edges), sorted(graph.nodes)
    nodes: dict[str, list[IdArray]] = {name: [] for name in names}
    owners: dict[str, list[IdArray]] = {name: [] for name in names}
    edges: dict[str, list[tuple[IdArray, IdArray, Any]]] = {key: [] for key in keys}
    sizes = dict.fromkeys(names, 0) | {target: len(rows)}
    nodes[target], owners[target] = [rows], [np.arange(len(rows))]
    for seed, (row, moment) in enumerate(zip(rows.tolist(), as_of.tolist(), strict=True)):
        found = _sampled(model, row, moment)
        own: dict[str, list[IdArray]] = defaultdict(list)
        own[target].append(np.array([row]))
        for key, (src, dst, _, _) in found.items():
            own[graph.edges[key].src].append(src)
            own[graph.edges[key].dst].append(dst)
        places: dict[str, tuple[IdArray, IdArray]] = {}
        for name, parts in own.items():
            ids = np.unique(np.concatenate(parts))
            is_other = ids != row if name == target else np.ones(len(ids), np.bool_)
            place = np.full(len(ids), seed)
            place[is_other] = sizes[name] + np.arange(is_other.sum())
            sizes[name] += int(is_other.sum())
            nodes[name].append(ids[is_other])
            owners[name].append(np.full(int(is_other.sum()), seed))
            places[name] = ids, place
        for key, (src, dst, positions, layers) in found.items():
            ends = [
                places[name][1][places[name][0].searchsorted(side)]
                for name, side in ((graph.edges[key].src, src), (graph.edges[key].dst, dst))
            ]
            edges[key].append((np.stack(ends), positions, layers))
    data = HeteroData()
    for name in names:
        ids = np.concatenate([*nodes[name], np.empty(0, np.int64)])
        owner = np.concatenate([*owners[name], np.empty(0, np.int64)])
        for tensor, values in _tensors(model, name, ids, as_of[owner]).items():
            data[name][tensor] = values
        data[name].num_nodes, data[name].n_id = len(ids), torch.from_numpy(ids)
        data[name].batch = torch.from_numpy(owner)
    data[target].seed_time = torch.tensor([model.time_of(moment) for moment in as_of.tolist()])
    data[target].batch_size = len(rows)
    for key, listed in edges.items():
        _add_edges(data, model, key, listed)
    return data


def _sampled(model: Model, row: int, as_of: int) -> dict[str, tuple[IdArray, IdArray, IdArray, Any]]:
    """Edges that the engine reads for one seed: sources, destinations, positions, bool [E, L] layers.

    The model has no state caches, so that its plan has all of them.
    """
    plan = make_plan(model.levels, model.num_hops, {model.spec.head.node_type: np.array([row])}, as_of)
    parts: dict[str, list[Any]] = defaultdict(list)
    for need in (each for needs in plan.needs for each in needs):
        for (relation, _), block in zip(need.level.links, need.blocks, strict=False):
            owners = np.repeat(need.compute, np.diff(block.offsets))
            layer = np.full(len(owners), need.level.level - 1)
            parts[relation.key].append((block.neighbors.copy(), owners, block.positions.copy(), layer))
    found = {}
    for key, listed in parts.items():
        src, dst, positions, layer = (np.concatenate(column) for column in zip(*listed, strict=True))
        distinct, first, at = np.unique(positions, return_index=True, return_inverse=True)
        layers = np.zeros((len(distinct), model.num_hops), np.bool_)
        layers[at, layer] = True
        found[key] = src[first], dst[first], distinct, layers
    return found


def rows_then(nodes: Any, ids: IdArray, as_of: IdArray) -> tuple[Any, Any, IdArray]:
    """Features and columns of a node type, and the rows of nodes in them, each at its time.

    Raises: BadRequest: a node has no row yet.
    """
    past, rows = nodes.history, ids
    if past is None or (as_of == NO_CUT).all():
        return nodes.features, nodes.columns, ids
    rows = np.empty(len(ids), np.int64)
    for moment in np.unique(as_of).tolist():
        rows[as_of == moment] = past.rows(ids[as_of == moment], moment)
    return past.features, past.columns, rows


def _tensors(model: Model, name: str, ids: IdArray, as_of: IdArray) -> dict[str, Tensor]:
    """Tensors of nodes as the model reads them."""
    schema = model.graph.schema.node_types[name]
    features, _, places = rows_then(model.graph.nodes[name], ids, as_of)
    rows = np.asarray(features[places], np.float32)
    found, start = {}, 0
    for group in schema.groups or (ColumnGroup("x", rows.shape[1]),):
        columns = rows[:, start : start + group.num_columns]
        start += group.num_columns
        if group.dtype == "time":
            times = times_of(schema, rows)
            assert times is not None  # there is such a group
            found[group.name] = torch.from_numpy(times)
        elif columns.shape[1]:
            values = torch.from_numpy(np.ascontiguousarray(columns)).to(getattr(torch, group.dtype))
            found[group.name] = values if group.width else values[:, 0]
    return found


def _add_edges(data: HeteroData, model: Model, key: str, parts: list[Any]) -> None:
    adjacency = model.graph.edges[key]
    none = np.empty((2, 0), np.int64), np.empty(0, np.int64), np.empty((0, model.num_hops), np.bool_)
    ends, positions, layers = (
        np.concatenate(column, axis=axis)
        for column, axis in zip(zip(none, *parts, strict=True), (1, 0, 0), strict=True)
    )
    store = data[adjacency.src, adjacency.relation, adjacency.dst]
    store.edge_index, store.layers = torch.from_numpy(ends), torch.from_numpy(layers)
    store.e_id = torch.from_numpy(positions)
    columns: dict[str, Any] = {
        "edge_attr": adjacency.attr, "edge_weight": adjacency.weight, "edge_time": adjacency.time,
    }  # fmt: skip
    for name, column in columns.items():
        if column is not None:
            store[name] = torch.from_numpy(np.ascontiguousarray(column[positions]))
