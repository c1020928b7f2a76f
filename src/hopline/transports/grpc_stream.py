"""One `ModelStreamInfer` call: its requests are processed concurrently and answered in their order.

A request of a stream costs less than a call, since no call begins or ends for it.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from hopline.errors import HoplineError, Overloaded, Unavailable
from hopline.transports.failure import as_hopline_error, without_frames
from hopline.transports.grpc_errors import text_of
from hopline.transports.proto import message
from hopline.types import Deliver, ScoreRequest, ScoreResult, TextPart, Ticket
from turnserve.grpc.call import Call, Listener
from turnserve.grpc.incoming import PREFIX_BYTES
from turnserve.grpc.status import MAX_QUOTED, CallError
from turnserve.outbox import SMALL_ANSWER_BYTES
from turnserve.turns import TURN_S

_WANTED, _FINAL = "triton_enable_empty_final_response", "triton_final_response"
_TEXT = "text"
#: Takes what makes the next message. It is called at most once, when the client can take the message.
Offer: TypeAlias = Callable[[Callable[[], bytes]], object]


def wants_parts(request: Any) -> bool:
    """True if a request (an OuterInferRequest) asks for a last response that is marked."""
    return _WANTED in request.parameters and request.parameters[_WANTED].bool_param


def has_parts(request: Any, scoring: ScoreRequest) -> bool:
    """True if its answer comes in parts: of one text, since a response does not tell rows apart."""
    columns = scoring.columns or {}
    is_one = all(len(values) == 1 for values in columns.values())
    return bool(columns) and is_one and wants_parts(request) and _TEXT in (scoring.outputs or (_TEXT,))


def mark_last(response: Any) -> None:
    """Mark the last response of a request."""
    response.parameters[_FINAL].bool_param = True


class TextParts:
    """The text of one request that is not sent yet.

    A client asks for them as it asks Triton's decoupled models: with the request parameter
    `triton_enable_empty_final_response`. Each response has the new text. The last one has the parameter
    `triton_final_response`, the rest of the text and the other outputs.
    """

    def __init__(self, request: Any, offer: Offer) -> None:
        self._id = request.id
        self._model, self._version = request.model_name, request.model_version
        self._offer = offer
        self._unsent: list[str] = []
        self._has_sent = False

    def take(self, row: int, part: TextPart) -> None:
        """Add a part."""
        if part.text:
            self._unsent.append(part.text)
            self._offer(self._message)

    def before(self, deliver: Deliver) -> Deliver:
        """A callback for the outcome, which leaves out the text that was sent."""

        def ended(outcome: ScoreResult | HoplineError) -> None:
            if isinstance(outcome, ScoreResult) and self._has_sent:
                rest = np.array(["".join(self._unsent)], object)
                outcome = msgspec.structs.replace(outcome, outputs={**outcome.outputs, _TEXT: rest})
            deliver(outcome)

        return ended

    def _message(self) -> bytes:
        text, self._unsent = "".join(self._unsent).encode(), []
        self._has_sent = True
        response = message("inference.ModelStreamInferResponse")()
        answer = response.infer_response
        answer.id, answer.model_name, answer.model_version = self._id, self._model, self._version
        answer.parameters[_FINAL].bool_param = False
        answer.outputs.add(name=_TEXT, datatype="BYTES", shape=[1])
        answer.raw_output_contents.append(len(text).to_bytes(4, "little") + text)
        encoded: bytes = response.SerializeToString()
        return encoded


#: Requests of one stream in progress; the next one begins when the first is answered.
MAX_DEPTH = 64
#: Bytes of requests in progress; beyond this, no request begins.
_MAX_BEGUN_BYTES = 1 << 20
#: A message above this is read in a thread: it would block the loop for milliseconds.
LARGE_BYTES = 64 * 1024
#: Seconds from the last answer to the end at shutdown: grpc.aio's clients drop answers after it.
_READING_S = 0.2
CUT_OFF = "the server is shutting down; send unanswered requests again on a new stream"


class Steps(NamedTuple):
    """The steps of answering a request. The loop calls all of them, a thread those that may take long.

    Attributes:
        read: parses a message; in a thread if large. Raises the error that ends the call.
        permit: raises an error to refuse a request before it is translated.
        translate: returns the request to score; in a thread if large. Raises an error to refuse it.
        submit: submits that request, with a callback for messages before its answer. Raises an error to
            refuse it.
        respond: returns the answer message for a request and its outcome.
    """

    read: Callable[[bytes], Any]
    permit: Callable[[Any], None]
    translate: Callable[[Any], ScoreRequest]
    submit: Callable[[Any, ScoreRequest, Deliver, Offer], Ticket]
    respond: Callable[[Any, ScoreResult | HoplineError], bytes]


@dataclass(slots=True)
class _Place:
    """A request's place in the order of answers.

    Attributes:
        num_bytes: memory of its message, and of an answer that waits.
        answer: the answer message, once it exists.
        early: makes a message that is sent before the answer.
        ticket: withdraws the request.
    """

    num_bytes: int
    answer: bytes | None = None
    early: Callable[[], bytes] | None = None
    ticket: Ticket | None = None


class InferStream(Listener):
    """The requests of one call. The call ends after the client's last message, when all are answered.

    Attributes:
        call: the call.
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
        #: Whether a thread decompresses or reads a message; the next one begins after it.
        self._is_reading = False
        self._is_waiting = False  # for its turn
        self._holds = False
        self._task: asyncio.Task[None] | None = None
        self._failure: HoplineError | CallError | None = None
        call.on_gone = self._give_up

    # Called by the call

    def received(self) -> None:
        """Handle a new message or the client's end. Messages without a place wait compressed."""
        if self._stopped:
            self.call.drop()
        if not self._is_waiting:
            self._go_on()

    def sent(self) -> None:
        """Handle that the client has received the answers so far."""
        self.received()

    def cut_off(self) -> None:
        """Begin no more requests; the call ends when those in progress are answered."""
        self._stop(Unavailable(CUT_OFF))
        self._go_on()

    def _stop(self, failure: HoplineError | CallError) -> None:
        if not self._stopped and not self._is_over:
            self._stopped = True
            self._failure = without_frames(failure)
            self.call.drop()

    def _give_up(self) -> None:
        """Cancel all requests, since the client is gone."""
        if self._is_over:
            return
        self._is_over = True
        self.call.turns.leave(self)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self._withdraw()
        self._ended(self, None)

    def _withdraw(self) -> None:
        """Cancel the requests in progress, and drop their answers."""
        places = list(self._places)
        self._places.clear()
        for place in places:
            ticket, place.ticket, place.early = place.ticket, None, None
            if ticket is not None:
                ticket.cancel()
            if place.answer is not None and len(place.answer) > SMALL_ANSWER_BYTES:
                self.call.turns.drop(place.answer)
                place.answer = None

    def go_on(self) -> None:
        """Continue in this turn."""
        self._is_waiting = False
        self._go_on()

    def _wait(self) -> None:
        self._is_waiting = True
        self.call.turns.wait(self)

    # Requests and answers

    def _go_on(self) -> None:
        """Answer and begin requests until the turn is over; end if no work is left."""
        if self._going_on or self._is_over:  # an outcome that was delivered during submit
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
        """End if no work is left; otherwise allow the client to send more, or stop it."""
        call = self.call
        if self._is_over:
            return
        if not call.has_more or self._stopped:
            if self._holds:
                self._hold(False)
            if not self._places and not self._is_reading and (self._stopped or call.has_ended):
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
        while places:
            place = places[0]
            if (answer := place.answer) is None:
                if place.early is not None and self.call.may_begin():
                    make, place.early = place.early, None
                    self._write(make())
                return
            places.popleft()
            place.ticket = place.early = None
            self._num_begun_bytes -= place.num_bytes
            self.call.give_back(place.num_bytes)
            self._write(answer)

    def _write(self, answer: bytes) -> None:
        """Send an answer. Without room for it, the call ends: no answer may be missing between others."""
        try:
            self.call.write(answer)
        except CallError as error:
            self._withdraw()
            self._stop(error)

    def _is_full(self) -> bool:
        """True if no more requests may begin now."""
        return (
            len(self._places) >= MAX_DEPTH
            or self._is_reading
            or self._num_begun_bytes > _MAX_BEGUN_BYTES
            or not self.call.may_begin()
        )

    def _begin(self) -> bool:
        """Begin the next message; return False if there is none, or not now."""
        call = self.call
        if self._stopped or self._is_reading or (self._places and self._is_full()) or not call.may_begin():
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
            place.ticket = steps.submit(request, steps.translate(request), deliver, self._offer(place))
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
            place.ticket = steps.submit(request, scoring, deliver, self._offer(place))
        except Exception as error:
            deliver(as_hopline_error(error, request.id[:MAX_QUOTED] or "(none)"))
        self._task, self._is_reading = None, False
        self._go_on()

    def _offer(self, place: _Place) -> Offer:
        """A callback for messages before a place's answer: they are sent while it is the first one."""

        def offer(early: Callable[[], bytes]) -> None:
            if not self._is_over:
                place.early = early
                if self._places and self._places[0] is place and not self._going_on:
                    self._answer()

        return offer

    def _take_place(self, place: _Place, request: Any) -> Deliver:
        """Append a place to the order of answers; return the callback for the request's outcome."""
        self._places.append(place)
        self._num_begun_bytes += place.num_bytes
        respond = self._steps.respond

        def deliver(outcome: ScoreResult | HoplineError) -> None:
            try:
                place.answer = respond(request, outcome)
            except Exception as error:  # a failure of this answer; the service has more to deliver
                known = as_hopline_error(error, request.id[:MAX_QUOTED] or "(none)")
                place.answer = respond(request, known)
            self._keep(place, request)
            if self._places and self._places[0] is place and not self._going_on:
                # The service has more to deliver: new requests wait for their turn.
                self._answer()
                if self.call.has_more and not self._stopped and not self._is_full():
                    self._wait()
                self._settle()

        return deliver

    def _keep(self, place: _Place, request: Any) -> None:
        """Count an answer that waits; without room, it becomes an error."""
        assert place.answer is not None
        num_bytes = PREFIX_BYTES + len(place.answer)
        if not self._places or (place is self._places[0] and num_bytes <= SMALL_ANSWER_BYTES):
            return
        if self.call.keep(num_bytes):
            place.num_bytes += num_bytes
            self._num_begun_bytes += num_bytes
        else:
            place.answer = self._steps.respond(request, Overloaded(text_of(self.call.no_room())))

    def _fail(self, error: Exception) -> None:
        """End the call with this error when the requests in progress are answered."""
        known = isinstance(error, HoplineError | CallError)
        self._stop(error if known else as_hopline_error(error, "(none)"))  # type: ignore[arg-type]

    def _end(self) -> None:
        self._is_over = True
        self.call.turns.leave(self)
        if isinstance(self._failure, Unavailable):
            asyncio.get_running_loop().call_later(_READING_S, self._ended, self, self._failure)
        else:
            self._ended(self, self._failure)
