"""Verdicts, incidents and graphs as JSON, and as keyword arguments of Protobuf messages.

Names come from the mesh. JSON may contain halves of surrogate pairs, which cannot be encoded: they are
replaced, not refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from hopline_mesh.out.links import links_of
from hopline_mesh.out.record import Record
from hopline_mesh.out.words import headline, name_of


def encode_json(value: Any) -> bytes:
    """Encode a value as JSON; NaN and infinite numbers become null."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_encodable(msgspec.to_builtins(value)))


def fields_of(value: Any) -> dict[str, Any]:
    """Return a struct, or a dictionary, as the keyword arguments of a message with the same fields."""
    fields = _encodable(msgspec.to_builtins(value))
    if "state" in fields:
        fields["state"] = f"STATE_{fields['state'].upper()}"
    return fields  # type: ignore[no-any-return]


def shown(record: Record, templates: Sequence[str], now_s: float) -> dict[str, Any]:
    """Return an incident for people: with its name, what happened, its mark, and links."""
    name = record.name or name_of(record.incident)
    return {
        **msgspec.to_builtins(record.incident),
        "name": name,
        "headline": headline(record.incident, name),
        "mark": record.mark,
        "links": links_of(record.incident, templates, now_s),
    }


def record_fields(record: Record) -> dict[str, Any]:
    """Return the keyword arguments of an `IncidentRecord`."""
    fields = fields_of(record)
    for series in fields["series"]:
        series["points"] = [
            {"time_s": time_s, "expected": expected, "seen": seen}
            for time_s, expected, seen in series["points"]
        ]
    return {"incident": fields["incident"], "series": fields["series"]}


def _encodable(value: Any) -> Any:
    """Return the value with text that can be encoded; plain values only."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {key: _encodable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(each) for each in value]
    return value
