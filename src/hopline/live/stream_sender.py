"""Changes that a worker receives over HTTP, for a graph that follows a stream: sent to that stream.

All servers of the fleet then apply them at the same place. The answer names the version that has them.
"""

from __future__ import annotations

import asyncio
import time

from hopline.brokers.base import Outgoing, Sink
from hopline.brokers.registry import open_sink
from hopline.errors import (
    BadRequest,
    BrokerError,
    BrokerUnavailable,
    DeadlineExceeded,
    WriterUnavailable,
)
from hopline.graph.live.version import StreamOffset, offset_at

_UNKNOWN = "the events may or may not be in the stream: send them again with the same event ids"


class StreamSender:
    """Sends events to the stream that the graph follows.

    Args:
        address: of the stream.
    """

    def __init__(self, address: str) -> None:
        self._sink: Sink = open_sink(address, "live.stream")
        self._opened: asyncio.Task[None] | None = None

    async def send(self, payload: bytes, deadline: float | None) -> StreamOffset:
        """Send one message; returns its place in the stream.

        Raises:
            DeadlineExceeded: nothing was sent.
            WriterUnavailable: the message may or may not have been sent.
            BadRequest: the broker refuses the message.
        """
        left_s = None if deadline is None else deadline - time.monotonic()
        if left_s is not None and left_s <= 0:
            raise DeadlineExceeded("the deadline passed before the events were sent to the stream")
        if self._opened is None:
            self._opened = asyncio.ensure_future(self._sink.open())
        try:
            async with asyncio.timeout(left_s):
                await asyncio.shield(self._opened)
                # not cancelled: the driver's state must not depend on a caller's patience
                (placed,) = await asyncio.shield(self._sink.send([Outgoing(payload)]))
        except TimeoutError:
            raise WriterUnavailable(f"the stream did not answer in time; {_UNKNOWN}") from None
        except BrokerUnavailable as error:
            raise WriterUnavailable(f"{error}; {_UNKNOWN}", error.retry_after_s) from None
        except BrokerError as error:
            raise BadRequest(f"{error}; send fewer events in one request") from None
        return offset_at(placed.position)

    async def close(self) -> None:
        """Close the connection."""
        if self._opened is not None:
            await self._opened
            await self._sink.close()
