"""Events as JSON: one, a list of them, or one a line.

Knows how events are written; nothing of any graph.
"""

from __future__ import annotations

import codecs
import threading
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TypeAlias

import msgspec

from hopline.types import UNREADABLE

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

read_any = msgspec.json.Decoder(Event | list[Event]).decode
_read_events = msgspec.json.Decoder(list[Event]).decode
_read_event = msgspec.json.Decoder(Event).decode
_read_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_read_raw = msgspec.json.Decoder(msgspec.Raw).decode


#: Events of one payload.
MAX_EVENTS = 100_000


class TooMany(Exception):
    """A payload with more events than are read at once."""

    def __init__(self) -> None:
        super().__init__(f"more than {MAX_EVENTS} events at once; at most {MAX_EVENTS} are taken")


def read_list(texts: Sequence[bytes]) -> list[Event] | None:
    """Events, all of them; None where one of them is none."""
    try:
        return _read_events(b"[%b]" % b",".join(texts))
    except UNREADABLE:
        return None


def read_event(text: bytes) -> Event | str:
    """One event; or why it is none."""
    try:
        event: Event = _read_event(text)
    except UNREADABLE as error:
        return why(error, text)
    return event


def num_names(events: Iterable[Event]) -> int:
    """Names that were read with events, each event's `op` and the names of its vector among them."""
    count = 0
    for event in events:
        values = msgspec.structs.astuple(event)
        vector = values[-1]
        count += 1 + len(values) - values.count(None) + (len(vector) if type(vector) is dict else 0)
    return count


def is_list(payload: bytes) -> bool:
    """Whether a payload is a list, of which `split` gives the items; else it may be lines."""
    return payload.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"["


def split(payload: bytes) -> Sequence[bytes] | str:
    """The texts of a message's events; or why it cannot be taken apart. A byte order mark is left out.

    A list is broken as a whole where its JSON is; lines are told apart whatever stands in them.

    Raises: TooMany: known before they are taken apart.
    """
    payload = payload.removeprefix(codecs.BOM_UTF8)
    try:
        if is_list(payload):
            _count_items(payload)
            return [bytes(raw) for raw in _read_list(payload)]
        try:
            _read_raw(payload)
        except UNREADABLE:
            if payload.count(b"\n") + payload.count(b"\r") > 2 * MAX_EVENTS:  # some may be empty
                raise TooMany from None
            lines = [line for line in payload.splitlines() if line.strip()]
            if len(lines) > MAX_EVENTS:
                raise TooMany from None
            if len(lines) < 2:
                raise
            return lines
    except UNREADABLE as error:
        return why(error, payload)
    return [payload]


class _Item(msgspec.Struct, gc=False):
    """Any object; counted, and not kept."""

    def __post_init__(self) -> None:
        _items.left -= 1
        if _items.left < 0:
            raise TooMany


class _Items(threading.local):
    left = 0


_items = _Items()
_count = msgspec.json.Decoder(list[_Item]).decode


def _count_items(payload: bytes) -> None:
    """Hold the length of a list against the limit, before its items are kept.

    Raises: TooMany. msgspec.MsgspecError: a list that may be too long has an item that is no object.
    """
    if payload.count(b",") < MAX_EVENTS:
        return
    _items.left = MAX_EVENTS
    _count(payload)


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
