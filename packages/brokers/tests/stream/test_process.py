"""`hopline stream` as a process, with real brokers and a real writer: killed, stopped, told to end."""

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import sys
import time
from pathlib import Path

import httpx
import pytest

from hopline.brokers.base import Outgoing
from hopline.brokers.registry import open_sink, open_source
from hopline.errors import BrokerUnavailable
from hopline.graph.live import segment
from packages.brokers.tests.servers import KafkaServer, NatsServer, RedisServer, broker_server
from tests.graph.live.keepers import NUM_NODES, Kept, base_graph, numbers_in

NUM_EVENTS = 400
#: Events of which this is the number are none.
BAD = frozenset(range(7, NUM_EVENTS, 40))


def payload(number, **more):
    """Event `number` adds an edge of that time; some are bad."""
    src = "nobody" if number in BAD else number % NUM_NODES
    dst = number // NUM_NODES % NUM_NODES
    return json.dumps({"op": "add_edge", "src": src, "dst": dst, "time": number, **more}).encode()


class Process:
    """One life of the command."""

    def __init__(self, process):
        self.process = process

    @classmethod
    async def start(cls, folder, server, *more):
        words = ["stream", "--graph", folder / "graph", "--from", server.address("edges")]
        words += ["--dead-letters", server.address("dead"), "--set", "live.spare_edges=100000", *more]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "hopline.cli",
            *map(str, words),
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
        )
        return cls(process)

    def kill_writer(self):
        """kill -9 of the writer that it started."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert children
        for child in children:
            os.kill(int(child), signal.SIGKILL)

    async def end(self, number=None):
        """Exit code and log."""
        if number is not None and self.process.returncode is None:
            self.process.send_signal(number)
        _, log = await self.process.communicate()
        return self.process.returncode, log.decode()

    async def applies_more(self, log):
        """Wait until the log in this folder has more records."""
        before = num_records(log)
        while num_records(log) == before:
            assert self.process.returncode is None, await self.end()
            await asyncio.sleep(0.01)


def num_records(log):
    """Records in all files of a live log; one that is being written does not count."""
    found = 0
    for _, path in segment.list_segments(log) if log.exists() else ():
        with contextlib.suppress(FileNotFoundError):  # deleted since: a snapshot has its events
            found += sum(1 for _ in segment.read_records(path, segment.read_header(path)))
    return found


async def publish(server, topic, payloads, chunk=25, pause_s=0.0):
    sink = open_sink(server.address(topic), "test")
    await sink.open()
    for begin in range(0, len(payloads), chunk):
        messages = [Outgoing(each) for each in payloads[begin : begin + chunk]]
        while not await is_sent(sink, messages, server.keeps):  # noqa: ASYNC110 - the broker is away
            await asyncio.sleep(0.1)
        await asyncio.sleep(pause_s)
    await sink.close()


async def is_sent(sink, messages, may_be_away):
    try:
        await sink.send(messages)
    except BrokerUnavailable:
        if not may_be_away:
            raise
        return False
    return True


async def read_all(server, topic):
    """All messages that the broker has."""
    source = open_source(server.address(topic), "test")
    await source.open({})
    found, lags = [], {}
    while not lags or any(lags.values()):
        found += await source.poll(1000, 0.5)
        lags = await source.lag()
    await source.close()
    return found


def edges(folder: Path):
    """Numbers of the events whose edges the live graph has, and where sources stand."""
    kept = Kept(folder / "graph.live", base_graph(), verify=False)
    kept.keeper.recover()
    with kept.keeper._view() as view:
        found = numbers_in(view.snapshot())
    positions = kept.keeper.positions
    kept.keeper.close()
    return found, positions


@pytest.fixture(params=[RedisServer, NatsServer, KafkaServer], ids=["redis", "nats", "kafka"])
def server(request):
    with broker_server(request.param) as found:
        yield found


@pytest.fixture
def folder(tmp_path):
    base_graph().save(tmp_path / "graph")
    return tmp_path


@pytest.mark.sample(1)
async def test_killed_at_any_moment_it_loses_no_event_and_applies_none_twice(server, folder):
    await server.make("edges")
    await server.make("dead")
    dice = random.Random(3)
    # The mock of Kafka keeps nothing, so that only the others are killed as well. What a dying broker took
    # and did not confirm is sent twice: its events have ids, the others are known by where they are.
    events = [payload(i, **({"id": f"e-{i}"} if server.keeps else {})) for i in range(NUM_EVENTS)]
    share = NUM_EVENTS // 5
    for life in range(4):
        process = await Process.start(folder, server, "--max-batch", 7)
        now = events[life * share : (life + 1) * share]
        publishing = asyncio.create_task(publish(server, "edges", now, chunk=4, pause_s=0.05))
        await process.applies_more(folder / "graph.live" / "log")
        await asyncio.sleep(0.6 * dice.random())
        if life == 1:
            process.kill_writer()
            await asyncio.sleep(1.0)
        if life == 2 and server.keeps:
            server.kill()
            await asyncio.sleep(0.3)
            server.start()
        code, log = await process.end(signal.SIGKILL)
        assert code == -signal.SIGKILL, log
        await publishing
    await publish(server, "edges", events[4 * share :])
    code, log = await (await Process.start(folder, server, "--once")).end()
    assert code == 0, log
    found, positions = edges(folder)
    assert found == sorted(set(range(NUM_EVENTS)) - BAD)
    letters = await read_all(server, "dead")
    assert {json.loads(each.payload)["time"] for each in letters} == BAD
    assert {each.headers["hopline-code"] for each in letters} <= {"bad_id", "rejected"}
    assert all(name.startswith((server.scheme, "hopline/")) for name in positions)


async def test_it_says_how_it_goes_and_ends_in_order(folder):
    with broker_server(RedisServer) as server:
        process = await Process.start(folder, server, "--metrics-port", 0)
        log = ""
        while "metrics at" not in log:
            log += (await process.process.stderr.readline()).decode()
        url = re.search(r"http://\S+/metrics", log)[0]
        now_ms = int(1000 * time.time())
        events = [
            json.dumps({"op": "add_edge", "src": 1, "dst": 2, "time": 5, "id": "a", "at": now_ms}).encode()
        ]
        await publish(server, "edges", [*events, *events, payload(7), payload(8)])
        async with httpx.AsyncClient() as client:
            for _ in range(200):
                page = (await client.get(url)).text
                if 'outcome="bad_id"} 1' in page:
                    break
                await asyncio.sleep(0.1)
            assert 'hopline_stream_events_total{outcome="applied"} 2' in page
            assert 'hopline_stream_events_total{outcome="duplicate"} 1' in page
            assert "hopline_stream_freshness_seconds_count 2" in page
            assert (await client.get(url.replace("/metrics", "/healthz"))).text == "ok\n"
            assert (await client.get(url.replace("/metrics", "/x"))).status_code == 404
            assert (await client.post(url)).status_code == 405
        code, rest = await process.end(signal.SIGTERM)
        assert code == 0, log + rest
        assert "2 applied, 1 duplicates, 1 dead letters" in rest
        found, _ = edges(folder)
        assert found == [5, 8]


@pytest.mark.release
async def test_it_stops_with_3_at_an_event_of_the_chosen_kind(folder):
    with broker_server(RedisServer) as server:
        events = [payload(1), json.dumps({"op": "set_features", "node": 1, "features": [1.0]}).encode()]
        await publish(server, "edges", [*events, payload(2)])
        for _ in range(2):
            process = await Process.start(folder, server, "--on-schema-change", "stop")
            code, log = await process.end()
            assert code == 3, log
            assert "features of 1 numbers; the graph has 4" in log
            assert edges(folder)[0] == [1]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--rescore", "often"], "request, immediate or schedule:SECONDS"),
        (["--rescore", "immediate"], "needs --model, --results"),
        (["--results", "redis://h/0?stream=r"], "scores nothing"),
        (["--from", "amqp://h/q"], "not the address of a broker"),
        (["--dead-letters", "/no/such/folder/letters"], "cannot be written"),
    ],
)
async def test_what_cannot_be_is_said_at_once(folder, words, reason):
    with broker_server(RedisServer) as server:
        code, log = await (await Process.start(folder, server, *words)).end()
    assert code == 1
    assert reason in log
