"""A JetStream stream whose messages the readers of a durable consumer share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from nats.js import api
from nats.js.errors import NotFoundError

from hopline.brokers.base import Message
from hopline_brokers import nats_stream
from hopline_brokers.nats_stream import Pull, Receipt

#: With a delay, a message is redelivered as after a missing acknowledgement. Without one, nats-server 2.9
#: may count and deliver it wrongly while no reader waits.
_LATER = b'-NAK {"delay": 50000000}'


class NatsQueue(nats_stream.NatsReader):
    """A reader of a durable pull consumer; see `Queue`.

    An existing consumer is used unchanged; else it is created, with explicit acknowledgement.

    Args:
        text: nats://host:port/stream?subject=s&durable=d&ack_wait_s=60
        setting, clock: see `NatsPart`.
    """

    def __init__(self, text: str, setting: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(text, setting, clock)
        self._ack_wait_s = self._address.number("ack_wait_s", 60.0, 0.05)
        #: position -> where to send the acknowledgement of a delivered message.
        self._replies: dict[int, str] = {}
        #: Acknowledgements that could not be sent yet.
        self._settled: list[str] = []

    async def settle(self, messages: Sequence[Message]) -> None:
        """As `Queue.settle`."""
        for message in messages:
            reply = self._replies.pop(int(message.position), None)
            if reply is not None:
                self._settled.append(reply)
        await self._send_settled()

    async def keep(self) -> float:
        """As `Queue.keep`."""
        try:
            for reply in [*self._replies.values()]:
                await self._client.publish(reply, b"+WPI")
        except nats_stream.FAILURES as error:
            self._bad(error)
        return self._ack_wait_s / 4

    async def lag(self) -> dict[str, int]:
        """As `Queue.lag`; as of the last received message."""
        return {} if self._pending is None else {self._partition: self._pending}

    async def close(self) -> None:
        """As `Queue.close`."""
        await self._send_settled()
        if self._is_connected:
            waiting = [] if self._pull is None else [raw.reply for raw, _ in self._pull.waiting]
            try:
                if self._pull is not None:  # or they would be redelivered immediately
                    await self._pull.close()
                for reply in [*self._replies.values(), *waiting]:
                    await self._client.publish(reply, _LATER)
                await self._client.flush(2)
            except nats_stream.FAILURES as error:
                self._bad(error)
        await super().close()

    async def _send_settled(self) -> None:
        if not self._is_connected:
            return
        try:
            while self._settled:
                await self._acknowledge(self._settled[-1])
                self._settled.pop()
        except nats_stream.FAILURES as error:
            self._bad(error)

    async def _connect(self) -> None:
        await super()._connect()
        await self._send_settled()

    async def _find_consumer(self, stream: Any) -> Any:
        try:
            found = await stream.consumer_info(self._stream, self._name)
            self._ack_wait_s = found.config.ack_wait or self._ack_wait_s
            return found
        except NotFoundError:
            latest = self._start == "latest"
            return await stream.add_consumer(
                self._stream,
                api.ConsumerConfig(
                    durable_name=self._name,
                    deliver_policy=api.DeliverPolicy.NEW if latest else api.DeliverPolicy.ALL,
                    ack_policy=api.AckPolicy.EXPLICIT,
                    ack_wait=self._ack_wait_s,
                    filter_subject=self._subject,
                    max_ack_pending=65_536,
                ),
            )

    def _taken(self, pull: Pull, max_messages: int) -> list[Message]:
        taken: list[Message] = []
        while pull.waiting and len(taken) < max_messages:
            raw, receipt = pull.waiting.popleft()
            message = nats_stream.message_of(raw, receipt, self._partition)
            held = self._replies.get(receipt.stream_seq + 1)
            self._replies[receipt.stream_seq + 1] = raw.reply
            self._pending = receipt.pending
            # A message that is held for longer than `ack_wait_s` comes again; a new stream of the same name
            # has other times.
            if held is None or Receipt.read(held).timestamp_ms != receipt.timestamp_ms:
                taken.append(message)
        return taken
