"""What a connection and the application hand each other: requests, responses, answers to come."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

JSON = b"application/json"
#: Header line of a connection's last message.
LAST = b"connection: close\r\n"


class Request:
    """One request, whole.

    Attributes:
        method: b"GET", …
        target: path and query as sent.
        headers: lower-case name -> value; of repeated headers the last. Shared by requests with the
            same head: not to be changed.
        body: all of it.
        connection: the header line that its answer has to carry: none, keep-alive (asked for by
            HTTP/1.0) or close.
        reserved_bytes: of the listener's budget, until it is answered.
        client: the caller; set where authentication is on, and absent elsewhere, which costs nothing.
        is_counted: its JSON was counted, and no name in it is repeated.
    """

    __slots__ = (
        "body",
        "client",
        "connection",
        "headers",
        "is_counted",
        "method",
        "reserved_bytes",
        "target",
    )

    client: object

    def __init__(
        self,
        method: bytes,
        target: bytes,
        headers: dict[bytes, bytes],
        body: bytes = b"",
        connection: bytes = b"",
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.body = body
        self.connection = connection
        self.reserved_bytes = 0
        self.is_counted = False


class CachedRequestHead(NamedTuple):
    """A head that was parsed before; fields as in `Request`."""

    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    body_bytes: int
    connection: bytes


class Response:
    """One answer.

    Attributes:
        headers: further header lines, each ending in CRLF.
    """

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self, body: bytes, status: int = 200, content_type: bytes = JSON, headers: bytes = b""
    ) -> None:
        self.body = body
        self.status = status
        self.content_type = content_type
        self.headers = headers


class Pending:
    """An answer that has to be waited for: the application calls `answer`, once.

    Subclasses say in `cancel` how to withdraw the request; it is called when the client goes away.
    """

    __slots__ = ("receiver", "response")

    def __init__(self) -> None:
        self.receiver: Callable[[Pending], object] | None = None
        self.response: Response | None = None

    def answer(self, response: Response) -> None:
        """Send the response, at its turn."""
        self.response = response
        if self.receiver is not None:
            self.receiver(self)

    def cancel(self) -> None:
        """Withdraw the request: no caller waits for the answer."""
