"""Score requests from a message broker, at least once: a message is settled after its answer is written.

    poll → request → service → answer ─┐
              │         └ refused for now → waits → service
              └ no request → dead letter ┴→ sink → settle

If the server or the broker stops while a request is in progress, the request is delivered and answered
again, with the same request id. This file does not depend on a broker; `queue_answers.py` reads and writes
messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hopline.brokers.base import Message, Outgoing
from hopline.brokers.registry import open_queue, open_sink
from hopline.config.schema import Config, QueuesConfig
from hopline.errors import (
    BadRequest,
    FeatureStoreUnavailable,
    GraphBehind,
    HoplineError,
    ModelNotReady,
    NodeNotFound,
    Overloaded,
    RateLimited,
    RequestTooLarge,
    Unavailable,
)
from hopline.retry import Backoff
from hopline.transports.failure import as_hopline_error
from hopline.types import ScoreRequest, ScoreResult
from hopline_brokers import queue_answers
from hopline_brokers.queue_answers import AnswerWriter

if TYPE_CHECKING:
    from hopline.service import Service

#: Messages that may wait without a place, as a multiple of `queues.concurrency`; bytes of their payloads.
_WAITING, _WAITING_BYTES = 16, 64 * 2**20
#: Waits of a message double from the first to the longest, in seconds. They are longer where more messages
#: wait than `_AT_EASE`, so that the tries of all take a small part of the loop.
_FIRST_S, _LONGEST_S, _AT_EASE = 0.02, 1.0, 500


class Retries:
    """See the module.

        refused ─┬─ its rate accepts too few before its time is up ─► answered with the error
                 ├─ few enough wait ────────────────────────────────► waits, and takes no place
                 ├─ its graph version is missing ───────────────────► answered with the error
                 └─ else ───────────────────────────────────────────► waits, and takes a place

    The last case holds the reader back: a server that refuses everything leaves a backlog at the broker.

    Args:
        settings: `concurrency`.

    Attributes:
        num_waiting: messages that wait to be retried.
        num_apart: those of them that take no place of `queues.concurrency`.
    """

    def __init__(self, settings: QueuesConfig) -> None:
        self.num_waiting = 0
        self.num_apart = 0
        self._most = _WAITING * settings.concurrency
        self._bytes = 0
        #: model -> messages that wait for its rate
        self._of_rate: Counter[str] = Counter()

    def backoff(self) -> Backoff:
        """The waits of one message."""
        return Backoff(_FIRST_S, _LONGEST_S)

    def wait_s(self, backoff: Backoff) -> float:
        """Seconds until the next try: longer if many wait."""
        return backoff.next() * max(1.0, self.num_waiting / _AT_EASE)

    def is_vain(
        self, message: Message, request: ScoreRequest, error: HoplineError, left_s: float, *, is_first: bool
    ) -> bool:
        """True if a message is answered with its error now.

        Args:
            message, request: what was refused.
            error: why.
            left_s: until the message may not be retried any more.
            is_first: True if the message was not retried yet.
        """
        if isinstance(error, RateLimited):
            return is_first and 0 < error.per_s * left_s <= self._of_rate[request.model]
        return isinstance(error, GraphBehind) and not self._has_room(message)

    @contextlib.contextmanager
    def waiting(self, message: Message, request: ScoreRequest, error: HoplineError) -> Iterator[None]:
        """The message waits meanwhile."""
        is_apart, size = self._has_room(message), len(message.payload)
        waits_for_rate = isinstance(error, RateLimited)
        self.num_waiting += 1
        self.num_apart += is_apart
        self._bytes += size * is_apart
        self._of_rate[request.model] += waits_for_rate
        try:
            yield
        finally:
            self.num_waiting -= 1
            self.num_apart -= is_apart
            self._bytes -= size * is_apart
            self._of_rate[request.model] -= waits_for_rate
            if not self._of_rate[request.model]:
                del self._of_rate[request.model]

    def _has_room(self, message: Message) -> bool:
        return self.num_apart < self._most and self._bytes + len(message.payload) <= _WAITING_BYTES


log = logging.getLogger("hopline.brokers")

_SETTING = "queues.requests"
_POLL_S = 0.5
#: Seconds between two reads of the lag.
_LOOK_S = 5.0
#: A message of this size is read within a millisecond.
_SMALL_BYTES = 64 * 1024
#: 249 is Kafka's limit. In NATS, a blank would begin another argument of the protocol.
_TOPIC = re.compile(r"[^\s\x00-\x1f\x7f*>]{1,249}")
_PASSING = (Overloaded, ModelNotReady, FeatureStoreUnavailable, Unavailable)


class _Stopped(Exception):
    """The reader ends before a request was accepted."""


class QueueServer:
    """A reader of the requests of one topic; other readers of its group share the topic.

    Args:
        service: answers the requests.
        config: `queues`.

    Raises: ConfigError: an address that cannot be used.
    """

    def __init__(self, service: Service, config: Config) -> None:
        self._service = service
        self._settings = config.queues
        self._max_bytes = config.server.max_body_bytes
        self._queue = open_queue(config.queues.requests, _SETTING)
        self._sink = open_sink(config.queues.requests, _SETTING)
        self._running: set[asyncio.Task[None]] = set()
        self._free = asyncio.Event()
        #: Requests that the service has, of those that were retried too.
        self._places = asyncio.Semaphore(config.queues.concurrency)
        self._waiting = Retries(config.queues)
        self._answers = AnswerWriter(
            self._sink, self._queue, config.queues, lambda message: self._free.set()
        )
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        metrics = service.metrics
        self._outcomes = metrics.counter(
            "hopline_broker_requests_total", "Messages that were settled, by outcome.", ("outcome",)
        )
        self._seconds = metrics.histogram(
            "hopline_broker_request_seconds", "From a message's arrival at the broker to its answer."
        )()
        self._retries = metrics.counter(
            "hopline_broker_retries_total",
            "Requests that were retried because the server could not accept them.",
        )()
        metrics.gauge(
            "hopline_broker_requests_waiting", "Messages that wait to be retried."
        )().set_function(lambda: self._waiting.num_waiting)
        metrics.gauge("hopline_broker_requests_open", "Messages read and not settled.")().set_function(
            lambda: len(self._running) + self._answers.num_open
        )
        self._lag = metrics.gauge(
            "hopline_broker_lag",
            "Unread messages; the largest value of all workers.",
            merge="max",
        )()
        metrics.gauge(
            "hopline_broker_down_seconds",
            "Seconds since the broker became unreachable; 0 while it is reachable.",
            merge="max",
        )().set_function(self._down_s)

    async def start(self) -> None:
        """Begin to read. Raises: ConfigError: files of the address that cannot be used."""
        await self._sink.open()
        await self._queue.open()
        self._tasks = [
            asyncio.create_task(work(), name=f"queue-{work.__name__}")
            for work in (self._read, self._look, self._keep)
        ]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    async def drain(self, timeout_s: float) -> bool:
        """Stop reading and finish the messages that were read; return True if all were settled in time."""
        self._stopping = True
        self._free.set()
        if not self._tasks:
            return True
        reading, looking, _ = self._tasks
        looking.cancel()
        try:
            async with asyncio.timeout(timeout_s):
                # The reader checks `_stopping` after each poll; messages of the last poll are finished.
                await asyncio.wait({reading})
                await self._answers.drained()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Close the connections to the broker; unsettled messages are delivered again."""
        for task in (*self._tasks, *self._running):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._running, return_exceptions=True)
        await self._answers.close()
        await self._queue.close()
        await self._sink.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.critical(
                "%s failed; requests from the broker are no longer read",
                task.get_name(),
                exc_info=task.exception(),
            )

    async def _read(self) -> None:
        while not self._stopping:
            placed = len(self._running) - self._waiting.num_apart + self._answers.num_held
            free = self._settings.concurrency - placed
            if free <= 0:
                self._free.clear()
                await self._free.wait()
                continue
            for message in await self._queue.poll(free, _POLL_S):
                task = asyncio.create_task(self._handle(message))
                self._running.add(task)
                task.add_done_callback(self._handled)
        if self._running:
            await asyncio.wait(self._running)

    def _handled(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._free.set()

    async def _handle(self, message: Message) -> None:
        """Answer a message, and queue the messages to write."""
        settings = self._settings
        topic = settings.results
        try:
            topic = self._answer_topic(message)
            limit = settings.max_deliveries
            if limit and message.num_deliveries > limit:
                raise BadRequest(f"it was delivered {message.num_deliveries} times and never settled")
            if len(message.payload) <= _SMALL_BYTES:
                request = queue_answers.request_of(message, self._max_bytes)
            else:  # without blocking other requests
                request = await asyncio.to_thread(queue_answers.request_of, message, self._max_bytes)
        except BadRequest as error:
            self._put_aside(message, error, topic)
            return
        try:
            result = await self._answer(message, request)
        except _Stopped:
            return  # the message is delivered to another reader
        except Exception as error:  # a failure of one request must not affect others
            known = as_hopline_error(error, request.request_id)
            # Invalid for every graph and model.
            if isinstance(known, BadRequest) and not isinstance(known, NodeNotFound | RequestTooLarge):
                self._put_aside(message, known, topic)
            else:
                self._refuse(message, known, topic)
            return
        answer = [queue_answers.answer(message, topic, request, result)] if topic else []
        self._finish(message, answer, "ok")

    async def _answer(self, message: Message, request: ScoreRequest) -> ScoreResult:
        """The result of a request, which is retried while the server cannot accept it.

        Raises: HoplineError: of any kind. _Stopped: no try is left before the end of this reader.
        """
        try_until = time.monotonic() + self._settings.retry_s
        if request.deadline is not None:
            try_until = min(try_until, request.deadline)
        waiting, backoff = self._waiting, self._waiting.backoff()
        is_first = True
        await self._places.acquire()
        while True:
            try:
                self._service.check_version(request)
                return await self._service.score(request)
            except _PASSING as error:
                refusal = error
            finally:
                self._places.release()
            if self._stopping:
                raise _Stopped
            wait_s, left_s = waiting.wait_s(backoff), try_until - time.monotonic()
            if wait_s >= left_s or waiting.is_vain(message, request, refusal, left_s, is_first=is_first):
                raise refusal
            with waiting.waiting(message, request, refusal):
                self._free.set()
                await asyncio.sleep(wait_s)
                await self._places.acquire()
            if time.monotonic() >= try_until:  # the loop was busy: the answer names why it waited
                self._places.release()
                raise refusal
            is_first = False
            self._retries.inc()

    def _answer_topic(self, message: Message) -> str:
        """Return the topic for the answer; "" for none.

        Raises: BadRequest: the message names a topic that is not allowed. Otherwise any sender of requests
            could make the server write to every topic that the server may write to.
        """
        wanted, prefix = message.reply_to, self._settings.reply_prefix
        if not wanted:
            return self._settings.results
        if not prefix:
            raise BadRequest(
                f"reply-to {wanted[:100]!r} is not allowed: queues.reply_prefix is not set; set it to the "
                "prefix of reply topics, or send the request without reply-to"
            )
        if not wanted.startswith(prefix):
            raise BadRequest(
                f"reply-to {wanted[:100]!r} is not allowed: reply topics must begin with {prefix!r} "
                "(queues.reply_prefix)"
            )
        if not _TOPIC.fullmatch(wanted) or not wanted.isprintable():
            raise BadRequest(
                f"reply-to {wanted[:100]!r} is an invalid topic: use up to 249 characters without "
                "blanks, *, > and bytes that are not UTF-8"
            )
        return wanted

    def _refuse(self, message: Message, error: HoplineError, topic: str) -> None:
        self._finish(message, [queue_answers.refusal(message, topic, error)] if topic else [], error.code)

    def _put_aside(self, message: Message, error: HoplineError, topic: str) -> None:
        writes = [queue_answers.refusal(message, topic, error)] if topic else []
        dead = self._settings.dead_letters
        if dead:
            writes.append(queue_answers.dead_letter(message, dead, str(error)))
        else:
            log.warning("%s is not a valid request: %s", queue_answers.request_id(message), error)
        self._finish(message, writes, "dead_letter")

    def _finish(self, message: Message, writes: list[Outgoing], outcome: str) -> None:
        self._outcomes(outcome).inc()
        if message.timestamp_ms:
            self._seconds.observe(max(0.0, time.time() - message.timestamp_ms / 1000))
        self._answers.put(message, writes)

    async def _look(self) -> None:
        while True:
            self._lag.set(float(sum((await self._queue.lag()).values())))
            await asyncio.sleep(_LOOK_S)

    async def _keep(self) -> None:
        while True:
            wait_s = await self._queue.keep()
            await asyncio.sleep(wait_s)

    def _down_s(self) -> float:
        health = self._queue.health()
        return 0.0 if health.ok else max(0.0, time.time() - health.since_s)
