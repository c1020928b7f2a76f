"""Conformance tests of brokers. Subclass, and define the fixture `server`, a running `BrokerServer`.

    class TestKafka(BrokerSuite):
        @pytest.fixture
        def server(self, kafka_server):
            return kafka_server

`BrokerFailureSuite` stops, kills and restarts its server.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from hopline.brokers.base import Message, Outgoing, Position, Queue, Sink, Source
from hopline.brokers.registry import open_queue, open_sink, open_source
from hopline.errors import BrokerError, BrokerUnavailable, ConfigError
from hopline_brokers.testing.servers import BrokerServer

_PATIENCE_S = 20.0
_numbers = itertools.count()

Values = Sequence[int]


def outgoing(values: Values) -> list[Outgoing]:
    """Numbers as messages with a few keys."""
    return [Outgoing(b"%d" % value, key=f"key-{value % 7}") for value in values]


def numbers(messages: Sequence[Message]) -> list[int]:
    """The numbers of messages."""
    return [int(message.payload) for message in messages]


def positions(messages: Sequence[Message]) -> dict[str, Position]:
    """Positions from which to resume after these messages."""
    return {message.partition: message.position for message in messages}


def check_order(messages: Sequence[Message]) -> None:
    """Check that numbers ascend within each partition and each key."""
    for name in ("partition", "key"):
        last: dict[str, int] = {}
        for message in messages:
            group, number = getattr(message, name), int(message.payload)
            assert last.get(group, -1) < number, f"{name} {group}: {number} after {last[group]}"
            last[group] = number


async def collect(
    source: Source | Queue, count: int, *, at_once: int = 500, patience_s: float = _PATIENCE_S
) -> list[Message]:
    """Poll until `count` messages have come, and check that no more come."""
    got: list[Message] = []
    end = time.monotonic() + patience_s
    while len(got) < count:
        assert time.monotonic() < end, f"{len(got)} of {count} messages received; {source.health()}"
        messages = await source.poll(at_once, 0.5)
        assert len(messages) <= at_once
        got += messages
    got += await source.poll(at_once, 0.05)
    return got


async def until(holds: Callable[[], Any], poll: Source | Queue | None = None) -> None:
    """Wait for a condition, polling meanwhile."""
    end = time.monotonic() + _PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        if poll is None:
            await asyncio.sleep(0.02)
        else:
            assert await poll.poll(10, 0.1) == []


class _Brokers:
    """Opens sources, queues and sinks of a test's own topic, and closes them."""

    def __init__(self, server: BrokerServer, topic: str) -> None:
        self.server = server
        self.topic = topic
        self.opened: list[Any] = []

    async def source(self, at: dict[str, Position] | None = None, **options: object) -> Source:
        source = open_source(self.server.address(self.topic, **{"group": "g", **options}), "test")
        self.opened.append(source)
        await source.open(at or {})
        return source

    async def queue(self, **options: object) -> Queue:
        options = {"group": "q", **self.server.quick, **options}
        queue = open_queue(self.server.address(self.topic, **options), "test")
        self.opened.append(queue)
        await queue.open()
        return queue

    async def sink(self, **options: object) -> Sink:
        sink = open_sink(self.server.address(self.topic, **options), "test")
        self.opened.append(sink)
        await sink.open()
        return sink

    async def send(self, values: Values) -> None:
        sink = await self.sink()
        await sink.send(outgoing(values))
        await self.close(sink)

    async def close(self, one: Any) -> None:
        self.opened.remove(one)
        await one.close()


class _Suite:
    pytestmark = pytest.mark.asyncio

    @pytest_asyncio.fixture
    async def brokers(self, server: BrokerServer) -> AsyncIterator[_Brokers]:
        """Readers and writers of the test's own topic."""
        topic = f"topic-{next(_numbers)}"
        await server.make(topic)
        brokers = _Brokers(server, topic)
        yield brokers
        for one in brokers.opened:
            await one.close()


class BrokerSuite(_Suite):
    """Conformance tests of a broker whose server works."""

    async def test_all_messages_come_in_order_and_once(self, brokers: _Brokers) -> None:
        """In batches of at most the requested size."""
        await brokers.send(range(3000))
        messages = await collect(await brokers.source(), 3000, at_once=100)
        check_order(messages)
        assert sorted(numbers(messages)) == list(range(3000))

    async def test_a_source_goes_on_from_any_position(self, brokers: _Brokers) -> None:
        """Only messages after the position come, whatever was acknowledged."""
        await brokers.send(range(400))
        source = await brokers.source()
        messages = await collect(source, 400)
        await source.acknowledge(positions(messages))
        await brokers.close(source)
        for cut in np.random.default_rng(0).integers(1, 400, 4).tolist():
            source = await brokers.source(positions(messages[:cut]))
            again = await collect(source, 400 - cut)
            check_order(again)
            assert sorted(numbers(again)) == sorted(numbers(messages[cut:]))
            await brokers.close(source)

    async def test_the_first_message_of_a_partition_is_recognised(self, brokers: _Brokers) -> None:
        """So a reader notices that earlier ones are gone."""
        await brokers.send(range(50))
        source = await brokers.source()
        messages = await collect(source, 50)
        seen: set[str] = set()
        for message in messages:
            assert source.is_first(message.position) == (message.partition not in seen)
            seen.add(message.partition)

    async def test_positions_of_other_topics_are_left_alone(self, brokers: _Brokers) -> None:
        """A reader stores the positions of all its sources together."""
        await brokers.send(range(3))
        source = await brokers.source({"other/topic/0": 17, "kafka/none/0": 3})
        assert sorted(numbers(await collect(source, 3))) == [0, 1, 2]

    async def test_positions_that_cannot_be_are_refused(self, brokers: _Brokers) -> None:
        """The error names the position."""
        await brokers.send([1])
        (message,) = await collect(await brokers.source(), 1)
        with pytest.raises(ConfigError, match=r"^test: position 'x y' of"):
            await brokers.source({message.partition: "x y"})

    async def test_without_a_position_nothing_is_skipped(self, brokers: _Brokers) -> None:
        """Even if all was acknowledged: the reader's own state decides."""
        await brokers.send(range(20))
        source = await brokers.source()
        await source.acknowledge(positions(await collect(source, 20)))
        await brokers.close(source)
        assert sorted(numbers(await collect(await brokers.source(), 20))) == list(range(20))

    async def test_latest_begins_at_the_next_new_message(self, brokers: _Brokers) -> None:
        """Older messages never come."""
        await brokers.send(range(5))
        source = await brokers.source(start="latest")
        await until(lambda: source.health().ok, source)
        assert await source.poll(10, 0.3) == []
        await brokers.send(range(5, 9))
        assert sorted(numbers(await collect(source, 4))) == [5, 6, 7, 8]

    async def test_new_messages_come_while_a_source_waits(self, brokers: _Brokers) -> None:
        """Long before the wait ends."""
        source = await brokers.source()
        await until(lambda: source.health().ok, source)
        waiting = asyncio.ensure_future(source.poll(10, 15))
        await asyncio.sleep(0.2)
        began = time.monotonic()
        await brokers.send([7])
        assert numbers(await waiting) == [7]
        assert time.monotonic() - began < 5

    async def test_an_empty_topic_is_no_messages_in_time(self, brokers: _Brokers) -> None:
        """Neither an error nor an endless wait."""
        source = await brokers.source()
        await until(lambda: source.health().ok, source)
        began = time.monotonic()
        assert await source.poll(10, 0.2) == []
        assert time.monotonic() - began < 3

    async def test_a_cancelled_poll_loses_nothing(self, brokers: _Brokers) -> None:
        """Its messages come with the next poll."""
        source = await brokers.source()
        await until(lambda: source.health().ok, source)
        got: list[Message] = []
        for turn in range(6):
            waiting = asyncio.ensure_future(source.poll(100, 5))
            await asyncio.sleep(0.01 * turn)
            await brokers.send(range(10 * turn, 10 * turn + 10))
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                got += await waiting
        got += await collect(source, 60 - len(got))
        check_order(got)
        assert sorted(numbers(got)) == list(range(60))

    async def test_keys_headers_and_payloads_are_as_they_were_sent(self, brokers: _Brokers) -> None:
        """Any text and any bytes."""
        headers = {
            "plain": "value",
            "reply-to": "answers",
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "unicode": "größe 图",
            "empty": "",
            "space": "  around  ",
            "lines": "a\r\nb: c\n",
            "percent": "100%41 +",
            "größe": "name",
            "with space": "name",
            "bytes": b"\xff\x00\xfe".decode("utf-8", "surrogateescape"),
        }
        sent = [
            Outgoing(bytes(range(256)), key="schlüssel-图 %41\n", headers=headers),
            Outgoing(b"", key="", headers={}),
            Outgoing(b"{}", key=b"\xff\xfe".decode("utf-8", "surrogateescape")),
            Outgoing(b"{}", headers={"only": "plain"}),
        ]
        sink = await brokers.sink()
        before_ms = time.time() * 1000
        for message in sent:
            await sink.send([message])
        messages = await collect(await brokers.source(), len(sent))
        by_key = {(message.key, bool(message.headers)): message for message in messages}
        for message in sent:
            got = by_key[message.key, bool(message.headers)]
            assert (got.payload, got.headers) == (message.payload, message.headers)
            assert got.problem == ""
            assert abs(got.timestamp_ms - before_ms) < 60_000
        assert by_key[sent[0].key, True].reply_to == "answers"

    async def test_large_messages_pass_among_small_ones(self, brokers: _Brokers) -> None:
        """Close to the default limit of brokers."""
        sink = await brokers.sink()
        rng = np.random.default_rng(0)
        sent = [rng.bytes(size) for size in (900_000, 1, 0, 900_000, 10)]
        for payload in sent:
            await sink.send([Outgoing(payload, key="one")])
        messages = await collect(await brokers.source(), len(sent))
        assert [message.payload for message in messages] == sent

    async def test_a_message_that_is_too_large_is_refused(self, brokers: _Brokers) -> None:
        """It is not retried, and the sink continues to work."""
        if brokers.server.max_bytes is None:
            return
        sink = await brokers.sink()
        with pytest.raises(BrokerError) as raised:
            await sink.send([Outgoing(bytes(brokers.server.max_bytes + 1))])
        assert not isinstance(raised.value, BrokerUnavailable)
        await sink.send(outgoing([1]))
        assert numbers(await collect(await brokers.source(), 1)) == [1]

    async def test_a_refused_message_affects_no_other(self, brokers: _Brokers) -> None:
        """The others are stored, once; each has its own outcome."""
        if brokers.server.max_bytes is None:
            return
        sink = await brokers.sink()
        messages = outgoing(range(20))
        messages[7] = Outgoing(bytes(brokers.server.max_bytes + 1))
        outcomes = await sink.send_each(messages)
        refused = [at for at, outcome in enumerate(outcomes) if isinstance(outcome, BrokerError)]
        assert refused == [7]
        assert not isinstance(outcomes[7], BrokerUnavailable)
        got = numbers(await collect(await brokers.source(), 19))
        assert sorted(got) == [value for value in range(20) if value != 7]

    async def test_sends_at_once_are_all_there(self, brokers: _Brokers) -> None:
        """Sends of many tasks, one of them cancelled."""
        sink = await brokers.sink()
        doomed = asyncio.ensure_future(sink.send(outgoing(range(1000, 1100))))
        sends = [asyncio.ensure_future(sink.send(outgoing(range(i, 1000, 20)))) for i in range(20)]
        await asyncio.sleep(0)
        doomed.cancel()
        await asyncio.gather(*sends)
        source = await brokers.source()
        got: Counter[int] = Counter()
        while not set(range(1000)) <= set(got):
            got.update(numbers(await source.poll(500, 1)))
        assert all(got[value] == 1 for value in range(1000))

    async def test_lag_is_what_was_not_delivered(self, brokers: _Brokers) -> None:
        """Zero once all messages were delivered."""
        await brokers.send(range(50))
        source = await brokers.source()
        await collect(source, 50)
        assert sum((await source.lag()).values()) == 0

    async def test_lag_includes_what_was_not_fetched(self, brokers: _Brokers) -> None:
        """From the first poll on: `hopline stream --once` ends where it is zero."""
        await brokers.send(range(50))
        source = await brokers.source()
        got: list[Message] = []
        while not source.health().ok:
            got += await source.poll(1, 0)
        lags = await source.lag()
        assert len(got) + sum(lags.values()) == 50

    async def test_a_sink_says_where_a_message_is(self, brokers: _Brokers) -> None:
        """As a source that delivers it does; Redis adds a count there."""
        sink = await brokers.sink()
        placed = await sink.send(outgoing(range(20)))
        placed += await sink.send(outgoing(range(20, 30)))
        source = await brokers.source()
        got = {int(message.payload): message for message in await collect(source, 30)}
        assert [place.partition for place in placed] == [got[i].partition for i in range(30)]
        positions = [str(got[i].position).partition("@")[0] for i in range(30)]
        assert [str(place.position) for place in placed] == positions

    async def test_readers_of_a_queue_share_its_messages(self, brokers: _Brokers) -> None:
        """Every message comes once, to one reader."""
        first = await brokers.queue()
        await until(lambda: first.health().ok, first)
        await brokers.send(range(500))
        second = await brokers.queue()
        got: list[int] = []
        end = time.monotonic() + _PATIENCE_S
        while set(got) != set(range(500)):
            assert time.monotonic() < end
            for queue in (first, second):
                messages = await queue.poll(20, 0.2)
                await queue.settle(messages)
                got += numbers(messages)
        # A partition that moves to another reader may repeat some messages.
        assert len(got) <= 700

    async def test_settled_messages_do_not_come_again(self, brokers: _Brokers) -> None:
        """Not to the next reader, either."""
        await brokers.send(range(100))
        queue = await brokers.queue()
        messages = await collect(queue, 100)
        await queue.settle(messages[::-1])
        await asyncio.sleep(0.2)
        await brokers.close(queue)
        queue = await brokers.queue()
        await brokers.send([1000])
        assert numbers(await collect(queue, 1)) == [1000]

    async def test_what_a_reader_did_not_settle_goes_to_the_next(self, brokers: _Brokers) -> None:
        """All of them, whether the reader closed or not."""
        for farewell in (True, False):
            await brokers.send(range(30))
            queue = await brokers.queue()
            messages = await collect(queue, 30)
            done = [message for message in messages if int(message.payload) < 10]
            await queue.settle(done)
            await asyncio.sleep(0.2)
            if farewell:
                await brokers.close(queue)
            heir = await brokers.queue()
            got: list[Message] = []
            end = time.monotonic() + _PATIENCE_S
            while not set(range(10, 30)) <= set(numbers(got)):
                assert time.monotonic() < end, sorted(numbers(got))
                got += await heir.poll(100, 0.5)
            await heir.settle(got)
            await asyncio.sleep(0.2)
            await brokers.close(heir)
            if not farewell:
                await brokers.close(queue)


class BrokerFailureSuite(_Suite):
    """Conformance tests with a server that is stopped and killed; it runs again after every test."""

    async def test_a_killed_server_is_waited_for(self, server: BrokerServer, brokers: _Brokers) -> None:
        """Nothing is lost or repeated, and meanwhile the source reports the error."""
        await brokers.send(range(100))
        source = await brokers.source()
        before = await collect(source, 100)
        if server.keeps:
            await brokers.send(range(100, 150))
        server.kill()
        got: list[Message] = []
        end = time.monotonic() + _PATIENCE_S
        while source.health().ok:
            assert time.monotonic() < end
            got += await source.poll(100, 0.2)  # messages received before
        since_s = source.health().since_s
        assert abs(since_s - time.time()) < _PATIENCE_S
        assert await source.poll(100, 0.3) == []
        assert source.health().since_s == since_s
        server.start()
        if not server.keeps:
            got += await self._after_loss(source, brokers)
            return
        await brokers.send(range(150, 200))
        got += await collect(source, 100 - len(got))
        check_order(before + got)
        assert sorted(numbers(got)) == list(range(100, 200))
        assert source.health().ok
        assert source.take_gaps() == []

    async def _after_loss(self, source: Source, brokers: _Brokers) -> list[Message]:
        """Read after data loss: topics are empty, all messages are new, and the source reports a gap."""
        await brokers.server.make(brokers.topic)
        await until(lambda: source.health().ok, source)
        await brokers.send(range(1000, 1100))
        got = await collect(source, 100)
        assert sorted(numbers(got)) == list(range(1000, 1100))
        assert source.take_gaps()
        return got

    async def test_a_silent_server_is_waited_for(self, server: BrokerServer, brokers: _Brokers) -> None:
        """Its connections stay open, without data."""
        await brokers.send(range(50))
        source = await brokers.source()
        got = await collect(source, 50)
        server.pause()
        began = time.monotonic()
        assert await source.poll(100, 1.0) == []
        assert time.monotonic() - began < 8
        server.resume()
        await brokers.send(range(50, 120))
        got += await collect(source, 70)
        check_order(got)
        assert sorted(numbers(got)) == list(range(120))

    async def test_a_server_that_is_not_there_yet_is_waited_for(
        self, server: BrokerServer, brokers: _Brokers
    ) -> None:
        """Sources, queues and sinks wait."""
        server.kill()
        source, queue, sink = (
            await brokers.source(),
            await brokers.queue(),
            await brokers.sink(timeout_s=1) if (server.scheme != "redis") else await brokers.sink(),
        )
        assert await source.poll(10, 0.5) == []
        assert await queue.poll(10, 0.5) == []
        with pytest.raises(BrokerUnavailable):
            await sink.send(outgoing([1]))
        assert not source.health().ok
        assert not queue.health().ok
        assert not sink.health().ok
        server.start()
        if not server.keeps:
            await server.make(brokers.topic)
        await brokers.send(range(5))
        assert set(range(5)) <= set(numbers(await collect(source, 5)))
        messages = await collect(queue, 5)
        assert set(range(5)) <= set(numbers(messages))
        await queue.settle(messages)
        end = time.monotonic() + _PATIENCE_S
        while True:
            try:
                await sink.send(outgoing([5]))
                break
            except BrokerUnavailable:
                assert time.monotonic() < end
                await asyncio.sleep(0.1)
        assert sink.health().ok
        assert 5 in numbers(await collect(source, 1))

    async def test_a_queue_outlives_a_killed_server(self, server: BrokerServer, brokers: _Brokers) -> None:
        """Unsettled messages come again, and later ones come, too."""
        queue = await brokers.queue()
        await until(lambda: queue.health().ok, queue)
        await brokers.send(range(40))
        messages = await collect(queue, 40)
        await queue.settle(messages[:20])
        await asyncio.sleep(0.3)
        server.kill()
        assert await queue.poll(10, 0.3) == []
        server.start()
        if server.keeps:  # else earlier positions are beyond those of new messages
            await queue.settle(messages[20:])
        await brokers.send(range(100, 140))
        got: list[int] = []
        end = time.monotonic() + _PATIENCE_S
        while not set(range(100, 140)) <= set(got):
            assert time.monotonic() < end, (sorted(got), queue.health())
            arrived = await queue.poll(100, 0.5)
            if not arrived and not server.keeps:
                # A server that lost its data numbers from the start again. Until the queue notices this, it
                # skips messages before its old position; messages sent after that come.
                await brokers.send(range(100, 140))
            await queue.settle(arrived)
            got += numbers(arrived)
        assert not set(got) & set(numbers(messages[:20])) or not server.keeps
