"""Pending HTTP answers: scores, tensors, other work."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any, Protocol

from hopline.errors import HoplineError
from hopline.transports.body_threads import LoopShare, encode_large
from hopline.transports.oip_json import InferBody, encode_infer
from hopline.transports.score_json import encode_result
from hopline.types import ScoreRequest, ScoreResult, Ticket
from turnserve.budget import Budget
from turnserve.http1.messages import JSON, Pending, Response


class Application(Protocol):
    """The application of an answer that waits; `HttpApp` is one.

    Attributes:
        budget: memory for answers while they are encoded.
        loop_share: what the loop encodes in one turn.
    """

    budget: Budget
    loop_share: LoopShare

    def failed(self, error: BaseException, id_line: bytes, *, oip: bool) -> Response:
        """Return the response of a request that failed, and count it."""
        ...

    def count_ok(self) -> None:
        """Count an answer with status 200."""


class Scoring(Pending):
    """A pending score request; the service delivers its outcome."""

    __slots__ = ("_app", "_id_line", "_request", "ticket")

    def __init__(self, app: Application, request: ScoreRequest, id_line: bytes) -> None:
        self.receiver = None
        self.response = None
        self.ticket: Ticket | None = None
        self._app = app
        self._request = request
        self._id_line = id_line

    def deliver(self, outcome: ScoreResult | HoplineError) -> None:
        """Build the response from the outcome; never raises."""
        self.ticket = None  # break the reference cycle
        try:
            if isinstance(outcome, HoplineError):
                raise outcome
            if not self._app.loop_share.fits(outcome):
                encoding = encode_large(self._app.budget, outcome, functools.partial(self.respond, outcome))
                encoding.add_done_callback(self._encoded)
                return
            response = self.respond(outcome)
        except Exception as error:
            response = self._app.failed(error, self._id_line, oip=self.is_oip)
        else:
            self._app.count_ok()
        self.answer(response)

    def _encoded(self, encoding: asyncio.Future[Response]) -> None:
        """Send an answer that was encoded on a thread."""
        try:
            response = encoding.result()
        except Exception as error:
            response = self._app.failed(error, self._id_line, oip=self.is_oip)
        else:
            self._app.count_ok()
        self.answer(response)

    def cancel(self) -> None:
        """Withdraw the request."""
        ticket, self.ticket = self.ticket, None
        if ticket is not None:
            ticket.cancel()

    is_oip = False

    def respond(self, result: ScoreResult) -> Response:
        """Return the response for a result."""
        return Response(encode_result(result, self._request), 200, JSON, self._id_line)


class Inferring(Scoring):
    """A pending request of the Open Inference Protocol."""

    __slots__ = ("infer",)
    is_oip = True
    infer: InferBody

    def respond(self, result: ScoreResult) -> Response:
        """Return the response for a result."""
        return encode_infer(self.infer, result, self._id_line)


class Working(Pending):
    """Any other pending work: a task, and a function that builds the response from its result."""

    __slots__ = ("_task",)

    def __init__(
        self,
        app: Application,
        task: asyncio.Future[Any],
        respond: Callable[[Any], Response],
        id_line: bytes,
        *,
        oip: bool,
    ) -> None:
        super().__init__()
        self._task = task

        def done(task: asyncio.Future[Any]) -> None:
            if task.cancelled():
                return
            error = task.exception()
            if error is None:
                app.count_ok()
            self.answer(respond(task.result()) if error is None else app.failed(error, id_line, oip=oip))

        task.add_done_callback(done)

    def cancel(self) -> None:
        """Stop the work."""
        self._task.cancel()
