"""kill -9 at any moment costs work, never a byte; another run's folder is left alone."""

import filecmp
import json
import multiprocessing
import signal

import msgspec
import pytest
import torch

from hopline.errors import BatchError, RunMismatch
from hopline.jobs.batch.journal import Mark, RunIdentity, RunManifest, WorkFolder
from hopline.jobs.batch.npy import NpyFolder
from hopline.jobs.batch.run import BatchRun
from tests.engine import zoo
from tests.graphs import power_law_graph
from tests.jobs.batch import dying
from tests.jobs.batch.conftest import score
from tests.packaged import package

#: Spans of 4,096 rows: three of them for each of three levels, with a word before each level.
NODES = 10_000
MOMENTS = [*range(1, 13, 2), "before commit", "after commit"]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    torch.manual_seed(1)
    graph = power_law_graph(NODES, 40_000, 6, seed=3, ids="string").save(folder / "graph")
    report = package(
        zoo.Plain().eval(), graph, folder / "r", name="p", fanouts=[4, 3, 5], task="multiclass"
    )
    return report.path, graph


@pytest.fixture(scope="module")
def whole(large, tmp_path_factory):
    """What a run writes that nothing disturbs."""
    folder, graph = large
    return score(folder, graph, tmp_path_factory.mktemp("whole") / "whole", outputs=("logits", "embedding"))


@pytest.mark.sample(2)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(large, whole, tmp_path, moment):
    folder, graph = large
    out = tmp_path / "out"
    spawn = multiprocessing.get_context("spawn")
    child = spawn.Process(target=dying.into_folder, args=(folder, graph.path, out, moment))
    child.start()
    child.join(300)
    assert child.exitcode == -signal.SIGKILL
    assert out.exists() == (moment == "after commit")  # never half a run
    found = score(folder, graph, out, outputs=("logits", "embedding"), checkpoint_s=0.0)
    names = sorted(path.name for path in whole.folder.iterdir())
    assert names == sorted(path.name for path in out.iterdir())
    assert filecmp.cmpfiles(whole.folder, out, names, shallow=False)[0] == names
    if not isinstance(moment, int) or moment > 3:  # marks lag by the span that is being told of
        assert found.report.resumed
        assert found.report.recomputed < whole.report.recomputed
    assert not (tmp_path / "out.run").exists()


class Stopped(Exception):
    pass


def stop_after(moment):
    told = 0

    def advance(label, done, total):
        nonlocal told
        told += 1
        if told == moment:
            raise Stopped

    return advance


def test_what_is_done_is_not_done_again(large, tmp_path):
    folder, graph = large
    with pytest.raises(Stopped):
        score(folder, graph, tmp_path / "out", advance=stop_after(11), checkpoint_s=0.0, threads=1)
    found = score(folder, graph, tmp_path / "out", checkpoint_s=0.0, threads=1)
    assert [level.level for level in found.report.levels] == [3]


def test_an_interrupted_run_of_other_inputs_is_refused_with_each_difference(large, tmp_path):
    folder, graph = large
    with pytest.raises(Stopped):
        score(folder, graph, tmp_path / "out", advance=stop_after(4), checkpoint_s=0.0)
    with pytest.raises(RunMismatch, match="exact was False and is now True") as raised:
        score(folder, graph, tmp_path / "out", exact=True)
    assert len(raised.value.differences) == 1
    found = score(folder, graph, tmp_path / "out", exact=True, restart=True)
    assert not found.report.resumed


def test_other_outputs_are_the_same_run(large, tmp_path):
    folder, graph = large
    with pytest.raises(Stopped):
        score(folder, graph, tmp_path / "out", advance=stop_after(6), checkpoint_s=0.0)
    assert score(folder, graph, tmp_path / "out", outputs=("label",)).report.resumed


def test_two_processes_do_not_work_in_one_folder(large, tmp_path):
    folder, graph = large
    run = BatchRun(folder, graph.path, tmp_path / "w")
    with pytest.raises(BatchError, match="another process uses"):
        BatchRun(folder, graph.path, tmp_path / "w")
    run.run(lambda: NpyFolder(tmp_path / "out"))


def manifest():
    return RunManifest(RunIdentity("m", "1", "h", "g", False), "/g")


def test_a_torn_last_mark_is_no_mark(tmp_path):
    work = WorkFolder(tmp_path / "w", manifest())
    work.mark([Mark(1, "node", 0, 10), Mark(1, "node", 10, 20)])
    work.close()
    log = tmp_path / "w" / "done.log"
    content = log.read_bytes()
    for length in range(len(content)):
        log.write_bytes(content[:length])
        work = WorkFolder(tmp_path / "w", manifest())
        lines = content[:length].count(b"\n")
        assert work.done(1, "node") == [[], [(0, 10)]][lines]
        work.mark([Mark(2, "node", 5, 6)])
        work.close()
        again = WorkFolder(tmp_path / "w", manifest())
        assert again.done(2, "node") == [(5, 6)]
        again.close()
        again.remove()
        WorkFolder(tmp_path / "w", manifest()).close()


def test_a_damaged_manifest_is_named_and_restart_gets_rid_of_it(tmp_path):
    WorkFolder(tmp_path / "w", manifest()).close()
    (tmp_path / "w" / "manifest.json").write_text("{")
    with pytest.raises(BatchError, match="damaged"):
        WorkFolder(tmp_path / "w", manifest())
    WorkFolder(tmp_path / "w", manifest(), restart=True).close()


def test_a_folder_with_something_else_in_it_is_not_cleared(tmp_path):
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "thesis.txt").write_text("")
    with pytest.raises(BatchError, match=r"thesis\.txt"):
        WorkFolder(tmp_path / "w", manifest(), restart=True)


def test_the_report_is_json(large, tmp_path):
    folder, graph = large
    report = score(folder, graph, tmp_path / "out").report
    told = json.loads(msgspec.json.encode(report))
    assert told["rows"] == NODES
    assert told["peak_rss_bytes"] > 0
