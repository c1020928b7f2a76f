"""The writer of a live graph: one that runs already, over its socket, or one in a child process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from pathlib import Path

from hopline.config.folders import live_folder, live_socket
from hopline.config.schema import Config
from hopline.errors import GraphError
from hopline.live.link import WriterLink
from hopline.live.orders import writer_orders
from hopline.live.process import ENTRY, RELIEVED
from hopline.process.child import Child, exit_reason
from hopline.retry import Backoff
from hopline_brokers.stream.writer import Standing

logger = logging.getLogger("hopline.stream")

#: Seconds within which accepted batches are answered at the end.
_DRAIN_S = 15.0
#: Seconds without a writer, for example while a server restarts, before the stream starts its own.
_ALONE_S = 30.0


class SocketWriter(WriterLink):
    """A client of the writer that listens on a Unix socket.

    Two guarantees of the writer make a restart of a stream exact: a batch is durable and visible completely
    or not at all, and an event with a known id is reported as a duplicate and changes nothing. A batch
    without events makes its positions durable and no new version.

    Args:
        path: of the socket.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "hopline stream")

    async def standing(self) -> Standing:
        """The state of the graph. Raises: WriterUnavailable."""
        welcome = await self.welcome()
        status = await self.status()
        return Standing(welcome.graph_schema, status.sequence, status.positions)


class OwnWriter:
    """Runs a writer process while it is entered, and starts it again when it dies.

    The process gives up the folder when a server's writer requests it. Then this client uses that writer,
    until no process has written for some time.

    Args:
        config: `graph.path` and `live`.
        alone_s: seconds without a writer after which it is started again.
    """

    def __init__(self, config: Config, alone_s: float = _ALONE_S) -> None:
        self._orders = writer_orders(config, "hopline stream", yields=True)
        self._folder, self._socket = live_folder(config), live_socket(config)
        self._alone_s = alone_s
        self._child: Child | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> OwnWriter:
        """Start the writer, unless another process writes.

        Raises: GraphError: the writer ends before it is ready; its log gives the reason.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        await self._start()
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the writer, and wait for its end."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        if self._child is not None:
            await self._child.end(_DRAIN_S)

    async def _start(self) -> None:
        """Start the writer and wait until it is ready, or until it reports that another process writes."""
        self._child = await Child.start(ENTRY, self._orders, name="the writer of the live graph")
        code = await self._child.wait_ready()
        if code not in (None, RELIEVED):
            raise GraphError(
                f"the writer of {self._folder} ended ({exit_reason(code)}) before it was ready; its log is "
                "above"
            )

    async def _keep(self) -> None:
        backoff = Backoff(0.1, 10.0, spread=0.0)
        loop = asyncio.get_running_loop()
        while True:
            assert self._child is not None
            began = loop.time()
            code = await self._child.wait()
            if code == RELIEVED:
                logger.info("another process writes the graph; continuing as its client")
                await self._until_unwritten()
                logger.warning(
                    "no process has written the graph for %g s; starting a writer", self._alone_s
                )
                await self._start_again()
                continue
            pause_s = backoff.next(loop.time() - began)
            logger.error("the writer ended (%s); starting it again in %.1f s", exit_reason(code), pause_s)
            await asyncio.sleep(pause_s)
            await self._start_again()

    async def _start_again(self) -> None:
        try:
            await self._start()
        except GraphError as error:
            logger.error("%s", error)

    async def _until_unwritten(self) -> None:
        """Wait until no process has written for some time."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        while loop.time() - since < self._alone_s:
            await asyncio.sleep(min(1.0, self._alone_s / 5))
            if await asyncio.to_thread(writer_listens, self._socket):
                since = loop.time()


def writer_listens(path: Path) -> bool:
    """True if there is a writer at a socket."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(1.0)
        try:
            caller.connect(str(path))
        except OSError:
            return False
    return True
