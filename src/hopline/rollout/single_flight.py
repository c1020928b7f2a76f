"""Equal requests that are under way at once are computed once; each still has a life of its own.

The first one, the *leader*, is handed on; the others wait for its answer. Whoever cancels or runs out of
time leaves alone. What happens to the leader for its own sake (its deadline, being refused) is not
the others' fate: the most urgent of them is handed on in its place.

Knows nothing of what is computed. Everything runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from hopline.errors import DeadlineExceeded, HoplineError, Overloaded
from hopline.types import Deliver, ScoreRequest, ScoreResult, Ticket

log = logging.getLogger(__name__)

_RANKS = {"high": 0, "normal": 1, "low": 2}
#: Outcomes that are the leader's own.
_OWN = (DeadlineExceeded, Overloaded)


class Waiter:
    """A request under way; to its sender, a `Ticket`."""

    __slots__ = ("began", "deadline", "deliver", "flight", "has_ended", "request", "timer")

    def __init__(
        self, flight: Flight, request: ScoreRequest, deliver: Deliver, began: float, deadline: float
    ) -> None:
        self.flight = flight
        self.request = request
        self.deliver = deliver
        self.began = began
        self.deadline = deadline
        self.has_ended = False
        self.timer: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        """Withdraw the request; the others of its flight go on."""
        if self.end():
            self.flight.left(self)

    def end(self) -> bool:
        """Whether this is its end."""
        if self.has_ended:
            return False
        self.has_ended = True
        if self.timer is not None:
            self.timer.cancel()
        return True


class Flight:
    """One computation and who waits for it.

    Attributes:
        key: of its content.
        began: when the leader was handed on.
        deadline: the leader's.
        rank: the leader's urgency, 0 the most.
    """

    __slots__ = ("began", "deadline", "key", "leader", "num_waiting", "rank", "ticket", "waiters", "within")

    def __init__(self, within: SingleFlight, key: bytes, rank: int, began: float, deadline: float) -> None:
        self.within = within
        self.key = key
        self.rank = rank
        self.began = began
        self.deadline = deadline
        self.waiters: list[Waiter] = []
        self.num_waiting = 0
        self.leader: Waiter | None = None
        self.ticket: Ticket | None = None

    def land(self, outcome: Any) -> None:
        """Take the leader's outcome."""
        self.within.landed(self, outcome)

    def left(self, waiter: Waiter) -> None:
        """A waiter went by itself."""
        self.within.left(self, waiter)


class SingleFlight:
    """Args:
    submit: hands a request on; refusals are raised.
    timeout_s: of requests that name no deadline.
    landed: is called with (key, answer, when it was begun) of each flight, after everybody has it.
    ended: is called with (request, its outcome or None where it was cancelled, seconds waited) of those
        who were not handed on: whoever is knows them already.
    clock: seconds, monotonic.
    """

    def __init__(
        self,
        submit: Callable[[ScoreRequest, Deliver], Ticket],
        timeout_s: float,
        landed: Callable[[bytes, ScoreResult, float], object],
        ended: Callable[[ScoreRequest, ScoreResult | HoplineError | None, float], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._submit = submit
        self._timeout_s = timeout_s
        self._landed = landed
        self._ended = ended
        self._clock = clock
        self._flights: dict[bytes, Flight] = {}

    def __len__(self) -> int:
        """Flights under way that can be joined."""
        return len(self._flights)

    def joined(self, key: bytes, request: ScoreRequest, deliver: Deliver) -> Waiter | None:
        """Join the flight of this content.

        Returns: None where there is none, or none that is as urgent, or the request is late already.
        """
        flight = self._flights.get(key)
        if flight is None or _RANKS[request.priority] < flight.rank:
            return None
        now = self._clock()
        deadline = now + self._timeout_s if request.deadline is None else request.deadline
        if deadline <= now:
            return None
        waiter = Waiter(flight, request, deliver, now, deadline)
        flight.waiters.append(waiter)
        flight.num_waiting += 1
        self._watch(flight, waiter, now)
        return waiter

    def begin(self, key: bytes, request: ScoreRequest, deliver: Deliver) -> Waiter:
        """Hand a request on, so that others can join it.

        Raises: HoplineError: it was refused.
        """
        now = self._clock()
        deadline = now + self._timeout_s if request.deadline is None else request.deadline
        flight = Flight(self, key, _RANKS[request.priority], now, deadline)
        waiter = Waiter(flight, request, deliver, now, deadline)
        flight.leader = waiter
        flight.waiters.append(waiter)
        flight.num_waiting = 1
        self._flights[key] = flight  # one that is less urgent goes on for those who wait for it
        try:
            ticket = self._submit(request, flight.land)
        except HoplineError:
            self._forget(flight)
            raise
        if flight.waiters:  # its outcome may have come already
            flight.ticket = ticket
        return waiter

    def landed(self, flight: Flight, outcome: Any) -> None:
        """Give the leader's outcome to all, or only to the leader where it is its own."""
        flight.ticket = None
        leader = flight.leader
        if isinstance(outcome, _OWN) and leader is not None and len(flight.waiters) > 1:
            flight.waiters.remove(leader)
            if leader.end():
                flight.num_waiting -= 1
                _deliver(leader, outcome)
            self._again(flight)
            return
        self._forget(flight)
        self._give(flight, outcome)
        if isinstance(outcome, ScoreResult):
            self._landed(flight.key, outcome, flight.began)

    def left(self, flight: Flight, waiter: Waiter) -> None:
        """A waiter was cancelled; with the last one the computation is too."""
        if waiter is not flight.leader:
            self._ended(waiter.request, None, self._clock() - waiter.began)
        self._without(flight, waiter)

    def _again(self, flight: Flight) -> None:
        """Hand on one of those who still wait, until one is taken."""
        while flight.num_waiting:
            leader = min(flight.waiters, key=lambda waiter: _RANKS[waiter.request.priority])
            flight.leader = leader
            flight.rank = _RANKS[leader.request.priority]
            flight.began, flight.deadline = self._clock(), leader.deadline
            if leader.timer is not None:
                leader.timer.cancel()
                leader.timer = None
            for waiter in flight.waiters:
                if waiter is not leader:
                    self._watch(flight, waiter, flight.began)
            try:
                # Its time has been running since it came.
                ticket = self._submit(
                    msgspec.structs.replace(leader.request, deadline=leader.deadline), flight.land
                )
            except HoplineError as error:
                flight.waiters.remove(leader)
                if leader.end():
                    flight.num_waiting -= 1
                    _deliver(leader, error)
                continue
            if flight.leader is leader and flight.waiters:
                flight.ticket = ticket
            return
        self._forget(flight)
        flight.waiters = []

    def _give(self, flight: Flight, outcome: Any) -> None:
        waiters, flight.waiters, flight.num_waiting = flight.waiters, [], 0
        now = self._clock() if len(waiters) > 1 else 0.0
        for waiter in waiters:
            if waiter.end():
                _deliver(waiter, outcome)
                if waiter is not flight.leader:
                    self._ended(waiter.request, outcome, now - waiter.began)
        flight.leader = None  # nothing may hold itself: tickets are not looked at by the garbage collector

    def _watch(self, flight: Flight, waiter: Waiter, now: float) -> None:
        """Tell a waiter in time that it is late, where the leader is not late before."""
        if waiter.timer is None and waiter.deadline < flight.deadline:
            delay = max(0.0, waiter.deadline - now)
            waiter.timer = asyncio.get_running_loop().call_later(delay, self._expire, waiter)

    def _expire(self, waiter: Waiter) -> None:
        if not waiter.end():
            return
        error = DeadlineExceeded("the request's deadline passed before its answer was ready")
        _deliver(waiter, error)
        self._ended(waiter.request, error, self._clock() - waiter.began)
        self._without(waiter.flight, waiter)

    def _without(self, flight: Flight, waiter: Waiter) -> None:
        """A waiter has ended: with the last one the computation ends too."""
        if not flight.waiters:  # it landed; this one was cancelled while the others were told
            return
        if waiter is not flight.leader:  # the leader stays, to be told apart from the rest
            flight.waiters.remove(waiter)
        flight.num_waiting -= 1
        if not flight.num_waiting:
            self._forget(flight)
            flight.waiters = []
            flight.leader = None
            if flight.ticket is not None:
                flight.ticket.cancel()
                flight.ticket = None

    def _forget(self, flight: Flight) -> None:
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]


def _deliver(waiter: Waiter, outcome: Any) -> None:
    try:
        waiter.deliver(outcome)
    except Exception:  # the boundary: a receiver's failure must not cost the others their answers
        log.exception("an answer could not be delivered")
