"""Answers of a live graph at a time: those of a graph built from the events known then, byte for byte."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hopline.artifact import read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import Model, StateCachePlan
from hopline.errors import ArtifactError, BadRequest, NodeNotFound
from hopline.graph import Graph, NodeTable
from hopline.graph.live.changes import Changes, EdgeChanges, NodeChanges
from hopline.graph.live.view import LiveView
from hopline.memory.arena import Arena
from hopline.types import ContextNode, EdgeEdit, Edit, ScoreRequest
from tests.engine.test_history import (
    NODE_MODELS,
    answerer,
    ask,
    edge_table,
    equal,
    heterogeneous_tables,
    homogeneous_tables,
    known,
    moments,
    node_table,
)
from tests.graph.live.test_writer import live
from tests.thorough import thorough


class Events:
    """The rows and edges of tables as a base graph and batches of events, in an order of arrival.

    Nodes come in the order of their first rows; other rows and edges come late, in any order.
    """

    def __init__(self, nodes: dict, edges: dict, seed: int, begin: int = 20, batches: int = 8) -> None:
        self.rng, self.full = np.random.default_rng(seed), len(edges) == 1
        self.types = list(nodes)
        first = {name: frame.groupby("id").time.min() for name, frame in nodes.items()}
        #: Rows and edges by the batch that they came with; -1 for the base graph.
        self.nodes, self.edges = {}, {}
        came = {}
        for name, frame in nodes.items():
            order = frame[frame.time == first[name][frame.id].to_numpy()].sort_values("time", kind="stable")
            later = order[order.time > begin].id
            batch = np.sort(self.rng.integers(0, batches, len(later)))
            came[name] = pd.Series(-1, index=first[name].index)
            came[name][later] = batch
            begun = came[name][frame.id].to_numpy()
            is_first = frame.time.to_numpy() == first[name][frame.id].to_numpy()
            when = np.where(is_first, begun, np.maximum(begun, self.rng.integers(-1, batches, len(frame))))
            self.nodes[name] = frame.assign(batch=when)
        for key, frame in edges.items():
            ends = np.maximum(came[key[0]][frame.src].to_numpy(), came[key[2]][frame.dst].to_numpy())
            when = np.maximum(ends, self.rng.integers(-1, batches, len(frame)))
            frame = frame.assign(batch=when)
            self.edges[key] = frame.iloc[np.argsort(when, kind="stable")]  # ties are in order of arrival
        self.batches = batches

    def graph(self, batch: int, as_of: int | None = None) -> Graph:
        """Built from what had come with a batch; with its history, or as of a time."""
        there = {name: frame[frame.batch <= batch] for name, frame in self.nodes.items()}
        tables = {name: node_table(frame.drop(columns="batch"), as_of) for name, frame in there.items()}
        edges = {}
        for key, frame in self.edges.items():
            sides = there[key[0]], there[key[2]]
            edges[key] = edge_table(frame[frame.batch <= batch], sides, as_of, full=self.full)
        return Graph.from_tables(tables, edges)

    def changes(self, batch: int) -> Changes:
        nodes, edges, order = {}, {}, 0
        for name, frame in self.nodes.items():
            own = frame[frame.batch == batch]
            is_first = ~own.id.isin(frame[frame.batch < batch].id)
            first = own.time == own.groupby("id").time.transform("min")
            added = own[is_first & first].sort_values("time", kind="stable")
            others = own[~(is_first & first)].sample(frac=1.0, random_state=batch)
            own = pd.concat([added, others])
            if len(own):
                nodes[name] = NodeChanges(
                    list(own.id), np.arange(len(own)) < len(added),
                    own.filter(regex="^c").to_numpy(np.float32), np.arange(order, order + len(own)),
                    time=own.time.to_numpy(),
                )  # fmt: skip
                order += len(own)
        for (src, relation, dst), frame in self.edges.items():
            own = frame[frame.batch == batch]
            if len(own):
                edges[f"{src}__{relation}__{dst}"] = EdgeChanges(
                    list(own.src), list(own.dst), np.zeros(len(own), bool),
                    np.arange(order, order + len(own)), time=own.time.to_numpy(),
                    weight=own.weight.to_numpy() if self.full else None,
                    attr=own[["a", "b"]].to_numpy() if self.full else None,
                )  # fmt: skip
                order += len(own)
        return Changes(edges, nodes, order)

    def ids(self, name: str, batch: int, as_of: int) -> list[str]:
        frame = self.nodes[name]
        return list(known(frame[frame.batch <= batch], as_of).id)


def on_live(case, view: LiveView, *, caches: bool = True, outputs=("logits", "embedding")) -> Answerer:
    spec = read_spec(case.folder)
    plan = StateCachePlan(spec, view, 2**24 if caches else 0)
    return Answerer(Model(case.folder, spec, view, plan.build(Arena(plan.num_bytes))), outputs, 1000)


def homogeneous_events(seed: int) -> Events:
    nodes, edges = homogeneous_tables()
    return Events({"node": nodes}, {("node", "to", "node"): edges}, seed)


def test_moments_equal_graphs_built_from_the_events_known_then(cases):
    events = homogeneous_events(1)
    writer, view = live(events.graph(-1))
    loaded = {name: on_live(cases[name], view) for name in NODE_MODELS}
    turn = 0
    for batch in range(events.batches):
        assert not writer.apply(events.changes(batch)).rejected
        for as_of in moments(batch, max(1, thorough(40, 100) // events.batches)):
            name = NODE_MODELS[turn % len(NODE_MODELS)]
            ids = events.ids("node", batch, as_of)
            turn += 1
            if ids:
                equal(cases[name], loaded[name], events.graph(batch, as_of), ids, as_of)


def test_moments_of_several_types_equal_rebuilt_graphs(cases):
    users, items, edges = heterogeneous_tables()
    frames = {key: frame for key, (*_, frame) in edges.items()}
    events = Events({"user": users, "item": items}, frames, 2)
    writer, view = live(events.graph(-1))
    loaded = on_live(cases["hetero"], view)
    for batch in range(events.batches):
        assert not writer.apply(events.changes(batch)).rejected
        for as_of in moments(batch, 3):
            if ids := events.ids("user", batch, as_of):
                equal(cases["hetero"], loaded, events.graph(batch, as_of), ids, as_of)


@pytest.mark.parametrize("name", ["plain", "gcn"])
def test_now_is_the_newest_row_at_every_version(cases, name):
    """Also with cached rows, which late rows of the past do not change."""
    events = homogeneous_events(3)
    writer, view = live(events.graph(-1))
    loaded = on_live(cases[name], view)
    for batch in range(events.batches):
        writer.apply(events.changes(batch))
        ids = events.ids("node", batch, 10**9)
        newest = answerer(cases[name], events.graph(batch, 10**9))
        for _ in range(2):
            np.testing.assert_array_equal(ask(loaded, ids)["logits"], ask(newest, ids)["logits"])
        fresh = answerer(cases[name], view.snapshot())
        np.testing.assert_array_equal(ask(fresh, ids)["logits"], ask(newest, ids)["logits"])


def test_a_snapshot_answers_as_the_live_graph(cases, tmp_path):
    events = homogeneous_events(4)
    writer, view = live(events.graph(-1))
    for batch in range(events.batches):
        writer.apply(events.changes(batch))
    saved = view.snapshot().save(tmp_path / "graph")
    found, loaded = answerer(cases["sage"], saved), on_live(cases["sage"], view)
    for as_of in moments(4, 10):
        if ids := events.ids("node", events.batches, as_of):
            np.testing.assert_array_equal(
                ask(found, ids, as_of)["logits"], ask(loaded, ids, as_of)["logits"]
            )


def test_a_pinned_version_reads_its_rows_whatever_comes(cases):
    events = homogeneous_events(5)
    writer, view = live(events.graph(-1))
    loaded = on_live(cases["plain"], view)
    ids = events.ids("node", -1, 15)
    with view:
        before = ask(loaded, ids, 15)["logits"]
        for batch in range(events.batches):
            writer.apply(events.changes(batch))
            np.testing.assert_array_equal(ask(loaded, ids, 15)["logits"], before)
    right = ask(answerer(cases["plain"], events.graph(events.batches, 15)), ids)["logits"]
    np.testing.assert_array_equal(ask(loaded, ids, 15)["logits"], right)
    assert (ask(loaded, ids, 15)["logits"] != before).any()


def test_edits_and_links_read_rows_of_then(cases):
    events = homogeneous_events(6)
    writer, view = live(events.graph(-1))
    for batch in range(events.batches):
        writer.apply(events.changes(batch))
    found, link = on_live(cases["sage"], view), on_live(cases["link"], view, outputs=("logits",))
    for as_of in moments(6, 8):
        ids = events.ids("node", events.batches, as_of)
        if len(ids) < 4:
            continue
        rebuilt = events.graph(events.batches, as_of)
        edits = (Edit(set=ContextNode(features=np.ones(6, np.float32), id=ids[1])),)
        then = ask(found, ids[:6], as_of, edits=edits)
        right = ask(answerer(cases["sage"], rebuilt), ids[:6], edits=edits)
        np.testing.assert_array_equal(then["logits"], right["logits"])
        pairs = ids, ids[::-1]
        asked = [ScoreRequest("m", pairs=pairs, as_of=at) for at in (as_of, None)]
        (then,) = link.answer(asked[:1])
        (right,) = answerer(cases["link"], rebuilt, outputs=("logits",)).answer(asked[1:])
        np.testing.assert_array_equal(then.outputs["logits"], right.outputs["logits"])


def test_nodes_that_came_late_are_unknown_before_their_first_row(cases):
    events = homogeneous_events(7)
    writer, view = live(events.graph(-1))
    for batch in range(events.batches):
        writer.apply(events.changes(batch))
    found, rows = on_live(cases["sage"], view), events.nodes["node"]
    late = sorted(set(rows.id) - set(known(rows, 0).id))
    with pytest.raises(NodeNotFound, match="at 0, without a row yet") as refused:
        ask(found, ["n1", *late[:2]], 0)
    assert list(refused.value.missing) == late[:2]
    edge = EdgeEdit(src=late[0], dst="n1", edge_attr=[0.0, 0.0], edge_weight=1.0, time=0)
    with pytest.raises(NodeNotFound, match="at 0, without a row yet"):
        ask(found, ["n1"], 0, edits=(Edit(add_edge=edge),))


def test_a_removed_node_is_in_no_answer_about_the_past(cases):
    events = homogeneous_events(8)
    writer, view = live(events.graph(events.batches))
    gone = "n2"
    nodes = NodeChanges.removals([gone], np.arange(1), view.schema.node_types["node"])
    assert writer.apply(Changes({}, {"node": nodes}, 1)).num_applied == 1
    frame, (edges,) = events.nodes["node"], events.edges.values()
    never = Events(
        {"node": frame[frame.id != gone].drop(columns="batch")},
        {("node", "to", "node"): edges[(edges.src != gone) & (edges.dst != gone)].drop(columns="batch")},
        8,
    )
    spec_of = cases["plain"]
    found = on_live(spec_of, view)
    for as_of in moments(8, 6):
        with pytest.raises(NodeNotFound):
            ask(found, [gone], as_of)
    # the row keeps its place, so that samples of others stay: compare with all neighbours
    from hopline.jobs.batch.rows import with_all_neighbors

    spec = with_all_neighbors(read_spec(spec_of.folder))
    there = Answerer(Model(spec_of.folder, spec, view), ("logits",), 1000)
    for as_of in moments(9, 6):
        if ids := [each for each in events.ids("node", 99, as_of) if each != gone]:
            other = Answerer(Model(spec_of.folder, spec, never.graph(99, as_of)), ("logits",), 1000)
            np.testing.assert_array_equal(ask(there, ids, as_of)["logits"], ask(other, ids)["logits"])


def test_a_moment_before_all_rows_are_known_is_refused(cases):
    nodes, edges = homogeneous_tables()
    graph = Graph.from_tables(
        {"node": node_table(nodes, None, history_since=-5)},
        {("node", "to", "node"): edge_table(edges, (nodes, nodes), None)},
    )
    _, view = live(graph)
    found = on_live(cases["plain"], view)
    with pytest.raises(BadRequest, match="all rows of 'node' are known only from -5 on"):
        ask(found, ["n1"], -6)
    np.testing.assert_array_equal(
        ask(found, ["n1"], 5)["logits"], ask(answerer(cases["plain"], graph), ["n1"], 5)["logits"]
    )


def test_learned_rows_beside_a_history_are_refused_on_a_live_graph(cases):
    users, items, edges = heterogeneous_tables()
    columns = {"plan": ["free"] * len(users)}
    rows = NodeTable(columns=columns, ids=list(users.id), history=users.time.to_numpy())
    graph = Graph.from_tables(
        {"user": rows, "item": node_table(items, None)},
        {key: edge_table(frame, sides, None, full=False) for key, (*sides, frame) in edges.items()},
    )
    _, view = live(graph)
    with pytest.raises(ArtifactError, match="learned rows of 'user'"):
        on_live(cases["learned"], view)
