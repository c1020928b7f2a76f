"""The file of a graph's description: tables, keys, foreign keys, and roles of columns.

`docs/guides/graphs-from-files.md` has an example. This module reads the file, and builds by `NodeFile` and
`EdgeFile`. It knows no values of tables.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from hopline.errors import GraphError
from hopline.graph import EdgeFile, Graph, NodeFile
from hopline.graph.cells import FileTable, Missing, absent_cells, trimmed
from hopline.graph.files import open_table
from hopline.graph.schema import ColumnType
from hopline.graph.stored_columns import StoredColumns
from hopline.graph.tables import EdgeType
from hopline.graph.text_table import TextFormat
from hopline.graph.typed_columns import typed
from hopline.toml import TOMLDecodeError, parse_toml
from hopline.types import Progress, silent
from hopline_sql.database import query

_LOG = logging.getLogger("hopline.graph")
Role = Literal["feature", "label", "time", "weight", "id", "history", "left out"]


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One column.

    Attributes:
        role: a feature, a label, the time, the weight or the id of edges; or the times of a key's rows, of
            which there are several then ("history").
        type: as in `NodeTable.column_types`; "" detects it.
        size: numbers of a vector; 0 for those of the lists.
        values: of codes, those that are columns; () for those of the lists. Other codes are refused of
            the type "codes-only".
    """

    role: Role = "feature"
    type: ColumnType | Literal["", "vector", "codes", "codes-only"] = ""
    size: Annotated[int, msgspec.Meta(ge=0)] = 0
    values: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The type as `NodeTable.column_types` has it."""
        given = str(self.size or "") if self.type == "vector" else "|".join(self.values)
        return f"{self.type}={given}" if given else self.type

    @property
    def wrong(self) -> str:
        """The reason why it cannot be read; "" if it can."""
        if self.size and self.type != "vector":
            return 'size is of columns with type = "vector"'
        is_codes = self.type in ("codes", "codes-only")
        if self.values and not is_codes:
            return 'values are of columns with type = "codes" or "codes-only"'
        if (is_codes or self.type == "vector") and self.role not in ("feature", "left out"):
            return f"a list is a feature, not the {self.role}"
        if odd := next((each for each in self.values if "|" in each or not each.strip()), None):
            return f"{odd!r} among its values: a code is not empty and has no |, which separates codes"
        return ""


class ForeignKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column that names rows of a table, or of no table: then its values are the nodes.

    Attributes:
        relation: of the edges from the rows of a table with a key; "" means the name of the column.
        reverse: relation of the same edges in the other direction, a separate edge type; "" for none.
    """

    table: str
    relation: str = ""
    reverse: str = ""


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table.

    Attributes:
        file, query: where it is read. Files are relative to the description.
        key: column of the ids. Without one, rows are edges between two foreign keys.
        columns, foreign_keys: by the names of columns. A row without a foreign key has no edge of it.
        relation, reverse: the same for edges that rows without a key are; "" as `relation` means the name
            of the table.
        numbers: features are numbers (float32), not columns for preprocessing.
        time_unit: unit of integers in the column of times. since: as `NodeTable.history_since`.
        na, fill: as in `Missing`. round: as `NodeFile.rounded`.
        header, delimiter, encoding, comment: as in `TextFormat`.
        deletes: what a change feed does with a deleted row that is a node: the node is removed, or stays
            without the row's edges ("keep").
    """

    file: str = ""
    query: str = ""
    key: str = ""
    columns: dict[str, Column] = {}
    foreign_keys: dict[str, ForeignKey] = {}
    relation: str = ""
    reverse: str = ""
    numbers: bool = False
    time_unit: Literal["", "s", "ms", "us", "ns"] = ""
    since: int | str | None = None
    na: tuple[str, ...] = ()
    fill: float | dict[str, float] | None = None
    round: tuple[str, ...] = ()
    header: bool = True
    delimiter: str | None = None
    encoding: str = "utf-8"
    comment: str | None = None
    deletes: Literal["remove", "keep"] = "remove"

    def named(self, *roles: Role) -> list[str]:
        """The columns that have one of the roles."""
        return [name for name, column in self.columns.items() if column.role in roles]

    def one(self, role: Role) -> str | None:
        """The column that has a role, which no other one has."""
        return next(iter(self.named(role)), None)

    def kinds(self, *roles: Role) -> list[str]:
        """The same, as NAME:TYPE."""
        types = {name: self.columns[name].kind for name in self.named(*roles)}
        return [f"{name}:{kind}" if kind else name for name, kind in types.items()]

    @property
    def text(self) -> TextFormat:
        """The format of a text file."""
        return TextFormat(self.header, self.delimiter, self.encoding, self.comment)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tables: dict[str, Any]
    database: str = ""
    both_directions: bool = False


class Description:
    """A file of a graph's description, read and checked.

    Attributes:
        tables: name -> table. database: of the queries. both_directions: as in `Graph.from_parquet`.
    Raises: GraphError: the file cannot be read, or describes no graph.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            file = msgspec.convert(parse_toml(self.path.read_text(encoding="utf-8")), _File)
        except (OSError, ValueError, TOMLDecodeError) as error:
            raise GraphError(f"{self.path}: {error}") from None
        is_file = file.database and "://" not in file.database
        self.database = str(self.path.parent / file.database) if is_file else file.database
        self.both_directions = file.both_directions
        self.tables: dict[str, Table] = {}
        for name, table in file.tables.items():
            try:
                self.tables[name] = msgspec.convert(table, Table)
            except msgspec.ValidationError as error:
                raise GraphError(f"{self.path}: tables.{name}: {error}") from None
        for name, table in self.tables.items():
            if wrong := self._wrong(name, table):
                raise GraphError(f"{self.path}: tables.{name}: {wrong}")

    def graph(
        self, *, database: str = "", feature_dtype: str = "float32", progress: Progress = silent
    ) -> Graph:
        """Build the graph, in memory.

        Args:
            database: in place of that in the file. feature_dtype, progress: as in `Graph.from_edges`.
        Raises: GraphError: a table cannot be read, and how to correct it.
        """
        nodes, edges = self.files(database)
        if (address := database or self.database).startswith("postgres"):
            state = query("select pg_current_snapshot()::text as state", address).column(0)[0]
            _LOG.warning("the database was read at %s: a change feed continues with after=%s", state, state)
        graph = Graph.from_parquet(
            nodes,
            edges,
            feature_dtype=feature_dtype,
            both_directions=self.both_directions,
            progress=progress,
        )
        labelled = {
            name: dataclasses.replace(graph.nodes[name], labels=StoredColumns.of(labels))
            for name, file in nodes.items()
            if (labels := self._labels(name, file)) is not None
        }
        return Graph(graph.schema, {**graph.nodes, **labelled}, graph.edges)

    def _labels(self, name: str, file: NodeFile) -> Any:
        """The labels and times of a table's rows as a `pyarrow.Table`; None if it has none."""
        kinds = {
            each: self.tables[name].columns[each].type for each in self.tables[name].named("label", "time")
        }
        if not kinds:
            return None
        table = open_table(file.path, file.text, list(kinds), silent)
        if absent := [each for each in kinds if table.find(each) is None]:
            raise GraphError(f"{table.what}: no column {absent[0]!r}; there are {', '.join(table.names)}")
        table.load(list(kinds))
        return pa.table({each: typed(table, each, file.missing, kind) for each, kind in kinds.items()})

    def files(self, database: str = "") -> tuple[dict[str, NodeFile], dict[EdgeType, EdgeFile]]:
        """The sources of nodes and edges, as `Graph.from_parquet` takes them."""
        nodes: dict[str, NodeFile] = {}
        edges: dict[EdgeType, EdgeFile] = {}
        for name, table in self.tables.items():
            source = self.source(name, database)
            shared: dict[str, Any] = {"text": table.text, "missing": Missing(table.na, table.fill)}
            hidden = (*table.columns, *table.foreign_keys) if table.key else table.named("left out")
            if table.key:
                nodes[name] = NodeFile(
                    source,
                    table.key,
                    table.named("feature") if table.numbers else (),
                    columns=() if table.numbers else table.kinds("feature"),
                    rounded=table.round,
                    time_unit=table.time_unit if table.one("history") else "",
                    history=table.one("history"),
                    history_since=table.since,
                    **shared,
                )
            for edge_type, src, dst in self.edges(name):
                edges[edge_type] = EdgeFile(
                    _with_ends(source, (src, dst), table),
                    src,
                    dst,
                    table.named("feature") if table.numbers and not table.key else (),
                    table.one("time"),
                    table.one("weight"),
                    time_unit=table.time_unit,
                    columns=() if table.numbers or table.key else table.kinds("feature"),
                    exclude=hidden,
                    rounded=() if table.key else table.round,
                    id=table.one("id") if edge_type[1] != table.reverse else None,
                    **shared,
                )
        return nodes, edges

    def source(self, name: str, database: str = "") -> Any:
        """The file of a table, or the rows of its query."""
        table = self.tables[name]
        return (
            self.path.parent / table.file if table.file else query(table.query, database or self.database)
        )

    def edges(self, name: str) -> list[tuple[EdgeType, str, str]]:
        """The edge types that the rows of a table make, with the columns of their ends."""
        table = self.tables[name]
        named = table.foreign_keys.items()
        if table.key:
            found = [
                ((name, each.relation or column, each.table), table.key, column) for column, each in named
            ]
            back = [((each.table, each.reverse, name), column, table.key) for column, each in named]
        else:
            (src, one), (dst, other) = named
            found = [((one.table, table.relation or name, other.table), src, dst)]
            back = [((other.table, table.reverse, one.table), dst, src)]
        return found + [each for each in back if each[0][1]]

    def _wrong(self, name: str, table: Table) -> str:
        """The reason why a table cannot be built; "" if it can."""
        if bool(table.file) == bool(table.query):
            return 'give it one source: file = "accounts.csv", or query = "select * from accounts"'
        if not table.key and len(table.foreign_keys) != 2:
            count = len(table.foreign_keys)
            return (
                f"no key and {count} foreign keys: rows are nodes by a key, or edges between two of these"
            )
        if len(joins := [each for each, _, _ in self.edges(name)]) > len(set(joins)):
            return "two foreign keys make edges of one type; give each its own relation and reverse"
        if both := [name for name in table.foreign_keys if name in table.columns]:
            return f"{both[0]!r} is a foreign key, which has no role; name it once"
        for column, described in table.columns.items():
            if described.wrong:
                return f"{column!r}: {described.wrong}"
        if any(len(table.named(role)) > 1 for role in ("time", "weight", "id", "history")):
            return "one column is the time, one the weight, one the id, and one the history"
        if (history := table.one("history")) and (wrong := _not_of_history(table)):
            return f"{history!r} is a history: {wrong}"
        if table.since is not None and not history:
            return "since is of a table with a history"
        if table.key and (odd := table.one("weight") or table.one("id")):
            return f"{odd!r} is a weight or an id: only rows without a key are edges, which have these"
        if table.numbers and (odd := table.one("id")):
            return f"{odd!r} is an id, and edges with ids have columns: leave out numbers = true"
        if not table.key and (odd := next(iter(table.named("label")), None)):
            return f"{odd!r} is a label: rows without a key are edges, which have none; leave it out"
        for column, each in table.foreign_keys.items():
            if each.table in self.tables and not self.tables[each.table].key:
                return f"{column!r} names rows of {each.table!r}, which has no key"
            if (each.relation or each.reverse) and not table.key:
                return f"{column!r}: rows without a key have one relation; write it above foreign_keys"
        return ""


def _not_of_history(table: Table) -> str:
    """The reason why a table has no history; "" if it can."""
    if not table.key:
        return "rows without a key are edges, which have a time"
    if table.foreign_keys:
        return "its rows would make an edge each; keep foreign keys in a table with a row for each key"
    if odd := next(iter(table.named("label", "time")), None):
        return f"{odd!r} would belong to one of many rows of a key; keep it in another table"
    return ""


def _with_ends(source: Any, ends: tuple[str, str], table: Table) -> FileTable:
    """The rows of a table in which both ends of an edge are given."""
    missing = Missing(table.na, table.fill)
    every = open_table(source, table.text, ends, silent)
    found = copy.copy(every)
    rows: list[Any] = []

    def load(names: Sequence[str]) -> None:
        every.load(names)
        columns = [(name, trimmed(every, name, every.column(name))) for name in ends]
        absent = [absent_cells(every, column, missing).to_numpy() for _, column in columns]
        rows[:] = [np.flatnonzero(~(absent[0] | absent[1]))]
        found._columns = {name: column.take(rows[0]) for name, column in every._columns.items()}

    found.load = load  # type: ignore[method-assign]
    found.place = lambda row, name: every.place(int(rows[0][row]), name)  # type: ignore[method-assign]
    return found
