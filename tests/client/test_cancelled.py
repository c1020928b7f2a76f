"""Cancelled calls cost the client nothing: each gives its place in the connection pool back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from hopline.client import AsyncClient

#: Connections that the pool opens at most.
PLACES = 100


class Holding:
    """A server that answers a path when it is told to."""

    def __init__(self) -> None:
        self.asked: dict[str, asyncio.Future[bool]] = {}
        self._changed = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            closes = False
            while not closes:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ")[1].decode()
                self.asked[path] = asyncio.get_running_loop().create_future()
                self._changed.set()
                closes = await self.asked[path]
                close = b"connection: close\r\n" if closes else b""
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n" + close + b"\r\n{}")
        writer.close()

    def answer(self, path: str, *, closes: bool = False) -> None:
        self.asked.pop(path).set_result(closes)

    async def until(self, count: int) -> None:
        """Until so many requests wait for an answer."""
        async with asyncio.timeout(10):
            while len(self.asked) < count:
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
async def holding() -> AsyncIterator[tuple[Holding, str]]:
    handler = Holding()
    server = await asyncio.start_server(handler, "127.0.0.1", 0, backlog=2 * PLACES)
    async with server:
        yield handler, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_call_cancelled_while_it_gets_a_connection_leaves_its_place_to_others(
    holding: tuple[Holding, str],
) -> None:
    """Of httpx such a place was lost for ever: encode/httpcore, issue 1093."""
    server, url = holding
    async with AsyncClient(url, timeout=10, retries=0) as client:
        others = [asyncio.create_task(client.send("GET", f"/other/{k}")) for k in range(PLACES - 1)]

        async def first() -> None:
            await client.send("GET", "/first")
            late.cancel()  # the pool has just given it the place, and it has not run since

        leaving = asyncio.create_task(first())
        await server.until(PLACES)
        late = asyncio.create_task(client.send("GET", "/late"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert "/late" not in server.asked  # all places are taken
        server.answer("/first", closes=True)
        await leaving
        with pytest.raises(asyncio.CancelledError):
            await late
        for path in list(server.asked):
            server.answer(path)
        await asyncio.gather(*others)
        again = [asyncio.create_task(client.send("GET", f"/again/{k}")) for k in range(PLACES)]
        await server.until(PLACES)  # all at once, so that no place is missing
        for path in list(server.asked):
            server.answer(path)
        await asyncio.gather(*again)
