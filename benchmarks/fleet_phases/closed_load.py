"""Requests as fast as answers come: `python -m benchmarks.fleet_phases.closed_load`.

Popular nodes are asked for more often. Writes a line for each answer to the file: seconds from the
start until the answer, and milliseconds that it took.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np


class _Connection(asyncio.Protocol):
    """Sends the next request when an answer has come."""

    def __init__(self, load: _Load) -> None:
        self._load = load
        self._left = 0
        self._head = b""
        self._transport: Any = None  # uvloop's is no asyncio.Transport
        self._sent = 0.0
        self.ended = asyncio.get_running_loop().create_future()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        if not self._left:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            head, body = self._head[:end].lower(), self._head[end + 4 :]
            assert head.startswith(b"http/1.1 200"), self._head
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            self._left, self._head = length - len(body), b""
        else:
            self._left -= len(data)
        if not self._left:
            self._load.answered(self._sent)
            self._send()

    def _send(self) -> None:
        request = self._load.next_request()
        if request is None:
            self._transport.close()
            return
        self._sent = time.monotonic()
        self._transport.write(request)


class _Load:
    """The requests, and when they were answered."""

    def __init__(self, path: str, num_nodes: int, at_once: int, seconds: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        nodes = (num_nodes * rng.random((1 << 16, at_once)) ** 3).astype(np.int64)
        self._bodies = [b'{"nodes":[%b]}' % ",".join(map(str, row)).encode() for row in nodes.tolist()]
        self._head = f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n".encode()
        self._at = 0
        self.began = time.monotonic()
        self._until = self.began + seconds
        self.lines: list[tuple[float, float]] = []

    def next_request(self) -> bytes | None:
        if time.monotonic() >= self._until:
            return None
        self._at += 1
        body = self._bodies[self._at % len(self._bodies)]
        return self._head + b"Content-Length: %d\r\n\r\n" % len(body) + body

    def answered(self, sent: float) -> None:
        now = time.monotonic()
        self.lines.append((now - self.began, 1e3 * (now - sent)))


async def _run(asked: argparse.Namespace) -> None:
    numbers = int(asked.num_nodes), int(asked.at_once), float(asked.seconds), int(asked.seed)
    load = _Load(asked.path, *numbers)
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: _Connection(load), asked.host, int(asked.port))
        for _ in range(int(asked.connections))
    ]
    await asyncio.gather(*(protocol.ended for _, protocol in made))
    Path(asked.out).write_text("".join(f"{at:.4f} {took:.3f}\n" for at, took in load.lines))


def main() -> None:
    import uvloop

    parser = argparse.ArgumentParser()
    for name in ("host", "port", "path", "num_nodes", "at_once", "seconds", "connections", "seed", "out"):
        parser.add_argument(name)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
