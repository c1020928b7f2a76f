"""Envelopes as Debezium writes them for PostgreSQL, from rows that a test has read from a real one."""

import base64
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _encoded(value, kind):
    """(value, schema) of one column; `kind` is the type in PostgreSQL."""
    if kind.startswith("numeric"):
        scale = int(kind.partition(",")[2].rstrip(")"))
        schema = {
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": str(scale)},
        }
        if value is not None:
            whole = int(Decimal(str(value)).scaleb(scale))
            value = base64.b64encode(
                whole.to_bytes(whole.bit_length() // 8 + 1, "big", signed=True)
            ).decode()
        return value, schema
    if kind == "timestamptz":
        return value and value.astimezone(UTC).isoformat().replace("+00:00", "Z"), {
            "type": "string", "name": "io.debezium.time.ZonedTimestamp",
        }  # fmt: skip
    if kind == "timestamp":
        micros = value and (value.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
        return micros, {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}
    if kind == "date":
        return value and (value - date(1970, 1, 1)).days, {"type": "int32", "name": "io.debezium.time.Date"}
    plain = {"bigint": "int64", "text": "string", "boolean": "boolean", "double": "double"}
    return value, {"type": plain[kind]}


def envelope(table, kinds, op, before, after, transaction, *, with_schema=True):
    """One message's value. `kinds`: column -> type in PostgreSQL."""

    def row(values):
        return None if values is None else {name: _encoded(values[name], kinds[name])[0] for name in kinds}

    payload = {
        "before": row(before), "after": row(after), "op": op, "ts_ms": 1_700_000_000_000,
        "source": {
            "version": "3.0.0.Final", "connector": "postgresql", "name": "shop", "schema": "public",
            "table": table, "txId": transaction % 2**32, "lsn": 24023128, "snapshot": "false",
        },
    }  # fmt: skip
    if not with_schema:
        return json.dumps(payload).encode()
    fields = [{"field": name, "optional": True, **_encoded(None, kind)[1]} for name, kind in kinds.items()]
    parts = [
        {"type": "struct", "fields": fields, "optional": True, "field": each}
        for each in ("before", "after")
    ]
    schema = {"type": "struct", "fields": parts, "optional": False, "name": f"shop.public.{table}.Envelope"}
    return json.dumps({"schema": schema, "payload": payload}).encode()


def key(values):
    """One message's key, without its schema."""
    return json.dumps(values)
