"""Producers of numbered events that never give one up: sent until acknowledged, always with the same id.

Event `number` adds an edge that no other event adds; so the final graph says which events are in it, and
how often. One producer publishes to a broker, the other one posts to the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
import time
from abc import ABC, abstractmethod

import numpy as np

from benchmarks.stream_phases.place import EDGE
from hopline.brokers.base import Outgoing
from hopline.brokers.registry import open_sink
from hopline.errors import HoplineError
from hopline.graph import Graph
from hopline.types import IdArray

_AGAIN_S = 0.05
#: A broker or server that is gone comes back within this.
_PATIENCE_S = 120.0


def ends(number: int, num_nodes: int) -> tuple[int, int]:
    """Of the edge that event `number` adds."""
    return number % num_nodes, number // num_nodes % num_nodes


def times_there(before: Graph, after: Graph, numbers: IdArray) -> IdArray:
    """Count of each event's edge in a graph, beyond the count before: int64 [n]."""

    def count(graph: Graph) -> IdArray:
        edges = graph.edges[EDGE]
        size = len(edges.indptr) - 1
        dst = np.repeat(np.arange(size), np.diff(edges.indptr))
        keys = np.sort(dst * size + np.asarray(edges.indices, np.int64))
        wanted = numbers // size % size * size + numbers % size
        found: IdArray = np.searchsorted(keys, wanted, "right") - np.searchsorted(keys, wanted, "left")
        return found

    return count(after) - count(before)


class Producer(ABC):
    """A thread that sends numbers first, first + 1, ….

    Args:
        prefix: of event ids. chunk: events that are sent together, every `every_s` seconds.

    Attributes:
        acknowledged: events, from `first` on.
        problem: why it ended early.
    """

    def __init__(self, prefix: str, first: int, num_nodes: int, chunk: int, every_s: float) -> None:
        self.first, self.acknowledged, self.problem = first, 0, ""
        self.tries = 0
        self._prefix, self._num_nodes, self._chunk, self._every_s = prefix, num_nodes, chunk, every_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Send no more; what was sent is still seen through."""
        self._stopping.set()
        self._thread.join(2 * _PATIENCE_S)

    @property
    def numbers(self) -> IdArray:
        """Of all events that were acknowledged."""
        return np.arange(self.first, self.first + self.acknowledged)

    def _run(self) -> None:
        try:
            asyncio.run(self._produce())
        except Exception as error:  # the boundary of a thread
            self.problem = f"{type(error).__name__}: {error}"

    async def _produce(self) -> None:
        await self.open()
        while not self._stopping.is_set():
            begin = self.first + self.acknowledged
            events = [self._event(number) for number in range(begin, begin + self._chunk)]
            given_up = time.monotonic() + _PATIENCE_S
            while not await self.send(events):
                self.tries += 1
                if time.monotonic() > given_up:
                    raise TimeoutError(f"events {begin}…: not acknowledged within {_PATIENCE_S:.0f} s")
                await asyncio.sleep(_AGAIN_S)
            self.acknowledged += self._chunk
            await asyncio.sleep(self._every_s)
        await self.close()

    def _event(self, number: int) -> bytes:
        src, dst = ends(number, self._num_nodes)
        now_ms = time.time_ns() // 1_000_000
        return json.dumps(
            {"op": "add_edge", "id": f"{self._prefix}-{number}", "at": now_ms, "src": src, "dst": dst}
        ).encode()

    @abstractmethod
    async def open(self) -> None:
        """Get ready."""

    @abstractmethod
    async def send(self, events: list[bytes]) -> bool:
        """True if all were acknowledged."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection."""


class ToBroker(Producer):
    """Acknowledged once the broker has it on its disk."""

    def __init__(self, address: str, num_nodes: int) -> None:
        super().__init__("b", 0, num_nodes, 25, 0.02)
        self._sink = open_sink(address, "producer")

    async def open(self) -> None:
        await self._sink.open()

    async def send(self, events: list[bytes]) -> bool:
        try:
            await self._sink.send([Outgoing(event) for event in events])
        except HoplineError:
            return False
        return True

    async def close(self) -> None:
        await self._sink.close()


class ToServer(Producer):
    """Acknowledged once the server says that all of it is in the graph."""

    def __init__(self, port: int, num_nodes: int) -> None:
        super().__init__("h", num_nodes * num_nodes // 2, num_nodes, 10, 0.05)
        self._port = port

    async def open(self) -> None:
        pass

    async def send(self, events: list[bytes]) -> bool:
        return await asyncio.to_thread(self._post, b"\n".join(events), len(events))

    def _post(self, body: bytes, count: int) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        with contextlib.closing(connection):
            try:
                connection.request("POST", "/v1/graph/events", body)
                response = connection.getresponse()
                told = json.loads(response.read())
            except (OSError, http.client.HTTPException, ValueError):
                return False
        if response.status != 200:
            return False
        if told["refused"] or told["applied"] + len(told["duplicates"]) != count:
            raise RuntimeError(f"the server refuses: {told}")
        return True

    async def close(self) -> None:
        pass
