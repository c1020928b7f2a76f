"""Messages between a connection and the application: requests, responses, pending answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from turnserve.peers import Peer

JSON = b"application/json"
#: Header line of the last message of a connection.
LAST = b"connection: close\r\n"


class Request:
    """One complete request.

    Attributes:
        method: b"GET", …
        target: path and query as sent.
        headers: lower-case name -> value; values of a repeated name are joined by ", ". Shared by requests
            with the same head: must not be changed.
        body: the complete body.
        connection: the header line for its answer: none, keep-alive (requested by HTTP/1.0) or close.
        reserved_bytes: bytes reserved in the listener's budget until the answer.
        client: the authenticated client; not set without authentication, which costs nothing.
        decoded: its body, if the application has decoded it.
        is_counted: True if its JSON was counted and has no repeated names.
        peer: holder of the connection's client certificate; None without one.
    """

    __slots__ = (
        "body",
        "client",
        "connection",
        "decoded",
        "headers",
        "is_counted",
        "method",
        "peer",
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
        peer: Peer | None = None,
    ) -> None:
        self.method, self.target = method, target
        self.headers, self.body = headers, body
        self.connection, self.peer = connection, peer
        self.reserved_bytes = 0
        self.decoded: object = None
        self.is_counted = False


class CachedRequestHead(NamedTuple):
    """A cached parsed head; fields as in `Request`."""

    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    body_bytes: int
    connection: bytes


class Response:
    """One response.

    Attributes:
        headers: additional header lines, each ending in CRLF.
    """

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self, body: bytes, status: int = 200, content_type: bytes = JSON, headers: bytes = b""
    ) -> None:
        self.body = body
        self.status = status
        self.content_type = content_type
        self.headers = headers


class Sink(Protocol):
    """Receiver of a body that comes in pieces; one for each protocol.

    Attributes:
        is_blocked: True if the client does not read now: what is written is stored, so write later.
    """

    @property
    def is_blocked(self) -> bool:
        """See the class."""
        ...

    def write(self, data: bytes) -> None:
        """Send a piece."""

    def end(self) -> None:
        """The body is complete."""

    def fail(self) -> None:
        """The body cannot be completed: let the client see that it is cut off."""


class BodyStream:
    """A body that comes in pieces. Subclasses write to `sink` while it is not blocked."""

    __slots__ = ("sink",)

    def __init__(self) -> None:
        self.sink: Sink | None = None

    def start(self, sink: Sink) -> None:
        """The head is sent: write."""
        self.sink = sink
        self.resumed()

    def resumed(self) -> None:
        """The client reads again: write what has come meanwhile."""

    def gone(self) -> None:
        """The client has gone: make no more."""


class StreamedResponse(Response):
    """A response whose body comes in pieces; `body` is empty."""

    __slots__ = ("stream",)

    def __init__(self, stream: BodyStream, content_type: bytes, headers: bytes = b"") -> None:
        super().__init__(b"", 200, content_type, headers)
        self.stream = stream


class Pending:
    """An answer that is not ready yet: the application calls `answer` once.

    Subclasses implement `cancel` to withdraw the request; it is called when the client disconnects.
    """

    __slots__ = ("receiver", "response")

    def __init__(self) -> None:
        self.receiver: Callable[[Pending], object] | None = None
        self.response: Response | None = None

    def answer(self, response: Response) -> None:
        """Send the response when its turn comes."""
        self.response = response
        if self.receiver is not None:
            self.receiver(self)

    def cancel(self) -> None:
        """Withdraw the request: the client no longer waits for the answer."""
