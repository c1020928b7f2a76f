"""A service that is new is expected to be as its neighbours are, and is no cause for alarm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hopline_mesh.changes import Context
from hopline_mesh.roster import Roster
from hopline_mesh.tagae import Tagae, TagaeSettings
from tests.tagae.meshes import INTERVAL_S, SERVICES, START_S, incidents, node, play

LEARNT = 140
LATENCY = node("p99_ms")


@pytest.fixture(scope="module")
def state():
    detector = Tagae(TagaeSettings(model="untrained", window_size=60))
    detector.fit(list(play(LEARNT)), [Context()] * LEARNT)
    detector._nodes.gain[: len(SERVICES)] = [[0.3], [0.5], [0.1], [0.2]]
    return detector.export()


def drifted(number, nodes, edges):
    nodes[:, LATENCY] *= 1.25  # a little, for long: the window's mean leaves the level


def with_new_one(snapshot, factor=1.0):
    """The same, with a service that front and cart call, cart three times as often."""
    ends = [np.append(snapshot.edge_src, [0, 1]), np.append(snapshot.edge_dst, [4, 4])]
    calls = np.repeat(snapshot.edge_features[:1], 2, axis=0) * [[1.0], [3.0]]
    calls[1, 1:] = calls[0, 1:]
    return replace(
        snapshot, roster=Roster([*SERVICES, "new"]), nodes=np.arange(5, dtype=np.int32),
        node_features=np.vstack([snapshot.node_features, factor * snapshot.node_features[1]]),
        edge_src=ends[0].astype(np.int32), edge_dst=ends[1].astype(np.int32),
        edge_features=np.vstack([snapshot.edge_features, calls]).astype(np.float32),
    )  # fmt: skip


def intervals(count):
    return list(play(count, drifted, seed=1, start_s=START_S + LEARNT * INTERVAL_S))


@pytest.fixture
def watched(state):
    """Makes detectors that have seen half an hour more."""

    def make():
        detector = Tagae.restore(*state)
        for snapshot in intervals(20):
            detector.step(snapshot, Context())
        return detector

    return make


def test_the_first_that_is_expected_of_a_new_service_is_what_its_neighbours_are(watched):
    detector = watched()
    rows = []
    encode = detector._expectation.encoder.ready

    def look(graph, x, h, e, g):
        rows.append(h.copy())
        return encode(graph, x, h, e, g)

    detector._expectation.encoder.ready = look
    detector.step(with_new_one(intervals(21)[20]), Context())
    front, cart, _, _, new = rows[-1]  # filled in where the pass did not follow at once
    # Each path's weight is its share of what its caller sends.
    src, dst = [0, 1, 0, 0, 1], [1, 2, 3, 4, 4]
    amounts = with_new_one(intervals(21)[20]).edge_features[:, 0]
    sent = np.bincount(src, amounts)
    by_front, by_cart = amounts[3] / sent[0], amounts[4] / sent[1]
    np.testing.assert_allclose(new, (by_front * front + by_cart * cart) / (by_front + by_cart), rtol=1e-4)
    assert new[LATENCY] > 0.1
    assert dst[3] == 4
    expectation = detector._expectation
    expected = expectation.encoder.result(expectation.graph).nodes
    low, high = expected[:4].min(), expected[:4].max()
    assert expected[4].any()
    assert low - 1 <= expected[4].min() <= expected[4].max() <= high + 1
    gain = (0.3 * by_front + 0.5 * by_cart) / (by_front + by_cart)
    np.testing.assert_allclose(detector._nodes.gain[4], gain, rtol=1e-4)


def test_judging_at_once_gives_what_judging_afterwards_gives(watched):
    at_once, afterwards = watched(), watched()
    afterwards._order = lambda *_: None
    judge, done = at_once._sweep.judge, []

    def look(*args, **more):
        done.append(at_once._sweep.is_judged)
        return judge(*args, **more)

    at_once._sweep.judge = look
    for number, snapshot in enumerate(intervals(60)[20:]):
        mesh = snapshot if number < 5 else with_new_one(snapshot, 3.0 if number > 30 else 1.0)
        assert at_once.step(mesh, Context()) == afterwards.step(mesh, Context())
    # Not in the intervals in which the new service has no window of its own.
    assert done[:5] == [True] * 5
    assert done[5:9] == [False] * 4
    assert done[-10:] == [True] * 10
    (meta, arrays), (other_meta, others) = at_once.export(), afterwards.export()
    assert meta == other_meta
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name], err_msg=name)


@pytest.mark.parametrize("factor", [0.01, 1.0, 100.0])
def test_an_arrival_changes_no_verdict(watched, factor):
    with_it, without_it = watched(), watched()
    for snapshot in intervals(60)[20:]:
        verdict = with_it.step(with_new_one(snapshot, factor), Context())
        assert verdict.state == without_it.step(snapshot, Context()).state == "normal"
        assert not incidents([verdict])


def test_its_own_past_counts_as_soon_as_there_is_one(watched):
    detector = watched()
    for snapshot in intervals(40)[20:]:
        detector.step(with_new_one(snapshot), Context())
    kept = detector._nodes.gain[4].copy()
    detector._nodes.gain[:4] = 0
    detector.step(with_new_one(intervals(41)[40]), Context())
    np.testing.assert_array_equal(detector._nodes.gain[4], kept)


def test_a_new_service_that_knows_nobody_is_left_as_it_is(watched):
    detector = watched()
    snapshot = with_new_one(intervals(21)[20])
    alone = replace(
        snapshot, edge_src=snapshot.edge_src[:3], edge_dst=snapshot.edge_dst[:3],
        edge_features=snapshot.edge_features[:3],
    )  # fmt: skip
    assert detector.step(alone, Context()).state == "normal"
    assert not detector._nodes.gain[4].any()
