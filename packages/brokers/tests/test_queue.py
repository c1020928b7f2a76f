"""Score requests through real brokers."""

import asyncio
import contextlib
import itertools
import os
import re
import signal
import time
from pathlib import Path

import msgspec
import pytest

from hopline.brokers.base import REPLY_TO, Outgoing
from hopline.brokers.registry import open_queue, open_sink, open_source
from hopline.config.reader import load_config
from hopline.errors import ConfigError
from hopline_brokers.queue_answers import ERROR, ORIGIN, REASON, REQUEST_ID
from hopline_brokers.queue_server import QueueServer
from hopline_brokers.testing.suite import collect, until
from packages.brokers.tests.servers import NatsServer, RedisServer, broker_server
from tests.fake_service import FakeService
from tests.servers import running

_numbers = itertools.count()


class Desk:
    """Sends requests to a topic and reads its results and dead letters."""

    def __init__(self, server):
        self.server = server
        number = next(_numbers)
        self.topics = {name: f"{name}-{number}" for name in ("requests", "results", "dead", "replies")}

    async def open(self):
        for topic in self.topics.values():
            await self.server.make(topic)
        self.sink = open_sink(self.server.address(self.topics["requests"]), "test")
        await self.sink.open()

    def settings(self, **more):
        return {
            "queues.requests": self.server.address(self.topics["requests"], **self.server.quick),
            "queues.results": self.topics["results"],
            "queues.dead_letters": self.topics["dead"],
            **{f"queues.{name}": value for name, value in more.items()},
        }

    async def send(self, *bodies, **headers):
        sent = [
            Outgoing(
                body if isinstance(body, bytes) else msgspec.json.encode(body),
                headers={name.replace("_", "-"): value for name, value in headers.items()}
                | ({} if "request_id" in headers else {REQUEST_ID: f"r{index}"}),
            )
            for index, body in enumerate(bodies)
        ]
        await self.sink.send(sent)

    async def read(self, topic, count, patience_s=30):
        source = open_source(self.server.address(self.topics[topic], group="desk"), "test")
        await source.open({})
        try:
            return await collect(source, count, patience_s=patience_s)
        finally:
            await source.close()


@contextlib.asynccontextmanager
async def desk_at(server):
    desk = Desk(server)
    await desk.open()
    try:
        yield desk
    finally:
        await desk.sink.close()


@contextlib.asynccontextmanager
async def answering(desk, service=None, **settings):
    config = load_config(overrides=desk.settings(**settings))
    service = service or FakeService(config)
    await service.start()
    queue = QueueServer(service, config)
    await queue.start()
    try:
        yield service
        assert await queue.drain(10)
    finally:
        await queue.close()


@pytest.mark.sample(1)
async def test_requests_are_answered_as_over_http(any_broker):
    """Each once, under its own id, to the topic that it names or to the common one."""
    async with desk_at(any_broker) as desk:
        await desk.send(
            *({"model": "sage", "nodes": [value], "outputs": ["embedding"]} for value in range(50))
        )
        await desk.send({"model": "sage", "nodes": [7]}, reply_to=desk.topics["replies"], request_id="mine")
        async with answering(desk, reply_prefix="replies-") as service:
            answers = await desk.read("results", 50)
            (reply,) = await desk.read("replies", 1)
        for message in answers:
            body = msgspec.json.decode(message.payload)
            assert body["outputs"]["embedding"][0][0] == int(message.headers[REQUEST_ID][1:])
        assert sorted(message.headers[REQUEST_ID] for message in answers) == sorted(
            f"r{i}" for i in range(50)
        )
        assert reply.headers[REQUEST_ID] == "mine"
        assert msgspec.json.decode(reply.payload)["outputs"]["label"] == [1]
        assert 'hopline_broker_requests_total{outcome="ok"} 51' in service.metrics.render().decode()


@pytest.mark.sample(1)
async def test_what_is_no_request_is_put_aside_with_the_reason_and_reported(any_broker):
    async with desk_at(any_broker) as desk:
        bad = [
            b"not json",
            b"",
            b"\xff\xfe",
            b"[" * 10_000,
            b'{"nodes":[1]}',
            b'{"model":"sage","nods":[1]}',
            b'{"model":"sage","nodes":[1.5]}',
            b'{"model":"sage","nodes":[1],"timeout_ms":-1}',
            b'{"model":"sage","nodes":[1],"outputs":["nothing"]}',
        ]
        await desk.send(*bad)
        await desk.send({"model": "sage", "nodes": [1]}, request_id="good")
        async with answering(desk):
            dead = await desk.read("dead", len(bad))
            answers = await desk.read("results", len(bad) + 1)
        assert sorted(message.payload for message in dead) == sorted(bad)
        assert all(message.headers[REASON] and message.headers[ORIGIN] for message in dead)
        reasons = {message.payload: message.headers[REASON] for message in dead}
        assert "the message is empty" in reasons[b""]
        assert "model" in reasons[b'{"nodes":[1]}']
        assert "unknown field" in reasons[b'{"model":"sage","nods":[1]}']
        errors = [message for message in answers if ERROR in message.headers]
        assert {message.headers[ERROR] for message in errors} == {"bad_request"}
        assert len(answers) - len(errors) == 1


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"model": "sage", "nodes": [-5]}, "node_not_found"),
        ({"model": "nobody", "nodes": [1]}, "model_not_found"),
        ({"model": "broken", "nodes": [1]}, "internal"),
        ({"model": "slow", "nodes": [1], "as_of": 5000, "timeout_ms": 30}, "deadline_exceeded"),
        ({"model": "loading", "nodes": [1], "timeout_ms": 200}, "model_not_ready"),
        ({"model": "busy", "nodes": [1], "timeout_ms": 200}, "overloaded"),
    ],
)
async def test_a_request_that_fails_is_answered_with_the_error(redis, body, code):
    """It is no dead letter: it was a request."""
    async with desk_at(redis) as desk:
        await desk.send(body)
        async with answering(desk):
            (answer,) = await desk.read("results", 1)
        assert answer.headers[ERROR] == code
        error = msgspec.json.decode(answer.payload)["error"]
        assert error["code"] == code
        assert "secret" not in error["message"]


async def test_a_server_that_cannot_take_a_request_now_tries_again(redis):
    class Busy(FakeService):
        refusals = 3

        async def score(self, request):
            if self.refusals:
                self.refusals -= 1
                request = msgspec.structs.replace(request, model="busy")
            return await super().score(request)

    async with desk_at(redis) as desk:
        await desk.send({"model": "sage", "nodes": [3]})
        async with answering(desk, Busy(load_config())) as service:
            (answer,) = await desk.read("results", 1)
        assert ERROR not in answer.headers
        assert "hopline_broker_retries_total 3" in service.metrics.render().decode()


async def test_a_retry_that_wakes_after_the_deadline_is_answered_with_why_it_waited(redis):
    class BusyLoop(FakeService):
        async def score(self, request):
            asyncio.get_running_loop().call_later(0.005, time.sleep, 0.4)
            return await super().score(request)

    async with desk_at(redis) as desk:
        await desk.send({"model": "busy", "nodes": [3], "timeout_ms": 300})
        async with answering(desk, BusyLoop(load_config())):
            (answer,) = await desk.read("results", 1)
        assert answer.headers[ERROR] == "overloaded"


async def test_a_message_that_was_delivered_too_often_is_put_aside(redis):
    """It may be what kills those who read it."""
    async with desk_at(redis) as desk:
        await desk.send({"model": "sage", "nodes": [3]})
        for _ in range(2):
            reader = open_queue(desk.settings()["queues.requests"], "test")
            await reader.open()
            await collect(reader, 1)
            await reader.close()
        async with answering(desk, max_deliveries=2):
            (dead,) = await desk.read("dead", 1)
        assert dead.headers[REASON] == "it was delivered 3 times and never settled"


@pytest.mark.sample(1)
async def test_a_message_in_work_is_not_given_to_another_reader(any_broker):
    """However long its reader works on it: here longer than `claim_after_s` and `ack_wait_s`."""
    async with desk_at(any_broker) as desk:
        await desk.send(*({"model": "slow", "nodes": [value], "as_of": 2500} for value in range(6)))
        async with answering(desk, max_deliveries=1) as first, answering(desk, max_deliveries=1) as second:
            answers = await desk.read("results", 6)
            with pytest.raises(AssertionError, match="6 of 7"):
                await desk.read("results", 7, patience_s=3)
        assert sorted(message.headers[REQUEST_ID] for message in answers) == [f"r{n}" for n in range(6)]
        settled = "".join(service.metrics.render().decode() for service in (first, second))
        assert sum(map(int, re.findall(r'requests_total{outcome="ok"} (\d+)', settled))) == 6
        assert "dead_letter" not in settled


async def test_no_more_requests_are_under_way_than_allowed(redis):
    class Counting(FakeService):
        most = now = 0

        async def score(self, request):
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0.01)
            self.now -= 1
            return await super().score(request)

    async with desk_at(redis) as desk:
        await desk.send(*({"model": "sage", "nodes": [value]} for value in range(40)))
        async with answering(desk, Counting(load_config()), concurrency=4) as service:
            assert len(await desk.read("results", 40)) == 40
        assert service.most == 4


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("prefix", "reply_to", "said"),
    [
        ("", "replies", "queues.reply_prefix is not set"),
        ("answers-", "replies", "begin with 'answers-'"),
        ("replies-", "replies-1 5\r\nPUB secrets 5", "is an invalid topic"),
        ("replies-", "replies->", "is an invalid topic"),
        ("replies-", "replies-" + "x" * 250, "is an invalid topic"),
    ],
)
async def test_replies_go_only_where_they_may(any_broker, prefix, reply_to, said):
    """Without a prefix nowhere: a sender would choose among all topics that the server may write to."""
    async with desk_at(any_broker) as desk:
        reply_to = desk.topics.get(reply_to, reply_to)
        await desk.send({"model": "sage", "nodes": [1]}, **{REPLY_TO: reply_to})
        async with answering(desk, reply_prefix=prefix):
            (answer,) = await desk.read("results", 1)
            (dead,) = await desk.read("dead", 1)
        assert answer.headers[ERROR] == "bad_request"
        assert said in dead.headers[REASON]


async def test_a_message_that_is_too_large_is_put_aside(redis):
    async with desk_at(redis) as desk:
        await desk.send({"model": "sage", "nodes": [1] * 100_000})
        config = load_config(overrides=desk.settings() | {"server.max_body_bytes": 100_000})
        queue = QueueServer(FakeService(config), config)
        await queue.start()
        (dead,) = await desk.read("dead", 1)
        assert await queue.drain(10)
        await queue.close()
        assert "the limit is 100000" in dead.headers[REASON]


async def test_a_large_request_is_answered_and_its_long_id_is_none(redis):
    async with desk_at(redis) as desk:
        body = b'{"model": "sage", "nodes": [3]}' + b" " * 100_000
        await desk.send(body, request_id="x" * 10_000)
        async with answering(desk):
            (answer,) = await desk.read("results", 1)
        assert answer.headers[REQUEST_ID].startswith("redis/requests-")
        assert ERROR not in answer.headers


@pytest.mark.sample(2)
@pytest.mark.parametrize("own", ["\udcff\udcfe", "a\nb", "\x1b[31m", "a\u2028b"])
async def test_an_id_that_no_log_could_take_is_none(redis, own):
    """Bytes that are no text kept all lines of a batch out of the logs."""
    async with desk_at(redis) as desk:
        await desk.send({"model": "sage", "nodes": [3]}, request_id=own)
        async with answering(desk):
            (answer,) = await desk.read("results", 1)
        assert answer.headers[REQUEST_ID].startswith("redis/requests-")
        assert ERROR not in answer.headers


async def test_an_answer_that_the_broker_refuses_holds_nothing_up(redis):
    """The stream of the answer is something else: the request becomes a dead letter."""
    async with desk_at(redis) as desk:
        other = open_sink(redis.address("x"), "test")
        await other.open()
        await other._connection.call("SET", desk.topics["replies"], "not a stream")
        await desk.send({"model": "sage", "nodes": [1]}, reply_to=desk.topics["replies"])
        await desk.send({"model": "sage", "nodes": [2]})
        async with answering(desk, reply_prefix="replies-"):
            answers = await desk.read("results", 1)
            (dead,) = await desk.read("dead", 1)
        assert msgspec.json.decode(answers[0].payload)["outputs"]["label"] == [0]
        assert "WRONGTYPE" in dead.headers[REASON]
        await other.close()


@pytest.mark.sample(1)
async def test_an_answer_that_cannot_be_written_repeats_no_other(any_broker):
    """A topic that is none, or that no text has: each of the other requests is answered once."""
    async with desk_at(any_broker) as desk:
        for number in range(40):
            await desk.send({"model": "sage", "nodes": [number]}, request_id=f"r{number}")
            if number % 10 == 5:
                await desk.send(
                    {"model": "sage", "nodes": [1]}, reply_to="replies-/none..", request_id="bad"
                )
        await desk.send({"model": "sage", "nodes": [1]}, reply_to="replies-\udcff", request_id="bytes")
        if any_broker.scheme == "redis":
            other = open_sink(any_broker.address("x"), "test")
            await other.open()
            await other._connection.call("SET", "replies-/none..", "not a stream")
            await other.close()
        async with answering(desk, reply_prefix="replies-"):
            answers = await desk.read("results", 41)
        ids = sorted(message.headers[REQUEST_ID] for message in answers)
        assert ids == sorted(["bytes", *(f"r{number}" for number in range(40))])
        dead = await desk.read("dead", 5 if any_broker.scheme != "kafka" else 1)
        assert all(message.headers[REQUEST_ID] in ("bad", "bytes") for message in dead)


@pytest.fixture(scope="module")
def nats_broker():
    with broker_server(NatsServer) as server:
        yield server


@pytest.mark.sample(1)
@pytest.mark.parametrize("said", [None, b"thank you", b"{}"])
async def test_a_reply_to_that_no_stream_stores_holds_nothing_up(nats_broker, said):
    """An ordinary subscriber receives the answer, and says nothing, or something of its own."""
    import nats

    client = await nats.connect(f"nats://127.0.0.1:{nats_broker.port}")

    async def take(message):
        if said is not None:
            await message.respond(said)

    await client.subscribe("replies-core", cb=take)
    await client.flush()
    async with desk_at(nats_broker) as desk:
        address = nats_broker.address(desk.topics["requests"], ack_wait_s=30, timeout_s=0.3)
        await desk.send({"model": "sage", "nodes": [1]}, reply_to="replies-core", request_id="core")
        await desk.send(*({"model": "sage", "nodes": [number]} for number in range(20)))
        async with answering(desk, requests=address, reply_prefix="replies-", retry_s=0.2, concurrency=4):
            assert len(await desk.read("results", 20)) == 20
            (dead,) = await desk.read("dead", 1)
        assert dead.headers[REQUEST_ID] == "core"
        assert ("no answer in time" if said is None else "in place of a stream") in dead.headers[REASON]
    await client.close()


async def _publish(server, subject, headers, payload):
    """Publish what no client would."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n')
    sizes = len(headers), len(headers) + len(payload)
    writer.write(b"HPUB %s %d %d\r\n" % (subject.encode(), *sizes) + headers + payload + b"\r\nPING\r\n")
    while b"PONG" not in await reader.readline():
        pass
    writer.close()
    await writer.wait_closed()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "headers", [b"\r\n", b"NATS/1.0 \xff\r\n\r\n", b"NATS/1.0\r\n\xff\xfe: \xff\r\n\r\n"]
)
async def test_headers_that_are_none_keep_no_message_back(nats_broker, headers):
    """The driver could not read them, lost its connection and got the same message again, without end."""
    payload = b"not json"
    async with desk_at(nats_broker) as desk:
        await _publish(nats_broker, desk.topics["requests"], headers, payload)
        await desk.send(*({"model": "sage", "nodes": [number]} for number in range(10)))
        async with answering(desk):
            assert len(await desk.read("results", 11)) == 11
            (dead,) = await desk.read("dead", 1)
        assert dead.payload == payload


async def test_a_dead_letter_repeats_no_order_to_the_broker(nats_broker):
    """A caller can quote the names of NATS's own headers, such as the one that empties a stream."""
    async with desk_at(nats_broker) as desk:
        quoted = b"hopline-quoted: 1\r\nNats%2DMsg%2DId: same\r\nnats%2DRollup: all\r\nx: y"
        for _ in range(2):
            await _publish(
                nats_broker, desk.topics["requests"], b"NATS/1.0\r\n%s\r\n\r\n" % quoted, b"not json"
            )
        async with answering(desk):
            dead = await desk.read("dead", 2)
        assert [{name for name in message.headers if name[0] in "Nnx"} for message in dead] == [{"x"}] * 2


async def test_drain_finishes_what_was_read_and_leaves_the_rest(redis):
    async with desk_at(redis) as desk:
        await desk.send(*({"model": "slow", "nodes": [value], "as_of": 300} for value in range(20)))
        async with answering(desk, concurrency=8):
            await asyncio.sleep(0.15)
        answered = len(await desk.read("results", 8))
        assert answered < 20
        async with answering(desk):
            answers = await desk.read("results", 20)
        assert len(answers) == 20
        assert len({message.headers[REQUEST_ID] for message in answers}) == 20


async def test_a_broker_that_is_away_holds_answers_until_it_is_back():
    with broker_server(RedisServer) as server:
        async with desk_at(server) as desk:
            await desk.send(*({"model": "slow", "nodes": [value], "as_of": 200} for value in range(10)))
            async with answering(desk) as service:
                await until(lambda: service.num_waiting == 10)
                server.kill()
                await asyncio.sleep(0.5)
                assert "hopline_broker_down_seconds 0." in service.metrics.render().decode()
                server.start()
                answers = await desk.read("results", 10)
            assert {message.headers[REQUEST_ID] for message in answers} == {f"r{i}" for i in range(10)}


@pytest.mark.release
def test_two_workers_answer_every_request_though_one_is_killed(redis):
    """At least once; with the same answer, however often."""

    async def main():
        async with desk_at(redis) as desk:
            settings = {name.replace(".", "__"): value for name, value in desk.settings().items()}
            answers = open_source(redis.address(desk.topics["results"]), "test")
            await answers.open({})
            with running(server__workers=2, **settings) as server:
                for number in range(1000):
                    body = {"model": "slow", "nodes": [number], "as_of": 20, "outputs": ["embedding"]}
                    await desk.send(body, request_id=f"r{number}")
                    if number in (300, 600):
                        os.kill(_children(server.process.pid)[0], signal.SIGKILL)
                given = {}
                end = time.monotonic() + 40
                while len(given) < 1000:
                    assert time.monotonic() < end, len(given)
                    for message in await answers.poll(500, 0.5):
                        (row,) = msgspec.json.decode(message.payload)["outputs"]["embedding"]
                        given[message.headers[REQUEST_ID]] = row[0]
            await answers.close()
        assert given == {f"r{number}": number for number in range(1000)}

    asyncio.run(main())


def _children(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://host/x", "is not the address of a broker"),
        ("redis://host:6379/0", "needs the option stream"),
        ("kafka://host:9092/a?enable.auto.commit=true", "set by Hopline"),
    ],
)
def test_an_address_that_cannot_be_used_is_a_bad_setting(address, said):
    config = load_config(overrides={"queues.requests": address})
    with pytest.raises(ConfigError, match=rf"^queues\.requests: .*{said}"):
        QueueServer(FakeService(config), config)
