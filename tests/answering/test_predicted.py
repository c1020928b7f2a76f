"""What is predicted of a request before it is planned, and what batches teach."""

from types import SimpleNamespace

import numpy as np
import pytest

from hopline.answering.predicted import PredictedRows, RequestSize
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.types import InlineNode, ScoreRequest
from tests.graphs import drawn, power_law_graph

EDGE = "node__to__node"


def spec(*fanouts, key=EDGE, node_type="node", max_degree=None):
    head = SimpleNamespace(kind="node", node_type=node_type, dst_node_type=None)
    by_type = {node_type: None}
    return SimpleNamespace(
        head=head, fanouts={key: fanouts}, max_degree=max_degree, heads=(), by_type=by_type
    )


def learned(share=1.0):
    predicted = PredictedRows(spec(10, 10), power_law_graph(), 2)
    predicted.share = share
    return predicted


def batch(direct, below):
    return [SimpleNamespace(direct=direct, below=below, num_seeds=1)]


def test_a_node_without_a_fanout_is_predicted_by_its_own_degree():
    graph = drawn(" ".join([f"n{at}>hub" for at in range(50)]) + " hub>leaf")
    predicted = PredictedRows(spec(-1, -1), graph, 2)
    hub, _ = predicted.of(ScoreRequest("m", nodes=["hub"]), 1)
    leaf, _ = predicted.of(ScoreRequest("m", nodes=["leaf"]), 1)
    assert (hub, leaf) == (51, 2)
    both, _ = predicted.of(ScoreRequest("m", nodes=["hub", "leaf", "hub"]), 3)
    assert both == 53  # each node once
    nobody, _ = predicted.of(ScoreRequest("m", nodes=["nobody"]), 1)
    assert nobody <= 1


def test_a_fanout_or_a_degree_cap_bounds_what_is_predicted():
    graph = drawn(" ".join([f"n{at}>hub" for at in range(50)]))
    for model in (spec(4, 4), spec(-1, -1, max_degree=4)):
        predicted = PredictedRows(model, graph, 2)
        assert not predicted.differs
        assert predicted.direct <= 5


def test_no_more_is_predicted_than_the_graph_has():
    graph = power_law_graph(100, 3000)
    size = RequestSize(spec(-1, -1, -1), graph, 3)
    _, below = size.rows("node", np.arange(100))
    assert below <= 3 * (100 + 3000)


def test_paths_follow_the_types_of_edges():
    """Shops are read by users only: what flows into shops is no hop of a user's neighbour of type user."""
    rng = np.random.default_rng(0)
    ends = [rng.integers(0, 50, 1000), rng.integers(0, 50, 1000)]
    graph = Graph.from_tables(
        {"user": NodeTable(rng.random((50, 2))), "shop": NodeTable(rng.random((50, 2)))},
        {("user", "knows", "user"): EdgeTable(ends), ("user", "buys", "shop"): EdgeTable(ends)},
    )
    fanouts = {"user__knows__user": (3, 3), "user__buys__shop": (100, 100)}
    head = SimpleNamespace(kind="node", node_type="user", dst_node_type=None)
    size = RequestSize(SimpleNamespace(head=head, fanouts=fanouts, max_degree=None), graph, 2)
    assert size.per_seed["user"] == (4, 9)


def test_requests_that_were_large_are_known():
    predicted = learned()
    request = ScoreRequest("m", nodes=[5])
    assert not predicted.differs
    predicted.remember(request, 50_000, 4096)
    assert predicted.of(request, 1) == (50_000, 0.0)
    assert predicted.of(ScoreRequest("m", nodes=[6]), 1)[0] < 100
    predicted.remember(request, 4000, 4096)  # rows are kept now
    assert predicted.of(request, 1)[0] < 100
    for node in range(10_000):
        predicted.remember(ScoreRequest("m", nodes=[node]), 50_000, 4096)
    assert len(predicted.large) == 4096


def test_share_follows_what_tables_have_without_an_echo():
    predicted = learned()
    for _ in range(500):  # predicted when tables were cold, and learned from long after
        predicted.learn(batch(0, 50_000), 500)
    assert predicted.share == pytest.approx(0.01, rel=0.01)
    seen = []
    for at in range(200):  # one in twenty finds nothing kept
        predicted.learn(batch(0, 50_000), 30_000 if at % 20 == 0 else 500)
        seen.append(predicted.share)
    mean = (30_000 + 19 * 500) / 20 / 50_000
    assert 0.2 * mean < min(seen[100:])
    assert max(seen) < 6 * mean


def test_share_rises_within_a_few_batches_where_all_become_large():
    predicted = learned(share=0.01)
    for _ in range(16):
        predicted.learn(batch(10, 100_000), 100_010)
    assert predicted.share > 0.5


def test_one_batch_hardly_changes_the_share_and_unknown_nodes_do_not():
    predicted = learned(share=0.01)
    predicted.learn(batch(10, 100_000), 100_010)
    assert predicted.share < 0.03
    before = predicted.share
    for _ in range(100):
        predicted.learn(batch(10, 100_000), 0)  # nothing was read
        predicted.learn(batch(10, 0), 10)  # one layer: nothing below
    assert predicted.share == before


def described(count, listed, **kwargs):
    return ScoreRequest(
        "m", inline=[InlineNode([0.0], {"": range(listed)}) for _ in range(count)], **kwargs
    )


def test_fanouts_bound_what_is_predicted_of_described_nodes():
    """The engine samples their lists; of the ids that it leaves out, it only reads the name."""
    predicted = PredictedRows(spec(10, 5), power_law_graph(), 2)
    direct, below = predicted.of(described(50, 10_000), 50)
    _, known = predicted.of(ScoreRequest("m", nodes=list(range(50))), 50)
    assert 50 * 11 < direct < 500_000 / 2  # what is listed is no row
    assert below <= 2 * known
    assert direct > 10 * predicted.of(described(50, 10), 50)[0]  # but not free
    assert predicted.of(described(50, 2), 50)[1] < below  # short lists lead to fewer nodes


def test_all_that_a_described_node_lists_is_predicted_where_no_fanout_bounds_it():
    graph = drawn("a>b b>c")
    predicted = PredictedRows(spec(-1, -1), graph, 2)
    direct, below = predicted.of(described(1, 3000), 1)
    assert 3000 < direct < 6000
    assert 0 < below <= 2 * (3 + 2)  # no more than the graph has


def test_described_nodes_add_to_known_ones():
    graph = drawn(" ".join([f"n{at}>hub" for at in range(50)]))
    for model in (spec(-1, -1), spec(4, 4)):
        predicted = PredictedRows(model, graph, 2)
        inline = predicted.of(described(2, 30), 2)
        nodes = predicted.of(ScoreRequest("m", nodes=["hub", "n1"]), 2)
        both = predicted.of(described(2, 30, nodes=["hub", "n1"]), 4)
        assert both == pytest.approx(np.add(inline, nodes))
