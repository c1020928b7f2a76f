"""One HTTP/2 connection on the event loop: reads frames, calls the application, writes frames (RFC 9113).

This file implements HTTP/2 and does not depend on gRPC or models. It replaces `grpc.aio`'s server. That
server alone needs several times as long as scoring a node, mostly for passing calls between threads, and
its shutdown is not orderly: see docs/log.md. A library (hpack) decodes header blocks.

This file handles: flow control in both directions, limits on heads, streams and resets, graceful shutdown
(announced, confirmed by the client, and only then final), slow readers, connections of the maximum age, and
turns: a large input is read for a bounded time, then other connections have their turn (`turns.py`).

This file is long because all frames, and all ways in which a connection ends, change the same state.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any

from hopline.ingress.certificates import Peer, peer_of_transport
from hopline.transports.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_FRAME_SIZE,
    DEFAULT_WINDOW,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEAD,
    HEAD_BYTES,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    MAX_WINDOW,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    WINDOW_UPDATE,
    WORD,
    ClosedStreams,
    ErrorCode,
    frame,
    goaway,
    rst_stream,
    settings,
    window_update,
)
from hopline.transports.http2_head import MAX_HEAD_BYTES, Head, HeadError, HeadReader, content_length
from hopline.transports.http2_stream import RECEIVE_WINDOW, Stream
from hopline.transports.http2_unsent import FREE_BYTES, Held, Unsent
from hopline.transports.turns import LONG_READ_BYTES, TURN_S

if TYPE_CHECKING:
    from hopline.transports.grpc_endpoint import GrpcEndpoint

logger = logging.getLogger(__name__)

#: Open streams per connection; more wait at the client.
MAX_STREAMS = 512
#: Bytes that all streams together may send before the window is renewed.
_CONNECTION_WINDOW = 16 << 20
#: Streams that a client may reset within a second: more is an attack (CVE-2023-44487).
_MAX_RESETS = 10 * MAX_STREAMS
_MAX_SETTINGS = 100
#: Frames per head.
_MAX_CONTINUATIONS = 64
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
_HELLO = settings(
    {
        MAX_CONCURRENT_STREAMS: MAX_STREAMS,
        INITIAL_WINDOW_SIZE: RECEIVE_WINDOW,
        MAX_HEADER_LIST_SIZE: MAX_HEAD_BYTES,
    }
) + window_update(0, _CONNECTION_WINDOW - DEFAULT_WINDOW)
_SETTINGS_ACK = frame(SETTINGS, ACK, 0)


class Http2Error(Exception):
    """An error of a client that ends its connection.

    Attributes:
        code: error code for the client.
    """

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class Http2Connection(asyncio.Protocol):
    """The protocol object of one connection.

    Attributes:
        send_window: bytes that the client accepts, for all streams together.
        resize: prefix of the next head, if the client reduced its header table, which we do not use.
        is_final: whether the client knows that no further stream is accepted.
        is_blocked: whether the client does not read.
        held: memory of its requests, and of answers that wait.
        unsent: the answers that wait.
        num_resets: streams that were reset within this second.
        is_late: whether its last answer was a refusal: the next input has low priority.
    """

    def __init__(self, endpoint: GrpcEndpoint) -> None:
        self._endpoint = endpoint
        self._transport: Any = None
        self.peer: Peer | None = None
        self._buffer = b""
        self._greeted = self._knows_settings = False
        self._heads = HeadReader()
        self._streams: dict[int, Stream] = {}
        self._closed_streams = ClosedStreams()
        self._first_window = DEFAULT_WINDOW
        self.send_window = DEFAULT_WINDOW
        self._receive_window = _CONNECTION_WINDOW
        #: An incomplete head: stream, flags, parts.
        self._unfinished: tuple[int, int, list[bytes]] | None = None
        #: Frames that are written while input is read; sent at the end of reading.
        self._out: list[bytes] | None = None
        self.resize = b""
        self.num_resets = 0
        self._since = endpoint.now
        self._ending_since: float | None = None
        self.held = Held(endpoint.budget)
        self.unsent = Unsent(endpoint.turns, endpoint.now)
        self._num_settings = 0
        #: For a connection that ends: unsent bytes at the last check.
        self._unsent = 0
        self._has_confirmed = False
        self.is_final = False
        self.is_late = False
        #: Whether unread input waits for a later turn.
        self._is_waiting = False
        self._is_paused = self.is_blocked = False
        self._closed = False

    @property
    def is_reading_requests(self) -> bool:
        """True if a request is arriving that must be answered before the server ends."""
        return any(not stream.is_heard and not stream.lasts for stream in self._streams.values())

    @property
    def is_reading(self) -> bool:
        """True if input is read now: what is large is sent after it."""
        return self._out is not None

    @property
    def idle(self) -> bool:
        """True if no stream is open."""
        return not self._streams

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the new connection."""
        self._transport = transport
        self.peer = peer_of_transport(transport)
        self._endpoint.connections.add(self)
        if self._endpoint.closing:
            self.begin_close("the server is shutting down")

    def connection_lost(self, exc: Exception | None) -> None:
        """Withdraw the requests of a client that is gone."""
        self._closed = True
        self.is_final = True
        self._endpoint.connections.discard(self)
        self._endpoint.lane.leave(self)
        self._endpoint.turns.leave(self)
        self._buffer = b""
        self._unfinished = None
        self._abandon_streams()
        self.unsent.close()

    def eof_received(self) -> bool:
        """Treat a half-closed client as gone, since there is no other sign of it."""
        return False

    def pause_writing(self) -> None:
        """Stop reading while the client does not read."""
        self.is_blocked = True
        if not self._closed:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Continue when the client reads again."""
        self.is_blocked = False
        self._resume()
        if not self._closed:
            self._pump()
        if self._is_waiting and not self._closed and self not in self._endpoint.lane:
            self._endpoint.turns.wait(self)

    def data_received(self, data: bytes) -> None:
        """Handle complete frames until this turn is over."""
        if self._closed:
            self._endpoint.turns.skip(self._transport, len(data))
            return
        if self._is_waiting:
            self._buffer += data
        elif self.is_late:
            self._endpoint.lane.hold(self, data)
        else:
            self._read(data)

    def _read(self, data: bytes) -> None:
        received = len(data)
        if self._buffer:
            data = self._buffer + data
        self._out = []
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
            logger.exception("a gRPC connection failed")
            self._give_up(ErrorCode.INTERNAL_ERROR, "internal error")
        out, self._out = self._out, None
        if out:
            self.write(b"".join(out))
        if self.unsent.streams and not self._closed:
            self._pump()
        if self._closed:
            self._linger()
        elif self.is_final and not self._streams:
            self._finish()
        elif self._is_waiting:
            self.pause_reading()
            if self.is_late:
                self._endpoint.lane.hold(self, b"")
            else:
                self._endpoint.turns.wait(self)
        elif received >= LONG_READ_BYTES or (received and self.held.num_arriving > FREE_BYTES):
            self.pause_reading()
            self._endpoint.turns.wait(self, to_be_read=True)

    def take_low_priority(self, data: bytes) -> None:
        """Read the input that waited in the lane, and resume reading."""
        self.is_late = False
        self.go_on(data)

    def go_on(self, data: bytes = b"") -> None:
        """Read the remaining input, after the input of other connections."""
        if self._closed:
            return
        if self.is_blocked:  # until the client reads again
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
        if not self._closed and not self._is_paused and not self.is_blocked:
            self._transport.resume_reading()

    def _greet(self, data: bytes) -> int:
        """Return where the first frame begins; -1 while the preface is incomplete."""
        if len(data) < len(PREFACE) and PREFACE.startswith(data):
            return -1
        if len(data) < _LINE_BYTES and _REQUEST_LINE.fullmatch(data):
            return -1  # HTTP/1, which gets an answer; all else, such as TLS, is closed immediately
        if not data.startswith(PREFACE):
            self._closed = True
            if self._out is not None and b"HTTP/1" in data[:8192]:
                self._out[:] = [self._endpoint.not_http2]
            return len(data)
        self._greeted = True
        self.write(_HELLO)  # only now: clients of other protocols could not read it
        if self._ending_since is not None:
            self._announce("the server is shutting down")
        return len(PREFACE)

    def _take_frames(self, data: bytes, position: int) -> int:
        """Handle complete frames until this turn is over; return where the next frame begins."""
        size = len(data)
        unpack = HEAD.unpack_from
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
            number &= MAX_WINDOW
            if self._unfinished is not None:
                self._continue(kind, flags, number, payload)
            elif not self._knows_settings and (kind != SETTINGS or flags & ACK):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the first frame must be SETTINGS")
            elif kind in _FRAMES:  # others are ignored
                _FRAMES[kind](self, flags, number, payload)
            if position < size:
                now = self._endpoint.turns.clock()
                if not until:
                    until = now + TURN_S
                elif now > until:
                    self._is_waiting = True
                    break
        return position

    # Frames

    def _on_data(self, flags: int, number: int, payload: bytes) -> None:
        length = len(payload)
        self._receive_window -= length
        if self._receive_window < _CONNECTION_WINDOW // 2:
            if self._receive_window < 0:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "more data than the window allows")
            self.write(window_update(0, _CONNECTION_WINDOW - self._receive_window))
            self._receive_window = _CONNECTION_WINDOW
        if flags & PADDED:
            payload = _unpadded(payload)
        stream = self._streams.get(number)
        if stream is None:
            self._check_known(number, "DATA")
            is_last = bool(flags & END_STREAM)
            if not self.is_final and not self._closed_streams.takes(number, is_last=is_last):
                self._reset(number, ErrorCode.STREAM_CLOSED)
            return
        if stream.is_heard:
            stream.reset(ErrorCode.STREAM_CLOSED)
            return
        if flags & END_STREAM:
            stream.is_heard = True
        if not stream.take(length):
            stream.reset(ErrorCode.FLOW_CONTROL_ERROR)
        elif stream.content_left is not None and not stream.takes_content(len(payload)):
            stream.reset(ErrorCode.PROTOCOL_ERROR)
        elif stream.receiver is not None:
            stream.receiver.data(payload, stream.is_heard)

    def _on_headers(self, flags: int, number: int, payload: bytes) -> None:
        if number == 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "HEADERS without a stream")
        if flags & PADDED:
            payload = _unpadded(payload)
        if flags & HAS_PRIORITY:
            if len(payload) < 5:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for a priority")
            payload = payload[5:]
        if flags & END_HEADERS:
            self._take_head(flags, number, payload)
        else:
            self._unfinished = (number, flags, [payload])

    def _continue(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """Append the next part of a head; other frames must not interrupt it."""
        assert self._unfinished is not None
        stream, first_flags, parts = self._unfinished
        if kind != CONTINUATION or number != stream:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a head was interrupted")
        parts.append(payload)
        if len(parts) > _MAX_CONTINUATIONS or sum(map(len, parts)) > MAX_HEAD_BYTES:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "a head in too many parts")
        if flags & END_HEADERS:
            self._unfinished = None
            self._take_head(first_flags, number, b"".join(parts))

    def _take_head(self, flags: int, number: int, block: bytes) -> None:
        head = self._heads.read(block)
        stream = self._streams.get(number)
        if stream is not None:
            self._take_trailers(stream, flags, head)
            return
        closed = self._closed_streams
        if number % 2 == 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"stream {number} is not a client's stream")
        if number <= closed.last:
            self._take_late_head(flags, number)
            return
        if self.is_final:
            return  # the client knows that new streams are not accepted
        if self.num_resets > _MAX_RESETS:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"over {_MAX_RESETS} resets in a second")
        closed.open(number)
        is_heard = bool(flags & END_STREAM)
        if head.fault or len(self._streams) >= MAX_STREAMS:
            if not is_heard:
                closed.discard(number)
            if head.fault:
                logger.debug("stream %d begins with %s", number, head.fault)
            self._reset(number, ErrorCode.PROTOCOL_ERROR if head.fault else ErrorCode.REFUSED_STREAM)
            return
        stream = Stream(self, number, self._first_window)
        if b"content-length" in head:
            stream.content_left = content_length(head)
            if is_heard and stream.content_left:
                self._reset(number, ErrorCode.PROTOCOL_ERROR)
                return
        self._streams[number] = stream
        stream.is_heard = is_heard
        receiver = self._endpoint.open(stream, head)
        if receiver is not None and stream.is_open:
            stream.receiver = receiver
            if is_heard:
                receiver.data(b"", True)

    def _take_late_head(self, flags: int, number: int) -> None:
        """Handle fields for a closed stream: trailers of a stream that the server ended, or an error."""
        closed = self._closed_streams
        if closed.takes(number, is_last=bool(flags & END_STREAM)):
            return
        if closed.was_skipped(number):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"stream {number} after stream {closed.last}")
        raise Http2Error(ErrorCode.STREAM_CLOSED, f"HEADERS of closed stream {number}")

    def _take_trailers(self, stream: Stream, flags: int, head: Head) -> None:
        if stream.is_heard:
            stream.reset(ErrorCode.STREAM_CLOSED)
            return
        if not flags & END_STREAM or head.trailers_fault:
            stream.reset(ErrorCode.PROTOCOL_ERROR)
            return
        stream.is_heard = True
        if stream.content_left:
            stream.reset(ErrorCode.PROTOCOL_ERROR)
        elif stream.receiver is not None:
            stream.receiver.data(b"", True)

    def _reset(self, number: int, code: ErrorCode) -> None:
        """Reset a stream that does not exist or no longer exists; it counts as a reset of the client."""
        self.num_resets += 1
        self.write(rst_stream(number, code))

    def _on_priority(self, flags: int, number: int, payload: bytes) -> None:
        if number == 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PRIORITY without a stream")
        if len(payload) != 5:
            stream = self._streams.get(number)
            if stream is not None:
                stream.reset(ErrorCode.FRAME_SIZE_ERROR)
            elif self._closed_streams.is_idle(number):  # an idle stream cannot be reset
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "PRIORITY of a wrong length")

    def _on_rst_stream(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM of a wrong length")
        stream = self._streams.get(number)
        if stream is None:
            self._check_known(number, "RST_STREAM")
            self._closed_streams.takes(number, is_last=True)
            return
        self.num_resets += 1
        stream.is_heard = True  # no more data will arrive
        stream.abandon()

    def _on_settings(self, flags: int, number: int, payload: bytes) -> None:
        if number != 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "SETTINGS of a stream")
        if len(payload) % SETTING.size or (flags & ACK and payload):
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a wrong length")
        if flags & ACK:
            return
        self._knows_settings = True
        self._num_settings += 1
        if self._num_settings > _MAX_SETTINGS:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"over {_MAX_SETTINGS} SETTINGS in a second")
        window = self._first_window
        if payload:
            values = list(SETTING.iter_unpack(payload))
            for setting, value in values:
                _check_setting(setting, value)
            for setting, value in dict(values).items():  # the last value is used
                self._set(setting, value)
        self.write(_SETTINGS_ACK)
        if self._first_window > window:
            # After the ACK: before it, the client uses the earlier values.
            for stream in list(self._streams.values()):
                if stream.is_waiting:
                    self._advance(stream)

    def _set(self, setting: int, value: int) -> None:
        if setting == INITIAL_WINDOW_SIZE:
            change = value - self._first_window
            self._first_window = value
            for stream in self._streams.values():
                stream.send_window += change
                if stream.send_window > MAX_WINDOW:
                    raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "a window of 2 GiB and more")
        elif setting == HEADER_TABLE_SIZE and value < 4096:
            self.resize = b"\x20"

    def _on_push_promise(self, flags: int, number: int, payload: bytes) -> None:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "clients must not send PUSH_PROMISE")

    def _on_ping(self, flags: int, number: int, payload: bytes) -> None:
        if number != 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PING of a stream")
        if len(payload) != 8:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "PING of a wrong length")
        if not flags & ACK:
            self.write(frame(PING, ACK, 0, payload))
        elif payload == _END_PING and self._ending_since is not None:
            self._has_confirmed = True
            if not self.is_final:
                self._make_final()

    def _on_goaway(self, flags: int, number: int, payload: bytes) -> None:
        """Check the frame; the client opens no more streams, and closes after its answers."""
        if number != 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "GOAWAY of a stream")
        if len(payload) < 8:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY is too short")

    def _on_window_update(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong length")
        increment = WORD.unpack(payload)[0] & MAX_WINDOW
        if number == 0:
            self.send_window += increment
            if increment == 0:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE with increment 0")
            if self.send_window > MAX_WINDOW:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "a window of 2 GiB and more")
            self._pump()
            return
        stream = self._streams.get(number)
        if stream is None:
            self._check_known(number, "WINDOW_UPDATE")
            return
        stream.send_window += increment
        if increment == 0:
            stream.reset(ErrorCode.PROTOCOL_ERROR)
        elif stream.send_window > MAX_WINDOW:
            stream.reset(ErrorCode.FLOW_CONTROL_ERROR)
        elif stream.is_waiting:
            self._advance(stream)

    def _on_continuation(self, flags: int, number: int, payload: bytes) -> None:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without a head")

    def _check_known(self, number: int, what: str) -> None:
        """Check that a stream was opened: frames of ended streams may still arrive."""
        if number == 0 or (self._closed_streams.is_idle(number) and not self.is_final):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"{what} of stream {number}, which was not opened")

    # For streams

    def write(self, data: bytes) -> None:
        """Send frames."""
        if self._out is not None:
            self._out.append(data)
        elif self._transport is not None:
            self._transport.write(data)

    def drop(self, memory: object) -> None:
        """Release large memory in a later turn."""
        self._endpoint.turns.drop(memory)

    def forget(self, stream: Stream) -> None:
        """Remove a stream that has ended."""
        if self._streams.pop(stream.number, None) is not None and not stream.is_heard:
            self._closed_streams.discard(stream.number)
        self.unsent.forget(stream)
        if self.is_final and not self._streams and self._out is None:
            self._finish()

    def _pump(self) -> None:
        for stream in list(self.unsent.streams):
            if self.send_window <= 0 or self.is_blocked or self.is_reading:
                break
            self._advance(stream)

    def _advance(self, stream: Stream) -> None:
        """Send more of a stream, and move it to the end of the queue."""
        self.unsent.queue(stream, is_through=stream.pump())
        if not stream.is_waiting and stream.is_open and stream.receiver is not None:
            stream.receiver.sent()

    # Time and closing

    def check_time(self, now: float) -> None:
        """Check time limits, once a second."""
        self.num_resets = self._num_settings = 0
        if self._closed:
            self._check_end(now)
            return
        endpoint = self._endpoint
        if self._has_stopped(now):
            endpoint.turns.end(self._end_stopped)
            return
        for stream in list(self._streams.values()):
            if stream.receiver is not None:
                stream.receiver.check_time(now)
        if not self._greeted:
            ending = self._ending_since
            until = self._since + endpoint.read_timeout_s if ending is None else ending + _GREETING_S
            if now > until:
                self._transport.abort()
        elif self._ending_since is None:
            if now > self._since + endpoint.age_of(self):
                self.begin_close("max_age")
        elif not self.is_final and now > self._ending_since + _LINGER_S:
            self._make_final()  # no confirmation: the client may be gone
        elif not self._has_confirmed and now > self._ending_since + _GONE_S:
            self._transport.abort()

    def _end_stopped(self) -> None:
        """End this connection, whose client does not take its answers."""
        if not self._closed:
            limit_s = self._endpoint.read_timeout_s
            self._give_up(ErrorCode.CANCEL, f"answers were not read within {limit_s} s")
            self._transport.abort() if self.is_blocked else self._linger()

    def _has_stopped(self, now: float) -> bool:
        """Reset streams whose client does not take their answers.

        If it took no answer of the connection in that time, and its windows have no room for others, those
        are not computed.

        Returns: True if the connection has no other streams, except some that wait for those.
        """
        limit_s, unsent = self._endpoint.read_timeout_s, self.unsent
        if unsent.has_stopped(now, limit_s, self._transport, is_blocked=self.is_blocked):
            return True
        streams = self._streams.values()
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
        elif now > self._ending_since + (self._endpoint.read_timeout_s if unsent else _LINGER_S):
            self._transport.abort()

    def begin_close(self, why: str) -> None:
        """Announce the end: streams that the client begins before it knows are answered."""
        if self._ending_since is None and not self._closed:
            self._ending_since = self._endpoint.now
            if self._greeted:
                self._announce(why)

    def _announce(self, why: str) -> None:
        self.write(goaway(MAX_WINDOW, ErrorCode.NO_ERROR, why) + frame(PING, 0, 0, _END_PING))

    def _make_final(self) -> None:
        self.is_final = True
        self.write(goaway(self._closed_streams.last, ErrorCode.NO_ERROR))
        if not self._streams and self._out is None:
            self._finish()

    def _finish(self) -> None:
        """Close after all answers."""
        if not self._closed:
            self._closed = True
            self._linger()

    def _give_up(self, code: ErrorCode, text: str) -> None:
        self._closed = True
        self.write(goaway(self._closed_streams.last, code, text))
        self._abandon_streams()

    def _abandon_streams(self) -> None:
        for stream in list(self._streams.values()):
            stream.abandon()

    def _linger(self) -> None:
        """Send the end of output, and wait for the client to close."""
        self.is_final = True
        self._ending_since = self._endpoint.now
        self._unsent = self._transport.get_write_buffer_size()
        self._buffer, self._is_waiting = b"", False
        self._endpoint.turns.leave(self)
        if self._is_paused or self.is_blocked:  # otherwise its end would not be noticed
            self._is_paused = self.is_blocked = False
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


_FRAMES = {
    DATA: Http2Connection._on_data,
    HEADERS: Http2Connection._on_headers,
    PRIORITY: Http2Connection._on_priority,
    RST_STREAM: Http2Connection._on_rst_stream,
    SETTINGS: Http2Connection._on_settings,
    PUSH_PROMISE: Http2Connection._on_push_promise,
    PING: Http2Connection._on_ping,
    GOAWAY: Http2Connection._on_goaway,
    WINDOW_UPDATE: Http2Connection._on_window_update,
    CONTINUATION: Http2Connection._on_continuation,
}


def _check_setting(setting: int, value: int) -> None:
    """Refuse invalid values (6.5.2)."""
    if setting == INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
        raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "a window of 2 GiB and more")
    if setting == ENABLE_PUSH and value > 1:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH must be 0 or 1")
    if setting == MAX_FRAME_SIZE and not DEFAULT_FRAME_SIZE <= value < 1 << 24:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE must be 2^14 to 2^24 - 1")


def _unpadded(payload: bytes) -> bytes:
    padding = payload[0] if payload else 0
    if not payload or padding >= len(payload):
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
    return payload[1 : len(payload) - padding]
