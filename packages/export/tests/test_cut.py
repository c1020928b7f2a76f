"""A graph cut at a time: its answers without a time are those of the whole graph as of that time."""

from functools import partial

import numpy as np
import pytest
from typer.testing import CliRunner

from hopline.commands.graph import app
from hopline.errors import BadRequest, GraphError, NodeNotFound
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.graph.live.changes import Changes, NodeChanges
from hopline.jobs.batch.npy import NpyFolder
from hopline.jobs.batch.run import BatchOptions, BatchRun
from hopline_export.cut import graph_at, moment
from tests.engine import zoo
from tests.engine.test_history import (
    NODE_MODELS,
    ask,
    heterogeneous,
    homogeneous,
    homogeneous_tables,
    known,
)
from tests.engine.test_history import answerer as answering
from tests.engine.test_live_history import homogeneous_events, on_live
from tests.graph.live.test_writer import live
from tests.thorough import thorough

MOMENTS = [*map(int, np.random.default_rng(0).integers(-20, 120, thorough(10, 40))), 10**6]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return zoo.build(tmp_path_factory.mktemp("cases"))


@pytest.mark.parametrize("name", NODE_MODELS)
def test_answers_are_those_of_the_time(cases, tmp_path, name):
    graph, (rows, _) = homogeneous(), homogeneous_tables()
    whole = answering(cases[name], graph)
    for turn, as_of in enumerate(MOMENTS[:4]):
        ids = list(known(rows, as_of).id)
        cut = graph_at(graph, as_of).save(tmp_path / str(turn))
        found = answering(cases[name], Graph.open(cut.path, verify=True))
        assert cut.num_nodes == len(ids)
        np.testing.assert_array_equal(ask(found, ids)["logits"], ask(whole, ids, as_of)["logits"])
        if late := sorted({*rows.id} - {*ids}):
            with pytest.raises(NodeNotFound):
                ask(found, late[:1])


def test_several_types_and_both_directions(cases):
    graph = heterogeneous()
    whole = answering(cases["hetero"], graph)
    for as_of in MOMENTS:
        found = answering(cases["hetero"], graph_at(graph, as_of))
        index = found.model.graph.nodes["user"].ids
        rows = np.setdiff1d(np.arange(len(index)), index.removed)
        if len(rows):
            ids = list(index.external(rows))
            np.testing.assert_array_equal(ask(found, ids)["logits"], ask(whole, ids, as_of)["logits"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_features_stay_narrow(cases, dtype):
    graph, (rows, _) = homogeneous(feature_dtype=dtype), homogeneous_tables()
    whole = answering(cases["plain"], graph)
    for as_of in MOMENTS[:3]:
        ids, cut = list(known(rows, as_of).id), graph_at(graph, as_of)
        assert cut.schema.node_types["node"].feature_dtype == dtype
        found = ask(answering(cases["plain"], cut), ids)["logits"]
        np.testing.assert_array_equal(found, ask(whole, ids, as_of)["logits"])


def test_a_version_of_a_live_graph_with_late_and_removed_nodes(cases):
    """Their numbers are not in the order of their times, and stay."""
    events = homogeneous_events(11)
    writer, view = live(events.graph(-1))
    for batch in range(events.batches):
        writer.apply(events.changes(batch))
    row = np.ones((1, 6), np.float32)
    late = NodeChanges(["late"], np.array([True]), row, np.arange(1), time=np.array([-15]))
    writer.apply(Changes({}, {"node": late}, 1))
    gone = NodeChanges.removals(["n2"], np.arange(1), view.schema.node_types["node"])
    writer.apply(Changes({}, {"node": gone}, 1))
    graph, whole = view.snapshot(), on_live(cases["sage"], view)
    for as_of in MOMENTS:
        cut = graph_at(graph, as_of)
        index = cut.nodes["node"].ids
        ids = list(index.external(np.setdiff1d(np.arange(len(index)), index.removed)))
        assert ("late" in ids) == (as_of >= -15)
        assert "n2" not in ids
        if ids:
            found = ask(answering(cases["sage"], cut), ids)["logits"]
            np.testing.assert_array_equal(found, ask(whole, ids, as_of)["logits"])


def test_a_batch_run_on_the_cut_has_the_answers_of_the_time(cases, tmp_path):
    graph, (rows, _) = homogeneous(), homogeneous_tables()
    whole = answering(cases["sage"], graph)
    for as_of in (0, 55):
        cut = graph_at(graph, as_of).save(tmp_path / f"graph{as_of}")
        options = BatchOptions(outputs=("logits",), threads=1)
        run = BatchRun(cases["sage"].folder, cut.path, tmp_path / f"work{as_of}", options)
        run.run(partial(NpyFolder, tmp_path / f"out{as_of}"))
        scores = np.load(tmp_path / f"out{as_of}" / "logits.npy")
        ids = list(cut.nodes["node"].ids.external(np.arange(cut.num_nodes)))
        assert ids == list(known(rows, as_of).id)
        np.testing.assert_array_equal(scores, ask(whole, ids, as_of)["logits"])


def test_columns_weights_and_edges_into_later_nodes():
    table = NodeTable(
        columns={"plan": ["free", "pro", "own"], "seats": [1.0, 3.0, None]},
        column_types={"plan": "text"},
        ids=["a", "a", "b"],
        history=[0, 50, 70],
    )
    pays = EdgeTable((["a", "a", "b"], ["b", "a", "a"]), time=[10, 60, 80], weight=np.ones(3, np.float32))
    graph = Graph.from_tables({"account": table}, {("account", "pays", "account"): pays})
    cut = graph_at(graph, 60)
    nodes, edges = cut.nodes["account"], cut.edges["account__pays__account"]
    assert (cut.num_nodes, nodes.history, cut.schema.node_types["account"].history) == (1, None, None)
    assert nodes.columns.table.to_pylist() == [
        {"plan": "pro", "seats": 3.0},
        {"plan": None, "seats": None},
    ]
    assert (edges.indices.tolist(), edges.time.tolist(), edges.time_range) == ([0], [60], (60, 60))


def test_what_cannot_be_cut_is_refused(tmp_path):
    plain = Graph.from_edges(np.array([[0], [1]]), np.ones((2, 1), np.float32))
    with pytest.raises(GraphError, match="nothing in the graph has times"):
        graph_at(plain, 1)
    with pytest.raises(GraphError, match="known only from -5 on"):
        graph_at(homogeneous(history_since=-5), -6)
    with pytest.raises(GraphError, match="features of 8 bits and a history"):
        graph_at(homogeneous(feature_dtype="int8"), 1)
    with pytest.raises(BadRequest, match="neither a number nor a date"):
        moment(homogeneous(), "yesterday")


def test_the_command_writes_a_folder(tmp_path):
    homogeneous().save(tmp_path / "graph")
    words = ["cut", str(tmp_path / "graph"), "--as-of", "40", "--out", str(tmp_path / "then")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    found = Graph.open(tmp_path / "then", verify=True)
    assert found.version == graph_at(homogeneous(), 40).version
    assert f"{found.num_nodes} nodes" in done.output
    assert "asked at 40" in done.output
