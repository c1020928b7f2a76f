"""Calls per request: what is told of callers that repeat their calls, whatever the load is."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from hopline_mesh.changes import Context
from hopline_mesh.detect import MeshDetector
from hopline_mesh.detect.calls import COLUMN, CallsPerRequest
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import Snapshot
from packages.mesh.tests.detect.meshes import CALLS, INTERVAL_S, START_S, edge, incidents, node, play, watch

RATE, CALLED = node("request_rate"), edge("request_rate")
CART, STORE = 1, 2
TO_STORE = CALLS.index((CART, STORE))
#: Intervals in which load rises and falls by a factor of eleven; a window is 120.
PERIOD = 800
LEARNED = 2 * PERIOD
NEXT_S = START_S + LEARNED * INTERVAL_S


#: A window before the interval of least load: until then what is lately, is what was learned last.
WINDOW = 120
LOW = 3 * PERIOD // 4 - WINDOW


def swing(number: int, nodes: np.ndarray, edges: np.ndarray) -> None:
    """Load that comes and goes."""
    load = np.exp(1.2 * np.sin(2 * np.pi * number / PERIOD))
    nodes[:, RATE] *= load
    edges[:, CALLED] *= load


def sent(times: float, begin: int = WINDOW, end: int = WINDOW + 30):
    """A caller that sends so many times its calls, while there is not much to do."""

    def edit(number, nodes, edges):
        swing(number + LOW, nodes, edges)
        if begin <= number < end:
            edges[TO_STORE, CALLED] *= times
            nodes[STORE, RATE] += (times - 1) * edges[TO_STORE, CALLED] / times

    return edit


@pytest.fixture(scope="module")
def state():
    detector = MeshDetector(neighbours=False)
    detector.fit(list(play(LEARNED, swing)), [Context()] * LEARNED)
    return detector.export()


@pytest.fixture
def fitted(state):
    return lambda: MeshDetector.restore(*copy.deepcopy(state))


def follow(detector: MeshDetector, edit, count: int = WINDOW + 50):
    return watch(detector, play(count, edit, seed=1, start_s=NEXT_S))


def told(verdicts) -> set[str]:
    """What any incident's evidence is of."""
    return {
        evidence.feature
        for incident in incidents(verdicts)
        for suspect in incident.suspects
        for evidence in suspect.evidence
    }


def test_repeated_calls_show_where_load_hides_them(fitted):
    verdicts = follow(fitted(), sent(3.0))
    (incident,) = incidents(verdicts)
    assert incident.suspects[0].service == "cart"
    assert COLUMN in told(verdicts)
    (evidence,) = {
        (round(each.expected, 1), round(each.seen, 1))
        for each in incident.suspects[0].evidence
        if each.feature == COLUMN
    }
    assert evidence[1] > 2.5 * evidence[0]
    assert verdicts[-1].state == "normal"


def test_a_few_more_calls_are_other_requests_and_no_incident(fitted):
    assert not incidents(follow(fitted(), sent(1.5)))


def test_fewer_calls_are_none_either(fitted):
    assert COLUMN not in told(follow(fitted(), sent(0.3)))


def test_calls_that_go_on_while_their_caller_gets_fewer_requests_are_not_repeated_ones(fitted):
    def edit(number, nodes, edges):
        swing(number + LOW, nodes, edges)
        if number >= WINDOW:
            nodes[CART, RATE] *= 0.2
            edges[CALLS.index((0, CART)), CALLED] *= 0.2

    assert COLUMN not in told(follow(fitted(), edit))


def test_load_alone_is_no_incident(fitted):
    assert not incidents(follow(fitted(), swing, 300))


def interval(nodes, node_features, edge_src, edge_features, num_slots):
    """What `CallsPerRequest` reads of a snapshot."""
    return SimpleNamespace(
        nodes=nodes,
        node_features=node_features,
        edge_src=edge_src,
        edge_features=edge_features,
        roster=range(num_slots),
    )


@pytest.mark.parametrize("present", [True, False])
@pytest.mark.parametrize(
    "columns", [Schema().edge_features, ("client_ms", "request_rate"), ("request_rate",)]
)
def test_each_path_has_its_calls_for_each_request_of_its_caller(present, columns):
    rng = np.random.default_rng(0)
    column = CallsPerRequest(Schema(Schema().node_features, columns))
    width, sent = len(columns), columns.index("request_rate")
    for _ in range(2):  # another mesh each time
        slots = rng.permutation(40)[:30].astype(np.int32)
        nodes = rng.random((30, 7)).astype(np.float32)
        nodes[rng.random(30) < 0.2, 0] = np.nan
        src = rng.choice(slots if present else np.arange(40), 90).astype(np.int32)
        edges = rng.random((90, width)).astype(np.float32)
        edges[rng.random(90) < 0.1, sent] = np.nan
        found = column.of(interval(slots, nodes, src, edges, 40))
        rate = dict(zip(slots.tolist(), nodes[:, 0], strict=True))
        of_caller = np.array([rate.get(slot, np.nan) for slot in src.tolist()], np.float32)
        expected = np.where(of_caller >= 0.1, edges[:, sent] / of_caller, np.nan)
        np.testing.assert_array_equal(found[:, :width], edges)
        np.testing.assert_array_equal(found[:, width], expected)


def test_intervals_without_call_paths_are_learned_from_like_others():
    """The first ones of a watch: rates need two scrapes."""
    none = np.zeros(0, np.int32)
    assert CallsPerRequest(Schema()).of(
        interval(none, np.zeros((0, 7), np.float32), none, np.zeros((0, 4), np.float32), 0)
    ).shape == (0, 5)
    snapshots = list(play(200))
    width = snapshots[0].edge_features.shape[1]
    empty = {"edge_src": none, "edge_dst": none, "edge_features": np.zeros((0, width), np.float32)}
    some = [replace(each, **empty) if k < 3 else each for k, each in enumerate(snapshots)]
    detector = MeshDetector(neighbours=False)
    detector.fit(some, [Context()] * len(some))
    verdict = detector.step(replace(some[0], time_s=some[-1].time_s + INTERVAL_S), Context())
    assert verdict.state != "anomalous"


@pytest.mark.parametrize(
    "schema",
    [
        Schema(("p99_ms",), ("request_rate", "client_ms")),
        Schema(("request_rate",), ("client_ms",)),
        Schema(("request_rate",), ("request_rate", COLUMN)),
        Schema(("request_rate",), ()),
    ],
)
def test_where_it_cannot_be_decided_or_is_measured_nothing_is_added(schema):
    column = CallsPerRequest(schema)
    edges = np.ones((1, len(schema.edge_features)), np.float32)
    zero = np.zeros(1, np.int32)
    assert column.columns == ()
    nodes = np.ones((1, len(schema.node_features)), np.float32)
    assert column.of(interval(zero, nodes, zero, edges, 1)) is edges


@pytest.mark.parametrize("neighbours", [False, True])
def test_a_mesh_without_rates_is_judged_as_ever(neighbours):
    schema = Schema(("p99_ms", "cpu_cores"), ("client_ms",))

    def without_rates(snapshot: Snapshot) -> Snapshot:
        columns = [node(name) for name in schema.node_features]
        return replace(
            snapshot,
            schema=schema,
            node_features=np.ascontiguousarray(snapshot.node_features[:, columns]),
            edge_features=np.ascontiguousarray(snapshot.edge_features[:, [edge("client_ms")]]),
        )

    detector = MeshDetector(neighbours=neighbours)
    detector.fit([without_rates(each) for each in play(120)], [Context()] * 120)

    def slow(number, nodes, edges):
        if number >= 20:
            nodes[STORE, node("p99_ms")] *= 6

    run = play(60, slow, seed=1, start_s=START_S + 120 * INTERVAL_S)
    (incident,) = incidents([detector.step(without_rates(each), Context()) for each in run])
    assert incident.suspects[0].service == "store"
