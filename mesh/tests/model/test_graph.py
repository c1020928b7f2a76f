"""Lists of callers and callees are those of the edges, and are kept while edges stay the same."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.model.graph import MeshGraph, outgoing_shares

ENDS = st.integers(1, 9).flatmap(
    lambda n: st.tuples(st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))))
)


def arrays(pairs):
    return (
        np.array([a for a, _ in pairs], np.int32),
        np.array([b for _, b in pairs], np.int32),
    )


def lists_of(lists, n):
    return [
        list(
            zip(
                lists.others[lists.indptr[i] : lists.indptr[i + 1]].tolist(),
                lists.edges[lists.indptr[i] : lists.indptr[i + 1]].tolist(),
                strict=True,
            )
        )
        for i in range(n)
    ]


@settings(max_examples=60, deadline=None)
@given(st.lists(ENDS, min_size=1, max_size=4), st.randoms())
def test_lists_are_those_of_the_edges_after_any_updates(steps, random):
    graph = MeshGraph()
    for n, pairs in steps:
        mask = np.array([random.random() < 0.8 for _ in range(n)])
        sources, targets = arrays(pairs)
        graph.update(n, sources, targets, mask)
        kept = [(k, a, b) for k, (a, b) in enumerate(pairs) if mask[a] and mask[b]]
        assert lists_of(graph.callers, n) == [[(a, k) for k, a, b in kept if b == i] for i in range(n)]
        assert lists_of(graph.callees, n) == [[(b, k) for k, a, b in kept if a == i] for i in range(n)]
        version = graph.version
        assert not graph.update(n, sources.copy(), targets.copy(), mask)
        assert graph.version == version


def test_another_end_mask_or_number_of_nodes_is_a_change():
    graph = MeshGraph()
    sources, targets = arrays([(0, 1), (1, 2)])
    assert graph.update(3, sources, targets)
    assert not graph.update(3, sources, targets)
    assert graph.update(4, sources, targets)
    assert graph.update(4, sources, targets, np.array([True, True, False, True]))
    assert graph.update(4, sources, targets)
    assert graph.update(4, sources, sources)


def test_slots_become_positions():
    graph = MeshGraph()
    nodes = np.array([7, 2, 5], np.int32)
    assert graph.at_slots(nodes, np.array([7, 5], np.int32), np.array([2, 7], np.int32), 9)
    assert graph.sources.tolist() == [0, 2]
    assert graph.targets.tolist() == [1, 0]
    with pytest.raises(SnapshotInvalid, match="is not a node"):
        graph.at_slots(nodes, np.array([7], np.int32), np.array([3], np.int32), 9)


def test_ends_that_are_out_of_range_are_refused_and_change_nothing():
    graph = MeshGraph()
    graph.update(2, *arrays([(0, 1)]))
    for pair in ((0, 2), (-1, 0)):
        with pytest.raises(SnapshotInvalid, match="positions 0 to 1"):
            graph.update(2, *arrays([pair]))
    with pytest.raises(SnapshotInvalid, match="lengths"):
        graph.update(2, np.zeros(2, np.int32), np.zeros(1, np.int32))
    assert graph.sources.tolist() == [0]


def test_an_edge_weighs_its_share_of_what_its_caller_sends():
    sources = np.array([0, 0, 1, 2, 0], np.int32)
    shares = outgoing_shares(sources, np.array([3, 1, 5, 0, np.nan], np.float32), 3)
    np.testing.assert_allclose(shares, [0.75, 0.25, 1, 0, np.nan])
