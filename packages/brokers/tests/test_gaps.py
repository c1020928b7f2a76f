"""Messages that a broker deletes before they are read are reported, in the place where they are missing."""

import contextlib
import random
import time

import nats
import pytest
from nats.js.api import RetentionPolicy
from nats.js.manager import JetStreamManager

from hopline.brokers.registry import open_sink, open_source
from hopline.errors import ConfigError
from hopline_brokers.testing.suite import collect, numbers, outgoing, positions, until
from packages.brokers.tests.test_faults import opened, redis_call, send


@contextlib.asynccontextmanager
async def nats_manager(server):
    """The driver's JetStream context."""
    client = await nats.connect(f"nats://127.0.0.1:{server.port}")
    yield client.jetstream()
    await client.close()


async def read_until(source, last, at_once=10):
    """Poll until a number has come: the numbers and `Gap.lost` in the order in which a reader sees them."""
    seen = []
    end = time.monotonic() + 20
    while last not in seen:
        assert time.monotonic() < end, (seen, source.health())
        messages = await source.poll(at_once, 0.5)
        seen += [("lost", gap.lost) for gap in source.take_gaps()] + numbers(messages)
    return seen


@pytest.mark.parametrize("subject", [None, "held-1"])
async def test_messages_that_nats_deletes_under_a_connected_reader_are_a_gap(nats_server, subject):
    """Single ones and the oldest ones; the gap comes after the messages before it, and after a restart.

    Requests are for exactly as many messages as there are: an open one would get them before the deletion.
    """
    name = f"held-{1 if subject else 0}"
    options = {"subject": subject} if subject else {}
    await nats_server.make(name)
    address = nats_server.address(name, **options)
    source = await opened(open_source, address, {})
    await send(address, range(3))
    assert await read_until(source, 2, 3) == [0, 1, 2]
    async with nats_manager(nats_server) as stream:
        await send(address, range(3, 10))
        for number in (6, 7):
            await stream.delete_msg(name, number + 1)
        again = await opened(open_source, address, {f"nats/{name}": 4})
        for reader in (source, again):
            assert await read_until(reader, 9, 5) == [3, 4, 5, ("lost", 2), 8, 9]
        await send(address, range(10, 20))
        await stream.purge_stream(name, seq=16)
        for reader in (source, again):
            assert await read_until(reader, 19, 5) == [("lost", 5), *range(15, 20)]
        await stream.delete_msg(name, 20)  # which was read
        await send(address, [20])
        assert await read_until(source, 20) == [20]
    for reader in (source, again):
        await reader.close()


async def test_messages_that_nats_deletes_while_a_reader_connects_are_a_gap(nats_server, monkeypatch):
    """Between the question for the stream's range and the consumer."""
    await nats_server.make("between")
    address = nats_server.address("between")
    await send(address, range(10))
    made = JetStreamManager.add_consumer
    async with nats_manager(nats_server) as stream:

        async def late(self, *words, **options):
            await stream.purge_stream("between", seq=5)
            return await made(self, *words, **options)

        monkeypatch.setattr(JetStreamManager, "add_consumer", late)
        source = await opened(open_source, address, {})
        assert await read_until(source, 9) == [("lost", 4), *range(4, 10)]
    await source.close()


async def test_other_subjects_of_a_nats_stream_are_no_gap(nats_server):
    async with nats_manager(nats_server) as stream:
        await stream.add_stream(name="mixed", subjects=["mixed.a", "mixed.b"])
        address = nats_server.address("mixed", subject="mixed.a")
        source = await opened(open_source, address, {})
        for number in range(5):
            await send(nats_server.address("mixed", subject="mixed.b"), [100])
            await send(address, [number])
        assert await read_until(source, 4) == list(range(5))
        await source.close()


async def test_the_stream_of_a_fleet_must_be_complete(nats_server):
    """Of a filtered stream and of a work queue, a reader cannot know whether it has all messages."""
    async with nats_manager(nats_server) as stream:
        await stream.add_stream(name="two", subjects=["two.a", "two.b"])
        await stream.add_stream(name="work", subjects=["work"], retention=RetentionPolicy.WORK_QUEUE)
        await stream.add_stream(name="one", subjects=["one.>"])
        for address, error in (
            (nats_server.address("two", subject="two.a"), "subject 'two.a' .* 'two' has two.a, two.b"),
            (nats_server.address("work"), "'work' .* work queue"),
        ):
            source = open_source(address, "live.stream")
            await source.open({})
            with pytest.raises(ConfigError, match=f"^live.stream: .*{error}"):
                await source.poll(1, 5)
            await source.close()
            assert await stream.consumers_info(source._stream) == []
            await stream.purge_stream(source._stream)
        for address in (nats_server.address("two"), nats_server.address("one", subject="one.>")):
            source = open_source(address, "live.stream")
            await source.open({})
            await until(lambda source=source: source.health().ok, source)
            await source.close()


@pytest.mark.parametrize("num_new", [2, 30])
async def test_a_nats_stream_that_is_made_again_is_a_gap(nats_server, num_new):
    """Also if it has more messages than the old one when the reader looks."""
    name = f"remade-{num_new}"
    await nats_server.make(name)
    address = nats_server.address(name)
    await send(address, range(5))
    source = await opened(open_source, address, {})
    await collect(source, 5)
    async with nats_manager(nats_server) as stream:
        await stream.delete_stream(name)
    await nats_server.make(name)
    await send(address, range(100, 100 + num_new))
    assert await read_until(source, 99 + num_new) == [("lost", None), *range(100, 100 + num_new)]
    await source.close()


@pytest.mark.parametrize("at_once", [100, 4])
async def test_entries_that_redis_deletes_among_unread_ones_are_a_gap(redis_server, at_once):
    """Others before them are still there, so that the first entry of the stream does not show it."""
    name = f"holed-{at_once}"
    address = redis_server.address(name)
    await send(address, range(5))
    source = await opened(open_source, address, {})
    first = await collect(source, 5)
    await send(address, range(5, 20))
    there = await redis_call(redis_server, "XRANGE", name, "-", "+")
    await redis_call(redis_server, "XDEL", name, there[9][0], there[12][0], there[2][0])
    again = await opened(open_source, address, positions(first))
    kept = [number for number in range(5, 20) if number not in (9, 12)]
    for reader in (source, again):
        got, gaps = [], []
        while not got or numbers(got)[-1] < 19:
            messages = await reader.poll(at_once, 1)
            gaps += reader.take_gaps()
            assert gaps or not messages or numbers(messages)[-1] < 9
            got += messages
        assert numbers(got) == kept
        assert [gap.lost for gap in gaps] == [2 if at_once == 100 else None]
        assert await reader.lag() == {f"redis/{name}": 0}
    later = await opened(open_source, address, positions(got))
    await redis_call(redis_server, "XTRIM", name, "MAXLEN", 0)
    await send(address, [20, 21])
    for reader in (source, again, later) if at_once == 100 else (source, again):
        assert await read_until(reader, 21) == [20, 21]
    # the newest entry
    (_, (last, _)) = await redis_call(redis_server, "XRANGE", name, "-", "+")
    await send(address, [22])
    ((newest, _),) = await redis_call(redis_server, "XRANGE", name, b"(" + last, "+")
    await redis_call(redis_server, "XDEL", name, newest)
    assert await source.poll(10, 0) == []
    assert [gap.lost for gap in source.take_gaps()] == [1]
    await send(address, [23])
    assert await read_until(source, 23) == [23]
    for reader in (source, again, later):
        await reader.close()


@pytest.mark.sample(2)
@pytest.mark.parametrize("broker", ["redis", "nats"])
@pytest.mark.parametrize("seed", range(3))
async def test_no_hole_is_read_without_a_gap_and_no_gap_is_without_a_hole(
    redis_server, nats_server, broker, seed
):
    """After any deletions, by readers that stay connected and that restart at the position of a message."""
    rng = random.Random(seed)
    server = {"redis": redis_server, "nats": nats_server}[broker]
    name = f"random-{seed}"
    await server.make(name)
    address = server.address(name)
    # when each message was deleted, when each gap was reported, in turns
    num_sent, read, deleted, gaps, turn = 1, [], {}, [], 0
    async with contextlib.AsyncExitStack() as stack:
        stream = await stack.enter_async_context(nats_manager(nats_server)) if broker == "nats" else None
        await send(address, [0])
        source = await opened(open_source, address, {})
        while not read:
            read += await source.poll(1, 0.5)

        async def delete(number):
            if number in deleted:
                return
            deleted[number] = turn
            if stream is not None:
                await stream.delete_msg(name, number + 1)
            else:
                await redis_call(server, "XDEL", name, ids[number])

        ids = (
            [entry for entry, _ in await redis_call(server, "XRANGE", name, "-", "+")] if not stream else []
        )
        for turn in range(1, 120):
            what = rng.random()
            if what < 0.35 or turn > 110:
                count = rng.randint(1, 6)
                sink = await opened(open_sink, address)
                placed = await sink.send(outgoing(range(num_sent, num_sent + count)))
                await sink.close()
                ids += [place.position for place in placed]
                num_sent += count
            elif what < 0.5:
                await delete(rng.randrange(num_sent))
            elif what < 0.55:
                for number in range(rng.randrange(num_sent)):
                    await delete(number)
            elif what < 0.62:
                await source.close()
                source = await opened(open_source, address, positions(read))
            if what >= 0.5 or turn > 110:
                got = await source.poll(rng.randint(1, 6), 0.05)
                found = source.take_gaps()
                gaps += [turn] * len(found)
                seen = {*numbers(read), *numbers(got)}
                last = int(read[-1].payload)
                assert not found or any(each > last and each not in seen for each in deleted), found
                for message in got:
                    (number,), (last,) = numbers([message]), numbers(read[-1:])
                    for lost in range(last + 1, number):
                        assert any(at >= deleted[lost] for at in gaps), (lost, read, gaps)
                    read.append(message)
        end = time.monotonic() + 20
        await send(address, [num_sent])
        while numbers(read[-1:]) != [num_sent]:
            assert time.monotonic() < end
            read += await source.poll(100, 0.5)
            gaps += [turn for _ in source.take_gaps()]
        assert set(range(num_sent + 1)) - set(numbers(read)) <= set(deleted)
        await source.close()
