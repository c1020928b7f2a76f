"""The connection itself, over real sockets in the test's own loop."""

from __future__ import annotations

import asyncio

import pytest

from tests.transports.http_rig import SCORE, SLOW, Connection, Host, eventually, gone, post
from turnserve.http1.reader import MAX_HEAD_BYTES


async def test_a_connection_is_kept_for_further_requests(host: Host) -> None:
    connection = await host.connect()
    for _ in range(3):
        connection.send(post(SCORE))
        assert (await connection.answer())[0] == 200
    connection.close()


async def test_a_request_may_arrive_byte_by_byte(host: Host) -> None:
    connection = await host.connect()
    for byte in post(SCORE):
        connection.send(bytes([byte]))
        await connection.writer.drain()
        await asyncio.sleep(0)
    assert (await connection.answer())[0] == 200
    connection.close()


async def test_pipelined_requests_are_answered_in_order(host: Host) -> None:
    connection = await host.connect()
    slow = b'{"nodes":[1],"as_of":50}'
    requests = [post(slow, b"slow", b"x-request-id: r0\r\n")]
    requests += [post(SCORE, headers=b"x-request-id: r%d\r\n" % n) for n in range(1, 40)]
    connection.send(b"".join(requests))
    ids = [(await connection.answer())[1]["x-request-id"] for _ in range(40)]
    assert ids == [f"r{n}" for n in range(40)]
    connection.close()


async def test_a_disconnect_cancels_the_waiting_request(host: Host) -> None:
    connection = await host.connect()
    connection.send(post(SLOW, b"slow"))
    await eventually(lambda: host.service.num_waiting == 1)
    connection.close()
    await gone(host)
    assert host.service.num_waiting == 0
    assert not host.endpoint.connections


async def test_http_1_0_and_close_are_honoured(host: Host) -> None:
    connection = await host.connect()
    connection.send(post(SCORE, version=b"1.0"))
    status, headers, _ = await connection.answer()
    assert (status, headers["connection"]) == (200, "close")
    assert await connection.closed()
    kept = await host.connect()
    kept.send(post(SCORE, headers=b"connection: keep-alive\r\n", version=b"1.0"))
    assert (await kept.answer())[1]["connection"] == "keep-alive"
    kept.send(post(SCORE, headers=b"connection: close\r\n"))
    assert (await kept.answer())[1]["connection"] == "close"
    assert await kept.closed()


async def test_head_has_no_body(host: Host) -> None:
    connection = await host.connect()
    connection.send(b"HEAD /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
    status, headers, _ = await connection.answer(head_only=True)
    assert (status, int(headers["content-length"]) > 0) == (200, True)
    connection.send(post(SCORE))
    assert (await connection.answer())[0] == 200
    connection.close()


async def test_expect_continue_is_answered(host: Host) -> None:
    connection = await host.connect()
    head, _, body = post(SCORE, headers=b"expect: 100-continue\r\n").partition(b"\r\n\r\n")
    connection.send(head + b"\r\n\r\n")
    assert await connection.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.send(body)
    assert (await connection.answer())[0] == 200
    connection.close()


async def test_an_announced_body_that_is_too_large_is_refused_unread(host: Host) -> None:
    connection = await host.connect()
    connection.send(
        b"POST /v1/models/sage/score HTTP/1.1\r\nhost: x\r\ncontent-length: 300000\r\n"
        b"expect: 100-continue\r\n\r\n"
    )
    status, headers, body = await connection.answer()
    assert (status, headers["connection"]) == (413, "close")
    assert b"200000 bytes (server.max_body_bytes)" in body
    assert await connection.closed()


async def test_a_streamed_body_that_grows_too_large_is_refused(host: Host) -> None:
    connection = await host.connect()
    connection.send(b"POST /v1/models/sage/score HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(40):
        connection.send(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
    status, _, _ = await connection.answer()
    assert status == 413
    assert await connection.closed()


async def test_chunked_bodies_are_joined(host: Host) -> None:
    connection = await host.connect()
    connection.send(
        b"POST /v1/models/sage/score HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        b'9\r\n{"nodes":\r\n4\r\n[1]}\r\n0\r\n\r\n'
    )
    assert (await connection.answer())[0] == 200
    connection.close()


async def test_endless_heads_are_refused(host: Host) -> None:
    connection = await host.connect()
    connection.send(b"GET / HTTP/1.1\r\nx: " + b"y" * (MAX_HEAD_BYTES + 1))
    assert (await connection.answer())[0] == 431
    assert await connection.closed()


@pytest.mark.parametrize(
    "junk",
    [b"hello\r\n\r\n", b"GET / HTTX/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"\0" * 99],
    ids=["words", "version", "tls", "zeros"],
)
async def test_what_is_not_http_gets_the_reason(host: Host, junk: bytes) -> None:
    connection = await host.connect()
    connection.send(junk)
    status, _, body = await connection.answer()
    assert status == 400
    assert b"not valid HTTP" in body
    assert await connection.closed()


async def test_junk_after_a_request_does_not_lose_its_answer(host: Host) -> None:
    connection = await host.connect()
    connection.send(post(b'{"nodes":[1],"as_of":20}', b"slow") + b"junk\r\n\r\n")
    status, headers, _ = await connection.answer()
    assert (status, headers["connection"]) == (200, "close")
    assert await connection.closed()


async def test_upgrades_are_answered_as_http_1_1(host: Host) -> None:
    connection = await host.connect()
    connection.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n")
    status, headers, _ = await connection.answer()
    assert (status, headers["connection"]) == (200, "close")
    assert await connection.closed()


_OFFERS = [
    b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n",
    b"upgrade: websocket\r\nconnection: keep-alive, upgrade\r\n",
]


def _chunked(headers: bytes) -> bytes:
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in SCORE)
    head = (
        b"POST /v1/models/sage/score HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n%b\r\n" % headers
    )
    return head + chunks + b"0\r\n\r\n"


@pytest.mark.parametrize("offer", _OFFERS)
@pytest.mark.parametrize("form", ["length", "chunks"])
async def test_an_offer_to_upgrade_is_ignored_and_its_body_is_read(
    host: Host, offer: bytes, form: str
) -> None:
    # As Java's HttpClient and curl --http2 send their first request (RFC 9110, 7.8).
    sent = post(SCORE, headers=offer) if form == "length" else _chunked(offer)
    connection = await host.connect()
    for cut in (len(sent), sent.index(b"\r\n\r\n") + 4, len(sent) - 3, 30):
        connection.send(sent[:cut])
        if cut < len(sent):
            await connection.writer.drain()
            await asyncio.sleep(0.01)
            connection.send(sent[cut:])
        status, headers, body = await connection.answer()
        assert (status, "connection" in headers) == (200, False), body
    connection.send(sent * 3)  # the connection continues with HTTP/1.1
    assert [(await connection.answer())[0] for _ in range(3)] == [200] * 3


async def test_an_offer_to_upgrade_keeps_the_other_options_of_its_connection(host: Host) -> None:
    for sent in (
        post(SCORE, headers=b"connection: close, upgrade\r\nupgrade: h2c\r\n"),
        post(SCORE, headers=b"connection: upgrade\r\nupgrade: h2c\r\n", version=b"1.0"),
    ):
        connection = await host.connect()
        connection.send(sent)
        status, headers, _ = await connection.answer()
        assert (status, headers["connection"]) == (200, "close")
        assert await connection.closed()


async def test_the_body_behind_an_offer_to_upgrade_has_the_usual_limits(host: Host) -> None:
    large = b"%x\r\n%b\r\n" % (host.endpoint.max_body_bytes + 1, b"x" * 100)
    for sent, wanted in (
        (_chunked(_OFFERS[0]).partition(b"1\r\n{")[0] + large, 413),
        (post(SCORE, headers=_OFFERS[0]).replace(b"content-length: 13", b"content-length: 300000"), 413),
        (_chunked(_OFFERS[0])[:-7], 408),
    ):
        connection = await host.connect()
        connection.send(sent)
        if wanted == 408:
            await asyncio.sleep(0.05)
            for seconds in (1.0, 8.0):
                host.endpoint.tick(seconds)
        assert (await connection.answer())[0] == wanted


async def test_idle_and_slow_connections_are_closed(host: Host) -> None:
    idle, slow = await host.connect(), await host.connect()
    slow.send(b"POST /v1/models/sage/score HT")
    await eventually(lambda: len(host.endpoint.connections) == 2)
    await asyncio.sleep(0.05)
    for now in (1.0, 7.0, 12.0):
        host.endpoint.tick(now)
    assert (await slow.answer())[0] == 408
    assert await idle.closed()


async def test_empty_lines_keep_no_connection_open(host: Host) -> None:
    quiet, busy = await host.connect(), await host.connect()
    step = 0.4 * host.endpoint.timeouts.keep_alive_s
    for number in range(5):
        quiet.send(b"\r\n")
        busy.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await busy.answer())[0] == 200
        host.endpoint.tick(number * step)
    assert await quiet.closed()
    busy.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await busy.answer())[0] == 200


async def test_waiting_requests_are_not_idle(host: Host) -> None:
    connection = await host.connect()
    connection.send(post(b'{"nodes":[1],"as_of":100}', b"slow"))
    await eventually(lambda: host.service.num_waiting == 1)
    host.endpoint.tick(100.0)
    assert (await connection.answer())[0] == 200
    connection.close()


async def test_closing_lets_waiting_requests_finish(host: Host) -> None:
    idle, waiting = await host.connect(), await host.connect()
    waiting.send(post(b'{"nodes":[1],"as_of":50}', b"slow"))
    await eventually(lambda: host.service.num_waiting == 1)
    host.endpoint.begin_close()
    host.endpoint.close_idle()
    assert await idle.closed()
    status, headers, _ = await waiting.answer()
    assert (status, headers["connection"]) == (200, "close")
    assert await waiting.closed()
    await eventually(lambda: host.endpoint.num_waiting == 0)


async def test_a_client_that_does_not_read_stops_being_read(host: Host) -> None:
    connection = await host.connect()
    connection.reader._transport.pause_reading()  # type: ignore[attr-defined]
    request = post(b'{"nodes":[' + b",".join([b"1"] * 4000) + b"]}")
    for _ in range(200):
        connection.send(request)
    await eventually(lambda: any(c._outbox.is_blocked for c in host.endpoint.connections))
    connection.reader._transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(200):
        assert (await connection.answer())[0] == 200
    connection.close()


async def status(connection: Connection, data: bytes) -> int:
    connection.send(data)
    return (await connection.answer())[0]


async def test_a_known_head_is_answered_as_a_parsed_one(host: Host) -> None:
    connection = await host.connect()
    bodies = [b'{"nodes":[%d]}' % n for n in (1, 2, 3)]
    connection.send(post(bodies[0]))
    first = await connection.answer()
    assert len(host.endpoint.known_heads) == 1
    others = []
    for body in bodies[1:]:
        connection.send(post(body))
        others.append(await connection.answer())
    assert len(host.endpoint.known_heads) == 1
    fresh = await host.connect()
    host.endpoint.known_heads.clear()
    for body, (code, headers, answered) in zip(bodies, [first, *others], strict=True):
        host.endpoint.known_heads.clear()
        fresh.send(post(body))
        parsed = await fresh.answer()
        assert (code, answered) == (parsed[0], parsed[2])
        assert headers.keys() == parsed[1].keys()


async def test_a_known_head_with_its_body_in_pieces(host: Host) -> None:
    connection = await host.connect()
    assert await status(connection, post(SCORE)) == 200
    whole = post(SCORE)
    for cut in (1, len(whole) - len(SCORE) - 1, len(whole) - len(SCORE), len(whole) - 1):
        connection.send(whole[:cut])
        await connection.writer.drain()
        await asyncio.sleep(0.01)
        assert await status(connection, whole[cut:]) == 200
    # and a whole one after an unfinished one belongs to that one's body
    connection.send(whole[:-1])
    await asyncio.sleep(0.01)
    connection.send(whole)
    assert (await connection.answer())[0] == 400  # the body ends in "P", which is not JSON
    connection.close()


async def test_known_heads_pipelined(host: Host) -> None:
    connection = await host.connect()
    assert await status(connection, post(SCORE)) == 200
    connection.send(post(b'{"nodes":[1],"as_of":30}', b"slow", b"x-request-id: r0\r\n"))
    connection.send(post(SCORE) * 3)
    answers = [await connection.answer() for _ in range(4)]
    assert [answer[0] for answer in answers] == [200] * 4
    assert answers[0][1]["x-request-id"] == "r0"
    connection.close()


@pytest.mark.parametrize(
    ("request_", "body"),
    [
        (
            b"POST /v1/models/sage/score HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
            b"d\r\n%b\r\n0\r\n\r\n" % SCORE,
        ),
        (post(SCORE, headers=b"connection: close\r\n")[: -len(SCORE)], SCORE),
        (post(SCORE, version=b"1.0")[: -len(SCORE)], SCORE),
        (post(SCORE, headers=b"x-long: %b\r\n" % (b"x" * 5000))[: -len(SCORE)], SCORE),
    ],
)
async def test_heads_that_are_not_remembered(host: Host, request_: bytes, body: bytes) -> None:
    connection = await host.connect()
    assert await status(connection, request_ + body) == 200
    assert not host.endpoint.known_heads


async def test_known_heads_are_bounded(host: Host) -> None:
    connection = await host.connect()
    for n in range(1100):
        assert await status(connection, post(SCORE, headers=b"x-request-id: r%d\r\n" % n)) == 200
        assert len(host.endpoint.known_heads) <= 512
    connection.close()


async def test_a_known_head_answers_with_its_own_request_id(host: Host) -> None:
    connection = await host.connect()
    ids = set()
    for _ in range(5):
        connection.send(post(SCORE))
        ids.add((await connection.answer())[1]["x-request-id"])
    assert len(ids) == 5
    connection.close()
