"""What is told between two intervals: events in, embeddings of now out. Knows JSON and nothing of paths."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from hopline.errors import BadRequest, ModelNotReady, RequestTooLarge
from hopline_mesh.event import Event
from hopline_mesh.tagae.live import LiveState

#: Events of one request, and services of one answer.
MAX_EVENTS = MAX_SERVICES = 1000
#: Events that are taken in one turn of the loop.
_IN_A_TURN = 16


class Between(Protocol):
    """Where embeddings of now come from; implemented by the watch."""

    @property
    def now(self) -> LiveState | None:
        """The state, where there is one."""

    async def state(self) -> LiveState:
        """The state, made where there is none.

        Raises:
            ModelNotReady: nothing was judged yet, or without a model.
        """

    def take(self, event: Event) -> list[str]:
        """Have the state that there is take an event; as `LiveState.take`."""


class Events(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request that tells events, oldest first."""

    events: list[Event]


_read = msgspec.json.Decoder(Events).decode


def read_events(body: bytes) -> list[Event]:
    """Raises: BadRequest: not such a body."""
    try:
        return _read(body).events
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f'a JSON object {{"events": […]}} is needed: {error}') from None


async def state_of(between: Between | None) -> LiveState:
    """The state, made where there is none.

    Raises:
        ModelNotReady: there is nothing to make it from.
    """
    if between is None:
        raise ModelNotReady("there are no embeddings: the watch has not begun", retry_after_s=15.0)
    return between.now or await between.state()


async def take_events(between: Between | None, events: Sequence[Event]) -> dict[str, Any]:
    """Take all events that can be taken; what cannot is told, and costs the others nothing.

    In a large mesh an event may take a millisecond: others on the event loop have turns between a few.

    Returns: how many were taken, what was wrong with the others, the services that they touched, and how
        many microseconds that took.

    Raises: BadRequest: there are none. RequestTooLarge: more than allowed. ModelNotReady: as `state_of`.
    """
    if not events:
        raise BadRequest("events: there are none; at least one is needed")
    if len(events) > MAX_EVENTS:
        raise RequestTooLarge(f"{len(events)} events in one request; at most {MAX_EVENTS} are allowed")
    state = await state_of(between)
    assert between is not None
    touched: dict[str, None] = {}
    refused = []
    taken_s = 0.0
    for begin in range(0, len(events), _IN_A_TURN):
        if begin:
            await asyncio.sleep(0)
        began = time.perf_counter()
        for number, event in enumerate(events[begin : begin + _IN_A_TURN], begin):
            try:
                touched.update(dict.fromkeys(between.take(event)))
            except BadRequest as error:
                refused.append({"event": number, "why": str(error)})
        taken_s += time.perf_counter() - began
    names = list(touched)
    return {
        "time_s": state.time_s,
        "taken": len(events) - len(refused),
        "refused": refused,
        "touched": len(names),
        "services": names[:MAX_SERVICES],
        "us": round(taken_s * 1e6),
    }


def embeddings(state: LiveState, services: Sequence[str]) -> dict[str, Any]:
    """Embeddings of now, of some services; of the first ones where none is named.

    Raises: BadRequest: one that was not in the last interval, or more than are told at once.
    """
    if len(services) > MAX_SERVICES:
        raise BadRequest(f"{len(services)} services are named; at most {MAX_SERVICES} are allowed")
    return {
        "time_s": state.time_s,
        "embeddings": [
            {
                "service": service,
                "embedding": [round(value, 6) for value in state.embedding(service).tolist()],
                "deviations": state.deviations(service),
            }
            for service in services or state.services[:MAX_SERVICES]
        ],
    }
