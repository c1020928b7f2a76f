"""Sends messages to Redis streams, some hundred in one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hopline.brokers import redis_stream
from hopline.brokers.base import Health, Outgoing, Placed
from hopline.brokers.condition import Condition
from hopline.errors import BrokerError, BrokerUnavailable

_AT_ONCE = 500


class RedisSink:
    """Writes to streams; see `Sink`. The server's `appendfsync` decides how durable a message is.

    Args:
        text: redis://host:port/0?stream=s&max_len=1000000; the stream is the default of messages without
            one; streams are trimmed to about `max_len` entries, 0 keeps all.
        setting: name of the setting, for errors.
    """

    def __init__(self, text: str, setting: str) -> None:
        self._address = redis_stream.parse(text, setting)
        self._setting = setting
        self._entries = redis_stream.Entries(self._address)
        max_len = int(self._address.number("max_len", 0, 0))
        self._trim: tuple[Any, ...] = ("MAXLEN", "~", max_len) if max_len else ()
        self._condition = Condition(str(self._address))
        self._connection: redis_stream.Connection | None = None

    async def open(self) -> None:
        """As `Sink.open`."""
        self._connection = redis_stream.Connection(self._address, self._setting)

    async def send(self, messages: Sequence[Outgoing]) -> list[Placed]:
        """As `Sink.send`."""
        placed = []
        assert self._connection is not None
        for first in range(0, len(messages), _AT_ONCE):
            part = messages[first : first + _AT_ONCE]
            try:
                results = await self._connection.several(
                    [self._command(message) for message in part], atomic=False
                )
            except redis_stream.FAILURES as error:
                raise self._failed(error, "") from None
            for message, result in zip(part, results, strict=True):
                stream = message.topic or self._entries.stream
                if isinstance(result, Exception):
                    raise self._failed(result, stream) from None
                placed.append(Placed(f"redis/{stream}", result.decode()))
        self._condition.good()
        return placed

    def health(self) -> Health:
        """As `Sink.health`."""
        return self._condition.health()

    async def close(self) -> None:
        """As `Sink.close`."""
        if self._connection is not None:
            await self._connection.close()

    def _command(self, message: Outgoing) -> tuple[Any, ...]:
        stream = message.topic or self._entries.stream
        fields = self._entries.fields(message.payload, message.key, message.headers)
        return ("XADD", redis_stream.to_bytes(stream), *self._trim, "*", *fields)

    def _failed(self, error: BaseException, stream: str) -> BrokerError:
        what = f"a message to {stream!r} was rejected: " if stream else ""
        reason = f"{self._address}: {what}{redis_stream.words(error, self._address)}"
        if not isinstance(error, redis_stream.PASSING):
            return BrokerError(reason)
        self._condition.bad(reason)
        return BrokerUnavailable(reason)
