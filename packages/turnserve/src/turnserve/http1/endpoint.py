"""The door of HTTP/1.1: makes the connections of one listener."""

from __future__ import annotations

from turnserve.http1.connection import HttpConnection
from turnserve.http1.listener import HttpListener, Timeouts

__all__ = ["HttpEndpoint", "Timeouts"]


class HttpEndpoint(HttpListener):
    """A listener as a factory of protocols; arguments as `HttpListener`."""

    def __call__(self) -> HttpConnection:
        """Return a protocol for `loop.create_server`."""
        return HttpConnection(self)
