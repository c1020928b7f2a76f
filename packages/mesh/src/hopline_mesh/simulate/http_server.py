"""A small threaded HTTP server of the standard library, for a simulator with few connections."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import msgspec

from hopline.errors import BadRequest
from hopline.types import UNREADABLE

T = TypeVar("T")

_LONGEST_BODY = 65_536


def number(text: str) -> int | None:
    """Return a number of up to 18 decimal digits; None for any other text."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


class Handler(BaseHTTPRequestHandler):
    """Base class of the handlers: HTTP/1.1, JSON, no log."""

    protocol_version = "HTTP/1.1"
    # Close connections of silent clients.
    timeout = 60.0

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because scrapes come all the time."""

    @property
    def target(self) -> tuple[str, dict[str, str]]:
        """Path and query."""
        parts = urlsplit(self.path)
        return parts.path.rstrip("/") or "/", dict(parse_qsl(parts.query, keep_blank_values=True))

    def body(self, of: type[T]) -> T:
        """Read the request's JSON object as this type; an empty body is an empty object.

        Every request is read, so that the next one on the connection begins where it should.

        Raises:
            BadRequest: the body is too long, or not a JSON object of this type.
        """
        length = number(self.headers.get("Content-Length", "0"))
        if "Transfer-Encoding" in self.headers:
            self.close_connection = True
            raise BadRequest("send the body with a Content-Length, not in chunks")
        if length is None or length > _LONGEST_BODY:
            self.close_connection = True
            raise BadRequest(f"the body must have at most {_LONGEST_BODY} bytes")
        try:
            return msgspec.json.decode(self.rfile.read(length) or b"{}", type=of)
        except msgspec.ValidationError as error:
            raise BadRequest(str(error)) from error
        except UNREADABLE as error:
            raise BadRequest(f"the body is not JSON: {error}") from error

    def answer(self, status: int, content: Any, kind: str = "application/json") -> None:
        """Send bytes, or a value as JSON."""
        raw = content if isinstance(content, bytes) else msgspec.json.encode(content)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


class Server(ThreadingHTTPServer):
    """Serves on a thread until it is closed.

    Args:
        handler: creates a handler for each connection.

    Attributes:
        port: the port that it listens on.
    """

    daemon_threads = True
    # Watches stay open for ever, so do not wait for their threads.
    block_on_close = False
    request_queue_size = 64

    def __init__(self, host: str, port: int, handler: Callable[..., Handler]) -> None:
        super().__init__((host, port), handler)
        self.port = int(self.server_address[1])
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; running responses are finished or cut."""
        self.shutdown()
        self.server_close()
        self._thread.join(10.0)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect early."""
