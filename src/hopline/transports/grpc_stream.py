"""One `ModelStreamInfer` call: many requests are worked on at a time and answered in their order.

A request of a stream costs about a quarter less than a call: no call is begun or ended for it, and it has
no task of its own. Two coroutines share the work, one that reads and one that writes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from hopline.errors import HoplineError, Unavailable
from hopline.transports.failure import as_hopline_error
from hopline.types import Deliver, ScoreResult, Ticket

#: Requests of one stream that are worked on at a time; the next one is read when the first is answered.
MAX_DEPTH = 64
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

    answer: Any = None
    ticket: Ticket | None = None


class InferStream:
    """The requests of one call.

    Args:
        context: of the call; what is read and written.
        submit: hands a message in. Raises what it is refused with.
        respond: the answer's message, from a request's message and its outcome.
    """

    def __init__(
        self,
        context: Any,
        submit: Callable[[Any, Deliver], Ticket],
        respond: Callable[[Any, ScoreResult | HoplineError], Any],
    ) -> None:
        self._context = context
        self._submit = submit
        self._respond = respond
        self._places: deque[_Place] = deque()
        self._wakes_writer: asyncio.Future[None] | None = None
        self._wakes_reader: asyncio.Future[None] | None = None
        self._cut = False
        self._at_end = False
        self._failure: Exception | None = None

    async def run(self) -> None:
        """Until the client ends its half, or `cut_off`; what was read by then is answered first.

        Raises:
            Unavailable: it was cut off.
            DecodeError: what was sent is no request.
        """
        # Never cancelled, as its read lends memory to gRPC; it ends by itself once the call has.
        reader = asyncio.ensure_future(self._read())
        try:
            while self._places or not self._at_end:
                if self._places and (answer := self._places[0].answer) is not None:
                    self._places.popleft()
                    _wake(self._wakes_reader)
                    await self._context.write(answer)
                    continue
                self._wakes_writer = asyncio.get_running_loop().create_future()
                await self._wakes_writer
        finally:
            self._end()
            for place in self._places:
                if place.ticket is not None:
                    place.ticket.cancel()
            _wake(self._wakes_reader)
        if self._cut:
            await asyncio.sleep(_READING_S)
            raise Unavailable(CUT_OFF)
        await reader
        if self._failure is not None:
            raise self._failure

    def cut_off(self) -> None:
        """Read no more; the call ends when what was read is answered."""
        self._cut = True
        self._end()

    async def _read(self) -> None:
        try:
            while (request := await self._context.read()) is not grpc.aio.EOF and not self._at_end:
                self._take(request)
                while len(self._places) >= MAX_DEPTH and not self._at_end:
                    self._wakes_reader = asyncio.get_running_loop().create_future()
                    await self._wakes_reader
        except DecodeError as error:
            self._failure = error
        except grpc.aio.BaseError as error:
            # After the end, of whatever kind, there is nothing to read.
            self._failure = None if self._at_end else error
        finally:
            self._end()

    def _take(self, request: Any) -> None:
        place = _Place()
        self._places.append(place)

        def deliver(outcome: ScoreResult | HoplineError) -> None:
            place.answer = self._respond(request, outcome)
            if self._places and self._places[0] is place:
                _wake(self._wakes_writer)

        try:
            place.ticket = self._submit(request, deliver)
        except Exception as error:  # the boundary of a request: the others of the stream go on
            deliver(as_hopline_error(error, request.id or "(none)"))

    def _end(self) -> None:
        self._at_end = True
        _wake(self._wakes_writer)


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
