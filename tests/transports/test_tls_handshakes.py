"""Handshakes are taken in turns, have a time limit, and do not pile up."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from hopline.config.schema import TlsConfig
from hopline.ingress.certificates import TlsFiles
from tests.ingress.certificates import Authority
from turnserve import tls_handshakes
from turnserve.tls_handshakes import TlsHandshakes
from turnserve.turns import TURN_S, Turns

NUM_CLIENTS = 12


class SlowClock:
    """A clock that each look moves beyond the end of a turn."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 2 * TURN_S
        return self.now


class Echo(asyncio.Protocol):
    """Sends back what it gets."""

    transport: Any

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Endpoint:
    """A listener whose connections echo."""

    def __init__(self) -> None:
        self.turns = Turns(SlowClock())

    def __call__(self) -> Echo:
        return Echo()


class Client:
    """One connection, whose bytes the test sends when it wants."""

    def __init__(self, trusted: Path) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=trusted)
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.socket = socket.socket()
        self.socket.setblocking(False)

    def hello(self) -> bytes:
        """The next flight of the handshake."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self.outgoing.read()

    async def connect(self, port: int) -> None:
        await asyncio.get_running_loop().sock_connect(self.socket, ("127.0.0.1", port))

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def receive(self) -> bytes:
        """What the server has sent; empty once it has closed."""
        try:
            return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.socket, 65536), 20)
        except ConnectionResetError:
            return b""

    async def complete(self) -> None:
        """Do the handshake up to the last flight, which stays in `outgoing`."""
        await self.send(self.hello())
        while True:
            received = await self.receive()
            assert received, "the server closed the connection"
            self.incoming.write(received)
            with contextlib.suppress(ssl.SSLWantReadError):
                self.tls.do_handshake()
                return
            if flight := self.outgoing.read():
                await self.send(flight)


@pytest.fixture
def files(tmp_path: Path) -> tuple[TlsFiles, Path]:
    authority = Authority(tmp_path)
    cert, key = authority.for_localhost()
    return TlsFiles(TlsConfig(cert_file=cert, key_file=key)), authority.file


@contextlib.asynccontextmanager
async def listening(
    files: tuple[TlsFiles, Path], limit_s: float = 60.0, began: Callable[[], object] = lambda: None
) -> AsyncIterator[tuple[int, Callable[[], Awaitable[Client]]]]:
    """A listener: its port, and what makes a connected client."""
    contexts = files[0].contexts("http/1.1")
    assert contexts is not None

    def context() -> ssl.SSLContext:
        began()
        return contexts()

    clients: list[Client] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(TlsHandshakes(Endpoint(), context, limit_s), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def connected() -> Client:
        client = Client(files[1])
        clients.append(client)
        await client.connect(port)
        return client

    try:
        yield port, connected
    finally:
        for client in clients:
            client.socket.close()
        server.close()


def run(test: Awaitable[None]) -> None:
    async def main() -> None:
        await test

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_a_turn_of_the_loop_takes_one_step_of_many_handshakes(files: tuple[TlsFiles, Path]) -> None:
    async def test() -> None:
        turn = 0
        began: Counter[int] = Counter()
        is_over = False

        def count() -> None:
            nonlocal turn
            turn += 1
            if not is_over:
                asyncio.get_running_loop().call_soon(count)

        def note() -> None:
            began[turn] += 1

        async with listening(files, began=note) as (_, connected):
            clients = [await connected() for _ in range(NUM_CLIENTS)]
            hellos = [client.hello() for client in clients]
            count()
            for client, hello in zip(clients, hellos, strict=True):
                client.socket.send(hello)  # in one turn, so that the next poll finds all
            assert all([await client.receive() for client in clients])
            is_over = True
        assert began.total() == NUM_CLIENTS
        assert set(began.values()) == {1}

    run(test())


@pytest.mark.parametrize("sent", ["nothing", "half a hello", "a hello", "the head of a long record"])
def test_a_handshake_that_does_not_end_is_closed(files: tuple[TlsFiles, Path], sent: str) -> None:
    async def test() -> None:
        async with listening(files, limit_s=0.05) as (_, connected):
            client = await connected()
            hello = client.hello()
            await client.send(
                {
                    "nothing": b"",
                    "half a hello": hello[: len(hello) // 2],
                    "a hello": hello,
                    "the head of a long record": b"\x16\x03\x01\x40\x00" + bytes(100),
                }[sent]
            )
            while await client.receive():
                pass  # the server's flight

    run(test())


def test_the_loop_of_asyncio_serves_too(files: tuple[TlsFiles, Path]) -> None:
    async def test() -> None:
        async with listening(files) as (_, connected):
            client = await connected()
            await client.complete()
            client.tls.write(b"ping")
            await client.send(client.outgoing.read())
            await _read(client, b"ping")

    asyncio.run(test())


def test_a_complete_handshake_is_not_closed(files: tuple[TlsFiles, Path]) -> None:
    async def test() -> None:
        async with listening(files, limit_s=0.05) as (_, connected):
            served, other = await connected(), await connected()
            await served.complete()
            await served.send(served.outgoing.read())
            assert not await other.receive()  # the limit has passed for both
            served.tls.write(b"ping")
            await served.send(served.outgoing.read())
            await _read(served, b"ping")

    run(test())


def test_data_behind_the_last_flight_are_read(files: tuple[TlsFiles, Path]) -> None:
    async def test() -> None:
        async with listening(files) as (_, connected):
            client = await connected()
            await client.complete()
            client.tls.write(b"ping")
            await client.send(client.outgoing.read())
            await _read(client, b"ping")

    run(test())


def test_a_handshake_above_the_limit_ends_the_oldest(
    files: tuple[TlsFiles, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_handshakes, "MAX_UNFINISHED", 2)

    async def test() -> None:
        async with listening(files) as (_, connected):
            clients = []
            for _ in range(3):
                clients.append(await connected())
                await clients[-1].send(clients[-1].hello())
                assert await clients[-1].receive()
            assert not await clients[0].receive()
            for client in clients[1:]:
                assert client.socket.send(b"") == 0

    run(test())


def test_a_client_that_leaves_during_its_handshake_is_forgotten(files: tuple[TlsFiles, Path]) -> None:
    async def test() -> None:
        contexts = files[0].contexts("http/1.1")
        assert contexts is not None
        handshakes = TlsHandshakes(Endpoint(), contexts, 60.0)
        server = await asyncio.get_running_loop().create_server(handshakes, "127.0.0.1", 0)
        client = Client(files[1])
        await client.connect(server.sockets[0].getsockname()[1])
        await client.send(client.hello())
        assert await client.receive()
        assert len(handshakes.unfinished) == 1
        client.socket.close()
        while handshakes.unfinished:  # noqa: ASYNC110 - nothing tells when it is noticed
            await asyncio.sleep(0)
        server.close()

    run(test())


async def _read(client: Client, expected: bytes) -> None:
    while True:
        received = await client.receive()
        assert received, "the server closed the connection"
        client.incoming.write(received)
        with contextlib.suppress(ssl.SSLWantReadError):
            assert client.tls.read(64) == expected
            return
