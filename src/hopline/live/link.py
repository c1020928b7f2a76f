"""A client's end of the socket: sends batches to the writer, and reconnects when the connection is lost.

A batch whose answer was lost may have been applied or not. The caller gets an error for that, and may
send the batch again with the same event ids, which the writer recognises.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from hopline.errors import WriterUnavailable
from hopline.graph.live import codec
from hopline.graph.live.changes import Applied, Changes, Ids
from hopline.live import wire
from hopline.process.link import Handshake, Link, LinkLog
from hopline.process.wire import unpack_error

MessageT = TypeVar("MessageT")
log = logging.getLogger(__name__)

#: A snapshot of a large graph takes minutes.
_SNAPSHOT_S = 3600.0
#: Sizes of batches that are encoded, and of outcomes that are decoded, within a millisecond.
_FEW_EVENTS, _FEW_BYTES = 1_000, 64 * 1024
_UNKNOWN = "the change may or may not have been applied: send it again with the same event ids or key"


class WriterLink:
    """A connection to the writer, used from one event loop; see the module."""

    def __init__(
        self,
        path: Path,
        name: str,
        *,
        patience_s: float = 1.0,
        timeout_s: float = 30.0,
        quiet: bool = False,
    ) -> None:
        self._path = path
        self._link = Link(
            path,
            wire.WIRE,
            Handshake(wire.Hello(wire.PROTOCOL, name), wire.Welcome, wire.from_writer, timeout_s=2.0),
            self,
            LinkLog(log, "the live graph's writer", level=logging.DEBUG if quiet else logging.WARNING),
            first_pause_s=0.02,
        )
        self._patience_s, self._timeout_s = patience_s, timeout_s
        self._writer: asyncio.StreamWriter | None = None
        self._up = asyncio.Event()
        self._welcome: wire.Welcome | None = None
        self._numbers = itertools.count(1)
        self._sent: dict[int, asyncio.Future[wire.FromWriter]] = {}

    @property
    def is_up(self) -> bool:
        """True if it is connected."""
        return self._up.is_set()

    @property
    def has_answered(self) -> bool:
        """True if it was connected once."""
        return self._welcome is not None

    def start(self) -> None:
        """Connect, now and whenever the connection is lost."""
        self._link.start()

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()

    async def welcome(self) -> wire.Welcome:
        """The graph of the writer. Raises: WriterUnavailable: no writer answers."""
        await self._connected()
        assert self._welcome is not None
        return self._welcome

    async def apply(self, batches: Sequence[Changes], *, timeout_s: float | None = None) -> list[Applied]:
        """Make batches durable and visible, all in one step.

        Args:
            timeout_s: for the whole call, if shorter than the timeouts of the link.
        Raises:
            WriterUnavailable: nothing was sent, or the answer was lost: the message says which.
            BadRequest, LogFull, LogFailed: nothing was done.
        """
        number = next(self._numbers)
        if sum(each.num_events for each in batches) <= _FEW_EVENTS:
            message = _apply(number, batches)
        else:  # in a thread, so that the event loop is not blocked
            message = await asyncio.to_thread(_apply, number, batches)
        timeout_s = self._timeout_s if timeout_s is None else min(timeout_s, self._timeout_s)
        answer = await self._send(number, message, wire.Outcomes, timeout_s)
        if sum(map(len, answer.outcomes)) <= _FEW_BYTES:
            return list(map(codec.decode_applied, answer.outcomes))
        return await asyncio.to_thread(lambda: list(map(codec.decode_applied, answer.outcomes)))

    async def status(self) -> wire.Status:
        """The state of the graph. Raises: WriterUnavailable."""
        return await self._call("status", wire.Status)

    async def snapshot(self) -> wire.Status:
        """Write a snapshot now; return when it is written.

        Raises: WriterUnavailable. GraphError: it cannot be written.
        """
        return await self._call("snapshot", wire.Status, timeout_s=_SNAPSHOT_S)

    async def drop_history(self) -> None:
        """Drop all that is older than the newest snapshot. Raises: WriterUnavailable. GraphError."""
        await self._call("drop_history", wire.Status)

    async def step_aside(self) -> None:
        """Order the writer to stop, so that another one can write.

        Raises: WriterUnavailable. Conflict: it refuses.
        """
        await self._call("step_aside", wire.Status)

    async def caught_up(self) -> None:
        """Report that the graph has everything that its stream has. Raises: WriterUnavailable."""
        await self._call("caught_up", wire.Status)

    async def affected(self, since: int) -> tuple[int, Mapping[str, Ids]]:
        """The present version, and node type -> ids of nodes whose answers changed after one.

        Raises: WriterUnavailable.
        """
        answer = await self._call("affected", wire.Affected, since)
        return answer.sequence, {name: wire.unpack_ids(ids) for name, ids in answer.nodes.items()}

    async def _connected(self, timeout_s: float = float("inf")) -> asyncio.StreamWriter:
        try:
            async with asyncio.timeout(min(self._patience_s, timeout_s)):
                await self._up.wait()
        except TimeoutError:
            starting = "" if self.has_answered else " (it has not answered yet: it may be starting)"
            raise WriterUnavailable(
                f"the live graph's writer at {self._path} {self._link.problem or 'does not answer'}"
                f"{starting}; nothing was sent"
            ) from None
        assert self._writer is not None
        return self._writer

    async def _call(
        self, what: wire.What, kind: type[MessageT], since: int = 0, timeout_s: float | None = None
    ) -> MessageT:
        number = next(self._numbers)
        message = wire.frame(wire.Call(number, what, since))
        return await self._send(number, message, kind, timeout_s or self._timeout_s)

    async def _send(self, number: int, message: bytes, kind: type[MessageT], timeout_s: float) -> MessageT:
        writer = await self._connected(timeout_s)
        answer: asyncio.Future[wire.FromWriter] = asyncio.get_running_loop().create_future()
        self._sent[number] = answer
        writer.write(message)
        try:
            async with asyncio.timeout(timeout_s):
                await writer.drain()
                found = await answer
        except (TimeoutError, OSError) as error:
            if isinstance(error, WriterUnavailable):
                raise
            why = str(error) or f"within {timeout_s:g} s"
            raise WriterUnavailable(f"the live graph's writer did not answer ({why}); {_UNKNOWN}") from None
        finally:
            self._sent.pop(number, None)
            if answer.done() and not answer.cancelled():
                answer.exception()  # retrieved, in case no caller waits any more
        if isinstance(found, wire.Failed):
            raise unpack_error(found.error)
        if not isinstance(found, kind):
            raise WriterUnavailable(f"the live graph's writer answered {type(found).__name__}")
        return found

    # LinkUser

    def connected(self, welcome: wire.Welcome, writer: asyncio.StreamWriter) -> None:
        """Handle a new connection: the writer accepts requests."""
        self._welcome, self._writer = welcome, writer
        self._up.set()

    def receive(self, message: wire.FromWriter) -> None:
        """Handle an answer of the writer."""
        answer = self._sent.pop(getattr(message, "number", 0), None)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def lost(self) -> None:
        """Fail open requests: they may or may not have been applied."""
        self._up.clear()
        self._writer = None
        sent, self._sent = self._sent, {}
        for answer in sent.values():
            if not answer.done():
                why = f"the live graph's writer ended before it answered; {_UNKNOWN}"
                answer.set_exception(WriterUnavailable(why))


def _apply(number: int, batches: Sequence[Changes]) -> bytes:
    return wire.frame(wire.Apply(number, [codec.encode_changes(each) for each in batches]))
