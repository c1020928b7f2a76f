"""A TCP proxy on loopback that holds answers back; it runs on its own thread and event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import cast


class SlowProxy:
    """A TCP proxy that delays every answer.

    Args:
        upstream: port on loopback.

    Attributes:
        port: where it listens, once open.
        delay_s: of every answer; may be changed at any time. Order is kept.
    """

    def __init__(self, upstream: int) -> None:
        self.port = 0
        self.delay_s = 0.0
        self._upstream = upstream
        self._server: asyncio.Server | None = None
        self._transports: set[asyncio.Transport] = set()

    async def open(self) -> None:
        """Listen on a free port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Client(self), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Close all connections and stop."""
        if self._server is not None:
            self._server.close()
        for transport in list(self._transports):
            transport.abort()
        await asyncio.sleep(0)

    async def connect(self, client: _Client) -> _Store:
        """A connection to the store for one client."""
        loop = asyncio.get_running_loop()
        _, store = await loop.create_connection(lambda: _Store(self, client), "127.0.0.1", self._upstream)
        return store

    def add(self, transport: asyncio.Transport) -> None:
        """Note a transport, to be closed with the proxy."""
        self._transports.add(transport)

    def discard(self, transport: asyncio.Transport) -> None:
        """It has ended."""
        self._transports.discard(transport)


@contextlib.contextmanager
def slow_proxy(upstream: int) -> Iterator[SlowProxy]:
    """A proxy in front of a port on loopback, for the length of a `with` block."""
    proxy = SlowProxy(upstream)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="slow-proxy")
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(proxy.open(), loop).result(10.0)
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(proxy.close(), loop).result(10.0)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class _Client(asyncio.Protocol):
    def __init__(self, proxy: SlowProxy) -> None:
        self._proxy = proxy
        self._early: list[bytes] = []
        self._store: _Store | None = None
        self._connecting: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self._proxy.add(self.transport)
        self._connecting = asyncio.ensure_future(self._connect(self.transport))

    async def _connect(self, transport: asyncio.Transport) -> None:
        try:
            self._store = await self._proxy.connect(self)
        except OSError:
            transport.abort()
            return
        for data in self._early:
            self._store.send(data)

    def data_received(self, data: bytes) -> None:
        if self._store is None:
            self._early.append(data)
        else:
            self._store.send(data)

    def connection_lost(self, error: Exception | None) -> None:
        assert self.transport is not None
        self._proxy.discard(self.transport)
        if self._store is not None:
            self._store.end()


class _Store(asyncio.Protocol):
    def __init__(self, proxy: SlowProxy, client: _Client) -> None:
        self._proxy = proxy
        self._client = client
        self._last = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._proxy.add(self._transport)

    def send(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def end(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        assert self._client.transport is not None
        # never before what came earlier
        self._last = max(self._last, loop.time() + self._proxy.delay_s)
        if self._last <= loop.time():
            self._client.transport.write(data)
        else:
            loop.call_at(self._last, self._client.transport.write, data)

    def connection_lost(self, error: Exception | None) -> None:
        assert self._transport is not None
        self._proxy.discard(self._transport)
        assert self._client.transport is not None
        self._client.transport.abort()
