"""Requests to a live graph and its responses: the JSON of `/v1/graph`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from hopline.client.wire import encode, listed, plain
from hopline.types import RefusedEvent

EVENTS_PATH = "/v1/graph/events"
GRAPH_PATH = "/v1/graph"


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
