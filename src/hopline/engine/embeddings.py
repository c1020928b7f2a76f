"""Learned rows of nodes: tables of a model that are columns of a graph's features while it is served.

For each node type in `ModelSpec.embeddings` an artifact has `embeddings/<type>.npy`, float32 [num_rows,
columns], and, unless ids are row numbers, `embeddings/<type>.ids.json`, the ids of these rows. So a table
fits every later graph: rows are found by their ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np

from hopline.artifact import Later, LearnedRows, ModelSpec
from hopline.errors import ArtifactError, SchemaMismatch
from hopline.graph import ColumnGroup, Graph, GraphSchema, Nodes
from hopline.graph.ids import IdIndex, RangeIds
from hopline.graph.live.view import LiveView
from hopline.types import FloatArray, IdArray

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
        own = graph.nodes[name].features
        parts = [*([np.asarray(own[:], np.float32)] if own.shape[1] else []), *columns.values()]
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        nodes[name] = Nodes(np.ascontiguousarray(rows, np.float32), graph.nodes[name].ids)
    widths = {name: {key: each.shape[1] for key, each in given.items()} for name, given in tables.items()}
    return Graph(widened(graph.schema, widths), nodes, graph.edges, left_out=graph.left_out)


def write_tables(
    folder: Path, graph: Graph, tables: Mapping[str, Mapping[str, FloatArray]], later: Later
) -> dict[str, LearnedRows]:
    """Write tables into an artifact; returns `ModelSpec.embeddings`.

    Args:
        tables: as for `joined`.
        later: `LearnedRows.later`.
    """
    (folder / "embeddings").mkdir()
    found = {}
    for name, columns in tables.items():
        ids = graph.nodes[name].ids
        np.save(_file(folder, name, ".npy"), np.concatenate(list(columns.values()), axis=1))
        if ids.kind != "range":
            external = ids.external(np.arange(len(ids)))
            listed = external.tolist() if isinstance(external, np.ndarray) else external
            _file(folder, name, ".ids.json").write_bytes(msgspec.json.encode(listed))
        widths = {key: each.shape[1] for key, each in columns.items()}
        found[name] = LearnedRows(widths, len(ids), ids.kind, later)
    return found


def with_tables(folder: Path, spec: ModelSpec, graph: Graph | LiveView) -> Graph | LiveView:
    """The graph with the learned columns of a model, if it has such columns.

    Raises:
        SchemaMismatch: nodes have no learned row, and the model declares nothing for them; names the first.
        ArtifactError: the graph is live, or a table's file is not as model.json says.
    """
    if not spec.embeddings:
        return graph
    if isinstance(graph, LiveView):
        spec.check_no_embeddings("a live graph")
        return graph
    found = {}
    for name, learned in spec.embeddings.items():
        table = _by_row(
            spec, name, _table(folder, name, learned), _rows(folder, name, learned, graph), graph
        )
        ends = np.cumsum(list(learned.tables.values()))[:-1]
        found[name] = dict(zip(learned.tables, np.split(table, ends, axis=1), strict=True))
    served = joined(graph, found)
    served.__dict__["version"] = graph.version  # answers name the graph as it is stored
    return served


def _file(folder: Path, node_type: str, ending: str) -> Path:
    return folder / "embeddings" / f"{quote(node_type, safe='')}{ending}"


def _table(folder: Path, node_type: str, learned: LearnedRows) -> FloatArray:
    path, width = _file(folder, node_type, ".npy"), sum(learned.tables.values())
    try:
        table: FloatArray = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path}: cannot be read: {error}; package again") from None
    if table.shape != (learned.num_rows, width) or table.dtype != np.float32:
        raise ArtifactError(
            f"{path}: {table.dtype} of shape {list(table.shape)}; model.json says float32 of "
            f"{[learned.num_rows, width]}; package again"
        )
    return table


def _rows(folder: Path, node_type: str, learned: LearnedRows, graph: Graph) -> IdArray:
    """The table's row of each node, int64 [N]; -1 where it has none."""
    ids, path = graph.nodes[node_type].ids, _file(folder, node_type, ".ids.json")
    if (learned.id_kind == "string") != (ids.kind == "string"):
        return np.full(len(ids), -1, np.int64)
    known: IdIndex = RangeIds(learned.num_rows)
    if learned.id_kind != "range":
        kind: Any = list[int] if learned.id_kind == "int" else list[str]
        try:
            known = IdIndex.build(msgspec.json.decode(path.read_bytes(), type=kind), str(path))
        except (OSError, msgspec.MsgspecError) as error:
            raise ArtifactError(f"{path}: cannot be read: {error}; package again") from None
        if len(known) != learned.num_rows:
            raise ArtifactError(f"{path}: {len(known)} ids of {learned.num_rows} rows; package again")
    return known.lookup(ids.external(np.arange(len(ids))))


def _by_row(spec: ModelSpec, name: str, table: FloatArray, rows: IdArray, graph: Graph) -> FloatArray:
    """The rows of a table in the order of the graph's nodes."""
    without = np.flatnonzero(rows < 0)
    if len(without) and spec.embeddings[name].later == "refuse":
        shown = ", ".join(map(repr, list(graph.nodes[name].ids.external(without[:_SHOWN]))))
        why = (
            f"model {spec.name}/{spec.version} has no learned row of {len(without)} nodes of type {name!r} "
            f"of this graph ({shown}{', …' if len(without) > _SHOWN else ''}). Train and package it again, "
            "or package it with later_nodes='zero', which gives such nodes a row of zeros"
        )
        raise SchemaMismatch(why, [why])
    if np.array_equal(rows, np.arange(len(table))):
        return table
    found: FloatArray = table[np.maximum(rows, 0)]
    found[without] = 0.0
    return found
