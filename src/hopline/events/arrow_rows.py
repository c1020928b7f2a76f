"""Events as an Arrow table: the fields of JSON events as columns, vectors as lists or column by column.

Needs pyarrow, which is imported with the first Arrow message. This file is long because vectors and columns
of nodes share the conversions of values.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.errors import BadRequest
from hopline.events import arrow_bounds, checks
from hopline.events.arrow_fields import refuse_vectors
from hopline.events.json_rows import Row, described, placed
from hopline.events.rows import Column, EdgeRows, NodeRows, Refusals
from hopline.events.wire import ALL_FIELDS, OPS
from hopline.graph.list_columns import Lists, lists_of
from hopline.graph.schema import ColumnSchema, ColumnType, EdgeTypeSchema, GraphSchema, NodeTypeSchema
from hopline.graph.stored_columns import cells_of
from hopline.types import AnyArray, IdArray

#: The first bytes of every Arrow IPC stream, and of no JSON.
MAGIC = b"\xff\xff\xff\xff"
#: Number of columns that a refusal names.
_SHOWN = 24
#: Values that become Python objects in one step: longer steps would block the event loop.
_SLICE = 4096
#: float64 holds all integers up to this.
_LARGE = 2**53
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

#: Type of a column -> kinds of Arrow types.
_KINDS: dict[ColumnType, tuple[str, ...]] = {
    "float": ("float", "int"),
    "integer": ("int", "float"),
    "boolean": ("bool",),
    "text": ("string",),
    "timestamp": ("timestamp", "string"),
}


def load() -> None:
    """Import pyarrow, if it is installed: inside a request, its import holds the loop for 10 to 70 ms."""
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("pyarrow.compute")


def read_table(payload: bytes, graph: GraphSchema) -> Any:
    """Read the table of an IPC stream and check that its metadata matches its bytes.

    Declared sizes are bounded before anything is built. Dictionaries get int32 indices, so that
    those of several batches and messages go together.

    Returns: the table; or a code and a reason why it cannot be read: `malformed`, `too_large`, or
        `schema_changed` if its columns are not those of events of this graph.
    Raises: BadRequest: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
    except ModuleNotFoundError:
        raise BadRequest("reading an Arrow message needs: pip install 'hopline[parquet]'") from None
    own = _named(graph)
    try:
        row_bytes = 4 * max((each.attr_dim for each in graph.edge_types.values()), default=0)
        arrow_bounds.check(payload, len(FIELDS) + len(own), row_bytes)
        with pa.ipc.open_stream(payload) as reader:
            foreign = _foreign_schema(reader.schema, graph, own)
            if foreign:
                return "schema_changed", foreign
            table = reader.read_all()
        table.validate(full=True)
    except arrow_bounds.TooMuch as error:
        return "too_large", f"an Arrow IPC stream that is too large: {error}"
    except (arrow_bounds.Malformed, pa.ArrowException, OSError, ValueError, KeyError, MemoryError) as error:
        return "malformed", f"not an Arrow IPC stream: {str(error)[:200]}"
    text, limit = _text_bytes(table, own), arrow_bounds.most_bytes(len(payload))
    if text > limit:
        return (
            "too_large",
            f"an Arrow IPC stream whose texts and ids have {text} bytes; the limit is {limit}",
        )
    return _with_wide_indices(table)


def some_rows(payload: bytes, rows: Sequence[int]) -> bytes:
    """An IPC stream of some rows of a stream that `read_table` has read."""
    return _stream(_chosen(payload, rows))


def each_row(payload: bytes, rows: Sequence[int]) -> list[bytes]:
    """As `some_rows`, a stream for each row."""
    table = _chosen(payload, rows)
    return [_stream(table.slice(at, 1)) for at in range(len(rows))]


def _chosen(payload: bytes, rows: Sequence[int]) -> Any:
    """Rows of a stream, without dictionaries, which each stream would contain completely."""
    import pyarrow as pa

    with pa.ipc.open_stream(payload) as reader:
        table = _with_wide_indices(reader.read_all()).combine_chunks()
    table = table.take(pa.array(rows, pa.int64()))
    for at, field in enumerate(table.schema):
        if _is_dictionary(field.type):  # others stay: a cast of lists of nulls to their own type fails
            table = table.set_column(at, field.name, table.column(at).cast(field.type.value_type))
    return table


def _stream(table: Any) -> bytes:
    import pyarrow as pa

    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def _text_bytes(table: Any, own: Collection[str]) -> int:
    """Bytes of ids and texts that are stored once in a dictionary and written for each row."""
    import pyarrow.compute as pc

    total = 0
    for name in {"id", "src", "dst", "node", *own}:
        if name in table.schema.names and _is_dictionary(table.schema.field(name).type):
            for chunk in table.column(name).chunks:
                lengths = pc.fill_null(pc.binary_length(chunk.dictionary), 0).to_numpy()
                indices = chunk.indices.drop_null().to_numpy()
                total += int(lengths[indices].sum(dtype=np.int64))
    return total


def _with_wide_indices(table: Any) -> Any:
    import pyarrow as pa

    for at, field in enumerate(table.schema):
        if _is_dictionary(field.type) and field.type.index_type != pa.int32():
            wide = pa.dictionary(pa.int32(), field.type.value_type)
            chunks = [
                pa.DictionaryArray.from_arrays(chunk.indices.cast(pa.int32()), chunk.dictionary)
                for chunk in table.column(at).chunks
            ]
            table = table.set_column(at, field.name, pa.chunked_array(chunks, wide))
    return table


def _foreign_schema(schema: Any, graph: GraphSchema, own: Mapping[str, tuple[str, ...]]) -> str:
    """Why columns are not those of events of this graph; "" if they are."""
    names = Counter(schema.names)
    wrong = [f"{name[:40]} is repeated" for name, count in names.items() if count > 1]
    for field in schema:
        kinds, name = FIELDS.get(field.name, own.get(field.name)), field.name[:40]
        if kinds is None:
            wrong.append(f"{name} is not in the graph")
        elif _kind(field.type) not in (*kinds, "null"):
            wrong.append(f"{name} is {_type_name(field)}, not {' or '.join(kinds)}")
    if "op" not in names:
        wrong.append("op is missing")
    if not wrong:
        return ""
    has = _some([f"{field.name[:40]}: {_type_name(field)}" for field in schema], ", ")
    return f"{_some(wrong, '; ')}. The message has columns {has}; the graph expects {_wanted(graph)}"


def _type_name(field: Any) -> str:
    return str(field.type)[:80]


def _some(texts: list[str], between: str) -> str:
    """The first of many texts."""
    more = f"{between}and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return between.join(texts[:_SHOWN]) + more


class Table:
    """The events of tables of one schema, in order.

    Attributes:
        ops: int32 [n], positions in `OPS`; -1 for unknown ones.
    """

    def __init__(self, tables: Sequence[Any]) -> None:
        import pyarrow as pa

        table = tables[0] if len(tables) == 1 else pa.concat_tables(tables).unify_dictionaries()
        self._table = table.combine_chunks()
        self.ops = self.words("op", OPS)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def words(self, name: str, known: Sequence[str]) -> NDArray[np.int32]:
        """Positions in `known`, int32 [n]; -1 for other words, -2 for missing ones."""
        import pyarrow.compute as pc

        column = self._column(name)
        if column is None:
            return np.full(len(self), -2, np.int32)
        if not _is_dictionary(column.type):
            column = column.dictionary_encode()
        place = {word: at for at, word in enumerate(known)}
        codes = np.array([place.get(word, -1) for word in _values(column.dictionary)] + [-2], np.int32)
        indices = pc.fill_null(column.indices.cast("int32"), -1).to_numpy(zero_copy_only=False)
        found: NDArray[np.int32] = codes[indices]
        return found

    def strings(self, name: str) -> list[str]:
        """Values as text; "" for missing ones."""
        column = self._column(name)
        if column is None:
            return [""] * len(self)
        return ["" if value is None else str(value) for value in _values(column)]

    @property
    def names(self) -> list[str]:
        """Of all columns."""
        found: list[str] = self._table.schema.names
        return found

    def given(self, name: str) -> NDArray[np.bool_] | None:
        """Rows that have a value: bool [n]; None if no row has one."""
        column = self._column(name)
        if column is None or column.null_count == len(column):
            return None
        found: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
        return found

    def times_ms(self) -> Column | None:
        """Event times as ms since 1970."""
        import pyarrow as pa

        column = self._column("at")
        if column is None:
            return None
        if not pa.types.is_timestamp(column.type):
            return _integers(column)
        # Converted here: a time zone may be invalid, and times too large for ms must stay too large.
        found = _integers(column.cast(pa.int64()))
        if column.type.unit == "s":
            return Column(np.clip(found.values, -(2**53), 2**53) * 1000, found.present)
        return Column(found.values // {"ms": 1, "us": 10**3, "ns": 10**6}[column.type.unit], found.present)

    def edge_rows(self, rows: IdArray, first: int, schema: EdgeTypeSchema, refusals: Refusals) -> EdgeRows:
        """Columns of the events of one edge type.

        Args:
            rows: of this table. first: number of the table's first event.
        """
        what = f"edge type {schema.key!r}"
        vectors = _Vectors("attr", schema.attr_dim, schema.attr_names, f"{what}: attr")
        vectors.if_missing = checks.no_attr(what, schema.attr_dim)
        adds = self.ops[rows] != OPS.index("remove_edge")
        self._refuse_others(vectors, rows[adds], first, refusals, self._own(schema.columns))
        rows, attr = self._vectors(vectors, rows, first, adds, refusals)
        adds = self.ops[rows] != OPS.index("remove_edge")
        self._refuse_without(rows[adds], first, what, schema.columns, refusals)
        cells, texts = self._read(rows, first, what, schema.columns, refusals)
        numbers = rows + first
        time = self._column("time", rows)
        weight = self._column("weight", rows)
        return EdgeRows(
            numbers,
            self.ids("src", rows),
            self.ids("dst", rows),
            self.ops[rows] == OPS.index("remove_edge"),
            None if time is None else _times(time, numbers, refusals),
            None if weight is None else _floats(weight),
            attr,
            cells,
            texts,
        )

    def node_rows(
        self, rows: IdArray, first: int, name: str, schema: NodeTypeSchema, refusals: Refusals
    ) -> NodeRows:
        """Columns of the events of one node type; as `edge_rows`."""
        what = f"node type {name!r}"
        vectors = _Vectors("features", schema.feature_dim, schema.feature_names, f"{what}: features")
        vectors.if_missing = checks.no_features(what, schema.feature_dim)
        self._refuse_others(vectors, rows, first, refusals, self._own(schema.columns))
        rows, features = self._vectors(vectors, rows, first, np.ones(len(rows), np.bool_), refusals)
        if self._refuse_without(rows, first, what, schema.columns, refusals):
            rows, features = rows[:0], None
        cells, texts = self._read(rows, first, what, schema.columns, refusals)
        add, time = self.ops[rows] == OPS.index("add_node"), self._column("time", rows)
        times = None if time is None else _times(time, rows + first, refusals)
        return NodeRows(rows + first, self.ids("node", rows), add, features, cells, texts, times)

    def _refuse_without(
        self, rows: IdArray, first: int, what: str, columns: Sequence[ColumnSchema], refusals: Refusals
    ) -> bool:
        """Refuse rows that need columns which the table lacks; False if it has all."""
        own = self._own(columns)
        lacks = [column.name for column in columns if column.name not in own]
        why = f"{what}: columns without {', '.join(lacks[:12])}; it has {checks.takes(columns)}"
        refusals.add_all(rows[: len(rows) * bool(lacks)] + first, "bad_shape", why)
        return bool(lacks)

    def _read(
        self, rows: IdArray, first: int, what: str, columns: Sequence[ColumnSchema], refusals: Refusals
    ) -> tuple[AnyArray | None, AnyArray | None]:
        lists = self._lists(columns)
        given = [self._column(name, rows) for name in lists]
        items = ([None] * len(rows) if each is None else _values(each) for each in given)
        sent: list[Row] = [dict(zip(lists, each, strict=True)) for each in zip(*items, strict=True)]
        placed(sent, lists, rows + first, what, refusals)
        listed = {*chain(*lists.values())}

        def read(column: ColumnSchema) -> tuple[AnyArray, dict[int, str]]:
            if column.name not in listed:
                return self._cells(column, rows)
            return cells_of(column.type, [row.get(column.name) for row in sent])

        return checks.cells(read, rows + first, columns, what, refusals)

    def _lists(self, columns: Sequence[ColumnSchema]) -> Lists:
        """Lists of the table -> the columns that it has them for."""
        lists, has = lists_of(column.name for column in columns), self.names
        return {name: each for name, each in lists.items() if name in has and each[0] not in has}

    def _own(self, columns: Sequence[ColumnSchema]) -> set[str]:
        """The names of the columns of a type that the table has, also as lists."""
        lists = self._lists(columns)
        return {*lists, *chain(*lists.values())} | {one.name for one in columns}.intersection(self.names)

    def _cells(self, column: ColumnSchema, rows: IdArray) -> tuple[AnyArray, dict[int, str]]:
        """A column as `cells_of`; times of Arrow as well."""
        import pyarrow as pa

        array = self._column(column.name, rows)
        if array is None:
            return cells_of(column.type, [None] * len(rows))
        if not pa.types.is_timestamp(array.type):
            is_float = pa.types.is_floating(array.type)  # NumPy's numbers know their precision
            return cells_of(column.type, list(array.to_numpy(False)) if is_float else _values(array))
        ticks = pa.compute.cast(array, pa.int64()).to_pylist()
        many, few = {"s": (10**6, 1), "ms": (1000, 1), "us": (1, 1), "ns": (1, 1000)}[array.type.unit]
        micros = [None if tick is None else tick * many // few for tick in ticks]
        wrong = {
            row: f"{tick} {array.type.unit} since 1970 is not stored exactly in microseconds"
            for row, (tick, micro) in enumerate(zip(ticks, micros, strict=True))
            if tick is not None and micro is not None and (float(micro) != micro or tick * many % few)
        }
        return np.array(micros, np.float64), wrong

    def _column(self, name: str, rows: IdArray | None = None) -> Any:
        """A column as one array, None if the table does not have it."""
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

    def ids(self, name: str, rows: IdArray) -> IdArray | list[Any]:
        """Ids of rows: int64 [n], or n values."""
        column = self._column(name, rows)
        if column is None:
            return [None] * len(rows)
        if _kind(column.type) == "string" or column.null_count or str(column.type) == "uint64":
            return _values(column)
        ints: IdArray = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        return ints

    def _refuse_others(
        self, wanted: _Vectors, rows: IdArray, first: int, refusals: Refusals, own: Collection[str] = ()
    ) -> None:
        others = [name for name in self.names if name not in ALL_FIELDS and name not in own]
        refuse_vectors(
            self, others, rows, first, wanted.name, wanted.names, wanted.dim, wanted.what, refusals
        )

    def _vectors(
        self, wanted: _Vectors, rows: IdArray, first: int, needed: NDArray[np.bool_], refusals: Refusals
    ) -> tuple[IdArray, Column | None]:
        """Numbers [n, dim] of a list column, or of one column for each name.

        Events with an invalid or a missing vector are refused and left out before vectors are built: a null
        would use as much memory as a vector.

        Returns: the remaining rows, and their vectors: zeros if none is needed.
        """
        column = self._column(wanted.name, rows)
        if column is None or (wanted.names and column.null_count == len(column)):
            lengths, flat = self._by_name(wanted, rows, first, needed, refusals)
        else:
            lengths, flat = _listed(column, wanted.dim)
            for length in np.unique(lengths[(lengths >= 0) & (lengths != wanted.dim) & needed]).tolist():
                refusals.add_all(
                    rows[(lengths == length) & needed] + first,
                    "schema_changed",
                    f"{wanted.what} of {length} numbers; the graph has "
                    f"{described(wanted.dim, wanted.names)}, in this order",
                )
        if not wanted.dim:
            return rows, None
        refusals.add_all(rows[(lengths == -1) & needed] + first, *wanted.if_missing)
        fits = lengths == wanted.dim
        kept = fits | ~needed
        values = np.zeros((int(kept.sum()), wanted.dim), flat.dtype)
        values[fits[kept]] = flat
        return rows[kept], Column(values)

    def _by_name(
        self, wanted: _Vectors, rows: IdArray, first: int, needed: NDArray[np.bool_], refusals: Refusals
    ) -> tuple[IdArray, AnyArray]:
        """As `_listed`, of one column for each name; -2 for vectors that are refused."""
        columns = [self._column(each, rows) for each in wanted.names]
        missing = [name for name, column in zip(wanted.names, columns, strict=True) if column is None]
        if missing or not columns:
            part = len(missing) < len(columns)
            if part:
                refusals.add_all(
                    rows[needed] + first,
                    "bad_shape",
                    f"{wanted.what} without {', '.join(missing[:12])}; all {wanted.dim} are required",
                )
            return np.full(len(rows), -2 if part else -1), np.empty((0, wanted.dim), np.float32)
        parts = [_floats(column) for column in columns]
        absent = np.stack([part.absent() for part in parts], axis=1)
        nothing, some = absent.all(axis=1), absent.any(axis=1)
        refusals.add_all(
            rows[some & ~nothing & needed] + first,
            "bad_shape",
            f"{wanted.what}: some are null; all {wanted.dim} are required",
        )
        lengths = np.where(nothing, -1, np.where(some, -2, wanted.dim))
        return lengths, np.stack([part.values[~some] for part in parts], axis=1)


@dataclass(slots=True)
class _Vectors:
    """The expected vectors of events of one type.

    Attributes:
        name: of the column. if_missing: code and reason for an event whose vector is missing.
    """

    name: str
    dim: int
    names: tuple[str, ...]
    what: str
    if_missing: tuple[str, str] = ("", "")


def _listed(column: Any, dim: int) -> tuple[IdArray, AnyArray]:
    """The lengths of lists, int64 [n], -1 for nulls; and numbers [m, dim] of those of length `dim`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)
    fits = lengths == dim
    whole = column if fits.all() else column.filter(pa.array(fits))
    flat = _floats(whole.flatten()).values
    return lengths.astype(np.int64), flat.reshape(int(fits.sum()), dim)


def _times(column: Any, numbers: IdArray, refusals: Refusals) -> Column:
    """Edge times; refuse those that only fit into unsigned integers."""
    found = _integers(column)
    if str(column.type) == "uint64":  # above 2^63 - 1 they are negative after the cast
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
    """Convert to float without loss; nulls become NaN."""
    present = None if not column.null_count else column.is_valid().to_numpy(zero_copy_only=False)
    if present is not None and _kind(column.type) == "int":
        column = column.fill_null(0)  # Arrow itself would make float64 of all
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind != "f":
        is_large = values.size and (values.max() > _LARGE or values.min() < -_LARGE)
        values = values.astype(np.longdouble if is_large else np.float64)
        if present is not None:
            values[~present] = np.nan
    return Column(values, present)


def _values(column: Any) -> list[Any]:
    """Values as Python objects; rows of a dictionary share objects."""
    if _is_dictionary(column.type):
        words = [*_values(column.dictionary), None]
        at = column.indices.fill_null(len(words) - 1).to_numpy().tolist()
        return [words[each] for each in at]
    found: list[Any] = []
    for begin in range(0, len(column), _SLICE):
        found += column.slice(begin, _SLICE).to_pylist()
    return found


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
        item = str(kind.value_type) if types.is_dictionary(kind.value_type) else _kind(kind.value_type)
        return {"float": "list", "int": "list", "null": "list", "string": "strings"}.get(item, str(kind))
    return str(kind)


def _named(graph: GraphSchema) -> dict[str, tuple[str, ...]]:
    """Numbers of vectors and columns by name, with the kinds of Arrow types that they may have."""
    vectors = [each.feature_names for each in graph.node_types.values()]
    vectors += [each.attr_names for each in graph.edge_types.values()]
    found: dict[str, tuple[str, ...]] = {name: ("float", "int") for names in vectors for name in names}
    own = [each.columns for each in graph.node_types.values()]
    own += [each.columns for each in graph.edge_types.values()]
    for columns in own:
        for column in columns:
            found[column.name] = (*found.get(column.name, ()), *_KINDS[column.type])
        for name in lists_of(column.name for column in columns):
            found[name] = (*found.get(name, ()), "list", "strings")
    return found


def _wanted(graph: GraphSchema) -> str:
    parts = [f"{name}: {'/'.join(kinds)}" for name, kinds in FIELDS.items()]
    for name, node in graph.node_types.items():
        if node.feature_dim:
            parts.append(f"features of {name!r}: {described(node.feature_dim, node.feature_names)}")
        if node.columns:
            parts.append(f"columns of {name!r}: {checks.takes(node.columns)}")
    for key, edge in graph.edge_types.items():
        if edge.attr_dim:
            parts.append(f"attr of {key!r}: {described(edge.attr_dim, edge.attr_names)}")
        if edge.columns:
            parts.append(f"columns of {key!r}: {checks.takes(edge.columns)}")
    return ", ".join(parts)
