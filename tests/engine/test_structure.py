"""Structure rows follow the graph: kept where nothing changed, else one round over kept rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from hopline.artifact import Head, ModelSpec, read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import Model, StateCachePlan
from hopline.graph import Graph
from hopline.graph.live.changes import Changes, EdgeChanges, NodeChanges
from hopline.jobs.batch.changes import SnapshotChanges as Differences
from hopline.jobs.batch.needed_rows import needed_levels
from hopline.memory.arena import Arena
from hopline.types import InlineNode, ScoreRequest
from hopline_compress.distill.export import StructureRows, write_student
from hopline_compress.distill.propagate import directions
from hopline_compress.distill.run import structure_features
from hopline_compress.distill.settings import Settings
from hopline_compress.distill.train import Student
from tests.engine.test_live import Live, everyone, scores
from tests.graphs import power_law_graph

SETTINGS = Settings(structure=True, hidden=8, width=4)
DIM, N = 6, 300
TEACHER = ModelSpec("t", "1", "multiclass", 1, {}, {}, Head("node", 3))


@dataclass(frozen=True)
class Case:
    """A student and a graph to ask it about."""

    graph: Graph
    folder: Path

    def model(self, caches: bool = True) -> Model:
        spec = read_spec(self.folder)
        plan = StateCachePlan(spec, self.graph, 2**26 if caches else 0, final=True)
        return Model(self.folder, spec, self.graph, plan.build(Arena(plan.num_bytes)))


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    graph = power_law_graph(N, 2500, DIM, ids="string", times=True)
    features = np.array(graph.node().features)
    edge = graph.edge()
    edges = np.stack([edge.indices, np.repeat(np.arange(N), np.diff(edge.indptr))])
    rows = StructureRows(
        structure_features(edges, features, SETTINGS),
        directions(features, SETTINGS.width),
        SETTINGS.restart,
    )
    torch.manual_seed(0)
    student = Student(DIM, rows.rows.shape[1], 3, SETTINGS).eval()
    folder = write_student(
        tmp_path_factory.mktemp("models"), "seeing", "1", student, TEACHER, graph, features, {},
        overwrite=False, structure=rows,
    )  # fmt: skip
    return Case(graph, folder)


def reference(case: Case, graph: Graph) -> np.ndarray:
    """Structure rows on another graph of the same node numbers, by plain NumPy."""
    kept = np.load(case.folder / "structure" / "rows.npy")
    base = np.load(case.folder / "structure" / "base.npy")
    old, new = case.graph, graph
    found = []
    for v in range(new.num_nodes):
        own = np.array(new.node().features)[v]
        near = [u for u in new.edge().neighbors(v).tolist() if u < old.num_nodes]
        same = v < old.num_nodes and sorted(near) == sorted(old.edge().neighbors(v).tolist())
        if same and (own == np.array(old.node().features)[v]).all():
            found.append(kept[v])
            continue
        row = own @ base
        if near:
            degrees = np.maximum(old.edge().degree(np.array(near)), 1)
            near_rows = (kept[near] / np.sqrt(degrees * len(near))[:, None]).sum(0)
            row = SETTINGS.restart * row + (1 - SETTINGS.restart) * near_rows
        found.append(row)
    return np.array(found)


def test_a_live_graph_its_snapshot_and_the_definition_agree_after_every_change(case):
    live = Live(case, 3)
    model = live.model()
    np.testing.assert_array_equal(
        scores(model, everyone(live)), scores(case.model(False), np.arange(N))
    )  # nothing has changed yet
    differing = 0
    for size in (4, 40, 4, 400, 40):
        before = scores(model, np.arange(N))
        live.change(size)
        ids = everyone(live)
        found = scores(model, ids)  # fills the state cache
        np.testing.assert_array_equal(found, scores(live.fresh(), ids))
        np.testing.assert_array_equal(found, scores(model, ids))  # from the state cache
        np.testing.assert_array_equal(found, np.concatenate([scores(model, ids[k : k + 1]) for k in ids]))
        snapshot = live.view.snapshot()
        level = model.levels[0]["node"]
        with live.view:
            slots = level.own_slots.slots(ids)
            rows = level.structure.rows(ids, live.view.nodes["node"].features.array, slots)
        np.testing.assert_allclose(rows, reference(case, snapshot), atol=1e-5)
        differing += int((found[:N] != before).any(1).sum())
    assert differing > 100


def test_a_described_node_may_name_a_neighbor_that_came_since(case):
    live = Live(case, 3)
    model = live.model()
    live.change(4)
    with live.view:
        nodes = live.view.nodes["node"]
        newest = nodes.ids.external(np.array([nodes.num_nodes - 1]))[0]
    row = np.ones(DIM, np.float32)
    answers = []
    for near in ([newest, "n1"], ["n1"]):
        inline = (InlineNode(features=row, neighbors={"": near}),)
        with live.view:
            (found,) = Answerer(model, ("logits",), 10).answer([ScoreRequest("seeing", inline=inline)])
        assert not isinstance(found, Exception), found
        answers.append(found.outputs["logits"])
    np.testing.assert_array_equal(*answers)  # the newest has no kept row, and does not count


def test_there_are_no_state_caches_where_the_graph_does_not_record_changed_lists(case):
    live = Live(case, 3, num_levels=1)
    model = live.model()
    live.change(50)
    ids = everyone(live)
    np.testing.assert_array_equal(scores(model, ids), scores(live.fresh(), ids))
    live.change(50)
    np.testing.assert_array_equal(scores(model, ids), scores(live.fresh(), ids))


def test_a_compressed_snapshot_has_the_same_rows(case):
    live = Live(case, 5)
    live.change(200)
    snapshot = live.view.snapshot()
    ids = np.arange(snapshot.num_nodes)
    packed = Case(snapshot.compressed(), case.folder)
    np.testing.assert_array_equal(
        scores(packed.model(), ids), scores(Case(snapshot, case.folder).model(), ids)
    )


def test_an_incremental_batch_run_computes_every_row_that_changed(case):
    live = Live(case, 7)
    live.change(30)
    old = live.view.snapshot()
    live.change(30)
    new = live.view.snapshot()
    spec = read_spec(case.folder)
    anew = Differences(spec, old, new).rows(needed_levels(spec, new))[0, "node"]
    ids = np.arange(old.num_nodes)
    was, now = (scores(Case(graph, case.folder).model(False), ids) for graph in (old, new))
    changed = np.flatnonzero((was != now).any(1))
    assert changed.size
    assert set(changed) <= set(anew)
    assert len(anew) < 0.7 * new.num_nodes


def test_a_node_that_comes_later_and_is_known_by_its_id_counts_with_its_kept_row(case):
    lacking = case.graph.subgraph(np.arange(N - 1))
    live = Live(Case(lacking, case.folder), 1)
    model = live.model()
    assert len(everyone(live)) == N - 1
    edge = case.graph.edge()
    fans = [v for v in range(N - 1) for u in edge.neighbors(v) if u == N - 1]
    before = scores(model, np.arange(N - 1))
    assert fans
    times, name = edge.time, case.graph.node().ids.external(np.array([N - 1]))[0]
    heard = [int(u) for u in edge.neighbors(N - 1)]
    ends = [(N - 1, v) for v in fans] + [(u, N - 1) for u in heard]
    sources, targets = (case.graph.node().ids.external(np.array(side)) for side in zip(*ends, strict=True))
    features = np.array(case.graph.node().features)[N - 1 :]
    count = len(ends)
    changes = Changes(
        {edge.key: EdgeChanges(sources, targets, np.zeros(count, bool), np.arange(1, count + 1),
                               time=np.full(count, int(times.max())), has_time=np.ones(count, bool))},
        {"node": NodeChanges([name], np.array([True]), features, np.array([0]))},
        count + 1,
    )  # fmt: skip
    assert not live.writer.apply(changes).rejected
    found = scores(model, np.arange(N))
    np.testing.assert_array_equal(found, scores(live.fresh(), np.arange(N)))
    assert (found[fans] != before[fans]).any()
    # all lists are whole again, so all rows are the kept ones
    np.testing.assert_array_equal(found, scores(case.model(False), np.arange(N)))
