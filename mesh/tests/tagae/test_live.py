"""After any events, embeddings are those of a whole pass over what there is then."""

from __future__ import annotations

import numpy as np
import pytest

from hopline.errors import BadRequest, ModelNotReady
from hopline_mesh.changes import Context
from hopline_mesh.event import Event
from hopline_mesh.model.encoder import Encoder
from hopline_mesh.model.graph import MeshGraph
from hopline_mesh.tagae import Tagae, TagaeSettings, expect
from hopline_mesh.tagae.live import LiveState, replay
from tests.tagae.meshes import CALLS, SERVICES, edge, node, play

_SHOWN = 160


@pytest.fixture(scope="module")
def watched():
    """A detector with a model, after its last interval, and that interval."""
    snapshots = list(play(_SHOWN))
    detector = Tagae(TagaeSettings(model="untrained"))
    detector.fit(snapshots[:-1], [Context()] * (_SHOWN - 1))
    detector.step(snapshots[-1], Context())
    return detector, snapshots[-1]


@pytest.fixture
def live(watched) -> LiveState:
    detector, snapshot = watched
    return detector.live(snapshot)


def whole(detector, x=None, e=None, calls=CALLS):
    """Embeddings of a whole pass, float32 [n, d]."""
    nodes, edges = detector._tables
    slots = np.arange(len(SERVICES), dtype=np.int32)
    as_is, h = expect.inputs(nodes, slots)
    calls_as_they_are, _ = expect.inputs(edges, np.arange(len(CALLS), dtype=np.int32))
    graph = MeshGraph()
    src, dst = (np.array(ends, np.int32) for ends in zip(*calls, strict=True))
    graph.update(len(slots), src, dst)
    encoder = Encoder(detector._expectation.weights, bfloat16=False)
    return encoder.encode(graph, as_is if x is None else x, h, calls_as_they_are if e is None else e).copy()


def shown(live: LiveState):
    return np.stack([live.embedding(service) for service in SERVICES])


def rows_with(table, slot, changed, requests):
    """The model's row of a series with some of its deviations changed, in NumPy: [2 F]."""
    slow = table.slow[slot, : table.modelled].astype(np.float64).copy()
    for column, value in changed.items():
        place = table.columns.index(column)
        level, width = float(table.level[slot, place]), float(table.spread[slot, place])
        if value is None:
            slow[place] = np.nan
        elif column.endswith("_share"):
            share = np.clip(max(level, 1 / requests), None, 0.5)
            slow[place] = (value - level) / np.hypot(width, np.sqrt(share * (1 - share) / requests))
        else:
            slow[place] = (np.log(value + table.offset[slot, place]) - level) / width
    load = slow[table.load]
    own = np.clip(slow - table.slope[slot, : table.modelled] * np.clip(np.nan_to_num(load), -20, 20), -4, 4)
    there = np.isfinite(slow)
    return np.concatenate([np.where(there, own, 0), there]).astype(np.float32)


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-4)


def test_before_any_event_they_are_those_of_the_interval(live, watched):
    close(shown(live), whole(watched[0]))
    assert live.services == list(SERVICES)
    assert live.time_s == watched[1].time_s
    slow = watched[0]._nodes.slow[0]
    assert list(live.deviations("front").values()) == pytest.approx(slow.tolist(), abs=1e-3)


@pytest.mark.parametrize(
    "values",
    [{"p99_ms": 900.0}, {"p99_ms": None, "cpu_cores": 0.7}, {"error_share": 0.3, "memory_bytes": 0.0}],
)
def test_a_services_numbers_reach_who_listens_to_it(live, watched, values):
    detector, snapshot = watched
    before = shown(live)
    touched = live.take(Event(service="pay", values=values))
    nodes = detector._nodes
    x, _ = expect.inputs(nodes, np.arange(len(SERVICES), dtype=np.int32))
    requests = snapshot.node_features[3, nodes.load] * detector.interval_s
    x[3] = rows_with(nodes, 3, values, requests)
    close(shown(live), whole(detector, x=x))
    apart = [k for k, service in enumerate(SERVICES) if service not in touched]
    assert np.array_equal(shown(live)[apart], before[apart])
    for column, value in values.items():
        assert (live.deviations("pay")[column] is None) == (value is None)


def test_a_call_paths_numbers_and_its_end(live, watched):
    detector, snapshot = watched
    edges = detector._edges
    e, _ = expect.inputs(edges, np.arange(len(CALLS), dtype=np.int32))
    changed = {"client_ms": 400.0}
    requests = snapshot.edge_features[0, edges.load] * detector.interval_s
    e[0] = rows_with(edges, 0, changed, requests)
    live.take(Event(caller="front", callee="cart", values=changed))
    close(shown(live), whole(detector, e=e))
    live.take(Event(caller="front", callee="cart", gone=True))
    rest = [2, 1]  # the last one took its number
    close(shown(live), whole(detector, e=e[rest], calls=[CALLS[k] for k in rest]))
    # back again, as it is known: its own level, not a new one
    live.take(Event(caller="front", callee="cart", values=changed))
    back = [2, 1, 0]
    close(shown(live), whole(detector, e=e[back], calls=[CALLS[k] for k in back]))


def test_a_call_path_that_was_never_there_is_as_usual_at_first(live, watched):
    detector, _ = watched
    e, _ = expect.inputs(detector._edges, np.arange(len(CALLS), dtype=np.int32))
    width = detector._edges.modelled
    new = np.zeros(2 * width, np.float32)
    new[width + edge("client_ms")] = 1.0
    live.take(Event(caller="front", callee="store", values={"client_ms": 30.0}))
    close(shown(live), whole(detector, e=np.vstack([e, new]), calls=[*CALLS, (0, 2)]))
    # what an event leaves out stays as it is
    new[width + edge("server_ms")] = 1.0
    live.take(Event(caller="front", callee="store", values={"server_ms": 20.0}))
    close(shown(live), whole(detector, e=np.vstack([e, new]), calls=[*CALLS, (0, 2)]))
    new[width + edge("client_ms")] = 0.0
    live.take(Event(caller="front", callee="store", values={"client_ms": None}))
    close(shown(live), whole(detector, e=np.vstack([e, new]), calls=[*CALLS, (0, 2)]))


def test_what_the_interval_said_changes_nothing(live, watched):
    before = shown(live)
    features = watched[1].node_features[1]
    values = {column: float(features[node(column)]) for column in watched[0]._nodes.columns}
    live.take(Event(service="cart", values=values))
    np.testing.assert_allclose(shown(live), before, atol=5e-3)  # the level has moved on by a thousandth


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
    before, values = shown(live), live.deviations("pay")
    with pytest.raises(BadRequest, match=why):
        live.take(event)
    assert np.array_equal(shown(live), before)
    assert live.deviations("pay") == values
    replay(live, [event, Event(service="pay", values={"p99_ms": 900.0})])
    assert not np.array_equal(shown(live), before)


def test_without_a_model_there_are_no_embeddings():
    snapshots = list(play(30))
    detector = Tagae(TagaeSettings(model="none"))
    for snapshot in snapshots:
        detector.step(snapshot, Context())
    with pytest.raises(ModelNotReady, match="HOPLINE_MESH__DETECTOR__TRAIN_AT"):
        detector.live(snapshots[-1])
