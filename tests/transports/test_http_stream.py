"""Answers whose body comes in pieces, over HTTP/1.1: framing, slow readers, clients that go, pipelining."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.transports.http_rig import eventually
from turnserve.http1.endpoint import HttpEndpoint
from turnserve.http1.listener import Timeouts
from turnserve.http1.messages import BodyStream, Pending, Request, Response, StreamedResponse

GET = b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n"


class Body(BodyStream):
    """What the test pushes; it waits while the client does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[bytes] = []
        self.has_ended = False
        self.num_gone = 0

    def push(self, data: bytes, *, end: bool = False) -> None:
        self.waiting.append(data)
        self.has_ended = end
        self.resumed()

    def resumed(self) -> None:
        sink = self.sink
        if sink is None:
            return
        while self.waiting and not sink.is_blocked:
            sink.write(self.waiting.pop(0))
        if self.has_ended and not self.waiting:
            self.sink = None
            sink.end()

    def gone(self) -> None:
        self.num_gone += 1


class App:
    """Streams for /stream, and at once for others."""

    def __init__(self) -> None:
        self.bodies: list[Body] = []
        self.pendings: list[Pending] = []

    def __call__(self, request: Request) -> Response | Pending:
        if request.target != b"/stream":
            return Response(b'"at once"')
        pending = Pending()
        self.pendings.append(pending)
        return pending

    def open(self) -> Body:
        body = Body()
        self.bodies.append(body)
        self.pendings[-1].answer(StreamedResponse(body, b"text/event-stream"))
        return body


class Rig:
    def __init__(self, app: App, endpoint: HttpEndpoint, port: int) -> None:
        self.app, self.endpoint, self.port = app, endpoint, port

    async def begin(self, request: bytes = GET) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Body]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        count = len(self.app.pendings)
        writer.write(request)
        await eventually(lambda: len(self.app.pendings) > count)
        return reader, writer, self.app.open()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    app = App()

    def refuse(status: int, text: str) -> Response:
        return Response(text.encode(), status)

    endpoint = HttpEndpoint(app, refuse, max_body_bytes=1000, timeouts=Timeouts(keep_alive_s=10, read_s=5))
    server = await asyncio.get_running_loop().create_server(endpoint, "127.0.0.1", 0)
    yield Rig(app, endpoint, server.sockets[0].getsockname()[1])
    endpoint.abort()
    server.close()
    await asyncio.sleep(0)


async def head_of(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)


async def chunks(reader: asyncio.StreamReader) -> bytes:
    """The body of a chunked answer, read as RFC 9112 says."""
    found = b""
    while size := int(await asyncio.wait_for(reader.readline(), 5), 16):
        found += await reader.readexactly(size)
        assert await reader.readexactly(2) == b"\r\n"
    assert await reader.readexactly(2) == b"\r\n"
    return found


async def test_pieces_come_as_chunks_and_the_connection_lives_on(rig: Rig) -> None:
    reader, writer, body = await rig.begin(GET + b"GET /other HTTP/1.1\r\nhost: x\r\n\r\n")
    head = await head_of(reader)
    assert b"transfer-encoding: chunked\r\n" in head
    assert b"content-length" not in head
    body.push(b"one ")
    body.push(b"two", end=True)
    assert await chunks(reader) == b"one two"
    assert b"content-length: 9" in await head_of(reader)  # the pipelined request, in its turn
    assert await reader.readexactly(9) == b'"at once"'
    writer.close()


@pytest.mark.parametrize(
    "request_",
    [b"GET /stream HTTP/1.0\r\n\r\n", b"GET /stream HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"],
)
async def test_without_chunks_the_end_of_the_connection_ends_the_body(rig: Rig, request_: bytes) -> None:
    reader, writer, body = await rig.begin(request_)
    head = await head_of(reader)
    assert b"chunked" not in head
    assert b"connection: close" in head
    body.push(b"all", end=True)
    assert await asyncio.wait_for(reader.read(), 5) == b"all"
    writer.close()


async def test_body_waits_for_a_client_that_does_not_read_and_others_do_not(rig: Rig) -> None:
    reader, writer, body = await rig.begin()
    piece = b"x" * 2**20
    while not body.waiting:
        body.push(piece)
        assert len(body.waiting) < 2
    quick, quick_writer = await asyncio.open_connection("127.0.0.1", rig.port)
    quick_writer.write(b"GET /other HTTP/1.1\r\nhost: x\r\n\r\n")
    assert b" 200 " in await head_of(quick)
    body.push(b"the end", end=True)
    await head_of(reader)
    assert (await chunks(reader)).endswith(b"xthe end")
    for each in (writer, quick_writer):
        each.close()


async def test_client_that_goes_is_reported_once(rig: Rig) -> None:
    reader, writer, body = await rig.begin()
    await head_of(reader)
    writer.transport.abort()
    await eventually(lambda: body.num_gone)
    body.push(b"for nobody", end=True)
    assert body.num_gone == 1


async def test_body_that_fails_is_cut_off_visibly(rig: Rig) -> None:
    reader, writer, body = await rig.begin()
    await head_of(reader)
    body.push(b"half")
    assert body.sink is not None
    body.sink.fail()
    assert await asyncio.wait_for(reader.read(), 5) == b"4\r\nhalf\r\n"
    writer.close()


async def test_client_that_accepts_nothing_is_cut_off_after_a_while(rig: Rig) -> None:
    reader, writer, body = await rig.begin()
    while not body.waiting:
        body.push(b"x" * 2**20)
    now = rig.endpoint.now
    for seconds in (1, 30, 59):
        rig.endpoint.tick(now + seconds)
    assert not body.num_gone
    rig.endpoint.tick(now + 120)
    await eventually(lambda: body.num_gone)
    with contextlib.suppress(ConnectionError):
        await reader.read()
    writer.close()


async def test_a_body_that_fails_is_no_longer_pending(rig: Rig) -> None:
    """The loop waits awake for requests only while none is pending: a count below zero would end that."""
    reader, writer, body = await rig.begin()
    await head_of(reader)
    assert body.sink is not None
    body.sink.fail()
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()
    await eventually(lambda: not rig.endpoint.connections)
    assert rig.endpoint.spinner.num_pending == 0
