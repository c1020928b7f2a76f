"""Answers on a live graph: those of a model on a graph that is built from the final edges, bit for bit."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest

from hopline.artifact import read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import Model, StateCachePlan
from hopline.errors import NodeNotFound
from hopline.events.parts import merge
from hopline.graph.live.changes import Changes, EdgeChanges, NodeChanges
from hopline.graph.live.memory import LiveMemory
from hopline.graph.live.plan import make_plan
from hopline.graph.live.view import LiveNodes, LiveView
from hopline.graph.live.writer import LiveWriter
from hopline.jobs.batch.rows import with_all_neighbors
from hopline.memory.arena import Arena
from hopline.sampling.keyed import NO_CUT
from hopline.types import ScoreRequest
from tests.shared_memory import create_shared

ONE = np.array([True])
NAMES = ["sage", "plain", "gcn", "gat", "mixed", "aggregated", "general", "hetero", "link"]


class Live:
    """A case of the zoo on a graph that changes."""

    def __init__(
        self, case, seed: int, *, num_levels: int = 4, reads_degrees: bool = True, fd=None
    ) -> None:
        self.case, self.rng = case, np.random.default_rng(seed)
        graph = case.graph
        plan = make_plan(
            graph, lineage=graph.version, sequence=0, spare_nodes=50, spare_edges=5_000,
            num_levels=num_levels, reads_degrees=reads_degrees,
        )  # fmt: skip
        memory = LiveMemory.create(plan, fd)
        self.ids = {name: nodes.ids for name, nodes in graph.nodes.items()}
        self.writer = LiveWriter(memory, graph.schema, self.ids, lambda: 0)
        self.writer.fill(graph)
        self.view = LiveView(memory, graph.schema, self.ids)
        #: Pins the newest version, whatever `view` has pinned.
        self.newest = self.view.another()
        self.added = 0

    def model(self, caches: bool = True, view: LiveView | None = None, exact: bool = False) -> Model:
        spec = read_spec(self.case.folder)
        spec = with_all_neighbors(spec) if exact else spec
        # a model with learned rows puts them into its view, and events have rows without them
        view = view or (self.view.another() if spec.embeddings else self.view)
        plan = StateCachePlan(spec, view, 2**26 if caches else 0, final=True)
        return Model(self.case.folder, spec, view, plan.build(Arena(plan.num_bytes)))

    def some(self, name: str, count: int) -> np.ndarray:
        """Rows of nodes that exist, drawn with repetitions."""
        with self.newest:
            index = self.newest.nodes[name].ids
            return index.nth(self.rng.integers(0, index.num_nodes, count))

    def change(self, size: int, removes: bool = False) -> None:
        """Apply random events of all kinds."""
        rng, graph = self.rng, self.case.graph
        edges, nodes, order = {}, {}, 0
        for name, part in self.newest.nodes.items():
            dim = part.features.shape[1]
            rows = self.some(name, size // 4)
            known = part.ids.external(rows)
            features = rng.standard_normal((len(rows) + 1, dim)).astype(np.float32)
            new = f"added{self.added}" if part.ids.kind == "string" else 100_000 + self.added
            self.added += 1
            listed = [*list(known), new]
            ids = listed if part.ids.kind == "string" else np.array(listed, np.int64)
            add = np.array([False] * len(rows) + [True])
            nodes[name] = NodeChanges(ids, add, features, np.arange(order, order + len(listed)))
            order += len(listed)
        for key, schema in graph.schema.edge_types.items():
            remove = rng.random(size) < 0.3
            ends = []
            for end in (schema.src, schema.dst):
                ends.append(self.newest.nodes[end].ids.external(self.some(end, size)))
            snapshot = self.newest.snapshot().edges[key]
            if snapshot.num_edges:
                at = rng.integers(0, snapshot.num_edges, size)
                dst = np.searchsorted(snapshot.indptr, at, side="right") - 1
                for end, rows in ((0, snapshot.indices[at].astype(np.int64)), (1, dst)):
                    part = self.newest.nodes[(schema.src, schema.dst)[end]]
                    known = part.ids.external(rows)
                    ends[end] = [
                        b if gone else a for a, b, gone in zip(ends[end], known, remove, strict=True)
                    ]
                    if part.ids.kind != "string":
                        ends[end] = np.array(ends[end], np.int64)
            edges[key] = EdgeChanges(
                *ends,
                remove,
                np.arange(order, order + size),
                time=rng.integers(0, 120, size) if schema.has_time else None,
                has_time=~remove if schema.has_time else None,
                weight=rng.random(size).astype(np.float32) + 0.1 if schema.has_weight else None,
                attr=rng.standard_normal((size, schema.attr_dim)).astype(np.float32)
                if schema.attr_dim
                else None,
            )
            order += size
        for name, changes in nodes.items() if removes else ():
            gone = np.unique(self.some(name, 1 + size // 8))
            nodes[name] = merge([changes, removal(self.newest.nodes[name], gone, order)])
            order += len(gone)
        applied = self.writer.apply(Changes(edges, nodes, order))
        assert not [one for one in applied.rejected if one.code != "no_edge"]

    def fresh(self) -> Model:
        """The model without state caches on a snapshot of what there is now."""
        return dataclasses.replace(self.case, graph=self.view.snapshot()).model(caches=False)


def removal(nodes: LiveNodes, rows: np.ndarray, order: int) -> NodeChanges:
    """Removes nodes, in events from `order` on."""
    count, dim = len(rows), nodes.features.shape[1]
    return NodeChanges(
        nodes.ids.external(rows),
        np.zeros(count, bool),
        np.zeros((count, dim), np.float32),
        np.arange(order, order + count),
        remove=np.ones(count, bool),
    )


def scores(model: Model, ids: np.ndarray, as_of: int = NO_CUT) -> np.ndarray:
    with model.graph if isinstance(model.graph, LiveView) else np.errstate():
        found = model.final_states({model.spec.head.node_type: ids}, as_of)
        return found[model.spec.head.node_type].copy()


def everyone(live: Live) -> np.ndarray:
    with live.view:
        index = live.view.nodes[live.model(False).spec.head.node_type].ids
        return index.nth(np.arange(index.num_nodes))


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", [*NAMES, "learned"])
@pytest.mark.parametrize("caches", [False, True])
def test_after_any_changes_answers_are_those_of_a_fresh_build(cases, name, caches):
    live = Live(cases[name], seed=11)
    model = live.model(caches)
    for round_ in range(6):
        ids = everyone(live)
        fresh = live.fresh()
        np.testing.assert_array_equal(scores(model, ids), scores(fresh, ids))
        some = live.rng.permutation(ids)[:7]
        np.testing.assert_array_equal(scores(model, some), scores(fresh, some))
        one = some[:1]
        np.testing.assert_array_equal(scores(model, one), scores(fresh, one))
        live.change(1 + 4 * round_, removes=True)


@pytest.mark.parametrize("name", [*NAMES, "learned"])
def test_after_removals_answers_are_those_of_a_graph_that_never_had_the_nodes(cases, name):
    """Of all neighbours: a sample is keyed by rows, which are others in the graph that is built anew."""
    live = Live(cases[name], seed=19)
    model = live.model(exact=True)
    for round_ in range(5):
        live.change(4 * round_, removes=True)
        ids = everyone(live)
        with live.view as view:
            known = {key: np.delete(np.arange(n.num_nodes), n.ids.removed) for key, n in view.nodes.items()}
            assert any(len(n.ids.removed) for n in view.nodes.values())
            names = view.nodes[model.spec.head.node_type].ids.external(ids)
            never = dataclasses.replace(live.case, graph=view.snapshot().subgraph(known))
        anew = never.graph.nodes[model.spec.head.node_type].ids
        assert list(anew.external(np.arange(len(anew)))) == list(names)
        spec = with_all_neighbors(read_spec(live.case.folder))
        other = Model(never.folder, spec, never.graph)
        np.testing.assert_array_equal(scores(model, ids), scores(other, anew.lookup(names)))


def test_a_removed_node_is_unknown_and_comes_back_as_another_one(cases):
    live = Live(cases["sage"], seed=20)
    answerer = Answerer(live.model(), ("logits",), 1000)
    nodes = live.view.nodes["node"]
    with live.view:
        row = int(np.argmax(live.view.edges["node__to__node"].degree(np.arange(nodes.num_nodes))))
    name = nodes.ids.external(np.array([row]))

    def ask() -> object:
        return answerer.answer([ScoreRequest("sage", nodes=name)])[0]

    before = ask()
    with live.view:  # pins the version that has it
        gone = removal(nodes, np.array([row]), 0)
        assert live.writer.apply(Changes({}, {"node": gone}, 1)).num_applied == 1
        assert nodes.ids.lookup(name)[0] == row
    assert isinstance(ask(), NodeNotFound)
    again = live.writer.apply(Changes({}, {"node": gone}, 1))
    assert [each.code for each in again.rejected] == ["unknown_node"]
    features = live.case.graph.nodes["node"].features[row : row + 1]
    live.writer.apply(Changes({}, {"node": NodeChanges(name, ONE, features, np.array([0]))}, 1))
    with live.view:
        assert nodes.ids.lookup(name)[0] == nodes.num_nodes - 1 != row
    after, fresh = ask(), live.fresh()
    assert (after.outputs["logits"] != before.outputs["logits"]).any()
    states = scores(fresh, np.array([nodes.num_nodes - 1]))
    np.testing.assert_array_equal(after.outputs["logits"], fresh.logits(states))


@pytest.mark.parametrize("name", ["sage", "gat"])
def test_as_of_still_holds(cases, name):
    live = Live(cases[name], seed=12)
    model = live.model()
    for _ in range(3):
        live.change(20)
        fresh, ids = live.fresh(), everyone(live)
        for as_of in (0, 40, 90):
            np.testing.assert_array_equal(scores(model, ids, as_of), scores(fresh, ids, as_of))


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_sees_one_version_whatever_comes_meanwhile(cases, name):
    live = Live(cases[name], seed=13)
    model = live.model()
    late = live.view.another()
    other = live.model(view=late)
    ids = everyone(live)
    with live.view:
        before = scores(live.fresh(), ids)
        for _ in range(5):
            live.change(6)
            # Another reader keeps rows of the newer version meanwhile.
            other_ids = ids[:20]
            with late:
                scores(other, other_ids)
        np.testing.assert_array_equal(scores(model, ids), before)
    np.testing.assert_array_equal(scores(model, ids), scores(live.fresh(), ids))


def test_rows_that_did_not_change_are_not_computed_again(cases):
    live = Live(cases["sage"], seed=14)
    model = live.model()
    ids = everyone(live)
    scores(model, ids)
    top = model.state_caches[model.spec.num_layers, "node"]
    top.num_misses = top.num_hits = 0
    edges = live.view.edges["node__to__node"]
    with live.view:
        quiet = int(np.flatnonzero(edges.degree(ids) == 0)[0])
    name = live.ids["node"].external(np.array([quiet]))
    changes = NodeChanges(name, np.array([False]), np.ones((1, 6), np.float32), np.array([0]))
    live.writer.apply(Changes({}, {"node": changes}, 1))
    scores(model, ids)
    affected = live.view.nodes["node"].changed_at[model.spec.num_layers][ids] == 1
    assert top.num_misses == np.count_nonzero(affected) < len(ids)


def test_a_graph_without_account_of_degrees_keeps_no_rows_of_models_that_read_them(cases):
    live = Live(cases["gcn"], seed=15, reads_degrees=False)
    model = live.model(caches=True)
    assert not model.state_caches
    live.change(20)
    ids = everyone(live)
    np.testing.assert_array_equal(scores(model, ids), scores(live.fresh(), ids))


def test_two_processes_share_rows_while_a_third_changes_the_graph(cases, tmp_path):
    """Readers in forked processes; each answer must be that of some version between two looks."""
    case = cases["sage"]
    fd = create_shared()
    live = Live(case, seed=16, fd=fd)
    spec = read_spec(case.folder)
    state_cache_fd = create_shared()
    ids = everyone(live)
    pids = []
    versions = {0: scores(live.fresh(), ids)}
    for worker in range(2):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                memory = LiveMemory.attach(fd)
                assert memory is not None
                view = LiveView(memory, case.graph.schema, live.ids)
                plan = StateCachePlan(spec, view, 2**26, 2, final=True)
                model = Model(
                    case.folder, spec, view, plan.build(Arena(plan.num_bytes, state_cache_fd), worker)
                )
                rng = np.random.default_rng(worker)
                with open(tmp_path / str(worker), "wb") as out:
                    last = -1
                    while last < 40:
                        some = rng.permutation(ids)[: rng.integers(1, 60)]
                        with view:
                            last = view.clock.version
                            found = scores(model, some)
                        np.save(out, np.array([last]))
                        np.save(out, some)
                        np.save(out, found)
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    for version in range(1, 41):
        live.change(2)
        versions[version] = scores(live.fresh(), ids)
    seen = set()
    for worker, pid in enumerate(pids):
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        with open(tmp_path / str(worker), "rb") as file:
            while file.peek(1):
                version = int(np.load(file)[0])
                some, found = np.load(file), np.load(file)
                np.testing.assert_array_equal(found, versions[version][some])
                seen.add(version)
    assert len(seen) > 3


def test_whoever_answers_pins_a_version(cases):
    """Rows and lists of versions that nobody reads are used again: an answer never stands on those."""
    live = Live(cases["sage"], seed=18)
    answerer = Answerer(live.model(), ("logits",), 1000)
    names = live.ids["node"].external(np.arange(5))
    for version in range(4):
        (answer,) = answerer.answer([ScoreRequest("sage", nodes=names)])
        assert answer.graph_version.endswith(f"+{version}" if version else live.case.graph.version)
        np.testing.assert_array_equal(
            answer.outputs["logits"], live.fresh().logits(scores(live.fresh(), np.arange(5)))
        )
        live.change(5)
