"""The watch tells where a batch's time went, whichever way the batch takes through the engine."""

import time

import numpy as np
import pytest

from hopline.engine.answer import Answerer
from hopline.engine.lap import LapWatch
from hopline.engine.model import load_model
from hopline.engine.tasks import default_outputs
from hopline.types import InlineNode, ScoreRequest
from tests.engine import zoo


def test_every_moment_belongs_to_the_stage_that_ends_next(monkeypatch):
    now = iter([10.0, 11.0, 13.0, 13.5, 17.0])
    monkeypatch.setattr("hopline.engine.lap.perf_counter", lambda: next(now))
    watch = LapWatch()
    watch.sampled()
    watch.computed()
    assert (watch.sample_s, watch.compute_s) == (1.0, 2.0)
    watch.start()
    assert (watch.sample_s, watch.compute_s) == (0.0, 0.0)
    watch.computed()
    assert (watch.sample_s, watch.compute_s) == (0.0, 3.5)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Models by the way that they take: one compiled call, the general steps."""
    from hopline.packaging import package

    root = tmp_path_factory.mktemp("lap")
    graph = zoo.homogeneous(1)
    found = {}
    for name, module in (("chain", zoo.Plain()), ("general", zoo.Sage())):
        options = {"name": name, "fanouts": [4, 3, 5], "task": "multiclass", "check_nodes": 60}
        package(module.eval(), graph, root, **options)
        from hopline.artifact import read_spec

        folder = root / name / "1"
        model = load_model(folder, read_spec(folder), graph)
        found[name] = Answerer(model, default_outputs(model.spec), 100)
    assert found["chain"].model._fused_plan is not None
    return found


@pytest.mark.parametrize("way", ["chain", "general"])
@pytest.mark.parametrize(
    "request_",
    [
        ScoreRequest("m", nodes=["n1", "n2"]),
        ScoreRequest("m", nodes=["n1"], outputs=("embedding",)),
        ScoreRequest("m", nodes=["n3"], inline=[InlineNode(np.ones(6, np.float32), {"": ["n1", "n2"]})]),
        ScoreRequest("m", nodes=[f"n{i}" for i in range(zoo.N)]),
    ],
    ids=["small", "outputs", "inline", "large"],
)
def test_sampling_and_computing_make_up_the_time_of_a_batch(loaded, way, request_):
    answerer = loaded[way]
    watch = answerer.model.watch
    shares = []
    for _ in range(5):
        began = time.perf_counter()
        watch.start()
        (outcome,) = answerer.answer([request_])
        elapsed = time.perf_counter() - began
        assert outcome.outputs
        assert watch.sample_s > 0
        assert watch.compute_s > 0
        shares.append((watch.sample_s + watch.compute_s) / elapsed)
    assert max(shares) <= 1
    assert max(shares) > 0.3  # other programs may run in between
