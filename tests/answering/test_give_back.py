"""Ten requests are cancelled while they wait, and a live one comes: for every kind of version."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hopline.answering.limits import ModelLimits
from hopline.answering.queued import QueuedVersion
from hopline.answering.response_cache import CachedVersion
from hopline.config.reader import load_config
from hopline.errors import Overloaded
from hopline.isolated.version import ProcessVersion, Program
from hopline.observe.metrics import Metrics
from hopline.types import ScoreRequest, ScoreResult
from packages.pipelines.tests.rig import Rig, gnn
from tests.fake_version import hand_in
from tests.scripted import FACTORY, ScriptedComputer

TEN = {"rows": {"max_queue_rows": 10}, "requests": {"max_concurrency": 11}}
PIPELINE = """
[inputs]
nodes = true

[[step]]
id = "embed"
kind = "model"
model = "gnn"
nodes = "input.nodes"

[outputs]
score = "embed.probabilities"
"""


class Gated(ScriptedComputer):
    """Computes on a thread, when it is let."""

    def __init__(self):
        super().__init__("m", "1")
        self.gate = threading.Event()

    def run(self, batch):
        assert self.gate.wait(10)
        return super().run(batch)


def gated(limits):
    config = load_config().replace(compute__inline_cost_us=0.0)
    metrics = Metrics().model("m", "1")
    return QueuedVersion(Gated(), config, metrics, ThreadPoolExecutor(1), limits=limits)


def submit(version, value, **kwargs):
    future = asyncio.get_running_loop().create_future()
    request = ScoreRequest("m", columns={"x": [float(value)]}, **kwargs)
    return hand_in(version, request, future.set_result), future


async def cancel_ten(ask):
    """What ten requests took that were cancelled is there for ten more, each time."""
    for _ in range(3):
        tickets = [ask(100 + value)[0] for value in range(10)]
        with pytest.raises(Overloaded):
            ask(200)
        for ticket in tickets:
            ticket.cancel()
    return ask(7)[1]


@pytest.mark.parametrize("limit", TEN)
@pytest.mark.parametrize("cached", [False, True])
async def test_a_version_with_a_queue(limit, cached):
    limits = ModelLimits(**TEN[limit], cache_bytes=2**20 if cached else 0)
    inner = gated(limits)
    version = CachedVersion(inner, limits, load_config(), Metrics()) if cached else inner
    running = submit(version, 1)[1]
    await asyncio.sleep(0.01)  # on the thread
    live = await cancel_ten(lambda value: submit(version, value))
    inner.computer.gate.set()
    assert (await running).outputs["y"] == [2.0]
    assert (await live).outputs["y"] == [14.0]
    await version.join()
    assert inner.computer.seen == [1.0, 7.0]


async def test_equal_requests_give_back_with_the_last_who_waits():
    limits = ModelLimits(max_concurrency=2, cache_bytes=2**20)
    inner = gated(limits)
    version = CachedVersion(inner, limits, load_config(), Metrics())
    running = submit(version, 1)[1]
    await asyncio.sleep(0.01)
    tickets = [submit(version, 5)[0] for _ in range(10)]  # one computation
    for ticket in tickets[:-1]:
        ticket.cancel()
    with pytest.raises(Overloaded):
        submit(version, 6)
    tickets[-1].cancel()
    live = submit(version, 6)[1]
    inner.computer.gate.set()
    assert isinstance(await running, ScoreResult)
    assert (await live).outputs["y"] == [12.0]
    await version.join()


async def test_a_refused_request_keeps_its_token():
    version = gated(ModelLimits(max_concurrency=1, rate_per_s=0.001, burst=2))
    ticket, _ = submit(version, 1)
    with pytest.raises(Overloaded, match="max_concurrency"):
        submit(version, 2)
    ticket.cancel()
    live = submit(version, 3)[1]
    version.computer.gate.set()
    assert (await live).outputs["y"] == [6.0]
    await version.join()


@pytest.mark.parametrize("limit", [{"max_queue_rows": 11}, {"max_concurrency": 11}])
async def test_a_version_in_a_process_of_its_own(limit, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    version = ProcessVersion(
        "m", "1", load_config(), ModelLimits(isolate=True, **limit), Metrics(), program=Program(FACTORY)
    )
    await version.begin()
    try:
        running = submit(version, 1, attributes={"spin_ms": 300})[1]
        await asyncio.sleep(0.05)  # its loop is blocked: it hears of nothing
        live = await cancel_ten(lambda value: submit(version, value))
        assert isinstance(await running, ScoreResult)
        assert (await live).outputs["y"] == [14.0]
        await version.join()
    finally:
        await version.release()


async def test_a_pipeline():
    rig = Rig(PIPELINE, gnn(when="held"), limits=ModelLimits(max_concurrency=11))
    rig.ask(nodes=[1])
    live = await cancel_ten(lambda value: tuple(reversed(rig.ask(nodes=[value]))))
    asked = rig.models["gnn"].asked
    assert rig.models["gnn"].cancelled == asked[1:31]
    assert [each.ended for each in asked] == [False, *[True] * 30, False]
    rig.models["gnn"].answer()
    assert (await asyncio.wait_for(live, 5)).outputs["score"] == pytest.approx([0.07])
