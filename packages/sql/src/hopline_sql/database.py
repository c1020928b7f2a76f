"""Rows of queries as Arrow tables.

PostgreSQL is read by its ADBC driver, a wheel with all that it needs. DuckDB downloads its extension for
PostgreSQL when it is first used, which a host without access to the internet cannot.
"""

from __future__ import annotations

import functools
import re
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from hopline.errors import GraphError

#: Characters of a query in messages.
_SHOWN = 80
#: Seconds to some year beyond 9999. Drivers shift "infinity" by 30 years, beyond the end of 64 bits.
_LAST_S = 260_000_000_000
_KNOWN = "postgres://user@host/name, or a DuckDB file (.duckdb, .db, .ddb)"
#: Of the schema in which a query finds a table without a prefix.
_TABLES = """select table_name::text as name from information_schema.tables
where table_schema = current_schema() and table_type = 'BASE TABLE' order by 1"""


class Database:
    """A database that is read; all queries of PostgreSQL see one state of it.

    Args:
        address: `postgres://…` (a password also by PGPASSWORD or ~/.pgpass), or a DuckDB file, which is
            opened for reading. "" has no tables: queries read files, such as `from 'payments.parquet'`.

    Raises: GraphError: the address is of another kind, or the database cannot be reached.
    """

    def __init__(self, address: str = "") -> None:
        parts = urlsplit(address)
        self._name = f"{parts.scheme}://{parts.hostname or ''}{parts.path}" if parts.scheme else address
        if parts.scheme in ("postgres", "postgresql"):
            connect: Any = _Postgres
        elif not parts.scheme and (not address or re.search(r"\.(duckdb|ddb|db)$", address)):
            connect = _DuckDB
        else:
            raise GraphError(f"--database {self._name}: must be {_KNOWN}")
        self._connection: _Postgres | _DuckDB = self._tried(f"--database {self._name}", connect, address)

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def table(self, query: str) -> pa.Table:
        """The rows of a query, with types that `NodeFile` and `EdgeFile` read.

        Raises: GraphError: the query fails, or a column has an infinite time or money.
        """
        shown = f"sql:{query if len(query) <= _SHOWN else query[:_SHOWN] + '…'}"
        table = self._tried(shown, self._connection.read, query)
        for at, field in enumerate(table.schema):
            table = table.set_column(at, field.name, _plain(field, table.column(at), shown))
        return table.replace_schema_metadata({"hopline.source": shown})

    def names(self) -> list[str]:
        """The names of all tables, in order. Raises: GraphError: there are none."""
        found: list[str] = self.table(_TABLES).column("name").to_pylist()
        if not found:
            raise GraphError(f"--database {self._name}: no tables in its current schema; pass queries")
        return found

    def _tried(self, what: str, work: Any, text: str) -> Any:
        try:
            return work(text)
        except Exception as error:  # each driver has its own tree of errors
            raise GraphError(f"{what}: {str(error).strip() or type(error).__name__}") from None


@functools.cache
def opened(address: str) -> Database:
    """The database that this process reads at an address."""
    return Database(address)


def query(text: str, database: str = "") -> pa.Table:
    """The rows of a query; all queries of a process to one database see one state, see `Database`."""
    return opened(database).table(text)


class _Postgres:
    """PostgreSQL, in one read-only transaction."""

    def __init__(self, address: str) -> None:
        from adbc_driver_postgresql import dbapi

        self._connection = dbapi.connect(address)
        with self._connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")

    def read(self, query: str) -> pa.Table:
        with self._connection.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetch_arrow_table()

    def close(self) -> None:
        self._connection.close()


class _DuckDB:
    """A DuckDB file, or none."""

    def __init__(self, address: str) -> None:
        import duckdb

        self._connection = duckdb.connect(address or ":memory:", read_only=bool(address))

    def read(self, query: str) -> pa.Table:
        rows = self._connection.sql(query)
        if rows is None:
            raise ValueError("it returns no rows")
        return rows.to_arrow_table()

    def close(self) -> None:
        self._connection.close()


def _plain(field: pa.Field, column: pa.ChunkedArray, shown: str) -> pa.ChunkedArray:
    """A column in a type that files have, too.

    Raises: GraphError: the driver has other values for it than the database, or there is an infinite time.
    """
    kind, named = field.type, (field.metadata or {}).get(b"POSTGRESQL:type", b"")
    where = f"{shown}: column {field.name!r}"
    if named == b"money":  # the driver has it in hundredths, or whatever the locale says
        raise GraphError(f"{where} is money; write {field.name}::numeric")
    if isinstance(kind, pa.UuidType):
        return pa.chunked_array(
            [pa.array([each and str(each) for each in column.to_pylist()], pa.string())]
        )
    if isinstance(kind, pa.BaseExtensionType):
        column = column.cast(kind.storage_type)
    if named == b"numeric":  # as text
        column = column.cast(pa.float64())
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        per_s = (
            {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit] if pa.types.is_timestamp(kind) else 0
        )
        limit = min(_LAST_S * per_s, 2**63 - 2) if per_s else _LAST_S // 86_400
        ends = pc.min_max(column.cast(pa.int64() if per_s else pa.int32())).as_py()
        if None not in ends.values() and not -limit < ends["min"] <= ends["max"] < limit:
            raise GraphError(f"{where} has an infinite time, or one beyond the year 9999; make it null")
    return column
