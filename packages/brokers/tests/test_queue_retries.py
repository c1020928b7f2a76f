"""Messages that are retried, among messages that can be answered, through real brokers."""

import asyncio

import msgspec
import pytest

from hopline.brokers.registry import open_queue
from hopline.config.reader import load_config
from hopline.errors import GraphBehind, ModelNotReady, RateLimited
from hopline_brokers.queue_answers import ERROR, REQUEST_ID
from hopline_brokers.queue_server import QueueServer
from hopline_brokers.testing.suite import collect, until
from packages.brokers.tests.test_queue import answering, desk_at
from tests.fake_service import FakeService


class Behind(FakeService):
    """Its graph has no version that a request asks for."""

    def check_version(self, request):
        if request.min_version:
            raise GraphBehind("this server has graph version a")


class Limited(FakeService):
    """Accepts nothing for model "people"; its rate is `per_s`."""

    per_s = 1.0

    async def score(self, request):
        if request.model == "people":
            raise RateLimited("this model takes few requests", per_s=self.per_s)
        return await super().score(request)


class Loading(FakeService):
    """Model "loading" is not ready until `is_ready`.

    `ids` are those of requests that were tried, `most` the number that ran at the same time.
    """

    def __init__(self, config):
        super().__init__(config)
        self.ids = set()
        self.is_ready = False
        self.now = self.most = 0

    async def score(self, request):
        self.ids.add(request.request_id)
        if request.model != "loading":
            return await super().score(request)
        if not self.is_ready:
            raise ModelNotReady("its weights are being read")
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.01)
        self.now -= 1
        return await super().score(msgspec.structs.replace(request, model="sage"))


def _loading(count):
    return ({"model": "loading", "nodes": [number]} for number in range(count))


async def _send_good(desk, count):
    for number in range(count):
        await desk.send({"model": "sage", "nodes": [number]}, request_id=f"good{number}")


def _good(count):
    return sorted(f"good{number}" for number in range(count))


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Loading, {"model": "loading", "nodes": [1]}),
        (Behind, {"model": "sage", "nodes": [1], "min_version": "b@1"}),
        (Limited, {"model": "people", "nodes": ["n1"]}),
    ],
    ids=["not_ready", "graph_behind", "rate_limited"],
)
async def test_messages_that_are_retried_hold_no_others_up(any_broker, kind, body):
    """They are twice as many as may be processed at the same time, and wait for a minute."""
    async with desk_at(any_broker) as desk:
        await desk.send(*([body] * 8))
        await _send_good(desk, 20)
        config = load_config()
        async with answering(desk, kind(config), concurrency=4, retry_s=60):
            answers = await desk.read("results", 20)
        assert sorted(message.headers[REQUEST_ID] for message in answers) == _good(20)


@pytest.mark.sample(1)
async def test_messages_that_wait_are_read_again_by_the_next_server(any_broker):
    """Those behind them are not, but those that were being settled, however the broker remembers that."""
    async with desk_at(any_broker) as desk:
        await desk.send(*_loading(8))
        await _send_good(desk, 20)
        service = Loading(load_config())
        async with answering(desk, service, concurrency=4, retry_s=60):
            await desk.read("results", 20)
        service = Loading(load_config())
        service.is_ready = True
        async with answering(desk, service, concurrency=4, retry_s=60):
            waiting = {f"r{number}" for number in range(8)}
            await until(lambda: waiting <= service.ids)
            repeated = service.ids - waiting
            ids = {
                message.headers[REQUEST_ID] for message in await desk.read("results", 28 + len(repeated))
            }
        assert len(ids) == 28 or any_broker.scheme == "kafka"  # Kafka has one position for all
        assert len(repeated) <= 4 or any_broker.scheme == "kafka"


async def test_a_server_that_refuses_everything_leaves_the_backlog_at_the_broker(redis):
    """Nothing of it is refused: 4 requests have a place, and 64 wait without one."""
    async with desk_at(redis) as desk:
        await desk.send(*_loading(200))
        service = Loading(load_config())
        async with answering(desk, service, concurrency=4, retry_s=60):
            await until(lambda: len(service.ids) == 68)
            reader = open_queue(desk.settings()["queues.requests"], "test")
            await reader.open()
            assert len(await collect(reader, 132)) == 132
            await reader.close()
            assert len(service.ids) == 68
            service.is_ready = True
            answers = await desk.read("results", 68)
        assert not any(ERROR in message.headers for message in answers)
        assert service.most <= 4


async def test_no_more_bytes_than_allowed_wait_without_a_place(redis, monkeypatch):
    monkeypatch.setattr("hopline_brokers.queue_server._WAITING_BYTES", 10_000)
    async with desk_at(redis) as desk:
        await desk.send(*(msgspec.json.encode(body) + b" " * 4_000 for body in _loading(20)))
        service = Loading(load_config())
        async with answering(desk, service, concurrency=4, retry_s=60):
            await until(lambda: len(service.ids) == 6)
            reader = open_queue(desk.settings()["queues.requests"], "test")
            await reader.open()
            assert len(await collect(reader, 14)) == 14
            await reader.close()
            service.is_ready = True
            assert len(await desk.read("results", 6)) == 6


async def test_a_version_that_is_missing_is_reported_immediately_where_too_many_wait_for_one(redis):
    """64 wait for theirs, for a minute."""
    async with desk_at(redis) as desk:
        await desk.send(*({"model": "sage", "nodes": [1], "min_version": f"b@{n}"} for n in range(300)))
        await _send_good(desk, 20)
        async with answering(desk, Behind(load_config()), concurrency=4, retry_s=60):
            answers = await desk.read("results", 256)
        good = [message for message in answers if ERROR not in message.headers]
        assert sorted(message.headers[REQUEST_ID] for message in good) == _good(20)
        assert {message.headers.get(ERROR, "graph_behind") for message in answers} == {"graph_behind"}


@pytest.mark.parametrize(("per_s", "waiting"), [(0.5, 30), (1.0, 60)])
async def test_what_its_rate_cannot_accept_in_time_is_refused_at_once(redis, per_s, waiting):
    async with desk_at(redis) as desk:
        await desk.send(*([{"model": "people", "nodes": ["n1"]}] * 200))
        service = Limited(load_config())
        service.per_s = per_s
        async with answering(desk, service, concurrency=4, retry_s=60):
            answers = await desk.read("results", 200 - waiting)
            assert f"hopline_broker_requests_waiting {waiting}" in service.metrics.render().decode()
        assert {message.headers[ERROR] for message in answers} == {"rate_limited"}


async def test_each_message_that_waits_for_its_rate_is_answered_in_its_turn(redis):
    class Turns(Limited):
        accepted = 0

        async def score(self, request):
            if request.model == "people":
                Turns.accepted += 1
                if Turns.accepted % 2:
                    raise RateLimited("this model takes few requests", per_s=100.0)
                request = msgspec.structs.replace(request, model="sage", nodes=[1])
            return await super().score(request)

    async with desk_at(redis) as desk:
        await desk.send(*([{"model": "people", "nodes": ["n1"]}] * 100))
        async with answering(desk, Turns(load_config()), concurrency=4, retry_s=60):
            answers = await desk.read("results", 100)
        assert not any(ERROR in message.headers for message in answers)
        assert len({message.headers[REQUEST_ID] for message in answers}) == 100


async def test_a_wait_that_is_ended_leaves_nothing_behind(redis):
    async with desk_at(redis) as desk:
        await desk.send(*_loading(8))
        config = load_config(overrides=desk.settings(concurrency=4, retry_s=60))
        service = Loading(config)
        queue = QueueServer(service, config)
        await queue.start()
        await until(lambda: len(service.ids) == 8)
        await queue.close()
        rendered = service.metrics.render().decode()
        assert "hopline_broker_requests_waiting 0" in rendered
        assert "hopline_broker_requests_open 0" in rendered
