"""What the clients say to a live graph, and what it answers: the JSON of `/v1/graph`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from hopline import errors
from hopline.client.wire import encode, number, plain
from hopline.types import UNREADABLE

EVENTS_PATH = "/v1/graph/events"
GRAPH_PATH = "/v1/graph"
AnswerT = TypeVar("AnswerT")


class RefusedEvent(msgspec.Struct, frozen=True):
    """An event that was not applied.

    Attributes:
        index: its place among those that were sent.
        id: its id, "" where it has none.
        code: such as "unknown_node"; docs/guides/live.md lists them.
        reason: what was wrong and what would be right.
    """

    index: int
    code: str
    reason: str
    id: str = ""


class EventsOutcome(msgspec.Struct, frozen=True):
    """What became of events: they are durable, and every worker of the host answers with them.

    Attributes:
        sequence: the version of the graph that has them.
        graph_version: the same, as answers name it.
        applied: how many changed the graph.
        duplicates: places of those whose id was seen before.
        refused: the others, the first 1,000 of them.
        num_refused: all of those; 0 where `refused` lists them all.
    """

    sequence: int
    graph_version: str
    applied: int
    duplicates: tuple[int, ...] = ()
    refused: tuple[RefusedEvent, ...] = ()
    num_refused: int = 0


class GraphState(msgspec.Struct, frozen=True):
    """A live graph.

    Attributes:
        graph_version, sequence: the newest version.
        age_ms: how long ago the graph had everything that had happened.
        nodes: node type -> how many. edges: edge type -> how many.
        writer: "up", or "away" where the worker that answered has no connection to it.
    """

    graph_version: str
    sequence: int
    age_ms: int
    nodes: dict[str, int]
    edges: dict[str, int]
    writer: str


def events_body(events: Iterable[Mapping[str, Any]] | bytes) -> tuple[msgspec.Raw, bool]:
    """The body of a request, and whether it may be sent twice: all events have ids.

    Args:
        events: objects; or bytes, which go as they are and may not be sent twice.
    Raises: BadRequest: a field is NaN, as a missing value of a data frame, or nothing that JSON has.
    """
    if isinstance(events, bytes):
        return msgspec.Raw(events), False
    listed = [
        {key: number(value, f"event {place}: {key}") for key, value in plain(event).items()}
        for place, event in enumerate(events)
    ]
    return msgspec.Raw(encode(listed)), all(each.get("id") is not None for each in listed)


def read_outcome(content: bytes) -> EventsOutcome:
    """The answer to events. Raises: HoplineError: it is none."""
    return _read(content, EventsOutcome)


def read_state(content: bytes) -> GraphState:
    """The answer about the graph. Raises: HoplineError: it is none."""
    return _read(content, GraphState)


def _read(content: bytes, kind: type[AnswerT]) -> AnswerT:
    try:
        return msgspec.json.decode(content, type=kind)
    except UNREADABLE as error:
        raise errors.HoplineError(f"the server's answer cannot be read: {error}") from None
