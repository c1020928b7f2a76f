"""What is scored after changes, and that its results are published at least once."""

import asyncio
import json

import numpy as np
import pytest

from hopline.errors import BadRequest, BrokerUnavailable, Overloaded, Unavailable
from hopline.observe.metrics import Metrics
from hopline.types import ScoreResult
from hopline_brokers.stream.clock import Clock
from hopline_brokers.stream.consumer import Consumer, StreamOptions
from hopline_brokers.stream.meters import StreamMetrics
from hopline_brokers.stream.rescore import RescoreOptions, Rescorer, read_mode
from packages.brokers.tests.stream.fakes import Disk, FakeSink, FakeSource, FakeWriter, Kept, Log, text


class FakeScorer:
    """Scores a node by its features, as they are when it is asked."""

    def __init__(self, disk, failures=()):
        self.disk = disk
        self.failures = list(failures)
        self.asked = []

    async def score(self, request):
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        self.asked.append(list(request.nodes))
        known = self.disk.nodes["user"]
        scores = np.array([known.get(node, [np.nan])[0] for node in request.nodes], np.float32)
        outputs = {"score": scores, "embedding": np.stack([scores, scores], axis=1)}
        missing = np.array([node not in known for node in request.nodes])
        return ScoreResult("risk", "3", f"base+{self.disk.sequence}", outputs, missing)


def features(node, value, **more):
    return text({"op": "set_features", "node_type": "user", "node": node, "features": [value] * 3, **more})


def disk_of(count=5):
    return Disk(nodes={"user": {f"u{i}": [0.0] * 3 for i in range(count)}, "item": {}})


async def no_sleep(seconds):
    await asyncio.sleep(0)


def rescorer(disk, sink, scorer=None, metrics=None, **more):
    metrics = metrics or StreamMetrics(Metrics())
    scorer = scorer or FakeScorer(disk)
    options = RescoreOptions("risk", "user", **more)
    made = Rescorer(FakeWriter(disk), scorer, sink, metrics, options, clock=Clock(lambda: 7.0, no_sleep))
    return made, scorer


async def life(log, disk, sink, **more):
    """Follow the log to its end and score what changed."""
    made, scorer = rescorer(disk, sink, **more)
    await made.open(disk.positions, disk.sequence)
    consumer = Consumer(
        FakeSource(log),
        FakeWriter(disk),
        Kept(),
        StreamMetrics(Metrics()),
        StreamOptions(once=True),
        listener=made,
        clock=Clock(sleep=no_sleep),
    )
    await consumer.run()
    await made.catch_up()
    await consumer.commit()
    return made, scorer


async def test_nodes_that_changed_are_scored_and_published_with_what_they_were_computed_on():
    disk, sink = disk_of(), FakeSink()
    await life(Log(a=[features("u1", 2.0, at=6000), features("u3", 4.0, at=6500)]), disk, sink)
    results = {message.key: json.loads(message.payload) for message in sink.sent}
    assert results["u3"] == {
        "model": "risk",
        "version": "3",
        "graph_version": "base+1",
        "node_type": "user",
        "node": "u3",
        "outputs": {"score": 4.0, "embedding": [4.0, 4.0]},
        "sequence": 1,
        "event_time_ms": 6500,
        "scored_at_ms": 7000,
    }
    assert set(results) == {"u1", "u3"}
    assert disk.positions["hopline/scored/risk"] == 1


async def test_many_nodes_are_requested_in_parts_and_unknown_ones_left_out():
    disk, sink = disk_of(10), FakeSink()
    made, scorer = rescorer(disk, sink, chunk=4)
    await made.open({}, 0)
    disk.touched = [(1, "user", f"u{i}") for i in range(9)] + [(1, "user", "gone"), (1, "item", 3)]
    disk.sequence = 1
    made.changed(1, 0)
    await made.catch_up()
    assert [len(asked) for asked in scorer.asked] == [4, 4, 2]
    assert sorted(message.key for message in sink.sent) == [f"u{i}" for i in range(9)]


async def test_what_passes_is_waited_for():
    disk = disk_of()
    sink = FakeSink([BrokerUnavailable("away"), None])
    scorer = FakeScorer(disk, [Overloaded("full"), Unavailable("draining")])
    await life(Log(a=[features("u1", 2.0)]), disk, sink, scorer=scorer)
    assert [message.key for message in sink.sent] == ["u1"]


async def test_results_that_were_not_published_are_published_by_the_next_life():
    disk, log = disk_of(), Log(a=[features("u1", 2.0)])
    await life(log, disk, FakeSink())
    log.add("a", features("u2", 5.0))
    broken = FakeSink([RuntimeError("killed")])
    with pytest.raises(RuntimeError, match="killed"):
        await life(log, disk, broken)
    assert disk.positions["fake/a"] == 2
    assert disk.positions["hopline/scored/risk"] == 1
    again = FakeSink()
    made, _ = rescorer(disk, again)
    await made.open(disk.positions, disk.sequence)
    running = asyncio.create_task(made.run())
    while made.scored < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    running.cancel()
    assert [message.key for message in again.sent] == ["u2"]


async def test_changes_while_scoring_are_scored_together_afterwards():
    disk, sink = disk_of(), FakeSink()
    made, scorer = rescorer(disk, sink)
    await made.open({}, 0)
    running = asyncio.create_task(made.run())
    for version in range(1, 6):
        disk.sequence = version
        disk.touched.append((version, "user", f"u{version % 5}"))
        made.changed(version, 0)
    while made.scored < 5:  # noqa: ASYNC110
        await asyncio.sleep(0)
    running.cancel()
    assert len(scorer.asked) <= 2
    assert {node for asked in scorer.asked for node in asked} == {f"u{i}" for i in range(5)}


@pytest.mark.parametrize(
    ("text", "mode"),
    [("request", ("request", 0)), ("immediate", ("rescore", 0)), ("schedule:2.5", ("rescore", 2.5))],
)
def test_modes_are_read(text, mode):
    assert read_mode(text) == mode


@pytest.mark.parametrize("text", ["", "often", "schedule", "schedule:0", "schedule:-1", "schedule:nan"])
def test_other_modes_are_refused(text):
    with pytest.raises(BadRequest, match="schedule:SECONDS"):
        read_mode(text)
