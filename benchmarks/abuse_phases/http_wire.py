"""HTTP/1.1 of our own on a bare socket: what no well-behaved client would send, and the answers to it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

#: No answer, and the connection open still; the connection closed before an answer.
SILENT, CLOSED = "silent", "closed"
_TIMEOUT_S = 60.0


def request(
    path: str, body: bytes = b"", headers: Iterable[tuple[str, str]] = (), *, method: str = "POST"
) -> bytes:
    """A whole request with a length."""
    return head(path, [*headers, ("content-length", str(len(body)))], method=method) + body


def head(path: str, headers: Iterable[tuple[str, str]] = (), *, method: str = "POST") -> bytes:
    """The head of a request; names and values as given."""
    lines = [f"{method} {path} HTTP/1.1", "host: abuse", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def chunked(pieces: Iterable[bytes]) -> Iterable[bytes]:
    """A body in chunks, without its end."""
    for piece in pieces:
        yield b"%x\r\n%b\r\n" % (len(piece), piece)


class HttpSocket:
    """One connection whose answers are read while requests are sent.

    Attributes:
        statuses: of the answers, in order, and how many bytes the longest body had.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.statuses: list[str] = []
        self.heads: list[bytes] = []
        self.longest_body = 0
        self._changed = threading.Condition()
        self._has_ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, parts: Iterable[bytes], *, until: Callable[[], bool] = lambda: False) -> None:
        """Send until the server closes or `until` returns True; a reset connection is not a failure."""
        with contextlib.suppress(OSError):
            for part in parts:
                if self._has_ended or until():
                    return
                self._socket.sendall(part)

    def wait(self, count: int, timeout_s: float = _TIMEOUT_S) -> None:
        """Until so many answers have come, or the server has closed."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.statuses) >= count or self._has_ended, timeout_s)

    def close(self) -> None:
        """Close without reading the rest."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join(_TIMEOUT_S)
        self._socket.close()

    def summary(self, expected: int) -> Counter[str]:
        """Counts of each status, and of missing answers."""
        found = Counter(status for status in self.statuses if status != "100")
        missing = expected - found.total()
        if missing > 0:
            found[CLOSED if self._has_ended else SILENT] += missing
        return found

    def _read(self) -> None:
        """Answers until the end; bodies are counted and dropped."""
        data = bytearray()
        with contextlib.suppress(OSError):
            while piece := self._socket.recv(1 << 18):
                data += piece
                self._take_answers(data)
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _take_answers(self, data: bytearray) -> None:
        while (end := data.find(b"\r\n\r\n")) >= 0:
            lines = bytes(data[:end]).split(b"\r\n")
            length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
            if len(data) < end + 4 + length:
                return
            del data[: end + 4 + length]
            with self._changed:
                self.longest_body = max(self.longest_body, length)
                self.heads.append(b"\r\n".join(lines))
                self.statuses.append(lines[0][9:12].decode())
                self._changed.notify_all()


def exchange(port: int, parts: Sequence[bytes], expected: int = 1) -> Counter[str]:
    """Send all parts over one connection, wait for the answers, close."""
    client = HttpSocket(port)
    try:
        client.send(parts)
        client.wait(expected)
        return client.summary(expected)
    finally:
        client.close()


def each_alone(port: int, requests: Sequence[bytes]) -> Counter[str]:
    """Requests in order, each over its own connection."""
    found: Counter[str] = Counter()
    for each in requests:
        found += exchange(port, [each])
    return found


def at_once(senders: Sequence[Callable[[], Counter[str]]]) -> Counter[str]:
    """All senders in separate threads; the sum of their results."""
    found: Counter[str] = Counter()
    lock = threading.Lock()

    def run(sender: Callable[[], Counter[str]]) -> None:
        mine = sender()
        with lock:
            found.update(mine)

    threads = [threading.Thread(target=run, args=(sender,)) for sender in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def for_seconds(limit_s: float) -> Callable[[], bool]:
    """A function that returns True when so many seconds have passed."""
    end = time.monotonic() + limit_s
    return lambda: time.monotonic() > end
