"""Requests to a live graph and its responses: the JSON of `/v1/graph`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from hopline.client.wire import encode, listed, plain

EVENTS_PATH = "/v1/graph/events"
GRAPH_PATH = "/v1/graph"


class RefusedEvent(msgspec.Struct, frozen=True):
    """An event that was not applied.

    Attributes:
        index: position in the request.
        id: its id, "" without one.
        code: for example "unknown_node"; docs/guides/live.md lists all codes.
        reason: what was wrong and what would be right.
    """

    index: int
    code: str
    reason: str
    id: str = ""


class EventsOutcome(msgspec.Struct, frozen=True):
    """The result of applied events: they are durable, and every worker of the host uses them.

    Attributes:
        sequence: the version of the graph that includes them.
        graph_version: the same version, in the form of answers.
        applied: number of events that changed the graph.
        duplicates: positions of events whose id was applied before.
        refused: the other events, at most 1,000 of them.
        num_refused: number of refused events; 0 if `refused` lists all.
        accepted: number of events that were sent to the stream that the graph follows; `applied` and
            `sequence` are 0 then. Pass `graph_version` as `min_version` to read what was written.
    """

    sequence: int = 0
    graph_version: str = ""
    applied: int = 0
    duplicates: tuple[int, ...] = ()
    refused: tuple[RefusedEvent, ...] = ()
    num_refused: int = 0
    accepted: int = 0


class GraphState(msgspec.Struct, frozen=True):
    """The state of a live graph.

    Attributes:
        graph_version, sequence: the newest version.
        age_ms: age of the graph state, ms; None until the writer has answered for the first time.
        nodes: node type -> number. edges: edge type -> number.
        writer: "up", or "away" if the worker that answered has no connection to the writer.
    """

    graph_version: str
    sequence: int
    age_ms: int | None
    nodes: dict[str, int]
    edges: dict[str, int]
    writer: str


def events_body(events: Iterable[Mapping[str, Any]] | bytes) -> tuple[msgspec.Raw, bool]:
    """Encode the body of a request; also return True if it may be repeated (all events have ids).

    Args:
        events: objects; or bytes, which are sent unchanged and must not be repeated.
    Raises: BadRequest: not a list of events; as `encode`, such as a field that is NaN.
    """
    if isinstance(events, bytes):
        return msgspec.Raw(events), False
    rows = [plain(each) for each in listed(events, "events", "events")]
    has_ids = all(isinstance(each, dict) and each.get("id") is not None for each in rows)
    return msgspec.Raw(encode(rows, "events")), has_ids
