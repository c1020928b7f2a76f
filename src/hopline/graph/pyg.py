"""Extracts tables from PyG's `Data` and `HeteroData`, by duck typing: torch is not imported."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args, get_type_hints

import numpy as np

from hopline.errors import GraphError
from hopline.graph.schema import EDGE_TYPE, GRAPH_TYPE, MEMBER_OF, NODE_TYPE, ColumnGroup, edge_key
from hopline.graph.tables import EdgeTable, EdgeType, NodeTable, as_array
from hopline.types import AnyArray

_LOG = logging.getLogger("hopline.graph")

#: Columns that `tables_of` reads, and numbers of rows.
_READ = frozenset(
    {"x", "num_nodes", "edge_index", "adj_t", "adj", "edge_attr", "edge_weight", "edge_time", "edge_type"}
)

Tables = tuple[dict[str, NodeTable], dict[EdgeType, EdgeTable]]


def joined(data: Any, ids: Any) -> tuple[Any, Any, NodeTable | None]:
    """One `Batch` of a list or a data set of PyG, ids of its nodes, and its graphs; None for one graph."""
    parts = [] if hasattr(data, "to_dict") or not hasattr(data, "__iter__") else list(data)
    if parts and all(hasattr(each, "edge_index") or hasattr(each, "node_types") for each in parts):
        data = sys.modules["torch_geometric"].data.Batch.from_data_list(parts)
    if not hasattr(data, "num_graphs"):
        return data, ids, None
    given = dict(ids) if isinstance(ids, Mapping) else {GRAPH_TYPE: ids}
    graphs = NodeTable(num_nodes=data.num_graphs, ids=given.pop(GRAPH_TYPE, None))
    return data, given if hasattr(data, "node_types") else given.get(NODE_TYPE), graphs


def memberships(data: Any, names: Collection[str]) -> dict[EdgeType, EdgeTable]:
    """The edges from nodes of a `Batch` to their graphs. Raises: GraphError: a node type is named graph."""
    if GRAPH_TYPE in names:
        raise GraphError(f"the graphs have nodes of a type {GRAPH_TYPE!r}: rename it")
    found = {}
    for name in names:
        graph_of = as_array(data[name].batch if hasattr(data, "node_types") else data.batch, "batch")
        ends = np.stack([np.arange(len(graph_of)), graph_of])
        found[name, MEMBER_OF, GRAPH_TYPE] = EdgeTable(ends, by_row=True)
    return found


def tables_of(
    data: Any,
    *,
    columns: Sequence[str] = (),
    ids: Any = None,
    num_relations: int | None = None,
    time_unit: str | Mapping[EdgeType, str] = "",
    node_time: str = "",
) -> Tables:
    """Read `x`, `edge_index` (or `adj_t`), `edge_attr`, `edge_weight`, `edge_time` (or a `time` of
    edges) and `edge_type` of every store.

    Args:
        data: `Data` or `HeteroData`.
        columns: tensors of nodes that are kept in addition to `x`, for the types that have them.
        ids: the nodes' external ids; a mapping node type -> ids for `HeteroData`.
        num_relations: relations that `edge_type` can name; None means its largest + 1.
        time_unit: as in `EdgeTable`; a mapping sets it for some edge types of `HeteroData`.
        node_time: the tensor of nodes that is `NodeTable.time`, for the types that have it.
    Raises: GraphError: it is neither type, has no edges, or its columns disagree.
    """
    if hasattr(data, "metadata") and hasattr(data, "node_types"):
        if ids is not None and not isinstance(ids, Mapping):
            raise GraphError("ids of a HeteroData must be a mapping from node type to ids")
        stores = {name: data[name] for name in data.node_types}
        _check_columns(columns, [*stores.values()], node_time)
        nodes = {
            name: _node_table(store, (ids or {}).get(name), columns, store.get(node_time), time_unit)
            for name, store in stores.items()
        }
        unknown = sorted(set(ids or {}) - set(nodes))
        if unknown:
            raise GraphError(f"ids are given for {', '.join(unknown)}, which the data does not have")
        edges: dict[EdgeType, EdgeTable] = {}
        for edge_type in data.edge_types:
            edges |= _edge_tables(data[edge_type], edge_type, num_relations, None)
        return nodes, _with_units(edges, time_unit)
    if not (hasattr(data, "edge_index") or hasattr(data, "adj_t")):
        raise GraphError(f"expected a PyG Data or HeteroData; got {type(data).__name__}")
    _check_columns(columns, [data], node_time)
    node_table = _node_table(data, ids, columns, data.get(node_time), time_unit)
    edges = _edge_tables(data, EDGE_TYPE, num_relations, node_table.num_nodes)
    return {NODE_TYPE: node_table}, _with_units(edges, time_unit)


def left_out(data: Any, columns: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """Names in the data that `tables_of` does not read: node type, edge type key or "" -> names.

    Those of a type have a row for each of its nodes or edges; "" has all others. Columns are logged: labels
    and masks of a split as information, others as a warning.
    """
    owners: list[tuple[Any, dict[int | None, str]]]
    if hasattr(data, "metadata") and hasattr(data, "node_types"):
        owners = [(data[name], {_num_nodes(data[name]): name}) for name in data.node_types]
        owners += [(data[key], {data[key].num_edges: edge_key(*key)}) for key in data.edge_types]
        owners.append((data._global_store, {}))
    else:
        owners = [(data, {data.num_edges: edge_key(*EDGE_TYPE), _num_nodes(data): NODE_TYPE})]
    found: dict[str, list[str]] = {}
    for store, owner_of in owners:
        for name, value in store.to_dict().items():
            owner = owner_of.get(_length(value), "")
            kept = name == "time" if "__" in owner else name in columns
            if name in _READ or kept or (name in ("batch", "ptr") and hasattr(data, "num_graphs")):
                continue
            found.setdefault(owner, []).append(name)
            usual = not owner or name in ("y", "edge_label") or name.endswith("mask")
            shape = list(getattr(value, "shape", None) or [_length(value)])
            keep = (
                f"columns=[{name!r}]"
                if hasattr(value, "dtype")
                else "Graph.from_tables (NodeTable.columns)"
            )
            keep = "a table in edge_columns" if "__" in owner else keep
            _LOG.log(
                logging.INFO if usual else logging.WARNING,
                "%s: left out: %s %s%s",
                owner or "data",
                name,
                shape,
                f"; {keep} keeps it" if owner and not usual else "",
            )
    return {owner: tuple(names) for owner, names in found.items()}


def _length(value: Any) -> int | None:
    """Rows of a column; None for anything else."""
    if isinstance(value, str | Mapping) or not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0:
        return None
    return len(value)


def _with_units(
    edges: dict[EdgeType, EdgeTable], time_unit: str | Mapping[EdgeType, str]
) -> dict[EdgeType, EdgeTable]:
    units = dict.fromkeys(edges, time_unit) if isinstance(time_unit, str) else dict(time_unit)
    unknown = units.keys() - edges.keys()
    if unknown:
        raise GraphError(f"time_unit is given for {min(unknown)!r}, which is not an edge type of the data")
    return {
        edge_type: replace(table, time_unit=units.get(edge_type, "")) for edge_type, table in edges.items()
    }


def _check_columns(columns: Sequence[str], stores: list[Any], node_time: str) -> None:
    if isinstance(columns, str):
        raise GraphError(f"columns is a list of names; write columns=[{columns!r}]")
    for name in (*columns, node_time) if node_time else columns:
        if all(store.get(name) is None for store in stores):
            raise GraphError(f"columns names {name!r}, and no node type of the data has such a tensor")
        if name in _READ:
            raise GraphError(
                f"columns names {name!r}, which is read anyway; it names further tensors of nodes"
            )


def _node_table(store: Any, ids: Any, columns: Sequence[str], time: Any, unit: Any) -> NodeTable:
    num_nodes = _num_nodes(store)
    times: Any = {"time": time, "time_unit": unit if isinstance(unit, str) else ""}
    given = {name: store[name] for name in ("x", *columns) if store.get(name) is not None}
    if not given.keys() - {"x"}:
        return NodeTable(given.get("x"), num_nodes, ids, **times)
    arrays = {name: as_array(value, name) for name, value in given.items()}
    if num_nodes is None:  # PyG counts only tensors of usual names
        num_nodes = max(map(len, arrays.values()))
    groups, matrices, names = [], [], []
    for name, array in arrays.items():
        if array.ndim not in (1, 2) or len(array) != num_nodes or array.dtype.kind not in "fiub":
            raise GraphError(
                f"column {name!r} is {array.dtype} of shape {list(array.shape)}; a tensor of nodes has "
                f"numbers of shape [{num_nodes}] or [{num_nodes}, d]; texts are columns of a table: "
                "Graph.from_tables with NodeTable(columns=frame)"
            )
        width = array.shape[1] if array.ndim == 2 else 0
        groups.append(ColumnGroup(name, width, _dtype(array)))
        matrices.append(array.reshape(len(array), -1))
        names += [f"{name}.{column}" for column in range(width)] or [name]
    return NodeTable(np.concatenate(matrices, axis=1), num_nodes, ids, names, groups=groups, **times)


def _dtype(array: AnyArray) -> Any:
    """The dtype of a tensor as `ColumnGroup` names it."""
    if array.dtype.kind not in "iub":
        return "float32"
    name = array.dtype.name
    return name if name in get_args(get_type_hints(ColumnGroup)["dtype"]) else "int64"


def _num_nodes(store: Any) -> int | None:
    with warnings.catch_warnings():
        # Without any node-level tensor PyG infers the number from the edges, and warns.
        warnings.simplefilter("ignore")
        num_nodes = store.num_nodes
    return None if num_nodes is None else int(num_nodes)


def _edge_tables(
    store: Any, edge_type: EdgeType, num_relations: int | None, num_nodes: int | None
) -> dict[EdgeType, EdgeTable]:
    edges, weight = _edges(store, edge_type)
    if store.get("edge_weight") is not None:
        weight = store["edge_weight"]
    time = _time(store, edges.shape[-1], num_nodes)
    table = EdgeTable(edges, attr=store.get("edge_attr"), time=time, weight=weight, by_row=True)
    if store.get("edge_type") is None:
        return {edge_type: table}
    return _by_relation(edge_type, table, as_array(store["edge_type"], "edge_type"), num_relations)


def _edges(store: Any, edge_type: EdgeType) -> tuple[AnyArray, Any]:
    """Edges [2, E], and the weights of a sparse `adj_t`."""
    if store.get("edge_index") is not None:
        return as_array(store["edge_index"], "edge_index"), None
    adjacency = store.get("adj_t")
    if adjacency is None:
        raise GraphError(f"edge type {edge_type!r} has neither edge_index nor adj_t")
    # Rows of the transposed adjacency are destinations.
    if hasattr(adjacency, "coo"):  # torch_sparse
        dst, src, values = adjacency.coo()
    else:
        adjacency = adjacency.to_sparse_coo().coalesce()
        (dst, src), values = adjacency.indices(), adjacency.values()
    # ToSparseTensor stores ones where there is no weight.
    weighted = values is not None and values.dim() == 1 and bool((values != 1).any())
    return np.stack([as_array(src, "adj_t"), as_array(dst, "adj_t")]), values if weighted else None


def _time(store: Any, num_edges: int, num_nodes: int | None) -> Any:
    if store.get("edge_time") is not None:
        return store["edge_time"]
    time = store.get("time")
    if time is None:
        return None
    count = len(time) if getattr(time, "ndim", 1) else -1
    if count == num_edges == num_nodes:
        raise GraphError(
            "`time` could belong to nodes or edges: there are as many of both; name it `edge_time` or "
            "`node_time`"
        )
    if count == num_edges:
        return time
    if count == num_nodes:
        return None  # times of nodes
    raise GraphError(
        f"`time` has {max(count, 0)} values, but there are {num_edges} edges; pass one for each edge"
        + ("" if num_nodes is None else f" (or for each of the {num_nodes} nodes, which is ignored)")
    )


def _by_relation(
    edge_type: EdgeType, table: EdgeTable, relation_of: AnyArray, num_relations: int | None
) -> dict[EdgeType, EdgeTable]:
    """One edge type for each relation ("r0", "r1", …), as relational convolutions read them."""
    num_edges = table.edges.shape[-1]
    if relation_of.shape != (num_edges,) or relation_of.dtype.kind not in "iu":
        raise GraphError(
            f"edge_type must be {num_edges} integers, one for each edge; got {relation_of.dtype} of shape "
            f"{list(relation_of.shape)}"
        )
    count = int(relation_of.max(initial=-1)) + 1 if num_relations is None else num_relations
    outside = np.flatnonzero((relation_of < 0) | (relation_of >= count))
    if len(outside):
        raise GraphError(
            f"edge_type: {len(outside)} relations are outside 0 to {count - 1}; the first is "
            f"{relation_of[outside[0]]} at edge {outside[0]}"
        )
    given = {"attr": table.attr, "time": table.time, "weight": table.weight}
    columns = {name: as_array(each, f"edge {name}") for name, each in given.items() if each is not None}
    for name, column in columns.items():
        if len(column) != num_edges:
            raise GraphError(
                f"edge {name}: {len(column)} rows; there must be {num_edges}, one for each edge"
            )
    tables = {}
    for relation in range(count):
        chosen = np.flatnonzero(relation_of == relation)
        part: Any = {name: column[chosen] for name, column in columns.items()}
        tables[edge_type[0], f"r{relation}", edge_type[2]] = replace(
            table, edges=table.edges[:, chosen], **part
        )
    return tables
