"""A network between hosts and their store that can be cut."""

from __future__ import annotations

import asyncio
import contextlib


class Link:
    """A way to a server on this machine: a TCP proxy that can swallow everything.

    Attributes:
        port: to connect to.
    """

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._whole = True
        self._listener: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self) -> Link:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    def cut(self) -> None:
        """From now on nothing arrives, and nothing says so."""
        self._whole = False

    def mend(self) -> None:
        """Connections from before are reset; new ones work."""
        self._whole = True
        for writer in list(self._writers):
            writer.transport.abort()

    async def close(self) -> None:
        assert self._listener is not None
        self._listener.close()
        self.mend()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        self._writers |= {writer, there_writer}
        for pair in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.ensure_future(self._pump(*pair))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(1 << 16):
                    if self._whole:
                        writer.write(data)
                        await writer.drain()
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            self._writers.discard(writer)
