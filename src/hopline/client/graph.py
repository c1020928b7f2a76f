"""Requests to a live graph and its responses: the JSON of `/v1/graph`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from hopline.client.wire import encode, listed, plain
from hopline.errors import BadRequest
from hopline.types import ExternalId, RefusedEvent

#: Names that no part of a path can have.
_IN_NO_PATH = re.compile(r"|\.|\.\.|.*[/\\\x00-\x1f\x7f].*", re.DOTALL)
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


def node_path(node: ExternalId, node_type: str) -> str:
    """The path of a node. Raises: BadRequest: no integer or text, or an id that no path can have."""
    node = plain(node)
    if type(node) not in (int, str) or any(map(_IN_NO_PATH.fullmatch, (node_type, str(node)))):
        raise BadRequest(f"a path cannot name node {node!r} of type {node_type!r}; use send_events")
    return f"{GRAPH_PATH}/nodes/{quote(node_type, safe='')}/{quote(str(node), safe='')}"
