"""What one connection, and all of them together, can make a worker hold, and for how long the loop."""

from __future__ import annotations

import asyncio
import gc
import itertools
import tracemalloc
import weakref
from collections.abc import Iterator

import pytest

from tests.transports.http_rig import SCORE, Host, eventually, listening, post
from turnserve.budget import Budget
from turnserve.http1.messages import Pending, Request, Response
from turnserve.turns import TURN_S, Waiting

WAITING = b'{"nodes":[1],"as_of":100000}'
CHUNKED = b"POST /v1/models/sage/score HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture
def allocations() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("framing", ["length", "chunked", "many"])
async def test_what_is_sent_behind_a_request_that_is_being_answered_waits_outside(
    host: Host, framing: str, allocations: None
) -> None:
    connection = await host.connect()
    connection.send(post(WAITING, b"slow"))
    await eventually(lambda: host.service.num_waiting == 1)
    before = tracemalloc.get_traced_memory()[0]
    num_bytes = 16 << 20
    piece = b"x" * 65536
    if framing == "length":
        parts = [CHUNKED.replace(b"transfer-encoding: chunked", b"content-length: 200000"), piece * 256]
    elif framing == "chunked":
        parts = [CHUNKED, (b"10000\r\n" + piece + b"\r\n") * 256]
    else:
        parts = [post(piece) * 256]
    transport = connection.writer.transport
    for part in parts:
        transport.write(part)
    held = transport.get_write_buffer_size
    await eventually(lambda: held() < num_bytes)
    for _ in range(200):
        await asyncio.sleep(0)
    client = held()
    after = tracemalloc.get_traced_memory()[0]
    transport.abort()
    # The rest is in the kernel, or still with the client.
    assert client > num_bytes // 4
    assert after - before - client - num_bytes < 1 << 20
    assert host.endpoint.budget.used < 1 << 19


async def test_a_body_behind_a_request_is_refused_at_its_turn(host: Host) -> None:
    connection = await host.connect()
    connection.send(post(b'{"nodes":[1],"as_of":100}', b"slow"))
    connection.send(CHUNKED + (b"2710\r\n" + b"x" * 10_000 + b"\r\n") * 40)
    first, second = [await connection.answer() for _ in range(2)]
    assert (first[0], second[0], second[1]["connection"]) == (200, 413, "close")
    assert await connection.closed()


async def test_large_bodies_behind_each_other_are_answered_in_order(host: Host) -> None:
    connection = await host.connect()
    connection.send(post(b'{"nodes":[1],"as_of":30}', b"slow", b"x-request-id: r0\r\n"))
    padded = b'{"nodes":[1]%b}' % (b" " * 150_000)
    for number in range(1, 20):
        connection.send(post(padded, headers=b"x-request-id: r%d\r\n" % number))
    answers = [await connection.answer() for _ in range(20)]
    assert [(status, headers["x-request-id"]) for status, headers, _ in answers] == [
        (200, f"r{number}") for number in range(20)
    ]
    assert not host.endpoint.budget.used
    connection.close()


async def test_bodies_of_one_connection_wait_for_each_other_and_not_for_memory() -> None:
    """The announced length of one that waits behind another needs no room yet."""
    async with listening(max_body_bytes=4_000_000) as host:
        host.endpoint.budget = Budget(4_300_000)
        connection = await host.connect()
        connection.send(post(b'{"nodes":[1],"as_of":30}' + b" " * 3_000_000, b"slow"))
        connection.send(post(SCORE + b" " * 3_000_000) * 2)
        assert [(await connection.answer())[0] for _ in range(3)] == [200] * 3
        assert not host.endpoint.budget.used


async def test_a_burst_on_one_connection_does_not_delay_the_others(host: Host) -> None:
    paths: list[bytes] = []
    handler = host.endpoint.handler

    def counted(request: Request) -> Response | Pending:
        paths.append(request.target)
        return handler(request)

    host.endpoint.handler = counted
    burst, other = await host.connect(), await host.connect()
    burst.send(b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n" * 5_000)
    await eventually(lambda: paths)
    other.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await other.answer())[0] == 200
    assert paths.index(b"/healthz") < 1_000
    for _ in range(5_000):
        assert (await burst.answer())[0] == 404


@pytest.mark.parametrize("kind", ["requests", "short requests", "chunks", "waiting"])
async def test_a_connection_has_a_millisecond_at_a_time(
    host: Host, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, nowhere = host.endpoint.turns, b"GET /nowhere HTTP/1.1\r\nhost: x\r\n"
    seconds, waits = itertools.count(0, TURN_S / 2), itertools.count()
    wait = turns.wait

    def counted(item: Waiting) -> None:
        next(waits)
        wait(item)

    monkeypatch.setattr(turns, "clock", seconds.__next__)  # each look takes half of a turn
    monkeypatch.setattr(turns, "wait", counted)
    connection = await host.connect()
    if kind == "requests":
        connection.send((nowhere + b"a: %b\r\n\r\n" % (b"x" * 4_000)) * 15)
        expected = [404] * 15
    elif kind == "short requests":
        connection.send((nowhere + b"\r\n") * 15)
        expected = [404] * 15
    elif kind == "chunks":
        connection.send(CHUNKED + b"1\r\n \r\n" * 10_000 + b"0\r\n\r\n")
        expected = [400]
    else:
        connection.send(post(b'{"nodes":[1],"as_of":50}', b"slow") + (nowhere + b"\r\n") * 15)
        expected = [200] + [404] * 15
    assert [(await connection.answer())[0] for _ in expected] == expected
    assert next(waits) >= (4 if kind in ("waiting", "short requests") else 6)
    assert not any(each in turns for each in host.endpoint.connections)


@pytest.mark.parametrize("where", ["head", "trailers"])
async def test_many_headers_are_refused_while_they_come(host: Host, where: str) -> None:
    connection = await host.connect()
    lines = b"a:\r\n" * 1_000
    connection.send(CHUNKED + b"0\r\n" + lines if where == "trailers" else CHUNKED[:-2] + lines)
    status, headers, body = await connection.answer()
    assert (status, headers["connection"]) == (431, "close")
    assert b"more than 256 headers" in body


@pytest.mark.parametrize(
    "begun",
    [
        b"100001\r\n",
        b"00000000100001;a=b\r\n",
        b"ffffffffff\r\n{",
        b"5\r\n     \r\nFFFFD\r\n",
        b"5;a=" + b"x" * 5_000 + b"\r\n\n\n\n\n\n\r\n100000;b=" + b"x" * 5_000 + b"\r\n",
    ],
)
@pytest.mark.parametrize("cut", [1, 7, 20_000])
async def test_a_chunk_that_is_too_large_is_refused_when_it_is_announced(begun: bytes, cut: int) -> None:
    async with listening(1 << 20) as host:
        connection = await host.connect()
        connection.send(CHUNKED)
        first = begun[:100]
        for at in range(0, len(first), cut):
            await asyncio.sleep(0)
            connection.send(first[at : at + cut])
        connection.send(begun[100:])
        status, headers, body = await connection.answer()
        assert (status, headers["connection"]) == (413, "close")
        assert b"larger than 1048576 bytes" in body


@pytest.mark.parametrize("cut", [1, 3, 1000])
async def test_trailers_that_look_like_sizes_are_none(cut: int) -> None:
    async with listening(1 << 20) as host:
        connection = await host.connect()
        sent = CHUNKED + b"%x\r\n%b\r\n0\r\nffffffff: 1\r\n\r\n" % (len(SCORE), SCORE)
        for at in range(0, len(sent), cut):
            connection.send(sent[at : at + cut])
            await asyncio.sleep(0)
        assert (await connection.answer())[0] == 200


async def test_chunks_of_one_byte_are_refused_before_they_cost_much() -> None:
    async with listening(4 << 20) as host:
        connection = await host.connect()
        connection.send(CHUNKED)
        chunks = b"1\r\nx\r\n" * 100_000
        for _ in range(8):
            connection.send(chunks)
        status, headers, body = await connection.answer()
        assert (status, headers["connection"]) == (400, "close")
        assert b"framing" in body


async def test_a_body_in_chunks_of_one_byte_is_read(host: Host) -> None:
    connection = await host.connect()
    body = SCORE + b" " * 5_000
    connection.send(CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
    assert (await connection.answer())[0] == 200


async def test_a_large_body_may_follow_an_offer_to_upgrade(host: Host) -> None:
    connection = await host.connect()
    body = SCORE + b" " * 190_000
    connection.send(post(body, headers=b"connection: upgrade\r\nupgrade: h2c\r\n"))
    assert (await connection.answer())[0] == 200
    assert not host.endpoint.budget.used


@pytest.mark.parametrize("framing", ["length", "chunked", "upgrade"])
async def test_bodies_of_all_connections_share_one_budget(host: Host, framing: str) -> None:
    host.endpoint.budget = budget = Budget(300_000)
    body = SCORE + b" " * 150_000
    whole = post(body)
    if framing == "chunked":
        whole = CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    elif framing == "upgrade":
        whole = post(body, headers=b"connection: upgrade\r\nupgrade: h2c\r\n")
    cut = len(whole) - 10
    first, second = await host.connect(), await host.connect()
    first.send(whole[:cut])
    await eventually(lambda: budget.used > 100_000)
    second.send(whole)
    status, _, text = await second.answer()
    assert status == 503
    assert b"server.max_pending_bytes" in text
    small = await host.connect()
    small.send(post(SCORE))
    assert (await small.answer())[0] == 200
    first.send(whole[cut:])
    assert (await first.answer())[0] == 200
    assert budget.used == 0
    third = await host.connect()
    third.send(whole[:cut])
    await eventually(lambda: budget.used > 100_000)
    third.close()
    await eventually(lambda: budget.used == 0)


async def test_nothing_of_a_closed_connection_stays(host: Host) -> None:
    gc.collect()
    gc.disable()
    try:
        connection = await host.connect()
        connection.send(post(WAITING, b"slow") + post(b"x" * 100_000)[:60_000])
        await eventually(lambda: host.service.num_waiting == 1)
        server_side = weakref.ref(next(iter(host.endpoint.connections)))
        connection.close()
        for now in (2.0, 4.0, 6.0, 8.0):
            host.endpoint.tick(host.endpoint.now + now)
            await asyncio.sleep(0.01)
        await eventually(lambda: not host.endpoint.connections)
        await eventually(lambda: server_side() is None)
    finally:
        gc.enable()


async def test_nothing_of_a_large_body_that_is_refused_stays(allocations: None) -> None:
    async with listening(8 << 20) as host:
        connection = await host.connect()
        connection.send(post(SCORE))
        assert (await connection.answer())[0] == 200
        gc.collect()
        gc.disable()
        before = tracemalloc.get_traced_memory()[0]
        try:
            for _ in range(3):
                connection.send(post(b'{"nodes":[%b]}' % b",".join([b"1"] * 2_000_000)))
                assert (await connection.answer())[0] == 413
            await eventually(lambda: tracemalloc.get_traced_memory()[0] - before < 1 << 20)
        finally:
            gc.enable()


async def test_a_large_body_is_read_in_turns(host: Host) -> None:
    reads = []
    async with listening(8 << 20) as other:
        connection = await other.connect()
        turns = other.endpoint.turns
        wait = turns.wait

        def counted(item: Waiting, *, to_be_read: bool = False) -> None:
            reads.append(to_be_read)
            wait(item, to_be_read=to_be_read)

        turns.wait = counted  # type: ignore[method-assign]
        connection.send(post(SCORE + b" " * (6 << 20)))
        assert (await connection.answer())[0] in (200, 413)
        assert sum(reads) >= 6
