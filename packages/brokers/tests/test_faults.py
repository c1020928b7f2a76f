"""What each broker can do to its readers: lost messages, odd ones, refused logins, many deaths."""

import asyncio
import concurrent.futures
import random
import threading
import time
from types import SimpleNamespace

import pytest
import redis.asyncio
from confluent_kafka import Producer
from confluent_kafka.admin import ConfigEntry

from hopline.brokers.base import Outgoing
from hopline.brokers.registry import open_queue, open_sink, open_source
from hopline.errors import BrokerError, BrokerUnavailable
from hopline_brokers import kafka, nats_stream
from hopline_brokers.kafka_source import KafkaSource
from hopline_brokers.testing.suite import check_order, collect, numbers, outgoing, positions, until
from packages.brokers.tests.servers import NatsServer, RedisServer, broker_server


async def opened(make, address, *at):
    made = make(address, "test")
    await made.open(*at)
    return made


async def send(address, values):
    sink = await opened(open_sink, address)
    await sink.send(outgoing(values))
    await sink.close()


class EmptyRedis(RedisServer):
    """A redis-server that keeps nothing when it ends."""

    def command(self):
        return ["redis-server", "--port", str(self.port), "--dir", str(self.folder), "--save", ""]


async def driver_call(server, *words):
    client = redis.asyncio.Redis(port=server.port)
    await client.execute_command(*words)
    await client.aclose()


async def redis_call(server, *words):
    sink = await opened(open_sink, server.address("none"))
    reply = await sink._connection.call(*words)
    await sink.close()
    return reply


# Gaps


@pytest.mark.parametrize("restarted", [True, False])
async def test_entries_that_redis_trimmed_unread_are_counted(redis_server, restarted):
    """By a source that was away as by one that was too slow."""
    address = redis_server.address(f"trimmed-{restarted}")
    await send(address, range(100))
    source = await opened(open_source, address, {})
    first = [message for _ in range(4) for message in await source.poll(10, 1)]
    assert numbers(first) == list(range(40))
    await redis_call(redis_server, "XTRIM", f"trimmed-{restarted}", "MAXLEN", 35)
    if restarted:
        await source.close()
        source = await opened(open_source, address, positions(first))
    assert numbers(await collect(source, 35)) == list(range(65, 100))
    (gap,) = source.take_gaps()
    assert (gap.lost, gap.partition) == (25, f"redis/trimmed-{restarted}")
    assert "25 entries" in gap.reason
    assert source.take_gaps() == []
    await send(address, range(100, 110))
    assert numbers(await collect(source, 10)) == list(range(100, 110))
    assert source.take_gaps() == []
    await source.close()


async def test_entries_that_were_read_may_be_trimmed(redis_server):
    address = redis_server.address("read")
    await send(address, range(50))
    source = await opened(open_source, address, {})
    read = await collect(source, 50)
    for kept in (10, 0):
        await redis_call(redis_server, "XTRIM", "read", "MAXLEN", kept)
        await send(address, range(50, 55))
        assert len(await collect(source, 5)) == 5
    again = await opened(open_source, address, positions(read[:45]))
    await again.poll(100, 1)
    assert sum(gap.lost for gap in again.take_gaps()) == 10
    assert source.take_gaps() == []
    await source.close()
    await again.close()


async def test_a_redis_stream_with_lower_ids_is_a_gap(redis_server):
    """What is added to it from then on is read, whatever its ids."""
    address = redis_server.address("anew")
    await send(address, range(5))
    source = await opened(open_source, address, {})
    await collect(source, 5)
    await redis_call(redis_server, "DEL", "anew")
    await redis_call(redis_server, "XADD", "anew", "1-1", "payload", "0")
    assert await source.poll(10, 0.2) == []
    (gap,) = source.take_gaps()
    assert "recreated" in gap.reason
    await redis_call(redis_server, "XADD", "anew", "1-2", "payload", "5")
    await send(address, [6])
    assert numbers(await collect(source, 2)) == [5, 6]
    assert source.take_gaps() == []
    await source.close()


@pytest.mark.sample(3)
@pytest.mark.parametrize("num_new", [0, 3, 60])
@pytest.mark.parametrize("is_away", [False, True])
async def test_a_redis_that_was_restarted_empty_is_a_gap(tmp_path, num_new, is_away):
    """Ids are times, so those of a new stream follow those of the lost one."""
    with broker_server(EmptyRedis) as server:
        address = server.address("edges")
        await send(address, range(40))
        source = await opened(open_source, address, {})
        read = await collect(source, 40)
        await source.acknowledge(positions(read))
        if is_away:
            await source.close()
        server.kill()
        server.start()
        if num_new:
            await send(address, range(100, 100 + num_new))
        if is_away:
            source = await opened(open_source, address, positions(read))
        await source.acknowledge(positions(read))  # creates nothing
        got = await collect(source, num_new) if num_new else await source.poll(10, 3)
        assert numbers(got) == list(range(100, 100 + num_new))
        (gap,) = source.take_gaps()
        assert gap.lost is None
        assert str(read[-1].position).partition("@")[0] in gap.reason
        await send(address, range(200, 210))
        assert numbers(await collect(source, 10)) == list(range(200, 210))
        assert source.take_gaps() == []
        await source.close()


async def test_a_redis_stream_that_was_restored_from_an_old_copy_is_a_gap(redis_server):
    """It goes on with newer entries before the source looks."""
    address = redis_server.address("old")
    await send(address, range(20))
    copy = await redis_call(redis_server, "DUMP", "old")
    await send(address, range(20, 50))
    source = await opened(open_source, address, {})
    await collect(source, 50)
    await redis_call(redis_server, "RESTORE", "old", 0, copy, "REPLACE")
    await send(address, range(50, 55))
    assert numbers(await collect(source, 5)) == list(range(50, 55))
    (gap,) = source.take_gaps()
    assert "recreated, or lost messages" in gap.reason
    await source.close()


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_entries_that_were_trimmed_before_the_first_was_read_are_counted(redis_server, start):
    address = redis_server.address(f"first-{start}", start=start)
    source = await opened(open_source, address, {})
    assert await source.poll(10, 0) == []
    await send(address, range(30))
    await redis_call(redis_server, "XTRIM", f"first-{start}", "MAXLEN", 10)
    assert numbers(await collect(source, 10)) == list(range(20, 30))
    assert [gap.lost for gap in source.take_gaps()] == [20]
    await source.close()


async def test_a_client_that_may_not_request_a_streams_counts_gets_the_reason(redis_server):
    await send(redis_server.address("asked"), range(3))
    await redis_call(redis_server, "ACL", "SETUSER", "reader", "on", ">pass", "~*", "&*", "+@all", "-xinfo")
    address = redis_server.address("asked").replace("//", "//reader:pass@")
    source = await opened(open_source, address, {})
    assert await source.poll(10, 0.1) == []
    assert "xinfo" in source.health().reason
    await source.close()


class Described:
    """An AdminClient of a cluster whose topics have a policy; the mock describes none."""

    policy = ""

    def __init__(self, settings):
        assert settings["bootstrap.servers"]

    def describe_configs(self, resources, request_timeout):
        (resource,) = resources
        answer = concurrent.futures.Future()
        answer.set_result({"cleanup.policy": ConfigEntry("cleanup.policy", self.policy)})
        return {resource: answer}


@pytest.mark.sample(2)
@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete", None])
async def test_offsets_that_are_missing_in_a_compacted_kafka_topic_are_a_gap(
    kafka_server, monkeypatch, caplog, policy
):
    """To a reader, a transaction looks like compaction: its end takes an offset."""
    topic = f"holes-{policy}".replace(",", "-")
    await kafka_server.make(topic)
    if policy is not None:
        monkeypatch.setattr(Described, "policy", policy)
        monkeypatch.setattr(kafka, "AdminClient", Described)
    producer = Producer(
        {"bootstrap.servers": f"127.0.0.1:{kafka_server.port}", "transactional.id": topic, "log_level": 2}
    )
    producer.init_transactions(20)
    for number in range(3):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        producer.commit_transaction(20)
    source = await opened(open_source, kafka_server.address(topic, partition=0), {})
    got = await collect(source, 3)
    assert numbers(got) == [0, 1, 2]
    assert [message.position for message in got] == [1, 3, 5]
    gaps = source.take_gaps()
    if policy and "compact" in policy:
        (gap,) = gaps
        assert "offsets 1 to 1 are missing" in gap.reason
        assert f"cleanup.policy={policy}" in gap.reason
    else:
        assert gaps == []
    assert ("does not say cleanup.policy" in caplog.text) == (policy is None)
    await source.close()


# A Redis that evicts


async def test_a_redis_that_may_evict_streams_is_not_used_until_it_may_not(redis_server):
    address = redis_server.address("evicted")
    await send(address, range(3))
    try:
        await redis_call(redis_server, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        source = await opened(open_source, address, {})
        queue = await opened(open_queue, address)
        for reader in (source, queue):
            assert await reader.poll(10, 0.1) == []
            assert "memory policy allkeys-lru" in reader.health().reason
            assert "set maxmemory-policy to noeviction" in reader.health().reason
        sink = await opened(open_sink, address)
        with pytest.raises(BrokerUnavailable, match=r"test: .* memory policy allkeys-lru"):
            await sink.send(outgoing([3]))
    finally:
        await driver_call(redis_server, "CONFIG", "SET", "maxmemory-policy", "volatile-lru")
    await sink.send(outgoing([3]))
    assert numbers(await collect(source, 4)) == [0, 1, 2, 3]
    assert source.health().ok
    assert len(await collect(queue, 4)) == 4
    for each in (source, queue, sink):
        await each.close()


async def test_messages_that_nats_deleted_unread_are_counted(nats_server):
    import nats

    await nats_server.make("purged")
    address = nats_server.address("purged")
    await send(address, range(30))
    source = await opened(open_source, address, {})
    first = []
    while len(first) < 10:
        first += await source.poll(10 - len(first), 2)
    await source.close()
    client = await nats.connect(f"nats://127.0.0.1:{nats_server.port}")
    await client.jetstream().purge_stream("purged", seq=21)
    source = await opened(open_source, address, positions(first))
    assert numbers(await collect(source, 10)) == list(range(20, 30))
    assert [gap.lost for gap in source.take_gaps()] == [10]
    await client.jetstream().delete_stream("purged")
    await nats_server.make("purged")
    await send(address, range(100, 105))
    got = []
    while len(got) < 5:
        got += await source.poll(10, 0.5)
    assert numbers(got) == list(range(100, 105))
    assert "recreated" in source.take_gaps()[0].reason
    await source.close()
    await client.close()


async def test_messages_that_kafka_deleted_unread_are_counted(kafka_server):
    """The mock keeps some 5 MB of a partition."""
    await kafka_server.make("retained")
    address = kafka_server.address("retained")
    sink = await opened(open_sink, address)
    await sink.send([Outgoing(b"0", key="k")])
    source = await opened(open_source, address, {})
    (first,) = await collect(source, 1)
    await source.close()
    for number in range(20):
        await sink.send([Outgoing(b"%d" % number + b" " * 500_000, key="k")])
    source = await opened(open_source, address, positions([first]))
    got = []
    while not got or int(got[-1].payload) < 19:
        got += await source.poll(100, 1)
    (gap,) = source.take_gaps()
    assert gap.lost == 20 - len(got) > 0
    await source.close()
    await sink.close()


# Odd messages


async def test_kafka_messages_that_were_not_fetched_are_in_the_lag(kafka_server, monkeypatch):
    """The driver knows the end of a partition only from a fetch, whose answer comes late here."""
    address = kafka_server.address("unfetched")
    await kafka_server.make("unfetched")
    await send(address, range(50))
    assign = KafkaSource._assign

    def assign_and_pause(source):
        kafka_server.pause()
        assign(source)

    monkeypatch.setattr(KafkaSource, "_assign", assign_and_pause)
    source = await opened(open_source, address, {})
    try:
        while not source.health().ok:
            assert await source.poll(1, 0) == []
        assert sum((await source.lag()).values()) == 50
    finally:
        kafka_server.resume()
    await collect(source, 50)
    assert sum((await source.lag()).values()) == 0
    await source.close()


async def test_a_redis_entry_without_a_payload_says_so(redis_server):
    """It is delivered like any other, and those behind it are."""
    await redis_call(redis_server, "XADD", "odd", "*", "data", "1", b"\xff\xfe", b"\xff")
    await send(redis_server.address("odd"), [7])
    source = await opened(open_source, redis_server.address("odd"), {})
    odd, good = await collect(source, 2)
    assert "no field 'payload'" in odd.problem
    assert "data" in odd.problem
    assert good.problem == ""
    await source.close()
    named = await opened(open_source, redis_server.address("odd", field="data"), {})
    assert (await collect(named, 2))[0].payload == b"1"
    await named.close()


async def test_a_redis_entry_that_was_deleted_in_between_is_settled(redis_server):
    address = redis_server.address("deleted", claim_after_s=0.1)
    await send(address, range(3))
    queue = await opened(open_queue, address)
    first, *_ = await collect(queue, 3)
    await redis_call(redis_server, "XDEL", "deleted", first.position)
    heir = await opened(open_queue, address)
    got = []
    while len(got) < 2:
        got += await heir.poll(10, 0.2)
    assert sorted(numbers(got)) == [1, 2]
    await heir.settle(got)
    await heir.poll(10, 0)
    pending = await redis_call(redis_server, "XINFO", "GROUPS", "deleted")
    assert pending[0][pending[0].index(b"pending") + 1] == 0
    await heir.close()
    await queue.close()


@pytest.mark.parametrize("broker", ["redis", "nats"])
async def test_deliveries_are_counted(redis_server, nats_server, broker):
    """A message that kills whoever reads it is told by that."""
    server = {"redis": redis_server, "nats": nats_server}[broker]
    await server.make("counted")
    await send(server.address("counted"), [1, 2])
    for count in (1, 2, 3):
        options = {"redis": {"claim_after_s": 0.05}, "nats": {"ack_wait_s": 0.3}}[broker]
        queue = await opened(open_queue, server.address("counted", **options))
        got = []
        while len(got) < 2:
            got += await queue.poll(10, 0.1)
        assert [message.num_deliveries for message in got] == [count, count]
        await queue.close()


async def test_a_nats_message_that_is_held_for_long_comes_once(nats_server):
    """The server delivers it again after each `ack_wait_s`; one acknowledgement is enough."""
    import nats

    client = await nats.connect(f"nats://127.0.0.1:{nats_server.port}")
    await nats_server.make("held")
    await send(nats_server.address("held"), [1, 2])
    queue = await opened(open_queue, nats_server.address("held", ack_wait_s=0.1))
    messages = await collect(queue, 2)
    again = []
    for _ in range(8):  # each sees what was delivered meanwhile
        again += await queue.poll(10, 0.2)
    consumer = await client.jetstream().consumer_info("held", "hopline")
    assert consumer.num_redelivered == 2
    assert again == []
    await queue.settle(messages)
    await queue.close()
    end = time.monotonic() + 60
    while (await client.jetstream().consumer_info("held", "hopline")).num_ack_pending:
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
    await client.close()


async def test_settled_entries_are_deleted_where_that_is_wanted(redis_server):
    address = redis_server.address("work", delete="true")
    await send(address, range(5))
    queue = await opened(open_queue, address)
    await queue.settle(await collect(queue, 5))
    assert await redis_call(redis_server, "XLEN", "work") == 0
    await queue.close()


async def test_a_redis_key_that_is_no_stream_is_reported_and_waited_for(redis_server):
    await redis_call(redis_server, "SET", "text", "1")
    source = await opened(open_source, redis_server.address("text"), {})
    assert await source.poll(10, 0.2) == []
    assert "WRONGTYPE" in source.health().reason
    await redis_call(redis_server, "DEL", "text")
    await send(redis_server.address("text"), [1])
    assert numbers(await collect(source, 1)) == [1]
    await source.close()


async def test_a_message_to_the_inbox_of_a_nats_source_is_not_taken_for_a_delivery(nats_server):
    await nats_server.make("inbox")
    source = await opened(open_source, nats_server.address("inbox"), {})
    await until(lambda: source.health().ok, source)
    await source._client.publish(source._pull._inbox, b"forged", reply="$JS.ACK.nonsense")
    await send(nats_server.address("inbox"), [1])
    assert numbers(await collect(source, 1)) == [1]
    await source.close()


async def test_readers_of_one_nats_stream_leave_each_other_alone(nats_server):
    """As the hosts of a fleet with equal settings: none takes the consumer of another, and none is left."""
    import nats

    client = await nats.connect(f"nats://127.0.0.1:{nats_server.port}")

    async def consumers():
        found = await client.jetstream().consumers_info("shared")
        return sorted((each.name, each.created) for each in found)

    await nats_server.make("shared")
    address = nats_server.address("shared")
    first, second = [await opened(open_source, address, {}) for _ in range(2)]
    await send(address, [0])
    assert [numbers(await collect(each, 1)) for each in (first, second)] == [[0], [0]]
    begun = await consumers()
    assert len(begun) == 2
    for number in range(1, 11):
        await send(address, [number])
        found = await asyncio.gather(collect(first, 1), collect(second, 1))
        assert [numbers(each) for each in found] == [[number], [number]]
    assert await consumers() == begun
    for each in (first, second):
        await each.close()
    assert await consumers() == []
    await client.close()


async def test_a_nats_work_queue_keeps_what_is_not_acknowledged(nats_server):
    """And positions of the reader go before: what it has is not delivered, only acknowledged."""
    import nats
    from nats.js.api import RetentionPolicy

    client = await nats.connect(f"nats://127.0.0.1:{nats_server.port}")
    stream = client.jetstream()
    await stream.add_stream(name="jobs", subjects=["jobs"], retention=RetentionPolicy.WORK_QUEUE)
    address = nats_server.address("jobs")
    await send(address, range(20))
    source = await opened(open_source, address, {})
    messages = await collect(source, 20)
    await source.acknowledge(positions(messages[:5]))
    await source.close()
    source = await opened(open_source, address, positions(messages[:12]))
    assert numbers(await collect(source, 8)) == list(range(12, 20))
    await source.acknowledge(positions(messages))
    end = time.monotonic() + 60
    while (await stream.stream_info("jobs")).state.messages:
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
    await source.close()
    await client.close()


async def test_a_subject_that_no_stream_takes_is_refused(nats_server):
    await nats_server.make("taken")
    sink = await opened(open_sink, nats_server.address("taken"))
    with pytest.raises(BrokerError, match="no stream stores messages of the subject 'nobody'"):
        await sink.send([Outgoing(b"1", topic="nobody")])
    await sink.close()


async def test_a_nats_stream_that_is_made_later_is_waited_for(nats_server):
    source = await opened(open_source, nats_server.address("later"), {})
    assert await source.poll(10, 0.3) == []
    assert source.health().reason == "the stream 'later' does not exist"
    await nats_server.make("later")
    await send(nats_server.address("later"), [1])
    assert numbers(await collect(source, 1)) == [1]
    await source.close()


# Logins


async def test_a_redis_password_is_used_and_never_shown(tmp_path):
    class Locked(RedisServer):
        def command(self):
            return [*super().command(), "--requirepass", "sesame"]

        def answers(self, talk):
            return True

    options = tmp_path / "options.toml"
    options.write_text('password = "sesame"\n')
    with broker_server(Locked) as server:
        await until_sent(server.address("s", options_file=options))
        source = await opened(open_source, server.address("s", options_file=options), {})
        assert numbers(await collect(source, 1)) == [1]
        await source.close()
        for address in (server.address("s"), server.address("s", password="wrong-one")):
            source = await opened(open_source, address, {})
            assert await source.poll(1, 0.2) == []
            assert source.health().reason
            assert "wrong-one" not in source.health().reason
            await source.close()


async def until_sent(address):
    end = time.monotonic() + 60
    while True:
        try:
            return await send(address, [1])
        except BrokerError:
            assert time.monotonic() < end
            await asyncio.sleep(0.05)


async def test_a_nats_login_is_used_and_never_shown():
    class Locked(NatsServer):
        def command(self):
            command = super().command()
            with open(self.folder / "nats.conf", "a") as config:
                config.write("authorization { user: me, password: sesame }\n")
            return command

    with broker_server(Locked) as server:
        source = await opened(open_source, f"nats://me:sesame@127.0.0.1:{server.port}/s", {})
        await source.poll(1, 0.3)
        assert source.health().reason == "the stream 's' does not exist"
        await source.close()
        source = await opened(open_source, f"nats://me:wrong-one@127.0.0.1:{server.port}/s", {})
        await source.poll(1, 0.5)
        assert "authorization" in source.health().reason.lower()
        assert "wrong-one" not in source.health().reason
        await source.close()


# Deaths


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", [RedisServer, NatsServer])
async def test_a_broker_killed_at_random_loses_and_repeats_nothing(kind):
    """While messages are sent and read; what the sink was not told of may be there twice."""
    rng = random.Random(7)
    with broker_server(kind) as server:
        await server.make("events")
        address = server.address("events")
        source = await opened(open_source, address, {})
        sent, got, over = [], [], asyncio.Event()

        async def write():
            sink = await opened(open_sink, server.address("events", **quick))
            number = 0
            while not over.is_set():
                batch = list(range(number, number + 50))
                try:
                    await sink.send(outgoing(batch))
                except BrokerError:
                    await asyncio.sleep(0.05)
                else:
                    sent.extend(batch)
                number += 50  # what may have been sent is not sent again
                await asyncio.sleep(0.002)
            await sink.close()

        async def kill():
            for _ in range(5):
                await asyncio.sleep(0.2 + 0.3 * rng.random())
                await asyncio.to_thread(server.kill)
                await asyncio.sleep(0.1 * rng.random())
                await asyncio.to_thread(server.start)
            over.set()

        quick = {"timeout_s": 1} if kind is NatsServer else {}
        tasks = [asyncio.create_task(write()), asyncio.create_task(kill())]
        while not over.is_set():
            got += await source.poll(200, 0.1)
            if rng.random() < 0.1:  # and the reader as well
                await source.close()
                source = await opened(open_source, address, positions(got))
        await asyncio.gather(*tasks)
        end = time.monotonic() + 20
        while not set(sent) <= set(numbers(got)):
            assert time.monotonic() < end, (len(sent), len(got), source.health())
            got += await source.poll(1000, 0.2)
        check_order(got)
        assert len(sent) > 200
        await source.close()


# What a sender may write


async def test_headers_of_a_message_are_not_taken_for_words_of_nats(nats_server):
    """The server says "Status: 404" itself where nothing comes."""
    address = nats_server.address("status")
    await nats_server.make("status")
    sink = await opened(open_sink, address)
    await sink.send([Outgoing(b"1", headers={"Status": "409", "Description": "x"}), Outgoing(b"2")])
    source = await opened(open_source, address, {})
    found = await collect(source, 2)
    assert [(message.payload, message.headers) for message in found] == [
        (b"1", {"Status": "409", "Description": "x"}),
        (b"2", {}),
    ]
    await source.close()
    await sink.close()


@pytest.mark.parametrize("opening", [open_source, open_queue])
async def test_a_request_to_nats_brings_no_more_bytes_than_it_says(nats_server, monkeypatch, opening):
    """However many messages fit into a batch; the others come with the next one."""
    monkeypatch.setattr(nats_stream, "_PULL_BYTES", 400_000)
    name = f"bytes-{opening.__name__}"
    address = nats_server.address(name)
    await nats_server.make(name)
    sink = await opened(open_sink, address)
    await sink.send([Outgoing(b"%d" % at + b" " * 150_000) for at in range(12)])
    reader = await opened(opening, address, *([{}] if opening is open_source else []))
    most, found = 0, []
    while len(found) < 12:
        messages = await reader.poll(1000, 5)
        assert messages
        most = max(most, len(messages))
        found += [int(message.payload) for message in messages]
    assert found == list(range(12))
    assert most <= 2
    assert reader.health().ok
    await reader.close()
    await sink.close()


async def test_a_consumer_that_cannot_leave_its_group_holds_up_nothing(kafka_server, monkeypatch, caplog):
    """The driver's `close` has no limit, and has waited for ever in a rebalance."""
    stuck = threading.Event()
    queue = await opened(open_queue, kafka_server.address("stuck", group="g"))
    driver, queue._consumer = queue._consumer, SimpleNamespace(close=stuck.wait)
    monkeypatch.setattr(kafka, "GRACE_S", 0.1)
    await asyncio.wait_for(queue.close(), 5)
    assert "did not leave its group in 0.1 s" in caplog.text
    stuck.set()
    driver.close()


async def test_a_poll_that_the_driver_does_not_answer_ends_and_is_reported(kafka_server, monkeypatch):
    """Its messages come with a later poll."""
    address = kafka_server.address("silent", group="g")
    await send(address, range(3))
    queue, stuck = await opened(open_queue, address), threading.Event()
    consume = queue._consume
    monkeypatch.setattr(kafka, "GRACE_S", 0.1)
    monkeypatch.setattr(queue, "_consume", lambda *given: (stuck.wait(), consume(*given))[1])
    for _ in range(2):
        assert await asyncio.wait_for(queue.poll(10, 0.1), 5) == []
    assert await asyncio.wait_for(queue.lag(), 5) == {}  # unknown, as behind the poll
    assert not queue.health().ok
    stuck.set()
    assert sorted(numbers(await collect(queue, 3))) == [0, 1, 2]
    assert queue.health().ok
    await queue.close()
