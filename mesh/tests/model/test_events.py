"""After any events embeddings are those of a whole pass; only rows that an event reaches are computed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.model.encoder import Encoder
from hopline_mesh.model.events import LiveEmbeddings
from hopline_mesh.model.newcomers import from_neighbours

from .meshes import ODD, SMALL, edges_of, graph_of, inputs_of, weights_of

WEIGHTS = {"small": weights_of(SMALL), "odd": weights_of(ODD)}
EVENT = st.tuples(
    st.sampled_from(["node", "edge", "add", "remove"]), st.integers(0, 10**6), st.integers(0, 10**6)
)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["small", "odd"]),
    st.integers(1, 14),
    st.integers(0, 40),
    st.booleans(),
    st.lists(EVENT, max_size=12),
)
def test_after_any_events_embeddings_are_those_of_a_whole_pass(name, n, e, masked, events):
    weights = WEIGHTS[name]
    shape = weights.shape
    rng = np.random.default_rng(n * 100 + e)
    sources, targets = rng.integers(0, n, (2, e)).astype(np.int32)
    x, h, edge, _ = inputs_of(shape, n, e, seed=e)
    mask = rng.random(n) < 0.8 if masked else None
    live = LiveEmbeddings(weights)
    live.reset(sources, targets, x, h, edge, mask)
    for what, a, b in events:
        before = live.z.copy()
        row = rng.normal(size=shape.d_edge)
        if what == "node":
            x[a % n], h[a % n] = rng.normal(size=shape.d_in), rng.normal(size=shape.d_temporal)
            touched = live.set_node(a % n, x[a % n], h[a % n])
        elif what == "add":
            touched = live.add_edge(a % n, b % n, row)
        elif not live.num_edges:
            continue
        elif what == "edge":
            touched = live.set_edge(a % live.num_edges, row)
        else:
            touched = live.remove_edge(a % live.num_edges)
        graph = graph_of(n, *live.ends, mask)
        whole = Encoder(weights, bfloat16=False).encode(graph, x, h, live.e, mask)
        np.testing.assert_allclose(live.z, whole, rtol=1e-4, atol=1e-5)
        same = np.setdiff1d(np.arange(n), touched)
        assert np.array_equal(live.z[same], before[same])


def test_an_event_far_away_leaves_a_chain_alone():
    n = 50
    sources, targets = np.arange(n - 1, dtype=np.int32), np.arange(1, n, dtype=np.int32)
    x, h, edge, _ = inputs_of(SMALL, n, n - 1)
    live = LiveEmbeddings(WEIGHTS["small"])
    live.reset(sources, targets, x, h, edge)
    assert set(live.set_node(20, x[20] + 1).tolist()) == {19, 20, 21}


def test_ends_and_edges_that_are_not_there_are_refused():
    live = LiveEmbeddings(WEIGHTS["small"])
    sources, targets = edges_of(5, 8)
    x, h, edge, _ = inputs_of(SMALL, 5, len(sources))
    live.reset(sources, targets, x, h, edge)
    with pytest.raises(SnapshotInvalid, match="positions are 0 to 4"):
        live.add_edge(0, 5, edge[0])
    with pytest.raises(SnapshotInvalid, match="edge 99"):
        live.remove_edge(99)


def test_new_nodes_begin_as_the_weighted_mean_of_their_known_neighbours():
    graph = graph_of(5, np.array([0, 3, 3, 4], np.int32), np.array([3, 1, 2, 2], np.int32))
    rows = np.array([[4.0], [8.0], [99.0], [99.0], [99.0]], np.float32)
    known = np.array([True, True, False, False, False])
    filled = from_neighbours(graph, rows, known, np.array([0.75, 0.25, 1.0, 1.0], np.float32))
    assert filled.tolist() == [True, True, False, True, False]
    np.testing.assert_allclose(rows[:, 0], [4, 8, 99, 5, 99])


def test_a_new_node_whose_traffic_is_unknown_still_begins_like_its_neighbours():
    graph = graph_of(2, np.array([0], np.int32), np.array([1], np.int32))
    rows = np.array([[3.0], [0.0]], np.float32)
    from_neighbours(graph, rows, np.array([True, False]), np.array([np.nan], np.float32))
    assert rows[1, 0] == 3
