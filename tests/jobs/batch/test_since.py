"""A run since an earlier one computes what changed, and equals a full run bit for bit."""

import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopline.errors import BatchError, RunMismatch
from hopline.graph import Graph
from hopline.jobs.batch.changes import match
from tests.engine import zoo
from tests.jobs.batch.conftest import score
from tests.thorough import thorough

MODELS = ["plain", "sage", "gcn", "gat", "mixed"]


class Edited:
    """The zoo's homogeneous graph as tables that can be edited before it is built."""

    def __init__(self, seed=1):
        rng = np.random.default_rng(seed)
        self.edges = (zoo.N * rng.random((2, 500)) ** 2).astype(np.int64)
        self.time = rng.integers(0, 100, 500)
        self.weight = rng.random(500).astype(np.float32) + np.float32(0.1)
        self.attr = rng.standard_normal((500, 2)).astype(np.float32)
        self.x = rng.standard_normal((zoo.N, 6)).astype(np.float32)
        self.ids = [f"n{i}" for i in range(zoo.N)]
        self.added = 0

    def change(self, rng, kind):
        e = int(rng.integers(self.edges.shape[1]))
        if kind == "feature":
            self.x[rng.integers(len(self.x)), rng.integers(6)] += 1.0
        elif kind == "edge removed":
            self._keep(np.arange(self.edges.shape[1]) != e)
        elif kind == "edge added":
            self.edges = np.append(self.edges, rng.integers(0, len(self.x), (2, 1)), axis=1)
            self.time = np.append(self.time, rng.integers(0, 100))
            self.weight = np.append(self.weight, np.float32(0.5))
            self.attr = np.append(self.attr, np.ones((1, 2), np.float32), axis=0)
        elif kind == "weight":
            self.weight[e] += np.float32(1.0)
        elif kind == "attribute":
            self.attr[e, 0] += np.float32(1.0)
        elif kind == "node added":
            self.x = np.append(self.x, np.ones((1, 6), np.float32), axis=0)
            self.ids.append(f"new{self.added}")
            self.added += 1
        elif kind == "nodes in another order":
            order = rng.permutation(len(self.x))
            place = np.argsort(order)
            self.x, self.ids = self.x[order], [self.ids[row] for row in order]
            self.edges = place[self.edges]
        else:
            gone = int(rng.integers(len(self.x)))
            self._keep((self.edges != gone).all(axis=0))
            self.edges = self.edges - (self.edges > gone)
            self.x = np.delete(self.x, gone, axis=0)
            del self.ids[gone]

    def _keep(self, mask):
        self.edges, self.time = self.edges[:, mask], self.time[mask]
        self.weight, self.attr = self.weight[mask], self.attr[mask]

    def save(self, folder):
        named = [[self.ids[row] for row in end] for end in self.edges]
        graph = Graph.from_edges(
            named,
            self.x,
            ids=list(self.ids),
            edge_time=self.time,
            edge_weight=self.weight,
            edge_attr=self.attr,
        )
        return graph.save(folder, overwrite=True)


KINDS = [
    *("feature", "edge removed", "edge added", "weight", "attribute"),
    *("node added", "node removed", "nodes in another order"),
]


@pytest.mark.parametrize("name", MODELS)
@given(seed=st.integers(0, 1000), kinds=st.lists(st.sampled_from(KINDS), max_size=4), exact=st.booleans())
@settings(
    max_examples=thorough(4, 12),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_a_run_since_another_equals_a_full_run(cases, tmp_path_factory, name, seed, kinds, exact):
    folder = cases[name].folder
    tmp = tmp_path_factory.mktemp("since")
    tables = Edited()
    rng = np.random.default_rng(seed)
    old = tables.save(tmp / "old")
    score(folder, old, tmp / "a", outputs=("logits",), keep=True, exact=exact, threads=1)
    for kind in kinds:
        tables.change(rng, kind)
    new = tables.save(tmp / "new")
    options = {"outputs": ("logits",), "exact": exact, "threads": 1}
    since = score(folder, new, tmp / "b", since=tmp / "a.run", keep=True, **options)
    full = score(folder, new, tmp / "c", **options)
    assert (since["logits"] == full["logits"]).all()
    assert since.report.recomputed <= full.report.recomputed
    if not kinds:
        assert since.report.recomputed == 0
    again = score(folder, new, tmp / "d", since=tmp / "b.run", **options)  # a run since one that was since
    assert (again["logits"] == full["logits"]).all()
    assert again.report.recomputed == 0
    shutil.rmtree(tmp)


def test_one_changed_feature_recomputes_only_who_reads_it(cases, tmp_path):
    folder = cases["plain"].folder
    tables = Edited()
    score(folder, tables.save(tmp_path / "old"), tmp_path / "a", keep=True)
    tables.x[7] += 1
    found = score(folder, tables.save(tmp_path / "new"), tmp_path / "b", since=tmp_path / "a.run")
    assert 1 <= found.report.levels[0].computed < zoo.N
    assert found.report.levels[0].computed + found.report.levels[0].copied == zoo.N
    assert found.report.levels[0].computed <= found.report.levels[1].computed


def test_nodes_are_matched_by_id_wherever_their_rows_are():
    def nodes(ids):
        return Graph.from_edges([[0], [0]], np.ones((len(ids), 1), np.float32), ids=ids, by_row=True).node()

    found = match(nodes(["a", "b", "c"]), nodes(["c", "x", "a"]))
    assert found.old_row.tolist() == [2, -1, 0]
    assert found.new_row.tolist() == [2, -1, 0]
    assert not found.is_prefix
    assert match(nodes([5, 9]), nodes([5, 9, 1])).is_prefix


def test_since_a_run_that_kept_nothing_is_refused(cases, tmp_path):
    case = cases["plain"]
    score(case.folder, case.graph, tmp_path / "a")
    with pytest.raises(BatchError, match="--keep"):
        score(case.folder, case.graph, tmp_path / "b", since=tmp_path / "a.run")


def test_since_a_run_of_another_model_is_refused_with_each_difference(cases, tmp_path):
    graph = cases["sage"].graph
    score(cases["sage"].folder, graph, tmp_path / "a", keep=True)
    with pytest.raises(RunMismatch, match="model was 'sage' and is now 'plain'") as raised:
        score(cases["plain"].folder, graph, tmp_path / "b", since=tmp_path / "a.run", exact=True)
    assert any("exact" in difference for difference in raised.value.differences)


def test_since_a_run_whose_graph_was_replaced_is_refused(cases, tmp_path):
    folder = cases["plain"].folder
    tables = Edited()
    graph = tables.save(tmp_path / "graph")
    score(folder, graph, tmp_path / "a", keep=True)
    tables.x[0] += 1
    graph = tables.save(tmp_path / "graph")
    with pytest.raises(BatchError, match="keep that folder"):
        score(folder, graph, tmp_path / "b", since=tmp_path / "a.run")
