"""Events as JSON: one, a list of them, or one a line.

Knows how events are written; nothing of any graph.
"""

from __future__ import annotations

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
        return why(error)
    return event


def split(payload: bytes) -> Sequence[bytes] | str:
    """The texts of a message's events; or why it cannot be taken apart.

    A list is broken as a whole where its JSON is; lines are told apart whatever stands in them.
    """
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
        return why(error)
    return [payload]


def why(error: BaseException) -> str:
    """What is wrong with a payload, in words."""
    if isinstance(error, RecursionError):
        return "JSON is nested too deeply"
    text = str(error)
    if text.endswith(("at `$.op`", "required field `op`")):
        text += f"; known are {', '.join(OPS)}"
    return f"not an event: {text}"
