"""Senders that shut down their side after the request, as `nc -N` does (RFC 9112, 9.6)."""

from __future__ import annotations

import pytest

from tests.transports.http_rig import SCORE, SLOW, Connection, Host, eventually, post


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


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("model", [b"slow", b"missing"])
async def test_the_bytes_that_reach_a_half_closed_sender_are_those_of_the_answer(
    host: Host, version: bytes, model: bytes
) -> None:
    headers = b"connection: close\r\nx-request-id: r\r\n"
    request = post(b'{"nodes":[1],"as_of":300}', model, headers, version)
    open_sender = await host.connect()
    open_sender.send(request)
    expected = await open_sender.reader.read()
    connection = await half_closed(host, request)
    assert without_times(await connection.reader.read()) == without_times(expected)
    assert host.service.num_cancelled == 0


async def test_a_half_closed_sender_that_closes_later_is_gone(host: Host) -> None:
    connection = await half_closed(host, post(SLOW, b"slow"))
    assert await connection.reader.readexactly(3) == b"HTT"  # read, so that closing does not reset
    assert host.service.num_waiting == 1
    connection.close()
    await eventually(lambda: host.service.num_cancelled == 1)
    assert not host.endpoint.connections


async def test_requests_behind_the_one_of_a_closed_client_are_not_started(host: Host) -> None:
    connection = await host.connect()
    connection.send(post(SLOW, b"slow") * 8)
    await eventually(lambda: host.service.num_waiting == 1)
    connection.close()
    await eventually(lambda: host.service.num_cancelled == 1)
    assert host.service.num_waiting == 0
    assert not host.endpoint.connections


def without_times(answer: bytes) -> list[bytes]:
    """The lines of an answer, without the time that it took."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return [*(line for line in head.split(b"\r\n") if not line.startswith(b"date")), body]
