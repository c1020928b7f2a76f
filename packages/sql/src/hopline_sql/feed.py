"""A change feed: Debezium's JSON envelopes as events of a live graph, by the description of its tables.

    hopline stream --graph graph --from "debezium+kafka://broker:9092/shop?description=graph.toml"

The format is that of Debezium's PostgreSQL connector: `op` is c, u, d or r (a snapshot's read), `before`
and `after` are rows. With the schema part (`schemas.enable=true`), decimals and times have its types.
Without it, only values that can be read in one way are read. What cannot become the graph that a rebuild
from the database has is refused, as a dead letter.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

from hopline.brokers.base import Gap, Health, Message, Position, Source
from hopline.brokers.registry import Broker, open_source
from hopline.errors import BadRequest, ConfigError, GraphError
from hopline.graph.edge_times import UNITS
from hopline.graph.list_columns import list_of
from hopline.graph.schema import edge_key
from hopline.graph.stored_columns import cell_of
from hopline_sql.description import Description, Table

Row = Mapping[str, Any]

#: Names of Debezium's and Kafka Connect's types of times that are numbers -> nanoseconds of one.
_TIMES = {
    "io.debezium.time.Date": 86_400 * 10**9,
    "org.apache.kafka.connect.data.Date": 86_400 * 10**9,
    "io.debezium.time.Timestamp": 10**6,
    "org.apache.kafka.connect.data.Timestamp": 10**6,
    "io.debezium.time.MicroTimestamp": 10**3,
    "io.debezium.time.NanoTimestamp": 1,
}
_DECIMAL, _VARIABLE = "org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal"
_UNAVAILABLE = "__debezium_unavailable_value"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Transaction numbers of events have 32 bits, those of `pg_current_snapshot` 64.
_HALF = 2**31


class _Moment(int):
    """Nanoseconds since 1970."""


class ChangeFeed:
    """Translates envelopes.

    Args:
        description: of the tables; a table of the database is that of the same name, or of a query
            "select * from NAME".
        after: `pg_current_snapshot()` of the transaction that the graph was built in. Changes that it
            saw, and rows that a snapshot reads, are left out. "" takes all, for a graph without rows.
    Raises: GraphError: a table has a history, or times and no unit of them in the description; `after` is
        not a snapshot.
    """

    def __init__(self, description: Description, after: str = "") -> None:
        self._description = description
        self._tables: dict[str, str] = {}
        for name, table in description.tables.items():
            found = re.fullmatch(r'(?i)\s*select\s+\*\s+from\s+(?:\w+\.)?"?(\w+)"?\s*;?\s*', table.query)
            self._tables[found[1] if found else name] = name
            if table.one("history"):
                raise GraphError(f"tables.{name} has a history, and a feed does not keep one: send events")
            if table.one("time") and not table.time_unit:
                raise GraphError(f"tables.{name}: a feed needs time_unit, which the edges' times have")
        units = [table.time_unit for table in description.tables.values() if table.time_unit]
        self._unit = max(units, key=UNITS.index, default="s")
        self._seen = _snapshot(after) if after else None

    def events(self, value: bytes, key: str = "") -> list[dict[str, Any]]:
        """The events of one message; none for a tombstone, a heartbeat, and other tables.

        Args:
            key: of the message, which names the columns of the primary key.
        Raises: GraphError: it is no envelope, or the change cannot be made as in the database.
        """
        if value in (b"", b"null"):
            return []
        try:
            message = msgspec.json.decode(value, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise GraphError(f"not JSON: {error}") from None
        schema, envelope = message.get("schema"), message.get("payload", message)
        if not isinstance(envelope, dict) or not isinstance(envelope.get("source"), dict):
            if isinstance(envelope, dict) and "ts_ms" in envelope and "op" not in envelope:
                return []  # a heartbeat, or the begin or end of a transaction
            raise GraphError("not an envelope of Debezium, with op, source, before and after")
        source, op = envelope["source"], envelope.get("op")
        if op == "m" or (name := self._tables.get(str(source.get("table")))) is None:
            return []
        if op not in ("c", "r", "u", "d"):
            raise GraphError(f"{name}: op {op!r} is not c, r, u or d; build the graph again")
        if self._seen and (op == "r" or self._seen(source.get("txId"))):
            return []
        rows = _Rows(name, self._description, self._unit, schema, envelope)
        if op in ("c", "r"):
            return rows.added()
        if not self._description.tables[name].key:
            rows.check_unique(key)
        return rows.changed() if op == "u" else rows.removed()


class _Rows:
    """The rows of one envelope, and the events that they make."""

    def __init__(
        self, name: str, description: Description, unit: str, schema: Any, envelope: Mapping[str, Any]
    ) -> None:
        self._name, self._unit = name, unit
        self._table: Table = description.tables[name]
        self._edge_types = description.edges(name)
        self._before, self._after = envelope.get("before"), envelope.get("after")
        parts = {each.get("field"): each for each in (schema or {}).get("fields", ())}
        part = parts.get("after") or parts.get("before") or {}
        self._fields = {each["field"]: each for each in part.get("fields", ())}
        self._has_schema = bool(self._fields)

    def added(self) -> list[dict[str, Any]]:
        """The events of an inserted row."""
        row = self._given(self._after, "after")
        nodes = [{"op": "add_node", **self._node(row)}] if self._table.key else []
        return nodes + self._edges(row)

    def changed(self) -> list[dict[str, Any]]:
        """The events of an updated row: its features, and the edges that differ."""
        row = self._given(self._after, "after")
        found = []
        if self._table.key and self._table.named("feature"):
            found.append({"op": "set_features", **self._node(row)})
        if self._edge_types:
            old = self._old()
            if self._table.key and self._id(old, self._table.key) != self._id(row, self._table.key):
                raise GraphError(f"{self._name}: an update changed the key {self._table.key!r}")
            before, after = self._edges(old), self._edges(row)
            found += [_removal(each) for each in before if each not in after]
            found += [each for each in after if each not in before]
        return found

    def removed(self) -> list[dict[str, Any]]:
        """The events of a deleted row."""
        if self._table.key and self._table.deletes == "remove":
            row = self._given(self._before, "before")
            return [{"op": "remove_node", "node_type": self._name, "node": self._id(row, self._table.key)}]
        return [_removal(each) for each in self._edges(self._old())]

    def check_unique(self, key: str) -> None:
        """Refuse a change of an edge that may be one of several between its ends."""
        try:
            named = msgspec.json.decode(key or "null")
        except msgspec.MsgspecError:
            named = None
        columns = set(named.get("payload", named) or ()) if isinstance(named, dict) else set()
        ends = {*self._table.foreign_keys, self._table.one("time")}
        if not columns or not columns <= ends:
            raise GraphError(
                f"{self._name}: its primary key ({', '.join(sorted(columns)) or 'unknown'}) is not of its "
                "foreign keys: several rows may join two nodes, and one cannot be removed alone; name "
                "the key in the description, so that rows are nodes"
            )

    def _given(self, row: Any, what: str) -> Row:
        if not isinstance(row, dict):
            raise GraphError(f"{self._name}: no {what}")
        return row

    def _old(self) -> Row:
        """The row before. With another replica identity, all but the key is null or a type's default."""
        key = self._table.key
        row = self._given(self._before, f"before; alter table {self._name} replica identity full")
        others = [value for name, value in row.items() if name != key]
        if (self._edge_types or not key) and not any(
            value not in (None, 0, "", False, "AA==") for value in others
        ):
            raise GraphError(
                f"{self._name}: before has only the key: alter table {self._name} replica identity full"
            )
        return row

    def _node(self, row: Row) -> dict[str, Any]:
        event = {"node_type": self._name, "node": self._id(row, self._table.key)}
        return event | self._features(row, "features")

    def _features(self, row: Row, numbers: str) -> dict[str, Any]:
        names = self._table.named("feature")
        if not names:
            return {}
        if not self._table.numbers:
            return {"columns": {name: self._cell(row, name) for name in names}}
        return {numbers: {name: self._number(row, name) for name in names}}

    def _edges(self, row: Row) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for edge_type, src, dst in self._edge_types:
            ends = self._id(row, src), self._id(row, dst)
            if None in ends:
                continue
            event = {"op": "add_edge", "edge_type": edge_key(*edge_type), "src": ends[0], "dst": ends[1]}
            if time := self._table.one("time"):
                event["time"] = self._time(row, time)
            if weight := self._table.one("weight"):
                event["weight"] = self._number(row, weight)
            event |= {} if self._table.key else self._features(row, "attr")
            if (name := self._table.one("id")) and edge_type[1] != self._table.reverse:
                event["columns"] = {**event.get("columns", {}), name: str(self._id(row, name))}
            found.append(event)
        return found

    def _value(self, row: Row, name: str) -> Any:
        """A value with its type in the database: `_Moment`, `Decimal`, or as JSON has it."""
        if name not in row:
            raise GraphError(f"{self._name}: no column {name!r} in the envelope; it has {', '.join(row)}")
        value, field = row[name], self._fields.get(name, {})
        if value is None:
            return None
        kind = field.get("name", "")
        if value == _UNAVAILABLE:
            raise GraphError(
                f"{self._name}: {name!r} did not change and is not in the envelope: "
                f"alter table {self._name} replica identity full"
            )
        if kind in _TIMES:
            return _Moment(value * _TIMES[kind])
        if kind == _DECIMAL:
            return _decimal(value, int(field["parameters"]["scale"]))
        if kind == _VARIABLE:
            return _decimal(value["value"], int(value["scale"]))
        if isinstance(value, dict):
            raise GraphError(f"{self._name}: {name!r} is {kind or 'a structure'}, which no column holds")
        return value

    def _id(self, row: Row, name: str) -> Any:
        value = self._value(row, name)
        if isinstance(value, Decimal) and value == int(value):
            return int(value)
        if isinstance(value, float | _Moment | Decimal | list):
            raise GraphError(f"{self._name}: {name!r} is {value}, which is not an id")
        return value

    def _cell(self, row: Row, name: str) -> Any:
        """A value as an event's column of the described type has it."""
        value, kind = self._value(row, name), self._table.columns[name].type
        if value is None:
            return None
        if isinstance(value, Decimal):
            return str(value) if kind == "text" else float(value)
        if isinstance(value, _Moment):
            return self._iso(value, name)
        if kind.startswith("codes") and isinstance(value, str):  # as in a column of texts
            return list_of(value)
        if kind == "text" and not isinstance(value, str):
            return str(value).lower() if isinstance(value, bool) else str(value)
        if kind == "timestamp" and not isinstance(value, str):
            raise GraphError(f"{self._name}: {name!r} is a number without a unit: {self._enable('time')}")
        if kind in ("float", "integer") and isinstance(value, str):
            if not self._has_schema:  # digits may be base64
                raise GraphError(
                    f"{self._name}: {name!r} is a text without its type: {self._enable('decimal')}"
                )
            return float(value)
        return value

    def _enable(self, what: str) -> str:
        mode = "decimal.handling.mode=double" if what == "decimal" else "time.precision.mode=isostring"
        return f"set schemas.enable=true, or {mode}"

    def _number(self, row: Row, name: str) -> float:
        value = self._cell(row, name)
        if value is None:
            fill = self._table.fill
            value = fill.get(name) if isinstance(fill, dict) else fill
        if not isinstance(value, int | float):
            raise GraphError(f"{self._name}: {name!r} is {value!r} in place of a number")
        return float(value)

    def _iso(self, value: int, name: str) -> str:
        micros, rest = divmod(value, 1000)
        try:
            if rest:
                raise OverflowError
            return (_EPOCH + timedelta(microseconds=micros)).isoformat()
        except OverflowError:
            raise GraphError(
                f"{self._name}: {name!r} is finer than microseconds, or beyond the year 9999"
            ) from None

    def _time(self, row: Row, name: str) -> int:
        """The time of edges, in the graph's unit."""
        value = self._value(row, name)
        if value is None:
            raise GraphError(f"{self._name}: {name!r} is null, and its edges have times")
        per = 1000 ** (3 - UNITS.index(self._unit))
        if isinstance(value, str):
            try:
                value = _Moment(1000 * cell_of("timestamp", value))
            except ValueError as error:
                raise GraphError(f"{self._name}: {name!r}: {error}") from None
        elif not isinstance(value, _Moment):
            if self._table.columns[name].type == "timestamp":
                raise GraphError(
                    f"{self._name}: {name!r} is a number without a unit: {self._enable('time')}"
                )
            value = _Moment(int(value) * 1000 ** (3 - UNITS.index(self._table.time_unit)))
        if value % per:
            raise GraphError(f"{self._name}: {name!r} is finer than time_unit = {self._unit!r}")
        time: int = value // per
        return time


def _removal(edge: Mapping[str, Any]) -> dict[str, Any]:
    """The removal of an edge; by its time where rows are edges, as there may be others between its ends."""
    kept = {name: edge[name] for name in ("edge_type", "src", "dst", "time") if name in edge}
    return {"op": "remove_edge", **kept}


def _decimal(text: str, scale: int) -> Decimal:
    return Decimal(int.from_bytes(base64.b64decode(text), "big", signed=True)).scaleb(-scale)


def _snapshot(text: str) -> Any:
    """A function: transaction -> True if a snapshot "xmin:xmax:xip" of PostgreSQL saw it."""
    found = re.fullmatch(r"(\d+):(\d+):([\d,]*)", text)
    if not found:
        raise GraphError(
            f"after={text}: not a snapshot of PostgreSQL, as pg_current_snapshot() is: 730:735:731"
        )
    first, end = int(found[1]), int(found[2])
    running = {int(each) for each in found[3].split(",") if each}

    def seen(number: Any) -> bool:
        if not isinstance(number, int):
            raise GraphError("source.txId is missing, which after= needs")
        whole = end + (number - end + _HALF) % (2 * _HALF) - _HALF
        return whole < first or (whole < end and whole not in running)

    return seen


class FeedSource(Source):
    """A broker's topic of envelopes, read as events; see `Source`.

    Args:
        text: debezium+ before a broker's address, which has the option `description`, and may have `after`.
    """

    def __init__(self, text: str, setting: str) -> None:
        address, _, query = text.partition("?")
        options = dict(parse_qsl(query))
        path, after = options.pop("description", ""), options.pop("after", "")
        if not path:
            raise ConfigError(f"{setting}: a change feed needs description=graph.toml")
        try:
            self._feed = ChangeFeed(Description(path), after)
        except GraphError as error:
            raise ConfigError(f"{setting}: {error}") from None
        address = address[len("debezium+") :]
        self._source = open_source(f"{address}?{urlencode(options)}" if options else address, setting)

    async def open(self, positions: Mapping[str, Position]) -> None:
        """As `Source.open`."""
        await self._source.open(positions)

    async def poll(self, max_messages: int, max_wait_s: float) -> list[Message]:
        """As `Source.poll`; a message that cannot be events has its problem."""
        return [self._translated(each) for each in await self._source.poll(max_messages, max_wait_s)]

    def _translated(self, message: Message) -> Message:
        if message.problem:
            return message
        try:
            events = self._feed.events(message.payload, message.key)
        except (GraphError, BadRequest) as error:
            return msgspec.structs.replace(message, problem=str(error))
        except (ArithmeticError, KeyError, TypeError, ValueError) as error:
            return msgspec.structs.replace(message, problem=f"not as Debezium writes it: {error!r}")
        return msgspec.structs.replace(message, payload=msgspec.json.encode(events))

    async def acknowledge(self, positions: Mapping[str, Position]) -> None:
        """As `Source.acknowledge`."""
        await self._source.acknowledge(positions)

    async def lag(self) -> dict[str, int]:
        """As `Source.lag`."""
        return await self._source.lag()

    def health(self) -> Health:
        """As `Source.health`."""
        return self._source.health()

    def take_gaps(self) -> list[Gap]:
        """As `Source.take_gaps`."""
        return self._source.take_gaps()

    def is_first(self, position: Position) -> bool:
        """As `Source.is_first`."""
        return self._source.is_first(position)

    async def close(self) -> None:
        """As `Source.close`."""
        await self._source.close()


#: A feed is only read.
DEBEZIUM = Broker("hopline_sql.feed:FeedSource", "", "", "")
