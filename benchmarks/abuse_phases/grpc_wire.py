"""gRPC of our own on a bare socket: frames of HTTP/2 (RFC 9113) as an attacker would choose them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Iterable

from grpc import StatusCode
from hpack import Decoder

from benchmarks.abuse_phases.http_wire import CLOSED, SILENT

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
LOAD = "/inference.GRPCInferenceService/RepositoryModelLoad"
CHECK = "/grpc.health.v1.Health/Check"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_FRAME_BYTES = 16_384
_TIMEOUT_S = 60.0
_NAMES = {str(code.value[0]): code.name for code in StatusCode}


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def greeting(window: int) -> bytes:
    """The first bytes of a client whose streams have this window."""
    return _PREFACE + frame(_SETTINGS, 0, 0, b"\0\4" + window.to_bytes(4, "big"))


def head(stream: int, path: str, metadata: Iterable[tuple[str, str]] = (), *, ends: bool = False) -> bytes:
    """The HEADERS of a call. Nothing of it enters the table, so that heads may be sent in any order."""
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "abuse")]
    fields += [("content-type", "application/grpc"), ("te", "trailers"), *metadata]
    block = bytearray()
    for name, value in fields:  # literal, never indexed, no Huffman code (RFC 7541, 6.2.3)
        block += b"\x10" + _string(name.encode()) + _string(value.encode("latin-1"))
    return frame(_HEADERS, 0x5 if ends else 0x4, stream, bytes(block))


def _string(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes([len(text)]) + text
    rest, length = len(text) - 127, bytearray(b"\x7f")
    while rest >= 128:
        length.append(rest % 128 + 128)
        rest //= 128
    return bytes(length) + bytes([rest]) + text


def message(data: bytes, *, compressed: bool = False) -> bytes:
    """A message with its prefix."""
    return bytes([compressed]) + len(data).to_bytes(4, "big") + data


def data(stream: int, payload: bytes, *, ends: bool = True) -> bytes:
    """A payload as DATA frames."""
    starts = range(0, max(1, len(payload)), _FRAME_BYTES)
    pieces = [payload[start : start + _FRAME_BYTES] for start in starts]
    last = len(pieces) - 1
    return b"".join(frame(_DATA, ends and at == last, stream, each) for at, each in enumerate(pieces))


def call(
    stream: int, path: str, payload: bytes, metadata: Iterable[tuple[str, str]] = (), *, ends: bool = True
) -> bytes:
    """A whole call: head and message, which is within the server's window."""
    return head(stream, path, metadata) + data(stream, payload, ends=ends)


class GrpcSocket:
    """One connection whose frames are read while others are sent. Answers the server's PING and SETTINGS.

    Attributes:
        statuses: stream -> how it ended: a status' name, or "RST_STREAM"; stream 0 -> "GOAWAY <code>".
        num_bytes: of answers.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = Decoder(1 << 20)
        self.statuses: dict[int, str] = {}
        self.num_bytes = 0
        self._changed = threading.Condition()
        self._has_ended = False
        self._sending = threading.Lock()
        self.send(greeting(2**31 - 1))
        self.send(frame(_WINDOW_UPDATE, 0, 0, (1 << 30).to_bytes(4, "big")))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, frames: bytes) -> None:
        """Send; a connection that was reset is no failure."""
        with contextlib.suppress(OSError), self._sending:
            self._socket.sendall(frames)

    def wait(self, count: int, timeout_s: float = _TIMEOUT_S) -> None:
        """Until so many streams have ended, or the connection has."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.statuses) >= count or self._has_ended, timeout_s)

    def close(self) -> None:
        """Close, whatever is under way."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join(_TIMEOUT_S)
        self._socket.close()

    def summary(self, expected: int) -> Counter[str]:
        """Counts of each status, and of missing ones."""
        found = Counter(self.statuses.values())
        missing = expected - found.total()
        if missing > 0:
            found[CLOSED if self._has_ended else SILENT] += missing
        return found

    def _read(self) -> None:
        buffer = b""
        with contextlib.suppress(OSError):
            while piece := self._socket.recv(1 << 18):
                self.num_bytes += len(piece)
                buffer += piece
                at = 0
                while len(buffer) - at >= 9:
                    end = at + 9 + int.from_bytes(buffer[at : at + 3], "big")
                    if len(buffer) < end:
                        break
                    number = int.from_bytes(buffer[at + 5 : at + 9], "big")
                    self._take(buffer[at + 3], buffer[at + 4], number, buffer[at + 9 : end])
                    at = end
                buffer = buffer[at:]
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == _HEADERS:
            fields = dict(self._decoder.decode(payload, raw=True))
            if flags & 1:
                code = fields.get(b"grpc-status", b"").decode()
                self._end(number, _NAMES[code] if code else f"HTTP {fields[b':status'].decode()}")
        elif kind == _RST_STREAM:
            self._end(number, "RST_STREAM")
        elif kind == _GOAWAY and int.from_bytes(payload[4:8], "big"):
            self._end(0, f"GOAWAY {int.from_bytes(payload[4:8], 'big')}")
        elif kind == _SETTINGS and not flags & 1:
            self.send(frame(_SETTINGS, 1, 0))
        elif kind == _PING and not flags & 1:
            self.send(frame(_PING, 1, 0, payload))

    def _end(self, number: int, status: str) -> None:
        with self._changed:
            self.statuses.setdefault(number, status)
            self._changed.notify_all()


def exchange(port: int, frames: bytes, expected: int = 1, timeout_s: float = _TIMEOUT_S) -> Counter[str]:
    """Send frames over one connection, wait for the ends of streams, close."""
    client = GrpcSocket(port)
    try:
        client.send(frames)
        client.wait(expected, timeout_s)
        return client.summary(expected)
    finally:
        client.close()
