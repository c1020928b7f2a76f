"""Heads as RFC 9110 and RFC 9112 have them: answered, or refused with the status that they name."""

from __future__ import annotations

import pytest

from tests.transports.http_rig import SCORE, Host, post
from turnserve.http1.reader import MAX_HEAD_BYTES

PATH = b"/v1/models/sage/score"
CHUNKED = b"d\r\n" + SCORE + b"\r\n0\r\n\r\n"


def asking(
    line: bytes = b"POST " + PATH + b" HTTP/1.1",
    headers: bytes = b"host: x\r\ncontent-length: 13\r\n",
    body: bytes = SCORE,
) -> bytes:
    return line + b"\r\n" + headers + b"\r\n" + body


async def answered(host: Host, data: bytes) -> tuple[int, bytes]:
    connection = await host.connect()
    connection.send(data)
    status, _, body = await connection.answer()
    connection.close()
    return status, body


@pytest.mark.parametrize(
    "request_",
    [
        asking(),
        asking(b"POST http://other:80" + PATH + b" HTTP/1.1"),
        asking(b"POST HTTPS://x" + PATH + b"?a=1 HTTP/1.1"),
        asking(b"POST " + PATH + b"?x=http://y/ HTTP/1.1"),
        asking(b"\r\n\r\nPOST " + PATH + b" HTTP/1.1"),
        asking(headers=b"Host: [::1]:8700\r\nContent-Length: 13\r\n"),
        asking(headers=b"Host:\r\nContent-Length: 13\r\n"),
        asking(headers=b"HOST:\t x \t\r\nCONTENT-LENGTH:13   \r\n"),
        asking(headers=b"host: x\r\ncontent-length: 0013\r\n"),
        asking(headers=b"host: x\r\ntransfer-encoding: Chunked\r\n", body=CHUNKED),
        asking(b"POST " + PATH + b" HTTP/1.0", b"content-length: 13\r\n"),
        asking(b"POST " + PATH + b" HTTP/1.0", b"content-length: 13\r\nexpect: 100-continue\r\n"),
        asking(headers=b"host: x\r\ncontent-length: 13\r\naccept: image/png\r\nrange: bytes=0-1\r\n"),
        asking(b"GET http://x HTTP/1.1", b"host: x\r\n", b""),
        asking(b"GET http://x?a HTTP/1.1", b"host: x\r\n", b""),
        asking(b"GET http://x:80/healthz HTTP/1.1", b"host: evil.example\r\n", b""),
        asking(b"OPTIONS * HTTP/1.1", b"host: x\r\n", b""),
    ],
)
async def test_what_clients_and_proxies_send_is_answered(host: Host, request_: bytes) -> None:
    assert (await answered(host, request_))[0] == 200


@pytest.mark.parametrize(
    ("request_", "status", "text"),
    [
        (asking(headers=b"content-length: 13\r\n"), 400, b"needs the header Host"),
        (asking(headers=b"host: x\r\nhost: x\r\ncontent-length: 13\r\n"), 400, b"expected one host"),
        (asking(headers=b"host: x, y\r\ncontent-length: 13\r\n"), 400, b"expected one host"),
        (asking(headers=b"host: x/y\r\ncontent-length: 13\r\n"), 400, b"expected one host"),
        (asking(headers=b"host: x\r\ntransfer-encoding: gzip, chunked\r\n", body=CHUNKED), 501, b"gzip"),
        (
            asking(
                headers=b"host: x\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n",
                body=CHUNKED,
            ),
            501,
            b"gzip, chunked",
        ),
        (asking(b"POST / HTTP/1.0", b"transfer-encoding: chunked\r\n", CHUNKED), 400, b"Content-Length"),
        (asking(b"GET http://x/healthz HTTP/1.1", b"", b""), 400, b"needs the header Host"),
        (asking(b"GET http://u@x/healthz HTTP/1.1", b"host: x\r\n", b""), 400, b"expected one host"),
        (asking(b"GET http:///healthz HTTP/1.1", b"host: x\r\n", b""), 400, b"the target's host is ''"),
        (asking(headers=b"host: x\r\ntransfer-encoding: chunked, gzip\r\n"), 400, b"Transfer-Encoding"),
        (asking(headers=b"host: x\r\ntransfer-encoding: xchunked\r\n"), 400, b"Transfer-Encoding"),
        (
            asking(headers=b"host: x\r\ntransfer-encoding: chunked\r\ncontent-length: 13\r\n"),
            400,
            b"Content",
        ),
        (
            asking(headers=b"host: x\r\ncontent-length: 13\r\ncontent-length: 13\r\n"),
            400,
            b"Content-Length",
        ),
        (asking(headers=b"host: x\r\ncontent-length: 13, 13\r\n"), 400, b"Content-Length"),
        (asking(headers=b"host: x\r\ncontent-length: +13\r\n"), 400, b"Content-Length"),
        (asking(headers=b"host: x\r\ncontent-length: -1\r\n"), 400, b"Content-Length"),
        (asking(headers=b"host: x\r\ncontent-length: 99999999999999999999\r\n"), 400, b"Content-Length"),
        (asking(headers=b"host: x\r\ncontent-length : 13\r\n"), 400, b"header"),
        (asking(headers=b"host: x\r\nx-a: 1\r\n 2\r\ncontent-length: 13\r\n"), 400, b"whitespace"),
        (asking(headers=b"host: x\r\n: 1\r\ncontent-length: 13\r\n"), 400, b"header"),
        (asking(headers=b"host: x\r\nx: a\rb\r\ncontent-length: 13\r\n"), 400, b"LF"),
        (asking(headers=b"host: x\r\nx: a\0b\r\ncontent-length: 13\r\n"), 400, b"header value"),
        (b"POST / HTTP/1.1\nhost: x\ncontent-length: 0\n\n", 400, b"CRLF"),
        (
            asking(headers=b"host: x\r\ntransfer-encoding: chunked\r\n", body=b"fffffffffffffffff\r\nx"),
            400,
            b"overflow",
        ),
        (asking(headers=b"host: x\r\ntransfer-encoding: chunked\r\n", body=b"-2\r\nab\r\n"), 400, b"chunk"),
        (asking(headers=b"host: x\r\ntransfer-encoding: chunked\r\n", body=b"2\nab\n"), 400, b"chunk"),
        (asking(headers=b"host: x\r\ncontent-length: 13\r\nexpect: 200-ok\r\n"), 417, b"100-continue"),
        (asking(b"post " + PATH + b" HTTP/1.1"), 501, b"unknown method 'post'"),
        (asking(b"FROB / HTTP/1.1"), 501, b"unknown method 'FROB'"),
        (asking(b"GET / HTTP/2.0", b"host: x\r\n", b""), 505, b"send HTTP/1.1"),
        (b"GET /\r\n\r\n", 505, b"send HTTP/1.1"),
        (asking(b"GET / HTTP/3.0", b"host: x\r\n", b""), 505, b"send HTTP/1.1"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, b"send HTTP/1.1"),
        (asking(b"PURGE /healthz HTTP/1.1", b"host: x\r\n", b""), 405, b"use GET, HEAD"),
        (asking(b"PATCH /nowhere HTTP/1.1", b"host: x\r\n", b""), 404, b"unknown path"),
        (asking(b"OPTIONS /nowhere HTTP/1.1", b"host: x\r\n", b""), 404, b"unknown path"),
        (asking(b"GET * HTTP/1.1", b"host: x\r\n", b""), 405, b"use OPTIONS"),
        (asking(b"GET /%s HTTP/1.1" % (b"x" * 30_000), b"host: x\r\n", b""), 404, b"unknown path"),
        (asking(b"GET /%s HTTP/1.1" % (b"x" * 70_000), b"host: x\r\n", b""), 431, b"the request head"),
        (asking(b"GET /healthz#a HTTP/1.1", b"host: x\r\n", b""), 404, b"unknown path"),
    ],
)
async def test_what_a_server_must_not_answer_is_refused(
    host: Host, request_: bytes, status: int, text: bytes
) -> None:
    got, body = await answered(host, request_)
    assert got == status
    assert text.lower() in body.lower()


async def test_the_host_of_an_absolute_target_replaces_the_header_and_is_checked(host: Host) -> None:
    connection = await host.connect()
    for name, status in [(b"x", 200), (b"evil.example", 403), (b"x", 200), (b"evil.example", 403)]:
        connection.send(asking(b"POST http://%s%s HTTP/1.1" % (name, PATH)))
        got, _, body = await connection.answer()
        assert (got, b"evil.example" in body) == (status, status == 403)


async def test_a_refused_head_request_gets_no_body(host: Host) -> None:
    connection = await host.connect()
    connection.send(b"HEAD /healthz HTTP/1.1\r\n\r\n")
    status, headers, _ = await connection.answer(head_only=True)
    assert (status, headers["connection"]) == (400, "close")
    assert await connection.closed()


async def test_trailers_are_no_headers(host: Host) -> None:
    chunked = asking(headers=b"host: x\r\ntransfer-encoding: chunked\r\n", body=CHUNKED[:-2])
    assert (await answered(host, chunked + b"timeout-ms: -5\r\n\r\n"))[0] == 200


@pytest.mark.parametrize("endless", [b"d\r\n" + SCORE + b"\r\n0\r\nx: ", b"d;x="])
async def test_trailers_and_extensions_are_bounded(host: Host, endless: bytes) -> None:
    connection = await host.connect()
    connection.send(asking(headers=b"host: x\r\ntransfer-encoding: chunked\r\n", body=endless))
    await connection.writer.drain()
    connection.send(b"y" * (16 * MAX_HEAD_BYTES))
    status, _, body = await connection.answer()
    assert status == 431
    assert b"trailers or chunk extensions" in body


async def test_chunks_of_a_byte_each_are_no_endless_head(host: Host) -> None:
    body = b'{"nodes":[1' + b" " * 30_000 + b"]}"
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    request = asking(headers=b"host: x\r\ntransfer-encoding: chunked\r\n", body=chunks)
    assert (await answered(host, request))[0] == 200


async def test_a_header_sent_twice_is_a_list(host: Host) -> None:
    headers = b"host: x\r\ncontent-length: 13\r\ntimeout-ms: 5000\r\ntimeout-ms: 1\r\n"
    status, body = await answered(host, asking(headers=headers))
    assert status == 400
    assert b"timeout-ms must be a positive number" in body


async def test_empty_lines_between_requests_are_no_request(host: Host) -> None:
    connection = await host.connect()
    connection.send(post(SCORE) + b"\r\n\r\n" + post(SCORE) + b"\r\n")
    assert [(await connection.answer())[0] for _ in range(2)] == [200, 200]
    for now in (1.0, 4.0, 7.0):  # a slow request would be refused after 5 s
        host.endpoint.tick(now)
    connection.send(post(SCORE))
    assert (await connection.answer())[0] == 200
    connection.close()


async def test_100_continue_comes_after_the_answers_before_it(host: Host) -> None:
    connection = await host.connect()
    connection.send(post(b'{"nodes":[1],"as_of":50}', b"slow"))
    head, _, body = post(SCORE, headers=b"expect: 100-continue\r\n").partition(b"\r\n\r\n")
    connection.send(head + b"\r\n\r\n")
    assert (await connection.answer())[0] == 200
    assert await connection.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.send(body)
    assert (await connection.answer())[0] == 200
    connection.close()
