"""Files of a served graph that hold other bytes for a moment: what was computed meanwhile is used no more.

Answers are compared with those of the user's module on the graph.
"""

import os
import shutil

import numpy as np
import pytest
import torch

from hopline.graph import Graph, file_watch
from hopline.types import ScoreRequest
from tests import loaded_units_rig as rig
from tests.engine import zoo
from tests.packaged import package

#: More than what a model is warmed up with.
N = 3000
IDS = list(range(0, N, 9))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A repository with a model that reads all neighbours, and the module's answers."""
    root = tmp_path_factory.mktemp("written")
    rng = np.random.default_rng(1)
    edges, x = rng.integers(0, N, (2, 4 * N)), rng.standard_normal((N, 6)).astype(np.float32)
    torch.manual_seed(0)
    module = zoo.Plain().eval()
    graph = Graph.from_edges(edges, x).save(root / "graph")
    package(
        module, graph, root / "models", name="sage", version="1", fanouts=[-1, -1, -1], task="multiclass"
    )
    with torch.no_grad():
        return root, module(torch.from_numpy(x), torch.from_numpy(edges)).numpy()


@pytest.fixture
def root(made, tmp_path):
    return shutil.copytree(made[0], tmp_path / "root")


@pytest.fixture
def right(made):
    return made[1]


@pytest.fixture(autouse=True)
def blind(tmp_path, monkeypatch):
    """Folders' watches that see nothing while they are in this set; `None` stands for all."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(file_watch, "_LOOK_S", 0.02)
    found, real = set(), file_watch.FileWatch._compared
    monkeypatch.setattr(
        file_watch.FileWatch,
        "_compared",
        lambda self, run: "" if found & {None, self} else real(self, run),
    )
    return found


class Written:
    """The neighbours of a graph; other ones for a while."""

    def __init__(self, root):
        self.path = next(root.rglob("indices.npy"))
        self._right = self.path.read_bytes()
        ids = np.load(self.path)
        head = len(self._right) - ids.nbytes
        self._wrong = self._right[:head] + (N - 1 - ids).astype(ids.dtype).tobytes()

    def write(self, *, wrong):
        with self.path.open("r+b") as file:
            file.write(self._wrong if wrong else self._right)


async def differs(service, right):
    found = (await service.score(ScoreRequest("sage", nodes=IDS, outputs=("logits",)))).outputs["logits"]
    return float(np.abs(found - right[IDS]).max()) > 1e-4


async def until_right(service, right):
    async with rig.asyncio.timeout(30):
        while await differs(service, right):
            await rig.asyncio.sleep(0.02)


@pytest.mark.sample(1)
@pytest.mark.parametrize("settings", ["", "cache_bytes = 1000000"])
async def test_bytes_that_were_wrong_for_a_moment_leave_nothing(root, right, blind, settings):
    (root / "models" / "sage" / "serving.toml").write_text(settings)
    service, file = await rig.started(root), Written(root)
    blind.add(None)
    file.write(wrong=True)
    assert await differs(service, right)
    file.write(wrong=False)
    assert await differs(service, right)  # out of a cache
    blind.clear()
    await until_right(service, right)  # and never a refusal
    assert not await differs(service, right)
    await rig.stop(service)


@pytest.mark.release
async def test_a_model_in_a_separate_process_begins_anew(root, right):
    """The cached answers are here, and the files are read there: by a look each 2 s."""
    (root / "models" / "sage" / "serving.toml").write_text("isolate = true\ncache_bytes = 1000000\n")
    service, file = await rig.started(root), Written(root)
    before = service._lifecycle.loaded.served("sage", "1")
    assert not await differs(service, right)
    os.utime(file.path)
    async with rig.asyncio.timeout(30):
        while service._lifecycle.loaded.served("sage", "1") is before:
            assert not await differs(service, right)  # never a refusal
            await rig.asyncio.sleep(0.02)
    assert not await differs(service, right)
    await rig.stop(service)


async def test_a_load_after_damage_does_not_find_what_another_worker_cached(workers, root, right, blind):
    first, second = workers
    file = Written(root)
    blind.add(second._lifecycle.loaded._loaded["sage", "1"].files)
    file.write(wrong=True)
    assert await differs(second, right)
    await rig.until(lambda: not first.ready())
    file.write(wrong=False)
    await first.load("sage", "1")
    assert not await differs(first, right)
    blind.clear()
    await until_right(second, right)
    for worker in workers:
        assert not await differs(worker, right)


TOUCHES = {
    "touch": os.utime,
    "chmod": lambda path: path.chmod(0o600),
    "hard link": lambda path: os.link(path, f"{path}.2"),
}


@pytest.mark.parametrize("touch", TOUCHES)
async def test_a_touch_is_no_outage(root, right, touch):
    service = await rig.started(root)
    before = service._lifecycle.loaded.served("sage", "1")
    TOUCHES[touch](next(root.rglob("indices.npy")))
    async with rig.asyncio.timeout(30):
        while service._lifecycle.loaded.served("sage", "1") is before:
            assert service.ready()
            assert not await differs(service, right)
            await rig.asyncio.sleep(0.005)
    assert not await differs(service, right)
    await rig.stop(service)
