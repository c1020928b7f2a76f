"""Events as JSON: one, a list of them, or one a line.

Knows how events are written; nothing of any graph.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from datetime import datetime
from typing import TypeAlias

import msgspec

Vector: TypeAlias = list[float] | dict[str, float]


class _Event(msgspec.Struct, kw_only=True, gc=False, forbid_unknown_fields=True):
    id: str | int | None = None
    at: int | float | datetime | None = None


class _Edge(_Event, kw_only=True, gc=False, forbid_unknown_fields=True):
    src: int | str
    dst: int | str
    edge_type: str | None = None
    time: int | None = None
    weight: float | None = None
    attr: Vector | None = None


class AddEdge(_Edge, tag_field="op", tag="add_edge", gc=False, forbid_unknown_fields=True):
    """An edge from `src` to `dst` is there from now on."""


class RemoveEdge(_Edge, tag_field="op", tag="remove_edge", gc=False, forbid_unknown_fields=True):
    """Edges from `src` to `dst` are gone: all, or those of `time`. Weight and attributes are not read."""


class _Node(_Event, kw_only=True, gc=False, forbid_unknown_fields=True):
    node: int | str
    node_type: str | None = None
    features: Vector | None = None


class AddNode(_Node, tag_field="op", tag="add_node", gc=False, forbid_unknown_fields=True):
    """A node that was not there."""


class SetFeatures(_Node, tag_field="op", tag="set_features", gc=False, forbid_unknown_fields=True):
    """A node's features are these from now on, all of them."""


Event: TypeAlias = AddEdge | RemoveEdge | AddNode | SetFeatures
OPS = ("add_edge", "remove_edge", "add_node", "set_features")
#: What reading a payload may raise: anything may come, deep nesting and broken UTF-8 as well.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

read_any = msgspec.json.Decoder(Event | list[Event]).decode
_read_event = msgspec.json.Decoder(Event).decode
_read_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_read_raw = msgspec.json.Decoder(msgspec.Raw).decode


def read_event(text: bytes) -> Event | str:
    """One event; or why it is none."""
    try:
        event: Event = _read_event(text)
    except UNREADABLE as error:
        return why(error, text)
    return event


_OF_EDGES, _OPTIONAL = ("src", "dst"), ("time", "weight", "attr", "features", "edge_type", "node_type")


def may_repeat(payloads: Sequence[bytes], events: Sequence[Event]) -> bool:
    """Whether some event may have a field twice, told by counting: yes may be wrong.

    Of `op` msgspec refuses a second one.

    Args:
        events: all that the payloads hold.
    """
    text = payloads[0] if len(payloads) == 1 else b"".join(payloads)
    has_nodes = text.count(b'"node"') > 0
    for name in (*_OF_EDGES, *(("node",) if has_nodes else ()), *_OPTIONAL):
        count = text.count(b'"%b"' % name.encode())
        if count == 0:
            continue
        given = len(events)
        if has_nodes or name in _OPTIONAL:
            given = sum(getattr(event, name, None) is not None for event in events)
        if count > given and count > given + _num_nulls(text, name.encode()):
            return True
    return False


def _num_nulls(text: bytes, name: bytes) -> int:
    return text.count(b'"%b":null' % name) + text.count(b'"%b": null' % name)


def split(payload: bytes) -> Sequence[bytes] | str:
    """The texts of a message's events; or why it cannot be taken apart. A byte order mark is left out.

    A list is broken as a whole where its JSON is; lines are told apart whatever stands in them.
    """
    payload = payload.removeprefix(codecs.BOM_UTF8)
    start = payload.lstrip()[:1]
    try:
        if start == b"[":
            return [bytes(raw) for raw in _read_list(payload)]
        try:
            _read_raw(payload)
        except UNREADABLE:
            lines = [line for line in payload.splitlines() if line.strip()]
            if len(lines) < 2:
                raise
            return lines
    except UNREADABLE as error:
        return why(error, payload)
    return [payload]


def why(error: BaseException, payload: bytes) -> str:
    """What is wrong with a payload, in words."""
    if isinstance(error, RecursionError):
        return "JSON is nested too deeply"
    if payload.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in payload[:2]:
        return "not an event: UTF-16 or UTF-32; JSON is sent as UTF-8"
    if not payload.strip():
        return "not an event: nothing at all"
    text = str(error)
    if "unknown field" in text:
        text += f"; fields of edges are {_fields(AddEdge)}, of nodes {_fields(AddNode)}"
    if text.endswith(("at `$.op`", "required field `op`")):
        text += f"; known are {', '.join(OPS)}"
    return f"not an event: {text}"


def _fields(kind: type[_Event]) -> str:
    return ", ".join(kind.__struct_fields__)
