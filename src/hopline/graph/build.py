"""Builds the parts of a snapshot from tables of nodes and edges; long because it checks all of them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.errors import BadRequest, GraphError
from hopline.graph import csc, narrow
from hopline.graph.columns import check_whole, column_names, matrix, positions, read_only, weights
from hopline.graph.edge_ids import EdgeIds
from hopline.graph.edge_times import common_times, read_times
from hopline.graph.history import History, by_node
from hopline.graph.ids import IdIndex, RangeIds
from hopline.graph.narrow import Features, NarrowMatrix, taken
from hopline.graph.node_times import TIME_NAMES, edge_times, groups_with_time, to_columns
from hopline.graph.parts import Adjacency, Nodes
from hopline.graph.schema import (
    NUM_DIGITS,
    EdgeTypeSchema,
    GraphSchema,
    HistorySchema,
    NodeTypeSchema,
    check_edge_type,
    check_name,
    edge_key,
    reverse_key,
)
from hopline.graph.stored_columns import StoredColumns
from hopline.graph.tables import EdgeTable, EdgeType, Encoded, NodeTable, as_array, check_by_type
from hopline.graph.typed_columns import typed_table
from hopline.types import AnyArray, IdArray, Progress, silent


def _both_directions(
    src: NDArray[np.int32], dst: NDArray[np.int32], columns: Sequence[AnyArray | None], what: str
) -> bool:
    """True if every edge has its reverse, with the same columns.

    Args:
        src, dst: rows of the ends [E]; loops are ignored.
        columns: of the edges, [E] or [E, d]; None for missing ones.
        what: for error messages.
    Returns: False if no edge has its reverse.
    Raises: GraphError: some edges have their reverse, or all do but with other columns: it is unclear
        whether the missing reverses are intended.
    """
    keep = np.flatnonzero(src != dst)
    src, dst = src[keep].astype(np.int64), dst[keep].astype(np.int64)
    size = int(max(src.max(initial=0), dst.max(initial=0))) + 1
    there, back = src * size + dst, dst * size + src
    found = np.isin(there, back)
    count = int(np.count_nonzero(found))
    if not count:
        return False
    flat = [part for each in columns if each is not None for part in np.atleast_2d(each[keep].T)]
    if count == len(keep) and _same_rows([there, *flat], [back, *flat]):
        return True
    shown = int(keep[np.flatnonzero(found)[0]])
    if count < len(keep):
        why = f"{count} of {len(keep)} edges already have their reverse (the first is edge {shown})"
    elif _same_rows([there], [back]):
        why = "every edge already has its reverse, but with another time, weight or attribute"
    else:
        why = "every edge already has its reverse, but not the same number of times"
    raise GraphError(
        f"{what}: {why}, so undirected would double them. Omit undirected if the edges contain both "
        "directions, or list each pair once. To keep these edges and add the reverse of each, add the same "
        "edges again as a separate edge type, with source and destination exchanged"
    )


def _same_rows(first: Sequence[AnyArray], second: Sequence[AnyArray]) -> bool:
    """True if two tables, passed as columns, hold the same rows in any order."""
    one, other = np.lexsort(first[::-1]), np.lexsort(second[::-1])
    return all(np.array_equal(a[one], b[other]) for a, b in zip(first, second, strict=True))


MAX_NODES = 2**31 - 1
_LOG = logging.getLogger("hopline.graph")
# Row numbers that are above this, and above this multiple of the number of edge ends, are assumed to be
# ids.
_SPARSE_NODES, _SPARSE_FACTOR = 1000, 20

Parts = tuple[GraphSchema, dict[str, Nodes], dict[str, Adjacency]]


def build(
    node_tables: Mapping[str, NodeTable],
    edge_tables: Mapping[EdgeType, EdgeTable],
    *,
    feature_dtype: str = "float32",
    both_directions: bool = False,
    progress: Progress = silent,
) -> Parts:
    """Check all tables, index the ids, sort the edges.

    Types are sorted by name, so that the order of the tables does not matter.

    Raises: GraphError: the first error in the input, and how to correct it.
    """
    for tables, kind, file in ((node_tables, NodeTable, "NodeFile"), (edge_tables, EdgeTable, "EdgeFile")):
        check_by_type(
            tables, kind, f"To build from a DataFrame, use Graph.from_parquet with {file}(frame, …)"
        )
    _check_types(node_tables, edge_tables)
    ends = {
        edge_type: _ends(table, f"edges of {_shown(edge_type)}") for edge_type, table in edge_tables.items()
    }
    reverse_of = _reverse_types(edge_tables) if both_directions else {}
    derived = {new: replace(edge_tables[of], columns=None, id="") for new, of in reverse_of.items()}
    edge_tables = {**edge_tables, **derived}
    ends |= {new: ends[of][::-1] for new, of in reverse_of.items()}
    node_tables = {name: replace(each, time=_row_times(name, each)) for name, each in node_tables.items()}
    timed: list[Any] = [(name, each, repr(name), each.time) for name, each in node_tables.items()]
    timed += [(edge_key(*key), each, _shown(key), ends[key][0]) for key, each in edge_tables.items()]
    times = common_times(
        {
            key: read_times(each.time, f"times of {shown}", len(rows), each.time_unit)
            for key, each, shown, rows in timed
            if each.time is not None
        }
    )
    node_schemas: dict[str, NodeTypeSchema] = {}
    nodes: dict[str, Nodes] = {}
    for name in sorted(node_tables):
        table = node_tables[name]
        own_times = times[name][0] if name in times else None
        nodes[name], rounded = _nodes(name, table, ends, feature_dtype, progress, own_times)
        dim, groups, names = nodes[name].features.shape[1], tuple(table.groups), _feature_names(table)
        if own_times is not None and table.history is None:
            groups = groups_with_time(groups, dim - NUM_DIGITS)
            names = [*names, *TIME_NAMES] if names or dim == NUM_DIGITS else ()
        node_schemas[name] = NodeTypeSchema(
            feature_dim=dim,
            feature_dtype=feature_dtype,
            feature_names=column_names(names, dim, f"feature names of node type {name!r}"),
            id_kind=nodes[name].ids.kind,
            rounded=rounded,
            groups=groups,
            columns=() if (columns := nodes[name].columns) is None else columns.schemas,
            history=HistorySchema(times[name][1], past.since) if (past := nodes[name].history) else None,
        )
        if past is not None:  # from then on a node exists
            times[name] = past.times[past.offsets[:-1]], times[name][1]
    if not any(part.num_nodes for part in nodes.values()):
        raise GraphError("the graph is empty: it must have at least one node")
    edge_schemas: dict[str, EdgeTypeSchema] = {}
    edges: dict[str, Adjacency] = {}
    for edge_type in sorted(edge_tables):
        edge_table = edge_tables[edge_type]
        of_sources, time_unit = times.get(edge_type[0], (None, ""))
        time, time_unit = times.pop(edge_key(*edge_type), (None, time_unit))
        part, rounded, rounded_weight = _adjacency(
            edge_type, edge_table, ends.pop(edge_type), time, nodes, progress, of_sources
        )
        attr_dim = 0 if part.attr is None else part.attr.shape[1]
        edges[part.key] = part
        edge_schemas[part.key] = EdgeTypeSchema(
            *edge_type,
            attr_dim=attr_dim,
            attr_names=column_names(
                edge_table.attr_names, attr_dim, f"attribute names of {_shown(edge_type)}"
            ),
            has_time=part.time is not None,
            has_weight=part.weight is not None,
            time_unit=time_unit,
            signed_weight=part.signed_weight,
            rounded=rounded,
            rounded_weight=rounded_weight,
            reverse_of=edge_key(*reverse_of[edge_type]) if edge_type in reverse_of else "",
            columns=() if part.columns is None else part.columns.schemas,
            id_column="" if part.ids is None else edge_table.id,
        )
    return GraphSchema(node_schemas, edge_schemas), nodes, edges


def _check_types(node_tables: Mapping[str, NodeTable], edge_tables: Mapping[EdgeType, EdgeTable]) -> None:
    if not node_tables:
        raise GraphError("the graph is empty: it must have at least one node type")
    for name in node_tables:
        check_name(name, "a node type's name")
    for edge_type, table in edge_tables.items():
        check_name(edge_type[1], "a relation's name")
        check_edge_type(edge_type)
        for end, name in (("source", edge_type[0]), ("destination", edge_type[2])):
            if name not in node_tables:
                raise GraphError(
                    f"edge type {_shown(edge_type)}: its {end} type {name!r} is not a node type; known "
                    f"types: {', '.join(map(repr, sorted(node_tables)))}"
                )
        if table.undirected and edge_type[0] != edge_type[2]:
            raise GraphError(
                f"edge type {_shown(edge_type)} joins two node types and cannot be undirected; "
                "add the reverse as a separate edge type"
            )


def _reverse_types(edge_types: Collection[EdgeType]) -> dict[EdgeType, EdgeType]:
    """A new type for each type: its edges against their direction."""
    found = {}
    for edge_type in edge_types:
        src, relation, dst = reverse_key(edge_key(*edge_type)).split("__")
        if (src, relation, dst) in edge_types:
            raise GraphError(
                f"both_directions adds edge type {(src, relation, dst)!r}, which exists: rename it if it "
                "has other edges, else leave it out"
            )
        check_name(relation, "a relation's name")
        found[src, relation, dst] = edge_type
    return found


def _ends(table: EdgeTable, what: str) -> tuple[Any, Any]:
    """Sources and destinations as the caller passed them, of equal length."""
    edges = table.edges
    if hasattr(edges, "columns") and hasattr(edges, "dtypes"):
        raise GraphError(
            f"{what} are given as a {type(edges).__name__}; pass a pair of its columns, "
            "(frame['src'], frame['dst']), or EdgeFile(frame, src=…, dst=…) to Graph.from_parquet"
        )
    if isinstance(edges, tuple | list) and len(edges) == 2:
        sources, destinations = edges
    else:
        array = as_array(edges, what)
        if array.ndim != 2 or array.shape[0] != 2:
            hint = "; transpose it" if array.ndim == 2 and array.shape[1] == 2 else ""
            raise GraphError(
                f"{what} must have shape [2, E], row 0 the sources and row 1 the destinations; got "
                f"{list(array.shape)}{hint}"
            )
        sources, destinations = array
    if any(hasattr(end, "detach") or hasattr(end, "to_numpy") for end in (sources, destinations)):
        sources, destinations = as_array(sources, what), as_array(destinations, what)
    if len(sources) != len(destinations):
        raise GraphError(f"{what}: {len(sources)} sources but {len(destinations)} destinations")
    return sources, destinations


def _row_times(name: str, table: NodeTable) -> Any:
    """Times of nodes; or those of the rows of a history, and `history_since` behind them if it is given."""
    if table.history is None:
        return table.time
    if table.time is not None:
        raise GraphError(f"node type {name!r} has times and a history: a node exists from its first row on")
    times: Any = as_array(table.history, f"times of {name!r}")
    since = [] if table.history_since is None else [table.history_since]
    try:
        return np.append(times, np.array(since, times.dtype))
    except (TypeError, ValueError):
        raise GraphError(
            f"node type {name!r}: history_since is {since[0]!r}, and must be a time like those of its rows"
        ) from None


def _nodes(
    name: str,
    table: NodeTable,
    ends: Mapping[EdgeType, tuple[Any, Any]],
    feature_dtype: str,
    progress: Progress,
    times: IdArray | None,
) -> tuple[Nodes, tuple[int, ...]]:
    """The nodes, and their columns that may be rounded."""
    where = f"node type {name!r}"
    if table.history is not None and times is not None:
        rows = replace(table, ids=None, history=None)
        flat, may_round = _nodes(name, rows, {}, feature_dtype, progress, None)
        times, since = (times, None) if table.history_since is None else (times[:-1], int(times[-1]))
        index, order, offsets = by_node(table.ids, times, len(flat.features), where)
        columns = flat.columns and flat.columns.taken(order)
        past = History(offsets, read_only(times[order]), taken(flat.features, order), columns, since)
        newest, columns = past.now()
        return Nodes(newest, index, columns, history=past), may_round
    features: Features | None = None
    ids = None
    rounded: tuple[int, ...] = ()
    counts: dict[str, int] = {}
    if table.num_nodes is not None:
        if isinstance(table.num_nodes, bool) or not isinstance(table.num_nodes, int | np.integer):
            raise GraphError(f"num_nodes of {where} must be an integer; got {table.num_nodes!r}")
        counts["num_nodes"] = int(table.num_nodes)
    if table.features is not None:
        what = f"features of {where}"
        names = _feature_names(table)
        features, rounded = features_of(
            table.features, what, feature_dtype, names, rounded=table.rounded, progress=progress
        )
        if feature_dtype != "float32":
            check_whole(features, table.features, names, rounded, what)
        counts["rows of features"] = len(features)
    columns = None
    if table.columns is not None:
        if feature_dtype != "float32":
            raise GraphError(
                f"{where} has columns, whose features are float32; leave out feature_dtype "
                "(--feature-dtype)"
            )
        columns = StoredColumns.of(typed_table(where, table))
        counts["rows of columns"] = len(columns.table)
    if times is not None:
        if columns is not None or feature_dtype != "float32":
            raise GraphError(f"{where} has times, and {'columns' if columns else feature_dtype} besides")
        counts["times"] = len(times)
    if table.ids is not None:
        progress(f"ids of {where}", 0.0)
        ids = table.ids if isinstance(table.ids, IdIndex) else IdIndex.build(table.ids, f"ids of {where}")
        progress(f"ids of {where}", 1.0)
        counts["ids"] = len(ids)
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{count} {what}" for what, count in counts.items())
        raise GraphError(f"{where}: these must agree: {listed}")
    num_nodes = next(iter(counts.values())) if counts else _num_nodes_of(name, ends)
    if not 0 <= num_nodes <= MAX_NODES:
        hint = "" if counts else "; if the edges hold your own ids rather than row numbers, pass `ids`"
        raise GraphError(f"{where}: {num_nodes} nodes; a node type may have 0 to {MAX_NODES}{hint}")
    if features is None:
        features, _ = features_of(np.empty((num_nodes, 0), np.float32), "no features", feature_dtype)
    if times is not None:
        features = read_only(np.concatenate([features, to_columns(times, where)], axis=1))
    return Nodes(features, ids if ids is not None else RangeIds(num_nodes), columns), rounded


def _feature_names(table: NodeTable) -> Sequence[str]:
    """The given names, else those of a DataFrame."""
    columns = getattr(table.features, "columns", None) if hasattr(table.features, "dtypes") else None
    if table.feature_names or columns is None or not all(isinstance(name, str) for name in columns):
        return table.feature_names
    return list(columns)


def features_of(
    given: Any,
    what: str,
    dtype: str,
    names: Sequence[str] = (),
    *,
    rounded: Sequence[str | int] = (),
    progress: Progress = silent,
) -> tuple[Features, tuple[int, ...]]:
    """Convert features to the form that a graph stores.

    Args:
        given: [N, d] of any real dtype, or a narrow matrix.
        what: for error messages. dtype: one of `narrow.DTYPES`. names: of columns, for error messages.
        rounded: as in `NodeTable`.
    Returns: the features; and the columns that may be rounded, as of `matrix`.
    Raises: GraphError: they are not such a matrix, or do not fit into `dtype`.
    """
    if dtype not in narrow.DTYPES:
        *most, last = narrow.DTYPES
        raise GraphError(f"features are stored as {', '.join(most)} or {last}; not {dtype!r}")
    if isinstance(given, NarrowMatrix) and given.kind == dtype:
        # Rows of another graph: their codes and scales do not change.
        return given, positions(rounded, names, given.shape[1], what)
    first = dtype if dtype not in narrow.CODES else "float32"
    values, accepted = matrix(given, what, dtype=first, names=names, rounded=rounded, progress=progress)
    if dtype not in narrow.CODES:
        return values, accepted
    if dtype == "bfloat16" and values.size:
        largest = float(np.abs(values).max())
        if largest > narrow.BFLOAT16_MAX:
            raise GraphError(
                f"{what} do not fit into bfloat16 (largest {narrow.BFLOAT16_MAX:g}): found {largest:g}. "
                "Clip or scale them before building"
            )
    return narrow.encode(values, dtype, progress=progress, what=f"{what}, as {dtype}"), accepted


def _num_nodes_of(name: str, ends: Mapping[EdgeType, tuple[Any, Any]]) -> int:
    """One more than the largest row number in the edges.

    Raises: GraphError: so few of the rows have edges that the numbers are probably ids.
    """
    largest, num_ends = -1, 0
    for (src, relation, dst), (sources, destinations) in ends.items():
        for node_type, end, values in ((src, "sources", sources), (dst, "destinations", destinations)):
            if node_type == name and len(values):
                rows = _row_numbers(values, f"{end} of {_shown((src, relation, dst))}", name)
                largest, num_ends = max(largest, int(rows.max())), num_ends + len(rows)
    if MAX_NODES > largest >= _SPARSE_NODES + _SPARSE_FACTOR * num_ends:
        raise GraphError(
            f"node type {name!r}: its edges name rows up to {largest}, but there are only {num_ends} edge "
            "ends; if these numbers are your own ids rather than row numbers, pass `ids` (`hopline graph "
            "build`: omit --ids-are-rows), else set num_nodes (--num-nodes)"
        )
    return largest + 1


def _adjacency(
    edge_type: EdgeType, table: EdgeTable, ends: tuple[Any, Any], time: IdArray | None,
    nodes: Mapping[str, Nodes], progress: Progress, of_sources: IdArray | None = None,
) -> tuple[Adjacency, tuple[int, ...], bool]:  # fmt: skip
    """The edges, their columns of attributes that may be rounded, and whether their weights may be."""
    shown = _shown(edge_type)
    stage = f"edges of {shown}"
    progress(stage, 0.0)
    src = _resolve(ends[0], nodes[edge_type[0]], f"sources of {shown}", edge_type[0], table.by_row)
    dst = _resolve(ends[1], nodes[edge_type[2]], f"destinations of {shown}", edge_type[2], table.by_row)
    progress(stage, 0.2)
    num_edges = len(src)
    attr, weight, columns = None, None, None
    rounded: tuple[int, ...] = ()
    rounded_weight = False
    if table.attr is not None:
        attr, rounded = matrix(
            table.attr,
            f"attributes of {shown}",
            names=table.attr_names,
            rows=num_edges,
            rounded=table.rounded,
        )
    if table.weight is not None:
        weight, rounded_weight = weights(
            table.weight, f"weights of {shown}", num_edges, rounded=table.rounded_weight
        )
    if table.id and (table.columns is None or table.undirected):
        why = "its reverse would have the same" if table.undirected else "it is one of `columns`"
        raise GraphError(f"edge type {shown}: id {table.id!r}: each edge has its own, and {why}")
    if table.columns is not None:
        kinds = {**table.column_types, table.id: "text"} if table.id else table.column_types
        columns = typed_table(f"edge type {shown}", replace(table, column_types=kinds))
        if attr is not None or len(columns) != num_edges:
            has = f"{len(columns)} rows of columns" if attr is None else "attributes besides its columns"
            raise GraphError(f"edge type {shown} has {has} and {num_edges} edges: keep all in its columns")
    codes = [_codes(each) for each in columns.columns] if table.undirected and columns is not None else []
    if table.undirected and _both_directions(src, dst, (attr, time, weight, *codes), shown):
        _LOG.warning("edges of %s already contain both directions: no reverse was added", shown)
    elif table.undirected:
        back = np.flatnonzero(src != dst)
        src, dst = np.concatenate([src, dst[back]]), np.concatenate([dst, src[back]])
        attr, time, weight = (
            None if column is None else np.concatenate([column, column[back]])
            for column in (attr, time, weight)
        )
        columns = None if columns is None else columns.take(np.concatenate([np.arange(num_edges), back]))
    progress(stage, 0.4)
    time = edge_times(time, src, of_sources, f"edges of {shown}", nodes[edge_type[0]].history)
    order = csc.canonical_order(src, dst, time)
    indptr = csc.run_starts(dst, nodes[edge_type[2]].num_nodes)
    progress(stage, 0.8)
    indices = src[order]
    stored = None if columns is None else StoredColumns.of(columns.take(order))
    ids = EdgeIds(stored, table.id, what=f"edge type {shown}") if stored and table.id else None
    sorted_weight = None if weight is None else weight[order]
    part = Adjacency(
        src=edge_type[0],
        relation=edge_type[1],
        dst=edge_type[2],
        indptr=read_only(indptr),
        indices=read_only(indices),
        time=None if time is None else read_only(time[order]),
        attr=None if attr is None else read_only(attr[order]),
        weight=None if sorted_weight is None else read_only(sorted_weight),
        cumweight=None if sorted_weight is None else read_only(csc.running_weights(indptr, sorted_weight)),
        has_self_loops=edge_type[0] == edge_type[2] and bool(csc.any_self_loop(indptr, indices)),
        has_repeated_edges=csc.repeated_edge(indptr, indices)[0] >= 0,
        max_degree=int(np.diff(indptr).max(initial=0)),
        stored_time_range=None if time is None or not len(time) else (int(time.min()), int(time.max())),
        signed_weight=weight is not None and (table.signed_weight or bool((weight < 0).any())),
        columns=stored,
        ids=ids,
    )
    progress(stage, 1.0)
    return part, rounded, rounded_weight


def _codes(column: Any) -> AnyArray:
    """A column of Arrow as integers: equal for equal cells, missing ones too."""
    codes: AnyArray = column.combine_chunks().dictionary_encode("encode").indices.to_numpy()
    return codes


def _resolve(values: Any, nodes: Nodes, what: str, node_type: str, by_row: bool) -> NDArray[np.int32]:
    """The rows of one end of every edge, int32 [E]."""
    if by_row or isinstance(nodes.ids, RangeIds):
        rows = _row_numbers(values, what, node_type)
        if len(rows) == 0 or (rows.min() >= 0 and rows.max() < nodes.num_nodes):
            return rows.astype(np.int32)
        bad = (rows < 0) | (rows >= nodes.num_nodes)
        raise GraphError(
            f"{what} outside the node range: {np.count_nonzero(bad)}; node type {node_type!r} has rows 0 "
            f"to {nodes.num_nodes - 1}; {_first(rows, bad)}"
        )
    try:
        if isinstance(values, Encoded):
            rows = nodes.ids.lookup(values.distinct)[values.codes]
        else:
            rows = nodes.ids.lookup(values)
    except BadRequest as error:
        raise GraphError(
            f"{what}: {error}; node type {node_type!r} has {nodes.ids.kind} ids{_rows_hint(values, nodes)}"
        ) from None
    unknown = rows < 0
    if unknown.any():
        raise GraphError(
            f"{what} unknown: {np.count_nonzero(unknown)}; node type {node_type!r} has no such id; "
            f"{_first(values, unknown)}{_rows_hint(values, nodes)}"
        )
    return rows.astype(np.int32)


def _rows_hint(values: Any, nodes: Nodes) -> str:
    """Advice for edges that may be row numbers, as in PyG's `edge_index`."""
    rows = np.asarray(values.distinct if isinstance(values, Encoded) else values)
    if rows.dtype.kind not in "iu" or rows.min(initial=0) < 0 or rows.max(initial=0) >= nodes.num_nodes:
        return ""
    return "; if the edges are row numbers, pass by_row=True (`hopline graph build`: --ids-are-rows)"


def _row_numbers(values: Any, what: str, node_type: str) -> AnyArray:
    rows = as_array(values, what)
    if rows.ndim != 1:
        raise GraphError(f"{what} must be a vector; got shape {rows.shape}")
    if rows.dtype.kind not in "iu" and len(rows):
        raise GraphError(
            f"{what} must be integers, rows of node type {node_type!r}; got dtype {rows.dtype} (to "
            "use your own ids, pass `ids`)"
        )
    return rows


def _first(values: Any, bad: IdArray | NDArray[np.bool_]) -> str:
    at = np.flatnonzero(bad)
    place = getattr(values, "place", None) or "edge {}".format
    shown = ", ".join(f"{place(i)} has {_plain(values[i])!r}" for i in at[:5].tolist())
    return shown + (", …" if len(at) > 5 else "")


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _shown(edge_type: EdgeType) -> str:
    return repr(edge_key(*edge_type))
