"""Senders that shut down their side after the request, as `nc -N` does (RFC 9112, 9.6)."""

from __future__ import annotations

import asyncio

import pytest

from tests.transports.http_rig import SCORE, SLOW, Connection, Host, eventually, post

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


async def half_closed(host: Host, data: bytes) -> Connection:
    connection = await host.connect()
    connection.send(data)
    connection.writer.write_eof()
    return connection


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_a_half_closed_sender_gets_its_answer(host: Host, version: bytes) -> None:
    connection = await half_closed(host, post(b'{"nodes":[1],"as_of":30}', b"slow", version=version))
    status, headers, _ = await connection.answer()
    assert (status, headers["connection"]) == (200, "close")
    assert await connection.closed()
    await eventually(lambda: not host.endpoint.connections)


async def test_all_pipelined_requests_are_answered(host: Host) -> None:
    connection = await half_closed(host, post(b'{"nodes":[1],"as_of":30}', b"slow") + post(SCORE) * 40)
    assert [(await connection.answer())[0] for _ in range(41)] == [200] * 41
    assert await connection.closed()


async def test_what_was_refused_before_is_answered_too(host: Host) -> None:
    connection = await host.connect()
    connection.send(post(SCORE, b"busy"))
    assert (await connection.answer())[0] == 503
    connection.send(post(SCORE))
    connection.writer.write_eof()
    assert (await connection.answer())[0] == 200
    assert await connection.closed()


@pytest.mark.parametrize(
    "part",
    [b"POST /v1", post(SCORE)[:-1], post(SCORE, headers=b"connection: upgrade\r\nupgrade: h2c\r\n")[:-1]],
)
async def test_half_a_request_is_refused(host: Host, part: bytes) -> None:
    connection = await half_closed(host, part)
    status, headers, body = await connection.answer()
    assert (status, headers["connection"]) == (400, "close")
    assert b"closed within a request" in body
    assert await connection.closed()
    await eventually(lambda: not host.endpoint.connections)


async def test_half_a_request_behind_a_whole_one_does_not_lose_its_answer(host: Host) -> None:
    connection = await half_closed(host, post(b'{"nodes":[1],"as_of":30}', b"slow") + b"GET /")
    assert (await connection.answer())[0] == 200
    assert await connection.closed()


async def test_a_long_wait_is_bridged_by_interim_responses(host: Host) -> None:
    connection = await half_closed(host, post(SLOW, b"slow"))
    await eventually(lambda: host.service.num_waiting == 1)
    await asyncio.sleep(0.05)
    for now in range(1, 8):
        host.endpoint.tick(float(now))
    assert await connection.reader.readexactly(2 * len(CONTINUE)) == CONTINUE * 2
    connection.close()


async def test_http_1_0_gets_no_interim_responses(host: Host) -> None:
    connection = await half_closed(host, post(b'{"nodes":[1],"as_of":150}', b"slow", version=b"1.0"))
    await eventually(lambda: host.service.num_waiting == 1)
    await asyncio.sleep(0.05)
    for now in range(1, 8):
        host.endpoint.tick(float(now))
    assert (await connection.reader.read(12)) == b"HTTP/1.1 200"
    connection.close()
