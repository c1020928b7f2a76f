"""Rows of queries as Arrow tables.

PostgreSQL is read by its ADBC driver, a wheel with all that it needs. DuckDB downloads its extension for
PostgreSQL when it is first used, which a host without access to the internet cannot.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from hopline.errors import GraphError

#: Characters of a query in messages.
_SHOWN = 80
#: Seconds to some year beyond 9999. Drivers shift "infinity" by 30 years, beyond the end of 64 bits.
_LAST_S = 260_000_000_000
_KNOWN = "postgres://user@host/name, bolt://user@host or a DuckDB file (.duckdb, .db, .ddb)"
#: Reads the rows of a query, and ends the connection.
_Connection: TypeAlias = tuple[Callable[[str], pa.Table], Callable[[], None]]
#: Of the schema in which a query finds a table without a prefix.
_TABLES = """select table_name::text as name from information_schema.tables
where table_schema = current_schema() and table_type = 'BASE TABLE' order by 1"""


class Database:
    """A database that is read; all queries of PostgreSQL see one state of it.

    Args:
        address: `postgres://…` (a password also by PGPASSWORD or ~/.pgpass), `bolt://…` or `neo4j://…` (or
            by NEO4J_PASSWORD; queries are Cypher), or a DuckDB file, which is opened for reading. "" has no
            tables: queries read files, such as `from 'payments.parquet'`.

    Raises: GraphError: the address is of another kind, or the database cannot be reached.
    """

    def __init__(self, address: str = "") -> None:
        parts = urlsplit(address)
        self._name = f"{parts.scheme}://{parts.hostname or ''}{parts.path}" if parts.scheme else address
        is_file = not parts.scheme and re.search(r"^$|\.(duckdb|ddb|db)$", address)
        if not (connect := _duckdb if is_file else _SERVERS.get(parts.scheme.partition("+")[0])):
            raise GraphError(f"--database {self._name}: must be {_KNOWN}")
        self._read, self.close = self._tried(f"--database {self._name}", connect, address)

    def table(self, query: str) -> pa.Table:
        """The rows of a query, with types that `NodeFile` and `EdgeFile` read.

        Raises: GraphError: the query fails, or a column has an infinite time or money.
        """
        shown = f"sql:{query if len(query) <= _SHOWN else query[:_SHOWN] + '…'}"
        table = self._tried(shown, self._read, query)
        for at, field in enumerate(table.schema):
            table = table.set_column(at, field.name, _plain(field, table.column(at), shown))
        return table.replace_schema_metadata({"hopline.source": shown})

    def names(self) -> list[str]:
        """The names of all tables, in order. Raises: GraphError: there are none."""
        if self._name.startswith(("bolt", "neo4j")):
            raise GraphError(f"--database {self._name}: pass queries, NAME='sql:MATCH (n:Name) RETURN …'")
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


def _postgres(address: str) -> _Connection:
    """PostgreSQL, in one read-only transaction."""
    from adbc_driver_postgresql import dbapi

    connection = dbapi.connect(address)

    def read(query: str) -> pa.Table:
        with connection.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetch_arrow_table()

    with connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    return read, connection.close


def _duckdb(address: str) -> _Connection:
    """A DuckDB file, or none."""
    import duckdb

    connection = duckdb.connect(address or ":memory:", read_only=bool(address))

    def read(query: str) -> pa.Table:
        if (rows := connection.sql(query)) is None:
            raise ValueError("it returns no rows")
        return rows.to_arrow_table()

    return read, connection.close


def _bolt(address: str) -> _Connection:
    """Neo4j, Memgraph and other servers that answer Cypher over Bolt."""
    import neo4j

    parts, user = urlsplit(address), os.environ.get("NEO4J_USERNAME", "neo4j")
    password = unquote(parts.password or "") or os.environ.get("NEO4J_PASSWORD", "")
    auth = unquote(parts.username or user), password
    host, name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", parts.path.strip("/") or None

    def read(query: str) -> pa.Table:
        with neo4j.GraphDatabase.driver(host, auth=auth, max_transaction_retry_time=0) as driver:
            rows, _, names = driver.execute_query(query, database_=name, routing_="r")
        return pa.table({each: pa.array([_native(row[each]) for row in rows]) for each in names})

    read("RETURN 1 AS one")
    return read, lambda: None


def _native(value: Any) -> Any:
    """A value of Bolt as Python has it. Raises: ValueError: no column has such values."""
    if getattr(value, "nanosecond", 0) % 1000 or hasattr(value, "element_id"):
        raise ValueError(f"{value!r} is no value of a column; return properties, and times in microseconds")
    return value.to_native() if hasattr(value, "to_native") else value


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


_SERVERS = {"postgres": _postgres, "postgresql": _postgres, "bolt": _bolt, "neo4j": _bolt}
