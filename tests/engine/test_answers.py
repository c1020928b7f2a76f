"""What the whole system stands on: answers are a pure function of model, graph and node."""

import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopline.errors import BadRequest, NodeNotFound, RequestTooLarge, SchemaMismatch
from hopline.types import InlineNode, ScoreRequest
from tests.engine import zoo
from tests.thorough import thorough

NODE_MODELS = ["sage", "plain", "gcn", "gat", "mixed", "aggregated", "general", "hetero"]
ALL = [*NODE_MODELS, "link"]


def ids_of(case, rows):
    head = case.model(False).spec.head
    found = case.graph.nodes[head.node_type].ids.external(np.asarray(rows))
    return found if isinstance(found, list) else found.tolist()


def count_of(case):
    return case.graph.nodes[case.model(False).spec.head.node_type].num_nodes


def request(case, rows, **kwargs):
    outputs = kwargs.pop("outputs", ("logits", "embedding"))
    if case.name == "link":
        rows = np.asarray(rows)
        others = (rows * 7 + 3) % count_of(case)
        pairs = (ids_of(case, rows), ids_of(case, others))
        return ScoreRequest(case.name, pairs=pairs, outputs=outputs, **kwargs)
    return ScoreRequest(case.name, nodes=ids_of(case, rows), outputs=outputs, **kwargs)


def answer(answerer, *requests):
    outcomes = answerer.answer(requests)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return [outcome.outputs["logits"] for outcome in outcomes]


@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize("name", NODE_MODELS)
def test_full_fanout_equals_pyg_on_the_full_graph(cases, name, caches):
    case = cases[name]
    answerer = case.answerer(caches, fanout=-1)
    rows = np.arange(count_of(case))
    (logits,) = answer(answerer, request(case, rows))
    np.testing.assert_allclose(logits, case.oracle(), atol=1e-4, rtol=1e-4)


def test_link_scores_equal_pyg_on_the_full_graph(cases):
    case = cases["link"]
    h = case.oracle()
    rows = np.arange(zoo.N)
    others = (rows * 7 + 3) % zoo.N
    (logits,) = answer(case.answerer(True, fanout=-1), request(case, rows))
    np.testing.assert_allclose(logits[:, 0], (h[rows] * h[others]).sum(1), atol=1e-4, rtol=1e-4)


@pytest.mark.sample(5)
@pytest.mark.parametrize("fanout", [None, -1])
@pytest.mark.parametrize("name", ALL)
def test_any_batch_in_any_order_gives_bit_equal_answers(cases, name, fanout):
    case = cases[name]
    answerer = case.answerer(False, fanout)
    n = count_of(case)
    alone = np.concatenate([answer(answerer, request(case, [v]))[0] for v in range(n)])
    rng = np.random.default_rng(0)
    for size in (2, 3, 17, n):
        rows = rng.permutation(n)[:size]
        (one_request,) = answer(answerer, request(case, rows))
        assert (one_request == alone[rows]).all()
        parts = np.array_split(rows, 3)
        many = answer(answerer, *[request(case, part) for part in parts if len(part)])
        assert (np.concatenate(many) == alone[rows]).all()


def test_repeated_nodes_get_the_same_answer_at_each_place(cases):
    case = cases["sage"]
    (logits,) = answer(case.answerer(True), request(case, [5, 9, 5, 5, 9]))
    assert (logits[[0, 2, 3]] == logits[0]).all()
    assert (logits[[1, 4]] == logits[1]).all()


@pytest.mark.sample(9)
@pytest.mark.parametrize("fanout", [None, -1])
@pytest.mark.parametrize("name", ALL)
def test_state_cache_never_changes_an_answer(cases, name, fanout):
    case = cases[name]
    n = count_of(case)
    (cold,) = answer(case.answerer(False, fanout), request(case, np.arange(n)))
    answerer = case.answerer(True, fanout)
    assert answerer.model.state_caches
    rng = np.random.default_rng(1)
    for _ in range(12):
        rows = rng.permutation(n)[: rng.integers(1, 40)]
        (logits,) = answer(answerer, request(case, rows))
        assert (logits == cold[rows]).all()
        for cache in answerer.model.state_caches.values():
            cache.forget(rng.integers(0, 60, 10))
    assert sum(cache.num_hits for cache in answerer.model.state_caches.values()) > 0


@settings(
    max_examples=thorough(6, 25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    as_of=st.integers(-1, 101),
    name=st.sampled_from(["sage", "gcn", "gat", "mixed", "aggregated", "general"]),
)
def test_as_of_answers_as_the_graph_of_that_time_would(cases, as_of, name):
    case = cases[name]
    past = zoo.homogeneous(1, keep=zoo.times(1) <= as_of)
    rows = np.arange(0, zoo.N, 7)
    answerer = case.answerer(True, fanout=-1)
    (now,) = answer(answerer, request(case, rows))
    then, now_again = answer(answerer, request(case, rows, as_of=as_of), request(case, rows))
    np.testing.assert_allclose(then, case.oracle(past)[rows], atol=1e-4, rtol=1e-4)
    assert (now == now_again).all()


def describe(case, row, own_id=None):
    """An inline copy of a known node."""
    features = np.array(case.graph.nodes["node"].features[row])
    edges = case.graph.edges[zoo.EDGE]
    a, b = edges.indptr[row : row + 2]
    neighbors = [f"n{i}" if i != row or own_id is None else own_id for i in edges.indices[a:b]]
    return InlineNode(
        features,
        {"": neighbors},
        own_id,
        {zoo.EDGE: edges.attr[a:b]},
        {zoo.EDGE: edges.weight[a:b]},
    )


@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize("name", ["sage", "gcn", "gat", "mixed", "aggregated", "general"])
def test_unseen_node_answers_as_if_it_were_in_the_graph(cases, name, caches):
    """A copy of a node, with its features, in-neighbours and self-loops, gets its answer."""
    case = cases[name]
    answerer = case.answerer(caches, fanout=-1)
    edges = case.graph.edges[zoo.EDGE]
    alone = [v for v in range(zoo.N) if edges.indptr[v] == edges.indptr[v + 1]]
    rows = [3, *range(20, 30), *alone[:2], int(np.diff(edges.indptr).argmax())]
    (known,) = answer(answerer, request(case, rows))
    inline = [describe(case, v, f"new-{v}") for v in rows]
    together = ScoreRequest(name, inline=inline, outputs=("logits",))
    alone = [ScoreRequest(name, inline=[node], outputs=("logits",)) for node in inline]
    (in_one,) = answer(answerer, together)
    np.testing.assert_allclose(in_one, known, atol=1e-4, rtol=1e-4)
    assert (np.concatenate(answer(answerer, *alone)) == in_one).all()
    both = ScoreRequest(name, nodes=ids_of(case, rows), inline=inline, outputs=("logits",))
    (mixed,) = answer(answerer, both)
    assert (mixed[: len(rows)] == known).all()
    assert (mixed[len(rows) :] == in_one).all()


def test_unseen_nodes_can_be_neighbours_of_each_other(cases):
    """A chain new-2 <- new-1 <- n5 answers as the same chain in a graph does."""
    case = cases["sage"]
    base = case.graph
    x = np.array(base.nodes["node"].features)
    new = np.random.default_rng(3).standard_normal((2, 6)).astype(np.float32)
    edges = zoo.edge_index(base.edges[zoo.EDGE]).numpy()
    grown = np.concatenate([edges, [[5, zoo.N], [zoo.N, zoo.N + 1]]], axis=1)
    with zoo.torch.no_grad():
        truth = case.module(zoo.torch.from_numpy(np.concatenate([x, new])), zoo.torch.from_numpy(grown))
    inline = [InlineNode(new[1], {"": ["new-1"]}, "new-2"), InlineNode(new[0], {zoo.EDGE: ["n5"]}, "new-1")]
    # the model's graph has weights and attributes, which SAGE does not read
    inline = [
        InlineNode(n.features, n.neighbors, n.id, {zoo.EDGE: np.zeros((1, 2), np.float32)}) for n in inline
    ]
    (logits,) = answer(case.answerer(True, -1), ScoreRequest("sage", inline=inline, outputs=("logits",)))
    np.testing.assert_allclose(logits, truth.numpy()[[zoo.N + 1, zoo.N]], atol=1e-4)


@pytest.mark.parametrize("caches", [False, True])
def test_an_inline_node_hides_a_known_node_from_inline_neighbours_only(cases, caches):
    """docs/guides/score-unseen-nodes.md: as if it had another id, and nobody else notices."""
    case = cases["sage"]
    answerer = case.answerer(caches, fanout=-1)
    (known,) = answer(answerer, request(case, range(zoo.N)))
    changed = describe(case, 5)
    features = changed.features + 1

    def reader(name):
        return InlineNode(features, {"": [name]}, None, {zoo.EDGE: np.zeros((1, 2), np.float32)})

    def asked(name):
        fields = (changed.neighbors, name, changed.edge_attr, changed.edge_weight)
        inline = [InlineNode(features, *fields), reader(name)]
        nodes = ids_of(case, range(zoo.N))
        (found,) = answer(answerer, ScoreRequest("sage", nodes=nodes, inline=inline, outputs=("logits",)))
        return found

    hiding, renamed = asked("n5"), asked("other")
    assert (hiding == renamed).all()
    assert (hiding[: zoo.N] == known).all()
    (plain,) = answer(answerer, ScoreRequest("sage", inline=[reader("n5")], outputs=("logits",)))
    assert (plain != hiding[-1:]).any()
    (again,) = answer(answerer, request(case, range(zoo.N)))
    assert (again == known).all()


def test_sampled_answer_of_an_unseen_node_does_not_depend_on_its_place(cases):
    case = cases["sage"]
    answerer = case.answerer(True)
    hub = int(np.diff(case.graph.edges[zoo.EDGE].indptr).argmax())
    nodes = [describe(case, v, f"new-{v}") for v in (hub, 1, 2)]
    forth = ScoreRequest("sage", inline=nodes, outputs=("logits",))
    back = ScoreRequest("sage", inline=nodes[::-1], outputs=("logits",))
    a, b = answer(answerer, forth, back)
    assert (a == b[::-1]).all()


@pytest.mark.parametrize("name", ALL)
def test_bad_requests_fail_alone_at_each_position(cases, name):
    case = cases[name]
    answerer = case.answerer(True)
    good = [request(case, [v]) for v in (1, 2, 3)]
    truth = answer(answerer, *good)
    unknown = "nobody" if name != "hetero" else 10**9
    if name == "link":
        bad = ScoreRequest(name, pairs=(["n1", unknown], [unknown, "n2"]), outputs=("logits",))
    else:
        bad = ScoreRequest(name, nodes=[ids_of(case, [0])[0], unknown], outputs=("logits",))
    wrong = ScoreRequest(name, nodes=[3.5], pairs=([3.5], [1.5]), outputs=("logits",))
    for position in range(4):
        for poison, kind in ((bad, NodeNotFound), (wrong, BadRequest)):
            batch = [*good[:position], poison, *good[position:]]
            outcomes = answerer.answer(batch)
            assert isinstance(outcomes.pop(position), kind)
            for outcome, expected in zip(outcomes, truth, strict=True):
                assert (outcome.outputs["logits"] == expected).all()


def test_unknown_ids_are_all_named(cases):
    case = cases["sage"]
    (error,) = case.answerer(False).answer([ScoreRequest("sage", nodes=["n1", "x", "n2", "y"])])
    assert isinstance(error, NodeNotFound)
    assert error.missing == ("x", "y")
    assert "2 of 4" in str(error)
    assert case.graph.version in str(error)


@pytest.mark.parametrize("name", ["sage", "link"])
def test_unknown_ids_are_null_on_request_and_the_others_are_answered(cases, name):
    case = cases[name]
    answerer = case.answerer(False)
    (truth,) = answer(answerer, request(case, [1, 2]))
    if name == "link":
        sources, targets = request(case, [1, 2]).pairs
        asked = ScoreRequest(
            name,
            pairs=([sources[0], "x", sources[1]], [targets[0], "n1", targets[1]]),
            on_missing="null",
            outputs=("logits",),
        )
    else:
        asked = ScoreRequest(name, nodes=["n1", "x", "n2"], on_missing="null", outputs=("logits",))
    (result,) = answerer.answer([asked])
    assert result.missing.tolist() == [False, True, False]
    assert (result.outputs["logits"][[0, 2]] == truth).all()


def test_request_of_unknown_ids_only_is_all_null(cases):
    (result,) = cases["sage"].answerer(True).answer([ScoreRequest("sage", nodes=["x"], on_missing="null")])
    assert result.missing.tolist() == [True]


def bad_inline():
    good = {"features": [0.0] * 6, "neighbors": {"": ["n1"]}, "edge_attr": {"": [[0.0, 0.0]]}}
    return [
        ({**good, "features": [0.0] * 5}, BadRequest, r"inline\[0\].features: shape \[5\]"),
        ({**good, "features": [0.0] * 5 + [float("nan")]}, BadRequest, r"features\[5\] is nan"),
        ({**good, "features": ["a"] * 6}, BadRequest, "must be 6 numbers"),
        (
            {**good, "neighbors": {"": ["n1", "nobody"]}, "edge_attr": {"": [[0.0, 0.0]] * 2}},
            NodeNotFound,
            "nobody",
        ),
        ({**good, "neighbors": {"a__b__c": ["n1"]}}, BadRequest, "unknown edge type 'a__b__c'"),
        (
            {**good, "neighbors": {"": ["n1"], zoo.EDGE: ["n2"]}},
            BadRequest,
            r"inline\[0\].neighbors: .*not both",
        ),
        ({**good, "edge_attr": {"": [[1, 1]], zoo.EDGE: [[2, 2]]}}, BadRequest, r"edge_attr: .*not both"),
        ({**good, "edge_weight": {"": [float("-inf")]}}, BadRequest, r"inline\[0\].edge_weight: .* finite"),
        ({**good, "edge_weight": {"": [1.0, 1.0]}}, BadRequest, r"shape \[2\]; expected \[1\]"),
        ({**good, "neighbors": {"": ["n1"] * 1001}}, RequestTooLarge, "1001 neighbours"),
        ({**good, "neighbors": {"": [7]}}, BadRequest, "strings"),
    ]


@pytest.mark.parametrize(("fields", "kind", "message"), bad_inline())
def test_bad_inline_nodes_are_named(cases, fields, kind, message):
    answerer = cases["sage"].answerer(False)
    good = ScoreRequest("sage", nodes=["n1"])
    bad = ScoreRequest("sage", inline=[InlineNode(**fields)])
    outcomes = answerer.answer([good, bad, good])
    assert isinstance(outcomes[1], kind)
    assert re.search(message, str(outcomes[1]))
    assert not isinstance(outcomes[0], Exception)
    assert not isinstance(outcomes[2], Exception)


def test_edge_attributes_of_an_unseen_node_are_needed_only_where_the_model_reads_them(cases):
    node = InlineNode([0.0] * 6, {"": ["n1"]})
    (read,) = cases["gat"].answerer(False).answer([ScoreRequest("gat", inline=[node])])
    assert isinstance(read, BadRequest)
    assert "has 2 edge attributes" in str(read)
    (unread,) = cases["sage"].answerer(False).answer([ScoreRequest("sage", inline=[node])])
    assert not isinstance(unread, Exception)


@pytest.mark.parametrize(
    ("attr", "message"),
    [
        ([[1.0]], r"inline\[1\].edge_attr: shape \[1, 1\]; expected \[1, 2\]"),
        ([[1.0, 2.0]] * 2, r"inline\[1\].edge_attr: shape \[2, 2\]; expected \[1, 2\]"),
        ([1.0, 2.0], r"inline\[1\].edge_attr: shape \[2\]; expected \[1, 2\]"),
        ([[1e39, 2.0]], r"inline\[1\].edge_attr: values must be finite"),
        ([[float("nan"), 2.0]], r"inline\[1\].edge_attr: values must be finite"),
        ([["a", 2.0]], r"inline\[1\].edge_attr: must be numbers"),
        ([[16777217, 2]], r"inline\[1\].edge_attr\[0\]: .*16777217"),
    ],
)
@pytest.mark.parametrize("model", ["sage", "gat"])
@pytest.mark.parametrize("key", ["", zoo.EDGE])
def test_edge_attributes_are_checked_whether_or_not_the_model_reads_them(cases, model, key, attr, message):
    good = InlineNode([0.0] * 6, {"": ["n1"]}, edge_attr={"": [[1.0, 2.0]]})
    bad = InlineNode([0.0] * 6, {"": ["n1"]}, edge_attr={key: attr})
    (refused,) = cases[model].answerer(False).answer([ScoreRequest(model, inline=[good, bad])])
    assert isinstance(refused, BadRequest)
    assert re.search(message, str(refused))


def test_an_unseen_node_without_neighbours_may_have_empty_lists_of_edge_data(cases):
    """JSON has no shape [0, 2]: a caller that builds all lists in one loop sends []."""
    answerer = cases["gat"].answerer(False)
    bare = InlineNode([0.5] * 6)
    lists = InlineNode([0.5] * 6, {"": []}, edge_attr={"": []}, edge_weight={"": []})
    expected, found = answer(
        answerer, *(ScoreRequest("gat", inline=[each], outputs=("logits",)) for each in (bare, lists))
    )
    assert (found == expected).all()
    given = InlineNode([0.5] * 6, {"": []}, edge_attr={"": [[1.0, 2.0]]})
    (refused,) = answerer.answer([ScoreRequest("gat", inline=[given])])
    assert "shape [1, 2]; expected [0, 2]" in str(refused)


def test_model_that_does_not_fit_the_graph_is_refused_naming_each_difference(cases):
    from hopline.artifact import read_spec
    from hopline.engine.model import Model

    spec = read_spec(cases["hetero"].folder)
    with pytest.raises(SchemaMismatch) as refused:
        Model(cases["hetero"].folder, spec, cases["sage"].graph)
    assert len(refused.value.differences) >= 2
    assert all(part in str(refused.value) for part in refused.value.differences)
