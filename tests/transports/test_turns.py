"""One connection's burst is read in turns, and others are answered in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from hopline.config.reader import load_config
from hopline.transports.grpc import HEALTH, INFERENCE, GrpcApp
from hopline.transports.proto import message
from hopline.types import Deliver, ScoreRequest, Ticket
from tests.fake_service import FakeService
from tests.transports import http_rig
from tests.transports.grpc_rig import endpoint_of
from tests.transports.http2_rig import Client, Served, Transport
from tests.transports.test_grpc_call import framed, infer_request
from turnserve.turns import LONG_READ_BYTES, MOST_READS, TURN_S, Turns


class Clock:
    """Each look at it costs a tenth of a turn."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += TURN_S / 10
        return self.now


class Counting(FakeService):
    """Counts the requests that it gets."""

    num_requests = 0

    def submit(self, request: ScoreRequest, deliver: Deliver) -> Ticket:
        self.num_requests += 1
        return super().submit(request, deliver)


def over(app: GrpcApp) -> Served:
    served = Served()
    served.endpoint = endpoint_of(app, turns=Turns(Clock()))
    return served


def send(client: Client) -> None:
    """What a client has to say, in one write."""
    client.server.data_received(client.h2.data_to_send())


def num_answered(client: Client) -> int:
    return client.transport.written.count(b"grpc-status")


async def turns_until(condition: Callable[[], object]) -> int:
    """Turns of the loop until something is so."""
    for number in range(20_000):
        if condition():
            return number
        await asyncio.sleep(0)
    raise AssertionError("it never is so")


async def test_a_burst_of_calls_is_read_in_turns_and_others_go_first() -> None:
    served = Served(turns=Turns(Clock()))
    greedy, other = Client(served), Client(served)
    numbers = [greedy.call("/t/Echo", b"%d" % number) for number in range(200)]
    send(greedy)
    assert not greedy.transport.is_reading  # the rest waits, and no more comes
    assert num_answered(greedy) < 10
    assert other.ask("/t/Echo", b"other").messages == [b"other"]
    await turns_until(lambda: greedy.transport.is_reading)
    greedy.exchange()
    assert [greedy.answers[number].messages for number in numbers] == [[b"%d" % n] for n in range(200)]


class Sender:
    """Sends without end: whatever it may, it sends at once."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.num_reads = 0

    def go_on(self) -> None:
        self.num_reads += 1
        self.turns.wait(self, to_be_read=True)


async def test_a_few_of_many_who_send_much_are_read_in_a_turn_and_each_as_often() -> None:
    turns = Turns(lambda: 0.0)
    senders = [Sender(turns) for _ in range(3 * MOST_READS)]
    for sender in senders:
        turns.wait(sender, to_be_read=True)
    for number in range(1, 10):
        await asyncio.sleep(0)
        assert sum(sender.num_reads for sender in senders) == number * MOST_READS
    assert {sender.num_reads for sender in senders} == {3}


async def test_large_memory_is_given_back_in_turns() -> None:
    clock = Clock()
    turns = Turns(clock)

    class Large:
        def __del__(self) -> None:
            clock.now += TURN_S
            gone.append(None)

    gone: list[None] = []
    for _ in range(3):
        turns.drop(Large())
    for number in range(1, 4):
        assert len(gone) == number - 1
        await asyncio.sleep(0)
    assert len(gone) == 3


async def test_a_connection_that_sends_a_large_message_is_read_once_in_a_turn() -> None:
    served = Served(turns=Turns(lambda: 0.0), max_message_bytes=1 << 20)
    client, other = Client(served), Client(served)
    client.call("/t/Later", bytes(600_000))
    sent = client.h2.data_to_send()
    for start in range(0, len(sent), 100_000):
        assert client.transport.is_reading
        client.server.data_received(sent[start : start + 100_000])
        is_whole = start + 100_000 >= len(sent)
        assert client.transport.is_reading == is_whole
        assert other.ask("/t/Echo", b"other").messages == [b"other"]
        await asyncio.sleep(0)
    assert len(served.waiting[0][1]) == 600_000


async def test_connections_with_bursts_take_turns() -> None:
    served = Served(turns=Turns(Clock()))
    clients = [Client(served) for _ in range(5)]
    for client in clients:
        for _ in range(100):
            client.call("/t/Echo", b"x")
        send(client)
    for _ in range(5):
        await asyncio.sleep(0)
    counts = [num_answered(client) for client in clients]
    assert max(counts) < 30
    assert min(counts) > 3
    await turns_until(lambda: all(client.transport.is_reading for client in clients))
    assert not any(client.server in served.endpoint.turns for client in clients)


async def test_what_comes_while_a_rest_waits_is_read_behind_it() -> None:
    served = Served(turns=Turns(Clock()))
    client = Client(served)
    first = [client.call("/t/Echo", b"1") for _ in range(50)]
    send(client)
    second = client.call("/t/Echo", b"2")
    send(client)  # an encrypted transport may hand out more
    await turns_until(lambda: client.transport.is_reading)
    client.exchange()
    assert all(client.answers[number].messages == [b"1"] for number in first)
    assert client.answers[second].messages == [b"2"]


async def test_a_client_that_does_not_read_has_no_turns() -> None:
    served = Served(turns=Turns(Clock()))
    client = Client(served)
    for _ in range(50):
        client.call("/t/Echo", b"1")
    send(client)
    client.server.pause_writing()
    written = len(client.transport.written)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(client.transport.written) == written
    client.server.resume_writing()
    await turns_until(lambda: client.transport.is_reading)
    assert num_answered(client) == 50


@pytest.mark.parametrize("protocol", ["HTTP/1.1", "HTTP/2"])
async def test_what_a_refused_client_still_sends_is_dropped_in_turns(protocol: str) -> None:
    config = load_config(overrides={"server.max_body_bytes": 1000})
    host, served = http_rig.Host(config), Served(turns=Turns())
    transports = []
    for _ in range(MOST_READS + 2):
        if protocol == "HTTP/1.1":
            server: asyncio.Protocol = host.endpoint()
            transport = Transport()
            server.connection_made(cast(asyncio.Transport, transport))
            server.data_received(
                b"POST /v1/models/sage/score HTTP/1.1\r\nHost: a\r\nContent-Length: 9000\r\n\r\n"
            )
            assert b"413" in transport.written
        else:
            client = Client(served)
            server, transport = client.server, client.transport
            server.data_received(b"no preface")
        assert transport.at_eof
        server.data_received(b"x" * 1000)
        assert transport.is_reading
        server.data_received(b"x" * LONG_READ_BYTES)
        assert not transport.is_reading
        transports.append(transport)
    transports[0].abort()  # it is closed, and cannot be read again
    await asyncio.sleep(0)
    assert [each.is_reading for each in transports] == [False] + [True] * (MOST_READS - 1) + [False] * 2
    await turns_until(lambda: all(each.is_reading for each in transports[1:]))


@pytest.mark.parametrize("aborted", [False, True])
async def test_a_connection_that_ends_leaves_nothing_to_read(aborted: bool) -> None:
    served = Served(turns=Turns(Clock()))
    client = Client(served)
    for _ in range(50):
        client.call("/t/Later", b"1")
    send(client)
    if aborted:
        client.server.abort()
    client.server.connection_lost(None)
    assert client.server not in served.endpoint.turns
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(served.waiting) < 10


async def test_the_rest_of_a_burst_with_a_refusal_waits_in_the_lane_of_those() -> None:
    served = over(GrpcApp(FakeService(load_config())))
    client = Client(served)
    requests = [infer_request([1]) for _ in range(41)]
    requests[0].model_name = "busy"
    numbers = [client.call(f"/{INFERENCE}/ModelInfer", each.SerializeToString()) for each in requests]
    send(client)
    assert client.server in served.endpoint.lane
    await turns_until(lambda: client.transport.is_reading)
    client.exchange()
    assert [client.answers[number].status for number in numbers] == [8] + 40 * [0]


async def test_a_burst_of_health_checks_is_answered_in_turns() -> None:
    service = FakeService(load_config())
    await service.start()
    client = Client(over(GrpcApp(service)))
    numbers = [client.call(f"/{HEALTH}/Check", b"") for _ in range(99)]
    send(client)
    assert len(client.server._input.streams) < 10
    await turns_until(lambda: client.server.idle and client.transport.is_reading)
    client.exchange()
    assert all(client.answers[number].messages == [b"\x08\x01"] for number in numbers)


async def test_empty_messages_of_a_stream_wait_as_they_came() -> None:
    """One read with thousands of them: few are begun with, and others are answered before the rest."""
    served = over(GrpcApp(FakeService(load_config())))
    client, other = Client(served), Client(served)
    number = client.call(f"/{INFERENCE}/ModelStreamInfer", end=False)
    client.send(number, framed(b"") * 3_000)
    send(client)
    (stream,) = client.server._input.streams.values()
    assert 0 < client.transport.written.count(b"no model") < 12
    assert stream.num_arriving > 14_000
    assert other.ask(f"/{INFERENCE}/ModelInfer", infer_request([1]).SerializeToString()).status == 0
    client.h2.end_stream(number)
    await turns_until(lambda: client.exchange() or client.answers[number].ended)
    assert client.answers[number].status == 0
    assert len(client.answers[number].messages) == 3_000
    assert client.server.output.held.num_bytes == client.server.output.held.num_arriving == 0


async def test_answers_of_a_stream_come_in_order_however_its_turns_fall() -> None:
    service = Counting(load_config())
    client = Client(over(GrpcApp(service)))
    requests = [infer_request([n], id=str(n)).SerializeToString() for n in range(300)]
    number = client.call(f"/{INFERENCE}/ModelStreamInfer", *requests)
    send(client)
    assert 0 < service.num_requests < 20
    await turns_until(lambda: client.exchange() or client.answers[number].ended)
    kind = message("inference.ModelStreamInferResponse")
    answers = [kind.FromString(data).infer_response.id for data in client.answers[number].messages]
    assert answers == [str(n) for n in range(300)]


async def test_connections_that_reach_a_time_limit_together_are_ended_in_turns() -> None:
    """Ending one frees megabytes in the kernel: not those of all connections in one turn of the loop."""
    config = load_config(overrides={"server.read_timeout_s": "1"})
    async with http_rig.hosted(config) as host:
        endpoint = host.endpoint
        ended: list[int] = []
        connections = [endpoint() for _ in range(3 * MOST_READS)]
        for number, connection in enumerate(connections):
            transport = Transport()
            transport.abort = lambda number=number: ended.append(number)  # type: ignore[method-assign]
            connection.connection_made(transport)
            connection._outbox.pause(endpoint.now)
        endpoint.tick(endpoint.now + 100.0)
        assert ended == []
        for turn in range(1, 4):
            await asyncio.sleep(0)
            assert len(ended) == turn * MOST_READS
        for connection in connections:
            connection.connection_lost(None)
