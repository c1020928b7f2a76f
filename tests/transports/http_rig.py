"""A service behind an HTTP listener in the test's own loop, and clients that send bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from hopline.config.reader import load_config
from hopline.config.schema import Config
from hopline.transports.body_threads import load_kernels
from hopline.transports.http import HttpApp
from tests.fake_service import FakeService
from turnserve.http1.endpoint import HttpEndpoint
from turnserve.http1.listener import Timeouts

SCORE = b'{"nodes":[1]}'
SLOW = b'{"nodes":[1],"as_of":60000}'


class Host:
    """A service behind a listener."""

    def __init__(self, config: Config) -> None:
        self.service = FakeService(config)
        self.app = HttpApp(self.service, config)
        self.endpoint = HttpEndpoint(
            self.app,
            self.app.refuse,
            max_body_bytes=config.server.max_body_bytes,
            timeouts=Timeouts(keep_alive_s=10, read_s=5),
        )
        self.port = 0
        self.clients: list[Connection] = []

    async def connect(self) -> Connection:
        connection = Connection(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(connection)
        return connection


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, *, head_only: bool = False) -> tuple[int, dict[str, str], bytes]:
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 5)).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        body = b"" if head_only else await self.reader.readexactly(int(headers["content-length"]))
        return int(head[0].split()[1]), headers, body

    async def closed(self) -> bool:
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(1), 5) == b""
        return True

    def close(self) -> None:
        self.writer.close()


@contextlib.asynccontextmanager
async def listening(max_body_bytes: int = 200_000) -> AsyncIterator[Host]:
    """A host that takes connections."""
    async with hosted(load_config(overrides={"server.max_body_bytes": max_body_bytes})) as made:
        yield made


@contextlib.asynccontextmanager
async def hosted(config: Config) -> AsyncIterator[Host]:
    """A host with these settings that takes connections."""
    made = Host(config)
    await made.service.start()
    await asyncio.wrap_future(load_kernels())  # compiled where they never were
    server = await asyncio.get_running_loop().create_server(made.endpoint, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    for client in made.clients:
        client.close()
        with contextlib.suppress(ConnectionError):
            await client.writer.wait_closed()
    made.endpoint.abort()
    server.close()
    await asyncio.sleep(0)


def post(body: bytes, model: bytes = b"sage", headers: bytes = b"", version: bytes = b"1.1") -> bytes:
    return b"POST /v1/models/%b/score HTTP/%b\r\nhost: x\r\ncontent-length: %d\r\n%b\r\n%b" % (
        model,
        version,
        len(body),
        headers,
        body,
    )


async def eventually(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def gone(host: Host) -> None:
    """Wait until a client's request was withdrawn since the client is gone."""
    await eventually(lambda: host.service.num_cancelled == 1)
