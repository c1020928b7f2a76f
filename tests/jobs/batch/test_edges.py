"""Scores of edges in batch: the oracle is the server's code, edge by edge, and PyG without the edge."""

import multiprocessing
import signal
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from hopline.artifact import read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.engine.tasks import default_outputs
from hopline.errors import BadRequest, NodeNotFound, RunMismatch
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.jobs.batch.edges import EdgeChoice, EdgeRun
from hopline.jobs.batch.goal import BatchOptions
from hopline.jobs.batch.registry import open_sink
from hopline.types import ScoreRequest
from tests.commands.typed import typed
from tests.engine.test_scored_edges import PAID_BY, PAYS, World
from tests.jobs.batch import dying
from tests.jobs.batch.places import npy_column
from tests.packaged import package

OUTPUTS = ("logits", "probabilities", "label")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("edges")
    world = World(folder / "models")
    world.graph = world.graph.save(folder / "graph")
    return world


class Stopped(Exception):
    pass


def run(world, out, choice, *, graph=None, to=None, stop=0, **options):
    """The report and the columns of a run; with `stop`, the run ends at this call of `advance`."""
    reports = 0

    def advance(label, done, total):
        nonlocal reports
        reports += 1
        if reports == stop:
            raise Stopped

    options = BatchOptions(**{"outputs": OUTPUTS, "threads": 2} | options)
    work = out.with_name(out.name + ".run")
    path = (graph or world.graph).path
    job = EdgeRun(world.report.path, path, work, choice, options, advance=advance)
    report = job.run(lambda: open_sink(to or f"npy:{out}"))
    names = {file.stem.removesuffix("_blob").removesuffix("_offsets") for file in out.glob("*.npy")}
    return report, {name: npy_column(out, name) for name in names}


def online(world, sources, targets, rows, how="none"):
    edges = world.edges([int(name[1:]) for name in sources], targets, rows)
    outputs = dict.fromkeys(OUTPUTS, ())
    for edge in edges:  # one by one: a batch is another order of the same
        request = ScoreRequest("payments", edges=(edge,), outputs=OUTPUTS, exclude_seed_edges=how)
        (outcome,) = world.answerer.answer([request])
        outputs = {name: (*found, outcome.outputs[name]) for name, found in outputs.items()}
    return {name: np.concatenate(found) for name, found in outputs.items()}


@pytest.mark.sample(1)
@pytest.mark.parametrize(("given", "means"), [("", "self"), ("none", "none"), ("reverse", "reverse")])
def test_edges_of_the_graph_have_the_scores_of_the_server_bit_for_bit(world, tmp_path, given, means):
    report, found = run(world, tmp_path / "out", EdgeChoice(exclude=given))
    attr = np.asarray(world.graph.edges["user__pays__shop"].attr)
    ends = sorted(zip(found["from"], found["to"].tolist(), strict=True))
    assert ends == sorted((f"u{a}", int(b)) for a, b in world.ends.T)
    assert found["id"].tolist() == list(range(world.ends.shape[1]))
    right = online(world, found["from"], found["to"], attr, means)
    for name in OUTPUTS:
        assert (found[name] == right[name]).all(), name
    assert (report.rows, report.recomputed, report.resumed) == (len(attr), len(attr), False)
    if means == "none":
        src = [int(name[1:]) for name in found["from"]]
        np.testing.assert_allclose(found["logits"], world.pyg(src, found["to"], attr), atol=1e-4)


def test_an_edge_does_not_see_itself_as_in_pyg_without_it(world, tmp_path):
    _, found = run(world, tmp_path / "out", EdgeChoice(exclude="reverse"))
    x = {name: torch.tensor(each) for name, each in world.x.items()}
    attr = np.asarray(world.graph.edges["user__pays__shop"].attr)
    for at in range(0, world.ends.shape[1], 9):
        src, dst = int(found["from"][at][1:]), int(found["to"][at])
        left = torch.tensor(world.ends[:, ~(world.ends == [[src], [dst]]).all(axis=0)])
        with torch.no_grad():
            h = world.encoder(x, {PAYS: left, PAID_BY: left.flip(0)})
            row = torch.tensor(attr[at : at + 1])
            wanted = world.head(h["user"][[src]], h["shop"][[dst]], row).numpy()
        np.testing.assert_allclose(found["logits"][at : at + 1], wanted, atol=1e-4)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_new_edges_of_a_table_in_its_order(world, tmp_path, form):
    """Columns in the order of the edge attributes; the table is written to Parquet."""
    rng = np.random.default_rng(5)
    src, dst, rows = rng.integers(0, 30, 600), rng.integers(0, 12, 600), rng.normal(size=(600, 2))
    rows = rows.astype("f4").astype(float)
    table = pa.table(
        {"to": dst, "from": [f"u{at}" for at in src], "first": rows[:, 0], "second": rows[:, 1]}
    )
    file = tmp_path / f"new.{form}"
    if form == "csv":
        table.to_pandas().to_csv(file, index=False)
    else:
        pq.write_table(table, file)
    out = tmp_path / "out.parquet"
    run(world, out, EdgeChoice(file), to=str(out))
    found = pq.read_table(out)
    assert found.column_names == ["id", "from", "to", *OUTPUTS]
    assert found["from"].to_pylist() == table["from"].to_pylist()
    assert found["to"].to_pylist() == dst.tolist()
    right = online(world, table["from"].to_pylist(), dst, rows)
    for name in ("probabilities", "label"):
        assert (found[name].to_numpy() == right[name]).all()
    assert not (tmp_path / "out.run").exists()


def test_a_table_that_cannot_be_scored_is_refused_by_its_place(world, tmp_path):
    file = tmp_path / "new.csv"
    for text, error, message in (
        ("from,to,a\nu1,2,0.5\n", BadRequest, "shape .1.; edge type 'user__pays__shop' has 2 edge"),
        ("from,a,b\nu1,2,0.5\n", BadRequest, "no column 'to'; the file has from, a, b"),
        ("from,to,a,b\nu1,2,1,2\nnobody,2,1,2\n", NodeNotFound, "column 'from': .*no nodes 'nobody'"),
        ("from,to,a,b\nu1,2,1,2\nu1,77,1,2\n", NodeNotFound, "column 'to': .*no nodes 77"),
        ("from,to,a,b\nu1,2,1,2\nu1,2,1,1e39\n", BadRequest, "row 1.1. is inf as float32"),
    ):
        file.write_text(text)
        with pytest.raises(error, match=message):
            run(world, tmp_path / "out", EdgeChoice(file))
    file.write_text("from,to,a,b\nu1,2,1,2\n")
    for choice, options, message in (
        (EdgeChoice(exclude="both"), {}, "--exclude-seed-edges is none, self, reverse; got 'both'"),
        (EdgeChoice(begin=3), {}, "--begin: edges of 'user__pays__shop' have no times"),
        (EdgeChoice(file, end=3), {}, "--begin and --end choose edges of the graph"),
        (EdgeChoice(), {"keep": True}, "--keep is for a run over nodes"),
        (EdgeChoice(), {"memory_bytes": 1 << 30}, "--memory is for a run over nodes"),
        (EdgeChoice(), {"outputs": ("embedding",)}, "no output 'embedding' of edges; it has logits, prob"),
    ):
        with pytest.raises(BadRequest, match=message):
            run(world, tmp_path / "out", choice, **options)
    assert not (tmp_path / "out").exists()


def test_a_run_goes_on_where_it_ended_and_another_one_is_refused(world, tmp_path, monkeypatch):
    monkeypatch.setattr("hopline.jobs.batch.edges._AT_ONCE", 10)
    _, right = run(world, tmp_path / "right", EdgeChoice())
    with pytest.raises(Stopped):
        run(world, tmp_path / "out", EdgeChoice(), stop=5, checkpoint_s=0.0)
    with pytest.raises(RunMismatch, match=r"requested nodes or edges \(hash\)"):
        run(world, tmp_path / "out", EdgeChoice(exclude="none"))
    report, found = run(world, tmp_path / "out", EdgeChoice())
    assert report.resumed
    assert report.recomputed == world.ends.shape[1] - 50
    assert all((found[name] == right[name]).all() for name in OUTPUTS)


@pytest.mark.release
def test_a_killed_run_ends_with_the_same_bytes(world, tmp_path):
    _, right = run(world, tmp_path / "right", EdgeChoice())
    spawn = multiprocessing.get_context("spawn")
    args = (world.report.path, world.graph.path, tmp_path / "out")
    child = spawn.Process(target=dying.edges_into_folder, args=args)
    child.start()
    child.join(300)
    assert child.exitcode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    report, found = run(world, tmp_path / "out", EdgeChoice())
    assert report.resumed
    assert report.recomputed == 0
    assert all((found[name] == right[name]).all() for name in OUTPUTS)


def test_edges_of_a_time_range_are_scored_as_the_model_was_packaged(world, tmp_path):
    times = np.arange(world.ends.shape[1]) * 60 + 1_700_000_000
    graph = Graph.from_tables(
        {"user": NodeTable(world.x["user"], ids=world.users), "shop": NodeTable(world.x["shop"])},
        {
            PAYS: EdgeTable(world.ends, attr=world.rows, by_row=True, time=times, time_unit="s"),
            PAID_BY: EdgeTable(world.ends[::-1], by_row=True),
        },
    ).save(tmp_path / "graph")
    report = package(
        world.encoder, graph, tmp_path, name="payments", fanouts=[-1, -1], task="binary",
        target=("user", "shop"), head=world.head, exclude_seed_edges="reverse",
    )  # fmt: skip
    choice = EdgeChoice(begin=int(times[20]), end=datetime.fromtimestamp(int(times[50]), UTC))
    out = tmp_path / "out"
    EdgeRun(report.path, graph.path, tmp_path / "w", choice).run(lambda: open_sink(f"npy:{out}"))
    assert sorted(np.load(out / "time.npy").tolist()) == times[20:50].tolist()
    src = [int(name[1:]) for name in npy_column(out, "from")]
    attr = np.asarray(graph.edges["user__pays__shop"].attr)[np.load(out / "id.npy")]
    edges = world.edges(src, np.load(out / "to.npy"), attr)
    answerer = Answerer(load_model(report.path, report.spec, graph), ("probabilities",), 999)
    request = ScoreRequest("payments", edges=edges, exclude_seed_edges="reverse")
    (right,) = answerer.answer([request])
    assert (np.load(out / "probabilities.npy") == right.outputs["probabilities"]).all()
    with pytest.raises(BadRequest, match="--end 5 is far from the graph's edge times"):
        EdgeRun(report.path, graph.path, tmp_path / "w", EdgeChoice(end=5))


def test_pairs_of_a_table_have_the_scores_of_a_model_of_pairs(cases, tmp_path):
    case = cases["link"]
    rng = np.random.default_rng(3)
    ids = [[f"n{row}" for row in rng.integers(0, 100, 300)] for _ in range(2)]
    file = tmp_path / "pairs.tsv"
    lines = ["from\tto\tnote", *(f"{a}\t{b}\tx" for a, b in zip(*ids, strict=True))]
    file.write_text("\n".join(lines))
    out = tmp_path / "out"
    run = EdgeRun(case.folder, case.graph.path, tmp_path / "w", EdgeChoice(file))
    run.run(lambda: open_sink(f"npy:{out}"))
    spec = read_spec(case.folder)
    answerer = Answerer(load_model(case.folder, spec, case.graph), default_outputs(spec), 999)
    (right,) = answerer.answer([ScoreRequest("m", pairs=tuple(ids))])
    for name, values in right.outputs.items():
        assert (np.load(out / f"{name}.npy") == values).all()
    for choice, folder, message in (
        (EdgeChoice(), case.folder, "scores pairs: name those to score, in a file"),
        (EdgeChoice(file), cases["sage"].folder, "scores nodes"),
    ):
        with pytest.raises(BadRequest, match=message):
            EdgeRun(folder, case.graph.path, tmp_path / "w", choice)


def test_a_version_of_a_live_graph_that_has_no_folder(world, tmp_path, monkeypatch):
    graph = Graph.from_tables(
        {"user": NodeTable(world.x["user"], ids=world.users), "shop": NodeTable(world.x["shop"])},
        {
            PAYS: EdgeTable(world.ends, attr=world.rows, by_row=True),
            PAID_BY: EdgeTable(world.ends[::-1], by_row=True),
        },
    )
    assert graph.path is None
    monkeypatch.setattr("hopline.jobs.batch.edges.open_graph", lambda folder, fresh: graph)
    _, found = run(world, tmp_path / "out", EdgeChoice(exclude="reverse"))
    monkeypatch.undo()
    _, right = run(world, tmp_path / "right", EdgeChoice(exclude="reverse"))
    assert all((found[name] == right[name]).all() for name in OUTPUTS)


def test_the_command_scores_edges(world, tmp_path):
    common = ["batch", "--model", "payments", "--graph", str(world.graph.path)]
    common += ["--repository", str(world.report.path.parents[1])]
    done = typed(*common, "--edges", "all", "--to", f"npy:{tmp_path / 'out'}", "--outputs", "logits")
    assert done.exit_code == 0, done.output
    assert "Published" in done.output
    assert np.load(tmp_path / "out" / "logits.npy").shape == (world.ends.shape[1], 1)
    for words, message in (
        (["--begin", "3"], "--begin, --end and --exclude-seed-edges are for --edges"),
        (["--edges", "all", "--engine", "ray"], "scores of edges are computed here"),
        (["--edges", "all", "--begin", "soon"], "--begin, --end: 'soon' instead of a time in ISO 8601"),
    ):
        refused = typed(*common, *words, "--to", f"npy:{tmp_path / 'no'}")
        assert refused.exit_code != 0
        assert message in " ".join(refused.output.split())
