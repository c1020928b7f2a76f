"""Sends messages to JetStream, each acknowledged by the stream that stored it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import nats.errors

from hopline.brokers import nats_stream
from hopline.brokers.base import Health, Outgoing, Placed
from hopline.brokers.condition import Backoff, Condition
from hopline.errors import BrokerError, BrokerUnavailable

_AT_ONCE = 1000


class _Refusal(msgspec.Struct):
    code: int = 0
    description: str = ""


class _Ack(msgspec.Struct):
    """A stream's answer to a message."""

    error: _Refusal | None = None
    stream: str = ""
    seq: int = 0


class NatsSink:
    """A publisher; see `Sink`.

    Args:
        text: nats://host:port/stream?subject=s&timeout_s=10; the subject is the default of messages without
            one.
        setting: name of the setting, for errors.
        clock: seconds, for the wait before a connection is tried again.
    """

    def __init__(self, text: str, setting: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = nats_stream.parse(text, setting)
        self._timeout_s = self._address.number("timeout_s", 10.0, 0.1)
        self._condition = Condition(str(self._address))
        self._backoff = Backoff()
        self._clock = clock
        self._try_at = 0.0
        self._client: Any = None
        self._connecting = asyncio.Lock()
        self._inbox = ""
        self._sent = 0
        self._answers: dict[str, asyncio.Future[Any]] = {}

    async def open(self) -> None:
        """As `Sink.open`."""
        self._address.tls()  # raises an error for unusable files

    async def send(self, messages: Sequence[Outgoing]) -> list[Placed]:
        """As `Sink.send`."""
        placed = []
        for first in range(0, len(messages), _AT_ONCE):
            placed += await self._send(messages[first : first + _AT_ONCE])
        return placed

    def health(self) -> Health:
        """As `Sink.health`."""
        return self._condition.health()

    async def close(self) -> None:
        """As `Sink.close`."""
        self._condition.leave()
        await nats_stream.end(self._client)

    async def _send(self, messages: Sequence[Outgoing]) -> list[Placed]:
        waiting: dict[str, asyncio.Future[Any]] = {}
        placed = []
        subject = ""
        try:
            await self._connect()
            async with asyncio.timeout(self._timeout_s):
                for message in messages:
                    subject = message.topic or self._address.text("subject") or self._address.path
                    await self._publish(message, subject, waiting)
                for message, answer in zip(messages, waiting.values(), strict=True):
                    subject = message.topic or self._address.text("subject") or self._address.path
                    ack = self._check(await answer, subject)
                    placed.append(Placed(f"nats/{ack.stream}", ack.seq + 1))
        except nats_stream.FAILURES as error:
            raise self._failed(error, subject) from None
        finally:
            for token in waiting:
                self._answers.pop(token, None)
        self._condition.good()
        return placed

    async def _publish(self, message: Outgoing, subject: str, waiting: dict[str, Any]) -> None:
        self._sent += 1
        token = f"{self._inbox}.{self._sent}"
        future = asyncio.get_running_loop().create_future()
        self._answers[token] = waiting[token] = future
        headers = nats_stream.headers_of(message.key, message.headers)
        await self._client.publish(subject, message.payload, reply=token, headers=headers)

    def _check(self, raw: Any, subject: str) -> _Ack:
        if raw is None:
            raise nats.errors.ConnectionClosedError
        if (raw.headers or {}).get("Status") == "503":
            raise BrokerError(f"{self._address}: no stream stores messages of the subject {subject!r}")
        ack = msgspec.json.decode(raw.data, type=_Ack)
        error = ack.error
        if error is None:
            return ack
        reason = f"{self._address}: a message to {subject!r} was rejected: {error.description}"
        raise BrokerUnavailable(reason) if error.code >= 500 else BrokerError(reason)

    def _failed(self, error: BaseException, subject: str) -> BrokerError:
        reason = f"{self._address}: {nats_stream.words(error, self._address)}"
        lasting = nats.errors.MaxPayloadError | nats.errors.BadSubjectError | nats.errors.BadHeaderError
        if isinstance(error, lasting):
            return BrokerError(f"{reason} (a message to {subject!r})")
        self._condition.bad(reason)
        return BrokerUnavailable(reason)

    async def _connect(self) -> None:
        async with self._connecting:
            if self._client is not None and not self._client.is_closed:
                return
            if self._clock() < self._try_at:
                raise nats.errors.NoServersError
            try:
                self._client = await nats_stream.connect(self._address, self._condition, self._give_up)
            except nats_stream.FAILURES:
                self._try_at = self._clock() + self._backoff.next()
                raise
            self._backoff.reset()
            self._inbox = f"_INBOX.{secrets.token_hex(11)}"
            await self._client.subscribe(f"{self._inbox}.*", cb=self._answered)

    def _give_up(self) -> None:
        """Fail messages of a connection that ended: they will not be acknowledged."""
        for future in self._answers.values():
            if not future.done():
                future.set_result(None)

    async def _answered(self, raw: Any) -> None:
        future = self._answers.get(raw.subject)
        if future is not None and not future.done():
            future.set_result(raw)
