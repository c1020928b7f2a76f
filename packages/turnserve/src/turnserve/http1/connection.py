"""One HTTP/1.1 connection on the event loop: reads requests, calls the application, writes responses.

A handler returns a response or a `Pending`. Closing the connection cancels a `Pending`. There is no
ASGI cycle: a scope, a task and two awaited sends per request cost more than a look-up.

    bytes ──▸ RequestReader ──▸ Backlog ──▸ handler ──▸ Outbox ──▸ bytes
              parses, limits    in order,               what the client
                                in turns                has not taken

The connection joins the four: keep-alive, pipelining in order, `Expect: 100-continue`, HEAD, slow and
half-closed senders, back-pressure, draining.

The memory of one connection is limited: one request's body, and of later input while a request is being
answered, 64 KiB and one read of the event loop. Its time on the loop is limited too: after some requests,
or `TURN_S`, other connections have their turn.
"""

from __future__ import annotations

import asyncio
from typing import Any

from turnserve.budget import Budget
from turnserve.http1.answers import STATUS_LINES, Backlog, Probes, StreamedBody
from turnserve.http1.listener import HttpListener
from turnserve.http1.messages import LAST, Pending, Request, Response, StreamedResponse
from turnserve.http1.reader import RequestReader
from turnserve.outbox import SMALL_ANSWER_BYTES, Outbox
from turnserve.peers import peer_of_transport
from turnserve.turns import LONG_READ_BYTES, REFUSALS

#: Bytes that are passed to the parser at a time, unless it reads a body of known length: some 70 of the
#: shortest requests.
_PIECE_BYTES = 2048
#: How long a refused sender may continue to send before the connection is aborted, in seconds. Closing
#: immediately would reset the connection, and the client would not read the error.
_LINGER_S = 5.0
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
#: Looks of a drain at a closed connection without unsent bytes, after which it is aborted.
_LOOKS = 10


class HttpConnection(asyncio.Protocol):
    """The protocol object of one connection; one request at a time, in order."""

    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener
        self._handler = listener.handler
        self._reader = RequestReader(listener, self)
        self._backlog = Backlog(listener.turns.clock)
        self._transport: Any = None
        self._outbox: Outbox
        #: The request that is being answered, and its answer until it is sent.
        self._current: Request | None = None
        self._pending: Pending | None = None
        #: The answer that is being sent in pieces.
        self._streamed: StreamedBody | None = None
        #: Early bytes of answers, once the client has stopped sending.
        self._probes: Probes | None = None
        self._since = listener.now
        self._paused = self._closed = False
        self._is_new = True
        #: Whether the last answer was a refusal: the next input has low priority.
        self._is_late = False
        self._linger_until, self._num_looks = 0.0, 0

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the new connection."""
        self._transport = transport
        self._outbox = Outbox(transport, self._listener.budget, self._listener.turns)
        if transport.get_extra_info("sslcontext") is None:
            # Answers are written immediately, not at the end of the loop's turn with those still to come.
            # (An encrypted transport with this limit would pause for ever.)
            self._transport.set_write_buffer_limits(high=0)
        else:
            self._reader.peer = peer_of_transport(transport)
        self._listener.connections.add(self)
        if self._listener.closing:
            self._listener.on_late(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Withdraw the requests of a client that is gone."""
        listener, backlog = self._listener, self._backlog
        self._closed = True
        listener.connections.discard(self)
        listener.lane.leave(self)
        listener.turns.leave(self)
        self._reader.close()
        self._outbox.gone()
        if self._probes is not None:
            self._probes.stop()
        for request in (self._current, *backlog.requests):
            if request is not None:
                self._release(request)
        backlog.unread = b""
        backlog.requests.clear()
        self._current = None
        pending, self._pending = self._pending, None
        streamed, self._streamed = self._streamed, None
        if pending is not None:
            pending.receiver = None
        if streamed is not None:
            streamed.gone()
        elif pending is not None:
            listener.spinner.num_pending -= 1
            pending.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse the data, or look the head up if they are one complete request with a cached head."""
        listener, reader = self._listener, self._reader
        if reader.is_deaf:
            listener.turns.skip(self._transport, len(data))
            return
        listener.spinner.came()
        if self._is_late:
            listener.lane.hold(self, data)
            return
        if self._backlog.unread:
            self._backlog.unread += data
            self.pause_reading()
            return
        if reader.is_between:
            end = data.find(b"\r\n\r\n") + 4
            known = listener.known_heads.get(data[:end])
            if known is not None and len(data) - end == known.body_bytes and not self.is_busy:
                method, target, headers, _, connection = known
                self._start(Request(method, target, headers, data[end:], connection, reader.peer))
                return
        self._read(data)

    def _read(self, data: bytes) -> None:
        """Pass data to the parser in pieces, until this connection's turn is over."""
        reader, backlog, turns = self._reader, self._backlog, self._listener.turns
        whole = reader.is_between
        reader.last = None
        size, position = len(data), 0
        backlog.begin_turn()
        while position < size and not reader.is_deaf:
            if position and (self._is_full or backlog.turn_is_over):
                whole = False
                backlog.unread = data[position:]
                self.pause_reading()
                if not self._is_full:
                    turns.wait(self)
                break
            end = position + max(_PIECE_BYTES, min(reader.num_missing, size - position))
            reader.parse(data[position:end])
            position = end
        is_long = size >= LONG_READ_BYTES or (size and reader.has_large_body)
        if is_long and not backlog.unread and not self._closed:
            self.pause_reading()
            turns.wait(self, to_be_read=True)
        if whole and reader.is_between and reader.last is not None:
            self._listener.remember(data, reader.last)

    @property
    def is_busy(self) -> bool:
        """True if the next request must wait for others of this connection."""
        return self._current is not None or self._outbox.is_blocked or bool(self._backlog.requests)

    @property
    def _is_full(self) -> bool:
        """True if the limit of requests behind one that is being answered is reached."""
        return self.is_busy and self._backlog.is_full(self._reader.num_body_bytes)

    def go_on(self) -> None:
        """Take a turn: send more of an answer, start waiting requests, or read unread input."""
        backlog = self._backlog
        backlog.begin_turn()
        if self._outbox.has_parts:
            self._send_more()
            return
        if self._closed:
            return
        if backlog.requests:
            self._start_waiting()
            return
        data, backlog.unread = backlog.unread, b""
        if self._reader.is_deaf:
            return
        if self._is_late:
            self._listener.lane.hold(self, data)
            return
        self._read(data)
        self._start_waiting()

    def take_low_priority(self, data: bytes) -> None:
        """Read the input that waited in the lane, and resume reading."""
        self._is_late = False
        self.data_received(data)
        self._start_waiting()
        if self._probes is not None:
            self._finish()

    def eof_received(self) -> bool:
        """Handle a half-close (RFC 9112, 9.6): answer the complete requests, then close.

        Over TLS, event loops do not support half-closed connections: the connection is closed.
        """
        if self._transport.get_extra_info("sslcontext") is not None:
            return False
        if self._closed:
            return self._outbox.has_parts
        if self._streamed is not None:
            # Clients of streams stop sending only when they leave, and what they asked for is dear.
            self._transport.abort()
            return False
        self._probes = Probes(self._transport)
        if self not in self._listener.lane:
            self._finish()
        return not self._closed or self._outbox.has_parts

    def _finish(self) -> None:
        """Close after all complete requests are answered."""
        self._probe()
        if self._reader.is_between:
            self.close_after_answer()
        else:
            self._reader.refuse_close()
        if self._closed:
            self._outbox.close()

    def _probe(self) -> None:
        """Send bytes of the present answer early to a client that stopped sending."""
        if self._probes is not None and self._current is not None and self._streamed is None:
            self._probes.send()

    def pause_writing(self) -> None:
        """Stop starting and reading requests while the client does not read."""
        self._outbox.pause(self._listener.now)
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
            self._listener.turns.wait(self)
            return
        if self._streamed is not None and not self._closed:
            self._streamed.resumed()
        self._backlog.begin_turn()
        self._start_waiting()

    # Called by the reader

    def take(self, request: Request) -> None:
        """Answer a request when its turn comes."""
        backlog = self._backlog
        if self.is_busy:
            backlog.put(request)
            if self._is_full:
                self.pause_reading()
        elif backlog.num_started and backlog.turn_is_over:
            backlog.put(request)
            self._listener.turns.wait(self)
        else:
            self._start(request)

    def proceed(self) -> None:
        """Send 100 Continue if it is due and all earlier requests are answered."""
        if self._reader.owes_continue and not self.is_busy and not self._closed:
            self._reader.owes_continue = False
            self._transport.write(_CONTINUE)

    def refuse(self, refusal: Response) -> None:
        """Answer an incomplete request with a response; later input is dropped."""
        reader = self._reader
        reader.drop_body()
        reader.is_deaf = True
        if self.is_busy:
            reader.owes_continue = False
            self.close_after_answer()
            return
        self._closed = True
        self._linger_until = self._listener.now + _LINGER_S
        self._send(Request(reader.method, b"", {}, connection=LAST), refusal)
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def close_after_answer(self) -> None:
        """Close after the last complete request is answered."""
        last = self._backlog.requests[-1] if self._backlog.requests else self._current
        if last is None:
            self._close()
        else:
            last.connection = LAST

    # Answering

    def _start(self, request: Request) -> None:
        self._backlog.num_started += 1
        self._since = self._listener.now
        self._is_new = False
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
        self._listener.spinner.num_pending += 1
        if self._probes is not None:
            self._probe()

    def _answered(self, pending: Pending) -> None:
        """Send the response, and continue with the next request."""
        request = self._current
        assert pending is self._pending
        assert request is not None
        assert pending.response is not None
        self._listener.spinner.num_pending -= 1
        pending.receiver = None
        if type(pending.response) is StreamedResponse:
            self._open_stream(request, pending.response)
            return
        self._pending = None
        self._send(request, pending.response)
        self._current = None
        if self._backlog.requests or self._paused or self._reader.owes_continue:
            self._go_to_next()

    def _go_to_next(self) -> None:
        self._backlog.begin_turn()
        self._start_waiting()

    def _start_waiting(self) -> None:
        """Start pipelined requests in order, while the client reads their answers."""
        backlog, outbox = self._backlog, self._outbox
        while backlog.requests and self._current is None and not outbox.is_blocked and not self._closed:
            if backlog.turn_is_over:
                self._listener.turns.wait(self)
                return
            self._start(backlog.pop())
        if self._paused and not outbox.is_blocked and not self._closed and not self._is_full:
            if backlog.unread:
                self._listener.turns.wait(self)
            else:
                self._paused = False
                self._transport.resume_reading()
        self.proceed()

    def _send(self, request: Request, response: Response) -> None:
        listener, outbox = self._listener, self._outbox
        if request.reserved_bytes:
            self._release(request)
        is_large = len(response.body) > SMALL_ANSWER_BYTES and request.method != b"HEAD"
        if is_large and not outbox.reserve(len(response.body)):
            response, is_large = listener.refusal(503, Budget.FULL), False
        self._is_late = response.status in REFUSALS
        connection = LAST if listener.closing else request.connection
        body = response.body
        head = b"%bcontent-type: %b\r\ncontent-length: %d\r\n%b%b%b\r\n" % (
            STATUS_LINES[response.status],
            response.content_type,
            len(body),
            response.headers,
            listener.date,
            connection,
        )
        if self._probes is not None:
            head = self._probes.rest(head)
        if is_large:
            outbox.put(head, body)
            if not outbox.pump() and outbox.has_parts:
                self.pause_reading()
                listener.turns.wait(self)
        else:
            outbox.write(head if request.method == b"HEAD" else head + body)
        if listener.spinner.is_on:
            listener.spinner.answered()
        if connection is LAST:
            self._close()

    def _release(self, request: Request) -> None:
        """Release the memory that was reserved for a request's body."""
        reserved, request.reserved_bytes = request.reserved_bytes, 0
        if reserved:
            self._listener.budget.give_back(reserved)

    def _open_stream(self, request: Request, response: Response) -> None:
        """Send the head of an answer whose body comes in pieces, and have them come."""
        assert isinstance(response, StreamedResponse)
        self._is_late = False
        self._release(request)
        # The end of the connection ends the body where it is closed anyway, and for clients of HTTP/1.0.
        is_chunked = not (request.connection or self._listener.closing)
        if not is_chunked:
            request.connection = LAST
        head = b"%bcontent-type: %b\r\n%b%b%b%b\r\n" % (
            STATUS_LINES[response.status],
            response.content_type,
            b"transfer-encoding: chunked\r\n" if is_chunked else b"",
            response.headers,
            self._listener.date,
            request.connection,
        )
        self._outbox.write(head if self._probes is None else self._probes.rest(head))
        self._streamed = StreamedBody(
            response.stream, self._outbox, self._stream_ended, is_chunked=is_chunked
        )
        self._streamed.start()

    def _stream_ended(self, is_complete: bool) -> None:
        """Continue with the next request after a streamed answer; close after an incomplete one."""
        request = self._current
        assert request is not None
        self._streamed = self._pending = self._current = None
        if not is_complete or request.connection is LAST or self._listener.closing:
            self._close()
        else:
            self._go_to_next()

    # Time and closing

    @property
    def idle(self) -> bool:
        """True if no request is being answered and no input waits to be read."""
        return (
            self._current is None
            and not self._backlog.requests
            and not self._backlog.unread
            and not self._outbox.has_parts
            and self not in self._listener.lane
        )

    @property
    def is_arriving(self) -> bool:
        """True if the first request, or a part of a later one, has not arrived yet."""
        return (self._is_new or not self._reader.is_between) and not self._reader.is_deaf

    def check_time(self, now: float) -> None:
        """Close a connection that is idle, sends its request too slowly, or does not take its answer."""
        timeouts = self._listener.timeouts
        if self._outbox.has_stopped(now, timeouts.read_s):
            self._listener.turns.end(self._transport.abort)
        elif self._linger_until:
            if now > self._linger_until:
                self._transport.abort()
        elif self._outbox.is_blocked or not self.idle:
            self._since = now
        elif not self._reader.is_between:
            if self._reader.is_slow(now):
                self._reader.refuse_slow()
        elif now - self._since > timeouts.keep_alive_s:
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
        self._closed = self._reader.is_deaf = True
        if self._streamed is not None:
            self._streamed.close()
        if self._transport is not None:
            self._transport.abort()

    def _close(self) -> None:
        """Close after all written data are sent."""
        if not self._closed:
            self._closed = self._reader.is_deaf = True
            self._outbox.close()

    def pause_reading(self) -> None:
        """Stop reading for now."""
        if not self._paused and not self._closed:
            self._paused = True
            self._transport.pause_reading()
