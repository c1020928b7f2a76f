"""One HTTP/1.1 connection on the event loop: reads bytes, calls the application, writes responses.

This file implements HTTP and does not depend on models. It replaces uvicorn's ASGI cycle: that cycle alone
(a scope, a task and two awaited sends per request) costs more than scoring a node, see
`benchmarks/transports.py`. A handler returns a response or a `Pending`. Closing the connection cancels a
`Pending`.

llhttp (httptools) parses. This file handles: keep-alive, pipelining in order, `Expect: 100-continue`, HEAD,
limits on heads and bodies (while they arrive), slow senders, half-closed senders, back-pressure, draining.

The memory of one connection is limited: one request's body (`server.max_body_bytes`) and, of later input
while a request is being answered, `_MAX_BEHIND_BYTES` and one read of the event loop. Its time on the loop
is limited
too: after `_MAX_STARTED` requests, or `TURN_S`, other connections have their turn.

This file is long because all events of a connection change the same state.
"""

from __future__ import annotations

import asyncio
import io
from collections import deque
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httptools

from hopline.ingress.certificates import Peer, peer_of_transport
from hopline.transports.budget import Budget
from hopline.transports.http_head import OpenChunk, head_refusal, origin_form, unknown_method
from hopline.transports.http_messages import LAST, BodyStream, Pending, Request, Response, StreamedResponse
from hopline.transports.outbox import SMALL_ANSWER_BYTES, Outbox
from hopline.transports.turns import LARGE_BYTES, LONG_READ_BYTES, REFUSALS, TURN_S

if TYPE_CHECKING:
    from hopline.transports.http_endpoint import HttpEndpoint

#: Request line and headers together; nginx and Apache allow 8 to 32 KiB.
MAX_HEAD_BYTES = 64 * 1024
#: Headers and trailers of a request; the parser makes a call for each. Apache and hyper allow 100.
_MAX_HEADERS = 256
#: Waiting pipelined requests of one connection at which reading pauses.
MAX_PIPELINED = 16
#: Bytes of requests behind one that is being answered, at which reading pauses.
_MAX_BEHIND_BYTES = 64 * 1024
#: Requests of one connection that start in one turn of the loop.
_MAX_STARTED = 16
#: Bytes that are passed to the parser at a time, unless it reads a body of known length: some 70 of the
#: shortest requests.
_PIECE_BYTES = 2048
#: Limit of a chunked body's framing beyond the body's size: a one-byte chunk has six bytes.
_MAX_FRAMING_BYTES = 1 << 20
_KEEP = b"connection: keep-alive\r\n"
#: How long a refused sender may continue to send before the connection is aborted, in seconds. Closing
#: immediately would reset the connection, and the client would not read the error.
_LINGER_S = 5.0
#: Bodies above this need room in the budget, and are read only from permitted clients.
_SMALL_BYTES = 64 * 1024
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
#: Looks of a drain at a closed connection without unsent bytes, after which it is aborted.
_LOOKS = 10
#: Headers of an offer to change the protocol, which the header Connection names too.
_OFFER = frozenset({b"upgrade", b"http2-settings"})
#: A client that closed looks like one that only stopped sending, until something is written to it. Every
#: answer begins with these bytes, so they are sent early and one at a time: a closed client resets the
#: connection, and the next byte reports that. The first byte is sent immediately, the second after
#: `_PROBE_S`; each wait is `_PROBE_GROWTH` times the one before, the last three minutes.
_EARLY_BYTES = b"HTTP/1.1 "
_PROBE_S, _PROBE_GROWTH = 0.002, 5
_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


class HttpConnection(asyncio.Protocol):
    """The protocol object of one connection; one request at a time, in order."""

    def __init__(self, endpoint: HttpEndpoint) -> None:
        self._endpoint = endpoint
        self._handler = endpoint.handler
        self._parser = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._outbox: Outbox
        self._peer: Peer | None = None
        self._pending: Pending | None = None
        #: The answer that is being sent in pieces.
        self._stream: BodyStream | None = None
        self._is_chunked = False
        self._current: Request | None = None
        self._waiting: deque[Request] = deque()
        self._waiting_bytes = 0
        #: Received bytes that wait for the parser while others have their turn.
        self._unread = b""
        self._since = endpoint.now
        self._paused = self._closed = False
        #: Whether further input is dropped, since an earlier request was refused.
        self._is_deaf = False
        #: Whether the client has stopped sending.
        self._ended = False
        #: Bytes of the next answer that were sent as probes.
        self._num_early = 0
        self._next_probe: asyncio.TimerHandle | None = None
        self._linger_until, self._num_looks = 0.0, 0
        #: Whether the last answer was a refusal: the next input has low priority.
        self._is_late = False
        #: Requests started in this turn of the connection, and the end of the turn.
        self._num_started = 0
        self._turn_ends = 0.0
        #: The request that the parser finished last, during a call of the parser.
        self._last: Request | None = None
        self._reserved = 0
        self._new_message()

    def _new_message(self) -> None:
        self._between = True
        self._target: bytes = b""
        self._headers: dict[bytes, bytes] = {}
        self._headers_done = False
        self._num_headers = 0
        self._head_bytes: int = 0
        self._body: bytes = b""
        #: The open chunk of a chunked body.
        self._chunk: OpenChunk | None = None
        #: A body of several pieces; its bytes can be read without a copy.
        self._pieces: io.BytesIO | None = None
        self._body_bytes: int = 0
        #: Bytes of a body with a known length that have not arrived yet.
        self._missing_bytes: int = 0
        self._wire_bytes: int = 0
        self._slow_since: float = 0.0
        #: Whether the client waits for 100 Continue, which is sent after the answers before it.
        self._owes_continue = False

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the new connection."""
        self._transport = transport
        self._outbox = Outbox(transport, self._endpoint.budget, self._endpoint.turns)
        if transport.get_extra_info("sslcontext") is None:
            # Answers are written immediately, not at the end of the loop's turn with those still to come.
            # (An encrypted transport with this limit would pause for ever.)
            self._transport.set_write_buffer_limits(high=0)
        else:
            self._peer = peer_of_transport(transport)
        self._endpoint.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Withdraw the requests of a client that is gone."""
        self._closed = True
        self._endpoint.connections.discard(self)
        self._endpoint.lane.leave(self)
        self._endpoint.turns.leave(self)
        self._unread = b""
        if self._next_probe is not None:
            self._next_probe.cancel()
        self._drop_body()
        self._outbox.gone()
        for request in (self._current, *self._waiting):
            if request is not None:
                self._release(request.reserved_bytes)
        self._waiting.clear()
        self._current = None
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.receiver = None
            stream, self._stream = self._stream, None
            if stream is not None:
                stream.gone()
            else:
                self._endpoint.spinner.num_pending -= 1
                pending.cancel()
        # Break the reference cycle: the parser refers to bound methods of this object.
        self._parser = None

    def data_received(self, data: bytes) -> None:
        """Parse the data, or look the head up if they are one complete request with a cached head."""
        endpoint = self._endpoint
        if self._closed or self._is_deaf:
            endpoint.turns.skip(self._transport, len(data))
            return
        endpoint.spinner.came()
        if self._is_late:
            endpoint.lane.hold(self, data)
            return
        if self._unread:
            self._unread += data
            self.pause_reading()
            return
        if self._between:
            end = data.find(b"\r\n\r\n") + 4
            known = endpoint.known_heads.get(data[:end])
            if known is not None and len(data) - end == known.body_bytes and not self._is_busy:
                self._since = endpoint.now
                method, target, headers, _, connection = known
                self._start(Request(method, target, headers, data[end:], connection, self._peer))
                return
        self._read(data)

    def _read(self, data: bytes) -> None:
        """Pass data to the parser in pieces, until this connection's turn is over."""
        whole = self._between
        self._last = None
        size, position = len(data), 0
        self._begin_turn()
        while position < size and not self._closed and not self._is_deaf:
            if position and (self._is_full or self._turn_is_over):
                whole = False
                self._unread = data[position:]
                self.pause_reading()
                if not self._is_full:
                    self._endpoint.turns.wait(self)
                break
            end = position + max(_PIECE_BYTES, min(self._missing_bytes, size - position))
            self._parse(data[position:end])
            position = end
        is_large = self._body_bytes + self._missing_bytes > _SMALL_BYTES
        if (size >= LONG_READ_BYTES or (size and is_large)) and not self._unread and not self._closed:
            self.pause_reading()
            self._endpoint.turns.wait(self, to_be_read=True)
        if whole and self._between and self._last is not None:
            self._endpoint.remember(data, self._last)

    @property
    def _is_busy(self) -> bool:
        """True if the next request must wait for others of this connection."""
        return self._current is not None or self._outbox.is_blocked or bool(self._waiting)

    @property
    def _is_full(self) -> bool:
        """True if the limit of requests behind one that is being answered is reached."""
        return self._is_busy and (
            len(self._waiting) >= MAX_PIPELINED
            or self._waiting_bytes + self._body_bytes > _MAX_BEHIND_BYTES
        )

    def _begin_turn(self) -> None:
        self._num_started = 0
        self._turn_ends = 0.0

    @property
    def _turn_is_over(self) -> bool:
        """True if the turn is over; the first check starts the time, since most turns need no limit."""
        now = self._endpoint.turns.clock()
        self._turn_ends = self._turn_ends or now + TURN_S
        return self._num_started >= _MAX_STARTED or now > self._turn_ends

    def go_on(self) -> None:
        """Take a turn: send more of an answer, start waiting requests, or read unread input."""
        self._begin_turn()
        if self._outbox.has_parts:
            self._send_more()
            return
        if self._closed:
            return
        if self._waiting:
            self._start_waiting()
            return
        data, self._unread = self._unread, b""
        if self._is_deaf:
            return
        if self._is_late:
            self._endpoint.lane.hold(self, data)
            return
        self._read(data)
        self._start_waiting()

    def _parse(self, data: bytes) -> None:
        """Pass data to the parser."""
        starts = self._between
        # A finished message resets the count, and pieces of bodies are subtracted. So the remaining bytes
        # are an unfinished head, extensions of a chunk, or trailers.
        self._head_bytes += len(data)
        self._wire_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # Upgrades are not supported: this request is handled as HTTP/1.1.
            if self._between or self._closed or self._is_deaf:
                self._close_after_answer()  # later input is dropped
            else:
                self._read_without_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None
        except httptools.HttpParserInvalidMethodError as error:
            method = unknown_method(data) if starts and self._last is None else ""
            if method:
                self._refuse(501, f"unknown method {method!r}; methods are in capital letters")
            else:
                self._refuse(400, f"not valid HTTP/1.1: {error}")
        except httptools.HttpParserError as error:
            self._refuse(400, f"not valid HTTP/1.1: {error}")
        if self._between:
            self._head_bytes = 0  # empty lines between requests
        elif (
            self._chunk is not None
            and self._body_bytes + self._chunk.missing(data) > self._endpoint.max_body_bytes
        ):
            self._refuse_body()
        elif self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head("trailers or chunk extensions" if self._headers_done else "the request head")
        elif self._wire_bytes > 2 * self._body_bytes + MAX_HEAD_BYTES + _MAX_FRAMING_BYTES:
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
        self._parse(head + body)

    def take_low_priority(self, data: bytes) -> None:
        """Read the input that waited in the lane, and resume reading."""
        self._is_late = False
        self.data_received(data)
        self._start_waiting()
        if self._ended:
            self._finish()

    def eof_received(self) -> bool:
        """Handle a half-close (RFC 9112, 9.6): answer the complete requests, then close.

        Over TLS, event loops do not support half-closed connections: the connection is closed.
        """
        if self._transport.get_extra_info("sslcontext") is not None:
            return False
        if self._closed:
            return self._outbox.has_parts
        if self._stream is not None:
            # Clients of streams stop sending only when they leave, and what they asked for is dear.
            self._transport.abort()
            return False
        self._ended = True
        if self not in self._endpoint.lane:
            self._finish()
        return not self._closed or self._outbox.has_parts

    def _finish(self) -> None:
        """Close after all complete requests are answered."""
        self._probe()
        if self._between:
            self._close_after_answer()
        else:
            self._refuse(400, "the connection was closed within a request")
        if self._closed:
            self._outbox.close()

    def _probe(self) -> None:
        """Send a byte of the answer to a client that stopped sending."""
        if self._next_probe is not None:
            self._next_probe.cancel()
        self._next_probe = None
        is_due = self._current is not None and self._stream is None and not self._closed
        if not is_due or self._num_early == len(_EARLY_BYTES):
            return
        self._transport.write(_EARLY_BYTES[self._num_early : self._num_early + 1])
        wait_s = _PROBE_S * _PROBE_GROWTH**self._num_early
        self._num_early += 1
        self._next_probe = asyncio.get_running_loop().call_later(wait_s, self._probe)

    def pause_writing(self) -> None:
        """Stop starting and reading requests while the client does not read."""
        self._outbox.pause(self._endpoint.now)
        self.pause_reading()

    def resume_writing(self) -> None:
        """Continue when the client reads again."""
        self._outbox.resume()
        self._send_more()

    def _send_more(self) -> None:
        """Send more of a large answer in this turn; continue with the next request after it."""
        if self._outbox.pump():
            return  # until the client reads
        if self._outbox.has_parts:
            self.pause_reading()
            self._endpoint.turns.wait(self)
            return
        if self._stream is not None and not self._closed:
            self._stream.resumed()
        self._begin_turn()
        self._start_waiting()

    # Called by the parser

    def on_message_begin(self) -> None:
        """Note the first byte of a request; empty lines before it do not keep a connection open."""
        self._between = False
        self._since = self._endpoint.now

    def on_url(self, url: bytes) -> None:
        """Append a piece of the target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header; trailers are ignored (RFC 9110, 6.5.1)."""
        if self._closed:
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
        self._target = origin_form(self._target)
        version = self._parser.get_http_version()
        refusal = head_refusal(version, headers)
        if refusal is not None:
            self._refuse(*refusal)
            return
        if b"transfer-encoding" in headers:
            self._chunk = OpenChunk()
        length = headers.get(b"content-length")
        num_bytes = self._missing_bytes = 0 if length is None else int(length)
        if num_bytes > self._endpoint.max_body_bytes:
            self._refuse_body()
        elif self._lacks_room(num_bytes):
            self._refuse_for_memory()
        elif self._is_screened(length):
            return
        elif b"expect" in headers and version != "1.0":
            self._owes_continue = True
            self._continue()

    def _lacks_room(self, num_bytes: int) -> bool:
        """Return whether a body of this length is refused before it is sent.

        Behind requests of this connection, which may hold the room until they are answered, the body is
        refused only if there is still no room when it comes.
        """
        if num_bytes <= _SMALL_BYTES or self._current is not None or self._waiting:
            return False
        return not self._endpoint.budget.has_room(num_bytes)

    def _continue(self) -> None:
        """Send 100 Continue if it is due and all earlier requests are answered."""
        if self._owes_continue and not self._is_busy and not self._closed:
            self._owes_continue = False
            self._transport.write(_CONTINUE)

    def _is_screened(self, length: bytes | None) -> bool:
        """Refuse a body that is large or of unknown length from a client without permission."""
        screen, headers = self._endpoint.screen, self._headers
        if screen is None:
            return False
        if int(length) <= _SMALL_BYTES if length is not None else b"transfer-encoding" not in headers:
            return False
        refusal = screen(Request(self._parser.get_method(), self._target, headers, peer=self._peer))
        if refusal is None:
            return False
        self._refuse_with(refusal)
        return True

    def on_body(self, body: bytes) -> None:
        """Store a piece of the body."""
        if self._closed or self._is_deaf:
            return
        num_bytes = len(body)
        self._head_bytes -= num_bytes
        self._missing_bytes -= num_bytes
        self._body_bytes += num_bytes
        if self._chunk is not None:
            self._chunk.came(num_bytes)
        if self._body_bytes > self._endpoint.max_body_bytes:
            self._refuse_body()
        elif self._reserve(self._body_bytes):
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
        if not self._endpoint.budget.take(missing):
            self._refuse_for_memory()
            return False
        self._reserved = num_bytes
        return True

    def _release(self, num_bytes: int) -> None:
        if num_bytes:
            self._endpoint.budget.give_back(num_bytes)

    def _drop_body(self) -> None:
        """Drop the received part of a body."""
        reserved, self._reserved = self._reserved, 0
        memory = self._pieces
        self._pieces, self._body = None, b""
        if reserved > LARGE_BYTES:
            self._endpoint.turns.drop(memory, lambda: self._release(reserved))
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
        if self._closed or self._is_deaf:
            return
        if self._is_read_again:
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
            self._peer,
        )
        request.reserved_bytes, self._reserved = self._reserved, 0
        self._new_message()
        self._last = request
        self._take(request)

    @property
    def _is_read_again(self) -> bool:
        """True if this request offers an upgrade and has a body; see `_read_without_upgrade`."""
        headers = self._headers
        if b"upgrade" not in headers or not self._parser.should_upgrade():
            return False
        return b"transfer-encoding" in headers or headers.get(b"content-length", b"0").strip(b"0") != b""

    def _take(self, request: Request) -> None:
        """Answer a request when its turn comes."""
        if self._is_busy:
            self._waiting.append(request)
            self._waiting_bytes += len(request.body)
            if self._is_full:
                self.pause_reading()
        elif self._num_started and self._turn_is_over:
            self._waiting.append(request)
            self._waiting_bytes += len(request.body)
            self._endpoint.turns.wait(self)
        else:
            self._start(request)

    # Answering

    def _start(self, request: Request) -> None:
        self._num_started += 1
        answer = self._handler(request)
        if type(answer) is Response:
            self._send(request, answer)
            return
        assert isinstance(answer, Pending)
        if answer.response is not None and type(answer.response) is not StreamedResponse:
            self._send(request, answer.response)
            return
        self._current = request
        self._pending = answer
        if answer.response is not None:
            self._open_stream(request, answer.response)
            return
        answer.receiver = self._answered
        self._endpoint.spinner.num_pending += 1
        if self._ended:
            self._probe()

    def _answered(self, pending: Pending) -> None:
        """Send the response, and continue with the next request."""
        request = self._current
        assert pending is self._pending
        assert request is not None
        assert pending.response is not None
        self._endpoint.spinner.num_pending -= 1
        pending.receiver = None
        if type(pending.response) is StreamedResponse:
            self._open_stream(request, pending.response)
            return
        self._pending = None
        self._send(request, pending.response)
        self._current = None
        if self._waiting or self._paused or self._owes_continue:
            self._begin_turn()
            self._start_waiting()

    def _start_waiting(self) -> None:
        """Start pipelined requests in order, while the client reads their answers."""
        while self._waiting and self._current is None and not self._outbox.is_blocked and not self._closed:
            if self._turn_is_over:
                self._endpoint.turns.wait(self)
                return
            request = self._waiting.popleft()
            self._waiting_bytes -= len(request.body)
            self._start(request)
        if self._paused and not self._outbox.is_blocked and not self._closed and not self._is_full:
            if self._unread:
                self._endpoint.turns.wait(self)
            else:
                self._paused = False
                self._transport.resume_reading()
        self._continue()

    def _send(self, request: Request, response: Response) -> None:
        if request.reserved_bytes:
            self._release(request.reserved_bytes)
            request.reserved_bytes = 0
        is_large = len(response.body) > SMALL_ANSWER_BYTES and request.method != b"HEAD"
        if is_large and not self._outbox.reserve(len(response.body)):
            response, is_large = self._endpoint.refusal(503, Budget.FULL), False
        self._is_late = response.status in REFUSALS
        connection = LAST if self._endpoint.closing else request.connection
        body = response.body
        head = b"%bcontent-type: %b\r\ncontent-length: %d\r\n%b%b%b\r\n" % (
            _STATUS_LINES[response.status],
            response.content_type,
            len(body),
            response.headers,
            self._endpoint.date,
            connection,
        )
        head, self._num_early = head[self._num_early :], 0
        if is_large:
            self._send_large(head, body)
        else:
            self._outbox.write(head if request.method == b"HEAD" else head + body)
        if self._endpoint.spinner.is_on:
            self._endpoint.spinner.answered()
        if connection is LAST:
            self._close()

    def _send_large(self, *parts: bytes) -> None:
        self._outbox.put(*parts)
        if not self._outbox.pump() and self._outbox.has_parts:
            self.pause_reading()
            self._endpoint.turns.wait(self)

    # A streamed answer: this connection is its `Sink`

    def _open_stream(self, request: Request, response: Response) -> None:
        """Send the head of an answer whose body comes in pieces, and have them come."""
        assert isinstance(response, StreamedResponse)
        self._is_late = False
        self._release(request.reserved_bytes)
        request.reserved_bytes = 0
        if self._endpoint.closing:
            request.connection = LAST
        # The end of the connection ends the body where it is closed anyway, and for clients of HTTP/1.0.
        self._is_chunked = not request.connection
        if not self._is_chunked:
            request.connection = LAST
        head = b"%bcontent-type: %b\r\n%b%b%b%b\r\n" % (
            _STATUS_LINES[response.status],
            response.content_type,
            b"transfer-encoding: chunked\r\n" if self._is_chunked else b"",
            response.headers,
            self._endpoint.date,
            request.connection,
        )
        self._outbox.write(head[self._num_early :])
        self._num_early = 0
        self._stream = response.stream
        self._stream.start(self)

    @property
    def is_blocked(self) -> bool:
        """As `Sink.is_blocked`."""
        return self._outbox.is_blocked

    def write(self, data: bytes) -> None:
        """As `Sink.write`."""
        if self._stream is not None and not self._closed and data:
            self._outbox.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)

    def end(self) -> None:
        """As `Sink.end`: continues with the next request."""
        request = self._current
        if self._stream is None or request is None:
            return
        self._stream = self._pending = self._current = None
        if self._is_chunked and not self._closed:
            self._outbox.write(b"0\r\n\r\n")
        if request.connection is LAST or self._endpoint.closing:
            self._close()
        elif self._waiting or self._paused or self._owes_continue:
            self._begin_turn()
            self._start_waiting()

    def fail(self) -> None:
        """As `Sink.fail`: closes without the end of the chunks."""
        self._stream = None
        self._close()

    def _refuse_body(self) -> None:
        limit = self._endpoint.max_body_bytes
        self._refuse(413, f"the body is larger than {limit} bytes (server.max_body_bytes)")

    def _refuse_for_memory(self) -> None:
        self._refuse(503, Budget.FULL)

    def _refuse_head(self, what: str = "the request head") -> None:
        self._refuse(431, f"{what}: more than {MAX_HEAD_BYTES} bytes")

    def _refuse(self, status: int, text: str) -> None:
        """Answer an incomplete request with an error; later input is dropped."""
        if not self._closed:
            self._refuse_with(self._endpoint.refusal(status, text))

    def _refuse_with(self, refusal: Response) -> None:
        """Answer an incomplete request with a response; later input is dropped."""
        self._drop_body()
        if self._is_busy:
            self._is_deaf = True
            self._owes_continue = False
            self._close_after_answer()
            return
        self._closed = True
        self._linger_until = self._endpoint.now + _LINGER_S
        method = self._parser.get_method() if self._headers_done else b"GET"
        self._send(Request(method, b"", {}, connection=LAST), refusal)
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _close_after_answer(self) -> None:
        last = self._waiting[-1] if self._waiting else self._current
        if last is None:
            self._close()
        else:
            last.connection = LAST

    # Time and closing

    @property
    def idle(self) -> bool:
        """True if no request is being answered and no input waits to be read."""
        return (
            self._current is None
            and not self._waiting
            and not self._unread
            and not self._outbox.has_parts
            and self not in self._endpoint.lane
        )

    def check_time(self, now: float) -> None:
        """Close a connection that is idle, sends its request too slowly, or does not take its answer."""
        if self._outbox.has_stopped(now, self._endpoint.timeouts.read_s):
            self._endpoint.turns.end(self._transport.abort)
        elif self._linger_until:
            if now > self._linger_until:
                self._transport.abort()
        elif self._outbox.is_blocked or not self.idle:
            self._since = now
        elif not self._between:
            self._slow_since = self._slow_since or now
            if now - self._slow_since > self._endpoint.timeouts.read_s:
                self._refuse(408, f"the request did not arrive within {self._endpoint.timeouts.read_s} s")
        elif now - self._since > self._endpoint.timeouts.keep_alive_s:
            self._close()

    def close_if_idle(self) -> None:
        """Close between requests; abort what waits for a refused sender, or for the end of TLS.

        A client need not answer that end (RFC 8446, 6.1).
        """
        self._num_looks = self._num_looks + 1 if self._closed and not self._outbox.num_unsent() else 0
        if self._linger_until or self._num_looks > _LOOKS:
            self._transport.abort()
        elif self.idle:
            self._close()

    def abort(self) -> None:
        """Close immediately."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    def _close(self) -> None:
        """Close after all written data are sent."""
        if not self._closed:
            self._closed = True
            self._outbox.close()

    def pause_reading(self) -> None:
        """Stop reading for now."""
        if not self._paused and not self._closed:
            self._paused = True
            self._transport.pause_reading()
