"""Sends requests over raw sockets and keeps every answer: at a fixed rate, or as fast as answers come.

wrk tells percentiles of a whole run; the phases with faults need each answer and when it came.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import orjson

from benchmarks.hopline_server import REQUEST
from hopline.types import IdArray

#: An answer that has not come by then never will.
_LOST_S = 5.0


@dataclass(slots=True)
class Answer:
    """One request and what came of it.

    Attributes:
        node: that was asked for.
        sent: time.perf_counter().
        seconds: until the whole answer was here.
        status: of HTTP; 0 where the connection broke or nothing came.
        body: of the answer.
    """

    node: int
    sent: float
    seconds: float
    status: int
    body: bytes

    @property
    def degraded(self) -> list[str]:
        """The fallbacks that it names."""
        found: list[str] = orjson.loads(self.body)["degraded"] if self.status == 200 else []
        return found

    def values(self) -> list[float]:
        """The first output's row of the node."""
        outputs = orjson.loads(self.body)["outputs"]
        row: list[float] = next(iter(outputs.values()))[0]
        return row


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self._received = b""
        self._length = -1
        self._waiting: asyncio.Future[tuple[int, bytes]] | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass

    def send(self, payload: bytes) -> asyncio.Future[tuple[int, bytes]]:
        assert self.transport is not None
        self._received, self._length = b"", -1
        self._waiting = asyncio.get_running_loop().create_future()
        self.transport.write(payload)
        return self._waiting

    def data_received(self, data: bytes) -> None:
        self._received += data
        head = self._received.find(b"\r\n\r\n")
        if head < 0:
            return
        if self._length < 0:
            lines = self._received[:head].lower()
            self._length = int(lines.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        body = self._received[head + 4 :]
        if len(body) >= self._length and self._waiting is not None and not self._waiting.done():
            self._waiting.set_result((int(self._received[9:12]), body))

    def connection_lost(self, error: Exception | None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result((0, b""))


class Requester:
    """Connections to one server.

    Args:
        port: of the server on loopback.
        connections: requests in flight at the same time, at most.
    """

    def __init__(self, port: int, connections: int) -> None:
        self._port = port
        self._num_connections = connections
        self._free: asyncio.LifoQueue[_Connection] = asyncio.LifoQueue()
        self._tasks: set[asyncio.Task[None]] = set()
        self.answers: list[Answer] = []

    async def open(self) -> None:
        """Connect."""
        for _ in range(self._num_connections):
            await self._free.put(await self._connect())

    async def close(self) -> None:
        """Close the connections; no request may be in flight."""
        while not self._free.empty():
            transport = (await self._free.get()).transport
            assert transport is not None
            transport.close()
        await asyncio.sleep(0)

    async def at_rate(self, nodes: IdArray, per_second: float) -> None:
        """Ask for nodes one by one at a fixed rate, whatever the answers do."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number, node in enumerate(nodes.tolist()):
            pause = began + number / per_second - loop.time()
            if pause > 0:
                await asyncio.sleep(pause)
            task = loop.create_task(self.ask(node))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await self.settle()

    async def settle(self) -> None:
        """Wait for what is under way."""
        if self._tasks:
            await asyncio.gather(*self._tasks)

    async def at_once(self, nodes: IdArray) -> None:
        """Ask for nodes with all connections, each as soon as it has its answer."""
        left = iter(nodes.tolist())

        async def caller() -> None:
            for node in left:
                await self.ask(node)

        await asyncio.gather(*(caller() for _ in range(self._num_connections)))

    async def ask(self, node: int) -> None:
        """One request; the answer goes to `answers`."""
        connection = await self._free.get()
        body = REQUEST.for_node(node)
        payload = (
            f"{REQUEST.method} {REQUEST.path} HTTP/1.1\r\nHost: a\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        ).encode()
        sent = time.perf_counter()
        try:
            status, told = await asyncio.wait_for(connection.send(payload), _LOST_S)
        except TimeoutError:
            status, told = 0, b""
        self.answers.append(Answer(node, sent, time.perf_counter() - sent, status, told))
        if status == 0:
            assert connection.transport is not None
            connection.transport.abort()
            connection = await self._connect()
        await self._free.put(connection)

    async def _connect(self) -> _Connection:
        _, protocol = await asyncio.get_running_loop().create_connection(
            _Connection, "127.0.0.1", self._port
        )
        return protocol


def p99_ms(answers: Sequence[Answer]) -> float:
    """The 99th percentile of latencies, in ms."""
    ordered = sorted(answer.seconds for answer in answers)
    return 1e3 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
