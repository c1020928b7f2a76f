"""The fraud example, on a small stand-in for Tolokers."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from examples.fraud import __main__ as example
from examples.fraud import embedding, rules, trees
from examples.fraud.build import build_checkout
from examples.fraud.embedding import Neighbourhood
from examples.fraud.risk import auc_of_splits
from examples.fraud.story import Scale
from examples.fraud.tolokers import load
from examples.fraud.transactions import PATTERNS, generate
from hopline.models.local_repository import LocalRepository
from hopline_pipelines.offline import Offline

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Workers of whom those are banned whose colleagues have a high first figure, in the file's format."""
    rng = np.random.default_rng(0)
    n = 1200
    src, dst = rng.integers(0, n, (2, 9000))
    edges = np.unique(np.stack([src, dst])[:, src < dst], axis=1)
    edges = np.concatenate([edges, edges[::-1]], axis=1)
    x = rng.normal(size=(n, 10)).astype(np.float32)
    sums = np.bincount(edges[1], x[edges[0], 0], n)
    degrees = np.bincount(edges[1], minlength=n)
    score = sums / np.maximum(degrees, 1) * 2 + x[:, 1] * 0.3 + rng.normal(0, 0.3, n)
    part = np.stack([rng.permutation(n) % 4 for _ in range(10)])
    (tmp_path / "graphs").mkdir()
    np.savez(
        tmp_path / "graphs" / "tolokers.npz",
        x=x,
        y=(score > np.quantile(score, 0.75)).astype(np.int16),
        edge_index=edges.astype(np.int32),
        train_masks=part < 2,
        val_masks=part == 2,
        test_masks=part == 3,
    )
    monkeypatch.setenv("HOPLINE_DATA", str(tmp_path))


@pytest.mark.release
def test_whole_story_holds_and_ends_with_one_json_line(stand_in, monkeypatch, capsys):
    tiny = Scale(calls=50, copies=150, steps=(50, 100), min_step_s=0.2, min_requests=60)
    monkeypatch.setattr(example, "SMALL", tiny)
    monkeypatch.setattr(sys, "argv", ["fraud", "--check"])
    monkeypatch.chdir(ROOT)
    assert example.main() == 0, capsys.readouterr().err
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["rollouts"]["canary"]["status"] == "promoted"
    assert figures["rollouts"]["broken"]["status"] == "rolled_back"
    assert figures["meanwhile"]["requests"] > 200
    assert figures["tolokers_auc_served"] == pytest.approx(figures["tolokers_auc_offline"], abs=1e-6)


@pytest.mark.release
def test_embedding_helps_trees_where_the_neighbourhood_decides(stand_in):
    told = []
    found = auc_of_splits(2, lambda done, text: told.append(done))
    assert [len(values) for values in found.values()] == [2, 2, 2]
    assert min(found["gnn_trees"]) > max(found["trees"]) + 0.1
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_neighbourhood_is_means_and_variances_of_two_hops(stand_in):
    data = load()
    n = len(data.y)
    x = data.features
    adjacency = np.zeros((n, n))
    adjacency[data.edge_index[1], data.edge_index[0]] = 1
    share = adjacency / np.maximum(adjacency.sum(1, keepdims=True), 1)
    mean = share @ x
    far = share @ mean
    expected = np.hstack([x, mean, share @ x**2 - mean**2, far, share @ mean**2 - far**2])
    states = embedding.states_of(Neighbourhood(x.shape[1]), x, data.edge_index)
    assert np.abs(states - expected).max() < 1e-4


def test_opinions_to_learn_from_do_not_know_the_node_s_own_label():
    rng = np.random.default_rng(0)
    states = rng.normal(size=(1500, 30)).astype(np.float32)
    labels = rng.integers(0, 2, 1500)  # there is nothing to learn: whoever is right has seen them
    nodes, validation = np.arange(1000), np.arange(1000, 1500)
    opinions, learned_from = embedding.train(states, labels, nodes, validation)
    every = embedding.ask(opinions, states).mean(1)
    assert roc_auc_score(labels[nodes], every[nodes]) > 0.6
    assert abs(roc_auc_score(labels[nodes], learned_from[nodes]) - 0.5) < 0.06
    assert np.array_equal(learned_from[validation], every[validation])


def test_transactions_are_drawn_from_the_seed_alone():
    one, same, other = generate(500, 7), generate(500, 7), generate(500, 8)
    assert one.frame.equals(same.frame)
    assert np.array_equal(one.is_fraud, same.is_fraud)
    assert not one.frame.equals(other.frame)


def test_fraud_is_a_combination_and_no_single_column():
    train, _, test = generate(20_000).parts()
    estimator = trees.fitted(train)
    assert roc_auc_score(test.is_fraud, trees.scores(estimator, test.frame)) > 0.93
    numbers = test.frame[trees.AMOUNTS + trees.NUMBERS].fillna(-1)
    alone = [roc_auc_score(test.is_fraud, numbers[name]) for name in numbers]
    assert max(max(value, 1 - value) for value in alone) < 0.75
    assert len(PATTERNS) == 4


def test_pipeline_fits_the_packaged_trees(tmp_path):
    build_checkout(tmp_path)
    info = Offline(LocalRepository(tmp_path)).describe(trees.PIPELINE, None)
    assert [tensor.name for tensor in info.outputs] == ["score", "decision"]
    assert {tensor.name for tensor in info.inputs} == {*trees.AMOUNTS, *trees.NUMBERS, *trees.TEXTS}


@pytest.mark.parametrize(
    ("score", "decision"),
    [
        (0.0, "allow"),
        (0.5999, "allow"),
        (0.6, "step_up"),
        (0.82, "step_up"),
        (0.8201, "block"),
        (1.0, "block"),
    ],
)
def test_decisions_at_the_limits(score, decision):
    assert rules.decided(np.array([score], np.float32)).tolist() == [decision]


def good():
    """Figures with which all is well."""
    return {
        "auc": {"trees": 0.75, "gnn_trees": 0.85, "gnn": 0.83},
        "fraud_max_abs_diff": 1e-6,
        "tolokers_max_abs_diff": 1e-6,
        "decisions": {"block": 1, "step_up": 2, "allow": 3},
        "decisions_equal": True,
        "permissions": {"payments_may_change": False},
        "sale": {"before": "ok", "after": "alert", "s": 1.0},
        "rollouts": {
            "shadow": {"status": "ended", "reason": ""},
            "canary": {"status": "promoted", "reason": ""},
            "broken": {"status": "rolled_back", "reason": ""},
        },
        "serving": "2",
        "meanwhile": {"errors": []},
    }


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"fraud_max_abs_diff": 2e-4}, "fraud: served scores differ"),
        ({"tolokers_max_abs_diff": float("nan")}, "tolokers: served scores differ"),
        ({"auc": {"trees": 0.84, "gnn_trees": 0.85}}, "less than 0.05 more"),
        ({"decisions_equal": False}, "rules"),
        ({"decisions": {"block": 0, "step_up": 2, "allow": 3}}, "'block'"),
        ({"permissions": {"payments_may_change": True}}, "payments may change"),
        (
            {"rollouts": {**good()["rollouts"], "broken": {"status": "promoted", "reason": "why"}}},
            "broken: promoted",
        ),
        ({"sale": {"before": "ok", "after": "watch", "s": 30.0}}, "'watch' after"),
        ({"serving": "3"}, "version 3 serves"),
        ({"meanwhile": {"errors": ["no"]}}, "checkouts failed"),
    ],
)
def test_check_names_what_is_wrong(wrong, named):
    assert example.failures(good()) == []
    found = example.failures({**good(), **wrong})
    assert len(found) == 1
    assert named in found[0]
