"""Sends messages to Kafka: idempotent, and acknowledged by all in-sync replicas."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from hopline.brokers.base import Outgoing, Placed, Sink
from hopline.errors import BrokerError, BrokerUnavailable
from hopline_brokers import kafka

_SLICE_S = 0.1
_FULL_S = 0.005
_PASSING = (
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
)


class KafkaSink(kafka.KafkaPart, Sink):
    """A producer; see `Sink`.

    Args:
        text: kafka://host:port/topic?timeout_s=30; the topic is the default of messages without one.
        setting: name of the setting, for errors.
    """

    def __init__(self, text: str, setting: str) -> None:
        super().__init__(text, setting)
        only = kafka.partition_of(self._address)
        self._partition = {} if only is None else {"partition": only}
        self._timeout_s = self._address.number("timeout_s", 30.0, 0.1)
        self._producer: Any = None
        self._thread: threading.Thread | None = None
        self._closing = False

    async def open(self) -> None:
        """As `Sink.open`."""
        self._start()
        self._thread = threading.Thread(target=self._serve, name="hopline-kafka-sink", daemon=True)
        self._thread.start()

    async def send_each(self, messages: Sequence[Outgoing]) -> list[Placed | BrokerError]:
        """As `Sink.send_each`."""
        if not messages:
            return []
        batch, producer = _Batch(len(messages), asyncio.get_running_loop()), self._producer
        for at, message in enumerate(messages):
            while not self._produced(message, batch, at):  # noqa: ASYNC110 - the driver's queue is full
                await asyncio.sleep(_FULL_S)
        await batch.wait()
        if any(isinstance(one, KafkaError) and one.fatal() for one in batch.outcomes):
            self._replace(producer)
        if all(isinstance(outcome, Placed) for outcome in batch.outcomes):
            self._condition.good()
        return [
            outcome if isinstance(outcome, Placed) else self._failure(outcome, message.topic)
            for outcome, message in zip(batch.outcomes, messages, strict=True)
        ]

    async def close(self) -> None:
        """As `Sink.close`."""
        self._closing = True
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
        self._producer = None

    def _start(self) -> None:
        settings = {
            "enable.idempotence": True,
            "acks": "all",
            "delivery.timeout.ms": round(1000 * self._timeout_s),
        }
        if "linger.ms" not in self._address.options:
            settings["linger.ms"] = 1
        self._producer = self._driver(Producer, settings)

    def _serve(self) -> None:
        while not self._closing:
            self._producer.poll(_SLICE_S)  # calls `_Batch.done`

    def _produced(self, message: Outgoing, batch: _Batch, at: int) -> bool:
        """Hand a message to the driver; False where it has no room."""
        try:
            self._producer.produce(
                message.topic or self._topic,
                message.payload,
                key=_bytes(message.key) if message.key else None,
                headers=[(name, _bytes(value)) for name, value in message.headers.items()],
                on_delivery=partial(batch.done, at),
                **self._partition,
            )
        except BufferError:
            return False
        except KafkaException as error:
            batch.done(at, error.args[0], None)
        except (UnicodeError, ValueError, TypeError) as error:  # a name that the driver cannot write
            batch.done(at, error, None)
        return True

    def _failure(self, error: KafkaError | Exception, topic: str) -> BrokerError:
        topic = topic or self._topic
        reason = f"{self._address}: a message to {topic!r} was rejected: {self._words(error)}"
        if not isinstance(error, KafkaError):
            return BrokerError(reason)
        if error.fatal() or error.retriable() or error.code() in _PASSING:
            self._condition.bad(reason)
            return BrokerUnavailable(reason)
        return BrokerError(reason)

    def _replace(self, useless: Any) -> None:
        """Start another producer: after a fatal error this one fails all messages."""
        if useless is self._producer:
            self._start()
            useless.purge()
            useless.poll(0)


class _Batch:
    """Messages that are sent together; `done` is called from the sink's thread, or from the loop.

    Attributes:
        outcomes: of each message, once `wait` has returned: its place, or the driver's error.
    """

    def __init__(self, size: int, loop: asyncio.AbstractEventLoop) -> None:
        self._left = size
        self._loop = loop
        self._end = asyncio.Event()
        self._lock = threading.Lock()
        self.outcomes: list[Any] = [None] * size

    def done(self, at: int, error: KafkaError | Exception | None, raw: Any) -> None:
        outcome: Any = error
        if error is None:
            outcome = Placed(f"kafka/{raw.topic()}/{raw.partition()}", raw.offset() + 1)
        with self._lock:
            self.outcomes[at] = outcome
            self._left -= 1
            last = not self._left
        if last and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end.set)

    async def wait(self) -> None:
        await self._end.wait()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
