"""One `ModelStreamInfer` call: many requests are worked on at a time and answered in their order.

A request of a stream costs less than a call: no call is begun or ended for it.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from hopline.errors import HoplineError, Unavailable
from hopline.transports.failure import as_hopline_error, without_frames
from hopline.transports.grpc_call import MAX_QUOTED, PREFIX_BYTES, Call, Listener
from hopline.transports.grpc_errors import CallError
from hopline.transports.turns import TURN_S
from hopline.types import Deliver, ScoreRequest, ScoreResult, Ticket

#: Requests of one stream that are worked on at a time; the next one is begun when the first is answered.
MAX_DEPTH = 64
#: Answers that the client does not read yet, in bytes: nothing more is begun for it meanwhile.
_MAX_UNSENT_BYTES = 1 << 20
#: Bytes of requests that are worked on: nothing more is begun meanwhile.
_MAX_BEGUN_BYTES = 1 << 20
#: A message above this is read in a thread: it would keep the loop for milliseconds.
LARGE_BYTES = 64 * 1024
#: From the last answer to the end of a stream that is cut off: grpc.aio's clients read no answer behind it.
_READING_S = 0.2
CUT_OFF = "the server is shutting down; what was not answered has to be asked again, over another stream"


class Steps(NamedTuple):
    """How a request is answered; the loop calls all of them, and a thread those that may take long.

    Attributes:
        read: a request, from a message; in a thread if large. Raises what the call ends with.
        permit: raises what a request is refused with before it is translated.
        translate: what is to be scored; in a thread if large. Raises what it is refused with.
        submit: hands that in. Raises what it is refused with.
        respond: the answer's message, from a request and its outcome.
    """

    read: Callable[[bytes], Any]
    permit: Callable[[Any], None]
    translate: Callable[[Any], ScoreRequest]
    submit: Callable[[ScoreRequest, Deliver], Ticket]
    respond: Callable[[Any, ScoreResult | HoplineError], bytes]


@dataclass(slots=True)
class _Place:
    """A request's place in the order of answers.

    Attributes:
        num_bytes: that its message holds.
        answer: a message, once there is one.
        ticket: withdraws the request.
    """

    num_bytes: int
    answer: bytes | None = None
    ticket: Ticket | None = None


class InferStream(Listener):
    """The requests of one call. The call ends when all of them are answered and the client sends no more.

    Args:
        call: what is read and written.
        steps: how a request is answered.
        ended: called once, with the error if the call did not end well.

    Attributes:
        call: as given.
    """

    def __init__(
        self,
        call: Call,
        steps: Steps,
        ended: Callable[[InferStream, HoplineError | CallError | None], None],
    ) -> None:
        self.call = call
        self._steps = steps
        self._ended = ended
        self._places: deque[_Place] = deque()
        self._num_begun_bytes = 0
        self._stopped = self._is_over = False
        self._going_on = False
        #: Whether a message is unpacked or read elsewhere; the next one is taken when it is begun with.
        self._is_reading = False
        self._is_waiting = False  # for its turn
        self._holds = False
        self._task: asyncio.Task[None] | None = None
        self._failure: HoplineError | CallError | None = None
        call.on_gone = self._give_up

    # Called by the call

    def heard(self) -> None:
        """A message came, or the client's end. What has no place yet waits as it came, packed."""
        if self._stopped:
            self.call.drop()
        if not self._is_waiting:
            self._go_on()

    def sent(self) -> None:
        """The client has taken the answers so far."""
        self.heard()

    def cut_off(self) -> None:
        """Begin no more; the call ends when what was begun is answered."""
        self._stop(Unavailable(CUT_OFF))
        self._go_on()

    def _stop(self, failure: HoplineError | CallError) -> None:
        if not self._stopped and not self._is_over:
            self._stopped = True
            self._failure = without_frames(failure)
            self.call.drop()

    def _give_up(self) -> None:
        """The client no longer reads answers."""
        if self._is_over:
            return
        self._is_over = True
        self.call.turns.leave(self)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        for place in self._places:
            ticket, place.ticket = place.ticket, None
            if ticket is not None:
                ticket.cancel()
        self._places.clear()
        self._ended(self, None)

    def go_on(self) -> None:
        """It is its turn again."""
        self._is_waiting = False
        self._go_on()

    def _wait(self) -> None:
        self._is_waiting = True
        self.call.turns.wait(self)

    # Requests and answers

    def _go_on(self) -> None:
        """Answer what can be, begin what may be, as far as a turn goes; end when there is nothing left."""
        if self._going_on or self._is_over:  # an outcome that came while its request was handed in
            return
        self._going_on = True
        until = 0.0
        try:
            self._answer()
            while self._begin():
                self._answer()
                now = self.call.turns.clock()
                if not until:
                    until = now + TURN_S
                elif now > until:
                    self._wait()
                    break
            self._answer()
        finally:
            self._going_on = False
        self._settle()

    def _settle(self) -> None:
        """End when there is nothing left; else let the client send more, or not."""
        call = self.call
        if self._is_over:
            return
        if not call.has_more or self._stopped:
            if self._holds:
                self._hold(False)
            if not self._places and not self._is_reading and (self._stopped or call.is_heard):
                self._end()
        else:
            self._hold(self._is_waiting or self._is_full())

    def _hold(self, holds: bool) -> None:
        self._holds = holds
        if holds:
            self.call.hold()
        else:
            self.call.let_go()

    def _answer(self) -> None:
        places = self._places
        while places and (answer := places[0].answer) is not None:
            place = places.popleft()
            place.ticket = None
            self._num_begun_bytes -= place.num_bytes
            self.call.give_back(place.num_bytes)
            self.call.write(answer)

    def _is_full(self) -> bool:
        """Whether no further request may be begun now."""
        return (
            len(self._places) >= MAX_DEPTH
            or self._is_reading
            or self._num_begun_bytes > _MAX_BEGUN_BYTES
            or self.call.num_unsent_bytes > _MAX_UNSENT_BYTES
        )

    def _begin(self) -> bool:
        """Begin with the next message; False where there is no further one, or not now."""
        call = self.call
        if (
            self._stopped
            or self._is_reading
            or call.num_unsent_bytes > _MAX_UNSENT_BYTES
            or (self._places and self._is_full())
        ):
            return False
        try:
            found = call.next_message()
            if found is None:
                return False
            flag, data = found
            if flag:
                self._is_reading = True
                call.unpack(flag, data, functools.partial(self._begin_unpacked, len(data)))
            else:
                self._begin_with(_Place(PREFIX_BYTES + len(data)), data)
        except (HoplineError, CallError) as error:
            self._is_reading = False
            self._fail(error)
        return call.has_more

    def _begin_unpacked(self, num_packed: int, data: bytes | Exception) -> None:
        self._is_reading = False
        if isinstance(data, Exception):
            self._fail(data)
        else:
            self._begin_with(_Place(PREFIX_BYTES + num_packed + len(data)), data)
        self._go_on()

    def _begin_with(self, place: _Place, data: bytes) -> None:
        if len(data) > LARGE_BYTES:
            self._is_reading = True
            self._task = asyncio.get_running_loop().create_task(self._begin_large(place, data))
            return
        steps = self._steps
        try:
            request = steps.read(data)
        except Exception as error:
            self._fail(error)
            return
        deliver = self._take_place(place, request)
        try:
            steps.permit(request)
            place.ticket = steps.submit(steps.translate(request), deliver)
        except Exception as error:  # the boundary of a request: others of the stream continue
            deliver(as_hopline_error(error, request.id[:MAX_QUOTED] or "(none)"))

    async def _begin_large(self, place: _Place, data: bytes) -> None:
        steps = self._steps
        try:
            request = await asyncio.to_thread(steps.read, data)
        except Exception as error:
            self._task, self._is_reading = None, False
            self._fail(error)
            self._go_on()
            return
        deliver = self._take_place(place, request)
        try:
            steps.permit(request)
            scoring = await asyncio.to_thread(steps.translate, request)
            place.ticket = steps.submit(scoring, deliver)
        except Exception as error:
            deliver(as_hopline_error(error, request.id[:MAX_QUOTED] or "(none)"))
        self._task, self._is_reading = None, False
        self._go_on()

    def _take_place(self, place: _Place, request: Any) -> Deliver:
        """The next place in the order of answers; returns the callback for the request's outcome."""
        self._places.append(place)
        self._num_begun_bytes += place.num_bytes
        respond = self._steps.respond

        def deliver(outcome: ScoreResult | HoplineError) -> None:
            try:
                place.answer = respond(request, outcome)
            except Exception as error:  # of this answer; its deliverer has others to deliver
                known = as_hopline_error(error, request.id[:MAX_QUOTED] or "(none)")
                place.answer = respond(request, known)
            if self._places and self._places[0] is place and not self._going_on:
                # The deliverer has others to deliver: what starts next waits for its turn.
                self._answer()
                if self.call.has_more and not self._stopped and not self._is_full():
                    self._wait()
                self._settle()

        return deliver

    def _fail(self, error: Exception) -> None:
        """The call ends with this when what was begun is answered."""
        known = isinstance(error, HoplineError | CallError)
        self._stop(error if known else as_hopline_error(error, "(none)"))  # type: ignore[arg-type]

    def _end(self) -> None:
        self._is_over = True
        self.call.turns.leave(self)
        if isinstance(self._failure, Unavailable):
            asyncio.get_running_loop().call_later(_READING_S, self._ended, self, self._failure)
        else:
            self._ended(self, self._failure)
