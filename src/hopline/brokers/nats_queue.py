"""A JetStream stream whose messages the readers of a durable consumer share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from nats.js import api
from nats.js.errors import NotFoundError

from hopline.brokers import nats_stream
from hopline.brokers.base import Health, Message
from hopline.brokers.condition import Condition
from hopline.brokers.nats_stream import Pull, Receipt
from hopline.retry import Backoff

_SLICE_S = 0.5
#: With a delay, a message is redelivered as after a missing acknowledgement. Without one, nats-server 2.9
#: may count and deliver it wrongly while no reader waits.
_LATER = b'-NAK {"delay": 50000000}'


class NatsQueue:
    """A reader of a durable pull consumer; see `Queue`.

    An existing consumer is used unchanged; else it is created, with explicit acknowledgement.

    Args:
        text: nats://host:port/stream?subject=s&durable=d&ack_wait_s=60
        setting: name of the setting, for errors.
        clock: seconds, for waits.
    """

    def __init__(self, text: str, setting: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = nats_stream.parse(text, setting)
        self._stream = self._address.path
        self._subject = self._address.text("subject") or None
        self._durable = nats_stream.durable_name(self._address)
        self._start = self._address.choice("start", ("earliest", "latest"))
        self._ack_wait_s = self._address.number("ack_wait_s", 60.0, 0.05)
        self._partition = f"nats/{self._stream}"
        self._condition = Condition(str(self._address))
        self._backoff = Backoff()
        self._clock = clock
        self._client: Any = None
        self._pull: Pull | None = None
        self._pending: int | None = None
        #: position -> where to send the acknowledgement of a delivered message.
        self._replies: dict[int, str] = {}
        #: Acknowledgements that could not be sent yet.
        self._settled: list[str] = []

    async def open(self) -> None:
        """As `Queue.open`."""
        self._address.tls()  # raises an error for unusable files

    async def poll(self, max_messages: int, max_wait_s: float) -> list[Message]:
        """As `Queue.poll`."""
        end = self._clock() + max_wait_s
        while True:
            left_s = max(0.0, end - self._clock())
            try:
                if (
                    self._client is None
                    or self._client.is_closed
                    or self._pull is None
                    or self._pull.broken
                ):
                    await self._connect()
                assert self._pull is not None
                await self._pull.wait(max_messages, min(left_s, _SLICE_S))
                messages = self._taken(self._pull, max_messages)
                if messages or self._clock() >= end:
                    return messages
            except nats_stream.FAILURES as error:
                self._condition.bad(nats_stream.words(error, self._address))
                await asyncio.sleep(min(self._backoff.next(), left_s))
                if self._clock() >= end:
                    return []

    async def settle(self, messages: Sequence[Message]) -> None:
        """As `Queue.settle`."""
        for message in messages:
            reply = self._replies.pop(int(message.position), None)
            if reply is not None:
                self._settled.append(reply)
        await self._send_settled()

    async def lag(self) -> dict[str, int]:
        """As `Queue.lag`; as of the last received message."""
        return {} if self._pending is None else {self._partition: self._pending}

    def health(self) -> Health:
        """As `Queue.health`."""
        return self._condition.health()

    async def close(self) -> None:
        """As `Queue.close`."""
        await self._send_settled()
        if self._client is not None and not self._client.is_closed:
            waiting = [] if self._pull is None else [raw.reply for raw in self._pull.waiting]
            try:
                if self._pull is not None:  # or they would be redelivered immediately
                    await self._pull.close()
                for reply in [*self._replies.values(), *waiting]:
                    await self._client.publish(reply, _LATER)
                await self._client.flush(2)
            except nats_stream.FAILURES as error:
                self._condition.bad(nats_stream.words(error, self._address))
        self._condition.leave()
        await nats_stream.end(self._client)

    async def _send_settled(self) -> None:
        if self._client is None or self._client.is_closed:
            return
        try:
            while self._settled:
                await self._client.publish(self._settled[-1], b"+ACK")
                self._settled.pop()
        except nats_stream.FAILURES as error:
            self._condition.bad(nats_stream.words(error, self._address))

    async def _connect(self) -> None:
        if self._client is None or self._client.is_closed:
            self._client = await nats_stream.connect(self._address, self._condition)
        self._pull = None
        stream = self._client.jetstream(timeout=2)
        try:
            there = await stream.consumer_info(self._stream, self._durable)
        except NotFoundError:
            latest = self._start == "latest"
            there = await stream.add_consumer(
                self._stream,
                api.ConsumerConfig(
                    durable_name=self._durable,
                    deliver_policy=api.DeliverPolicy.NEW if latest else api.DeliverPolicy.ALL,
                    ack_policy=api.AckPolicy.EXPLICIT,
                    ack_wait=self._ack_wait_s,
                    filter_subject=self._subject,
                    max_ack_pending=65_536,
                ),
            )
        self._pending = there.num_pending
        pull = Pull(self._client, self._stream, self._durable, self._clock)
        await pull.open()
        self._pull = pull
        await self._send_settled()
        self._condition.good()
        self._backoff.reset()

    def _taken(self, pull: Pull, max_messages: int) -> list[Message]:
        taken: list[Message] = []
        while pull.waiting and len(taken) < max_messages:
            raw = pull.waiting.popleft()
            try:
                receipt = Receipt.read(raw.reply)
            except ValueError:
                continue  # not from JetStream: another client's message to our inbox
            message = nats_stream.message_of(raw, receipt, self._partition)
            held = self._replies.get(receipt.stream_seq + 1)
            self._replies[receipt.stream_seq + 1] = raw.reply
            self._pending = receipt.pending
            # A message that is held for longer than `ack_wait_s` comes again; a new stream of the same name
            # has other times.
            if held is None or Receipt.read(held).timestamp_ms != receipt.timestamp_ms:
                taken.append(message)
        return taken
