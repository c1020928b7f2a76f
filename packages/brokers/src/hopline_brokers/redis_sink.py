"""Sends messages to Redis streams, some hundred in one round trip."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from hopline.brokers.base import Outgoing, Placed, Sink
from hopline.errors import BrokerError, BrokerUnavailable
from hopline_brokers import redis_stream

_AT_ONCE = 500
_CONNECTIONS = 4


class RedisSink(redis_stream.RedisPart, Sink):
    """Writes to streams; see `Sink`. The server's `appendfsync` decides how durable a message is.

    Args:
        text: redis://host:port/0?stream=s&max_len=1000000; the stream is the default of messages without
            one; streams are trimmed to about `max_len` entries, 0 keeps all.
        setting: name of the setting, for errors.
    """

    def __init__(self, text: str, setting: str) -> None:
        super().__init__(text, setting)
        max_len = int(self._address.number("max_len", 0, 0))
        self._trim: tuple[Any, ...] = ("MAXLEN", "~", max_len) if max_len else ()
        #: Each send at a time takes a connection.
        self._turn = asyncio.Semaphore(_CONNECTIONS)

    async def send_each(self, messages: Sequence[Outgoing]) -> list[Placed | BrokerError]:
        """As `Sink.send_each`."""
        outcomes: list[Placed | BrokerError] = []
        for first in range(0, len(messages), _AT_ONCE):
            async with self._turn:
                outcomes += await self._send(messages[first : first + _AT_ONCE])
        return outcomes

    async def _send(self, messages: Sequence[Outgoing]) -> list[Placed | BrokerError]:
        try:
            results = await self._connection.several([self._command(one) for one in messages], atomic=False)
        except redis_stream.FAILURES as error:
            return [self._failed(error, "")] * len(messages)
        return [
            self._outcome(result, message.topic or self._entries.stream)
            for message, result in zip(messages, results, strict=True)
        ]

    def _outcome(self, result: Any, stream: str) -> Placed | BrokerError:
        if isinstance(result, Exception):
            return self._failed(result, stream)
        self._condition.good()
        return Placed(f"redis/{stream}", result.decode())

    def _command(self, message: Outgoing) -> tuple[Any, ...]:
        stream = message.topic or self._entries.stream
        fields = self._entries.fields(message.payload, message.key, message.headers)
        return ("XADD", redis_stream.to_bytes(stream), *self._trim, "*", *fields)

    def _failed(self, error: BaseException, stream: str) -> BrokerError:
        what = f"a message to {stream!r} was rejected: " if stream else ""
        reason = f"{self._address}: {what}{self._words(error)}"
        if not isinstance(error, redis_stream.PASSING):
            return BrokerError(reason)
        self._condition.bad(reason)
        return BrokerUnavailable(reason)
