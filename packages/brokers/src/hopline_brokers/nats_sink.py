"""Sends messages to JetStream, each acknowledged by the stream that stored it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import nats.errors

from hopline.brokers.base import Outgoing, Placed, Sink
from hopline.errors import BrokerError, BrokerUnavailable
from hopline.types import UNREADABLE
from hopline_brokers import nats_stream

_AT_ONCE = 1000
#: Errors of one message, which another attempt would meet again.
_LASTING = (
    nats.errors.MaxPayloadError,
    nats.errors.BadSubjectError,
    nats.errors.BadHeaderError,
    UnicodeError,
)


class _Refusal(msgspec.Struct):
    code: int = 0
    description: str = ""


class _Ack(msgspec.Struct):
    """A stream's answer to a message."""

    error: _Refusal | None = None
    stream: str = ""
    seq: int = 0


class NatsSink(nats_stream.NatsPart, Sink):
    """A publisher; see `Sink`.

    Args:
        text: nats://host:port/stream?subject=s&timeout_s=10; the subject is the default of messages without
            one.
        setting, clock: see `NatsPart`.
    """

    def __init__(self, text: str, setting: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(text, setting, clock)
        self._timeout_s = self._address.number("timeout_s", 10.0, 0.1)
        self._try_at = 0.0
        self._connecting = asyncio.Lock()
        self._inbox = ""
        self._sent = 0
        self._answers: dict[str, asyncio.Future[Any]] = {}

    async def send_each(self, messages: Sequence[Outgoing]) -> list[Placed | BrokerError]:
        """As `Sink.send_each`."""
        outcomes: list[Placed | BrokerError] = []
        for first in range(0, len(messages), _AT_ONCE):
            outcomes += await self._send(messages[first : first + _AT_ONCE])
        return outcomes

    async def _send(self, messages: Sequence[Outgoing]) -> list[Placed | BrokerError]:
        waiting: list[tuple[str, str, asyncio.Future[Any] | BrokerError]] = []
        failed: BrokerUnavailable | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._connect()
                for message in messages:
                    subject = message.topic or self._address.text("subject") or self._address.path
                    waiting.append(await self._publish(message, subject))
                answers = [answer for _, _, answer in waiting if not isinstance(answer, BrokerError)]
                if answers:
                    await asyncio.wait(answers)
        except nats_stream.FAILURES as error:
            failed = BrokerUnavailable(f"{self._address}: {self._words(error)}")
        for token, _, _ in waiting:
            self._answers.pop(token, None)
        unanswered = failed or BrokerUnavailable(f"{self._address}: the connection ended")
        outcomes = [self._outcome(answer, subject, unanswered) for _, subject, answer in waiting]
        outcomes += [unanswered] * (len(messages) - len(outcomes))
        if all(outcome is unanswered for outcome in outcomes):
            self._condition.bad(str(unanswered))
        else:  # the server answers, if not for every subject
            self._condition.good()
        return outcomes

    async def _publish(
        self, message: Outgoing, subject: str
    ) -> tuple[str, str, asyncio.Future[Any] | BrokerError]:
        """Send one message; returns its token, its subject, and its answer or why it cannot be sent."""
        self._sent += 1
        token = f"{self._inbox}.{self._sent}"
        future = asyncio.get_running_loop().create_future()
        self._answers[token] = future
        try:
            headers = nats_stream.headers_of(message.key, message.headers)
            await self._client.publish(subject, message.payload, reply=token, headers=headers)
        except _LASTING as error:
            why = f"{self._address}: {self._words(error)} (a message to {subject!r})"
            return token, subject, BrokerError(why)
        return token, subject, future

    def _outcome(
        self, answer: asyncio.Future[Any] | BrokerError, subject: str, unanswered: BrokerError
    ) -> Placed | BrokerError:
        if isinstance(answer, BrokerError):
            return answer
        raw = answer.result() if answer.done() else None
        if raw is None:
            return unanswered
        if (raw.headers or {}).get("Status") == "503":
            return BrokerError(f"{self._address}: no stream stores messages of the subject {subject!r}")
        try:
            ack = msgspec.json.decode(raw.data, type=_Ack)
        except UNREADABLE:
            ack = _Ack()
        if ack.error is not None:
            reason = f"{self._address}: a message to {subject!r} was rejected: {ack.error.description}"
            return BrokerUnavailable(reason) if ack.error.code >= 500 else BrokerError(reason)
        if not ack.stream:
            return BrokerError(
                f"{self._address}: a subscriber of {subject!r} answered in place of a stream; "
                "only messages that a stream stores are safe"
            )
        return Placed(f"nats/{ack.stream}", ack.seq + 1)

    async def _connect(self) -> None:
        async with self._connecting:
            if self._is_connected:
                return
            if self._clock() < self._try_at:
                raise nats.errors.NoServersError
            try:
                self._client = await self._new_client(self._give_up)
            except nats_stream.FAILURES:
                self._try_at = self._clock() + self._condition.wait_s()
                raise
            self._condition.good()
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
