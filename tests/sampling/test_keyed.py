"""The keyed sampler against its NumPy reference, and the properties that serving stands on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.errors import ArtifactError
from hopline.graph import Graph
from hopline.sampling import BlockBuffers, Sampler, layer_key
from tests.sampling.reference import sample_positions
from tests.thorough import thorough

EDGE = "node__to__node"


def graph(seed: int, num_nodes: int = 40, num_edges: int = 400, skew: float = 3.0) -> Graph:
    """Random multigraph with hubs, isolated nodes, self-loops, times and weights (some of them 0)."""
    rng = np.random.default_rng(seed)
    edges = (num_nodes * rng.random((2, num_edges)) ** skew).astype(np.int64)
    weights = (rng.random(num_edges) ** 4).astype(np.float32)
    weights[rng.random(num_edges) < 0.2] = 0
    return Graph.from_edges(
        edges,
        np.zeros((num_nodes, 1), np.float32),
        edge_time=rng.integers(0, 50, num_edges),
        edge_weight=weights,
    )


def sampler_of(g: Graph, fanout: int, mode: str, salt: int = 0, max_degree: int | None = None) -> Sampler:
    return Sampler(g.edges[EDGE], fanout, mode, layer_key(salt, 1, EDGE), max_degree)


def positions_of(sampler: Sampler, nodes: np.ndarray, as_of: int | None = None) -> list[list[int]]:
    kwargs = {} if as_of is None else {"as_of": as_of}
    block = sampler.sample(np.asarray(nodes, np.int64), BlockBuffers(), **kwargs)
    assert (block.neighbors == sampler.adjacency.indices[block.positions]).all()
    return [p.tolist() for p in np.split(block.positions, block.offsets[1:-1])]


@settings(max_examples=thorough(30, 120), deadline=None)
@given(
    seed=st.integers(0, 50),
    fanout=st.sampled_from([-1, 0, 1, 2, 5, 10, 300]),
    mode=st.sampled_from(["uniform", "recent", "weighted"]),
    salt=st.integers(0, 2**63),
    as_of=st.none() | st.integers(-5, 60),
)
def test_kernel_equals_reference_bit_for_bit(seed, fanout, mode, salt, as_of):
    g = graph(seed)
    sampler = sampler_of(g, fanout, mode, salt)
    nodes = np.arange(40)
    expected = [
        sample_positions(g.edges[EDGE], v, fanout, mode, int(sampler.key), as_of).tolist() for v in nodes
    ]
    assert positions_of(sampler, nodes, as_of) == expected


@settings(max_examples=thorough(15, 60), deadline=None)
@given(
    seed=st.integers(0, 20),
    fanout=st.integers(1, 12),
    mode=st.sampled_from(["uniform", "recent", "weighted"]),
    order=st.permutations(range(40)),
    size=st.integers(1, 40),
)
def test_sample_of_a_node_does_not_depend_on_batch_mates_or_order(seed, fanout, mode, order, size):
    sampler = sampler_of(graph(seed), fanout, mode)
    alone = {v: positions_of(sampler, [v])[0] for v in range(40)}
    together = positions_of(sampler, order[:size])
    assert together == [alone[v] for v in order[:size]]


@settings(max_examples=thorough(15, 60), deadline=None)
@given(seed=st.integers(0, 20), fanout=st.integers(0, 12), mode=st.sampled_from(["uniform", "weighted"]))
def test_sample_is_without_replacement_and_as_large_as_it_can_be(seed, fanout, mode):
    g = graph(seed)
    adjacency = g.edges[EDGE]
    for v, positions in enumerate(positions_of(sampler_of(g, fanout, mode), range(40))):
        a, b = adjacency.indptr[v], adjacency.indptr[v + 1]
        assert len(set(positions)) == len(positions)
        assert all(a <= p < b for p in positions)
        eligible = b - a
        if mode == "weighted" and b - a > fanout:
            eligible = int((adjacency.weight[a:b] > 0).sum())
        assert len(positions) == min(fanout, eligible)


@settings(max_examples=thorough(15, 60), deadline=None)
@given(seed=st.integers(0, 20), as_of=st.integers(-1, 51), mode=st.sampled_from(["uniform", "recent"]))
def test_no_edge_is_later_than_the_time_cut(seed, as_of, mode):
    g = graph(seed)
    time = g.edges[EDGE].time
    for v, positions in enumerate(positions_of(sampler_of(g, 3, mode), range(40), as_of)):
        a, b = g.edges[EDGE].indptr[v : v + 2]
        assert len(positions) == min(3, int((time[a:b] <= as_of).sum()))
        assert all(time[p] <= as_of for p in positions)


def test_recent_takes_the_latest_edges():
    g = graph(3)
    time = g.edges[EDGE].time
    for v, positions in enumerate(positions_of(sampler_of(g, 4, "recent"), range(40))):
        a, b = g.edges[EDGE].indptr[v : v + 2]
        assert sorted(time[positions]) == sorted(time[a:b])[-4:]


def test_every_neighbor_is_as_likely_as_any_other():
    star = Graph.from_edges([np.arange(1, 21), np.zeros(20, int)], np.zeros((21, 1), np.float32))
    counts = np.zeros(20)
    for salt in range(4000):
        counts[positions_of(sampler_of(star, 5, "uniform", salt), [0])[0]] += 1
    # each is in a sample with probability 1/4: mean 1000, standard deviation 27
    assert abs(counts - 1000).max() < 5 * 27.4


def test_heavier_edges_are_drawn_in_proportion_to_their_weight():
    weight = np.array([1.0, 2.0, 3.0, 10.0], np.float32)
    star = Graph.from_edges(
        [np.arange(1, 5), np.zeros(4, int)], np.zeros((5, 1), np.float32), edge_weight=weight
    )
    first = np.zeros(4)
    for salt in range(4000):
        first[positions_of(sampler_of(star, 1, "weighted", salt), [0])[0][0]] += 1
    expected = 4000 * weight / weight.sum()
    assert (abs(first - expected) < 5 * np.sqrt(expected)).all()


def test_one_edge_that_outweighs_all_others_does_not_hide_them():
    weight = np.ones(50, np.float32) * 1e-6
    weight[7] = 1e6
    star = Graph.from_edges(
        [np.arange(1, 51), np.zeros(50, int)], np.zeros((51, 1), np.float32), edge_weight=weight
    )
    sampler = sampler_of(star, 10, "weighted")
    positions = positions_of(sampler, [0])[0]
    assert len(set(positions)) == 10
    assert 7 in positions
    assert positions == sample_positions(star.edges[EDGE], 0, 10, "weighted", int(sampler.key)).tolist()


@pytest.mark.parametrize(("fanout", "cap", "expected"), [(-1, 7, 7), (100, 7, 7), (3, 7, 3)])
def test_max_degree_caps_every_fanout(fanout, cap, expected):
    star = Graph.from_edges([np.arange(1, 101), np.zeros(100, int)], np.zeros((101, 1), np.float32))
    positions = positions_of(sampler_of(star, fanout, "uniform", max_degree=cap), [0])[0]
    assert len(set(positions)) == expected


def test_layers_edge_types_and_salts_sample_apart():
    g = graph(1, num_edges=4000)
    keys = [layer_key(0, 1, EDGE), layer_key(0, 2, EDGE), layer_key(1, 1, EDGE), layer_key(0, 1, "a__b__c")]
    samples = [positions_of(Sampler(g.edges[EDGE], 5, "uniform", key), [0])[0] for key in keys]
    assert len({tuple(s) for s in samples}) == len(keys)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("recent", "needs edge times"),
        ("weighted", "needs edge weights"),
        ("random", "uniform, recent, weighted"),
    ],
)
def test_a_mode_that_the_graph_cannot_serve_is_refused(mode, message):
    plain = Graph.from_edges([[0], [1]], np.zeros((2, 1), np.float32))
    with pytest.raises(ValueError, match=message):
        sampler_of(plain, 5, mode)


def signed(g: Graph) -> Graph:
    """The same edges; half of the weights are negative."""
    edges = g.edges[EDGE]
    weight = edges.weight * np.where(np.arange(edges.num_edges) % 2, -1, 1)
    ends = np.stack([edges.indices, np.repeat(np.arange(40), np.diff(edges.indptr))])
    return Graph.from_edges(ends, num_nodes=40, edge_time=edges.time, edge_weight=weight)


@settings(max_examples=thorough(10, 40), deadline=None)
@given(
    seed=st.integers(0, 50),
    fanout=st.sampled_from([-1, 0, 2, 10]),
    mode=st.sampled_from(["uniform", "recent"]),
    as_of=st.none() | st.integers(-5, 60),
)
def test_negative_weights_do_not_change_what_is_drawn_without_weights(seed, fanout, mode, as_of):
    plain, g = graph(seed), signed(graph(seed))
    key = int(sampler_of(g, fanout, mode).key)
    expected = [
        sample_positions(plain.edges[EDGE], v, fanout, mode, key, as_of).tolist() for v in range(40)
    ]
    for each in (g, g.compressed()):
        assert positions_of(sampler_of(each, fanout, mode), np.arange(40), as_of) == expected


def test_edges_with_negative_weights_are_not_sampled_by_weight():
    g = signed(graph(0))
    for each in (g, g.compressed()):
        with pytest.raises(ArtifactError, match="weights >= 0; those of node__to__node may be negative"):
            sampler_of(each, 3, "weighted")
