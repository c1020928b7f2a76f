"""The requests of one HTTP/1.1 connection: calls the parser, checks heads, stores bodies.

llhttp (httptools) parses. Heads and bodies are limited while they arrive. A body above 64 KiB needs room in
the budget, and is read only from permitted clients.
"""

from __future__ import annotations

import io
import re
from typing import Protocol

import httptools

from turnserve.budget import Budget
from turnserve.http1.listener import HttpListener
from turnserve.http1.messages import LAST, Request, Response
from turnserve.peers import Peer
from turnserve.turns import LARGE_BYTES

#: Request line and headers together; nginx and Apache allow 8 to 32 KiB.
MAX_HEAD_BYTES = 64 * 1024
#: Headers and trailers of a request; the parser makes a call for each. Apache and hyper allow 100.
_MAX_HEADERS = 256
#: Limit of a chunked body's framing beyond the body's size: a one-byte chunk has six bytes.
_MAX_FRAMING_BYTES = 1 << 20
_KEEP = b"connection: keep-alive\r\n"
#: Bodies above this need room in the budget, and are read only from permitted clients.
_SMALL_BYTES = 64 * 1024
#: Headers of an offer to change the protocol, which the header Connection names too.
_OFFER = frozenset({b"upgrade", b"http2-settings"})
#: What llhttp says of versions that it does not read; the first one is an HTTP/2 preface.
_OTHER_VERSION = ("Pause on PRI/Upgrade", "Invalid HTTP version")
_VERSIONS = ("1.0", "1.1")
#: Host = uri-host [ ":" port ] (RFC 9110, 7.2); empty if the target has no authority.
_HOST = re.compile(rb"(?:[A-Za-z0-9._~%!$&'()*+,;=-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)", re.IGNORECASE)
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) [!-~]+ HTTP/1\.[01]\r\n")
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]+)[ \t]*(?:;[^\n]*)?\r?\n")


class _OpenChunk:
    """The open chunk of a chunked body.

    The parser reports where a chunk begins and ends, but not its length. So the line of its size is read
    again here.
    """

    def __init__(self) -> None:
        self._is_open = self._begins = False
        #: Bytes of it that came.
        self._num_bytes = 0
        #: The part that came of a line of a size.
        self._line = b""

    def begin(self) -> None:
        """Its size was read."""
        self._is_open = self._begins = True
        self._num_bytes = 0

    def came(self, num_bytes: int) -> None:
        """Count its bytes."""
        self._num_bytes += num_bytes

    def end(self) -> None:
        """It is whole."""
        self._is_open = False

    def missing(self, data: bytes) -> int:
        """Bytes that were announced and have not come, where a chunk began in what the parser just read.

        Args:
            data: that the parser just read, to its end.
        """
        text, self._line = self._line + data, b""
        if not self._is_open:
            self._line = text[text.rfind(b"\n") + 1 :]
            return 0
        begins, self._begins = self._begins, False
        if not begins:
            return 0
        end = len(text) - self._num_bytes
        # Behind the last chunk, of size 0, there may be trailers, whose lines are none of sizes.
        found = _SIZE_LINE.fullmatch(text, text.rfind(b"\n", 0, end - 1) + 1, end)
        return 0 if found is None else max(0, int(found[1], 16) - self._num_bytes)


class RequestTaker(Protocol):
    """The connection of a `RequestReader`."""

    @property
    def is_busy(self) -> bool:
        """True if the next request must wait for others of this connection."""
        ...

    def take(self, request: Request) -> None:
        """Answer a complete request when its turn comes."""

    def refuse(self, refusal: Response) -> None:
        """Answer an incomplete request; later input is dropped."""

    def close_after_answer(self) -> None:
        """Close after the last complete request is answered."""

    def proceed(self) -> None:
        """Send 100 Continue if it is due."""


class RequestReader:
    """Reads requests; see the module docstring.

    Args:
        listener: limits, and memory for bodies.
        taker: gets the requests.

    Attributes:
        peer: holder of the connection's client certificate.
        is_between: True between requests.
        is_deaf: True once further input is dropped.
        last: the request that was read last; set to None by the caller before it reads.
        num_body_bytes: bytes of the body that have arrived.
        num_missing: bytes of a body with a known length that have not arrived yet.
        owes_continue: True if the client waits for 100 Continue, which is sent after the answers before it.
    """

    def __init__(self, listener: HttpListener, taker: RequestTaker) -> None:
        self._listener = listener
        self._taker = taker
        self._parser = httptools.HttpRequestParser(self)
        self.peer: Peer | None = None
        self.last: Request | None = None
        self.is_deaf = False
        self._reserved = 0
        self._new_message()

    def _new_message(self) -> None:
        self.is_between = True
        self._target: bytes = b""
        self._headers: dict[bytes, bytes] = {}
        self._headers_done = False
        self._num_headers = 0
        self._head_bytes: int = 0
        self._body: bytes = b""
        #: The open chunk of a chunked body.
        self._chunk: _OpenChunk | None = None
        #: A body of several pieces; its bytes can be read without a copy.
        self._pieces: io.BytesIO | None = None
        self.num_body_bytes: int = 0
        self.num_missing: int = 0
        self._wire_bytes: int = 0
        self._slow_since: float = 0.0
        self.owes_continue = False

    @property
    def has_large_body(self) -> bool:
        """True if the body is large, or will be."""
        return self.num_body_bytes + self.num_missing > _SMALL_BYTES

    @property
    def method(self) -> bytes:
        """The method of the request that is being read; GET while it is unknown."""
        method: bytes = self._parser.get_method() if self._headers_done else b"GET"
        return method

    def is_slow(self, now: float) -> bool:
        """Return True if the request that is being read takes too long; called once a second."""
        self._slow_since = self._slow_since or now
        return now - self._slow_since > self._listener.timeouts.read_s

    def close(self) -> None:
        """Drop the received part of a request, of a client that is gone."""
        self.is_deaf = True
        self.drop_body()
        # Break the reference cycles: the parser refers to bound methods of this object.
        del self._parser, self._taker

    def parse(self, data: bytes) -> None:
        """Pass data to the parser."""
        starts = self.is_between
        # A finished message resets the count, and pieces of bodies are subtracted. So the remaining bytes
        # are an unfinished head, extensions of a chunk, or trailers.
        self._head_bytes += len(data)
        self._wire_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # Upgrades are not supported: this request is handled as HTTP/1.1.
            if self.is_between or self.is_deaf:
                self._taker.close_after_answer()  # later input is dropped
            else:
                self._read_without_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None
        except httptools.HttpParserInvalidMethodError as error:
            method = _unknown_method(data) if starts and self.last is None else ""
            if method:
                self._refuse(501, f"unknown method {method!r}; methods are in capital letters")
            else:
                self._refuse(400, f"not valid HTTP/1.1: {error}")
        except httptools.HttpParserError as error:
            if str(error) in _OTHER_VERSION:
                self._refuse(505, f"{error}: this version of HTTP is not supported; send HTTP/1.1")
            else:
                self._refuse(400, f"not valid HTTP/1.1: {error}")
        if self.is_between:
            self._head_bytes = 0  # empty lines between requests
        elif (
            self._chunk is not None
            and self.num_body_bytes + self._chunk.missing(data) > self._listener.max_body_bytes
        ):
            self._refuse_body()
        elif self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head("trailers or chunk extensions" if self._headers_done else "the request head")
        elif self._wire_bytes > 2 * self.num_body_bytes + MAX_HEAD_BYTES + _MAX_FRAMING_BYTES:
            self._refuse(
                400, "the chunks of the body are too small: the framing is longer than the content"
            )

    def _read_without_upgrade(self, body: bytes) -> None:
        """Read a request whose body follows again, without its offer to change the protocol.

        The parser considers the body as data of the other protocol; a client sends those only after the
        server has agreed (RFC 9110, 7.8).
        """
        headers = {name: value for name, value in self._headers.items() if name not in _OFFER}
        options = headers.get(b"connection", b"").split(b",")
        kept = [option for option in options if option.strip().lower() not in _OFFER]
        headers[b"connection"] = b",".join(kept)
        lines = b"".join(b"%b: %b\r\n" % header for header in headers.items())
        version = self._parser.get_http_version().encode()
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (self._parser.get_method(), self._target, version, lines)
        self._parser = httptools.HttpRequestParser(self)
        self._new_message()
        self.parse(head + body)

    # Called by the parser

    def on_message_begin(self) -> None:
        """Note the first byte of a request; empty lines before it do not keep a connection open."""
        self.is_between = False

    def on_url(self, url: bytes) -> None:
        """Append a piece of the target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header; trailers are ignored (RFC 9110, 6.5.1)."""
        if self.is_deaf:
            return
        self._num_headers += 1
        if self._num_headers > _MAX_HEADERS:
            self._refuse(431, f"more than {_MAX_HEADERS} headers and trailers")
            return
        if self._headers_done:
            return
        name, value = name.lower(), value.strip()
        earlier = self._headers.get(name)
        self._headers[name] = value if earlier is None else b"%b, %b" % (earlier, value)

    def on_headers_complete(self) -> None:
        """Check the head, and the announced length before the body is sent."""
        self._headers_done = True
        headers = self._headers
        if self._head_bytes > MAX_HEAD_BYTES:  # may include data behind the head, so count again
            lines = sum(len(name) + len(value) + 4 for name, value in headers.items())
            if lines + len(self._target) > MAX_HEAD_BYTES:
                self._refuse_head()
                return
        if self._is_read_again:
            return
        version = self._parser.get_http_version()
        refusal = _head_refusal(version, headers) or self._absolute_refusal()
        if refusal is not None:
            self._refuse(*refusal)
            return
        if b"transfer-encoding" in headers:
            self._chunk = _OpenChunk()
        length = headers.get(b"content-length")
        num_bytes = self.num_missing = 0 if length is None else int(length)
        if num_bytes > self._listener.max_body_bytes:
            self._refuse_body()
        elif self._lacks_room(num_bytes):
            self._refuse_for_memory()
        elif self._is_screened(length):
            return
        elif b"expect" in headers and version != "1.0":
            self.owes_continue = True
            self._taker.proceed()

    def _absolute_refusal(self) -> tuple[int, str] | None:
        """Take the host of a target in absolute form, as proxies send it, for that of the header.

        Returns status and reason if it is none; else None (RFC 9112, 3.2.2).
        """
        if (absolute := _ABSOLUTE.match(self._target)) is None:
            return None
        host, rest = absolute[1], self._target[absolute.end() :]
        if not host or not _HOST.fullmatch(host):
            return 400, f"the target's host is {host[:200].decode('latin-1')!r}; expected one host"
        self._headers[b"host"] = host
        self._target = rest if rest.startswith(b"/") else b"/" + rest
        return None

    def _lacks_room(self, num_bytes: int) -> bool:
        """Return True if a body of this length is refused before it is sent.

        Behind requests of this connection, which may hold the room until they are answered, the body is
        refused only if there is still no room when it comes.
        """
        is_large = num_bytes > _SMALL_BYTES and not self._taker.is_busy
        return is_large and not self._listener.budget.has_room(num_bytes)

    def _is_screened(self, length: bytes | None) -> bool:
        """Refuse a body that is large or of unknown length from a client without permission."""
        screen, headers = self._listener.screen, self._headers
        if screen is None:
            return False
        if int(length) <= _SMALL_BYTES if length is not None else b"transfer-encoding" not in headers:
            return False
        refusal = screen(Request(self._parser.get_method(), self._target, headers, peer=self.peer))
        if refusal is None:
            return False
        self._taker.refuse(refusal)
        return True

    def on_body(self, body: bytes) -> None:
        """Store a piece of the body."""
        if self.is_deaf:
            return
        num_bytes = len(body)
        self._head_bytes -= num_bytes
        self.num_missing -= num_bytes
        self.num_body_bytes += num_bytes
        if self._chunk is not None:
            self._chunk.came(num_bytes)
        if self.num_body_bytes > self._listener.max_body_bytes:
            self._refuse_body()
        elif self._reserve(self.num_body_bytes):
            if not self._body:
                self._body = body
            else:
                if self._pieces is None:
                    self._pieces = io.BytesIO()
                    self._pieces.write(self._body)
                self._pieces.write(body)

    def _reserve(self, num_bytes: int) -> bool:
        """Reserve memory for a body of this size, or refuse the request; small bodies need none."""
        missing = num_bytes - self._reserved
        if num_bytes <= _SMALL_BYTES or missing <= 0:
            return True
        if not self._listener.budget.take(missing):
            self._refuse_for_memory()
            return False
        self._reserved = num_bytes
        return True

    def _release(self, num_bytes: int) -> None:
        if num_bytes:
            self._listener.budget.give_back(num_bytes)

    def drop_body(self) -> None:
        """Drop the received part of a body."""
        reserved, self._reserved = self._reserved, 0
        memory = self._pieces
        self._pieces, self._body = None, b""
        if reserved > LARGE_BYTES:
            self._listener.turns.drop(memory, lambda: self._release(reserved))
        else:
            self._release(reserved)

    def on_chunk_header(self) -> None:
        """Note that a chunk's size and extensions are read."""
        self._head_bytes = 0
        if self._chunk is not None:
            self._chunk.begin()

    def on_chunk_complete(self) -> None:
        """A chunk is whole."""
        if self._chunk is not None:
            self._chunk.end()

    def on_message_complete(self) -> None:
        """Handle a complete request."""
        if self.is_deaf or self._is_read_again:
            return
        parser = self._parser
        upgrades = parser.should_upgrade()  # later input is dropped
        request = Request(
            parser.get_method(),
            self._target,
            self._headers,
            self._body if self._pieces is None else self._pieces.getvalue(),
            LAST
            if upgrades or not parser.should_keep_alive()
            else _KEEP
            if parser.get_http_version() == "1.0"
            else b"",
            self.peer,
        )
        request.reserved_bytes, self._reserved = self._reserved, 0
        self._new_message()
        self.last = request
        self._taker.take(request)

    @property
    def _is_read_again(self) -> bool:
        """True if this request offers an upgrade and has a body; see `_read_without_upgrade`."""
        headers = self._headers
        if b"upgrade" not in headers or not self._parser.should_upgrade():
            return False
        return b"transfer-encoding" in headers or headers.get(b"content-length", b"0").strip(b"0") != b""

    def refuse_close(self) -> None:
        """Refuse a request whose client closed the connection within it."""
        self._refuse(400, "the connection was closed within a request")

    def refuse_slow(self) -> None:
        """Refuse a request that takes too long."""
        self._refuse(408, f"the request did not arrive within {self._listener.timeouts.read_s} s")

    def _refuse_body(self) -> None:
        self._refuse(413, f"the body is larger than {self._listener.max_body_bytes} bytes")

    def _refuse_for_memory(self) -> None:
        self._refuse(503, Budget.FULL)

    def _refuse_head(self, what: str = "the request head") -> None:
        self._refuse(431, f"{what}: more than {MAX_HEAD_BYTES} bytes")

    def _refuse(self, status: int, text: str) -> None:
        if not self.is_deaf:
            self._taker.refuse(self._listener.refusal(status, text))


def _head_refusal(version: str, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
    """Return status and reason if a parsed head must be refused; else None.

    Args:
        version: protocol version, for example "1.1".
        headers: lower-case name -> value; values of a repeated name are joined by ", ".
    """
    if version not in _VERSIONS:
        return 505, f"HTTP/{version} is not supported; send HTTP/1.1"
    host = headers.get(b"host")
    if host is None:
        if version == "1.1":
            return 400, "an HTTP/1.1 request needs the header Host (RFC 9112, 3.2)"
    elif not _HOST.fullmatch(host):
        return 400, f"header Host is {host.decode('latin-1')!r}; expected one host, with or without a port"
    coding = headers.get(b"transfer-encoding")
    if coding is not None:
        if version == "1.0":
            return 400, "HTTP/1.0 has no Transfer-Encoding; send Content-Length"
        others, _, last = coding.lower().rpartition(b",")
        shown = f"Transfer-Encoding {coding.decode('latin-1')!r}"
        if last.strip() != b"chunked":
            return 400, f"{shown} does not end in chunked, so the end of the body is unknown"
        if others:
            return 501, f"{shown} is not supported; send only chunked, and use Content-Encoding for gzip"
    expected = headers.get(b"expect")
    if expected is not None and version == "1.1" and expected.lower() != b"100-continue":
        return 417, f"Expect {expected.decode('latin-1')!r} is not supported; only 100-continue is"
    return None


def _unknown_method(data: bytes) -> str:
    """Return the method of a request line that the parser refused; "" if the line is not a request line."""
    line = _REQUEST_LINE.match(data.lstrip(b"\r\n"))
    return "" if line is None else line[1].decode("latin-1")
