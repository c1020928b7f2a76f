"""The consumer against fakes: whatever dies, fails or waits, nothing is lost and nothing repeated."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.brokers.base import Message
from hopline.errors import BrokerError, GraphError, LogFull, WriterUnavailable
from hopline.observe.metrics import Metrics
from hopline_brokers.stream.clock import Clock
from hopline_brokers.stream.consumer import Consumer, StreamOptions
from hopline_brokers.stream.dead_letters import FileDeadLetters, Refuse, SinkDeadLetters, StreamStopped
from hopline_brokers.stream.intake import Intake
from hopline_brokers.stream.meters import StreamMetrics
from hopline_brokers.stream.outcomes import positions_of_sources
from packages.brokers.tests.stream.fakes import (
    Crash,
    Disk,
    FakeSink,
    FakeSource,
    FakeWriter,
    Faults,
    Kept,
    Log,
    gap,
    lost_answer,
    refused,
    text,
)
from tests.thorough import thorough

NODES = {"user": {f"u{i}": [0.0] * 3 for i in range(5)}, "item": {}}


def know(src, dst, **more):
    return text({"op": "add_edge", "edge_type": "user__knows__user", "src": src, "dst": dst, **more})


def unknow(src, dst):
    return text({"op": "remove_edge", "edge_type": "user__knows__user", "src": src, "dst": dst})


def add(name, **more):
    return text({"op": "add_node", "node_type": "user", "node": name, "features": [1.0, 2.0, 3.0], **more})


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Nothing came for a moment: positions are written."""
    monkeypatch.setattr("hopline_brokers.stream.consumer._IDLE_S", 0.001)


async def no_sleep(seconds):
    await asyncio.sleep(0)


def disk_of(**more):
    return Disk(nodes={name: dict(found) for name, found in NODES.items()}, **more)


async def until(condition):
    """Let the others run until it holds."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


def consumer(log, disk, letters, faults=None, *, metrics=None, source=None, writer=None, **options):
    faults = faults or Faults()
    return Consumer(
        source or FakeSource(log, faults),
        writer or FakeWriter(disk, faults),
        letters if hasattr(letters, "write") else Kept(letters, faults),
        metrics or StreamMetrics(Metrics()),
        StreamOptions(**{"once": True, **options}),
        clock=Clock(sleep=no_sleep),
    )


async def follow(log, disk, letters, faults=None, **more):
    """One life of the process; whether it died."""
    try:
        await consumer(log, disk, letters, faults, **more).run()
    except Crash:
        return True
    return False


def a_log():
    """Two partitions: good events, bad ones and messages of several."""
    return Log(
        a=[
            know("u0", "u1", id="e1"),
            know("u1", "nobody"),
            b"{nope",
            text([json.loads(know("u2", "u3")), {"op": "dance"}, json.loads(know("u3", "u4"))]),
            add("u9"),
            know("u9", "u0"),
            know("u0", "u1", id="e1"),
        ],
        b=[know("u4", "u0"), unknow("u4", "u0"), unknow("u4", "u0"), know("u4", "u0"), add("u4")],
    )


WANTED_EDGES = sorted([("u0", "u1"), ("u2", "u3"), ("u3", "u4"), ("u9", "u0"), ("u4", "u0")])
WANTED_LETTERS = sorted(
    [
        ("fake/a", "2", 0, "unknown_node"),
        ("fake/a", "3", -1, "malformed"),
        ("fake/a", "4", 1, "malformed"),
        ("fake/b", "3", 0, "no_edge"),
        ("fake/b", "5", 0, "node_exists"),
    ]
)


def edges_of(disk):
    return sorted((src, dst) for _, src, dst in disk.edges)


def at(disk):
    """Where sources go on."""
    return positions_of_sources(disk.positions)


def are_wanted(letters):
    """Each event that is to be put aside is, and nothing else; why may be lost with who died."""
    known = {place[:3]: place for place in WANTED_LETTERS}
    for each in places(letters):
        assert each == known[each[:3]] or each[3] == "rejected"
    return {each[:3] for each in places(letters)} == set(known)


def places(letters):
    return [(each.partition, each.position, each.index, each.code) for each in letters]


async def test_everything_ends_where_it_belongs():
    log, disk, letters = a_log(), disk_of(), []
    metrics = StreamMetrics(Metrics())
    assert not await follow(log, disk, letters, metrics=metrics)
    assert edges_of(disk) == WANTED_EDGES
    assert sorted(places(letters)) == WANTED_LETTERS
    assert at(disk) == {"fake/a": 7, "fake/b": 5} == log.acknowledged
    by_place = dict(zip(places(letters), letters, strict=True))
    dance = by_place["fake/a", "4", 1, "malformed"]
    assert json.loads(dance.payload) == {"op": "dance"}
    assert "known are add_edge" in dance.reason
    assert metrics.outcome("applied") == 8
    assert metrics.outcome("duplicate") == 1
    assert metrics.outcome("malformed") == 2
    assert metrics.num_events == 14


async def steps(max_batch):
    faults = Faults()
    await follow(a_log(), disk_of(), [], faults, max_batch=max_batch)
    return faults.count


@pytest.mark.sample(1)
@pytest.mark.parametrize("max_batch", [1, 3, 100])
async def test_a_process_that_dies_between_any_two_steps_loses_nothing_and_repeats_nothing(max_batch):
    count = await steps(max_batch)
    assert count > 10
    for step in range(1, count + 1):
        log, disk, letters = a_log(), disk_of(), []
        # how often a source is polled is a matter of time: a life may be over before its last steps
        died = await follow(log, disk, letters, Faults(step), max_batch=max_batch)
        assert died or step > 10
        # what the broker was told is never ahead of what is safe
        for name, position in log.acknowledged.items():
            assert position <= disk.positions[name]
        assert not await follow(log, disk, letters, max_batch=max_batch)
        assert edges_of(disk) == WANTED_EDGES, step
        assert len(disk.history) == 8, step
        assert are_wanted(letters), step
        assert at(disk) == {"fake/a": 7, "fake/b": 5}


@pytest.mark.release
@settings(max_examples=thorough(10, 40), deadline=None)
@given(st.lists(st.integers(1, 40), max_size=8), st.integers(1, 6))
def test_many_deaths_are_as_good_as_none(deaths, max_batch):
    async def run():
        log, disk, letters = a_log(), disk_of(), []
        for at in deaths:
            await follow(log, disk, letters, Faults(at), max_batch=max_batch)
        assert not await follow(log, disk, letters, max_batch=max_batch)
        assert edges_of(disk) == WANTED_EDGES
        assert are_wanted(letters)

    asyncio.run(run())


names = st.sampled_from(["u0", "u1", "u2", "x", "y"])
streams = st.lists(
    st.builds(know, names, names) | st.builds(unknow, names, names) | st.builds(add, names), max_size=25
)


@settings(max_examples=thorough(15, 60), deadline=None)
@given(streams, st.lists(st.integers(1, 30), max_size=6), st.integers(1, 7), st.booleans())
def test_events_are_judged_once_and_in_their_turn_whatever_dies(payloads, deaths, max_batch, adds):
    more = {"max_batch": max_batch, "on_unknown_node": "add" if adds else "reject"}

    async def run(deaths):
        disk, letters = disk_of(), []
        for at in deaths:
            await follow(Log(a=payloads), disk, letters, Faults(at), **more)
        assert not await follow(Log(a=payloads), disk, letters, **more)
        return disk, {each.position for each in letters}

    calm, put_aside = asyncio.run(run([]))
    disk, letters = asyncio.run(run(deaths))
    assert edges_of(disk) == edges_of(calm)
    assert disk.nodes == calm.nodes
    assert letters == put_aside
    if not adds:
        assert [event for _, event in disk.history] == [event for _, event in calm.history]


@pytest.mark.parametrize(
    "failures",
    [
        [refused(WriterUnavailable("gone")), refused(WriterUnavailable("still gone"))],
        [lost_answer(WriterUnavailable("the answer was lost"))],
        [refused(LogFull("disk full")), lost_answer(WriterUnavailable("again"))],
    ],
    ids=["away", "answer lost", "full disk"],
)
async def test_a_writer_that_cannot_be_called_is_waited_for(failures):
    log, disk, letters = a_log(), disk_of(), []
    metrics = Metrics()
    waits = []

    async def sleep(seconds):
        waits.append(seconds)
        assert b'hopline_stream_waiting{what="writer"} 1' in metrics.render()
        await asyncio.sleep(0)

    follower = Consumer(
        FakeSource(log),
        FakeWriter(disk, failures=failures),
        Kept(letters),
        StreamMetrics(metrics),
        StreamOptions(once=True),
        clock=Clock(sleep=sleep),
    )
    await follower.run()
    assert waits == [0.05, 0.1][: len(failures)]
    assert edges_of(disk) == WANTED_EDGES
    assert len(disk.history) == 8
    assert are_wanted(letters)
    assert b'hopline_stream_waiting{what="writer"} 0' in metrics.render()


async def test_a_writer_that_is_broken_ends_the_stream():
    log, disk = a_log(), disk_of()
    writer = FakeWriter(disk, failures=[refused(GraphError("the log is damaged"))])
    with pytest.raises(GraphError, match="damaged"):
        await consumer(log, disk, [], writer=writer).run()
    assert log.acknowledged == {}


async def test_nothing_is_acknowledged_before_dead_letters_are_written():
    log, disk = Log(a=[b"{nope", know("u0", "u1")]), disk_of()

    class Down(Kept):
        async def write(self, letters):
            assert log.acknowledged == {}
            assert at(disk) == {}
            await super().write(letters)

    kept = Down(failures=3)
    await consumer(log, disk, kept).run()
    assert [each.code for each in kept.letters] == ["malformed"]
    assert log.acknowledged == {"fake/a": 2}
    again = Log(a=[b"{nope"])
    sink = FakeSink([BrokerError("not allowed")] * 3)
    with pytest.raises(BrokerError):
        await consumer(again, disk_of(), SinkDeadLetters(sink)).run()
    assert again.acknowledged == {}


async def test_a_dead_letter_that_is_too_large_goes_without_its_payload():
    log, disk = Log(a=[b"{nope", know("u0", "nobody", id="x")]), disk_of()
    sink = FakeSink([BrokerError("too large"), BrokerError("message too large"), None, None])
    await consumer(log, disk, SinkDeadLetters(sink)).run()
    large, whole = sink.sent
    assert large.payload == b""
    assert large.headers["hopline-payload-omitted"] == "5 bytes: message too large"
    assert whole.payload == know("u0", "nobody", id="x")
    assert whole.headers["hopline-code"] == "unknown_node"
    assert whole.headers["hopline-event-id"] == "x"
    assert (whole.headers["hopline-partition"], whole.headers["hopline-position"]) == ("fake/a", "2")


async def test_dead_letters_in_a_file_can_be_read_again(tmp_path):
    path = tmp_path / "letters.ndjson"
    log, disk = Log(a=[b"\xff\xfe", know("u0", "nobody")]), disk_of()
    await consumer(log, disk, FileDeadLetters(path)).run()
    first, second = map(json.loads, path.read_text().splitlines())
    assert (first["encoding"], first["payload"], first["code"]) == ("base64", "//4=", "malformed")
    assert second["payload"].encode() == know("u0", "nobody")
    assert "unknown_node" in second["reason"]


async def test_without_a_place_for_dead_letters_the_stream_stops_before_the_first():
    log, disk = Log(a=[know("u0", "u1"), know("u1", "u2"), b"{nope", know("u2", "u3")]), disk_of()
    with pytest.raises(StreamStopped, match=r"fake/a at 3: malformed.*--dead-letters"):
        await consumer(log, disk, Refuse(), max_batch=1).run()
    assert log.acknowledged["fake/a"] <= 2
    assert edges_of(disk) == [("u0", "u1"), ("u1", "u2")]


async def test_a_message_that_the_broker_could_not_read_is_put_aside():
    broken = Message(b"", "fake/a", 1, problem="the checksum is wrong")
    log, disk, letters = Log(a=[broken, know("u0", "u1")]), disk_of(), []
    assert not await follow(log, disk, letters)
    assert [(each.code, each.reason) for each in letters] == [("malformed", "the checksum is wrong")]
    assert edges_of(disk) == [("u0", "u1")]


async def test_gaps_are_counted_and_reported(caplog):
    log, disk, metrics = a_log(), disk_of(), Metrics()
    source = FakeSource(log)
    source.gaps = [gap()]
    await consumer(log, disk, [], source=source, metrics=StreamMetrics(metrics)).run()
    assert b'hopline_stream_gaps_total{partition="fake/a"} 1' in metrics.render()
    assert b'hopline_stream_lost_messages_total{partition="fake/a"} 3' in metrics.render()
    assert "messages from 5 on were lost (3): trimmed" in caplog.text


# Another schema in the midst


async def test_another_schema_is_put_aside_and_the_stream_goes_on():
    changed = add("u8", features=[1.0, 2.0])
    log, disk, letters = Log(a=[add("u7"), changed, add("u6")]), disk_of(), []
    assert not await follow(log, disk, letters)
    assert [(each.code, each.position) for each in letters] == [("schema_changed", "2")]
    assert "2 numbers; the graph has 3 (age, spent, visits)" in letters[0].reason
    assert {"u7", "u6"} <= set(disk.nodes["user"])


@pytest.mark.parametrize("max_batch", [1, 100])
async def test_or_it_stops_there_and_takes_that_message_first_the_next_time(max_batch):
    changed = add("u8", features=[1.0, 2.0])
    log, disk, letters = Log(a=[add("u7"), b"{nope", changed, add("u6")]), disk_of(), []
    for _ in range(2):
        with pytest.raises(StreamStopped, match=r"fake/a at 3.*2 numbers; the graph has 3"):
            await consumer(log, disk, letters, on_schema_change="stop", max_batch=max_batch).run()
        assert at(disk) == {"fake/a": 2}
        assert set(disk.nodes["user"]) - set(NODES["user"]) == {"u7"}
        assert [each.code for each in letters] == ["malformed"]


# Unknown nodes


async def test_unknown_nodes_are_added_where_that_is_requested():
    log = Log(
        a=[
            know("x", "y"),
            know("x", "z"),
            unknow("x", "z"),
            add("x"),
            text({"op": "set_features", "node_type": "user", "node": "w", "features": [7, 8, 9]}),
            unknow("x", "u0"),
            b"{nope",
        ]
    )
    disk, letters, metrics = disk_of(), [], StreamMetrics(Metrics())
    assert not await follow(log, disk, letters, on_unknown_node="add", metrics=metrics)
    assert edges_of(disk) == [("x", "y")]
    assert [disk.nodes["user"][name] for name in "xyzw"] == [[1, 2, 3], [0, 0, 0], [0, 0, 0], [7, 8, 9]]
    assert sorted(each.code for each in letters) == ["malformed", "no_edge"]
    assert metrics.outcome("applied") == 5


async def test_adding_unknown_nodes_survives_a_death_at_any_step():
    payloads = [know("x", "y"), add("x"), know("y", "u0"), b"{nope", unknow("u0", "u1")]

    async def live(disk, letters, faults=None):
        return await follow(Log(a=payloads), disk, letters, faults, on_unknown_node="add")

    counting = Faults()
    await live(disk_of(), [], counting)
    for step in range(1, counting.count + 1):
        disk, letters = disk_of(), []
        # how often a source is polled is a matter of time: a life may be over before its last steps
        assert await live(disk, letters, Faults(step)) or step > 10
        assert not await live(disk, letters)
        assert edges_of(disk) == [("x", "y"), ("y", "u0")], step
        assert disk.nodes["user"]["x"] == [1, 2, 3]
        assert {(each.position, each.code == "malformed") for each in letters} == {
            ("4", True),
            ("5", False),
        }


# Room, time, order


async def test_a_graph_without_room_is_waited_for_and_the_batch_applied_once():
    disk, letters, metrics = disk_of(room=1), [], StreamMetrics(Metrics())
    waits = []

    async def leave_cpu(seconds):
        waits.append(seconds)
        disk.room += 1
        await asyncio.sleep(0)

    log = Log(a=[add("a"), add("b"), know("b", "a"), add("c"), know("u0", "u1")])
    follower = Consumer(
        FakeSource(log, step=100),
        FakeWriter(disk),
        Kept(letters),
        metrics,
        StreamOptions(once=True),
        clock=Clock(sleep=leave_cpu),
    )
    await follower.run()
    assert len(waits) == 2
    assert letters == []
    assert edges_of(disk) == [("b", "a"), ("u0", "u1")]
    assert metrics.outcome("applied") == 5
    assert metrics.outcome("duplicate") == 0


async def test_freshness_and_late_events_are_measured():
    metrics = StreamMetrics(Metrics())
    log = Log(a=[know("u0", "u1", at=1_000_000), know("u1", "u2", at=999_000), know("u2", "u3")])
    disk = disk_of()
    follower = Consumer(
        FakeSource(log, step=1, timestamp_ms=1_000_900),
        FakeWriter(disk),
        Kept(),
        metrics,
        StreamOptions(once=True, max_batch=1),
        clock=Clock(lambda: 1001.0),
    )
    await follower.run()
    found = dict(zip((*metrics.freshness.bounds, None), metrics.freshness.counts, strict=True))
    assert {bound: count for bound, count in found.items() if count} == {0.1: 1, 1.0: 1, 2.0: 1}
    assert metrics.freshness.sum == pytest.approx(0.1 + 1.0 + 2.0)
    assert metrics.late.value == 1


async def test_under_load_batches_grow_and_at_rest_one_event_goes_at_once():
    log, disk = Log(a=[know("u0", "u1")]), disk_of()
    gate = asyncio.Event()

    class Slow(FakeWriter):
        async def apply(self, batches):
            await gate.wait()
            return await super().apply(batches)

    writer = Slow(disk)
    follower = consumer(
        log, disk, [], source=FakeSource(log, step=1), writer=writer, once=False, max_batch=50
    )
    running = asyncio.create_task(follower.run())
    for _ in range(20):
        await asyncio.sleep(0)
    log.add("a", *[know("u1", "u2")] * 200)
    for _ in range(2000):
        await asyncio.sleep(0)
    gate.set()
    await until(lambda: len(disk.history) == 201)
    follower.stop()
    await running
    assert writer.batches[:2] == [1, 50]
    assert max(writer.batches) == 50


async def test_a_stream_that_gets_a_stop_finishes_what_it_took():
    log, disk = Log(a=[know("u0", "u1")] * 30), disk_of()
    source = FakeSource(log, step=2)
    follower = consumer(log, disk, [], source=source, once=False, max_batch=5)
    running = asyncio.create_task(follower.run())
    await until(lambda: disk.history)
    follower.stop()
    await running
    taken = source.at["fake/a"]
    assert len(disk.history) == taken
    assert at(disk) == {"fake/a": taken} == log.acknowledged


async def test_while_events_keep_coming_a_batch_waits_for_more_and_the_first_does_not():
    log, disk = Log(a=[know("u0", "u1")]), disk_of()
    writer = FakeWriter(disk)
    source = FakeSource(log, step=1)
    follower = consumer(
        log, disk, [], source=source, writer=writer, once=False, max_wait_ms=60_000, max_batch=3
    )
    running = asyncio.create_task(follower.run())
    await until(lambda: writer.batches == [1])
    log.add("a", know("u1", "u2"))
    await asyncio.sleep(0.2)
    assert writer.batches == [1]
    log.add("a", know("u2", "u3"), know("u3", "u4"))
    await until(lambda: len(writer.batches) > 1)
    assert writer.batches == [1, 3]
    follower.stop()
    await running


async def test_a_batch_that_is_not_full_goes_when_it_has_waited():
    log, disk = Log(a=[know("u0", "u1")]), disk_of()
    writer = FakeWriter(disk)
    follower = consumer(
        log, disk, [], source=FakeSource(log, step=1), writer=writer, once=False, max_wait_ms=100
    )
    running = asyncio.create_task(follower.run())
    await until(lambda: writer.batches == [1])
    log.add("a", know("u1", "u2"), know("u2", "u3"))
    await until(lambda: sum(writer.batches) == 3)
    assert writer.batches == [1, 2]
    follower.stop()
    await running


async def test_a_broker_that_does_not_answer_is_reported(caplog):
    caplog.set_level("INFO", "hopline.stream")
    log, disk, metrics = Log(a=[]), disk_of(), Metrics()
    source = FakeSource(log)
    source.reason = "connection refused"
    follower = consumer(log, disk, [], source=source, metrics=StreamMetrics(metrics))
    running = asyncio.create_task(follower.run())
    await until(lambda: b'hopline_stream_waiting{what="broker"} 1' in metrics.render())
    assert (
        not running.done()
    )  # --once ends when the broker says that there is no more, not when it is silent
    source.reason = ""
    log.add("a", know("u0", "u1"))
    await running
    assert edges_of(disk) == [("u0", "u1")]
    assert "waiting for the broker: connection refused" in caplog.text


class Late(FakeSource):
    """Connects at its 10th poll; messages come from the 14th on: its driver fetches them by itself."""

    def __init__(self, log):
        super().__init__(log)
        self.reason = "not connected yet"
        #: What the intake says before each poll.
        self.was_dry = []

    async def poll(self, max_messages, max_wait_s):
        self.was_dry.append(self.intake.is_dry)
        if len(self.was_dry) >= 14:
            return await super().poll(max_messages, max_wait_s)
        if len(self.was_dry) >= 10:
            self.reason = ""
        await asyncio.sleep(0)
        return []

    async def lag(self):
        return {} if self.reason else await super().lag()


async def test_a_broker_that_has_just_connected_is_not_known_to_have_no_more():
    source = Late(Log(a=[know("u0", "u1")]))
    intake = source.intake = Intake(source, 10, StreamMetrics(Metrics()))
    await intake.open({})
    messages = await intake.take(60)
    assert len(messages) == 1
    assert not any(source.was_dry)
    await until(lambda: intake.is_dry)
    await intake.close()


async def test_what_the_source_raises_ends_the_stream():
    class Broken(FakeSource):
        async def poll(self, max_messages, max_wait_s):
            raise BrokerError("no such topic")

    log = Log(a=[])
    with pytest.raises(BrokerError, match="no such topic"):
        await consumer(log, disk_of(), [], source=Broken(log)).run()


async def test_few_messages_at_a_time_are_not_requested_one_by_one():
    log, disk = Log(a=[know("u0", "u1")]), disk_of()
    writer, source = FakeWriter(disk), FakeSource(log, step=100)
    follower = consumer(log, disk, [], source=source, writer=writer, once=False, max_wait_ms=20)
    running = asyncio.create_task(follower.run())
    await until(lambda: writer.batches == [1])
    for _ in range(200):
        log.add("a", know("u1", "u2"))
        await asyncio.sleep(0.001)
    await until(lambda: sum(writer.batches) == 201)
    polls = source.polls
    follower.stop()
    await running
    assert len(writer.batches) < 60
    assert polls <= 3 * len(writer.batches) + 5


async def test_an_event_that_comes_after_a_pause_goes_at_once():
    log, disk = Log(a=[]), disk_of()
    writer = FakeWriter(disk)
    source = FakeSource(log)
    follower = consumer(log, disk, [], source=source, writer=writer, once=False, max_wait_ms=60_000)
    running = asyncio.create_task(follower.run())
    await asyncio.sleep(0.2)  # nothing was there to take, several times
    log.add("a", know("u0", "u1"))
    async with asyncio.timeout(20):  # well before `max_wait_ms`
        await until(lambda: sum(writer.batches) == 1)
    follower.stop()
    await running
