"""One HTTP/2 connection on the event loop: reads in turns, ends in order (RFC 9113).

    bytes ──▸ connection ──▸ Input ──▸ Stream ──▸ the listener's application
              a frame at     heads,      │
              a time         windows     ▾
    bytes ◂───────────────────────── Output

This file handles: the preface, turns (a large input is read for a bounded time, then other connections have
theirs: `turns.py`), slow readers, connections of the maximum age, and graceful shutdown (announced,
confirmed by the client, and only then final).
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

from turnserve.http2.frames import (
    DEFAULT_FRAME_SIZE,
    HEAD,
    HEAD_BYTES,
    MAX_WINDOW,
    PING,
    PREFACE,
    ErrorCode,
    frame,
    goaway,
)
from turnserve.http2.head import HeadError
from turnserve.http2.input import HELLO, Http2Error, Input
from turnserve.http2.listener import Http2Listener
from turnserve.http2.output import FREE_BYTES, Output
from turnserve.peers import peer_of_transport
from turnserve.turns import LONG_READ_BYTES, TURN_S

logger = logging.getLogger(__name__)

#: Seconds from our last byte to the close: closing immediately would drop unread data.
_LINGER_S = 5.0
#: Seconds after which a client that has not confirmed the end is considered gone.
_GONE_S = 20.0
#: A first line of HTTP/1.1 up to this length is read completely, to be answered.
_LINE_BYTES = 4096
#: The begin of a request line of HTTP/1, without its end (RFC 9112, 3).
_REQUEST_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}(?: [^\x00-\x1f\x7f]*\r?)?")
#: Seconds that a stopping server waits for clients that have not sent anything.
_GREETING_S = 1.0
#: Payload of the ping that a client confirms after the announcement of the end.
_END_PING = b"hop: end"


class Http2Connection(asyncio.Protocol):
    """The protocol object of one connection.

    Attributes:
        output: its frames, and memory of its requests.
    """

    def __init__(self, listener: Http2Listener) -> None:
        self._listener = listener
        self.output = Output(listener.budget, listener.turns, listener.now)
        self._input = Input(listener, self.output, self._confirmed, self._finish)
        self._transport: Any = None
        self._buffer = b""
        self._greeted = False
        self._since = listener.now
        self._ending_since: float | None = None
        self._has_confirmed = False
        #: For a connection that ends: unsent bytes at the last check.
        self._unsent = 0
        #: Whether unread input waits for a later turn.
        self._is_waiting = False
        self._is_paused = False
        self._closed = False

    @property
    def is_reading_requests(self) -> bool:
        """True if a request is arriving that must be answered before the server ends."""
        return any(not stream.has_ended and not stream.lasts for stream in self._input.streams.values())

    @property
    def is_final(self) -> bool:
        """True if the client knows that no further stream is accepted."""
        return self._input.is_final

    @property
    def idle(self) -> bool:
        """True if no stream is open."""
        return not self._input.streams

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the new connection."""
        self._transport = transport
        self.output.open(transport, peer_of_transport(transport))
        self._listener.connections.add(self)
        if self._listener.closing:
            self._listener.on_late(transport)
            self.begin_close("the server is shutting down")

    def connection_lost(self, exc: Exception | None) -> None:
        """Withdraw the requests of a client that is gone."""
        self._closed = True
        self._listener.connections.discard(self)
        self._listener.lane.leave(self)
        self._listener.turns.leave(self)
        self._buffer = b""
        self._input.close()
        self.output.unsent.close()

    def eof_received(self) -> bool:
        """Treat a half-closed client as gone, since there is no other sign of it."""
        return False

    def pause_writing(self) -> None:
        """Stop reading while the client does not read."""
        self.output.is_blocked = True
        if not self._closed:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Continue when the client reads again."""
        self.output.is_blocked = False
        self._resume()
        if not self._closed:
            self._input.pump()
        if self._is_waiting and not self._closed and self not in self._listener.lane:
            self._listener.turns.wait(self)

    def data_received(self, data: bytes) -> None:
        """Handle complete frames until this turn is over."""
        if self._closed:
            self._listener.turns.skip(self._transport, len(data))
            return
        if self._is_waiting:
            self._buffer += data
        elif self.output.is_late:
            self._listener.lane.hold(self, data)
        else:
            self._read(data)

    def _read(self, data: bytes) -> None:
        received = len(data)
        if self._buffer:
            data = self._buffer + data
        self.output.collect()
        try:
            position = 0 if self._greeted else self._greet(data)
            if position >= 0:
                position = self._take_frames(data, position)
                self._buffer = data[position:]
            else:
                self._buffer = data
        except (Http2Error, HeadError) as error:
            self._give_up(error.code, str(error))
        except Exception:  # the boundary of a connection: written frames are sent, and it ends with GOAWAY
            logger.exception("an HTTP/2 connection failed")
            self._give_up(ErrorCode.INTERNAL_ERROR, "internal error")
        self.output.flush()
        if self.output.unsent.streams and not self._closed:
            self._input.pump()
        if self._closed:
            self._linger()
        elif self._input.is_final and not self._input.streams:
            self._finish()
        elif self._is_waiting:
            self.pause_reading()
            if self.output.is_late:
                self._listener.lane.hold(self, b"")
            else:
                self._listener.turns.wait(self)
        elif received >= LONG_READ_BYTES or (received and self.output.held.num_arriving > FREE_BYTES):
            self.pause_reading()
            self._listener.turns.wait(self, to_be_read=True)

    def take_low_priority(self, data: bytes) -> None:
        """Read the input that waited in the lane, and resume reading."""
        self.output.is_late = False
        self.go_on(data)

    def go_on(self, data: bytes = b"") -> None:
        """Read the remaining input, after the input of other connections."""
        if self._closed:
            return
        if self.output.is_blocked:  # until the client reads again
            self._buffer += data
            self._is_waiting = True
            return
        self._is_waiting = False
        self._read(data)
        if self._is_paused and not self._is_waiting:
            self._is_paused = False
            self._resume()

    def pause_reading(self) -> None:
        """Stop reading for now."""
        if not self._is_paused and not self._closed:
            self._is_paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if not self._closed and not self._is_paused and not self.output.is_blocked:
            self._transport.resume_reading()

    def _greet(self, data: bytes) -> int:
        """Return where the first frame begins; -1 while the preface is incomplete."""
        if len(data) < len(PREFACE) and PREFACE.startswith(data):
            return -1
        if len(data) < _LINE_BYTES and _REQUEST_LINE.fullmatch(data):
            return -1  # HTTP/1, which gets an answer; all else, such as TLS, is closed immediately
        if not data.startswith(PREFACE):
            self._closed = True
            if b"HTTP/1" in data[:8192]:
                self.output.send_only(self._listener.not_http2)
            return len(data)
        self._greeted = True
        self.output.write(HELLO)  # only now: clients of other protocols could not read it
        if self._ending_since is not None:
            self._announce("the server is shutting down")
        return len(PREFACE)

    def _take_frames(self, data: bytes, position: int) -> int:
        """Handle complete frames until this turn is over; return where the next frame begins."""
        size = len(data)
        unpack, take = HEAD.unpack_from, self._input.take
        until = 0.0
        while size - position >= HEAD_BYTES and not self._closed:
            word, flags, number = unpack(data, position)
            length, kind = word >> 8, word & 0xFF
            if length > DEFAULT_FRAME_SIZE:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            end = position + HEAD_BYTES + length
            if end > size:
                break
            payload = data[position + HEAD_BYTES : end]
            position = end
            take(kind, flags, number & MAX_WINDOW, payload)
            if position < size:
                now = self._listener.turns.clock()
                if not until:
                    until = now + TURN_S
                elif now > until:
                    self._is_waiting = True
                    break
        return position

    def _confirmed(self, payload: bytes) -> None:
        """Make the end final that the client confirms."""
        if payload == _END_PING and self._ending_since is not None:
            self._has_confirmed = True
            if not self._input.is_final:
                self._make_final()

    # Time and closing

    def check_time(self, now: float) -> None:
        """Check time limits, once a second."""
        self._input.renew()
        if self._closed:
            self._check_end(now)
            return
        listener = self._listener
        if self._has_stopped(now):
            listener.turns.end(self._end_stopped)
            return
        for stream in list(self._input.streams.values()):
            if stream.receiver is not None:
                stream.receiver.check_time(now)
        if not self._greeted:
            ending = self._ending_since
            until = self._since + listener.read_timeout_s if ending is None else ending + _GREETING_S
            if now > until:
                self._transport.abort()
        elif self._ending_since is None:
            if now > self._since + listener.age_of(self):
                self.begin_close("max_age")
        elif not self._input.is_final and now > self._ending_since + _LINGER_S:
            self._make_final()  # no confirmation: the client may be gone
        elif not self._has_confirmed and now > self._ending_since + _GONE_S:
            self._transport.abort()

    def _end_stopped(self) -> None:
        """End this connection, whose client does not take its answers."""
        if not self._closed:
            limit_s = self._listener.read_timeout_s
            self._give_up(ErrorCode.CANCEL, f"answers were not read within {limit_s} s")
            self._transport.abort() if self.output.is_blocked else self._linger()

    def _has_stopped(self, now: float) -> bool:
        """Reset streams whose client does not take their answers.

        If it took no answer of the connection in that time, and its windows have no room for others, those
        are not computed.

        Returns: True if the connection has no other streams, except some that wait for those.
        """
        limit_s, unsent = self._listener.read_timeout_s, self.output.unsent
        if unsent.has_stopped(now, limit_s, self._transport, is_blocked=self.output.is_blocked):
            return True
        streams = self._input.streams.values()
        stopped = {stream for stream in streams if stream.has_stopped(now, limit_s)}
        if stopped and unsent.takes_none(now, limit_s):
            stopped |= {stream for stream in streams if stream.is_hopeless}
        if stopped and all(stream in stopped or unsent.is_due(stream) for stream in streams):
            return True
        for stream in stopped:
            stream.reset(ErrorCode.CANCEL)
        return False

    def _check_end(self, now: float) -> None:
        """Abort if the client does not read the last bytes, or does not close after them."""
        unsent = self._transport.get_write_buffer_size()
        if self._ending_since is None or unsent != self._unsent:
            self._unsent, self._ending_since = unsent, now
        elif now > self._ending_since + (self._listener.read_timeout_s if unsent else _LINGER_S):
            self._transport.abort()

    def begin_close(self, why: str) -> None:
        """Announce the end: streams that the client begins before it knows are answered."""
        if self._ending_since is None and not self._closed:
            self._ending_since = self._listener.now
            if self._greeted:
                self._announce(why)

    def _announce(self, why: str) -> None:
        self.output.write(goaway(MAX_WINDOW, ErrorCode.NO_ERROR, why) + frame(PING, 0, 0, _END_PING))

    def _make_final(self) -> None:
        self._input.is_final = True
        self.output.write(goaway(self._input.closed.last, ErrorCode.NO_ERROR))
        if not self._input.streams and not self.output.is_reading:
            self._finish()

    def _finish(self) -> None:
        """Close after all answers."""
        if not self._closed:
            self._closed = True
            self._linger()

    def _give_up(self, code: ErrorCode, text: str) -> None:
        self._closed = True
        self.output.write(goaway(self._input.closed.last, code, text))
        self._input.abandon()

    def _linger(self) -> None:
        """Send the end of output, and wait for the client to close."""
        self._input.is_final = True
        self._ending_since = self._listener.now
        self._unsent = self._transport.get_write_buffer_size()
        self._buffer, self._is_waiting = b"", False
        self._listener.turns.leave(self)
        if self._is_paused or self.output.is_blocked:  # otherwise its end would not be noticed
            self._is_paused = self.output.is_blocked = False
            self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close immediately."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()
