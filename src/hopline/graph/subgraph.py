"""Small graphs from large ones: those that nodes induce."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hopline.errors import GraphError
from hopline.graph.narrow import taken
from hopline.graph.parts import Adjacency, Nodes
from hopline.graph.schema import GraphSchema
from hopline.graph.tables import EdgeTable, EdgeType, NodeTable
from hopline.types import IdArray


def induced_tables(
    schema: GraphSchema,
    nodes: Mapping[str, Nodes],
    edges: Mapping[str, Adjacency],
    chosen: Mapping[str, IdArray],
) -> tuple[dict[str, NodeTable], dict[EdgeType, EdgeTable]]:
    """The chosen nodes and all edges between them, as tables.

    Args:
        chosen: node type -> rows int64 [n], in range and distinct; types that are missing have no nodes.
    """
    node_tables = {}
    for name, part in nodes.items():
        rows = chosen[name]
        what = f"rows of node type {name!r} in a subgraph"
        node_tables[name] = NodeTable(
            taken(part.features, rows),
            ids=part.ids.select(rows, what),
            feature_names=schema.node_types[name].feature_names,
            rounded=schema.node_types[name].rounded,
            groups=schema.node_types[name].groups,
            **_columns(part, rows),
        )
    edge_tables = {}
    for key in schema.own_edge_types:
        adjacency = edges[key]
        new_row = np.full(nodes[adjacency.src].num_nodes, -1, np.int64)
        new_row[chosen[adjacency.src]] = np.arange(len(chosen[adjacency.src]))
        targets = chosen[adjacency.dst]
        at = edge_positions(adjacency, targets)
        src = new_row[adjacency.indices[at]]
        dst = np.repeat(np.arange(len(targets)), adjacency.degree(targets))
        at, src, dst = at[src >= 0], src[src >= 0], dst[src >= 0]
        edge_tables[adjacency.src, adjacency.relation, adjacency.dst] = EdgeTable(
            (src, dst),
            attr=None if adjacency.attr is None else adjacency.attr[at],
            time=None if adjacency.time is None else adjacency.time[at],
            weight=None if adjacency.weight is None else adjacency.weight[at],
            attr_names=schema.edge_types[key].attr_names,
            by_row=True,
            time_unit=schema.edge_types[key].time_unit,
            signed_weight=schema.edge_types[key].signed_weight,
            rounded=schema.edge_types[key].rounded,
            rounded_weight=schema.edge_types[key].rounded_weight,
            id=schema.edge_types[key].id_column,
            **_columns(adjacency, at),
        )
    return node_tables, edge_tables


def _columns(part: Nodes | Adjacency, rows: IdArray) -> dict[str, Any]:
    if part.columns is None:
        return {}
    table = part.columns.table
    return {"columns": table.take(rows), "column_types": dict.fromkeys(table.column_names, "")}


def edge_positions(adjacency: Adjacency, targets: IdArray) -> IdArray:
    """Positions of all in-edges of destinations, in list order, int64."""
    degrees = adjacency.degree(targets)
    begins = adjacency.indptr[targets] - (np.cumsum(degrees) - degrees)
    return np.repeat(begins, degrees) + np.arange(int(degrees.sum()))


def rows_by_type(rows: Any, num_nodes: Mapping[str, int], what: str) -> dict[str, IdArray]:
    """Rows for every node type, from a mapping or (if there is one type) from rows alone.

    Raises: GraphError: an unknown type, or a row outside its type.
    """
    if not isinstance(rows, Mapping):
        if len(num_nodes) != 1:
            raise GraphError(
                f"{what} must be a mapping from node type to rows; there are "
                f"{', '.join(map(repr, num_nodes))}"
            )
        rows = {next(iter(num_nodes)): rows}
    unknown = [name for name in rows if name not in num_nodes]
    if unknown:
        raise GraphError(
            f"{what}: no node type {unknown[0]!r}; there are {', '.join(map(repr, num_nodes))}"
        )
    result = {}
    for name, count in num_nodes.items():
        given = np.asarray(rows.get(name, ()))
        if given.size and (given.ndim != 1 or given.dtype.kind not in "iu"):
            raise GraphError(f"{what} of node type {name!r} must be a vector of row numbers")
        result[name] = given.astype(np.int64).reshape(-1)
        outside = result[name][(result[name] < 0) | (result[name] >= count)]
        if len(outside):
            raise GraphError(
                f"{what}: {len(outside)} rows of node type {name!r} are outside 0 to {count - 1}; the "
                f"first is {outside[0]}"
            )
    return result
