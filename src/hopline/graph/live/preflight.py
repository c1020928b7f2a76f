"""The first change of a live graph, applied before any caller waits for it.

Kernels are compiled at their first call, which needs seconds without a cache. The pre-flight calls the
kernels of changes on a graph of the same types with two nodes of each, and discards it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hopline.graph.live.changes import Changes, EdgeChanges, Ids, NodeChanges
from hopline.graph.live.memory import LiveMemory
from hopline.graph.live.plan import make_plan
from hopline.graph.live.seen import SeenWindow, hashed
from hopline.graph.live.view import LiveView
from hopline.graph.live.writer import LiveWriter
from hopline.graph.schema import ColumnSchema, EdgeTypeSchema, GraphSchema, NodeTypeSchema
from hopline.graph.snapshot import Graph
from hopline.graph.stored_columns import StoredColumns
from hopline.graph.tables import EdgeTable, NodeTable
from hopline.types import AnyArray, FloatArray, IdArray

#: Number of nodes of each type.
_NODES = 2


def preflight(schema: GraphSchema, *, num_levels: int, reads_degrees: bool) -> None:
    """Apply each kind of change once, with event ids, and take a snapshot.

    Args:
        schema: of the graph that will change. num_levels, reads_degrees: as in `LivePlan`.
    """
    graph = _graph(schema)
    plan = make_plan(
        graph,
        lineage=graph.version,
        sequence=0,
        spare_nodes=4,
        spare_edges=16,
        num_levels=num_levels,
        reads_degrees=reads_degrees,
    )
    memory = LiveMemory.create(plan)
    ids = {name: nodes.ids for name, nodes in graph.nodes.items()}
    writer = LiveWriter(memory, graph.schema, ids, lambda: 0)
    writer.fill(graph)
    view = LiveView(memory, graph.schema, ids)
    seen = SeenWindow(16)
    for changes in _batches(graph.schema):
        keys = hashed([f"event {at}" for at in range(changes.num_events)])
        seen.which_are_new(keys)
        seen.add(keys)
        writer.apply(changes)
        with view:
            view.snapshot()
    view.close()


def _graph(schema: GraphSchema) -> Graph:
    nodes = {name: _node_table(node) for name, node in schema.node_types.items()}
    own = schema.own_edge_types.values()
    edges = {(edge.src, edge.relation, edge.dst): _edge_table(edge) for edge in own}
    return Graph.from_tables(nodes, edges, both_directions=schema.both_directions)


def _node_table(node: NodeTypeSchema) -> NodeTable:
    features = np.zeros((_NODES, node.feature_dim), np.float32)
    known = None if node.id_kind == "range" and not node.history else _ids(node, 0, _NODES)
    if node.history is not None:
        times, since = np.zeros(_NODES, np.int64), node.history.since
        return NodeTable(features, ids=known, history=times, history_since=since, **_table(node.columns))
    return NodeTable(features, ids=known, num_nodes=_NODES, **_table(node.columns))


def _table(columns: Sequence[ColumnSchema]) -> dict[str, Any]:
    if not columns:
        return {}
    table = StoredColumns.of_cells(columns, *_cells(columns)).table
    return {"columns": table, "column_types": dict.fromkeys(table.column_names, "")}


def _cells(columns: Sequence[ColumnSchema], begin: int = 0) -> tuple[AnyArray, AnyArray]:
    """Rows whose texts differ, as ids of edges do."""
    num_texts = sum(column.type == "text" for column in columns)
    texts = np.array([[f"text {row}"] * num_texts for row in range(begin, begin + _NODES)], object)
    return np.zeros((_NODES, len(columns))), texts


def _edge_table(edge: EdgeTypeSchema) -> EdgeTable:
    ends = np.arange(_NODES)
    time, weight, attr = _columns(edge, _NODES)
    return EdgeTable(
        (ends, ends[::-1].copy()),
        attr,
        time,
        weight,
        by_row=True,
        signed_weight=edge.signed_weight,
        id=edge.id_column,
        **_table(edge.columns),
    )


def _batches(schema: GraphSchema) -> Iterator[Changes]:
    """Batches that add a node and change another one, add edges to both, and remove edges and a node."""
    set_or_add = np.array([False, True])
    nodes = {
        name: NodeChanges(
            _ids(node, _NODES - 1, _NODES + 1),
            set_or_add,
            np.ones((2, node.feature_dim), np.float32),
            np.arange(2) + 2 * at,
            *_cells(node.columns),
            time=None if node.history is None else np.zeros(2, np.int64),
        )
        for at, (name, node) in enumerate(schema.node_types.items())
    }
    yield Changes({}, nodes, 2 * len(nodes))
    for remove in (False, True):
        edges = {
            key: _edge_changes(schema, edge, remove, 2 * at)
            for at, (key, edge) in enumerate(schema.own_edge_types.items())
        }
        yield Changes(edges, {}, 2 * len(edges))
    gone = {name: replace(part, add=~set_or_add & False, remove=set_or_add) for name, part in nodes.items()}
    yield Changes({}, gone, 2 * len(nodes))


def _edge_changes(schema: GraphSchema, edge: EdgeTypeSchema, remove: bool, begin: int) -> EdgeChanges:
    time, weight, attr = _columns(edge, 2)
    return EdgeChanges(
        _ids(schema.node_types[edge.src], 0, 2), _ids(schema.node_types[edge.dst], _NODES - 1, _NODES + 1),
        np.full(2, remove), np.arange(2) + begin, time, None if time is None else np.ones(2, np.bool_),
        weight, attr, *_cells(edge.columns, _NODES),
    )  # fmt: skip


def _columns(edge: EdgeTypeSchema, n: int) -> tuple[IdArray | None, FloatArray | None, FloatArray | None]:
    return (
        np.zeros(n, np.int64) if edge.has_time else None,
        np.ones(n, np.float32) if edge.has_weight else None,
        np.zeros((n, edge.attr_dim), np.float32) if edge.attr_dim else None,
    )


def _ids(node: NodeTypeSchema, begin: int, end: int) -> Ids:
    numbers = np.arange(begin, end)
    return [f"node {at}" for at in numbers] if node.id_kind == "string" else numbers
