"""Windows: only edges of a time before the cut, sampled as from a graph that has no others."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.errors import ArtifactError
from hopline.graph import Graph
from hopline.sampling import BlockBuffers, Sampler, layer_key
from tests.sampling.test_keyed import EDGE, graph
from tests.thorough import thorough

NUM_NODES, LATEST = 40, 49


def sampled(g, fanout, mode, salt, **options):
    as_of = {} if (cut := options.pop("as_of", None)) is None else {"as_of": cut}
    sampler = Sampler(g.edges[EDGE], fanout, mode, layer_key(salt, 1, EDGE), **options)
    block = sampler.sample(np.arange(NUM_NODES), BlockBuffers(), **as_of)
    times = g.edges[EDGE].time[block.positions]
    return [
        list(zip(*each, strict=True))
        for each in zip(
            *(np.split(part.copy(), block.offsets[1:-1]) for part in (block.neighbors, times)), strict=True
        )
    ]


def only(g, low, high):
    """The graph of the edges after `low` and not after `high`."""
    part = g.edges[EDGE]
    kept = (part.time > low) & (part.time <= high)
    ends = np.stack([part.indices, np.repeat(np.arange(NUM_NODES), np.diff(part.indptr))])[:, kept]
    return Graph.from_edges(ends, np.zeros((NUM_NODES, 1), np.float32), edge_time=part.time[kept])


@settings(max_examples=thorough(20, 80), deadline=None)
@given(
    seed=st.integers(0, 20),
    fanout=st.sampled_from([-1, 0, 1, 3, 10]),
    mode=st.sampled_from(["uniform", "recent"]),
    salt=st.integers(0, 2**63),
    as_of=st.none() | st.integers(-5, 60),
    window=st.integers(0, 70),
    packed=st.booleans(),
)
def test_a_window_is_the_graph_without_other_edges(seed, fanout, mode, salt, as_of, window, packed):
    g = graph(seed)
    until = LATEST if as_of is None else as_of
    wanted = sampled(only(g, until - window, until), fanout, mode, salt)
    g = g.compressed() if packed else g
    assert sampled(g, fanout, mode, salt, as_of=as_of, window=window, now=LATEST) == wanted


def test_every_neighbour_of_a_window_is_as_likely_as_any_other():
    """The count of each is binomial: within five standard deviations of its mean over 3,000 salts."""
    g = Graph.from_edges(
        np.stack([np.arange(1, 31), np.zeros(30, np.int64)]),
        np.zeros((NUM_NODES, 1), np.float32),
        edge_time=np.arange(30),
    )
    counts, draws, few, most = np.zeros(31), 3000, 4, 12
    for salt in range(draws):
        first, *_ = sampled(g, few, "uniform", salt, as_of=20, window=most)
        assert len(first) == few
        counts[[source for source, _ in first]] += 1
    inside = np.arange(10, 22)  # times 9 to 20
    assert counts.sum() == counts[inside].sum()
    share = few / most
    assert (np.abs(counts[inside] - draws * share) < 5 * np.sqrt(draws * share * (1 - share))).all()


def test_a_window_needs_times_and_no_weights():
    with pytest.raises(ArtifactError, match="a window of"):
        Sampler(graph(0).edges[EDGE], 2, "weighted", layer_key(0, 1, EDGE), window=3)
    plain = Graph.from_edges(np.array([[0], [1]]), np.zeros((2, 1), np.float32))
    with pytest.raises(ArtifactError, match="a window of"):
        Sampler(plain.edges[EDGE], 2, "uniform", layer_key(0, 1, EDGE), window=3)
