import asyncio
import contextlib
import os
import resource
import subprocess

import numpy as np
import pytest

from hopline.answering.served import Ran
from hopline.config.reader import load_config
from hopline.service import Service
from hopline.types import ModelInfo, ScoreRequest, ScoreResult
from tests.engine import zoo


@pytest.fixture(scope="session")
def places(tmp_path_factory):
    """A folder with a graph and two versions of a model, other weights each."""
    from tests.packaged import package

    root = tmp_path_factory.mktemp("records")
    graph = zoo.homogeneous(1).save(root / "graph")
    zoo.torch.set_num_threads(1)
    for seed, version in ((0, "1"), (1, "2")):
        zoo.torch.manual_seed(seed)
        package(
            zoo.Plain().eval(),
            graph,
            root / "models",
            name="plain",
            version=version,
            fanouts=[4, 3, 5],
            task="multiclass",
        )
    return root


@pytest.fixture
def config(places, tmp_path):
    """Settings of a server with a prediction log, changed by keywords."""

    def make(**settings):
        overrides = {
            "graph.path": places / "graph",
            "models.repository": places / "models",
            "models.state": tmp_path / "state",
            "prediction_log.path": tmp_path / "log",
        }
        return load_config(overrides={**overrides, **settings})

    return make


@contextlib.asynccontextmanager
async def logging_service(config):
    """A service that keeps a log; at the end all of it is written."""
    service = Service(config)
    await service.start()
    await service.load("plain", "1")
    try:
        yield service
    finally:
        service.begin_drain()
        assert await service.drain(5)
        await service.close()


async def until(condition, timeout_s=60.0):
    """Wait for what another thread does."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - threads have no asyncio.Event
            await asyncio.sleep(0.01)


class SmallDisk:
    """A folder on a disk that is soon full: a file system of 64 KiB where this process may mount one, else
    a limit on the size of files, which refuses writes in the same way."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
        self.mounted = os.geteuid() == 0 and not subprocess.call(mount, stderr=subprocess.DEVNULL)
        if not self.mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, self.limits[1]))

    def grow(self):
        """There is room again."""
        if self.mounted:
            subprocess.check_call(["mount", "-o", "remount,size=64m", str(self.folder)])
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, self.limits)

    def close(self):
        resource.setrlimit(resource.RLIMIT_FSIZE, self.limits)
        if self.mounted:
            subprocess.check_call(["umount", "-l", str(self.folder)])


@pytest.fixture
def small_disk(tmp_path):
    disk = SmallDisk(tmp_path / "disk")
    yield disk
    disk.close()


class FakeServed:
    """A version as far as the log asks it."""

    name, version, graph_version = "risk", "7", "snapshot"

    def info(self, versions):
        properties = {
            "artifact_hash": "a",
            "preprocessing_hash": "p",
            "feature_schema_hash": "f",
        }
        return ModelInfo(
            self.name, versions, self.version, "READY", "", "node", "int", (), (), (), "", properties
        )


def ran(served, *pairs, ended=1000.0, stages=None):
    """A batch: (request, outcome) each."""
    requests, outcomes = zip(*pairs, strict=True)
    return Ran(served, requests, outcomes, [0.001] * len(pairs), 0.002, stages or {}, ended)


def scored(number, rows=1):
    """A request and its answer."""
    scores = np.full((rows, 2), number, np.float32) / np.float32(7)
    request = ScoreRequest("risk", nodes=list(range(number, number + rows)), request_id=f"r{number}")
    return request, ScoreResult("risk", "7", "snapshot", {"probabilities": scores})
