"""Versions named by the stream: what the graph becomes must not depend on how a host batches messages."""

import asyncio
import json
from dataclasses import asdict

import numpy as np
import pytest

from hopline.brokers.base import Gap, Message
from hopline.brokers.registry import open_source
from hopline.events.decode import Decoder
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.graph.live.version import MESSAGES
from hopline_brokers.stream.batch import Naming, Upserts, as_sets, read_batch
from hopline_brokers.stream.dead_letters import StreamStopped
from packages.brokers.tests.stream.fakes import FakeSource, FakeWriter, Log
from packages.brokers.tests.stream.test_consumer import add, consumer, disk_of, know
from tests.events.events_of_people import SHOP
from tests.graph.live.test_writer import live

PLACE = "fake/a"
URLS = {
    "kafka": "kafka://here/e?group=g",
    "nats": "nats://here/e?subject=e&durable=d",
    "redis": "redis://here/0?stream=e&group=g",
}


def message(position, payload=b"{}", partition="kafka/edges/0", timestamp_ms=0):
    return Message(payload, partition, position, timestamp_ms=timestamp_ms)


def _source(scheme):
    """A broker's source, which is not opened."""
    return open_source(URLS[scheme], "test")


class NamedWriter(FakeWriter):
    """Records what names versions."""

    def __init__(self, disk):
        super().__init__(disk)
        self.named = []

    async def apply(self, batches):
        for changes in batches:
            if MESSAGES in changes.positions:
                self.named.append([(at, count) for at, _, count in changes.positions[MESSAGES]])
        return await super().apply(batches)


async def follow(log, disk, *, step=3, **options):
    writer = NamedWriter(disk)
    source = FakeSource(log, step=step)
    await consumer(log, disk, [], source=source, writer=writer, names_versions=True, **options).run()
    return writer


@pytest.mark.parametrize("step", [1, 2, 5, 100])
async def test_all_messages_are_named_once_and_in_order(step):
    payloads = [know("u0", "u1"), b"{nope", add("u9"), know("u9", "nobody"), know("u1", "u2")]
    writer = await follow(Log(a=payloads), disk_of(), step=step)
    assert [each for batch in writer.named for each in batch] == [(1, 1), (2, 0), (3, 1), (4, 1), (5, 1)]


@pytest.mark.parametrize("step", [1, 2, 3, 100])
async def test_a_repeated_event_id_has_the_same_outcome_in_all_batches(step):
    """The first is refused, as its node is not known yet; the second one is not."""
    payloads = [know("u9", "u1", id="e"), add("u9"), know("u9", "u1", id="e"), know("u9", "u1", id="e")]
    disk = disk_of()
    await follow(Log(a=payloads), disk, step=step)
    assert [(src, dst) for _, src, dst in disk.edges] == [("u9", "u1")]


async def test_many_repetitions_are_processed_one_batch_each():
    disk = disk_of()
    writer = await follow(Log(a=[know("u0", "u1", id="e")] * 2_000), disk, step=5_000)
    assert len(writer.named) == 2_000
    assert len(disk.edges) == 1


def facts(batch):
    """All of a batch, as values that can be compared."""
    changes = batch.changes
    parts = {
        name: {key: np.asarray(value).tolist() for key, value in asdict(part).items()}
        for name, part in (changes.edges | changes.nodes).items()
    }
    times = None if changes.event_time_ms is None else changes.event_time_ms.tolist()
    arrays = (batch.payload.tolist(), batch.index.tolist())
    return (
        parts,
        changes.num_events,
        list(changes.event_ids),
        times,
        *arrays,
        list(batch.refused),
        batch.messages,
    )


@pytest.mark.parametrize("count", range(7))
def test_the_parts_of_a_batch_are_the_batches_of_its_messages(count):
    payloads = [
        b"{nope",
        know("u0", "u1"),
        add("u9", features=[1.0]),
        b"{nope",
        add("u9"),
        know("u9", "u1"),
    ]
    messages = [
        Message(payload, "fake/a", at + 1, timestamp_ms=1_000 + at) for at, payload in enumerate(payloads)
    ]
    decoder = Decoder(SHOP)
    parts = read_batch(messages, decoder).split(count)
    for part, own in zip(parts, (messages[:count], messages[count:]), strict=True):
        assert part.messages == own
        if own:
            assert facts(part) == facts(read_batch(own, decoder))


async def test_a_message_without_events_is_done_before_the_stream_stops_at_another_schema():
    disk, letters = disk_of(), []
    log = Log(a=[b"{nope", add("u8", features=[1.0, 2.0])])
    with pytest.raises(StreamStopped, match="fake/a at 2"):
        await consumer(log, disk, letters, on_schema_change="stop").run()
    assert [each.code for each in letters] == ["malformed"]
    assert disk.positions["fake/a"] == 1


async def test_a_stream_of_two_partitions_has_no_order():
    with pytest.raises(StreamStopped, match="no common order"):
        await follow(Log(a=[know("u0", "u1")], b=[know("u1", "u2")]), disk_of())


async def test_a_stream_that_lost_messages_stops():
    log = Log(a=[know("u0", "u1")])
    source = FakeSource(log)
    source.gaps = [Gap(PLACE, 0, 3, "trimmed")]
    disk = disk_of()
    with pytest.raises(StreamStopped, match=r"3 messages are missing \(trimmed\).*live\.snapshots"):
        await consumer(log, disk, [], source=source, writer=NamedWriter(disk), names_versions=True).run()
    assert disk.edges == []


@pytest.mark.parametrize(
    ("scheme", "first", "later"), [("kafka", 1, 2), ("nats", 2, 3), ("redis", "170-0@1", "170-1@2")]
)
def test_a_stream_whose_first_messages_are_gone_cannot_begin(scheme, first, later):
    is_first = _source(scheme).is_first
    Naming({}, is_first).check([message(first)])
    with pytest.raises(StreamStopped, match="earlier messages are gone"):
        Naming({}, is_first).check([message(later)])
    Naming({"hopline/offset": "7.00000000000a"}, is_first).check([message(later)])


@pytest.mark.parametrize(
    "positions",
    [{"redis/x": "170-0@1"}, {"redis/x": "1-0@1", "hopline/offset": "1.0a", "hopline/judged/redis/x": 3}],
)
def test_a_graph_that_followed_another_stream_is_refused(positions):
    is_first = _source("redis").is_first
    Naming(positions, is_first).check([message("170-0@1", partition="redis/x")])
    with pytest.raises(StreamStopped, match=r"followed redis/x, and live\.stream is redis/y: follow"):
        Naming(positions, is_first).check([message("170-0@1", partition="redis/y")])


def test_batches_end_where_a_span_of_time_ends():
    naming = Naming({}, FakeSource(Log()).is_first, span_ms=20)
    messages = [message(at, timestamp_ms=1_000 + 5 * at) for at in range(1, 8)]  # 1005 … 1035
    assert naming.complete(messages, 1_036) == (3, pytest.approx(0.009))  # 1005 … 1015
    assert naming.complete(messages, 1_046) == (7, 0.0)  # their span is over
    assert naming.complete(messages[:3], 1_016)[0] == 0
    assert naming.complete(messages, 500) == (7, 0.0)  # another clock
    assert naming.complete([], 0) == (0, 0.0)


async def test_the_graph_is_reported_as_current_once():
    calls = []

    async def current():
        calls.append(1)

    log, disk = Log(a=[know("u0", "u1")] * 5), disk_of()
    follower = consumer(log, disk, [], names_versions=True)
    follower._on_current = current
    await asyncio.wait_for(follower.run(), 20)
    assert calls == [1]


async def test_a_busy_stream_is_current_once_all_that_it_had_at_the_start_is_applied():
    """It always has more; and the rest may be many events though it is less than a batch of messages."""
    log, disk = Log(a=[know("u0", "u1")] * 40), disk_of()
    seen = []

    class Busy(FakeSource):
        async def poll(self, max_messages, max_wait_s):
            if not seen:
                log.add("a", know("u1", "u2"))
            return await super().poll(max_messages, max_wait_s)

    async def current():
        seen.append(len(disk.edges))

    follower = consumer(log, disk, [], source=Busy(log, step=2), names_versions=True, max_batch=30)
    follower._on_current = current
    await asyncio.wait_for(follower.run(), 20)
    assert len(seen) == 1
    assert seen[0] >= 40


def test_missing_nodes_with_a_history_exist_from_their_first_row_or_edge_on():
    """As a batch with the events themselves behind them: an edge is never older than its node."""
    rows = NodeTable(np.ones((1, 1), np.float32), ids=["old"], history=[0])
    pays = EdgeTable((["old"], ["old"]), time=[3])
    graph = Graph.from_tables({"user": rows}, {("user", "pays", "user"): pays})
    writer, view = live(graph)
    events = [
        {"op": "set_features", "node": "a", "features": [7.0], "time": 40},
        {"op": "add_edge", "src": "a", "dst": "b", "time": 25},
        {"op": "add_edge", "src": "b", "dst": "a", "time": 20},
        {"op": "add_node", "node": "c", "features": [8.0], "time": 10},
        {"op": "add_edge", "src": "c", "dst": "old", "time": 15},
    ]
    changes = Decoder(graph.schema).decode([json.dumps(events).encode()]).changes
    upserts = Upserts(graph.schema)
    missing = upserts.missing(changes)
    assert {each.code for each in writer.apply(missing).rejected} == {"node_exists"}  # "old"
    assert not writer.apply(as_sets(changes)).rejected
    upserts.remember(missing)
    assert not upserts.missing(changes).num_events
    nodes = view.snapshot().node()
    found = {}
    for at, name in enumerate(nodes.ids.external(np.arange(4))):
        own = slice(*nodes.history.offsets[at : at + 2].tolist())
        rows = np.asarray(nodes.history.features[own])[:, 0].tolist()
        found[name] = dict(zip(nodes.history.times[own].tolist(), rows, strict=True))
    assert found == {"old": {0: 1.0}, "a": {20: 0.0, 40: 7.0}, "b": {20: 0.0}, "c": {10: 8.0}}
