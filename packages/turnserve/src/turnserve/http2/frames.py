"""HTTP/2 frames as bytes: kinds, flags, settings, error codes (RFC 9113, sections 4 to 7)."""

from __future__ import annotations

import struct
from collections import deque
from enum import IntEnum
from typing import Final

#: Limit of ended streams whose frames may still arrive; the oldest are dropped.
_MAX_DISCARDED = 1024
#: Limit of stored gaps between stream ids; usual clients leave none.
_MAX_GAPS = 64


class ClosedStreams:
    """The stream ids that a connection has used.

    Attributes:
        last: the largest used id; 0 before the first.
    """

    __slots__ = ("_discarded", "_gaps", "last")

    def __init__(self) -> None:
        self.last = 0
        self._discarded: dict[int, None] = {}
        self._gaps: deque[tuple[int, int]] = deque(maxlen=_MAX_GAPS)

    def open(self, number: int) -> None:
        """Add a new stream, with a larger id than all before."""
        if number > self.last + 2:
            self._gaps.append((self.last, number))
        self.last = number

    def is_idle(self, number: int) -> bool:
        """True if a client has not used the stream, or cannot use it."""
        return number > self.last or number % 2 == 0

    def was_skipped(self, number: int) -> bool:
        """True if the id was skipped in favour of a larger one."""
        return any(start < number < end for start, end in self._gaps)

    def discard(self, number: int) -> None:
        """Mark a stream that the server ended before its client did."""
        if len(self._discarded) >= _MAX_DISCARDED:
            del self._discarded[next(iter(self._discarded))]
        self._discarded[number] = None

    def takes(self, number: int, *, is_last: bool) -> bool:
        """True if a frame may still arrive for a closed stream; not after the last one."""
        if number not in self._discarded:
            return False
        if is_last:
            del self._discarded[number]
        return True


#: The first bytes of a client.
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# Kinds
DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

# Flags
ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

# Settings
HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

#: The largest window, and the largest stream id.
MAX_WINDOW: Final = 2**31 - 1
#: The initial window of a connection and of its streams.
DEFAULT_WINDOW: Final = 65_535
#: The longest payload that every peer must accept.
DEFAULT_FRAME_SIZE: Final = 16_384
HEAD_BYTES: Final = 9

#: Length and kind in one word, flags, stream.
HEAD = struct.Struct(">IBI")
WORD = struct.Struct(">I")
SETTING = struct.Struct(">HI")


class ErrorCode(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Encode one frame."""
    return HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    """Encode a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*item) for item in values.items()))


def window_update(stream: int, increment: int) -> bytes:
    """Encode a WINDOW_UPDATE frame; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream, WORD.pack(increment))


def rst_stream(stream: int, code: ErrorCode) -> bytes:
    """Encode a RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream, WORD.pack(code))


def goaway(last_stream: int, code: ErrorCode, text: str = "") -> bytes:
    """Encode a GOAWAY frame."""
    return frame(GOAWAY, 0, 0, WORD.pack(last_stream) + WORD.pack(code) + text.encode())
