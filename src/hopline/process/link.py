"""The connecting end of a wire over a Unix socket: connects, and again whenever the connection is lost.

Knows the handshake, when to try again and what to log; nothing of what is said after the welcome.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from hopline.process.wire import Refusal, Wire, WireError
from hopline.retry import Backoff


class LinkUser(Protocol):
    """Receiver of a link's reports. Called on the event loop."""

    def connected(self, welcome: Any, writer: asyncio.StreamWriter) -> None:
        """The other end has welcomed this one; messages may be written from now on."""

    def receive(self, message: Any) -> None:
        """A message has come. Raises: WireError: it is not what the other end may send."""

    def lost(self) -> None:
        """The connection has ended; another one is tried."""


@dataclass(frozen=True, slots=True)
class Handshake:
    """The first messages of a connection.

    Attributes:
        hello: the first message.
        welcome: class of its answer.
        decoder: of all messages of the other end, `Refusal` included.
        timeout_s: longest time for connection and welcome, in seconds.
    """

    hello: msgspec.Struct
    welcome: type[Any]
    decoder: msgspec.msgpack.Decoder[Any]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class LinkLog:
    """Log of a connection's states.

    Attributes:
        log: the logger.
        peer: name of the other end.
        consequence: what its absence causes; "" for nothing to say.
        level: of lines about its absence.
    """

    log: logging.Logger
    peer: str
    consequence: str = ""
    level: int = logging.WARNING

    def write(self, path: Path, problem: str) -> None:
        """Log a problem of the connection at a path."""
        after = self.consequence and f"; {self.consequence}"
        self.log.log(self.level, "%s at %s %s%s", self.peer, path, problem, after)

    def write_up(self, path: Path) -> None:
        """Log that the other end answers."""
        self.log.log(min(self.level, logging.INFO), "%s at %s answers", self.peer, path)


class Link:
    """See the module. Used from one event loop.

    Attributes:
        problem: why there is no connection, as it was logged last; "" while there is one.
    """

    def __init__(
        self,
        path: Path,
        wire: Wire,
        handshake: Handshake,
        user: LinkUser,
        report: LinkLog,
        *,
        first_pause_s: float,
    ) -> None:
        self.problem = ""
        self._path = path
        self._wire = wire
        self._handshake = handshake
        self._user = user
        self._log = report
        self._backoff = Backoff(first_pause_s, 1.0, spread=0.3)
        self._keeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, now and whenever the connection is lost."""
        self._keeper = asyncio.ensure_future(self._keep())

    async def close(self) -> None:
        """Close the connection, for good."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None

    def report(self, problem: str) -> None:
        """Log a problem that is new."""
        if problem != self.problem:
            self.problem = problem
            self._log.write(self._path, problem)

    async def _keep(self) -> None:
        while True:
            try:
                reader, writer, welcome = await self._connect()
            except (OSError, EOFError, TimeoutError, WireError) as error:
                self.report(f"is unreachable: {str(error) or type(error).__name__}")
            else:
                self._backoff.reset()
                await self._listen(reader, writer, welcome)
            await asyncio.sleep(self._backoff.next())

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Any]:
        async with asyncio.timeout(self._handshake.timeout_s):
            reader, writer = await asyncio.open_unix_connection(self._path)
            try:
                writer.write(self._wire.frame(self._handshake.hello))
                answer = await self._wire.receive(reader, self._handshake.decoder)
                if isinstance(answer, Refusal):
                    raise WireError(f"it refuses this process: {answer.text}")
                if not isinstance(answer, self._handshake.welcome):
                    raise WireError(f"it answered {type(answer).__name__} to a hello")
            except BaseException:
                writer.close()
                raise
        return reader, writer, answer

    async def _listen(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, welcome: Any
    ) -> None:
        """Take messages until the connection is lost."""
        self.problem = ""
        self._user.connected(welcome, writer)
        self._log.write_up(self._path)
        try:
            while True:
                self._user.receive(await self._wire.receive(reader, self._handshake.decoder))
        except (OSError, EOFError, WireError) as error:
            self.report(f"is gone ({str(error) or type(error).__name__})")
        finally:
            self._user.lost()
            writer.close()
