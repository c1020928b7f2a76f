"""Something that looks like an Alertmanager and answers as it is told, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any


class Scripted:
    """Attributes:
    url: of the server.
    status: answered to each post; 0 hangs.
    posts: bodies that came.
    headers: of the last post.
    """

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.posts: list[list[dict[str, Any]]] = []
        self.headers = ""
        self.came = asyncio.Condition()

    async def wait_for(self, count: int) -> list[list[dict[str, Any]]]:
        """Until so many posts came."""
        async with asyncio.timeout(10), self.came:
            await self.came.wait_for(lambda: len(self.posts) >= count)
        return self.posts

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                assert head.startswith("POST /am/api/v2/alerts ")
                length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                self.headers = head
                status = self.status
                async with self.came:
                    self.posts.append(body)
                    self.came.notify_all()
                if status == 0:
                    await asyncio.sleep(3600)
                writer.write(f"HTTP/1.1 {status} Told\r\ncontent-length: 4\r\n\r\nwhy?".encode())
        writer.close()


@contextlib.asynccontextmanager
async def scripted(tls: ssl.SSLContext | None = None) -> AsyncIterator[Scripted]:
    made = Scripted()
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        with contextlib.suppress(asyncio.CancelledError):
            await made._serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    made.url = f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}/am/"
    try:
        yield made
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving)
