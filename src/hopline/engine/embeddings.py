"""Learned rows of nodes: tables of a model that are columns of a graph's features while it is served.

For each node type in `ModelSpec.embeddings` an artifact has `embeddings/<type>.npy`, float32 [num_rows + 1,
columns], and, unless ids are row numbers, `embeddings/<type>.ids.json`, the ids of these rows. So a table
fits every later graph: rows are found by their ids. The last row is that of nodes which came later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote

import msgspec
import numpy as np

from hopline.artifact import LearnedRows, ModelSpec
from hopline.errors import ArtifactError, SchemaMismatch
from hopline.graph import ColumnGroup, Graph, GraphSchema, Nodes, NodeTypeSchema
from hopline.graph.ids import IdIndex, RangeIds
from hopline.graph.live.view import LiveNodes, LiveRows, LiveView
from hopline.types import FloatArray, IdArray

AnyGraph = TypeVar("AnyGraph", bound=Graph | LiveView)

#: Ids that a message shows.
_SHOWN = 5


def widened(schema: GraphSchema, tables: Mapping[str, Mapping[str, int]]) -> GraphSchema:
    """The schema of a graph whose nodes have learned columns behind their own.

    Args:
        tables: node type -> name of a table -> its columns.
    """
    types = dict(schema.node_types)
    for name, columns in tables.items():
        node = types[name]
        own = node.groups or ((ColumnGroup("x", node.feature_dim),) if node.feature_dim else ())
        named = [f"{table}.{column}" for table, width in columns.items() for column in range(width)]
        types[name] = msgspec.structs.replace(
            node,
            feature_dim=node.feature_dim + sum(columns.values()),
            feature_names=(*node.feature_names, *named) if node.feature_names else (),
            groups=(*own, *(ColumnGroup(table, width) for table, width in columns.items())),
        )
    return GraphSchema(types, schema.edge_types)


def joined(graph: Graph, tables: Mapping[str, Mapping[str, FloatArray]]) -> Graph:
    """A graph whose nodes have learned columns behind their own, in memory; edges and ids are shared.

    Args:
        tables: node type -> name of a table -> float32 [N, d], by row of the graph.
    """
    nodes = dict(graph.nodes)
    for name, columns in tables.items():
        part, learned = graph.nodes[name], np.concatenate([*columns.values()], axis=1)
        if (past := part.history) is not None:
            each = np.repeat(learned, np.diff(past.offsets), axis=0)
            past = dataclasses.replace(past, features=_beside(past.features, each))
        nodes[name] = Nodes(_beside(part.features, learned), part.ids, history=past)
    widths = {name: {key: each.shape[1] for key, each in given.items()} for name, given in tables.items()}
    return Graph(widened(graph.schema, widths), nodes, graph.edges, left_out=graph.left_out)


def _beside(own: Any, learned: FloatArray) -> FloatArray:
    rows = np.concatenate([np.asarray(own[:], np.float32), learned], axis=1) if own.shape[1] else learned
    return np.ascontiguousarray(rows, np.float32)


def write_tables(
    folder: Path, graph: Graph, tables: Mapping[str, Mapping[str, FloatArray]], later: Mapping[str, Any]
) -> dict[str, LearnedRows]:
    """Write tables into an artifact; returns `ModelSpec.embeddings`.

    Args:
        tables: as for `joined`.
        later: node type -> float32 [d], the row of a node that has none; None: it is refused.
    """
    (folder / "embeddings").mkdir()
    found = {}
    for name, columns in tables.items():
        ids = graph.nodes[name].ids
        rows = np.concatenate(list(columns.values()), axis=1)
        row = later[name]
        last = np.zeros_like(rows[:1]) if row is None else row[None]
        np.save(_file(folder, name, ".npy"), np.concatenate([rows, last]))
        if ids.kind != "range":
            # objects, since an array of texts drops zero characters at their ends
            listed = np.asarray(ids.external(np.arange(len(ids))), object).tolist()
            _file(folder, name, ".ids.json").write_bytes(msgspec.json.encode(listed))
        widths = {key: each.shape[1] for key, each in columns.items()}
        kind: Any = "refuse" if row is None else "row" if last.any() else "zero"
        found[name] = LearnedRows(widths, len(ids), ids.kind, kind, last.tobytes() if last.any() else b"")
    return found


def with_tables(folder: Path, spec: ModelSpec, graph: AnyGraph) -> AnyGraph:
    """The graph with the learned columns of a model, if it has such columns.

    Raises:
        SchemaMismatch: nodes have no learned row, and the model declares nothing for them; names the first.
        ArtifactError: a table's file is not as model.json says, or the graph is live, and the nodes have
            other columns.
    """
    found = {}
    for name, learned in spec.embeddings.items():
        table, row_of = _table(folder, name, learned), _finder(folder, spec, name, graph)
        if isinstance(graph, LiveView):
            if (own := graph.schema.node_types[name]).feature_dim or own.history:
                raise ArtifactError(
                    f"{spec.name}/{spec.version} reads {own.feature_dim} columns and learned rows of "
                    f"{name!r}, and events may change the columns, or their history, only; serve a "
                    "snapshot, or package without embeddings="
                )
            if learned.later == "refuse":
                raise no_row(spec, "nodes that a live graph gets later")
            graph.nodes[name] = nodes = _TableNodes(graph.nodes[name], table, row_of)
            graph.schema = widened(graph.schema, {name: learned.tables})
            graph.on_pin.append(nodes.follow)
            continue
        rows = row_of(np.arange(graph.nodes[name].num_nodes))
        in_order = np.array_equal(rows, np.arange(learned.num_rows))
        placed = table[: learned.num_rows] if in_order else table[rows]
        ends = np.cumsum(list(learned.tables.values()))[:-1]
        found[name] = dict(zip(learned.tables, np.split(placed, ends, axis=1), strict=True))
    if isinstance(graph, LiveView) or not found:
        return graph
    served = joined(graph, found)
    vars(served).update(version=graph.version, path=graph.path)  # answers name the graph as it is stored
    return cast(AnyGraph, served)


class _TableNodes(LiveNodes):
    """Nodes of a live graph with rows of a table, which no event changes.

    Args:
        table: float32 [n, d].
        row_of: rows of the table, int64 [m], of global ids int64 [m]; called once for each node.
    """

    def __init__(self, nodes: LiveNodes, table: FloatArray, row_of: Callable[[IdArray], IdArray]) -> None:
        vars(self).update(vars(nodes))
        self._own = dataclasses.replace(
            self._own,
            rows=table,
            heads=np.full(nodes.capacity, -1, np.int64),
            since=np.zeros(len(table), np.int64),
            previous=np.full(len(table), -1, np.int64),
        )
        self.features = LiveRows(self, table)
        self._row_of, self._num_known = row_of, 0
        self.follow()

    def follow(self) -> None:
        """Find the rows of nodes that were added."""
        first, self._num_known = self._num_known, self.num_nodes
        if first < self._num_known:
            added = np.arange(first, self._num_known)
            self._own.heads[added] = self._row_of(added)


def narrowed(schema: NodeTypeSchema, learned: LearnedRows) -> NodeTypeSchema:
    """The schema of nodes without their learned columns, which are the last ones."""
    width = sum(learned.tables.values())
    return msgspec.structs.replace(
        schema,
        feature_dim=schema.feature_dim - width,
        feature_names=schema.feature_names[:-width],
        groups=schema.groups[: -len(learned.tables)],
    )


def no_row(spec: ModelSpec, nodes: str) -> SchemaMismatch:
    """The refusal of nodes, in words, without a learned row."""
    why = (
        f"model {spec.name}/{spec.version} has no learned row of {nodes}. Train and package it again, or "
        "package it with later_nodes='zero' or 'mean-row', which gives such nodes a row"
    )
    return SchemaMismatch(why, [why])


def _file(folder: Path, node_type: str, ending: str) -> Path:
    return folder / "embeddings" / f"{quote(node_type, safe='')}{ending}"


def _table(folder: Path, node_type: str, learned: LearnedRows) -> FloatArray:
    path, width = _file(folder, node_type, ".npy"), sum(learned.tables.values())
    try:
        table: FloatArray = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path}: cannot be read: {error}; package again") from None
    if table.shape != (learned.num_rows + 1, width) or table.dtype != np.float32:
        raise ArtifactError(
            f"{path}: {table.dtype} of shape {list(table.shape)}; model.json says float32 of "
            f"{[learned.num_rows + 1, width]}; package again"
        )
    return table


def _finder(
    folder: Path, spec: ModelSpec, name: str, graph: Graph | LiveView
) -> Callable[[IdArray], IdArray]:
    """Rows of a table, int64 [n], of a graph's nodes, int64 [n]; raises as `with_tables`."""
    learned, ids, path = spec.embeddings[name], graph.nodes[name].ids, _file(folder, name, ".ids.json")
    known: IdIndex = RangeIds(learned.num_rows)
    if learned.id_kind != "range":
        kind: Any = list[int] if learned.id_kind == "int" else list[str]
        try:
            known = IdIndex.build(msgspec.json.decode(path.read_bytes(), type=kind), str(path))
        except (OSError, msgspec.MsgspecError) as error:
            raise ArtifactError(f"{path}: cannot be read: {error}; package again") from None
        if len(known) != learned.num_rows:
            raise ArtifactError(f"{path}: {len(known)} ids of {learned.num_rows} rows; package again")

    def row_of(nodes: IdArray) -> IdArray:
        rows = np.full(len(nodes), -1, np.int64)
        if (learned.id_kind == "string") == (ids.kind == "string"):
            rows = known.lookup(ids.external(nodes))
        without = np.setdiff1d(nodes[rows < 0], ids.removed)
        if len(without) and learned.later == "refuse":
            shown = ", ".join(map(repr, np.asarray(ids.external(without[:_SHOWN]), object)))
            shown += ", …" if len(without) > _SHOWN else ""
            raise no_row(spec, f"{len(without)} nodes of type {name!r} of this graph ({shown})")
        return np.where(rows < 0, learned.num_rows, rows)

    return row_of
