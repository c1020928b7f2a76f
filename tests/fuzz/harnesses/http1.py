"""HTTP/1.1: a connection that is fed bytes, whole and in pieces, and again with a known head."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.fuzz.fed import MAX_BODY_BYTES, Alone, Transport, pieces
from turnserve.http1.endpoint import HttpEndpoint
from turnserve.http1.messages import Pending, Request, Response

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


class Outcome(NamedTuple):
    """What became of a stream.

    Attributes:
        requests: that the application saw, in order.
        statuses: of answers.
        closed: whether the server closed before the client ended.
    """

    requests: list[tuple[bytes, bytes, tuple[tuple[bytes, bytes], ...], bytes]]
    statuses: list[int]
    closed: bool


def check(data: bytes) -> None:
    """Args: data: a seed in the first byte, and what the client sends."""
    if len(data) < 2:
        return
    seed, sent = data[0], data[1:]
    endpoint, outcomes = _endpoint(), list[Outcome]()
    for parts in ([sent], pieces(sent, seed), [sent]):
        outcomes.append(_feed(endpoint, parts))
    whole, split, again = outcomes
    assert whole == again, "a head that is known is read otherwise"
    assert whole.requests == split.requests, "pieces are read otherwise"
    assert list(map(_alike, whole.statuses)) == list(map(_alike, split.statuses))
    assert whole.closed == split.closed
    for status in whole.statuses:
        assert status < 500 or status in (501, 505), status


def _alike(status: int) -> int:
    """An unknown method is told from other nonsense only where its line came in one piece."""
    return 400 if status == 501 else status


def _endpoint() -> HttpEndpoint:
    def refuse(status: int, text: str) -> Response:
        return Response(text.encode(), status)

    endpoint = HttpEndpoint(lambda request: Response(b""), refuse, max_body_bytes=MAX_BODY_BYTES)
    endpoint.turns = Alone()
    return endpoint


def _feed(endpoint: HttpEndpoint, parts: list[bytes]) -> Outcome:
    found = Outcome([], [], False)
    waiting: list[Pending] = []

    def handle(request: Request) -> Response | Pending:
        headers = tuple(sorted(request.headers.items()))
        found.requests.append((request.method, request.target, headers, request.body))
        if b"wait" not in request.target:
            return Response(b"")
        waiting.append(Pending())
        return waiting[-1]

    endpoint.handler = handle
    connection, transport = endpoint(), Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]

    def answer_all() -> None:
        while waiting:
            waiting.pop(0).answer(Response(b""))

    for part in parts:
        if not transport.is_reading:
            answer_all()
        assert transport.is_reading or transport.is_closed, "the server waits for nothing"
        connection.data_received(part)
    answer_all()
    was_closed = transport.is_closed or transport.at_eof
    if not was_closed:
        connection.eof_received()
    answer_all()
    assert transport.is_closed or transport.at_eof, "the client ended, and the connection has not"
    connection.connection_lost(None)
    statuses = [int(status) for status in _STATUS.findall(bytes(transport.written))]
    return found._replace(statuses=statuses, closed=was_closed)
