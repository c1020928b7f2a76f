"""A request that goes for feature rows is counted once, and its time away is no time in the queue."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from hopline.answering.graph_computer import GraphComputer
from hopline.answering.queued import QueuedVersion
from hopline.artifact import read_spec
from hopline.config.reader import load_config
from hopline.engine.answer import FetchedInputs
from hopline.engine.model import load_model
from hopline.engine.source import Absent
from hopline.observe.metrics import Metrics
from hopline.types import ScoreRequest, ScoreResult
from tests.engine import zoo
from tests.fake_version import hand_in


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from tests.packaged import package

    root = tmp_path_factory.mktemp("away")
    graph = zoo.homogeneous(1)
    package(zoo.Plain().eval(), graph, root, name="plain", fanouts=[4, 3, 5], task="multiclass")
    folder = root / "plain" / "1"
    return load_model(folder, read_spec(folder), graph)


class Rows:
    """Keeps requests away until they are let go."""

    def __init__(self):
        self.waiting = []

    def begin(self, absent, supply, until, resume, wanted, is_over):
        self.waiting.append(resume)


@pytest.mark.release
async def test_time_away_is_stage_fetch(model):
    rows, notes = Rows(), []
    metrics = Metrics().model("plain", "1")
    with ThreadPoolExecutor(1) as pool:
        recorder = SimpleNamespace(record=notes.append)
        computer = GraphComputer(model, load_config())
        version = QueuedVersion(computer, load_config(), metrics, pool, recorders=[recorder])
        computer.fetcher, computer.fetches = rows, True
        computer._fetched_rows = SimpleNamespace(observe=lambda count: None)

        def answer(requests, supplies):
            return [
                ScoreResult("plain", "1", "", {})
                if supply.is_last or request.nodes == ["near"]
                else Absent({"node": np.arange(3)})
                for request, supply in zip(requests, supplies, strict=True)
            ]

        computer.answerer.answer_supplied = answer
        far, near = [asyncio.get_running_loop().create_future() for _ in range(2)]
        began = time.monotonic()
        hand_in(version, ScoreRequest("plain", nodes=["far"]), far.set_result)
        hand_in(version, ScoreRequest("plain", nodes=["near"]), near.set_result)
        await near
        await asyncio.sleep(0.03)
        assert not far.done()
        rows.waiting.pop()(FetchedInputs({}, True), 1.0)
        await far
        elapsed = time.monotonic() - began
        version.flush_metrics()
    assert [len(ran.requests) for ran in notes] == [1, 1]
    assert sum(metrics.fetch.counts) == 1
    assert sum(metrics.queue.counts) == sum(metrics.total.counts) == 2
    assert 0.02 < metrics.fetch.sum <= elapsed
    assert metrics.queue.sum + metrics.fetch.sum < metrics.total.sum  # a fetch is no time in the queue
    assert metrics.total.sum > metrics.fetch.sum
    assert notes[0].away_s == [0.0]
    assert notes[1].away_s[0] >= metrics.fetch.sum
