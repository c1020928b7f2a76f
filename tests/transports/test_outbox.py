"""Answers that a client does not take: what they may hold, how long, and what becomes of the others."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest

from hopline.config.reader import load_config
from hopline.transports.grpc import GrpcApp
from hopline.transports.http import HttpApp
from hopline.types import Deliver, ScoreRequest, ScoreResult, Ticket
from packages.turnserve.tests import raw_http2 as raw
from tests.fake_service import FakeService
from tests.transports.grpc_rig import endpoint_of
from tests.transports.http2_rig import Client, Served
from tests.transports.http_rig import SCORE, eventually, post
from tests.transports.test_grpc_call import framed, infer_request
from turnserve.budget import Budget
from turnserve.grpc.endpoint import GrpcEndpoint
from turnserve.http1.endpoint import HttpEndpoint
from turnserve.http1.listener import Timeouts
from turnserve.http1.messages import Pending, Request, Response
from turnserve.http2.output import SHARE_BYTES
from turnserve.outbox import LEAST_TAKEN_BYTES, Progress

MIB = 1 << 20
_READ_S = 5.0


# HTTP/1.1


class Listening:
    """A listener whose answers have as many bytes as the path says; its clock is the test's."""

    def __init__(self, budget: Budget) -> None:
        self.refused: list[int] = []
        self.endpoint = HttpEndpoint(
            self._answer, self._refuse, max_body_bytes=MIB, timeouts=Timeouts(75.0, _READ_S), budget=budget
        )
        self.port = 0
        self._sockets: list[socket.socket] = []

    def _answer(self, request: Request) -> Response | Pending:
        return Response(_content(int(request.target[1:])))

    def _refuse(self, status: int, text: str) -> Response:
        self.refused.append(status)
        return Response(text.encode(), status)

    def connect(self) -> socket.socket:
        """A client that has a small window, and reads only what a test reads."""
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.connect(("127.0.0.1", self.port))
        made.setblocking(False)
        self._sockets.append(made)
        return made

    def close(self) -> None:
        for each in self._sockets:
            each.close()


def _content(num_bytes: int) -> bytes:
    """Bytes whose order shows."""
    return np.arange(num_bytes // 8 + 1).tobytes()[:num_bytes]


@contextlib.asynccontextmanager
async def listening(budget: Budget) -> AsyncIterator[Listening]:
    made = Listening(budget)
    server = await asyncio.get_running_loop().create_server(made.endpoint, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    made.close()
    made.endpoint.abort()
    server.close()
    await asyncio.sleep(0)


async def _read(client: socket.socket, num_bytes: int) -> bytes:
    data, loop = b"", asyncio.get_running_loop()
    while len(data) < num_bytes and (piece := await asyncio.wait_for(loop.sock_recv(client, 65536), 5)):
        data += piece
    return data


def _get(num_bytes: int, headers: bytes = b"") -> bytes:
    return b"GET /%d HTTP/1.1\r\nhost: x\r\n%b\r\n" % (num_bytes, headers)


async def test_answers_that_wait_count_in_the_budget_and_those_without_room_are_refused() -> None:
    budget = Budget(40 * MIB)
    async with listening(budget) as host:
        readers = [host.connect() for _ in range(4)]
        for reader in readers:
            reader.send(_get(16 * MIB))
        await eventually(lambda: host.refused == [503, 503])
        assert budget.used == 32 * MIB  # of two; nothing of those that were refused
        small = host.connect()
        small.send(_get(60_000, b"connection: close\r\n"))  # others are served
        assert (await _read(small, MIB)).endswith(_content(60_000))
        for reader in readers:
            reader.close()
        await eventually(lambda: budget.used == 0)


@pytest.mark.sample(1)
@pytest.mark.parametrize("close", [b"", b"connection: close\r\n"])
async def test_a_large_answer_arrives_whole_and_returns_its_room(close: bytes) -> None:
    budget = Budget(40 * MIB)
    async with listening(budget) as host:
        reader = host.connect()
        reader.send(_get(9 * MIB + 5, close) + _get(3))
        if close:
            reader.shutdown(socket.SHUT_WR)  # a client that has sent all still reads (RFC 9112, 9.6)
        await eventually(lambda: budget.used > 0)
        head, _, body = (await _read(reader, 9 * MIB + 5)).partition(b"\r\n\r\n")
        body += await _read(reader, 9 * MIB + 5 - len(body))
        assert head.startswith(b"HTTP/1.1 200")
        assert body.startswith(_content(9 * MIB + 5)), "the answer is cut off, or mixed with others"
        rest = body[9 * MIB + 5 :]
        if close:
            assert rest + await _read(reader, 1) == b""
        else:
            while not rest.endswith(b"\r\n\r\n" + _content(3)):
                rest += await _read(reader, 1)
        await eventually(lambda: budget.used == 0)


@pytest.mark.parametrize("pipelined", [1, 3])
async def test_a_client_that_takes_too_little_is_cut_off(pipelined: int) -> None:
    budget = Budget(40 * MIB)
    async with listening(budget) as host:
        silent, dripping, slow = (host.connect() for _ in range(3))
        for each in (silent, dripping, slow):
            each.send(_get(8 * MIB) * pipelined)
        await eventually(lambda: budget.used == 24 * MIB)
        for second in range(1, 20):
            await _read(dripping, 1)
            await _read(slow, LEAST_TAKEN_BYTES)
            await asyncio.sleep(0.01)
            host.endpoint.tick(float(second))
            if second == _READ_S:
                assert len(host.endpoint.connections) == 3
        await eventually(lambda: len(host.endpoint.connections) == 1)
        assert budget.used == 8 * MIB
        assert await _read(slow, 1)
    await eventually(lambda: budget.used == 0)


async def test_nothing_is_read_behind_an_answer_that_waits() -> None:
    async with listening(Budget(40 * MIB)) as host:
        reader = host.connect()
        reader.send(_get(8 * MIB))
        await eventually(lambda: host.endpoint.connections and _only(host)._outbox.is_blocked)
        sent = 0
        with contextlib.suppress(BlockingIOError):
            for _ in range(10_000):
                sent += reader.send(_get(8 * MIB) * 100)
                await asyncio.sleep(0)
            raise AssertionError("all was read")
        assert sent
        assert host.endpoint.budget.used == 8 * MIB


def _only(host: Listening):  # type: ignore[no-untyped-def]
    (connection,) = host.endpoint.connections
    return connection


def test_progress_is_what_was_taken_in_the_time() -> None:
    progress = Progress(0.0)
    assert not progress.has_stopped(LEAST_TAKEN_BYTES - 1, 10.0, 10.0)
    assert progress.has_stopped(LEAST_TAKEN_BYTES - 1, 10.1, 10.0)
    assert not progress.has_stopped(LEAST_TAKEN_BYTES, 11.0, 10.0)
    assert not progress.has_stopped(LEAST_TAKEN_BYTES, 21.0, 10.0)
    assert progress.has_stopped(LEAST_TAKEN_BYTES + 5, 21.5, 10.0)


# HTTP/2


def _waiting(client: Client) -> int:
    return client.server.output.unsent.num_bytes


def _silent(served: Served) -> Client:
    """A client that opens no window."""
    client = Client(served)
    client.takes = False
    return client


def _small(served: Served, client: Client, size: int) -> int:
    number = client.call("/t/Echo", bytes(size))
    client.exchange()
    return number


async def test_no_further_request_begins_while_more_than_a_share_waits() -> None:
    served = Served(max_message_bytes=4 * MIB, budget=Budget(64 * MIB))
    client = _silent(served)
    numbers = [_small(served, client, 200_000) for _ in range(30)]
    assert SHARE_BYTES < _waiting(client) < SHARE_BYTES + 300_000
    client.takes = True
    for number in numbers:
        client.h2.increment_flow_control_window(400_000)
        if not client.answers[number].ended:
            client.h2.increment_flow_control_window(400_000, number)
        client.exchange()
    await _settle(client, lambda: all(client.answers[number].ended for number in numbers), numbers)
    assert [client.answers[number].messages for number in numbers] == [[bytes(200_000)]] * 30
    assert _waiting(client) == served.endpoint.budget.used == client.server.output.held.num_bytes == 0


async def _settle(client: Client, done: Callable[[], bool], numbers: list[int]) -> None:
    for _ in range(200):
        if done():
            return
        await asyncio.sleep(0)
        client.exchange()
    raise AssertionError([client.answers[number].status for number in numbers])


async def test_an_answer_without_room_is_refused_and_holds_nothing() -> None:
    served = Served(budget=Budget(5 * MIB // 2))
    clients = [_silent(served) for _ in range(4)]
    numbers = [client.call("/t/Later", b"x") for client in clients]
    for client in clients:
        client.exchange()
    waiting, served.waiting = served.waiting, []
    assert [call.respond(bytes(MIB)) for call, _ in waiting] == [True, True, False, False]
    for client in clients:
        client.exchange()
    answers = [client.answers[number] for client, number in zip(clients, numbers, strict=True)]
    assert [answer.ended for answer in answers] == [False, False, True, True]
    assert [answer.status for answer in answers[2:]] == [8, 8]  # RESOURCE_EXHAUSTED
    assert "server.max_pending_bytes" in answers[3].text
    assert 2 * MIB - 300_000 < served.endpoint.budget.used <= 5 * MIB // 2
    for client in clients:
        client.server.connection_lost(None)
    assert served.endpoint.budget.used == 0


async def test_a_stream_that_is_not_taken_is_reset_and_the_others_of_its_connection_go_on() -> None:
    served = Served(read_timeout_s=5.0)
    client = _silent(served)
    stuck = _small(served, client, 100_000)
    lasting = client.call("/t/Each", end=False)
    client.exchange()
    for second in range(12):
        client.h2.increment_flow_control_window(100)
        served.endpoint.tick(float(second))
        client.exchange()
    assert client.answers[stuck].reset is not None
    assert not client.server._closed
    client.send(lasting, framed(b"still here"))
    client.exchange()
    assert client.answers[lasting].messages == [b"still here"]
    assert served.endpoint.budget.used == 0


@pytest.mark.parametrize("drip", [0, 1, 1000])
async def test_a_connection_that_takes_too_little_is_closed(drip: int) -> None:
    served = Served(read_timeout_s=10.0)
    client = _silent(served)
    numbers = [_small(served, client, 100_000) for _ in range(3)]
    for second in range(1, 11):
        served.endpoint.tick(float(second))
        if drip:
            client.h2.increment_flow_control_window(drip)
            client.h2.increment_flow_control_window(drip, numbers[0])
        client.exchange()
    assert not client.server._closed
    served.endpoint.tick(13.0)  # the client took the first window of 64 KiB
    assert client.server._closed
    assert client.server.output.held.num_bytes == _waiting(client) == served.endpoint.budget.used == 0


async def test_requests_that_wait_for_answers_nobody_takes_end_with_their_connection() -> None:
    served = Served(max_message_bytes=4 * MIB, read_timeout_s=5.0)
    client = _silent(served)
    for _ in range(30):
        _small(served, client, 200_000)
    assert _waiting(client) > SHARE_BYTES
    for second in range(8):
        served.endpoint.tick(float(second))
    assert client.server._closed
    assert _waiting(client) == served.endpoint.budget.used == 0


# Requests that wait for a client that takes nothing, through a socket


class Queue(FakeService):
    """Answers when a test lets it, in order; counts what was computed and what was withdrawn."""

    def __init__(self) -> None:
        super().__init__(load_config())
        self.num_computed = self.num_withdrawn = 0
        self.waiting: dict[Ticket, Deliver] = {}

    def submit(self, request: ScoreRequest, deliver: Deliver) -> Ticket:
        ticket = _Withdrawal(self)
        self.waiting[ticket] = deliver
        return ticket

    def compute(self) -> None:
        """Answer the first one, if one waits."""
        if not self.waiting:
            return
        self.num_computed += 1
        result = ScoreResult("sage", "2", "g", {"label": np.zeros(1, np.int64)})
        self.waiting.pop(next(iter(self.waiting)))(result)


class _Withdrawal(Ticket):
    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def cancel(self) -> None:
        self._queue.num_withdrawn += self._queue.waiting.pop(self, None) is not None


@contextlib.asynccontextmanager
async def _calling(window: int, count: int) -> AsyncIterator[tuple[Queue, GrpcEndpoint, socket.socket]]:
    """A client of gRPC with a window, and its calls in the queue."""
    queue = Queue()
    endpoint = endpoint_of(GrpcApp(queue), read_timeout_s=_READ_S)
    server = await asyncio.get_running_loop().create_server(endpoint, "127.0.0.1", 0)
    client = socket.create_connection(server.sockets[0].getsockname())
    head = raw.block(
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/inference.GRPCInferenceService/ModelInfer"),
        (":authority", "x"),
        ("content-type", "application/grpc"),
    )
    body = framed(infer_request([1]).SerializeToString())
    client.sendall(raw.PREFACE + raw.settings((4, window)))
    for number in range(1, 2 * count, 2):
        client.sendall(raw.frame(raw.HEADERS, raw.END_HEADERS, number, head))
        client.sendall(raw.frame(raw.DATA, raw.END_STREAM, number, body))
    await eventually(lambda: len(queue.waiting) == count)
    yield queue, endpoint, client
    client.close()
    server.close()
    endpoint.abort()
    await eventually(lambda: not endpoint.connections)


@pytest.mark.parametrize("window", [0, 1])
async def test_calls_of_a_client_that_takes_no_answer_are_not_computed_to_the_last(window: int) -> None:
    async with _calling(window, 500) as (queue, endpoint, _):
        for second in range(9):
            queue.compute()
            endpoint.tick(float(second))
            await asyncio.sleep(0)
        assert queue.num_computed < 10
        assert queue.num_withdrawn == 500 - queue.num_computed
        for second in range(9, 20):
            endpoint.tick(float(second))
        await eventually(lambda: all(each.idle for each in endpoint.connections))
        assert endpoint.budget.used == 0


@pytest.mark.parametrize("end", ["reset", "closed", "goaway and closed"])
async def test_calls_of_a_connection_that_ends_are_withdrawn(end: str) -> None:
    async with _calling(0, 100) as (queue, _, client):
        queue.compute()
        if end == "reset":
            for number in range(1, 200, 2):
                client.sendall(raw.rst(number))
        else:
            if end != "closed":
                client.sendall(raw.frame(raw.GOAWAY, 0, 0, bytes(8)))
            client.close()
        await eventually(lambda: queue.num_withdrawn == 99)
        assert queue.num_computed == 1


def _num_taken(endpoint: GrpcEndpoint) -> int:
    return sum(each.output.unsent.num_taken for each in endpoint.connections)


async def test_a_client_that_takes_other_answers_keeps_its_calls() -> None:
    """One answer is not taken; the others are, and what is not computed yet goes on."""
    async with _calling(0, 3) as (queue, endpoint, client):
        queue.compute()
        queue.compute()
        for second in range(9):
            if second == 4:
                client.sendall(raw.window_update(3, 1000))
                await eventually(lambda: _num_taken(endpoint) == 1)
            endpoint.tick(float(second))
        assert queue.num_withdrawn == 0
        assert len(queue.waiting) == 1


async def test_pipelined_requests_of_a_connection_that_ends_never_begin() -> None:
    queue, config = Queue(), load_config()
    app = HttpApp(queue, config)
    endpoint = HttpEndpoint(app, app.refuse, max_body_bytes=MIB)
    server = await asyncio.get_running_loop().create_server(endpoint, "127.0.0.1", 0)
    client = socket.create_connection(server.sockets[0].getsockname())
    client.sendall(post(SCORE) * 10)
    await eventually(lambda: len(queue.waiting) == 1)
    queue.compute()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    client.close()
    await eventually(lambda: not endpoint.connections)
    assert (queue.num_computed, queue.num_withdrawn) == (1, 1)
    assert not queue.waiting
    server.close()
    await asyncio.sleep(0)
