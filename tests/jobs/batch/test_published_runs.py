"""Whole runs into every kind of place: the same rows as in `.npy` files, also after kill -9."""

import multiprocessing
import signal
from itertools import count

import numpy as np
import pytest
import torch

from hopline.jobs.batch.sink import Column
from tests.engine import zoo
from tests.graphs import power_law_graph
from tests.jobs.batch import dying
from tests.jobs.batch.conftest import score
from tests.jobs.batch.places import ParquetFolderPlace, ParquetPlace, StorePlace
from tests.packaged import package
from tests.redis_servers import redis_server  # noqa: F401

NODES = 10_000
OUTPUTS = ("probabilities", "label", "embedding")
NUMBERS = count()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    torch.manual_seed(1)
    graph = power_law_graph(NODES, 40_000, 6, seed=3, ids="string").save(folder / "graph")
    made = package(zoo.Plain().eval(), graph, folder / "r", name="p", fanouts=[4, 3, 5], task="multiclass")
    return made.path, graph


@pytest.fixture(params=["parquet", "folder", "redis"])
def place(request, tmp_path, redis_server):  # noqa: F811
    if request.param == "redis":
        return StorePlace(f"{redis_server.url}?prefix=run{next(NUMBERS)}:", ())
    return (ParquetPlace if request.param == "parquet" else ParquetFolderPlace)(tmp_path)


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    """The rows in `.npy` files."""
    folder, graph = model
    return score(folder, graph, tmp_path_factory.mktemp("whole") / "whole", outputs=OUTPUTS)


@pytest.mark.sample(3)
@pytest.mark.parametrize("moment", [0, 8, 11])
def test_a_run_is_published_whole(model, whole, place, tmp_path, moment):
    folder, graph = model
    place.columns = tuple(
        Column(name, whole[name].dtype.name, whole[name].shape[1] if whole[name].ndim == 2 else 0)
        for name in OUTPUTS
    )
    ids = graph.nodes["node"].ids.external(np.arange(NODES))
    if moment:
        spawn = multiprocessing.get_context("spawn")
        args = (folder, graph.path, tmp_path / "w.run", place.address, OUTPUTS, moment)
        child = spawn.Process(target=dying.into_sink, args=args)
        child.start()
        child.join(300)  # it compiles kernels, on a machine that may do other things
        assert child.exitcode == -signal.SIGKILL
        child.close()
        assert place.read(ids) is None
    dying.into_sink(folder, graph.path, tmp_path / "w.run", place.address, OUTPUTS, 0)
    found = place.read(ids)
    for name in OUTPUTS:
        np.testing.assert_array_equal(found[name], whole[name])
    assert not (tmp_path / "w.run").exists()
