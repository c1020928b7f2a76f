"""Who was refused is read after the others: real sockets in the test's own loop, and the lane alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from hopline.config.reader import load_config
from hopline.errors import RateLimited
from hopline.transports.http import HttpApp
from tests.fake_service import FakeService
from tests.transports.http_rig import SCORE, SLOW, Host, eventually, gone, post
from turnserve.http1.messages import Pending, Request, Response
from turnserve.turns import LowPriorityReads


class Limited(FakeService):
    """Takes nothing for "sage"; says so before a request is read."""

    def reject_early(self, model: str) -> None:
        """As `Service.reject_early`."""
        if model == "sage":
            raise RateLimited("this model takes nothing", retry_after_s=1.0)


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    made = Host(load_config())
    made.clients = []
    await made.service.start()
    server = await asyncio.get_running_loop().create_server(made.endpoint, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    for client in made.clients:
        client.close()
    made.endpoint.abort()
    server.close()
    await asyncio.sleep(0)


def order_of(host: Host) -> list[bytes]:
    """Targets in the order in which the application sees them from now on."""
    seen: list[bytes] = []
    inner = host.endpoint.handler

    def handler(request: Request) -> Response | Pending:
        seen.append(request.target)
        return inner(request)

    for connection in host.endpoint.connections:
        connection._handler = handler
    return seen


async def test_a_burst_of_the_refused_is_read_after_who_was_answered(host: Host) -> None:
    flood = [await host.connect() for _ in range(12)]
    good = await host.connect()
    for each in flood:
        each.send(post(SCORE, b"busy"))
        assert (await each.answer())[0] == 503
    good.send(post(SCORE))
    assert (await good.answer())[0] == 200
    seen = order_of(host)
    for each in flood:  # all of them are there before the loop turns to its sockets
        each.send(post(SCORE, b"busy"))
    good.send(post(SCORE))
    assert (await good.answer())[0] == 200
    assert seen.index(b"/v1/models/sage/score") <= 8
    for each in flood:
        assert (await each.answer())[0] == 503
    assert len(seen) == 13


async def test_pipelined_requests_keep_their_order_and_lose_none(host: Host) -> None:
    connection = await host.connect()
    for number in range(60):
        model = b"busy" if number % 3 else b"sage"
        connection.send(post(SCORE, model, b"x-request-id: r%d\r\n" % number))
        if number % 7 == 0:
            await asyncio.sleep(0)
    answers = [await connection.answer() for _ in range(60)]
    assert [headers["x-request-id"] for _, headers, _ in answers] == [f"r{n}" for n in range(60)]
    assert [status for status, _, _ in answers] == [503 if n % 3 else 200 for n in range(60)]


async def test_a_request_in_pieces_comes_together(host: Host) -> None:
    connection = await host.connect()
    connection.send(post(SCORE, b"busy"))
    assert (await connection.answer())[0] == 503
    for byte in post(SCORE):
        connection.send(bytes([byte]))
        await connection.writer.drain()
        await asyncio.sleep(0)
    assert (await connection.answer())[0] == 200


async def test_who_goes_away_is_forgotten(host: Host) -> None:
    connection = await host.connect()
    connection.send(post(SCORE, b"busy"))
    await connection.answer()
    connection.send(post(SLOW, b"slow"))
    await eventually(lambda: host.service.num_waiting == 1)
    connection.close()
    await gone(host)
    assert not host.endpoint.connections


async def test_a_refused_request_that_waits_is_answered_before_the_connection_closes(host: Host) -> None:
    connection = await host.connect()
    connection.send(post(SCORE, b"busy"))
    await connection.answer()
    (protocol,) = host.endpoint.connections
    protocol.data_received(post(SCORE))
    host.endpoint.begin_close()
    assert not protocol.idle
    assert host.endpoint.num_waiting == 1
    host.endpoint.close_idle()
    status, headers, _ = await connection.answer()
    assert (status, headers["connection"]) == (200, "close")
    assert await connection.closed()


class Heard:
    """A latecomer that listens."""

    def __init__(self, log: list[tuple[str, bytes]], name: str) -> None:
        self.log, self.name = log, name
        self.is_paused = False

    def take_low_priority(self, data: bytes) -> None:
        """Note it."""
        self.log.append((self.name, data))

    def pause_reading(self) -> None:
        """Note it."""
        self.is_paused = True


async def test_two_are_read_in_each_turn_first_come_first_served() -> None:
    lane = LowPriorityReads()
    log: list[tuple[str, bytes]] = []
    who = [Heard(log, str(number)) for number in range(7)]
    for each in who:
        lane.hold(each, b"a")
    lane.hold(who[5], b"b")
    assert [each.name for each in who if each.is_paused] == ["5"]
    lane.leave(who[0])
    assert [each in lane for each in who] == [False] + [True] * 6
    turns = []
    while len(log) < 6:
        await asyncio.sleep(0)
        turns.append(len(log))
    assert turns == [2, 4, 6]
    assert log == [(str(number), b"ab" if number == 5 else b"a") for number in range(1, 7)]
    assert not any(each in lane for each in who)


async def test_requests_of_others_go_first_for_three_turns() -> None:
    pressed = True
    lane = LowPriorityReads(lambda: pressed)
    log: list[tuple[str, bytes]] = []
    for number in range(4):
        lane.hold(Heard(log, str(number)), b"a")
    turns = []
    while len(log) < 4:
        await asyncio.sleep(0)
        turns.append(len(log))
    assert turns == [0, 0, 0, 2, 2, 2, 2, 4]
    pressed = False
    lane.hold(Heard(log, "4"), b"a")
    await asyncio.sleep(0)
    assert len(log) == 5


async def test_who_leaves_while_waiting_alone_does_not_double_the_pace() -> None:
    lane = LowPriorityReads()
    log: list[tuple[str, bytes]] = []
    gone = Heard(log, "gone")
    lane.hold(gone, b"a")
    lane.leave(gone)
    for number in range(4):
        lane.hold(Heard(log, str(number)), b"a")
    turns = []
    while len(log) < 4:
        await asyncio.sleep(0)
        turns.append(len(log))
    assert turns == [2, 4]


async def test_whose_last_request_was_refused_is_read_after_one_that_came_later(host: Host) -> None:
    refused, good = await host.connect(), await host.connect()
    refused.send(post(SCORE, b"busy"))
    assert (await refused.answer())[0] == 503
    seen = order_of(host)
    refused.send(post(SCORE, b"busy"))
    good.send(post(SCORE))
    assert (await good.answer())[0] == 200
    assert (await refused.answer())[0] == 503
    assert seen == [b"/v1/models/sage/score", b"/v1/models/busy/score"]


async def test_a_flood_is_refused_unread_unless_it_may_name_a_version() -> None:
    service = Limited(load_config())
    await service.start()
    app = HttpApp(service, load_config())

    def asked(path: bytes, body: bytes) -> int:
        answer = app(Request(b"POST", path, {}, body))
        return answer.status if isinstance(answer, Response) else 200

    assert asked(b"/v1/models/sage/score", SCORE) == 429
    assert asked(b"/v1/models/sage/score", b"{no JSON") == 429
    assert asked(b"/v1/models/people/score", b"{no JSON") == 400
    assert asked(b"/v1/models/sage/versions/1/score", SCORE) == 200
    assert asked(b"/v1/models/sage/score", b'{"nodes":[1],"version":"1"}') == 200
    assert asked(b"/v1/models/sage/score", b'{"nodes":[1],"\\u0076ersion":"1"}') == 200
    assert asked(b"/v2/models/sage/infer", b"{no JSON") == 429
    assert asked(b"/v2/models/people/infer", b"{no JSON") == 400
    assert asked(b"/v2/models/sage/versions/1/infer", b"{no JSON") == 400
