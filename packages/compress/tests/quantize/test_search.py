"""The gate, bucket by bucket, with scripted figures; and who is drawn."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.errors import PackagingError, ParityError
from hopline_compress.quantize.judge import BucketFigures, Figures
from hopline_compress.quantize.nodes import draw, judged
from hopline_compress.quantize.operators import Layer
from hopline_compress.quantize.search import Search
from tests.thorough import thorough

LAYERS = [Layer(f"1.node/{name}", "1.node", name, name, (64, 64)) for name in "abc"]


def bucket(name, drop):
    return BucketFigures(name, 100, drop, 100 - drop, None, None, 0.1)


class Scripted:
    """Forms and judge in one: what layers cost together is the sum of what they cost the hubs alone."""

    def __init__(self, hubs, others=None, layers=LAYERS):
        self.layers = layers
        self.calls = {"1.node": [{}]}
        self.spec = SimpleNamespace()
        self._hubs = hubs
        self._others = others or {}
        self._chosen = {}

    def write(self, target, forms):
        self._chosen = dict(forms)
        return target

    def compare(self, folder, spec):
        hubs, others = (
            sum(costs.get((name.split("/")[1], form), costs.get(name.split("/")[1], 0.0))
                for name, form in self._chosen.items())
            for costs in (self._hubs, self._others)
        )  # fmt: skip
        buckets = (bucket("degree 0 to 9", others), bucket("degree 10 and more", hubs))
        return Figures(bucket("all nodes", 0.9 * others + 0.1 * hubs), buckets, others + hubs)


def search(script, tmp_path, max_drop=0.5, to=("range", "equalised")):
    return Search(script, script, to, max_drop, tmp_path, lambda done, total: None)


def test_a_layer_that_hurts_only_hubs_is_left_out(tmp_path):
    run = search(Scripted({"a": 0.1, "b": 2.0, "c": 0.1}), tmp_path)
    chosen, figures = run.run({})
    assert sorted(chosen) == ["1.node/a", "1.node/c"]
    assert figures.drop == pytest.approx(0.2)
    assert run.kept == {"1.node/b": "alone costs 2.00 points (degree 10 and more)"}


def test_layers_that_are_too_much_together_lose_the_dearest(tmp_path):
    run = search(Scripted({"a": 0.2, "b": 0.4, "c": 0.2}), tmp_path)
    chosen, _ = run.run({})
    assert sorted(chosen) == ["1.node/a", "1.node/c"]
    assert run.kept["1.node/b"].startswith("with the others costs 0.80 points (degree 10 and more)")


def test_the_scheme_that_is_closer_is_taken(tmp_path):
    script = Scripted({("a", "range"): 0.4, ("a", "equalised"): 0.1})
    chosen, _ = search(script, tmp_path).run({})
    assert chosen["1.node/a"] == "equalised"
    assert chosen["1.node/b"] == "range"  # no closer: without a further operator


def test_the_faster_scheme_is_taken_where_the_other_is_not_much_closer(tmp_path):
    script = Scripted({("a", "range"): 0.2, ("a", "equalised"): 0.15})
    chosen, _ = search(script, tmp_path).run({})
    assert chosen["1.node/a"] == "range"


def test_the_scheme_that_passes_is_taken(tmp_path):
    script = Scripted({("a", "range"): 0.6, ("a", "equalised"): 0.4})
    chosen, _ = search(script, tmp_path).run({})
    assert chosen["1.node/a"] == "equalised"


def test_when_all_hurt_the_error_names_each_with_its_bucket(tmp_path):
    script = Scripted({"a": 3.0, "b": 2.0}, {"c": 1.0})
    with pytest.raises(ParityError) as caught:
        search(script, tmp_path).run({})
    said = str(caught.value)
    assert "within 0.5 points, and nothing was written" in said
    assert "1.node/a: alone costs 3.00 points (degree 10 and more)" in said
    assert "1.node/c: alone costs 1.00 points (degree 0 to 9)" in said
    assert "--max-drop" in said


def test_a_model_without_layers(tmp_path):
    with pytest.raises(PackagingError, match="no products with constant weights"):
        search(Scripted({}, layers=[]), tmp_path).run({})


def test_small_layers_and_layers_that_nothing_reaches_are_not_tried(tmp_path):
    small = Layer("1.node/s", "1.node", "s", "s", (8, 8))
    unseen = Layer("2.node/u", "2.node", "u", "u", (64, 64))
    run = search(Scripted({}, layers=[*LAYERS, small, unseen]), tmp_path)
    chosen, _ = run.run({})
    assert len(chosen) == 3
    assert "64 weights" in run.kept["1.node/s"]
    assert "no calibration node reaches it" in run.kept["2.node/u"]


@settings(max_examples=thorough(7, 30), deadline=None)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=400), st.integers(1, 80), st.integers(0, 2**32 - 1)
)
def test_buckets_divide_all_nodes_and_none_is_too_small(degree, least, seed):
    degree = np.array(degree)
    rng = np.random.default_rng(seed)
    allowed = np.flatnonzero(rng.random(degree.size) < 0.7)
    if not allowed.size:
        allowed = np.arange(degree.size)
    found = judged(degree, allowed, 100, least, rng)
    assert np.isin(found.nodes, allowed).all()
    assert len(set(found.nodes.tolist())) == found.nodes.size
    assert found.shares.sum() == pytest.approx(1)
    counts = np.bincount(found.bucket, minlength=len(found.names))
    if len(found.names) > 1:
        assert (counts >= least).all()
    order = np.argsort(degree[found.nodes], kind="stable")
    assert (np.diff(found.bucket[order]) >= 0).all()


def test_hubs_are_drawn_far_more_often_than_their_number():
    degree = np.ones(10_000, np.int64)
    degree[:100] = 1000
    drawn = draw(degree, 200, np.random.default_rng(0))
    assert len(set(drawn.tolist())) == 200
    assert (drawn < 100).sum() > 50
    assert (drawn >= 100).sum() >= 100
