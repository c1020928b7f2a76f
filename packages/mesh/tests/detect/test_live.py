"""Events change the deviations of their service or call path, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from hopline.errors import BadRequest
from hopline_mesh.changes import Context
from hopline_mesh.detect import MeshDetector
from hopline_mesh.detect.live import Event, LiveState, replay
from packages.mesh.tests.detect.meshes import SERVICES, node, play

_SHOWN = 160


@pytest.fixture(scope="module")
def watched():
    """A detector after its last interval, and that interval."""
    snapshots = list(play(_SHOWN))
    detector = MeshDetector()
    detector.fit(snapshots[:-1], [Context()] * (_SHOWN - 1))
    detector.step(snapshots[-1], Context())
    return detector, snapshots[-1]


@pytest.fixture
def live(watched) -> LiveState:
    detector, snapshot = watched
    return detector.live(snapshot)


def shown(live: LiveState):
    return {service: (live.deviations(service), live.calls(service)) for service in SERVICES}


def expected(table, slot, column, value, requests):
    """The deviation of a value, in NumPy."""
    place = table.columns.index(column)
    level, width = float(table.level[slot, place]), float(table.spread[slot, place])
    if column.endswith("_share"):
        share = np.clip(max(level, 1 / requests), None, 0.5)
        return (value - level) / np.hypot(width, np.sqrt(share * (1 - share) / requests))
    return (np.log(value + table.offset[slot, place]) - level) / width


def test_before_any_event_they_are_those_of_the_interval(live, watched):
    assert live.services == list(SERVICES)
    assert live.time_s == watched[1].time_s
    slow = watched[0]._nodes.slow[0]
    assert list(live.deviations("front").values()) == pytest.approx(slow.tolist(), abs=1e-3)
    slow = watched[0]._edges.slow[0][:4]
    assert list(live.calls("front")["cart"].values()) == pytest.approx(slow.tolist(), abs=1e-3)
    assert live.calls("pay") == {}


@pytest.mark.parametrize(
    "values",
    [{"p99_ms": 900.0}, {"p99_ms": None, "cpu_cores": 0.7}, {"error_share": 0.3, "memory_bytes": 0.0}],
)
def test_a_services_numbers_are_compared_with_its_baseline(live, watched, values):
    detector, snapshot = watched
    before = shown(live)
    assert live.take(Event(service="pay", values=values)) == ["pay"]
    nodes = detector._nodes
    requests = snapshot.node_features[3, nodes.load] * detector.interval_s
    after = shown(live)
    for column, value in values.items():
        found = after["pay"][0].pop(column)
        assert before["pay"][0].pop(column) != found
        wanted = None if value is None else expected(nodes, 3, column, value, requests)
        assert found == (None if wanted is None else pytest.approx(wanted, rel=1e-3))
    assert after == before


def test_a_call_paths_numbers_and_its_end(live, watched):
    changed = {"client_ms": 400.0}
    assert live.take(Event(caller="front", callee="cart", values=changed)) == ["front", "cart"]
    wanted = expected(watched[0]._edges, 0, "client_ms", 400.0, 1.0)
    assert live.calls("front")["cart"]["client_ms"] == pytest.approx(wanted, rel=1e-3)
    live.take(Event(caller="front", callee="cart", gone=True))
    assert list(live.calls("front")) == ["pay"]
    with pytest.raises(BadRequest, match="no call path from 'front' to 'cart'"):
        live.take(Event(caller="front", callee="cart", gone=True))
    # back again, as it is known: its own level, not a new one
    live.take(Event(caller="front", callee="cart", values=changed))
    assert live.calls("front")["cart"]["client_ms"] == pytest.approx(wanted, rel=1e-3)


def test_a_call_path_that_was_never_there_has_no_deviations(live):
    live.take(Event(caller="front", callee="store", values={"client_ms": 30.0}))
    assert live.calls("front")["store"] == {}
    with pytest.raises(BadRequest, match="no column 'p99_ms'"):
        live.take(Event(caller="front", callee="store", values={"p99_ms": 30.0}))


def test_what_the_interval_said_changes_nothing(live, watched):
    before = live.deviations("cart")
    features = watched[1].node_features[1]
    values = {column: float(features[node(column)]) for column in watched[0]._nodes.columns}
    live.take(Event(service="cart", values=values))
    assert live.deviations("cart") == pytest.approx(before, abs=5e-2)  # the level has moved on a little


def test_nothing_of_the_detector_changes(watched):
    detector, snapshot = watched
    before = {name: array.copy() for name, array in detector.export()[1].items()}
    live = detector.live(snapshot)
    live.take(Event(service="pay", values={"p99_ms": 5000.0}))
    live.take(Event(caller="store", callee="pay", values={"client_ms": 30.0}))
    after = detector.export()[1]
    assert all(np.array_equal(before[name], after[name], equal_nan=True) for name in before)


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (Event(), "needs either a service, or a call path"),
        (Event(service="pay", caller="front"), "needs either a service, or a call path"),
        (Event(caller="front", values={"client_ms": 1.0}), "needs caller and callee"),
        (Event(service="pay"), "has no values"),
        (Event(service="pay", gone=True), "allowed only for a call path"),
        (Event(service="nobody", values={"p99_ms": 1.0}), "'nobody' was not in the last interval"),
        (Event(service="pay", values={"p98_ms": 1.0}), "no column 'p98_ms'; its columns are request_rate"),
        (Event(service="pay", values={"p99_ms": -1.0}), "p99_ms of 'pay' is -1.0; it must be an amount"),
        (Event(service="pay", values={"error_share": 40.0}), "it must be a share, 0 to 1"),
        (Event(service="pay", values={"p99_ms": 1e39}), "p99_ms of 'pay' is 1e\\+39"),
        (Event(caller="pay", callee="front", gone=True), "no call path from 'pay' to 'front'"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(live, event, why):
    before = shown(live)
    with pytest.raises(BadRequest, match=why):
        live.take(event)
    assert shown(live) == before
    replay(live, [event, Event(service="pay", values={"p99_ms": 900.0})])
    assert shown(live) != before
