"""TLS handshakes of a listener: a few in each turn of the loop, and none without end.

    accepted ─► TlsHandshake ─► bytes wait in `Turns` ─► one step ─┬─► complete: the connection's protocol
                     ▲                                             │
                     └──────────── reads again ◄───────────────────┘

A step signs with the server's key: 3 ms with RSA-4096. An event loop takes the steps of all clients that
have sent something before anything else, so that 400 together would stop all others for a second.

The handshake itself is the `SSLProtocol` of the loop. Its documented way in, `start_tls`, takes all
received bytes immediately.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import ssl
from collections.abc import Callable
from typing import Any, Protocol

import uvloop
import uvloop.loop

from turnserve.turns import Turns

#: Handshakes under way in one listener: about 100 KB each. A further one ends the oldest.
MAX_UNFINISHED = 512


class Endpoint(Protocol):
    """The parts of a listener that handshakes use."""

    turns: Turns

    def __call__(self) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection."""


class TlsHandshakes:
    """Makes the protocols of a listener's new connections.

    Args:
        endpoint: the listener. It gets a connection once its handshake is complete.
        context: returns the present context; called for each handshake.
        limit_s: time from a connection's start to the end of its handshake, in seconds.
    """

    def __init__(self, endpoint: Endpoint, context: Callable[[], ssl.SSLContext], limit_s: float) -> None:
        self.endpoint = endpoint
        self.context = context
        self.limit_s = limit_s
        #: Handshakes that have begun, the oldest first.
        self.unfinished: dict[TlsHandshake, None] = {}

    def __call__(self) -> TlsHandshake:
        """Return a protocol for `loop.create_server`."""
        return TlsHandshake(self)


class TlsHandshake(asyncio.Protocol):
    """One connection until its handshake is complete; its transport then has another protocol."""

    def __init__(self, handshakes: TlsHandshakes) -> None:
        self._handshakes = handshakes
        self._transport: Any = None
        self._deadline: asyncio.TimerHandle | None = None
        self._unread = b""
        #: The `SSLProtocol`, from the first received byte on.
        self._tls: Any = None
        self._is_complete = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Limit the time of the handshake."""
        self._transport = transport
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._handshakes.limit_s, self.end)

    def data_received(self, data: bytes) -> None:
        """Queue the data; no more is read before their turn."""
        self._unread += data
        self._transport.pause_reading()
        self._handshakes.endpoint.turns.wait(self)

    def go_on(self) -> None:
        """Take one step of the handshake."""
        data, self._unread = memoryview(self._unread), b""
        if self._tls is None:
            self._begin()
        while data and not self._transport.is_closing():
            into = self._tls.get_buffer(len(data))
            size = min(len(into), len(data))
            into[:size] = data[:size]
            self._tls.buffer_updated(size)
            data = data[size:]
        if self._is_complete:
            self._forget()
            self._transport.set_protocol(self._tls)
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the handshake of a client that is gone."""
        self._forget()
        if self._tls is not None:
            self._tls.connection_lost(exc)

    def end(self) -> None:
        """Close a connection whose handshake is not complete."""
        self._transport.abort()

    def _begin(self) -> None:
        unfinished = self._handshakes.unfinished
        if len(unfinished) >= MAX_UNFINISHED:
            oldest = next(iter(unfinished))
            del unfinished[oldest]
            oldest.end()
        unfinished[self] = None
        loop = asyncio.get_running_loop()
        protocol: Any = asyncio.sslproto.SSLProtocol
        if isinstance(loop, uvloop.Loop):
            protocol = uvloop.loop.SSLProtocol
        self._tls = protocol(
            loop,
            _Completed(self._complete),
            self._handshakes.context(),
            None,
            server_side=True,
            ssl_handshake_timeout=self._handshakes.limit_s,
        )
        self._tls.connection_made(self._transport)

    def _complete(self, transport: Any) -> None:
        self._is_complete = True
        protocol = self._handshakes.endpoint()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._handshakes.unfinished.pop(self, None)
        self._handshakes.endpoint.turns.leave(self)


class _Completed(asyncio.Protocol):
    """The protocol of an encrypted transport until its handshake is complete."""

    def __init__(self, complete: Callable[[Any], None]) -> None:
        self._complete = complete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._complete(transport)
