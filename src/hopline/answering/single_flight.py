"""Equal requests that run at the same time are computed once; each can still be cancelled or expire alone.

The first one, the *leader*, is computed; the others wait for its answer. What happens to the leader for its
own sake (its deadline, being refused) does not happen to the others: the most urgent of them is computed in
its place.

Knows nothing of what is computed. Everything runs on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec

from hopline.errors import DeadlineExceeded, HoplineError, Overloaded
from hopline.scheduling.admission import Deadlines
from hopline.scheduling.work import Work
from hopline.types import ScoreRequest, ScoreResult

_RANKS = {"high": 0, "normal": 1, "low": 2}
#: Outcomes that are the leader's own.
_OWN = (DeadlineExceeded, Overloaded)


class Flight:
    """One computation and the requests that wait for it.

    Attributes:
        key: of its content.
        began: when the leader was handed on.
        deadline: the leader's.
        rank: the leader's urgency, 0 the most.
        waiting: request -> the timer of its deadline, where it ends before the leader's.
        computing: what was handed on in the leader's place.
    """

    __slots__ = ("began", "computing", "deadline", "key", "leader", "rank", "waiting", "within")

    def __init__(self, within: SingleFlight, key: bytes, leader: Work) -> None:
        self.within = within
        self.key = key
        self.leader: Work | None = leader
        self.rank = _RANKS[leader.request.priority]
        self.began = leader.entered
        self.deadline = leader.deadline
        self.waiting: dict[Work, asyncio.TimerHandle | None] = {leader: None}
        self.computing: Work | None = None

    def deliver(self, outcome: Any) -> None:
        """Take the leader's outcome."""
        self.within.delivered(self, outcome)

    def withdraw(self, work: Work) -> None:
        """As `Holder.withdraw`; the others continue."""
        self.within.left(self, work)

    def remove(self, work: Work) -> None:
        """A request waits no longer."""
        timer = self.waiting.pop(work)
        if timer is not None:
            timer.cancel()


class SingleFlight:
    """Computes equal requests once.

    Args:
        accept: takes what is to be computed; refusals are raised.
        deadlines: of requests.
        delivered: is called with (key, answer, when it was begun) of each flight, after all have it.
        ended: is called with (request, its outcome or None where it was cancelled, seconds waited) of the
            requests that were not handed on; the others are counted where they are computed.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        accept: Callable[[Work], None],
        deadlines: Deadlines,
        delivered: Callable[[bytes, ScoreResult, float], object],
        ended: Callable[[ScoreRequest, ScoreResult | HoplineError | None, float], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._accept = accept
        self._deadlines = deadlines
        self._delivered = delivered
        self._ended = ended
        self._clock = clock
        self._flights: dict[bytes, Flight] = {}

    def __len__(self) -> int:
        """Flights under way that can be joined."""
        return len(self._flights)

    def joins(self, key: bytes, work: Work) -> bool:
        """Join the flight of this content.

        Returns: False where there is none, or none that is as urgent, or the request is late already.
        """
        flight = self._flights.get(key)
        if flight is None or _RANKS[work.request.priority] < flight.rank:
            return False
        now = self._clock()
        try:
            work.deadline = self._deadlines.of(work.request.deadline, now)
        except DeadlineExceeded:
            return False
        work.entered = now
        work.holder = flight
        flight.waiting[work] = None
        self._watch(flight, work, now)
        return True

    def begin(self, key: bytes, work: Work) -> None:
        """Hand a request on, so that others can join it.

        Raises: HoplineError: it was refused.
        """
        work.entered = self._clock()
        work.deadline = self._deadlines.of(work.request.deadline, work.entered)
        flight = Flight(self, key, work)
        work.holder = flight
        self._flights[key] = flight  # a less urgent one continues for those that wait for it
        try:
            self._compute(flight, work.request)
        except HoplineError:
            self._forget(flight)
            flight.leader = work.holder = None
            raise

    def delivered(self, flight: Flight, outcome: Any) -> None:
        """Give the leader's outcome to all, or only to the leader where it is its own."""
        flight.computing = None
        leader = flight.leader
        if isinstance(outcome, _OWN) and any(work is not leader for work in flight.waiting):
            if leader is not None and leader in flight.waiting:  # it may have been cancelled
                flight.remove(leader)
                leader.finish(outcome)
            self._again(flight)
            return
        self._forget(flight)
        self._give(flight, outcome)
        if isinstance(outcome, ScoreResult):
            self._delivered(flight.key, outcome, flight.began)

    def left(self, flight: Flight, work: Work) -> None:
        """A request was cancelled; with the last one the computation is too."""
        work.end()
        if work is not flight.leader:
            self._ended(work.request, None, self._clock() - work.entered)
        self._without(flight, work)

    def _compute(self, flight: Flight, request: ScoreRequest) -> None:
        computing = Work(request, flight.deliver)
        self._accept(computing)
        if not computing.ended:  # its outcome may have come already
            flight.computing = computing

    def _again(self, flight: Flight) -> None:
        """Hand on one of those who still wait, until one is taken."""
        while flight.waiting:
            leader = min(flight.waiting, key=lambda work: _RANKS[work.request.priority])
            flight.leader = leader
            flight.rank = _RANKS[leader.request.priority]
            flight.began, flight.deadline = self._clock(), leader.deadline
            timer, flight.waiting[leader] = flight.waiting[leader], None
            if timer is not None:
                timer.cancel()
            for work in flight.waiting:
                if work is not leader:
                    self._watch(flight, work, flight.began)
            try:
                # Its time has been running since it came.
                self._compute(flight, msgspec.structs.replace(leader.request, deadline=leader.deadline))
            except HoplineError as error:
                if leader in flight.waiting:
                    flight.remove(leader)
                    leader.finish(error)
                continue
            return
        self._forget(flight)

    def _give(self, flight: Flight, outcome: Any) -> None:
        waiting, flight.waiting = flight.waiting, {}
        leader, flight.leader = flight.leader, None  # nothing may hold itself: `Work` has no collector
        now = self._clock() if len(waiting) > 1 else 0.0
        for work, timer in waiting.items():
            if timer is not None:
                timer.cancel()
            if work.finish(outcome) and work is not leader:
                self._ended(work.request, outcome, now - work.entered)

    def _watch(self, flight: Flight, work: Work, now: float) -> None:
        """Notify a waiter in time that it is late, where the leader is not late before."""
        if flight.waiting[work] is None and work.deadline < flight.deadline:
            delay = max(0.0, work.deadline - now)
            timer = asyncio.get_running_loop().call_later(delay, self._expire, flight, work)
            flight.waiting[work] = timer

    def _expire(self, flight: Flight, work: Work) -> None:
        error = DeadlineExceeded()
        if work.finish(error):
            self._ended(work.request, error, self._clock() - work.entered)
            self._without(flight, work)

    def _without(self, flight: Flight, work: Work) -> None:
        """A request has ended: with the last one the computation ends too."""
        if work not in flight.waiting:  # it ended; this one was cancelled while the others got the outcome
            return
        flight.remove(work)
        if not flight.waiting:
            self._forget(flight)
            flight.leader = None
            computing, flight.computing = flight.computing, None
            if computing is not None:
                computing.cancel()

    def _forget(self, flight: Flight) -> None:
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]
