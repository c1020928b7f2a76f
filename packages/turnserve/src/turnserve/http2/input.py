"""Input of one HTTP/2 connection: its client's frames, and the streams that they open (RFC 9113).

A library (hpack) decodes header blocks. Heads, streams, resets and settings are limited, and received data
by the windows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from turnserve.http2.frames import (
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
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    MAX_WINDOW,
    PADDED,
    PING,
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
    rst_stream,
    settings,
    window_update,
)
from turnserve.http2.head import MAX_HEAD_BYTES, Head, HeadReader, content_length
from turnserve.http2.listener import Http2Listener
from turnserve.http2.output import Output
from turnserve.http2.stream import RECEIVE_WINDOW, Stream

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
#: The first frames of the server.
HELLO = settings(
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


class Input:
    """The frames of one connection's client, and its open streams.

    Args:
        listener: opens streams.
        output: of the connection.
        confirmed: called with the payload of a ping that the client confirms.
        emptied: called after the last stream of a connection that ends.

    Attributes:
        closed: the stream ids that were used.
        is_final: True if the client knows that no further stream is accepted.
        streams: the open ones, by id.
    """

    def __init__(
        self,
        listener: Http2Listener,
        output: Output,
        confirmed: Callable[[bytes], None],
        emptied: Callable[[], None],
    ) -> None:
        self._listener = listener
        self._output = output
        self._confirmed, self._emptied = confirmed, emptied
        self._heads = HeadReader()
        self.streams: dict[int, Stream] = {}
        self.closed = ClosedStreams()
        self.is_final = False
        self._knows_settings = False
        self._num_settings = 0
        self._first_window = DEFAULT_WINDOW
        self._receive_window = _CONNECTION_WINDOW
        #: An incomplete head: stream, flags, parts.
        self._unfinished: tuple[int, int, list[bytes]] | None = None

    def take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """Handle a frame.

        Raises: Http2Error, HeadError: the connection ends.
        """
        if self._unfinished is not None:
            self._continue(kind, flags, number, payload)
        elif not self._knows_settings and (kind != SETTINGS or flags & ACK):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the first frame must be SETTINGS")
        elif kind in _FRAMES:  # others are ignored
            _FRAMES[kind](self, flags, number, payload)

    def renew(self) -> None:
        """Begin another second of the limits."""
        self._output.num_resets = self._num_settings = 0

    def abandon(self) -> None:
        """Close all streams."""
        self._unfinished = None
        for stream in list(self.streams.values()):
            stream.abandon()

    def close(self) -> None:
        """Close all streams of a client that is gone."""
        self.is_final = True
        self.abandon()
        del self._confirmed, self._emptied  # break the reference cycle

    def forget(self, stream: Stream) -> None:
        """Remove a stream that has ended."""
        if self.streams.pop(stream.number, None) is None:
            return
        if not stream.has_ended:
            self.closed.discard(stream.number)
        self._output.unsent.forget(stream)
        if self.is_final and not self.streams and not self._output.is_reading:
            self._emptied()

    def pump(self) -> None:
        """Send more of the streams that wait for the connection."""
        output = self._output
        for stream in list(output.unsent.streams):
            if output.send_window <= 0 or output.is_blocked or output.is_reading:
                break
            assert isinstance(stream, Stream)
            self._advance(stream)

    def _advance(self, stream: Stream) -> None:
        """Send more of a stream, and move it to the end of the queue."""
        self._output.unsent.queue(stream, is_through=stream.pump())
        if not stream.is_waiting and stream.is_open:
            stream.notify_sent()

    def _on_data(self, flags: int, number: int, payload: bytes) -> None:
        length = len(payload)
        self._receive_window -= length
        if self._receive_window < _CONNECTION_WINDOW // 2:
            if self._receive_window < 0:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "more data than the window allows")
            self._output.write(window_update(0, _CONNECTION_WINDOW - self._receive_window))
            self._receive_window = _CONNECTION_WINDOW
        if flags & PADDED:
            payload = _unpadded(payload)
        stream = self.streams.get(number)
        if stream is None:
            self._check_known(number, "DATA")
            is_last = bool(flags & END_STREAM)
            if not self.is_final and not self.closed.takes(number, is_last=is_last):
                self._reset(number, ErrorCode.STREAM_CLOSED)
            return
        if stream.has_ended:
            stream.reset(ErrorCode.STREAM_CLOSED)
            return
        if flags & END_STREAM:
            stream.has_ended = True
        if not stream.take(length):
            stream.reset(ErrorCode.FLOW_CONTROL_ERROR)
        elif stream.content_left is not None and not stream.takes_content(len(payload)):
            stream.reset(ErrorCode.PROTOCOL_ERROR)
        elif stream.receiver is not None:
            stream.receiver.data(payload, stream.has_ended)

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
        stream = self.streams.get(number)
        if stream is not None:
            self._take_trailers(stream, flags, head)
            return
        closed = self.closed
        if number % 2 == 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"stream {number} is not a client's stream")
        if number <= closed.last:
            self._take_late_head(flags, number)
            return
        if self.is_final:
            return  # the client knows that new streams are not accepted
        if self._output.num_resets > _MAX_RESETS:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"over {_MAX_RESETS} resets in a second")
        closed.open(number)
        has_ended = bool(flags & END_STREAM)
        if head.fault or len(self.streams) >= MAX_STREAMS:
            if not has_ended:
                closed.discard(number)
            if head.fault:
                logger.debug("stream %d begins with %s", number, head.fault)
            self._reset(number, ErrorCode.PROTOCOL_ERROR if head.fault else ErrorCode.REFUSED_STREAM)
            return
        stream = Stream(self, self._output, number, self._first_window)
        if b"content-length" in head:
            stream.content_left = content_length(head)
            if has_ended and stream.content_left:
                self._reset(number, ErrorCode.PROTOCOL_ERROR)
                return
        self.streams[number] = stream
        stream.has_ended = has_ended
        receiver = self._listener.open(stream, head)
        if receiver is not None and stream.is_open:
            stream.receiver = receiver
            if has_ended:
                receiver.data(b"", True)

    def _take_late_head(self, flags: int, number: int) -> None:
        """Handle fields for a closed stream: trailers of a stream that the server ended, or an error."""
        closed = self.closed
        if closed.takes(number, is_last=bool(flags & END_STREAM)):
            return
        if closed.was_skipped(number):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"stream {number} after stream {closed.last}")
        raise Http2Error(ErrorCode.STREAM_CLOSED, f"HEADERS of closed stream {number}")

    def _take_trailers(self, stream: Stream, flags: int, head: Head) -> None:
        if stream.has_ended:
            stream.reset(ErrorCode.STREAM_CLOSED)
            return
        if not flags & END_STREAM or head.trailers_fault:
            stream.reset(ErrorCode.PROTOCOL_ERROR)
            return
        stream.has_ended = True
        if stream.content_left:
            stream.reset(ErrorCode.PROTOCOL_ERROR)
        elif stream.receiver is not None:
            stream.receiver.data(b"", True)

    def _reset(self, number: int, code: ErrorCode) -> None:
        """Reset a stream that does not exist or no longer exists; it counts as a reset of the client."""
        self._output.num_resets += 1
        self._output.write(rst_stream(number, code))

    def _on_priority(self, flags: int, number: int, payload: bytes) -> None:
        if number == 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PRIORITY without a stream")
        if len(payload) != 5:
            stream = self.streams.get(number)
            if stream is not None:
                stream.reset(ErrorCode.FRAME_SIZE_ERROR)
            elif self.closed.is_idle(number):  # an idle stream cannot be reset
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "PRIORITY of a wrong length")

    def _on_rst_stream(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM of a wrong length")
        stream = self.streams.get(number)
        if stream is None:
            self._check_known(number, "RST_STREAM")
            self.closed.takes(number, is_last=True)
            return
        self._output.num_resets += 1
        stream.has_ended = True  # no more data will arrive
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
        self._output.write(_SETTINGS_ACK)
        if self._first_window > window:
            # After the ACK: before it, the client uses the earlier values.
            for stream in list(self.streams.values()):
                if stream.is_waiting:
                    self._advance(stream)

    def _set(self, setting: int, value: int) -> None:
        if setting == INITIAL_WINDOW_SIZE:
            change = value - self._first_window
            self._first_window = value
            for stream in self.streams.values():
                stream.send_window += change
                if stream.send_window > MAX_WINDOW:
                    raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "a window of 2 GiB and more")
        elif setting == HEADER_TABLE_SIZE and value < 4096:
            self._output.resize = b"\x20"

    def _on_push_promise(self, flags: int, number: int, payload: bytes) -> None:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "clients must not send PUSH_PROMISE")

    def _on_ping(self, flags: int, number: int, payload: bytes) -> None:
        if number != 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PING of a stream")
        if len(payload) != 8:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "PING of a wrong length")
        if not flags & ACK:
            self._output.write(frame(PING, ACK, 0, payload))
        else:
            self._confirmed(payload)

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
            self._output.send_window += increment
            if increment == 0:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE with increment 0")
            if self._output.send_window > MAX_WINDOW:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "a window of 2 GiB and more")
            self.pump()
            return
        stream = self.streams.get(number)
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
        if number == 0 or (self.closed.is_idle(number) and not self.is_final):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"{what} of stream {number}, which was not opened")


_FRAMES = {
    DATA: Input._on_data,
    HEADERS: Input._on_headers,
    PRIORITY: Input._on_priority,
    RST_STREAM: Input._on_rst_stream,
    SETTINGS: Input._on_settings,
    PUSH_PROMISE: Input._on_push_promise,
    PING: Input._on_ping,
    GOAWAY: Input._on_goaway,
    WINDOW_UPDATE: Input._on_window_update,
    CONTINUATION: Input._on_continuation,
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
