"""Sends copies of requests to another version and holds its answers against those that went out.

Copies are sent after the real answers, from a bounded queue, at low priority: when there are more than can
be sent they are dropped and counted, and no caller waits for any of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from hopline.answering.outcome_counts import OutcomeCounts
from hopline.answering.served import Compares, Version
from hopline.errors import HoplineError
from hopline.isolated.wire import pack_copy
from hopline.process.cpu_affinity import leave_cpu
from hopline.scheduling.work import Work
from hopline.types import ScoreRequest, ScoreResult

#: Copies that may wait; in this process, those that may be under way and those sent in one turn.
_MAX_WAITING, _MAX_RUNNING, _AT_ONCE = 2000, 64, 16
#: Seconds from an answer to its copy, and between turns: together, copies cost less than one by one.
_PAUSE_S = 0.01
#: Copies to another process: in one message, messages under way, seconds from an answer to its copy, and
#: from one turn to the next where there is more; packed in one go.
_TOGETHER, _MAX_AWAY, _DISTANT_PAUSE_S, _DISTANT_AGAIN_S = 128, 4, 0.25, 0.05
_PACKED_TOGETHER = 8

Outcome = ScoreResult | HoplineError


class Copies:
    """Copies that wait; subclasses send them.

    Args:
        dropped: is called for each copy that there was no room for, or that could not be sent.
        pause_s: from the first that waits until they are sent.
        again_s: from then on, while there are more.
    """

    def __init__(self, dropped: Callable[[], object], pause_s: float, again_s: float) -> None:
        self._dropped = dropped
        self._pause_s = pause_s
        self._again_s = again_s
        self._waiting: deque[tuple[ScoreRequest, Outcome]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def offer(self, request: ScoreRequest, outcome: Outcome) -> None:
        """Take a request whose answer is out."""
        if self._closed:
            return
        if self._num_waiting >= _MAX_WAITING:
            self._dropped()
            return
        self._waiting.append((request, outcome))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._turn)

    def close(self) -> None:
        """Send nothing more; what is under way is ignored."""
        self._closed = True
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _num_waiting(self) -> int:
        return len(self._waiting)

    def _turn(self) -> None:
        self._timer = None
        self._send()
        if self._num_waiting and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(self._again_s, self._turn)

    def _send(self) -> None:
        """Send some of those that wait."""
        raise NotImplementedError  # abstract


class LocalCopies(Copies):
    """To a version in this process.

    Args:
        target: gets the copies.
        compare: is called with the request and both outcomes, the real one first.
        dropped: as for `Copies`.
        patience_s: that a copy may take.
    """

    def __init__(
        self,
        target: Version,
        compare: Callable[[ScoreRequest, Outcome, Outcome], object],
        dropped: Callable[[], object],
        patience_s: float,
    ) -> None:
        super().__init__(dropped, _PAUSE_S, _PAUSE_S)
        self._target = target
        self._compare = compare
        self._patience_s = patience_s
        self._num_running = 0

    def _send(self) -> None:
        for _ in range(min(_AT_ONCE, len(self._waiting), _MAX_RUNNING - self._num_running)):
            self._start(*self._waiting.popleft())

    def _start(self, request: ScoreRequest, outcome: Outcome) -> None:
        copy = msgspec.structs.replace(
            request,
            version=None,
            priority="low",
            key="",
            traceparent="",
            is_copy=True,
            deadline=asyncio.get_running_loop().time() + self._patience_s,
        )

        def deliver(found: Any) -> None:
            self._num_running -= 1
            if not self._closed:
                self._compare(request, outcome, found)

        self._num_running += 1
        try:
            self._target.accept(Work(copy, deliver))
        except HoplineError as error:
            deliver(error)


class ProcessCopies(Copies):
    """Copies to a version in a separate process, which compares there.

    Copies go over rarely and many together: each time that the process awakes it takes something from those
    who serve, were it the place in a processor's cache. They are packed a few at a time: many at a time
    cause a pause, and each alone costs a turn of the event loop.

    Args:
        target: gets the copies.
        tolerance: difference of scores that does not count.
        on_counts: called with counts.
        dropped: as for `Copies`.
    """

    def __init__(
        self,
        target: Compares,
        tolerance: float,
        on_counts: Callable[[OutcomeCounts], object],
        dropped: Callable[[], object],
    ) -> None:
        super().__init__(dropped, _DISTANT_PAUSE_S, _DISTANT_AGAIN_S)
        self._target = target
        self._tolerance = tolerance
        self._on_counts = on_counts
        self._packed: deque[bytes] = deque()
        self._num_away = 0

    def offer(self, request: ScoreRequest, outcome: Outcome) -> None:
        """As `Copies.offer`."""
        super().offer(request, outcome)
        if len(self._waiting) == _PACKED_TOGETHER:  # after the turn of the loop that sends the answer
            asyncio.get_running_loop().call_soon(self._pack)

    def close(self) -> None:
        """As `Copies.close`."""
        super().close()
        self._packed.clear()

    @property
    def _num_waiting(self) -> int:
        return len(self._waiting) + len(self._packed)

    def _pack(self) -> None:
        waiting, packed = self._waiting, self._packed
        while waiting:
            try:
                packed.append(pack_copy(*waiting.popleft()))
            except (TypeError, ValueError, OverflowError, NotImplementedError):
                self._dropped()  # it holds a value that cannot be sent

    def _send(self) -> None:
        if self._num_away >= _MAX_AWAY:
            return
        self._pack()
        packed = self._packed
        if not packed:  # nothing of it could be sent, and an empty message has no end to report
            return
        leave_cpu()
        copies = [packed.popleft() for _ in range(min(_TOGETHER, len(packed)))]
        try:
            self._target.compare(copies, self._tolerance, self._compared)
        except HoplineError:
            for _ in copies:
                self._dropped()
        else:
            self._num_away += 1

    def _compared(self, tally: OutcomeCounts) -> None:
        self._num_away -= 1
        if not self._closed:
            self._on_counts(tally)
