"""Answers at a time read the rows of that time: they equal those of a graph that is built from them."""

import sys
from functools import cache

import numpy as np
import pandas as pd
import pytest

from hopline.artifact import read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import Model, StateCachePlan
from hopline.errors import ArtifactError, BadRequest, NodeNotFound
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.memory.arena import Arena
from hopline.types import ContextNode, EdgeEdit, Edit, InlineNode, ScoreRequest
from tests.engine import zoo
from tests.thorough import thorough

NODE_MODELS = ["sage", "plain", "gcn", "gat", "mixed", "aggregated", "general"]
#: Of the rows; edges come later too.
FIRST, LAST = -20, 100
N = 70


def rows_of(rng, count, dim, name):
    """A table of rows in any order: several times for each id, also equal ones of different ids."""
    first = rng.integers(FIRST, 60, count)
    first[: count // 3] = FIRST
    times = [np.unique(np.append(rng.integers(at, LAST, rng.integers(0, 6)), at)) for at in first.tolist()]
    owners = np.repeat(np.arange(count), [len(own) for own in times])
    frame = pd.DataFrame({"id": [f"{name}{at}" for at in owners], "time": np.concatenate(times)})
    values = rng.standard_normal((len(frame), dim)).astype(np.float32)
    frame = pd.concat([frame, pd.DataFrame(values, columns=[f"c{at}" for at in range(dim)])], axis=1)
    return frame.sample(frac=1.0, random_state=int(rng.integers(1 << 30)), ignore_index=True)


def edges_of(rng, sources, targets, count):
    """Edges of any time at which their source exists."""
    first = sources.groupby("id").time.min()
    src, dst = rng.choice(first.index, count), rng.choice(targets.id.unique(), count)
    time = first[src].to_numpy() + (rng.integers(0, 120, count) * rng.integers(0, 2, count))
    weight = rng.random(count).astype(np.float32) + np.float32(0.1)
    attr = rng.standard_normal((count, 2)).astype(np.float32)
    return pd.DataFrame(
        {"src": src, "dst": dst, "time": time, "weight": weight, "a": attr[:, 0], "b": attr[:, 1]}
    )


def known(frame, as_of):
    """The rows of a table that were current then, in the order in which their ids came up."""
    then = frame[frame.time <= as_of].sort_values("time", kind="stable")
    order = then.drop_duplicates("id").id
    return then.drop_duplicates("id", keep="last").set_index("id").loc[order].reset_index()


def node_table(frame, as_of, **options):
    if as_of is None:
        return NodeTable(
            frame.filter(regex="^c"), ids=list(frame.id), history=frame.time.to_numpy(), **options
        )
    rows = known(frame, as_of)
    return NodeTable(rows.filter(regex="^c"), ids=list(rows.id), **options)


def edge_table(frame, sides, as_of, *, full=True):
    if as_of is not None:
        there = [set(side[side.time <= as_of].id) for side in sides]
        frame = frame[(frame.time <= as_of) & frame.src.isin(there[0]) & frame.dst.isin(there[1])]
    more = {"weight": frame.weight.to_numpy(), "attr": frame[["a", "b"]].to_numpy()} if full else {}
    return EdgeTable((list(frame.src), list(frame.dst)), time=frame.time.to_numpy(), **more)


@cache
def homogeneous_tables(seed=3):
    rng = np.random.default_rng(seed)
    nodes = rows_of(rng, N, 6, "n")
    return nodes, edges_of(rng, nodes, nodes, 900)


def homogeneous(as_of=None, feature_dtype="float32", **options):
    nodes, edges = homogeneous_tables()
    tables = (
        {"node": node_table(nodes, as_of, **options)},
        {("node", "to", "node"): edge_table(edges, (nodes, nodes), as_of)},
    )
    return Graph.from_tables(*tables, feature_dtype=feature_dtype)


@cache
def heterogeneous_tables():
    rng = np.random.default_rng(4)
    users, items = rows_of(rng, 40, 5, "u"), rows_of(rng, 30, 7, "i")
    return (
        users,
        items,
        {
            ("user", "buys", "item"): (users, items, edges_of(rng, users, items, 300)),
            ("item", "bought_by", "user"): (items, users, edges_of(rng, items, users, 300)),
            ("user", "knows", "user"): (users, users, edges_of(rng, users, users, 200)),
        },
    )


def heterogeneous(as_of=None):
    users, items, edges = heterogeneous_tables()
    return Graph.from_tables(
        {"user": node_table(users, as_of), "item": node_table(items, as_of)},
        {key: edge_table(frame, sides, as_of, full=False) for key, (*sides, frame) in edges.items()},
    )


def answerer(case, graph, *, caches=False, outputs=("logits", "embedding")):
    spec = read_spec(case.folder)
    plan = StateCachePlan(spec, graph, 2**24 if caches else 0)
    return Answerer(Model(case.folder, spec, graph, plan.build(Arena(plan.num_bytes))), outputs, 1000)


def ask(answerer, ids, as_of=None, **options):
    (found,) = answerer.answer([ScoreRequest("m", nodes=ids, as_of=as_of, **options)])
    if isinstance(found, Exception):
        raise found
    return found.outputs


def equal(case, then, rebuilt, ids, as_of):
    """Together and alone, as they are read by other code."""
    right = ask(answerer(case, rebuilt), ids)
    parts = {"all": ids, "one": ids[:1], "few": ids[3:20:2]}
    for part in [each for each in parts.values() if each]:
        found = ask(then, part, as_of)
        at = [ids.index(each) for each in part]
        for name, values in found.items():
            np.testing.assert_array_equal(values, right[name][at], err_msg=f"{case.name} at {as_of}")


def moments(seed, count=0):
    rng, count = np.random.default_rng(seed), count or thorough(40, 100)
    return [*map(int, rng.integers(FIRST, 190, count)), FIRST, LAST, 10**6]


def test_moments_of_homogeneous_graphs_equal_rebuilt_ones(cases, tmp_path):
    saved = homogeneous().save(tmp_path / "graph")
    loaded = {name: answerer(cases[name], saved, caches=True) for name in NODE_MODELS}
    rows, _ = homogeneous_tables()
    for turn, as_of in enumerate(moments(1)):
        name = NODE_MODELS[turn % len(NODE_MODELS)]
        ids = list(known(rows, as_of).id)
        equal(cases[name], loaded[name], homogeneous(as_of), ids, as_of)


def test_moments_of_heterogeneous_graphs_equal_rebuilt_ones(cases):
    then, (users, *_) = answerer(cases["hetero"], heterogeneous()), heterogeneous_tables()
    for as_of in moments(2):
        ids = list(known(users, as_of).id)
        equal(cases["hetero"], then, heterogeneous(as_of), ids, as_of)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_rows_are_those_of_then(cases, dtype):
    then, (rows, _) = answerer(cases["plain"], homogeneous(feature_dtype=dtype)), homogeneous_tables()
    for as_of in moments(3, 12):
        rebuilt = homogeneous(as_of, feature_dtype=dtype)
        equal(cases["plain"], then, rebuilt, list(known(rows, as_of).id), as_of)


@pytest.mark.parametrize("name", ["plain", "sage", "gcn"])
def test_now_is_the_newest_row_and_the_future_is_now(cases, name):
    graph, (rows, _) = homogeneous(), homogeneous_tables()
    ids = list(known(rows, 10**9).id)
    newest = homogeneous(10**9)
    assert graph.nodes["node"].ids.external(np.arange(N)) == ids
    np.testing.assert_array_equal(graph.nodes["node"].features, newest.nodes["node"].features)
    found = answerer(cases[name], graph, caches=True)
    for _ in range(2):  # the second time from the state cache
        now = ask(found, ids)["logits"]
        np.testing.assert_array_equal(now, ask(answerer(cases[name], newest), ids)["logits"])
        np.testing.assert_array_equal(now, ask(found, ids, 10**9)["logits"])
        assert (ask(found, ids[:9], 0)["logits"] != now[:9]).any()


def calls_of(answerer, request):
    calls = []
    answerer.answer(request)
    sys.setprofile(lambda frame, event, arg: calls.append(event))
    try:
        answerer.answer(request)
    finally:
        sys.setprofile(None)
    return calls.count("call")


def test_now_calls_as_many_functions_with_a_history_as_without(cases):
    """The path of requests without as_of is the same code."""
    counts = [
        calls_of(answerer(cases[name], graph), [ScoreRequest("m", nodes=["n3"])])
        for graph in (homogeneous(), homogeneous(10**9))
        for name in ("plain", "gat")
    ]
    assert counts[:2] == counts[2:]


def test_a_node_without_a_row_yet_is_unknown_then(cases):
    found, (rows, _) = answerer(cases["sage"], homogeneous()), homogeneous_tables()
    late = sorted(set(rows.id) - set(known(rows, 0).id))
    with pytest.raises(NodeNotFound, match="at 0, without a row yet") as refused:
        ask(found, ["n1", *late[:2]], 0)
    assert list(refused.value.missing) == late[:2]
    outcomes = found.answer([ScoreRequest("m", nodes=["n1", late[0], "n2"], as_of=0, on_missing="null")])
    assert outcomes[0].missing.tolist() == [False, True, False]
    np.testing.assert_array_equal(
        outcomes[0].outputs["logits"][[0, 2]], ask(found, ["n1", "n2"], 0)["logits"]
    )
    with pytest.raises(NodeNotFound):
        ask(found, ["n1"], FIRST - 1)


def test_one_bad_request_costs_no_other_of_its_batch(cases):
    found = answerer(cases["plain"], homogeneous(history_since=-5))
    good, bad, early = (ScoreRequest("m", nodes=["n1"], as_of=at) for at in (5, FIRST - 1, -6))
    outcomes = found.answer([good, bad, early])
    assert [isinstance(each, BadRequest) for each in outcomes] == [False, True, True]
    np.testing.assert_array_equal(outcomes[0].outputs["logits"], ask(found, ["n1"], 5)["logits"])
    assert "all rows of 'node' are known only from -5 on" in str(outcomes[2])


def test_links_read_both_ends_of_then(cases):
    graph, (rows, _) = homogeneous(), homogeneous_tables()
    for as_of in moments(5, 10):
        ids = list(known(rows, as_of).id)
        pairs = ids, ids[::-1]
        asked = [ScoreRequest("m", pairs=pairs, as_of=at) for at in (as_of, None)]
        (then,) = answerer(cases["link"], graph, outputs=("logits",)).answer(asked[:1])
        (right,) = answerer(cases["link"], homogeneous(as_of), outputs=("logits",)).answer(asked[1:])
        np.testing.assert_array_equal(then.outputs["logits"], right.outputs["logits"])


def test_inline_nodes_and_edits_read_rows_of_then(cases):
    """A node of the request next to nodes of the graph; an edge that the request adds."""
    graph, (rows, _) = homogeneous(), homogeneous_tables()
    x = np.ones(6, np.float32)
    for as_of in moments(6, 10):
        ids = list(known(rows, as_of).id)
        options = {
            "inline": (
                InlineNode(x, {"": ids[:3]}, None, {zoo.EDGE: np.ones((3, 2))}, {zoo.EDGE: np.ones(3)}),
            ),
        }
        edits = {"edits": (Edit(set=ContextNode(features=x, id=ids[1])),)}
        for more in (options, edits):
            then = ask(answerer(cases["sage"], graph), ids[:6], as_of, **more)
            right = ask(answerer(cases["sage"], homogeneous(as_of)), ids[:6], **more)
            np.testing.assert_array_equal(then["logits"], right["logits"])


def test_a_request_cannot_link_to_a_node_without_a_row(cases):
    found, (rows, _) = answerer(cases["sage"], homogeneous()), homogeneous_tables()
    late = sorted(set(rows.id) - set(known(rows, 0).id))[0]
    edge = EdgeEdit(src=late, dst="n1", edge_attr=[0.0, 0.0], edge_weight=1.0, time=0)
    with pytest.raises(NodeNotFound, match="at 0, without a row yet"):
        ask(found, ["n1"], 0, edits=(Edit(add_edge=edge),))


class Source:
    ttl_s = np.inf


def test_a_feature_store_is_refused_at_load(cases):
    with pytest.raises(ArtifactError, match=r"reads times or rows of then, and a feature store .of 'node'"):
        Model(
            cases["sage"].folder, read_spec(cases["sage"].folder), homogeneous(), sources={"node": Source()}
        )


def test_learned_rows_stay_beside_rows_of_then(cases):
    """Items have a history here, and users learned rows alone."""
    users, items, edges = heterogeneous_tables()

    def graph(as_of=None):
        of_users = NodeTable(ids=list(known(users, 10**9 if as_of is None else as_of).id))
        of_users = of_users if as_of is not None else NodeTable(ids=list(known(users, 10**9).id))
        return Graph.from_tables(
            {"user": of_users, "item": node_table(items, as_of)},
            {key: edge_table(frame, sides, as_of, full=False) for key, (*sides, frame) in edges.items()},
        )

    then = answerer(cases["learned"], graph())
    for as_of in moments(7, 8):
        ids = list(known(users, as_of).id)
        equal(cases["learned"], then, graph(as_of), ids, as_of)
