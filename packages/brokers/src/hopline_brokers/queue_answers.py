"""Writes answers and dead letters to a broker; a message is settled once all of its writes are stored.

Each topic has a separate lane. What the broker refuses or does not acknowledge in one topic, such as a
`reply-to` that a caller chose, does not delay or repeat what goes to another one.

    answer ─► lane of its topic ─► sink ─► settle
                 └ refused, or not taken in time ─► lane of the dead letters

The payload of a request is the JSON of `POST /v1/models/<m>/score` with an additional `model`. The payload
of an answer is the body of the HTTP response, for errors too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from hopline.brokers.base import Message, Outgoing, Placed, Queue, Sink
from hopline.config.schema import QueuesConfig
from hopline.errors import (
    BadRequest,
    BrokerError,
    BrokerUnavailable,
    HoplineError,
    RequestTooLarge,
    public_text,
)
from hopline.retry import Backoff
from hopline.transports.http_errors import encode_json, error_details
from hopline.transports.json_body import decode_body
from hopline.transports.score_json import (
    OPTIONS,
    InputsBody,
    deadline_after,
    encode_result,
    refuse_repeated_names,
    score_request,
)
from hopline.transports.traces import join_trace
from hopline.types import ScoreRequest, ScoreResult

log = logging.getLogger("hopline.brokers")

REQUEST_ID = "request-id"
#: Header of an error answer: its code, as in the HTTP header of that name.
ERROR = "hopline-error"
#: Headers of a dead letter: the reason, and the original position.
REASON = "hopline-reason"
ORIGIN = "hopline-origin"
_LONGEST_REASON = 1000
_LONGEST_ID = 256


class _ModelBody(InputsBody, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A score request that names its model."""

    model: str


QueuedBody: Any = msgspec.defstruct(
    "QueuedBody", OPTIONS, bases=(_ModelBody,), forbid_unknown_fields=True, gc=False, module=__name__
)

_decode: Callable[[bytes | memoryview], _ModelBody]
_decode = msgspec.json.Decoder(QueuedBody).decode


def request_of(message: Message, max_bytes: int) -> ScoreRequest:
    """Return the request in a message; its time limit starts now.

    Raises: BadRequest: the message is not a valid request. RequestTooLarge: it has more than `max_bytes`.
    """
    if message.problem:
        raise BadRequest(message.problem)
    if len(message.payload) > max_bytes:
        raise RequestTooLarge(
            f"the message has {len(message.payload)} bytes; the limit is {max_bytes} "
            "(server.max_body_bytes)"
        )
    body = decode_body(
        message.payload, _decode, QueuedBody, "the message", '{"model": "risk", "nodes": [42]}'
    )
    refuse_repeated_names(body, message.payload)
    deadline = deadline_after(body.timeout_ms, None, time.monotonic())
    request = score_request(body.model, None, body, deadline, request_id(message))
    traceparent = message.headers.get("traceparent")
    if traceparent:
        join_trace(request, traceparent.encode("utf-8", "surrogateescape"))
    return request


def request_id(message: Message) -> str:
    """Return the sender's request id, or the message's position, which is the same for each delivery.

    An id that is too long or not printable is ignored: it would be in each line of the logs.
    """
    own = message.headers.get(REQUEST_ID, "")
    return (
        own
        if 0 < len(own) <= _LONGEST_ID and own.isprintable()
        else f"{message.partition}@{message.position}"
    )


def answer(message: Message, topic: str, request: ScoreRequest, result: ScoreResult) -> Outgoing:
    """Return the message that answers a request."""
    headers = _headers(message)
    return Outgoing(encode_result(result, request), topic, message.key, headers)


def refusal(message: Message, topic: str, error: HoplineError) -> Outgoing:
    """Return the message that answers a request with an error."""
    body = {"error": {"code": error.code, "message": public_text(str(error)), **error_details(error)}}
    return Outgoing(encode_json(body), topic, message.key, {**_headers(message), ERROR: error.code})


def dead_letter(message: Message, topic: str, reason: str) -> Outgoing:
    """Return a copy of the message with the reason why it became a dead letter."""
    origin = f"{message.partition}@{message.position}"
    headers = {**message.headers, REASON: reason[:_LONGEST_REASON], ORIGIN: origin}
    return Outgoing(message.payload, topic, message.key, headers)


def _headers(message: Message) -> dict[str, str]:
    headers = {REQUEST_ID: request_id(message)}
    traceparent = message.headers.get("traceparent")
    return {**headers, "traceparent": traceparent} if traceparent else headers


#: Messages sent together.
_AT_ONCE = 500
#: Answers to callers' topics that may wait, as a multiple of `queues.concurrency`; more take its places.
_WAITING = 16


class _Unsettled:
    """A message, and how many of its writes are not stored."""

    __slots__ = ("left", "message")

    def __init__(self, message: Message, left: int) -> None:
        self.message = message
        self.left = left


class _Write:
    """One message to write. `first_failure`: on the monotonic clock; 0 before one."""

    __slots__ = ("first_failure", "item", "outgoing")

    def __init__(self, item: _Unsettled, outgoing: Outgoing) -> None:
        self.item = item
        self.outgoing = outgoing
        self.first_failure = 0.0


class AnswerWriter:
    """Writes what answers messages, and settles them.

    Args:
        sink: open.
        queue: of the messages.
        settings: `results`, `dead_letters`, `concurrency`, `retry_s`.
        settled: is called with each message that was settled.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        sink: Sink,
        queue: Queue,
        settings: QueuesConfig,
        settled: Callable[[Message], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sink = sink
        self._queue = queue
        self._settings = settings
        self._settled = settled
        self._clock = clock
        self._own = {settings.results, settings.dead_letters}
        self._lanes: dict[str, deque[_Write]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: Messages whose writes are stored.
        self._done: list[Message] = []
        self._settling: asyncio.Task[None] | None = None
        #: Messages that are not settled.
        self.num_open = 0
        self._num_replies = 0

    @property
    def num_held(self) -> int:
        """Messages that take a place of `queues.concurrency`.

        Those that only wait for a caller's topic take none, within a bound.
        """
        return self.num_open - min(self._num_replies, _WAITING * self._settings.concurrency)

    def put(self, message: Message, writes: Sequence[Outgoing]) -> None:
        """Write these, and then settle the message."""
        self.num_open += 1
        item = _Unsettled(message, len(writes))
        if not writes:
            self._finish(item)
        for outgoing in writes:
            self._enter(_Write(item, outgoing))

    async def drained(self) -> None:
        """Wait until everything is written and settled."""
        while tasks := self._all():
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Write no more; messages that are not settled are delivered again."""
        tasks = self._all()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _all(self) -> set[asyncio.Task[None]]:
        return self._tasks | ({self._settling} if self._settling is not None else set())

    def _enter(self, write: _Write) -> None:
        topic = write.outgoing.topic
        self._num_replies += topic not in self._own
        lane = self._lanes.get(topic)
        if lane is not None:
            lane.append(write)
            return
        self._lanes[topic] = lane = deque([write])
        task = asyncio.create_task(self._run(topic, lane), name="queue-answers")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, topic: str, lane: deque[_Write]) -> None:
        """Write everything of one topic."""
        backoff = Backoff()
        while lane:
            writes = [lane.popleft() for _ in range(min(len(lane), _AT_ONCE))]
            again = []
            for write, outcome in zip(writes, await self._send(writes), strict=True):
                if isinstance(outcome, Placed):
                    self._stored(write)
                elif isinstance(outcome, BrokerUnavailable) and not self._is_late(write):
                    again.append(write)
                else:
                    self._refused(write, outcome)
            if again:
                lane.extendleft(reversed(again))
                await asyncio.sleep(backoff.next())
            else:
                backoff.reset()
        del self._lanes[topic]

    async def _send(self, writes: Sequence[_Write]) -> Sequence[Placed | BrokerError]:
        try:
            return await self._sink.send_each([write.outgoing for write in writes])
        except Exception as error:  # one message must not end the writing of all others
            if len(writes) == 1:
                log.exception("writing a message failed")
                return [BrokerError(f"writing the message failed: {type(error).__name__}")]
        return [outcome for write in writes for outcome in await self._send([write])]

    def _is_late(self, write: _Write) -> bool:
        """True if a topic has not taken a message for `retry_s`, although the broker was reachable.

        The topics of the settings are waited for without limit.
        """
        if write.outgoing.topic in self._own:
            return False
        now = self._clock()
        write.first_failure = write.first_failure or now
        health = self._queue.health()
        reachable_s = time.time() - health.since_s if health.ok else 0.0
        return min(now - write.first_failure, reachable_s) > self._settings.retry_s

    def _refused(self, write: _Write, error: BrokerError) -> None:
        message, dead = write.item.message, self._settings.dead_letters
        log.error("writing the answer to %s failed: %s", request_id(message), error)
        if dead and write.outgoing.topic != dead:
            write.item.left += 1
            self._enter(_Write(write.item, dead_letter(message, dead, str(error))))
        self._stored(write)

    def _stored(self, write: _Write) -> None:
        self._num_replies -= write.outgoing.topic not in self._own
        write.item.left -= 1
        if not write.item.left:
            self._finish(write.item)

    def _finish(self, item: _Unsettled) -> None:
        self._done.append(item.message)
        if self._settling is None:
            self._settling = asyncio.create_task(self._settle(), name="queue-settle")

    async def _settle(self) -> None:
        while self._done:
            done, self._done = self._done, []
            await self._queue.settle(done)
            self.num_open -= len(done)
            for message in done:
                self._settled(message)
        self._settling = None
