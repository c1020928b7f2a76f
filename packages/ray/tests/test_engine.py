"""Runs on a Ray cluster of two nodes: the same bytes as on threads, whatever dies meanwhile."""

import filecmp
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from hopline.artifact import read_spec
from hopline.errors import BatchError
from hopline_ray import engine as ray_engine
from hopline_ray import task as ray_task
from hopline_ray.engine import RayEngine
from packages.ray.tests import computes as ray_computes
from tests.engine import zoo
from tests.graphs import power_law_graph
from tests.jobs.batch import dying
from tests.jobs.batch.conftest import score
from tests.packaged import package

# Ray's own; the driver's sockets and the cluster's pipes are closed by the collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

#: Tasks of one span of 4,096 rows.
NODES = 60_000
OUTPUTS = ("logits", "embedding")
STORE_BYTES = 80 << 20
#: A node that is gone is missed after a second, not after half a minute.
QUICK = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 3,
    # Processes that have been started are kept for the next test.
    "idle_worker_killing_time_threshold_ms": 600_000,
    "num_workers_soft_limit": 8,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray-model")
    torch.manual_seed(1)
    graph = power_law_graph(NODES, 3 * NODES, 6, seed=3, ids="string").save(folder / "graph")
    made = package(zoo.Plain().eval(), graph, folder / "r", name="p", fanouts=[4, 3, 5], task="multiclass")
    return made.path, graph


@pytest.fixture(scope="module")
def cluster():
    """A head of one processor; tests add nodes."""
    import ray
    from ray.cluster_utils import Cluster

    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # sockets have short paths
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        # Whatever `temp_dir` is, Ray notes the cluster's address in this folder, and does not make it.
        patch.setenv("RAY_TMPDIR", str(folder))
        (folder / "ray").mkdir()
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        patch.delenv("RAY_ADDRESS", raising=False)
        started = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 1,
                "object_store_memory": STORE_BYTES,
                "include_dashboard": False,
                "temp_dir": str(folder),
                "_system_config": QUICK,
            },
        )
        try:
            # Runs of this process share a connection, and so the processes that have been started for it.
            ray.init(address=started.address, log_to_driver=False, logging_level="warning")
            yield started
        finally:
            ray.shutdown()
            started.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def second(cluster):
    """A second node, which a test may kill."""
    node = cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
    yield node
    if node in cluster.list_all_nodes():
        cluster.remove_node(node, allow_graceful=False)


@pytest.fixture
def small_tasks(monkeypatch):
    """One span a task."""
    monkeypatch.setattr(ray_engine, "_TASK_BYTES", 1)


def check_same(a, b):
    names = sorted(path.name for path in a.iterdir())
    assert names == sorted(path.name for path in b.iterdir())
    assert filecmp.cmpfiles(a, b, names, shallow=False)[0] == names


def raylet_of(node):
    """The process that manages a node's processes, which are its children and end with it."""
    (raylet,) = node.all_processes["raylet"]
    return raylet.process.pid


@pytest.mark.release
def test_a_node_that_is_killed_costs_no_byte(model, cluster, second, small_tasks, tmp_path, monkeypatch):
    folder, graph = model
    whole = score(folder, graph, tmp_path / "whole", outputs=OUTPUTS)
    monkeypatch.setattr(ray_task, "compute", ray_computes.compute_when_both_work)
    raylet, told, both = raylet_of(second), [], []

    def advance(label, done, total):
        told.append((label, done))
        if len(told) == 5:  # in the middle of the first level
            both.extend(path.name for path in (tmp_path / "out.run" / "states").glob("by-*"))
            os.kill(raylet, signal.SIGKILL)

    found = score(
        folder,
        graph,
        tmp_path / "out",
        outputs=OUTPUTS,
        engine=RayEngine,
        advance=advance,
        checkpoint_s=0.0,
    )
    assert f"by-{raylet}" in both
    assert len(both) == 2
    assert 0 < told[4][1] < NODES
    assert found.report.recomputed == 3 * NODES  # each row was told of once
    check_same(whole.folder, found.folder)


@pytest.mark.release
def test_a_killed_driver_goes_on_where_it_was(model, cluster, tmp_path):
    folder, graph = model
    whole = score(folder, graph, tmp_path / "whole", outputs=OUTPUTS)
    out = tmp_path / "out"
    spawn = multiprocessing.get_context("spawn")
    engine = partial(RayEngine, address=cluster.address)
    child = spawn.Process(target=dying.into_folder, args=(folder, graph.path, out, 20, engine))
    child.start()
    child.join(300)
    assert child.exitcode == -signal.SIGKILL
    assert not out.exists()
    found = score(folder, graph, out, outputs=OUTPUTS, engine=RayEngine)
    assert found.report.resumed
    assert 0 < found.report.recomputed < 3 * NODES
    check_same(whole.folder, out)


@pytest.mark.release
def test_nodes_named_and_exact(model, cluster, tmp_path):
    folder, graph = model
    nodes = graph.nodes["node"].ids.external(np.arange(0, NODES, 7))
    options = {"outputs": OUTPUTS, "nodes": nodes, "exact": True, "memory_bytes": 8 << 30}
    whole = score(folder, graph, tmp_path / "whole", **options)
    check_same(whole.folder, score(folder, graph, tmp_path / "out", engine=RayEngine, **options).folder)


def test_a_machine_that_does_not_see_the_files_says_so(model, cluster, tmp_path, monkeypatch):
    folder, graph = model
    monkeypatch.setattr(ray_task, "compute", ray_computes.compute_elsewhere)
    message = "cannot read /elsewhere/model.json .* must be on a file system that all machines"
    with pytest.raises(BatchError, match=message):
        score(folder, graph, tmp_path / "out", engine=RayEngine)


def test_a_task_that_ends_its_process_each_time_ends_the_run(model, cluster, tmp_path, monkeypatch):
    folder, graph = model
    monkeypatch.setattr(ray_task, "compute", ray_computes.compute_and_die)
    monkeypatch.setattr(ray_engine, "_RETRIES", 0)
    with pytest.raises(BatchError, match=r"rows 0 to .*, tried 1 times .*start the same command again"):
        score(folder, graph, tmp_path / "out", engine=RayEngine)


@pytest.mark.parametrize("address", ["ray-nowhere", "127.0.0.1:1", "ray://[::1]:1"])
def test_no_cluster_at_the_address(model, monkeypatch, address):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(BatchError, match=r"no Ray cluster at .*--ray-address"):
        RayEngine(model[1], read_spec(model[0]), address=address)
