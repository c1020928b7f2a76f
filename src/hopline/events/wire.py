"""Events as JSON: one, a list of them, or one a line.

Defines the format of events, independent of any graph.
"""

from __future__ import annotations

import codecs
import re
import threading
from collections.abc import Iterable, Sequence
from datetime import datetime
from types import NoneType
from typing import Annotated, Any, TypeAlias

import msgspec

from hopline.json_faults import syntax
from hopline.types import UNREADABLE

Vector: TypeAlias = list[float] | dict[str, float]


class _Event(msgspec.Struct, kw_only=True, gc=False, forbid_unknown_fields=True):
    id: str | int | None = None
    at: int | float | datetime | None = None


# Fields of type None are those that an operation does not take: null is absent, as in an Arrow column. The
# vector and columns are last, see `num_names`.


class Edge(_Event, kw_only=True, gc=False, forbid_unknown_fields=True):
    """An event of an edge."""

    src: int | str
    dst: int | str
    edge_type: str | None = None
    time: int | None = None
    node: None = None
    node_type: None = None
    features: None = None


class AddEdge(Edge, kw_only=True, tag_field="op", tag="add_edge", gc=False, forbid_unknown_fields=True):
    """Adds an edge from `src` to `dst`. Parallel edges are kept.

    Attributes:
        id: an event with the id of an earlier one changes nothing.
        at: time of the event, ms since 1970 or ISO 8601 text; for measuring freshness only.
        src, dst: ids of the nodes from and to which a message flows.
        edge_type: may be left out if the graph has one.
        time: of the edge, in the graph's unit; needed if the edge type has times.
        weight: needed if the edge type has weights.
        attr: a list in the schema's order or an object with its names; needed if the edge type has some.
        columns: for an edge type with columns, a value by name, as of nodes.
    """

    weight: float | None = None
    attr: Vector | None = None
    columns: dict[str, Any] | None = None


class RemoveEdge(
    Edge, kw_only=True, tag_field="op", tag="remove_edge", gc=False, forbid_unknown_fields=True
):
    """Removes all edges from `src` to `dst`, or with `time` those of that time.

    Attributes:
        id: an event with the id of an earlier one changes nothing.
        at: time of the event, ms since 1970 or ISO 8601 text; for measuring freshness only.
        src, dst: ids of the nodes from and to which a message flows.
        edge_type: may be left out if the graph has one.
        time: only edges of this time are removed.
    """

    weight: None = None
    attr: None = None
    columns: None = None


class Node(_Event, kw_only=True, gc=False, forbid_unknown_fields=True):
    """An event of a node."""

    node: int | str
    node_type: str | None = None
    src: None = None
    dst: None = None
    edge_type: None = None
    time: None = None
    weight: None = None
    attr: None = None


class NodeRow(Node, kw_only=True, gc=False, forbid_unknown_fields=True):
    """An event that has the row of a node."""

    time: int | None = None  # type: ignore[assignment]
    features: Vector | None = None
    columns: dict[str, Any] | None = None


class AddNode(NodeRow, tag_field="op", tag="add_node", gc=False, forbid_unknown_fields=True):
    """Adds a new node, without edges.

    Attributes:
        id: an event with the id of an earlier one changes nothing.
        at: time of the event, ms since 1970 or ISO 8601 text; for measuring freshness only.
        node: id of the node.
        node_type: may be left out if the graph has one.
        time: from which the row holds, in the graph's unit; needed if the node type has a history.
        features: all of them, as a list in the schema's order or an object with its names.
        columns: for a node type with columns, a value by name: a number, text, boolean, null, a list, or a
            time as ISO 8601 text.
    """


class SetFeatures(NodeRow, tag_field="op", tag="set_features", gc=False, forbid_unknown_fields=True):
    """Replaces all features, or all columns, of a node. Its attributes are those of `AddNode`."""

    __doc__ = (AddNode.__doc__ or "").replace("Adds a new node, without edges", __doc__.partition(".")[0])


class RemoveNode(Node, tag_field="op", tag="remove_node", gc=False, forbid_unknown_fields=True):
    """Removes a node with all its edges, in both directions and of all types.

    Attributes:
        id: an event with the id of an earlier one changes nothing.
        at: time of the event, ms since 1970 or ISO 8601 text; for measuring freshness only.
        node: id of the node. A later `add_node` with it adds a new node.
        node_type: may be left out if the graph has one.
    """

    features: None = None
    columns: None = None


Event: TypeAlias = AddEdge | RemoveEdge | AddNode | SetFeatures | RemoveNode
_KINDS = (AddEdge, RemoveEdge, AddNode, SetFeatures, RemoveNode)
#: Kinds of JSON bodies. Any list is one, because a bad event of a list is refused alone.
BODY = (*_KINDS, Annotated[list[Any], msgspec.Meta(description="A list of events.")])
#: The fields that each operation takes, without `op`.
FIELDS = {
    str(kind.__struct_config__.tag): tuple(
        each.name for each in msgspec.structs.fields(kind) if each.type is not NoneType
    )
    for kind in _KINDS
}
OPS = tuple(FIELDS)
#: Of all operations.
ALL_FIELDS = {"op"}.union(*FIELDS.values())

read_any = msgspec.json.Decoder(Event | list[Event]).decode
_read_events = msgspec.json.Decoder(list[Event]).decode
_read_event = msgspec.json.Decoder(Event).decode
_read_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_read_raw = msgspec.json.Decoder(msgspec.Raw).decode


#: Events of one payload.
MAX_EVENTS = 100_000


class TooMany(Exception):
    """A payload with more than `MAX_EVENTS` events."""

    def __init__(self) -> None:
        super().__init__(f"more than {MAX_EVENTS} events in one payload; at most {MAX_EVENTS} are allowed")


def read_list(texts: Sequence[bytes]) -> list[Event] | None:
    """All events; None if one of them is invalid."""
    try:
        return _read_events(b"[%b]" % b",".join(texts))
    except UNREADABLE:
        return None


def read_event(text: bytes) -> Event | str:
    """One event; or why it is invalid."""
    try:
        event: Event = _read_event(text)
    except UNREADABLE as error:
        return why(error, text)
    return event


def num_names(events: Iterable[Event]) -> int:
    """Number of names in events, including each event's `op`, and the names of its vector or columns."""
    count = 0
    for event in events:
        values = msgspec.structs.astuple(event)
        named = sum(len(each) for each in values[-2:] if type(each) is dict)
        count += 1 + len(values) - values.count(None) + named
    return count


def is_list(payload: bytes) -> bool:
    """True if a payload is a list, whose items `split` returns; else it may be lines."""
    return payload.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"["


def split(payload: bytes) -> Sequence[bytes] | str:
    """Split a message into the texts of its events, or say why not. A byte order mark is skipped.

    A list with invalid JSON is invalid as a whole; lines are split whatever they contain.

    Raises: TooMany: known before the message is split.
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
    """Any object; counted, but not stored."""

    def __post_init__(self) -> None:
        _items.left -= 1
        if _items.left < 0:
            raise TooMany


class _Items(threading.local):
    left = 0


_items = _Items()
_count = msgspec.json.Decoder(list[_Item]).decode


def _count_items(payload: bytes) -> None:
    """Check the length of a list against the limit, before its items are stored.

    Raises: TooMany. msgspec.MsgspecError: a list that may be too long has an item that is not an object.
    """
    if payload.count(b",") < MAX_EVENTS:
        return
    _items.left = MAX_EVENTS
    _count(payload)


def why(error: BaseException, payload: bytes) -> str:
    """Description of a payload's fault."""
    if isinstance(error, RecursionError):
        return "JSON is nested too deeply"
    if payload.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in payload[:2]:
        return "not an event: UTF-16 or UTF-32; send JSON as UTF-8"
    if not payload.strip():
        return "not an event: empty"
    text = syntax(error, payload)
    foreign = _FOREIGN_FIELD.match(text)
    if foreign:
        try:
            op = _read_op(payload).op
        except UNREADABLE as other:  # what follows the field is no JSON
            return f"not an event: {syntax(other, payload)}"
        if op in FIELDS:  # a repeated op may be another one here
            return foreign_field(op, foreign[1] if foreign[2] is None else foreign[2])
    if text.endswith(("at `$.op`", "required field `op`")):
        text += f"; known are {', '.join(OPS)}"
    return f"not an event: {text}"


def foreign_field(op: str, name: str) -> str:
    """Why an event is refused that has a field which its operation does not take."""
    why = f"not an event: {op} has no field {name[:60]!r}; its fields are {', '.join(FIELDS[op])}"
    if op == "remove_edge" and name in FIELDS["add_edge"]:
        why += ". It removes all edges from src to dst, or with time those of that time"
    return why


class _Op(msgspec.Struct):
    op: str


_read_op = msgspec.json.Decoder(_Op).decode
#: msgspec's messages for a field that no operation takes, and for one that this operation does not take.
_FOREIGN_FIELD = re.compile(
    r"Object contains unknown field `(.*)`|Expected `null`, got .* - at `\$\.(\w+)`", re.DOTALL
)
