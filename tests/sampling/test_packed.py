"""Sampling from compressed lists is sampling from plain ones, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.graph import Graph
from hopline.sampling import BlockBuffers, Sampler, layer_key
from hopline.sampling.keyed import NO_CUT
from tests.graph.unpacked import decompressed
from tests.sampling.reference import sample_positions
from tests.thorough import thorough

EDGE = "node__to__node"
N = 60


def graph(seed: int, times: bool = True, spread: float = 4.0) -> Graph:
    """Hubs, isolated nodes, multi-edges; weights of many sizes, some of them 0."""
    rng = np.random.default_rng(seed)
    count = 900
    weights = (rng.random(count) ** spread).astype(np.float32)
    weights[rng.random(count) < 0.2] = 0
    return Graph.from_edges(
        (N * rng.random((2, count)) ** 3).astype(np.int64),
        np.zeros((N, 1), np.float32),
        edge_time=rng.integers(0, 50, count) if times else None,
        edge_weight=weights,
    )


def blocks(g: Graph, fanout: int, mode: str, nodes: np.ndarray, salt: int, as_of: int) -> list[list[int]]:
    sampler = Sampler(g.edges[EDGE], fanout, mode, layer_key(salt, 1, EDGE))
    block = sampler.sample(nodes, BlockBuffers(), as_of)
    return [block.offsets.tolist(), block.positions.tolist(), block.neighbors.tolist()]


@settings(max_examples=thorough(25, 100), deadline=None)
@given(
    seed=st.integers(0, 30),
    times=st.booleans(),
    fanout=st.sampled_from([-1, 0, 1, 2, 5, 10, 300]),
    mode=st.sampled_from(["uniform", "recent", "weighted"]),
    salt=st.integers(0, 2**63),
    as_of=st.just(NO_CUT) | st.integers(-5, 60),
    nodes=st.lists(st.integers(0, N - 1), max_size=80),
)
def test_packed_lists_are_sampled_as_plain_ones_with_the_same_weights(
    seed, times, fanout, mode, salt, as_of, nodes
):
    packed = graph(seed, times or mode == "recent").compressed()
    ids = np.array(nodes, np.int64)
    assert blocks(packed, fanout, mode, ids, salt, as_of) == blocks(
        decompressed(packed), fanout, mode, ids, salt, as_of
    )


@settings(max_examples=thorough(7, 30), deadline=None)
@given(seed=st.integers(0, 30), fanout=st.integers(1, 12), mode=st.sampled_from(["uniform", "recent"]))
def test_without_weights_the_choice_is_that_of_the_graph_itself(seed, fanout, mode):
    plain = graph(seed)
    ids = np.arange(N)
    assert blocks(plain.compressed(), fanout, mode, ids, 1, NO_CUT) == blocks(
        plain, fanout, mode, ids, 1, NO_CUT
    )


@pytest.mark.parametrize("mode", ["uniform", "recent", "weighted"])
def test_packed_lists_against_the_numpy_reference(mode):
    adjacency = graph(3).compressed().edges[EDGE]
    sampler = Sampler(adjacency, 4, mode, layer_key(0, 1, EDGE))
    block = sampler.sample(np.arange(N), BlockBuffers())
    expected = [sample_positions(adjacency, v, 4, mode, int(sampler.key)).tolist() for v in range(N)]
    assert [p.tolist() for p in np.split(block.positions, block.offsets[1:-1])] == expected


def test_one_heavy_edge_and_many_light_ones_in_a_list_of_many_blocks():
    count = 3000
    weight = np.ones(count, np.float32)
    weight[1700] = 1e5
    star = Graph.from_edges(
        [np.arange(1, count + 1), np.zeros(count, int)],
        np.zeros((count + 1, 1), np.float32),
        edge_weight=weight,
    ).compressed()
    nodes = np.zeros(1, np.int64)
    for fanout in (1, 20, 500):
        assert blocks(star, fanout, "weighted", nodes, 0, NO_CUT) == blocks(
            decompressed(star), fanout, "weighted", nodes, 0, NO_CUT
        )


@settings(max_examples=thorough(7, 30), deadline=None)
@given(
    lengths=st.lists(st.sampled_from([0, 3, 500, 511, 512, 513, 1024, 2500]), min_size=1, max_size=4),
    salt=st.integers(0, 99),
)
def test_lists_long_and_short_draw_by_weight_wherever_they_begin(lengths, salt):
    count = sum(lengths)
    weight = np.random.default_rng(salt).random(count).astype(np.float32)
    lists = Graph.from_edges(
        [np.arange(count), np.repeat(np.arange(len(lengths)), lengths)],
        np.zeros((max(count, len(lengths)), 1), np.float32),
        edge_weight=weight,
    ).compressed()
    nodes = np.arange(len(lengths))
    assert blocks(lists, 25, "weighted", nodes, salt, NO_CUT) == blocks(
        decompressed(lists), 25, "weighted", nodes, salt, NO_CUT
    )
