"""The types of a graph's rows and edges, without their numbers.

A model is packaged for a schema. Only this module decides whether a model fits a graph.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Literal
from urllib.parse import quote

import msgspec

from hopline.errors import GraphError

IdKind = Literal["range", "int", "string"]
ColumnType = Literal["float", "integer", "boolean", "text", "timestamp"]

#: The names of a homogeneous graph's one node type and one edge type.
NODE_TYPE = "node"
EDGE_TYPE = (NODE_TYPE, "to", NODE_TYPE)
#: In a data set of many graphs: the node type of graphs, and the relation of a node to its graph.
GRAPH_TYPE, MEMBER_OF = "graph", "in"

_MAX_NAME = 72
#: Fields that older graphs do not have. Their hashes must not change: such a field counts only if set.
#: Columns of a time of nodes.
NUM_DIGITS = 3
_LATER = (
    *("time_unit", "signed_weight", "rounded", "rounded_weight", "groups", "reverse_of", "columns"),
    *("id_column", "history"),
)
# File systems allow 255 bytes; batch files add their own to a quoted name.
_MAX_QUOTED_BYTES = 220


class ColumnGroup(msgspec.Struct, frozen=True):
    """Neighbouring columns of the feature matrix that were one tensor of nodes.

    Attributes:
        name: of the tensor. width: its columns; 0 for a tensor [N], which is one column.
        dtype: of the tensor; the matrix holds float32. "time" is int64 [N] in three columns; see
            `node_times.py`.
    """

    name: str
    width: int = 0
    dtype: Literal["float32", "bool", "uint8", "int8", "int16", "int32", "int64", "time"] = "float32"

    @property
    def num_columns(self) -> int:
        """Columns that it takes of the matrix."""
        return NUM_DIGITS if self.dtype == "time" else self.width or 1


class ColumnSchema(msgspec.Struct, frozen=True):
    """One column of a table of nodes or edges, before any preprocessing; any cell may be missing.

    Attributes:
        type: a float64, an integer of 64 bits, a boolean, a text (also a code), or a time (UTC).
    """

    name: str
    type: ColumnType


class HistorySchema(msgspec.Struct, frozen=True):
    """The history of a node type: the unit of the times of its rows, and since when all rows are known."""

    time_unit: str = ""
    since: int | None = None


class NodeTypeSchema(msgspec.Struct, frozen=True):
    """One node type.

    Attributes:
        feature_dim: columns of the feature matrix; 0 where the type has no features.
        feature_dtype: how features are stored: "float32", "float16", "bfloat16" or "int8".
        feature_names: one for each column, or empty.
        id_kind: kind of the caller's ids: row numbers (`range`), 64-bit integers or strings.
        rounded: columns in which float32 may round large integers; see `columns.py`.
        groups: the tensors of which the columns are, in their order; empty if they are of one.
        columns: of its table, which the preprocessing of models reads in place of features.
        history: None where each node has one row.
    """

    feature_dim: int
    feature_dtype: str = "float32"
    feature_names: tuple[str, ...] = ()
    id_kind: IdKind = "range"
    rounded: tuple[int, ...] = ()
    groups: tuple[ColumnGroup, ...] = ()
    columns: tuple[ColumnSchema, ...] = ()
    history: HistorySchema | None = None

    @property
    def x_dim(self) -> int:
        """Columns of the tensor `x`, which are all columns if they are of one tensor."""
        own = [group.num_columns for group in self.groups if group.name == "x"]
        return sum(own) if self.groups else self.feature_dim

    @property
    def has_time(self) -> bool:
        """True if each node has a time, from which on it exists."""
        return any(group.dtype == "time" for group in self.groups)

    @property
    def whole(self) -> tuple[int, ...]:
        """Columns of tensors of integers or booleans: they hold whole numbers only."""
        dtypes = [group.dtype for group in self.groups for _ in range(group.num_columns)]
        return tuple(at for at, dtype in enumerate(dtypes) if dtype != "float32")


class EdgeTypeSchema(msgspec.Struct, frozen=True):
    """One edge type, from `src` to `dst`.

    Attributes:
        attr_dim: columns of the edge attributes; 0 where there are none.
        attr_names: one for each column, or empty.
        has_time: edges carry a time, and in-neighbours are sorted by it.
        has_weight: edges carry a weight.
        time_unit: unit of the times since 1970: "s", "ms", "us" or "ns"; empty if unknown.
            All edge types of a graph that have a unit have the same one.
        signed_weight: weights may be negative. Edges are not sampled by such weights.
        rounded: columns of the attributes, as in `NodeTypeSchema`; rounded_weight: the same for weights.
        reverse_of: key of the type whose edges these are, against their direction, with their columns; ""
            if they are separate. Events of that type change both.
        columns: of its table, which the preprocessing of models reads in place of attributes; those of a
            derived type are the columns of the other one.
        id_column: the column of texts among them that are the ids of edges; "" if they have none.
    """

    src: str
    relation: str
    dst: str
    attr_dim: int = 0
    attr_names: tuple[str, ...] = ()
    has_time: bool = False
    has_weight: bool = False
    time_unit: str = ""
    signed_weight: bool = False
    rounded: tuple[int, ...] = ()
    rounded_weight: bool = False
    reverse_of: str = ""
    columns: tuple[ColumnSchema, ...] = ()
    id_column: str = ""

    @property
    def key(self) -> str:
        """The edge type's one-string name, "src__relation__dst"."""
        return edge_key(self.src, self.relation, self.dst)


class GraphSchema(msgspec.Struct, frozen=True):
    """All node and edge types of a graph, by name and by key."""

    node_types: dict[str, NodeTypeSchema]
    edge_types: dict[str, EdgeTypeSchema]

    @property
    def hash(self) -> str:
        """Hex sha256 of the schema's canonical JSON (sorted keys, no spaces)."""
        return hashlib.sha256(self.canonical()).hexdigest()

    def canonical(self) -> bytes:
        """The schema as JSON that does not depend on the order in which its types were added."""
        plain = msgspec.to_builtins(self)
        for each in (*plain["node_types"].values(), *plain["edge_types"].values()):
            for name in _LATER:
                if name in each and not each[name]:
                    del each[name]
        return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()

    @property
    def own_edge_types(self) -> dict[str, EdgeTypeSchema]:
        """Those that are not derived from others."""
        return {key: edge for key, edge in self.edge_types.items() if not edge.reverse_of}

    @property
    def both_directions(self) -> bool:
        """True if the edges of each type are a type against their direction too."""
        return any(edge.reverse_of for edge in self.edge_types.values())

    @property
    def memberships(self) -> dict[str, str]:
        """Node type -> key of the edges from its nodes to their graphs; empty if this is one graph."""
        is_member = (MEMBER_OF, GRAPH_TYPE)
        found = {
            each.src: key for key, each in self.edge_types.items() if (each.relation, each.dst) == is_member
        }
        return found if found and not self.node_types[GRAPH_TYPE].feature_dim else {}

    @property
    def time_unit(self) -> str:
        """The unit of all times, "" if it is unknown or there are no times."""
        timed = [*self.edge_types.values(), *(node.history for node in self.node_types.values())]
        return next((each.time_unit for each in timed if each and each.time_unit), "")

    def signed(self, keys: Iterable[str]) -> list[str]:
        """Describe each edge type among `keys` that cannot be sampled by weight, since some weights may be
        negative: one sentence for each; empty if there are none."""
        return [
            f"weights of edge type {key!r} may be negative; sampling 'weighted' needs weights >= 0"
            for key in sorted(keys)
            if key in self.edge_types and self.edge_types[key].signed_weight
        ]

    def differences(self, other: GraphSchema) -> list[str]:
        """List everything in a graph's schema that a model packaged for this schema cannot use.

        Differences in things that a model never reads are ignored: additional types or attributes of the
        graph, the kind of external ids, and the storage dtype of features.

        Args:
            other: the schema of the graph that the model is to be served on.

        Returns: one sentence for each difference; empty if the model fits.
        """
        found: list[str] = []
        for name, want in self.node_types.items():
            have = other.node_types.get(name)
            if have is None:
                found.append(f"node type {name!r} is missing; the graph has {_listed(other.node_types)}")
            else:
                found += _columns(
                    f"node type {name!r}",
                    "features",
                    (want.feature_dim, want.feature_names),
                    (have.feature_dim, have.feature_names),
                )
                if want.groups and want.groups != have.groups:
                    found.append(
                        f"node type {name!r} has the tensors {_tensors(have)}; the model was packaged for "
                        f"{_tensors(want)}"
                    )
                found += _types(f"node type {name!r}", want.columns, have.columns)
        for key, edge in self.edge_types.items():
            there = other.edge_types.get(key)
            if there is None:
                found.append(f"edge type {key!r} is missing; the graph has {_listed(other.edge_types)}")
                continue
            if edge.reverse_of and there.reverse_of != edge.reverse_of:
                found.append(
                    f"edge type {key!r} has separate edges; the model was packaged with those of "
                    f"{edge.reverse_of!r} against their direction (both_directions=True)"
                )
            found += _types(f"edge type {key!r}", edge.columns, there.columns)
            if edge.attr_dim:
                found += _columns(
                    f"edge type {key!r}",
                    "edge attributes",
                    (edge.attr_dim, edge.attr_names),
                    (there.attr_dim, there.attr_names),
                )
            if edge.has_time and not there.has_time:
                found.append(f"edge type {key!r} has no edge times; the model was packaged with them")
            elif edge.time_unit and there.time_unit and edge.time_unit != there.time_unit:
                found.append(
                    f"edge type {key!r} has times in {there.time_unit}; the model was packaged with "
                    f"times in {edge.time_unit}"
                )
            if edge.has_weight and not there.has_weight:
                found.append(f"edge type {key!r} has no edge weights; the model was packaged with them")
        return found


def edge_key(src: str, relation: str, dst: str) -> str:
    """The one-string name of an edge type."""
    return f"{src}__{relation}__{dst}"


def reverse_key(key: str) -> str:
    """The name of the type that has the edges of a type against their direction."""
    src, relation, dst = key.split("__")
    return edge_key(dst, f"rev_{relation}", src)


def check_name(name: object, what: str) -> str:
    """Return `name` if it can name a type: blanks, signs and other scripts are allowed.

    Raises: GraphError: it is not a string, is empty, too long, not printable, starts with a dot or contains
        "__", which separates the three names of an edge type's key.
    """
    if not isinstance(name, str):
        raise GraphError(f"{what} must be a string; got {name!r} ({type(name).__name__})")
    if not name or name.startswith(".") or "__" in name or not name.isprintable():
        right = re.sub("_{2,}", "_", "".join(c for c in name if c.isprintable()).lstrip("."))
        raise GraphError(
            f"{what} {name!r} cannot be used: it must be printable, not empty, not start with '.' and "
            "not contain '__' (which separates source, relation and destination)"
            + (f"; {right!r} can" if right else "")
        )
    if len(name) > _MAX_NAME:
        raise GraphError(f"{what} {name!r} is {len(name)} characters long; the limit is {_MAX_NAME}")
    return name


def check_edge_type(edge_type: tuple[str, str, str]) -> None:
    """Raise GraphError if the three names cannot be separated in the key."""
    if tuple(edge_key(*edge_type).split("__")) != edge_type:
        wrong = next(name for name in edge_type[:2] if name.endswith("_"))
        raise GraphError(
            f"edge type {edge_type!r}: a source type or relation must not end with '_', as '__' separates "
            f"the names; {wrong.rstrip('_')!r} can be used"
        )


def quoted(name: str) -> str:
    """The name as one component of a path; a name that would be too long ends with a hash instead."""
    text = quote(name, safe=" ")
    if len(text) <= _MAX_QUOTED_BYTES:
        return text
    return f"{text[: _MAX_QUOTED_BYTES - 40]}~{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}"


def _columns(
    where: str, what: str, want: tuple[int, tuple[str, ...]], have: tuple[int, tuple[str, ...]]
) -> list[str]:
    if want[0] != have[0]:
        missing = [name for name in want[1] if name not in have[1]] if have[1] else []
        further = [name for name in have[1] if name not in want[1]] if want[1] else []
        named = [
            f"{word}: {', '.join(map(repr, names[:5]))}"
            for word, names in (("missing", missing), ("further", further))
            if names
        ]
        more = f" ({'; '.join(named)})" if named else ""
        return [f"{where} has {have[0]} {what}; the model was packaged for {want[0]}{more}"]
    if want[1] and have[1] and want[1] != have[1]:
        wrong = [
            f"column {i} is {b!r}, not {a!r}"
            for i, (a, b) in enumerate(zip(want[1], have[1], strict=True))
            if a != b
        ]
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        return [f"{where} has other {what}: {', '.join(wrong[:3])}{more}"]
    return []


def _types(where: str, want: tuple[ColumnSchema, ...], have: tuple[ColumnSchema, ...]) -> list[str]:
    types = {column.name: column.type for column in have}
    return [
        f"{where}: its column {column.name!r} is {types.get(column.name, 'missing')}; the model was "
        f"packaged for {column.type}" + (f" ({column.name}:{column.type})" if column.name in types else "")
        for column in want
        if types.get(column.name) != column.type
    ]


def _tensors(node: NodeTypeSchema) -> str:
    shown = [f"{group.name} ({group.dtype}, {group.num_columns})" for group in node.groups]
    return ", ".join(shown) or f"x (float32, {node.feature_dim})"


def _listed(names: dict[str, NodeTypeSchema] | dict[str, EdgeTypeSchema]) -> str:
    return ", ".join(repr(name) for name in sorted(names)) or "none"
