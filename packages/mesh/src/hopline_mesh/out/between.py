"""The API between two intervals: events in, present deviations out. Knows JSON, and no URL paths."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import msgspec

from hopline.errors import BadRequest, ModelNotReady, RequestTooLarge
from hopline.transports.json_body import decode_body
from hopline_mesh.detect.kernels import ABSURD
from hopline_mesh.detect.live import Event, LiveState, replay
from hopline_mesh.schema import kind_of

#: Maximum number of events of one request, and of services of one response.
MAX_EVENTS = MAX_SERVICES = 1000
#: Intervals after the last use for which the state is kept up to date.
_INTERVALS_IN_USE = 40
#: Maximum number of recent events that are applied again to the state of a new interval.
_MAX_REPLAYED = 10_000
#: Events that are applied in one turn of the event loop.
_EVENTS_PER_TURN = 16


class Between:
    """Deviations between intervals, on the event loop: up to date while clients use them, then released.

    Args:
        make: creates the state of the newest interval; see `MeshDetector.live`.
        thread: the thread of the steps, on which it does.
        lock: held while the detector works, on any thread.
        clock: Unix seconds.

    Attributes:
        now: the state; None while no client uses it.
    """

    def __init__(
        self,
        make: Callable[[], LiveState],
        thread: Executor,
        lock: asyncio.Lock,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._make_state = make
        self._thread = thread
        self._lock = lock
        self._clock = clock
        self.now: LiveState | None = None
        self._left = 0
        self._events: deque[tuple[float, Event]] = deque(maxlen=_MAX_REPLAYED)

    async def state(self) -> LiveState:
        """Return the state; create it if it is missing.

        Raises:
            ModelNotReady: there is no verdict yet.
        """
        if self.now is None:
            async with self._lock:
                if self.now is None:
                    self.now = await self._make()
        self._left = _INTERVALS_IN_USE
        return self.now

    def take(self, event: Event) -> list[str]:
        """Apply an event to the state, which exists; it stays in effect until a later interval.

        Returns, raises: see `LiveState.take`.
        """
        assert self.now is not None
        touched = self.now.take(event)
        self._events.append((self._clock(), event))
        return touched

    async def renew(self) -> None:
        """Update the state to the newest interval. Call it with the lock held."""
        if self.now is None:
            return
        self._left -= 1
        if self._left < 0:
            self.now = None
            self._events.clear()
            return
        state = await self._make()
        while self._events and self._events[0][0] <= state.time_s:
            self._events.popleft()
        replay(state, [event for _, event in self._events])
        self.now = state

    async def _make(self) -> LiveState:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._make_state)


class Events(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request with events, oldest first."""

    events: list[Event]


_read = msgspec.json.Decoder(Events).decode


def read_events(body: bytes) -> list[Event]:
    """Parse the body of a request with events.

    Raises:
        BadRequest: the body is invalid.
    """
    return decode_body(body, _read, Events, example='{"events": [{"service": "…", "values": {…}}]}').events


async def take_events(between: Between | None, events: Sequence[Event]) -> dict[str, Any]:
    """Apply events; an invalid one is reported and does not affect the others.

    In a large mesh an event may take a millisecond, so the event loop gets a turn after every few events.

    Returns: the number of accepted events, the errors of the refused ones, the services whose deviations
        were computed again, and the time in microseconds.

    Raises:
        BadRequest: no events.
        RequestTooLarge: too many events.
        ModelNotReady: there is no verdict yet.
    """
    if not events:
        raise BadRequest("events: the list is empty; at least one event is needed")
    if len(events) > MAX_EVENTS:
        raise RequestTooLarge(f"{len(events)} events in one request; at most {MAX_EVENTS} are allowed")
    between = _started(between)
    state = await between.state()
    touched: dict[str, None] = {}
    refused = []
    taken_s = 0.0
    for number, event in enumerate(events):
        if number and number % _EVENTS_PER_TURN == 0:
            await asyncio.sleep(0)
        began = time.perf_counter()
        try:
            _check_sizes(event)
            touched.update(dict.fromkeys(between.take(event)))
        except BadRequest as error:
            refused.append({"event": number, "reason": str(error)})
        taken_s += time.perf_counter() - began
    return {
        "time_s": state.time_s,
        "accepted": len(events) - len(refused),
        "refused": refused,
        "touched": len(touched),
        "services": list(touched)[:MAX_SERVICES],
        "us": round(taken_s * 1e6),
    }


def _check_sizes(event: Event) -> None:
    """Refuse values that no deviation can be computed of; a share has its own limits.

    Raises:
        BadRequest: a value that is too large.
    """
    for column, value in event.values.items():
        if value is not None and value >= ABSURD and kind_of(column) != "share":
            whose = event.service or f"{event.caller} → {event.callee}"
            raise BadRequest(
                f"{column[:100]} of {whose[:200]!r} is {value:g}: too large; it must be below {ABSURD:g}"
            )


async def deviations(between: Between | None, services: Sequence[str]) -> dict[str, Any]:
    """Return deviations of the named services and their calls; without names, of the first services.

    Raises:
        BadRequest: too many services, or one that was not in the last interval.
        ModelNotReady: there is no verdict yet.
    """
    if len(services) > MAX_SERVICES:
        raise BadRequest(f"{len(services)} services in one request; at most {MAX_SERVICES} are allowed")
    state = await _started(between).state()
    return {
        "time_s": state.time_s,
        "services": [
            {"service": service, "deviations": state.deviations(service), "calls": state.calls(service)}
            for service in services or state.services[:MAX_SERVICES]
        ],
    }


def _started(between: Between | None) -> Between:
    if between is None:
        raise ModelNotReady("there are no deviations: the watch has not started", retry_after_s=15.0)
    return between
