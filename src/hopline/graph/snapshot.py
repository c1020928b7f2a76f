"""An immutable version of a graph, in memory or mapped from a folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import msgspec

from hopline.errors import GraphError
from hopline.graph import codec, digest, files, pyg, storage, subgraph
from hopline.graph.build import build, features_of
from hopline.graph.columns import check_whole, positions
from hopline.graph.files import EdgeFile, NodeFile
from hopline.graph.node_times import times_of
from hopline.graph.parts import Adjacency, Nodes
from hopline.graph.schema import EDGE_TYPE, GRAPH_TYPE, NODE_TYPE, GraphSchema, edge_key
from hopline.graph.tables import EdgeTable, EdgeType, NodeTable
from hopline.types import AnyArray, Progress, silent


class Graph:
    """Nodes with features and typed edges between them. Immutable.

    All arrays are read-only. Threads may share it.

    Attributes:
        schema: node and edge types.
        nodes: node type -> its nodes.
        edges: edge type key "src__rel__dst" -> its adjacency.
        path: the folder it was opened from or last saved to, None while it is only in memory.
        left_out: node type or edge type key -> names of its columns in the PyG data that the graph was
            built from, which the graph does not have; "" -> names of other data. Not a part of its version.
    """

    def __init__(
        self,
        schema: GraphSchema,
        nodes: Mapping[str, Nodes],
        edges: Mapping[str, Adjacency],
        *,
        path: Path | None = None,
        left_out: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.schema = schema
        self.nodes: Mapping[str, Nodes] = MappingProxyType(dict(nodes))
        self.edges: Mapping[str, Adjacency] = MappingProxyType(dict(edges))
        self.path = path
        self.left_out: Mapping[str, tuple[str, ...]] = MappingProxyType(dict(left_out or {}))

    @classmethod
    def from_edges(
        cls,
        edges: Any,
        features: Any = None,
        *,
        num_nodes: int | None = None,
        ids: Any = None,
        edge_attr: Any = None,
        edge_time: Any = None,
        edge_weight: Any = None,
        time_unit: str = "",
        signed_weight: bool = False,
        by_row: bool = False,
        feature_names: Sequence[str] = (),
        attr_names: Sequence[str] = (),
        undirected: bool = False,
        feature_dtype: str = "float32",
        progress: Progress = silent,
    ) -> Graph:
        """Build a homogeneous graph: one node type "node", one edge type "node__to__node".

        Args:
            edges: [2, E] or a pair; row 0 the sources, row 1 the destinations, as messages flow. Row
                numbers, or ids if `ids` is given (unless `by_row`). Multi-edges and self-loops are kept.
            features: [N, d] of any real dtype. Not copied if it is C-contiguous and of
                `feature_dtype` already: do not write to it afterwards.
            num_nodes: N, needed if neither features nor ids define it; else the largest row in `edges` + 1.
                That is an error if it is far larger than the number of edges, as it is for ids.
            ids: N distinct ids, all integers or all strings.
            edge_attr, edge_time, edge_weight, time_unit, signed_weight, by_row: as in `EdgeTable`.
            feature_names, attr_names: names of columns.
            undirected: add the reverse of every edge; no edges are added if every edge has its reverse.
            feature_dtype: how features are stored: "float32", "float16", "bfloat16" or "int8" (with a
                scale for each column; see `narrow.py`).
            progress: called with the stage of the work.
        Raises: GraphError: any error in the input, and how to correct it.
        """
        nodes = NodeTable(features, num_nodes, ids, feature_names)
        table = EdgeTable(
            edges, edge_attr, edge_time, edge_weight, attr_names, by_row, undirected, time_unit,
            signed_weight,
        )  # fmt: skip
        return cls.from_tables(
            {NODE_TYPE: nodes}, {EDGE_TYPE: table}, feature_dtype=feature_dtype, progress=progress
        )

    @classmethod
    def from_tables(
        cls,
        nodes: Mapping[str, NodeTable],
        edges: Mapping[EdgeType, EdgeTable],
        *,
        feature_dtype: str = "float32",
        both_directions: bool = False,
        progress: Progress = silent,
    ) -> Graph:
        """Build a graph of any number of types.

        Args:
            nodes: node type -> table.
            edges: (source type, relation, destination type) -> table.
            feature_dtype, progress: as in `from_edges`.
            both_directions: for each edge type (a, r, b) add (b, "rev_r", a), its edges against their
                direction: for models that read edges that leave a node. Events of (a, r, b) change both.
        Raises: GraphError: any error in the input, and how to correct it.
        """
        options: Any = {"feature_dtype": feature_dtype, "both_directions": both_directions}
        return cls(*build(nodes, edges, **options, progress=progress))

    @classmethod
    def from_pyg(
        cls,
        data: Any,
        *,
        columns: Sequence[str] = (),
        edge_columns: Mapping[EdgeType, Any] = MappingProxyType({}),
        ids: Any = None,
        num_relations: int | None = None,
        time_unit: str | Mapping[EdgeType, str] = "",
        feature_dtype: str = "float32",
        both_directions: bool = False,
        node_time: str = "",
        progress: Progress = silent,
    ) -> Graph:
        """Build from a PyG `Data` or `HeteroData`, or from many of them: a list, a data set, a `Batch`.

        `x` (dense, sparse, any real dtype), `edge_index` or `adj_t`, `edge_attr`, `edge_weight` and
        `edge_time` (or a `time` of edges) are read. A homogeneous `edge_type` becomes one edge type
        for each relation: "node__r0__node", "node__r1__node", …. Other columns of nodes and edges
        (labels, masks) are named in `left_out`, and logged by the logger "hopline.graph". Of many
        graphs, each is a node of type "graph" with an edge "node__in__graph" from each of its nodes.

        Args:
            columns: tensors of nodes [N] or [N, d] that are kept in addition to `x`: `pos`, codes. They
                follow the columns of `x`, in this order; a model reads them by their names.
            edge_columns: edge type -> a table as `EdgeTable.columns`, with a row for each of its edges.
            ids: external ids of the rows (of many graphs, theirs); or a mapping node type -> ids.
            num_relations: how many relations `edge_type` can name; None means its largest + 1.
            time_unit: as in `EdgeTable`; a mapping sets it for some edge types of `HeteroData`.
            feature_dtype, progress: as in `from_edges`; both_directions: as in `from_tables`.
            node_time: the tensor of nodes that is `NodeTable.time`, as `time_attr` of PyG's loaders.
        Raises: GraphError: any error in the data, and how to correct it.
        """
        data, ids, graphs = pyg.joined(data, ids)
        nodes, edges = pyg.tables_of(
            data, columns=columns, ids=ids, num_relations=num_relations, time_unit=time_unit,
            node_time=node_time,
        )  # fmt: skip
        for edge_type, table in edge_columns.items():
            if edge_type not in edges:
                raise GraphError(f"edge_columns: {edge_type!r} is not an edge type; there are {[*edges]}")
            edges[edge_type] = replace(edges[edge_type], columns=table)
        if graphs is not None:
            edges |= pyg.memberships(data, nodes)
            nodes[GRAPH_TYPE] = graphs
        options: Any = {"feature_dtype": feature_dtype, "both_directions": both_directions}
        return cls(
            *build(nodes, edges, **options, progress=progress),
            left_out=pyg.left_out(data, (*columns, node_time)),
        )

    @classmethod
    def from_parquet(
        cls,
        nodes: NodeFile | Mapping[str, NodeFile] | None,
        edges: EdgeFile | Mapping[EdgeType, EdgeFile],
        *,
        ids_are_rows: bool = False,
        num_nodes: int | Mapping[str, int] | None = None,
        feature_dtype: str = "float32",
        both_directions: bool = False,
        progress: Progress = silent,
    ) -> Graph:
        """Build from files (Parquet, Arrow, CSV and other text) or data frames.

        Omitted columns, and nodes that no file lists, are logged by the logger "hopline.graph".

        Args:
            nodes: one file for a homogeneous graph, else node type -> file. The nodes of a type without
                a file are the distinct ids in the edge files, sorted.
            edges: one file, else (source type, relation, destination type) -> file.
            ids_are_rows: edges hold row numbers; a type without a file has `num_nodes` nodes, else one
                more than the largest row.
            feature_dtype, progress: as in `from_edges`; both_directions: as in `from_tables`.
        Raises: GraphError: pyarrow is not installed; a file or column is missing or wrong.
        """
        node_files = {NODE_TYPE: nodes} if isinstance(nodes, NodeFile) else nodes
        edge_files = {EDGE_TYPE: edges} if isinstance(edges, EdgeFile) else edges
        counts = {NODE_TYPE: num_nodes} if isinstance(num_nodes, int) else num_nodes
        node_tables, edge_tables = files.read_tables(
            node_files, edge_files, ids_are_rows=ids_are_rows, num_nodes=counts, progress=progress
        )
        options: Any = {"feature_dtype": feature_dtype, "both_directions": both_directions}
        return cls.from_tables(node_tables, edge_tables, **options, progress=progress)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, verify: bool = False) -> Graph:
        """Map a saved graph. The first time, edges and id tables are read and checked; see `integrity.py`.

        Args:
            verify: read every file and compare its hash.
        Raises: GraphError: the folder is not a graph, is damaged, or of a newer format.
        """
        folder = Path(path)
        manifest = storage.read(folder)
        nodes, edges = storage.load(folder, manifest, verify=verify)
        graph = cls(manifest.graph_schema, nodes, edges, path=folder, left_out=manifest.left_out)
        graph.__dict__["lineage"] = manifest.lineage or manifest.version
        graph.__dict__["digests"] = {name: stored.blake2b for name, stored in manifest.arrays.items()}
        return graph

    def save(
        self, path: str | os.PathLike[str], *, overwrite: bool = False, progress: Progress = silent
    ) -> Graph:
        """Write the graph to a folder, completely or not at all, and return it opened from there.

        Args:
            overwrite: replace an existing graph (never a folder that holds something else).
        Raises: GraphError: the folder exists or cannot be written.
        """
        if "digests" not in self.__dict__:
            self.__dict__["digests"] = digest.digests(storage.arrays_of(self.nodes, self.edges), progress)
        storage.save(
            Path(path),
            self.schema,
            self.nodes,
            self.edges,
            self.digests,
            left_out=self.left_out,
            overwrite=overwrite,
            progress=progress,
        )
        return Graph.open(path)

    def compressed(self, progress: Progress = silent) -> Graph:
        """The same graph with packed in-neighbours and weights of 8 bits, in memory; see `codec.py`.

        Sampling is the same as in this graph; by weight, as in a graph with the rounded weights. The result
        has its own version.
        Raises: GraphError: an edge type with too many edges or too large weights.
        """
        return Graph(
            self.schema,
            self.nodes,
            {
                key: codec.compress(part, self.nodes[part.src].num_nodes, progress)
                for key, part in self.edges.items()
            },
            left_out=self.left_out,
        )

    @property
    def is_compressed(self) -> bool:
        """True if edges are packed."""
        return any(codec.is_compressed(part) for part in self.edges.values())

    @cached_property
    def digests(self) -> Mapping[str, str]:
        """Content hash of every array, by its path in a saved graph."""
        return digest.digests(storage.arrays_of(self.nodes, self.edges))

    @cached_property
    def version(self) -> str:
        """The snapshot id, 16 hex digits: equal content has an equal id, on every machine.

        In memory the first access hashes everything; a saved graph stores it.
        """
        return digest.version_of(self.schema, self.digests)

    @cached_property
    def lineage(self) -> str:
        """The snapshot id that it had before nodes of it were forgotten: live folders keep it."""
        return self.version

    @property
    def time_range(self) -> tuple[int, int] | None:
        """The smallest and largest edge time of all types, in `schema.time_unit`; None without times."""
        ranges = [found for part in self.edges.values() if (found := part.time_range) is not None]
        return (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None

    @cached_property
    def clock(self) -> int | None:
        """The latest time of an edge, a node or a row, in `schema.time_unit`; None without times."""
        found = [] if self.time_range is None else [self.time_range[1]]
        for name, part in self.nodes.items():
            times = times_of(self.schema.node_types[name], cast(AnyArray, part.features))
            found += [] if times is None or not len(times) else [int(times.max())]
            found += [] if part.history is None else list(part.history.time_range or ())[1:]
        return max(found, default=None)

    @property
    def num_nodes(self) -> int:
        """Nodes of all types."""
        return sum(part.ids.num_nodes for part in self.nodes.values())

    @property
    def num_edges(self) -> int:
        """Edges of all types."""
        return sum(part.num_edges for part in self.edges.values())

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in storage.arrays_of(self.nodes, self.edges).values())

    def node(self, node_type: str | None = None) -> Nodes:
        """The nodes of a type; None means the only type. Raises: GraphError: the type does not exist."""
        return self.nodes[self._only(node_type, self.nodes, "node type")]

    def frame(self, of: str | EdgeType | None = None) -> Any:
        """The columns of a type as a `pandas.DataFrame`, to fit preprocessing on; see `StoredColumns`.

        Args:
            of: a node type, None for the only one; or an edge type, as in `edge`.
        Raises: GraphError: the type does not exist, or has no columns.
        """
        is_edge = isinstance(of, tuple) or of in self.edges
        columns = self.edge(of).columns if is_edge else self.node(cast(str, of)).columns
        if columns is None:
            kind = "edge" if is_edge else "node"
            raise GraphError(
                f"{kind} type {of!r} has no columns; build it with {kind.title()}Table(columns=...)"
            )
        return columns.frame()

    def labels(self, node_type: str | None = None) -> Any:
        """Labels and times of a node type for training, as `frame`. Raises: GraphError: it has none."""
        if (labels := self.node(node_type).labels) is None:
            raise GraphError(f"node type {node_type!r} has no labels; its description names them (role)")
        return labels.frame()

    def edge(self, edge_type: str | EdgeType | None = None) -> Adjacency:
        """The edges of a type, by key or triple; None means the only type. Raises: GraphError."""
        key = edge_key(*edge_type) if isinstance(edge_type, tuple) else edge_type
        return self.edges[self._only(key, self.edges, "edge type")]

    def subgraph(self, rows: Mapping[str, Any] | Any) -> Graph:
        """The graph that nodes induce: the nodes, and every edge between two of them. In memory.

        External ids are kept (row numbers become integer ids), edges stay in canonical order of the
        new rows.

        Args:
            rows: node type -> distinct global ids, in the order of the new graph; only the
                ids if there is one node type. Omitted types have no nodes.
        Raises: GraphError: an unknown type, a row outside the graph, a repeated row, no rows, a history.
        """
        if past := [name for name, part in self.nodes.items() if part.history is not None]:
            raise GraphError(f"node type {past[0]!r} has a history, which a subgraph would not have")
        chosen = subgraph.rows_by_type(rows, self._counts(), "rows of a subgraph")
        node_tables, edge_tables = subgraph.induced_tables(self.schema, self.nodes, self.edges, chosen)
        feature_dtype = next(iter(self.schema.node_types.values())).feature_dtype
        options: Any = {"feature_dtype": feature_dtype, "both_directions": self.schema.both_directions}
        return Graph(*build(node_tables, edge_tables, **options), left_out=self.left_out)

    def with_features_as(
        self, feature_dtype: str, rounded: Mapping[str, Sequence[str | int]] = MappingProxyType({})
    ) -> Graph:
        """The same graph with features stored in another dtype. In memory; edges are shared.

        Args:
            feature_dtype: as in `from_edges`. A wider dtype does not restore precision.
            rounded: node type -> columns of integers that may change; others are refused if they do.
        Raises: GraphError: the dtype does not exist, or values do not fit into it.
        """
        nodes, types = {}, {}
        for name, part in self.nodes.items():
            what = f"features of node type {name!r}"
            if part.columns is not None and feature_dtype != "float32":
                raise GraphError(f"node type {name!r} has columns, whose features are float32")
            if part.history is not None:
                raise GraphError(f"node type {name!r} has a history: build it again with this dtype")
            features, _ = features_of(part.features, what, feature_dtype)
            schema = self.schema.node_types[name]
            more = positions(rounded.get(name, ()), schema.feature_names, schema.feature_dim, what)
            if feature_dtype != "float32":
                check_whole(features, part.features, schema.feature_names, {*schema.rounded, *more}, what)
            nodes[name] = Nodes(features, part.ids, part.columns, part.labels)
            types[name] = msgspec.structs.replace(schema, feature_dtype=feature_dtype)
        return Graph(GraphSchema(types, self.schema.edge_types), nodes, self.edges, left_out=self.left_out)

    def _counts(self) -> dict[str, int]:
        return {name: part.num_nodes for name, part in self.nodes.items()}

    def __repr__(self) -> str:
        return (
            f"Graph({self.num_nodes} nodes of {len(self.nodes)} types, {self.num_edges} edges of "
            f"{len(self.edges)} types, {'in memory' if self.path is None else self.path})"
        )

    @staticmethod
    def _only(name: str | None, parts: Mapping[str, Any], what: str) -> str:
        if name is None and len(parts) == 1:
            return next(iter(parts))
        if name is None or name not in parts:
            wrong = f"{what} must be given" if name is None else f"no {what} {name!r}"
            raise GraphError(f"{wrong}; there are {', '.join(map(repr, parts)) or 'none'}")
        return name
