"""Events as an Arrow table: the fields of JSON events as columns, vectors as lists or column by column.

Needs pyarrow, which is imported when the first Arrow message comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.errors import BadRequest
from hopline.events.json_rows import described
from hopline.events.rows import Column, EdgeRows, NodeRows, Refusals
from hopline.events.wire import OPS
from hopline.graph.schema import EdgeTypeSchema, GraphSchema, NodeTypeSchema
from hopline.types import IdArray

#: How every Arrow IPC stream begins; no JSON does.
MAGIC = b"\xff\xff\xff\xff"
#: Fields of an event, and the kinds of Arrow types that they may have.
FIELDS: dict[str, tuple[str, ...]] = {
    "op": ("string",),
    "id": ("string", "int"),
    "at": ("int", "float", "timestamp"),
    "edge_type": ("string",),
    "src": ("int", "string"),
    "dst": ("int", "string"),
    "time": ("int",),
    "weight": ("float", "int"),
    "attr": ("list",),
    "node_type": ("string",),
    "node": ("int", "string"),
    "features": ("list",),
}


def read_table(payload: bytes) -> Any:
    """The table of an IPC stream, checked through: what it says of its own bytes holds. Or why it is none.

    Raises: BadRequest: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
    except ModuleNotFoundError:
        raise BadRequest(
            "an Arrow message came; reading it needs: pip install 'hopline[parquet]'"
        ) from None
    try:
        with pa.ipc.open_stream(payload) as reader:
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError) as error:
        return f"not an Arrow IPC stream: {str(error)[:200]}"
    return table


def foreign_schema(table: Any, graph: GraphSchema) -> str:
    """Why a table's columns are not those of events of this graph; "" where they are."""
    names = table.schema.names
    own = _vector_names(graph)
    wrong = [f"{name} comes twice" for name in sorted(set(names)) if names.count(name) > 1]
    for field in table.schema:
        kinds = FIELDS.get(field.name)
        if kinds is None:
            if field.name not in own:
                wrong.append(f"{field.name} is nothing that the graph has")
            elif _kind(field.type) not in ("float", "int"):
                wrong.append(f"{field.name} is {field.type}, no number")
        elif _kind(field.type) not in (*kinds, "null"):
            wrong.append(f"{field.name} is {field.type}, not {' or '.join(kinds)}")
    if "op" not in names:
        wrong.append("op is missing")
    if not wrong:
        return ""
    has = ", ".join(f"{field.name}: {field.type}" for field in table.schema)
    return f"{'; '.join(wrong)}. The message has columns {has}; the graph takes {_wanted(graph)}"


class Table:
    """The events of tables of one schema, one after the other.

    Attributes:
        ops: int32 [n], positions in `OPS`; -1 for what is none.
    """

    def __init__(self, tables: Sequence[Any]) -> None:
        import pyarrow as pa

        table = tables[0] if len(tables) == 1 else pa.concat_tables(tables).unify_dictionaries()
        self._table = table.combine_chunks()
        self.ops = self.words("op", OPS)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def words(self, name: str, known: Sequence[str]) -> NDArray[np.int32]:
        """Positions in `known`, int32 [n]; -1 for other words, -2 where there is none."""
        import pyarrow.compute as pc

        column = self._column(name)
        if column is None:
            return np.full(len(self), -2, np.int32)
        if not _is_dictionary(column.type):
            column = column.dictionary_encode()
        place = {word: at for at, word in enumerate(known)}
        codes = np.array([place.get(word, -1) for word in column.dictionary.to_pylist()] + [-2], np.int32)
        indices = pc.fill_null(column.indices.cast("int32"), -1).to_numpy(zero_copy_only=False)
        found: NDArray[np.int32] = codes[indices]
        return found

    def strings(self, name: str) -> list[str]:
        """Values as text; "" where there is none."""
        column = self._column(name)
        if column is None:
            return [""] * len(self)
        if _is_dictionary(column.type):
            column = column.dictionary_decode()
        if _kind(column.type) == "int":
            return ["" if value is None else str(value) for value in column.to_pylist()]
        return [value or "" for value in column.to_pylist()]

    def times_ms(self) -> Column | None:
        """Event times as ms since 1970."""
        import pyarrow as pa

        column = self._column("at")
        if column is None:
            return None
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
        return _integers(column)

    def edge_rows(self, rows: IdArray, first: int, schema: EdgeTypeSchema, refusals: Refusals) -> EdgeRows:
        """Columns of the events of one edge type.

        Args:
            rows: of this table. first: number of the table's first event.
        """
        numbers = rows + first
        what = f"edge type {schema.key!r}: attr"
        time = self._column("time", rows)
        weight = self._column("weight", rows)
        remove = self.ops[rows] == OPS.index("remove_edge")
        attr = self._vectors(
            "attr", rows, numbers, schema.attr_dim, schema.attr_names, what, refusals, ~remove
        )
        return EdgeRows(
            numbers,
            self._ids("src", rows),
            self._ids("dst", rows),
            remove,
            None if time is None else _times(time, numbers, refusals),
            None if weight is None else _floats(weight),
            attr,
        )

    def node_rows(
        self, rows: IdArray, first: int, name: str, schema: NodeTypeSchema, refusals: Refusals
    ) -> NodeRows:
        """Columns of the events of one node type; as `edge_rows`."""
        numbers = rows + first
        what = f"node type {name!r}: features"
        about = np.ones(len(rows), np.bool_)
        features = self._vectors(
            "features", rows, numbers, schema.feature_dim, schema.feature_names, what, refusals, about
        )
        add = self.ops[rows] == OPS.index("add_node")
        return NodeRows(numbers, self._ids("node", rows), add, features)

    def _column(self, name: str, rows: IdArray | None = None) -> Any:
        """A column as one array, None where the table has none of it."""
        import pyarrow as pa

        if name not in self._table.schema.names:
            return None
        column = self._table.column(name)
        if pa.types.is_null(column.type):
            return None
        array = column.combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
        if rows is None or len(rows) == len(array):
            return array
        return array.take(pa.array(rows))

    def _ids(self, name: str, rows: IdArray) -> IdArray | list[Any]:
        column = self._column(name, rows)
        if column is None:
            return [None] * len(rows)
        if _is_dictionary(column.type):
            column = column.dictionary_decode()
        if _kind(column.type) == "string" or column.null_count or str(column.type) == "uint64":
            values: list[Any] = column.to_pylist()
            return values
        ints: IdArray = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        return ints

    def _vectors(
        self,
        name: str,
        rows: IdArray,
        numbers: IdArray,
        dim: int,
        names: tuple[str, ...],
        what: str,
        refusals: Refusals,
        about: NDArray[np.bool_],
    ) -> Column | None:
        """float32 [n, dim] of a list column, or of one column for each name."""
        column = self._column(name, rows)
        if column is not None:
            return _listed(column, numbers, dim, names, what, refusals, about)
        columns = [self._column(each, rows) for each in names]
        given = [each for each, found in zip(names, columns, strict=True) if found is not None]
        if not given:
            return None
        if len(given) < dim:
            missing = [each for each in names if each not in given]
            refusals.add_all(
                numbers[about],
                "bad_shape",
                f"{what} without {', '.join(missing[:12])}; all {dim} must be given",
            )
            return None
        parts = [_floats(found) for found in columns]
        values = np.stack([part.values for part in parts], axis=1)
        absent = np.stack([part.absent() for part in parts], axis=1)
        present: NDArray[np.bool_] = ~np.asarray(absent.all(axis=1))
        some = absent.any(axis=1) & present & about
        refusals.add_all(numbers[some], "bad_shape", f"{what}: some are null; all {dim} must be given")
        return Column(_float32(values), present)


def _listed(
    column: Any,
    numbers: IdArray,
    dim: int,
    names: tuple[str, ...],
    what: str,
    refusals: Refusals,
    about: NDArray[np.bool_],
) -> Column:
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)
    fits = lengths == dim
    for row in np.flatnonzero(~fits & (lengths >= 0) & about).tolist():
        refusals.add(
            int(numbers[row]),
            "schema_changed",
            f"{what} of {lengths[row]} numbers; the graph has {described(dim, names)}",
        )
    whole = column if fits.all() else column.filter(pa.array(fits))
    flat = _floats(whole.flatten()).values
    values = np.zeros((len(column), dim), np.float32)
    values[fits] = _float32(flat).reshape(int(fits.sum()), dim)
    present = np.asarray(lengths >= 0, np.bool_)
    return Column(values, None if present.all() else present)


def _times(column: Any, numbers: IdArray, refusals: Refusals) -> Column:
    """Edge times; refuses those that only fit into unsigned integers."""
    found = _integers(column)
    if str(column.type) == "uint64":  # above 2^63 - 1 they have become negative
        refusals.add_all(
            numbers[(found.values < 0) & ~found.absent()],
            "malformed",
            "time does not fit into a signed 64-bit integer",
        )
    return found


def _integers(column: Any) -> Column:
    present = None if not column.null_count else column.is_valid().to_numpy(zero_copy_only=False)
    if present is not None:
        column = column.fill_null(0)
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind == "f":
        values = np.nan_to_num(np.clip(values, -(2.0**62), 2.0**62))
    return Column(values.astype(np.int64, copy=False), present)


def _floats(column: Any) -> Column:
    """Nulls become NaN."""
    present = None if not column.null_count else column.is_valid().to_numpy(zero_copy_only=False)
    values = column.to_numpy(zero_copy_only=False)
    return Column(values if values.dtype.kind == "f" else values.astype(np.float64), present)


def _float32(values: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # too large becomes infinite, and is refused as such
        return values.astype(np.float32)


def _is_dictionary(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_dictionary(kind))


def _kind(kind: Any) -> str:
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind):
        return "string" if _kind(kind.value_type) == "string" else str(kind)
    if types.is_string(kind) or types.is_large_string(kind):
        return "string"
    if types.is_integer(kind):
        return "int"
    if types.is_floating(kind):
        return "float"
    if types.is_timestamp(kind):
        return "timestamp"
    if types.is_null(kind):
        return "null"
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return "list" if _kind(kind.value_type) in ("float", "int", "null") else str(kind)
    return str(kind)


def _vector_names(graph: GraphSchema) -> set[str]:
    nodes = [name for each in graph.node_types.values() for name in each.feature_names]
    return {*nodes, *(name for each in graph.edge_types.values() for name in each.attr_names)}


def _wanted(graph: GraphSchema) -> str:
    parts = [f"{name}: {'/'.join(kinds)}" for name, kinds in FIELDS.items()]
    for name, node in graph.node_types.items():
        if node.feature_dim:
            parts.append(f"features of {name!r}: {described(node.feature_dim, node.feature_names)}")
    for key, edge in graph.edge_types.items():
        if edge.attr_dim:
            parts.append(f"attr of {key!r}: {described(edge.attr_dim, edge.attr_names)}")
    return ", ".join(parts)
