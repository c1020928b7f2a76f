"""Answers that a client reads: whatever a server, or a proxy before it, may send."""

from __future__ import annotations

from functools import partial

from hopline.client import wire
from hopline.client.graph import EventsOutcome
from hopline.errors import HoplineError
from hopline.types import GraphState

_READERS = (
    wire.read_result,
    wire.read_json,
    partial(wire.read_json, kind=EventsOutcome),
    partial(wire.read_json, kind=GraphState),
)


def check(data: bytes) -> None:
    """Args: data: what the answer is of, and its body."""
    if not data:
        return
    kind, body = data[0] % (len(_READERS) + 1), data[1:]
    if kind == len(_READERS):
        assert isinstance(wire.read_error(400 + data[0], body), HoplineError)
        return
    try:
        _READERS[kind](body)
    except HoplineError:
        return
