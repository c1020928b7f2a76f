"""What cannot be run is refused before anything is written, with what would be right."""

import importlib.metadata
import shutil
import signal

import msgspec
import numpy as np
import pytest

from hopline.artifact import REPEATED, read_spec, sha256_of, write_spec
from hopline.errors import ArtifactError, BadRequest, BatchError, NodeNotFound, SchemaMismatch, SinkError
from hopline.graph import Graph
from hopline.jobs.batch.nodes_file import read_nodes
from hopline.jobs.batch.npy import NpyFolder
from hopline.jobs.batch.registry import open_engine, open_sink, work_folder
from hopline.jobs.batch.run import BatchRun
from tests.engine import zoo
from tests.graph.live.conftest import SmallDisk
from tests.jobs.batch.conftest import score


def test_an_unknown_output_is_named_with_those_there_are(cases, tmp_path):
    case = cases["sage"]
    with pytest.raises(BadRequest, match="has no output 'scores'; a batch run can write embedding, logits"):
        score(case.folder, case.graph, tmp_path / "out", outputs=("label", "scores"))
    assert not list(tmp_path.iterdir())


def test_scores_of_pairs_are_no_output_of_nodes(cases, tmp_path):
    case = cases["link"]
    with pytest.raises(BadRequest, match="scores of pairs are not rows of nodes"):
        score(case.folder, case.graph, tmp_path / "out", outputs=("probabilities",))


def test_a_graph_of_another_schema_is_refused(cases, tmp_path):
    graph = Graph.from_edges([[0], [1]], np.ones((3, 4), np.float32)).save(tmp_path / "graph")
    with pytest.raises(SchemaMismatch):
        score(cases["sage"].folder, graph, tmp_path / "out")


def test_edges_on_whose_absence_answers_rely_are_refused(cases, tmp_path):
    case = cases["sage"]
    folder = shutil.copytree(case.folder, tmp_path / "sage" / "1")
    spec = read_spec(folder)
    relied_on = dict.fromkeys(spec.fanouts, (REPEATED,))
    write_spec(folder, msgspec.structs.replace(spec, edges_without=relied_on))
    with pytest.raises(SchemaMismatch, match="has no repeated edges, and its answers rely on that"):
        score(folder, case.graph, tmp_path / "out")


def test_unknown_nodes_are_all_named(cases, tmp_path):
    case = cases["sage"]
    with pytest.raises(NodeNotFound) as raised:
        score(case.folder, case.graph, tmp_path / "out", nodes=["n1", "who", "n2", "what"])
    assert raised.value.missing == ("who", "what")


def test_a_table_model_has_no_nodes(tmp_path, cases):
    folder = tmp_path / "table"
    folder.mkdir()
    spec = {"kind": "tabular", "name": "t", "version": "1", "task": "binary", "columns": []}
    (folder / "model.onnx").write_bytes(b"")
    files = {"model.onnx": sha256_of(folder / "model.onnx")}
    spec |= {"outputs": ["label"], "output_dim": 2, "files": files}
    (folder / "model.json").write_bytes(msgspec.json.encode(spec))
    with pytest.raises(ArtifactError, match="is a tabular model; a graph model is needed"):
        score(folder, cases["sage"].graph, tmp_path / "out")


def test_an_engine_that_is_unknown_is_named(cases):
    with pytest.raises(BadRequest, match=r"'spark' is unknown; choose one of .*local"):
        open_engine("spark", cases["sage"].graph, None, 1)


def test_an_address_is_for_a_cluster(cases):
    with pytest.raises(BadRequest, match="--engine local has no cluster"):
        open_engine("local", cases["sage"].graph, None, 0, address="10.0.0.1:6379")


def test_an_engine_whose_package_is_missing_names_the_extra(cases, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [])
    with pytest.raises(BadRequest, match=r"--engine ray needs a package: pip install 'hopline\[ray\]'"):
        open_engine("ray", cases["sage"].graph, None, 0)


@pytest.mark.parametrize("address", ["/tmp/x", "nope:/x", ""])
def test_an_address_that_names_no_sink_is_refused_with_those_there_are(address):
    with pytest.raises(SinkError, match="npy:…"):
        open_sink(address)


def test_a_sink_whose_package_is_missing_names_what_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [])
    with pytest.raises(SinkError, match=r"--to dynamodb: needs .* 'hopline\[dynamodb\]'"):
        open_sink("dynamodb://table")


def test_the_work_folder_is_beside_a_path_and_here_for_a_store():
    assert str(work_folder("npy:/data/out/", "r")) == "/data/out.run"
    assert str(work_folder("/data/x.precomputed", "r")) == "/data/x.precomputed.run"
    assert str(work_folder("redis://h/0", "batch-m-1")) == "batch-m-1.run"


def test_a_folder_that_is_no_table_is_not_replaced(cases, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    case = cases["sage"]
    with pytest.raises(SinkError, match="is not a table of a batch run"):
        score(case.folder, case.graph, tmp_path / "out")
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years of work"


def test_a_table_that_is_there_is_replaced_only_at_the_end(cases, tmp_path):
    case = cases["sage"]
    before = score(case.folder, case.graph, tmp_path / "out", outputs=("label",))["label"]
    seen = []

    def advance(label, done, total):
        seen.append((tmp_path / "out" / "label.npy").exists())

    score(case.folder, case.graph, tmp_path / "out", outputs=("logits",), advance=advance)
    assert all(seen)
    assert len(before) == zoo.N
    assert not (tmp_path / "out" / "label.npy").exists()
    assert (tmp_path / "out" / "logits.npy").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n\ntwo\n", "line 3: 'two' is not an integer"),
        ("1_0\n", "line 1: '1_0' is not an integer"),
        ("1\n010\n", "line 2: '010' is not an integer"),
        ("\n", "no ids"),
        (None, "No such"),
    ],
)
def test_a_bad_file_of_nodes_is_named_with_the_line(tmp_path, text, message):
    path = tmp_path / "ids.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadRequest, match=message):
        read_nodes(path, "int")


def test_nodes_come_from_text_or_an_array(tmp_path):
    (tmp_path / "a.txt").write_text(" n1 \nn2\n")
    assert read_nodes(tmp_path / "a.txt", "string") == ["n1", "n2"]
    (tmp_path / "a.txt").write_text("\ufeff5\r\n-6", "utf-8")
    assert read_nodes(tmp_path / "a.txt", "int") == [5, -6]
    (tmp_path / "a.txt").write_text("a\u2028b\nc", "utf-8")
    assert read_nodes(tmp_path / "a.txt", "string") == ["a\u2028b", "c"]
    np.save(tmp_path / "b.npy", np.array([3, 1]))
    assert read_nodes(tmp_path / "b.npy", "int") == [3, 1]
    np.save(tmp_path / "c.npy", np.ones(2))
    with pytest.raises(BadRequest, match="float64"):
        read_nodes(tmp_path / "c.npy", "int")
    np.save(tmp_path / "d.npy", np.ones((2, 1), np.int64))
    with pytest.raises(BadRequest, match=r"int64 \[2, 1\]; expected integers or strings of one dimension"):
        read_nodes(tmp_path / "d.npy", "int")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npy", b"not an array", "not an array of ids"),
        ("a.txt", b"\xff\xfe1", "not UTF-8 text"),
        ("a.npy", None, "No such file"),
    ],
)
def test_a_file_of_nodes_in_another_format_is_named_with_its_option(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadRequest, match=f"--nodes .*{name}: {message}"):
        read_nodes(tmp_path / name, "int")


@pytest.fixture
def small_disk(tmp_path):
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    disk = SmallDisk(tmp_path / "disk")
    try:
        yield disk
    finally:
        disk.close()
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_full_disk_keeps_what_is_done_and_the_same_command_goes_on(tmp_path, small_disk):
    """Of 4 MiB: the states do not fit until it grows."""
    import torch

    from hopline.packaging import package
    from tests.graphs import power_law_graph

    torch.manual_seed(1)
    graph = power_law_graph(40_000, 80_000, 6, seed=3).save(tmp_path / "graph")
    report = package(
        zoo.Plain().eval(), graph, tmp_path / "r", name="p", fanouts=[4, 3, 5], task="multiclass"
    )
    whole = score(report.path, graph, tmp_path / "whole", outputs=("logits",))
    out = small_disk.folder / "out"
    with pytest.raises((BatchError, SinkError), match=r"(free some space|fix this)"):
        score(report.path, graph, out, outputs=("logits",), checkpoint_s=0.0)
    assert not out.exists()
    small_disk.grow()
    found = score(report.path, graph, out, outputs=("logits",), checkpoint_s=0.0)
    assert (found["logits"] == whole["logits"]).all()


def test_a_sink_that_fails_leaves_the_states(cases, tmp_path):
    class Broken(NpyFolder):
        def commit(self):
            raise SinkError("no")

    case = cases["sage"]
    work = tmp_path / "w"
    with pytest.raises(SinkError):
        BatchRun(case.folder, case.graph.path, work).run(lambda: Broken(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.partial").exists()
    BatchRun(case.folder, case.graph.path, work).run(lambda: NpyFolder(tmp_path / "out"))
    assert (tmp_path / "out" / "label.npy").exists()
    assert not work.exists()
