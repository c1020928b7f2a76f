"""A live graph is, after any changes, the graph that is built from the final edges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.events.parts import take
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.graph.live.changes import Changes, EdgeChanges, NodeChanges
from hopline.graph.live.codec import decode_changes, encode_changes
from hopline.graph.live.memory import LiveMemory
from hopline.graph.live.plan import LivePlan, make_plan
from hopline.graph.live.view import LiveView
from hopline.graph.live.writer import LiveWriter
from tests.graph.live.drawn import BUYS, KNOWS, USER, Oracle
from tests.shared_memory import create_shared
from tests.thorough import thorough


def plan_of(graph: Graph, spare: int = 2_000, **more: object) -> LivePlan:
    settings = {"spare_nodes": spare, "spare_edges": spare, "num_levels": 3} | more
    return make_plan(graph, lineage=graph.version, sequence=0, **settings)  # type: ignore[arg-type]


def live(graph: Graph, fd: int | None = None, **more: object) -> tuple[LiveWriter, LiveView]:
    memory = LiveMemory.create(plan_of(graph, **more), fd)
    ids = {name: nodes.ids for name, nodes in graph.nodes.items()}
    writer = LiveWriter(memory, graph.schema, ids, lambda: 0)
    writer.fill(graph)
    return writer, LiveView(memory, graph.schema, ids)


def assert_same(found: Graph, wanted: Graph) -> None:
    """Without the rows of removed nodes, which have no edges and no features, graphs are equal."""
    for nodes in found.nodes.values():
        assert not nodes.features[nodes.ids.removed].any()
    found = found.subgraph(
        {name: np.delete(np.arange(n.num_nodes), n.ids.removed) for name, n in found.nodes.items()}
    )
    for name, nodes in wanted.nodes.items():
        assert list(found.nodes[name].ids.external(np.arange(nodes.num_nodes))) == list(
            nodes.ids.external(np.arange(nodes.num_nodes))
        )
        np.testing.assert_array_equal(found.nodes[name].features, nodes.features)
    for key, edges in wanted.edges.items():
        have = found.edges[key].arrays()
        for name, array in edges.arrays().items():
            np.testing.assert_array_equal(have[name], array, err_msg=f"{key} {name}")
        assert found.edges[key].max_degree == edges.max_degree
        assert found.edges[key].has_self_loops == edges.has_self_loops
        assert found.edges[key].has_repeated_edges == edges.has_repeated_edges


@settings(max_examples=thorough(15, 60), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    both=st.booleans(),
)
def test_any_sequence_of_batches_equals_a_fresh_build(seed: int, sizes: list[int], both: bool) -> None:
    oracle = Oracle(np.random.default_rng(seed), both=both)
    writer, view = live(oracle.graph())
    for number, size in enumerate(sizes, 1):
        applied = writer.apply(oracle.batch(size))
        assert applied.num_applied == size
        assert applied.sequence == number
        assert not applied.rejected
        with view:
            assert view.latest_time == oracle.graph().clock
    assert_same(view.snapshot(), oracle.graph())


@settings(max_examples=thorough(7, 30), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(1, 40), min_size=4, max_size=12),
    both=st.booleans(),
)
def test_going_on_from_snapshots_equals_a_fresh_build(seed: int, sizes: list[int], both: bool) -> None:
    """Nodes that came last have no edges yet, which a built graph need not have."""
    oracle = Oracle(np.random.default_rng(seed), both=both)
    writer, view = live(oracle.graph())
    for number, size in enumerate(sizes):
        if number % 3 == 2:
            writer, view = live(view.snapshot())
        assert not writer.apply(oracle.batch(size)).rejected
        assert_same(view.snapshot(), oracle.graph())


def test_a_missing_edge_is_reported_once_and_reverse_edges_take_no_events() -> None:
    graph = Graph.from_tables(
        {"node": NodeTable(np.zeros((4, 1), np.float32))},
        {("node", "to", "node"): EdgeTable([[0], [1]])},
        both_directions=True,
    )
    writer, view = live(graph)
    gone = EdgeChanges(np.array([2, 0]), np.array([3, 1]), np.ones(2, bool), np.arange(2))
    applied = writer.apply(Changes({"node__to__node": gone}, {}, 2))
    assert [(each.order, each.code) for each in applied.rejected] == [(0, "no_edge")]
    assert [view.snapshot().edges[key].num_edges for key in view.schema.edge_types] == [0, 0]
    refused, _ = writer.apply(Changes({"node__rev_to__node": gone}, {}, 2)).rejected
    assert refused.code == "unknown_type"
    assert refused.reason.endswith("the graph has 'node__to__node'")


def test_the_latest_time_is_that_of_the_edges_that_are_left() -> None:
    """At every version, also of batches that are dropped, and for a writer that goes on after another."""
    graph = Graph.from_edges([[0, 1], [1, 2]], np.zeros((4, 2), np.float32), edge_time=np.array([-9, -5]))
    writer, view = live(graph)

    def batch(*events: tuple[int, int, int, bool]) -> Changes:
        src, dst, times, remove = (np.array(column) for column in zip(*events, strict=True))
        order = np.arange(len(events))
        timed = {"time": times, "has_time": np.ones(len(events), bool)}
        return Changes({"node__to__node": EdgeChanges(src, dst, remove, order, **timed)}, {}, len(events))

    def latest() -> int | None:
        with view:
            assert view.latest_time == view.snapshot().clock
            return view.latest_time

    assert latest() == -5
    for events, wanted in [
        ([(3, 1, 40, False)], 40),
        ([(3, 2, 50, False), (2, 2, 60, False)], 60),
        ([(3, 2, 50, True)], 60),
        ([(2, 2, 60, True)], 40),
        ([(0, 3, 70, False), (0, 3, 70, True)], 40),
        ([(3, 1, 40, True), (0, 2, 30, False)], 30),
    ]:
        assert writer.prepare(batch((1, 1, 99, False))).is_version
        writer.drop()
        assert not writer.apply(batch(*events)).rejected
        assert latest() == wanted
    assert [each.code for each in writer.apply(batch((0, 2, 31, True))).rejected] == ["no_edge"]
    assert latest() == 30
    ids = {name: nodes.ids for name, nodes in graph.nodes.items()}
    second = LiveWriter(view.memory, graph.schema, ids, lambda: 0)
    second.attach()
    second.apply(batch((0, 2, 30, True), (1, 3, -7, False)))
    assert latest() == -5
    second.apply(batch((0, 1, -9, True), (1, 2, -5, True), (1, 3, -7, True)))
    assert latest() is None


def test_lists_of_nodes_that_begin_without_edges_do_not_share_room() -> None:
    writer, view = live(Graph.from_edges([[0, 1], [1, 0]], np.zeros((8, 2), np.float32)))
    edges = [[1, 0, 0, 1, 2, 3], [0, 1, 4, 5, 6, 7]]
    for src, dst in zip(*edges, strict=True):
        row = EdgeChanges(np.array([src]), np.array([dst]), np.zeros(1, bool), np.zeros(1, np.int64))
        writer.apply(Changes({"node__to__node": row}, {}, 1))
    wanted = Graph.from_edges([[0, 1, *edges[0]], [1, 0, *edges[1]]], np.zeros((8, 2), np.float32))
    assert_same(view.snapshot(), wanted)


def test_long_histories_stay_within_their_room() -> None:
    """Lists that are replaced again and again are given the room of those before them."""
    oracle = Oracle(np.random.default_rng(7))
    writer, view = live(oracle.graph(), spare=6_000)
    for _ in range(400):
        writer.apply(oracle.batch(20))
    assert_same(view.snapshot(), oracle.graph())
    before = writer.filled
    users, items = list(oracle.users), list(oracle.items)
    for _ in range(3_000):
        edges = EdgeChanges(
            src=[users[0]] * 2,
            dst=np.array([items[0]] * 2),
            remove=np.array([False, True]),
            order=np.array([0, 1]),
            time=np.array([5, 5]),
            weight=np.ones(2, np.float32),
        )
        writer.apply(Changes({BUYS: edges}, {}, 2))
    assert writer.filled < before + 0.05


def test_readers_see_their_own_version_while_others_come() -> None:
    oracle = Oracle(np.random.default_rng(3))
    writer, view = live(oracle.graph())
    late = view.another()
    with view:
        before = oracle.graph()
        for _ in range(200):
            writer.apply(oracle.batch(10))
        assert view.version == before.version
        assert_same(view.snapshot(), before)
        with late:
            assert late.version == f"{before.version}+200"
            assert_same(late.snapshot(), oracle.graph())
    assert_same(view.snapshot(), oracle.graph())


def test_what_was_prepared_and_not_published_can_be_dropped() -> None:
    oracle = Oracle(np.random.default_rng(4))
    writer, view = live(oracle.graph())
    writer.apply(oracle.batch(30))
    before, changes = oracle.graph(), oracle.batch(50)
    assert writer.prepare(changes).applied.num_applied == 50
    assert_same(view.snapshot(), before)
    writer.drop()
    assert_same(view.snapshot(), before)
    writer.apply(changes)
    assert_same(view.snapshot(), oracle.graph())


def test_another_writer_goes_on_where_one_died() -> None:
    """The first one dies with a batch written and not published."""
    oracle = Oracle(np.random.default_rng(5))
    graph = oracle.graph()
    fd = create_shared()
    writer, view = live(graph, fd)
    for _ in range(30):
        writer.apply(oracle.batch(15))
    changes = oracle.batch(25)
    writer.prepare(changes)
    memory = LiveMemory.attach(fd)
    assert memory is not None
    ids = {name: nodes.ids for name, nodes in graph.nodes.items()}
    second = LiveWriter(memory, graph.schema, ids, lambda: 0)
    second.attach()
    assert second.apply(changes).sequence == 31
    for _ in range(30):
        second.apply(oracle.batch(15))
    assert_same(view.snapshot(), oracle.graph())


def test_marks_name_every_state_that_changed() -> None:
    """States of a model without weights, computed by hand before and after, differ only where marked."""
    rng = np.random.default_rng(6)
    oracle = Oracle(rng)
    for _ in range(25):
        graph = oracle.graph()
        writer, view = live(graph)
        before = _states(graph)
        writer.apply(oracle.batch(3))
        after = _states(view.snapshot())
        for level in range(3):
            for name, states in before.items():
                count = len(states[level])
                changed = np.flatnonzero((states[level] != after[name][level][:count]).any(axis=1))
                changed_at = view.nodes[name].changed_at[level]
                assert (changed_at[changed] == 1).all()
                added = np.arange(count, len(after[name][level]))
                assert (changed_at[added] == 1).all()


def _states(graph: Graph) -> dict[str, list[np.ndarray]]:
    rng = np.random.default_rng(0)
    state = {
        name: nodes.features @ rng.random((nodes.features.shape[1], 4))
        for name, nodes in graph.nodes.items()
    }
    found = {name: [rows] for name, rows in state.items()}
    for _ in range(2):
        state = {name: rows.copy() for name, rows in state.items()}
        below = {name: rows[-1] for name, rows in found.items()}
        for key in graph.edges:
            edge = graph.edges[key]
            for v in range(graph.nodes[edge.dst].num_nodes):
                for at in range(edge.indptr[v], edge.indptr[v + 1]):
                    state[edge.dst][v] += 1.7 * below[edge.src][edge.indices[at]]
        state = {name: np.tanh(rows) for name, rows in state.items()}
        for name, rows in state.items():
            found[name].append(rows)
    return found


USER_ROW = np.zeros((1, 3), np.float32)
ONE = np.array([0])


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        (EdgeChanges(["u0"], np.array([7]), np.array([False]), ONE, ONE, None, np.ones(1, np.float32)),
         "unknown_node", "destination 7"),
        (EdgeChanges(["nobody"], np.array([1000]), np.array([True]), ONE), "unknown_node", "'nobody'"),
        (EdgeChanges(np.array([3]), np.array([1000]), np.array([True]), ONE), "bad_id", "strings here"),
        (EdgeChanges(["u0"], np.array([1000]), np.array([False]), ONE, None, None, np.ones(1, np.float32)),
         "no_time", "set `time`"),
        (EdgeChanges(["u0"], np.array([1000]), np.array([False]), ONE, ONE), "no_weight", "set `weight`"),
        (EdgeChanges(["u0"], np.array([1000]), np.array([False]), ONE, ONE, None, -np.ones(1, np.float32)),
         "negative_weight", "weight -1.0 of 'user__buys__item' is negative, and the graph was built"),
        (EdgeChanges(["u0"], np.array([1000]), np.array([True]), ONE, np.array([10**9])), "no_edge", "no"),
        (NodeChanges(["u0"], np.array([True]), USER_ROW, ONE), "node_exists", "set its features"),
        (NodeChanges(["new"], np.array([False]), USER_ROW, ONE), "unknown_node", "'new'"),
        (NodeChanges(["u0"], np.array([False]), USER_ROW[:, :2], ONE), "bad_shape", "3 numbers"),
        (NodeChanges(["u0"], np.array([False]), USER_ROW + np.nan, ONE), "not_finite", "not finite"),
    ],
)  # fmt: skip
def test_events_that_cannot_be_applied_are_named(
    changes: EdgeChanges | NodeChanges, code: str, words: str
) -> None:
    oracle = Oracle(np.random.default_rng(8))
    writer, view = live(oracle.graph())
    batch = (
        Changes({BUYS: changes}, {}, 1)
        if isinstance(changes, EdgeChanges)
        else Changes({}, {USER: changes}, 1)
    )
    applied = writer.apply(batch)
    assert applied.sequence == applied.num_applied == 0
    assert [(one.order, one.code) for one in applied.rejected] == [(0, code)]
    assert words in applied.rejected[0].reason
    assert_same(view.snapshot(), oracle.graph())


def test_one_bad_event_takes_no_other_with_it() -> None:
    oracle = Oracle(np.random.default_rng(9))
    writer, view = live(oracle.graph())
    edges = EdgeChanges(
        src=["u0", "nobody", "new", "new"],
        dst=["u1", "u1", "u1", "u2"],
        remove=np.zeros(4, bool),
        order=np.array([0, 1, 2, 4]),
        attr=np.ones((4, 2), np.float32),
    )
    nodes = NodeChanges(["new"], np.array([True]), USER_ROW, np.array([3]))
    applied = writer.apply(Changes({KNOWS: edges}, {USER: nodes}, 5))
    assert applied.num_applied == 3
    assert [(one.order, one.code) for one in applied.rejected] == [(1, "unknown_node"), (2, "unknown_node")]
    row = np.ones(2, np.float32)
    oracle.users["new"] = USER_ROW[0]
    oracle.knows += [("u0", "u1", row), ("new", "u2", row)]
    assert_same(view.snapshot(), oracle.graph())


def test_a_batch_that_is_whole_is_applied_or_leaves_nothing() -> None:
    oracle = Oracle(np.random.default_rng(9))
    writer, view = live(oracle.graph())
    nodes = NodeChanges(["new", "u0"], np.array([True, True]), np.repeat(USER_ROW, 2, 0), np.arange(2))
    edges = EdgeChanges(["new"], ["u1"], np.array([False]), np.array([2]), attr=np.ones((1, 2), np.float32))
    whole = Changes({KNOWS: edges}, {USER: nodes}, 3, is_whole=True)
    applied = writer.apply(decode_changes(encode_changes(whole)))
    assert (applied.sequence, applied.num_applied) == (0, 0)
    assert [(one.order, one.code) for one in applied.rejected] == [(1, "node_exists")]
    assert_same(view.snapshot(), oracle.graph())
    good = replace(whole, nodes={USER: take(nodes, np.array([True, False]))})
    applied = writer.apply(decode_changes(encode_changes(good)))
    assert (applied.sequence, applied.rejected) == (1, [])
    oracle.users["new"] = USER_ROW[0]
    oracle.knows.append(("new", "u1", np.ones(2, np.float32)))
    assert_same(view.snapshot(), oracle.graph())


def test_a_full_memory_refuses_the_batch_and_goes_on() -> None:
    oracle = Oracle(np.random.default_rng(10))
    writer, view = live(oracle.graph(), spare=2)
    names = [f"more{i}" for i in range(3)]
    nodes = NodeChanges(names, np.ones(3, bool), np.zeros((3, 3), np.float32), np.arange(3))
    applied = writer.apply(Changes({}, {USER: nodes}, 3))
    assert applied.num_applied == 2
    assert [(one.order, one.code) for one in applied.rejected] == [(2, "full")]
    for name in names[:2]:
        oracle.users[name] = np.zeros(3, np.float32)
    assert_same(view.snapshot(), oracle.graph())


def test_counting_pins_a_version_by_itself() -> None:
    """Records of an old version are soon part of other lists: reading them without a pin may never end."""
    oracle = Oracle(np.random.default_rng(9))
    writer, view = live(oracle.graph())
    for _ in range(50):
        writer.apply(oracle.batch(20))
    wanted = oracle.graph()
    assert view.num_edges == wanted.num_edges
    for key, edges in wanted.edges.items():
        assert view.edges[key].num_edges == edges.num_edges
