"""One `ModelStreamInfer` call: many requests are worked on at a time and answered in their order.

A request of a stream costs less than a call: no call is begun or ended for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hopline.errors import HoplineError, Unavailable
from hopline.transports.failure import as_hopline_error
from hopline.transports.grpc_call import Call, CallError, Listener
from hopline.types import Deliver, ScoreResult, Ticket

#: Requests of one stream that are worked on at a time; the next one is begun when the first is answered.
MAX_DEPTH = 64
#: Answers that the client does not read yet, in bytes: nothing more is begun for it meanwhile.
_MAX_UNSENT_BYTES = 1 << 20
#: From the last answer to the end of a stream that is cut off: grpc.aio's clients read no answer behind it.
_READING_S = 0.2
CUT_OFF = "the server is shutting down; what was not answered has to be asked again, over another stream"


@dataclass(slots=True)
class _Place:
    """A request's place in the order of answers.

    Attributes:
        answer: a message, once there is one.
        ticket: withdraws the request.
    """

    answer: bytes | None = None
    ticket: Ticket | None = None


class InferStream(Listener):
    """The requests of one call. The call ends when all of them are answered and the client sends no more.

    Args:
        call: what is read and written.
        read: a request, from a message. Raises what the call ends with.
        submit: hands a request in. Raises what it is refused with.
        respond: the answer's message, from a request and its outcome.
        ended: called once, with the error if the call did not end well.

    Attributes:
        call: as given.
    """

    def __init__(
        self,
        call: Call,
        read: Callable[[bytes], Any],
        submit: Callable[[Any, Deliver], Ticket],
        respond: Callable[[Any, ScoreResult | HoplineError], bytes],
        ended: Callable[[InferStream, HoplineError | CallError | None], None],
    ) -> None:
        self.call = call
        self._read = read
        self._submit = submit
        self._respond = respond
        self._ended = ended
        self._places: deque[_Place] = deque()
        #: Messages that came before there was a place for them.
        self._messages: deque[tuple[int, bytes]] = deque()
        self._heard_all = self._stopped = self._is_over = False
        self._going_on = False
        self._failure: HoplineError | CallError | None = None
        call.on_gone = self._give_up

    # Called by the call

    def message(self, flag: int, data: bytes) -> None:
        """A request; unpacked when its turn comes, since it may become a thousand times as long."""
        if not self._stopped:
            self._messages.append((flag, data))
            self._go_on()

    def end(self) -> None:
        """No further request comes."""
        self._heard_all = True
        self._go_on()

    def sent(self) -> None:
        """The client has taken the answers so far."""
        self._go_on()

    def cut_off(self) -> None:
        """Begin no more; the call ends when what was begun is answered."""
        self._stop(Unavailable(CUT_OFF))
        self._go_on()

    def _stop(self, failure: HoplineError | CallError) -> None:
        if not self._stopped and not self._is_over:
            self._stopped = True
            self._failure = failure
            self._messages.clear()

    def _give_up(self) -> None:
        """Nobody reads answers any more."""
        if self._is_over:
            return
        self._is_over = True
        self._messages.clear()
        for place in self._places:
            if place.ticket is not None:
                place.ticket.cancel()
        self._places.clear()
        self._ended(self, None)

    # Requests and answers

    def _go_on(self) -> None:
        """Answer what can be, begin what may be, and end when there is nothing left."""
        if self._going_on or self._is_over:  # an outcome that came while its request was handed in
            return
        self._going_on = True
        try:
            while self._answer() or self._begin():
                pass
        finally:
            self._going_on = False
        if self._messages:
            self.call.hold()
        else:
            self.call.let_go()
            if not self._places and (self._heard_all or self._stopped):
                self._end()

    def _answer(self) -> bool:
        places = self._places
        some = False
        while places and (answer := places[0].answer) is not None:
            places.popleft()
            self.call.write(answer)
            some = True
        return some

    def _begin(self) -> bool:
        if (
            not self._messages
            or len(self._places) >= MAX_DEPTH
            or self.call.num_unsent_bytes > _MAX_UNSENT_BYTES
        ):
            return False
        try:
            request = self._read(self.call.unpacked(*self._messages.popleft()))
        except (HoplineError, CallError) as error:
            self._stop(error)
            return False
        place = _Place()
        self._places.append(place)

        def deliver(outcome: ScoreResult | HoplineError) -> None:
            try:
                place.answer = self._respond(request, outcome)
            except Exception as error:  # of this answer; whoever delivers has others to deliver
                place.answer = self._respond(request, as_hopline_error(error, request.id or "(none)"))
            if self._places and self._places[0] is place:
                self._go_on()

        try:
            place.ticket = self._submit(request, deliver)
        except Exception as error:  # the boundary of a request: the others of the stream go on
            deliver(as_hopline_error(error, request.id or "(none)"))
        return True

    def _end(self) -> None:
        self._is_over = True
        if isinstance(self._failure, Unavailable):
            asyncio.get_running_loop().call_later(_READING_S, self._ended, self, self._failure)
        else:
            self._ended(self, self._failure)
