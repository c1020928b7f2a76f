"""The neighbour regression against NumPy's least squares, and what it lets the detector see."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest

from hopline_mesh.changes import Context
from hopline_mesh.detect import MeshDetector
from hopline_mesh.detect.regression import FOLDS, NeighbourRegression
from hopline_mesh.errors import StateDamaged
from hopline_mesh.snapshot import Snapshot
from packages.mesh.tests.detect.meshes import (
    CALLS,
    INTERVAL_S,
    SERVICES,
    START_S,
    edge,
    incidents,
    node,
    play,
    watch,
)

LEARNT = 400
RATE, CART, PAY = node("request_rate"), 1, 3


def with_load(count, edit=None, *, seed=0, start_s=START_S):
    """Intervals in which all rates follow one load, which moves by 40 %."""
    rng = np.random.default_rng([seed, 7])
    loads = np.exp(0.4 * np.sin(np.arange(count) / 30) + 0.02 * rng.normal(size=count))
    for number, snapshot in enumerate(play(count, seed=seed, start_s=start_s)):
        nodes, edges = snapshot.node_features.copy(), snapshot.edge_features.copy()
        nodes[:, RATE] *= loads[number]
        edges[:, edge("request_rate")] *= loads[number]
        if edit is not None:
            edit(number, nodes, edges)
        yield replace(snapshot, node_features=nodes, edge_features=edges)


@pytest.fixture(scope="module")
def state():
    detector = MeshDetector()
    detector.fit(list(with_load(LEARNT)), [Context()] * LEARNT)
    return detector.export()


@pytest.fixture(scope="module")
def state_without():
    detector = MeshDetector(neighbours=False)
    detector.fit(list(with_load(LEARNT)), [Context()] * LEARNT)
    return detector.export()


def restored(state):
    return MeshDetector.restore(*copy.deepcopy(state))


def test_predictors_are_means_over_neighbours_weighted_by_traffic(state):
    detector = restored(state)
    (snapshot,) = with_load(1, seed=3, start_s=START_S + LEARNT * INTERVAL_S)
    detector.step(snapshot, Context())
    nodes, edges = detector._tables
    paths = detector._pairs.slots(snapshot.edge_src, snapshot.edge_dst)
    regression = NeighbourRegression(nodes, edges)
    services, calls = regression.predictors(snapshot, paths)
    plan, of_path = regression._plans
    moved = nodes.slow[:4].astype(float) * nodes.spread[:4]
    path_moved = edges.slow[:3].astype(float) * edges.spread[:3]
    rate = edge("request_rate")
    rates = np.exp(edges.level[paths, rate]) - edges.offset[paths, rate].astype(float)
    learned = [one.edge_features[:, rate] for one in with_load(LEARNT)]
    np.testing.assert_allclose(rates, np.median(learned, axis=0), rtol=0.02)  # usual traffic
    p99, client = node("p99_ms"), edge("client_ms")
    own = services[:, plan.all.index(("own", RATE))]
    np.testing.assert_allclose(own, moved[:, RATE], rtol=1e-4, atol=1e-6)
    mean = (rates[0] * moved[1, p99] + rates[2] * moved[3, p99]) / (rates[0] + rates[2])
    assert services[0, plan.all.index(("callees", p99))] == pytest.approx(mean, rel=1e-4)
    mean = (rates[0] * path_moved[0, client] + rates[2] * path_moved[2, client]) / (rates[0] + rates[2])
    assert services[0, plan.all.index(("calls", client))] == pytest.approx(mean, rel=1e-4)
    got = services[:, plan.all.index(("calls to it", edge("request_rate")))]
    assert np.isnan(got[0]), "front has no callers"
    np.testing.assert_allclose(got[[1, 2, 3]], path_moved[:, edge("request_rate")], rtol=1e-4)
    assert calls[1, of_path.all.index(("caller", RATE))] == pytest.approx(moved[1, RATE], rel=1e-4)
    assert calls[1, of_path.all.index(("callee", RATE))] == pytest.approx(moved[2, RATE], rel=1e-4)
    # The errors and latencies that callers measure are the service's own, and explain nothing.
    assert {source for source, _ in plan.all} == {
        "one", "own", "callers", "callees", "calls", "calls to it",
    }  # fmt: skip
    assert [f for source, f in plan.all if source == "calls to it"] == [edge("request_rate")]


def test_weights_are_those_of_ridge_regression_and_folds_leave_their_own_time_out():
    detector = MeshDetector(neighbours=False)
    snapshots = list(with_load(300))
    detector.fit(snapshots, [Context()] * 300)
    nodes, edges = detector._tables
    regression = NeighbourRegression(nodes, edges)
    rows, targets = [], []

    def intervals():
        for number, snapshot in enumerate(snapshots):
            paths = detector._observe_series(snapshot)
            predictors = regression.predictors(snapshot, paths)
            rows.append(predictors[0][CART, regression._plans[0].of[RATE]])
            targets.append(float(np.clip(nodes.slow[CART, RATE], -12, 12)))
            yield snapshot, paths, number * FOLDS // 300

    apart = regression.fit(intervals())
    x, y = np.array(rows, float), np.array(targets)

    def ridge(x, y):
        scale = np.sqrt((x * x).mean(axis=0)) + 1e-4
        more = np.sqrt(20.0) * np.eye(x.shape[1])
        a = np.concatenate([x / scale, more])
        return np.linalg.lstsq(a, np.concatenate([y, np.zeros(x.shape[1])]), rcond=None)[0] / scale

    found = regression.weights[0][RATE][CART]
    np.testing.assert_allclose(x @ found, x @ ridge(x, y), atol=2e-3)
    for fold in range(FOLDS):
        others = np.arange(300) * FOLDS // 300 != fold
        wanted = ridge(x[others], y[others])
        np.testing.assert_allclose(x @ apart[fold][0][RATE][CART], x @ wanted, atol=2e-3)


def test_nothing_is_predicted_from_neighbours_that_are_not_measured(state):
    detector = restored(state)
    start_s = START_S + LEARNT * INTERVAL_S

    def no_calls_to_pay(number, nodes, edges):
        if number >= 10:
            edges[2] = np.nan

    verdicts = []
    for snapshot in with_load(60, no_calls_to_pay, seed=4, start_s=start_s):
        verdicts.append(detector.step(snapshot, Context()))
    assert not incidents(verdicts)
    of_services, _ = detector._left
    assert np.isnan(of_services.slow[PAY, RATE]), "its load follows from the calls to it"
    assert not np.isnan(of_services.slow[CART, RATE])


@pytest.mark.parametrize("absent", ["rows", "values"])
def test_paths_that_are_missing_for_minutes_are_no_incident(state, absent):
    def gone(number):
        return number % 60 >= 44

    def no_values(number, nodes, edges):
        if gone(number) and absent == "values":
            edges[:] = np.nan

    def run():
        start_s = START_S + LEARNT * INTERVAL_S
        for number, one in enumerate(with_load(180, no_values, seed=5, start_s=start_s)):
            if gone(number) and absent == "rows":
                none = np.zeros(0, np.int32)
                one = replace(one, edge_src=none, edge_dst=none, edge_features=one.edge_features[:0])
            yield one

    assert not incidents(watch(restored(state), run()))


def unlike_its_calls(number, nodes, edges):
    """For a time, a service says that it gets half of the requests that are sent to it."""
    if 30 <= number < 90:
        nodes[PAY, RATE] *= 0.5


def test_a_load_that_differs_from_the_calls_raises_an_alarm_within_its_own_bounds(state, state_without):
    run = list(with_load(150, unlike_its_calls, seed=1, start_s=START_S + LEARNT * INTERVAL_S))
    (incident,) = incidents(watch(restored(state), iter(run)))
    evidence = next(
        each
        for suspect in incident.suspects
        for each in suspect.evidence
        if (each.feature, each.service, each.caller) == ("request_rate", SERVICES[PAY], None)
    )
    assert evidence.seen == pytest.approx(0.5 * evidence.expected, rel=0.25), "expected by the calls to it"
    assert incidents(watch(restored(state_without), iter(run))) == []


def test_a_load_that_moves_with_the_calls_raises_none(state):
    def fewer(number, nodes, edges):
        if 30 <= number < 90:
            nodes[:, RATE] *= 0.85
            edges[:, edge("request_rate")] *= 0.85

    run = with_load(150, fewer, seed=1, start_s=START_S + LEARNT * INTERVAL_S)
    assert incidents(watch(restored(state), run)) == []


def test_a_new_service_and_a_new_call_path_are_not_predicted(state):
    detector = restored(state)
    for snapshot in with_load(3, seed=1, start_s=START_S + LEARNT * INTERVAL_S):
        slot = snapshot.roster.slot("new")
        wider = Snapshot(
            snapshot.time_s, snapshot.schema, snapshot.roster,
            np.append(snapshot.nodes, slot).astype(np.int32),
            np.vstack([snapshot.node_features, snapshot.node_features[:1]]),
            np.append(snapshot.edge_src, 0).astype(np.int32),
            np.append(snapshot.edge_dst, slot).astype(np.int32),
            np.vstack([snapshot.edge_features, snapshot.edge_features[:1]]),
        )  # fmt: skip
        assert detector.step(wider, Context()).state == "normal"
    nodes, edges = detector._left
    assert np.isnan(nodes.slow[slot]).all()
    assert np.isnan(edges.slow[len(CALLS)]).all()
    assert np.isfinite(nodes.slow[0, RATE])


@pytest.mark.parametrize("name", [f"left.weights.0.{RATE}", "left.nodes.level", "left.edges.ring"])
def test_a_state_without_a_part_of_it_is_refused(state, name):
    meta, arrays = copy.deepcopy(state)
    assert arrays.pop(name) is not None
    with pytest.raises(StateDamaged):
        MeshDetector.restore(meta, arrays)


def test_weights_of_other_predictors_are_refused_by_the_name_of_the_column(state):
    meta, arrays = copy.deepcopy(state)
    arrays[f"left.weights.0.{RATE}"] = arrays[f"left.weights.0.{RATE}"][:, :2]
    with pytest.raises(StateDamaged, match="of column 'request_rate'"):
        MeshDetector.restore(meta, arrays)


def test_a_time_too_short_to_learn_a_regression_from_gives_none():
    snapshots = list(with_load(8))
    detector = MeshDetector()
    detector.fit(snapshots, [Context()] * len(snapshots))
    for snapshot in with_load(30, seed=1, start_s=START_S + 8 * INTERVAL_S):
        assert detector.step(snapshot, Context()).incidents == ()
    assert np.isnan(detector._left[0].slow).all()
