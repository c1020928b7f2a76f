"""Room of a live graph: decided once, before its memory is laid out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hopline.errors import GraphError
from hopline.graph import hash_table

if TYPE_CHECKING:
    from hopline.graph.snapshot import Graph
    from hopline.graph.stored_columns import StoredColumns


#: Limit of nodes of a type, and of positions in the arrays of an edge type: both are int32.
MAX_POSITIONS = 2**31 - 8
#: Positions of an edge type in addition to those of its edges.
_SPARE_POSITIONS, _SPARE_RECORDS = 1 << 20, 1 << 18


class ColumnRoom(msgspec.Struct, frozen=True, kw_only=True):
    """Room for rows of nodes or edges.

    Attributes:
        rows: one for each node or edge, and older ones that readers may still need.
        columns: of the type's table.
        texts, text_bytes: distinct texts in the columns.
    """

    rows: int = 0
    columns: int = 0
    texts: int = 0
    text_bytes: int = 0


class NodeRoom(ColumnRoom, frozen=True, kw_only=True):
    """Room for one node type.

    Attributes:
        base: nodes that it starts with.
        capacity: nodes that it can have.
        dim: columns of a feature row.
        id_kind: as in the schema.
        id_bytes: for the string ids of added nodes.
    """

    base: int
    capacity: int
    dim: int
    id_kind: str
    id_bytes: int

    @property
    def id_slots(self) -> int:
        """Slots of the hash table over added nodes."""
        return hash_table.capacity_for(max(1, self.capacity - self.base))


class EdgeRoom(ColumnRoom, frozen=True, kw_only=True):
    """Room for one edge type.

    Attributes:
        src, dst: node types.
        base: edges that it starts with.
        positions: entries of the edge arrays.
        records: see `extent.py`.
        attr_dim, has_time, has_weight: as in the schema.
        rows_of: key of the type whose rows its edges name: its own, or the one that it is derived from; ""
            if that has no columns.
        id_column: place of the ids among its columns; -1 if it has none.
    """

    src: str
    dst: str
    base: int
    positions: int
    records: int
    attr_dim: int
    has_time: bool
    has_weight: bool
    rows_of: str = ""
    id_column: int = -1


class LivePlan(msgspec.Struct, frozen=True):
    """Everything that a process needs to know to map the memory.

    Attributes:
        lineage: version of the original graph.
        sequence: version that the memory was filled with.
        num_levels: levels of changed_at: 0 for own features, then one for each message-passing layer.
        reads_degrees: changed_at also covers effects of neighbours' degrees, as GCN reads them.
        nonce: of memory that processes share, different for each; what they make of it can be shared too.
        histories: node type -> lists of the rows that its nodes had, by their times.
    """

    lineage: str
    sequence: int
    num_levels: int
    reads_degrees: bool
    nodes: dict[str, NodeRoom]
    edges: dict[str, EdgeRoom]
    nonce: str = ""
    histories: dict[str, EdgeRoom] = {}


def make_plan(
    graph: Graph,
    *,
    lineage: str,
    sequence: int,
    spare_nodes: int,
    spare_edges: int,
    num_levels: int,
    reads_degrees: bool = False,
) -> LivePlan:
    """Plan the room for a graph and its future changes.

    Args:
        graph: the graph at the start.
        spare_nodes: of each type. spare_edges: of each type. Memory is used only as it fills.
        num_levels: as in `LivePlan`.

    Raises: GraphError: a type is too large for a live graph; no memory is laid out.
    """
    nodes, histories = {}, {}
    for name, part in graph.nodes.items():
        kind = graph.schema.node_types[name].id_kind
        capacity = part.num_nodes + spare_nodes
        if capacity > MAX_POSITIONS:
            raise GraphError(
                f"live graph: node type {name!r} would have room for {capacity} nodes ({part.num_nodes} "
                f"and live.spare_nodes = {spare_nodes}); at most {MAX_POSITIONS}: lower live.spare_nodes, "
                "or serve the graph as a snapshot, without live.enabled"
            )
        rows, count = (part, capacity) if (past := part.history) is None else (past, len(past.times))
        if past is not None:
            count += spare_nodes
            what = f"node type {name!r} has {len(past.times)} rows"
            lists: Any = _list_room(len(past.times), spare_nodes, what, "live.spare_nodes")
            lists |= {"src": name, "dst": name, "attr_dim": 0, "has_time": True, "has_weight": False}
            histories[name] = EdgeRoom(**lists, records=2 * capacity + _SPARE_RECORDS)
        nodes[name] = NodeRoom(
            base=part.num_nodes,
            capacity=capacity,
            dim=int(part.features.shape[1]),
            id_kind=kind,
            id_bytes=64 * spare_nodes if kind == "string" else 0,
            **_column_room(rows.columns, count, spare_nodes),
        )
    edges = {}
    for key, adjacency in graph.edges.items():
        schema = graph.schema.edge_types[key]
        rows_of, names = schema.reverse_of or key, [column.name for column in schema.columns]
        has_rows = graph.edges[rows_of].columns is not None
        count = adjacency.num_edges + spare_edges
        what = f"edge type {key!r} has {adjacency.num_edges} edges"
        edges[key] = EdgeRoom(
            src=adjacency.src,
            dst=adjacency.dst,
            records=2 * nodes[adjacency.dst].capacity + _SPARE_RECORDS,
            attr_dim=0 if adjacency.attr is None else int(adjacency.attr.shape[1]),
            has_time=adjacency.time is not None,
            has_weight=adjacency.weight is not None,
            rows_of=rows_of if has_rows else "",
            id_column=names.index(schema.id_column) if schema.id_column else -1,
            **_list_room(adjacency.num_edges, spare_edges, what, "live.spare_edges"),
            **({} if adjacency.columns is None else _column_room(adjacency.columns, count, spare_edges)),
        )
    return LivePlan(lineage, sequence, num_levels, reads_degrees, nodes, edges, histories=histories)


def _list_room(count: int, spare: int, what: str, setting: str) -> dict[str, int]:
    """Room for lists with `count` entries, and `spare` more. Raises: GraphError: there are too many."""
    # lists get room in powers of two, and replaced ones stay while they are read
    positions = count + 3 * (count + spare) + _SPARE_POSITIONS
    if positions > MAX_POSITIONS:
        most = max(0, (MAX_POSITIONS - _SPARE_POSITIONS - 3 * spare) // 4)
        raise GraphError(
            f"live graph: {what}; with {setting} = {spare} a live graph holds at most {most} of a type: "
            f"lower {setting}, split the type, or serve the graph as a snapshot, without live.enabled"
        )
    return {"base": count, "positions": positions}


def _column_room(columns: StoredColumns | None, count: int, spare: int) -> dict[str, int]:
    """Room for `count` rows, of which `spare` come later."""
    schemas = () if columns is None else columns.schemas
    num_texts, text_bytes = (0, 0) if columns is None else columns.size_of_texts()
    spare_texts = sum(column.type == "text" for column in schemas) * (spare + 1)
    return {
        # a replaced row stays while it is read: room for several batches
        "rows": count + max(65_536, count // 4),
        "columns": len(schemas),
        "texts": num_texts + spare_texts,
        "text_bytes": text_bytes + 64 * spare_texts,
    }
