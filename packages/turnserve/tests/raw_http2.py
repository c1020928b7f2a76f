"""A client of HTTP/2 that sends whatever a test says, byte by byte, and reads the frames that come back.

It shares no code with the server: frames and header blocks are put together here, after RFC 9113 and 7541.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from dataclasses import dataclass

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, END_HEADERS, PADDED, PRIORITISED, ACK = 1, 4, 8, 32, 1
CODES = {
    0: "NO_ERROR",
    1: "PROTOCOL_ERROR",
    3: "FLOW_CONTROL_ERROR",
    5: "STREAM_CLOSED",
    6: "FRAME_SIZE_ERROR",
    7: "REFUSED_STREAM",
    8: "CANCEL",
    9: "COMPRESSION_ERROR",
    11: "ENHANCE_YOUR_CALM",
}
#: The last ping of a test: what comes before its answer is the answer to what the test sent.
_LAST = b"the last"


@dataclass(frozen=True)
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", length: int | None = None) -> bytes:
    """A frame; `length` may be another than the payload's."""
    size = len(payload) if length is None else length
    return size.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, increment.to_bytes(4, "big"))


def rst(stream: int, code: int = 8) -> bytes:
    return frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def integer(value: int, prefix: int, first: int = 0) -> bytes:
    """RFC 7541, 5.1."""
    most = (1 << prefix) - 1
    if value < most:
        return bytes([first | value])
    out, value = [first | most], value - most
    while value >= 128:
        out.append(value % 128 | 128)
        value //= 128
    return bytes([*out, value])


def literal(name: bytes, value: bytes, kind: int = 0x00) -> bytes:
    """A field as a literal with a new name (6.2): 0x40 enters the table, 0x00 does not, 0x10 never does."""
    return bytes([kind]) + integer(len(name), 7) + name + integer(len(value), 7) + value


def block(*fields: tuple[str, str]) -> bytes:
    return b"".join(literal(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields)


class Peer:
    """One connection to a server, which has greeted.

    Args:
        port: on this host.
        greets: whether it sends its preface and SETTINGS.
    """

    def __init__(self, port: int, *, greets: bool = True) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._data = b""
        if greets:
            self.send(PREFACE + settings() + frame(SETTINGS, ACK, 0))

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def frames(self) -> list[Frame]:
        """All that comes until the server has read what was sent, or has closed."""
        found = []
        with contextlib.suppress(OSError):  # it has closed already, and may have said why
            self.send(frame(PING, 0, 0, _LAST))
        while (each := self._next()) is not None:
            if each.kind == PING and each.flags & ACK and each.payload == _LAST:
                return found
            found.append(each)
        return [*found, CLOSED]

    def until(self, kind: int, stream: int) -> list[Frame]:
        """All that comes up to a frame of a stream, or to the end."""
        found = []
        while (each := self._next()) is not None:
            found.append(each)
            if (each.kind, each.stream) == (kind, stream):
                break
        return found

    def _next(self) -> Frame | None:
        while len(self._data) < 9 or len(self._data) < 9 + int.from_bytes(self._data[:3], "big"):
            try:
                more = self.socket.recv(65_536)
            except ConnectionResetError:
                return None
            if not more:
                return None
            self._data += more
        end = 9 + int.from_bytes(self._data[:3], "big")
        head, self._data = self._data[:end], self._data[end:]
        return Frame(head[3], head[4], int.from_bytes(head[5:9], "big"), head[9:])


#: Stands at the end of what came from a server that closed.
CLOSED = Frame(-1, 0, 0, b"")


def verdicts(frames: list[Frame]) -> list[str]:
    """What a server decided: GOAWAY code, RST_STREAM stream code, HEADERS stream, closed."""
    found = []
    for each in frames:
        if each.kind == GOAWAY:
            found.append(f"GOAWAY {CODES[int.from_bytes(each.payload[4:8], 'big')]}")
        elif each.kind == RST_STREAM:
            found.append(f"RST {each.stream} {CODES[int.from_bytes(each.payload, 'big')]}")
        elif each.kind == HEADERS:
            found.append(f"HEADERS {each.stream}")
        elif each is CLOSED:
            found.append("closed")
    return found
