"""A service whose candidates misbehave on request, for tests of rollouts."""

import asyncio
import shutil

import numpy as np

from hopline.config.reader import load_config
from hopline.errors import RuntimeFailure
from hopline.models.loader import Loader
from hopline.service import Service
from hopline.types import ScoreRequest, ScoreResult
from tests.engine import zoo


def repository(root):
    """A graph, and versions 1 and 2 of model sage with other weights, 3 with those of 1."""
    from tests.packaged import package

    graph = zoo.homogeneous(1).save(root / "graph")
    options = {"name": "sage", "fanouts": [4, 3, 5], "task": "multiclass", "check_nodes": 20}
    for version in ("1", "2"):
        zoo.torch.manual_seed(int(version))
        package(zoo.Sage().eval(), graph, root / "models", version=version, **options)
    copy_version(root / "models", "1", "3")
    return root


def publish(root, version):
    """Put a version that lies beside the root into its repository."""
    shutil.copytree(root.parent / version, root / "models" / "sage" / version)


async def version_of(service, **kwargs):
    return (await service.score(ScoreRequest("sage", nodes=["n1"], **kwargs))).version


async def until(condition, timeout_s=60.0):
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the state is a file, looked at many times a second
            await asyncio.sleep(0.02)


class Gate:
    """Holds loads of some units until it is opened."""

    def __init__(self, monkeypatch, *unit_ids, workers=None):
        self.held = 0
        self._open = asyncio.Event()
        load = Loader.load

        async def gated(loader, model, unit):
            if unit.id in unit_ids and (workers is None or loader.config.worker.index in workers):
                self.held += 1
                await self._open.wait()
            return await load(loader, model, unit)

        monkeypatch.setattr(Loader, "load", gated)

    def open(self):
        self._open.set()


def copy_version(models, version, name):
    folder = models / "sage" / name
    shutil.copytree(models / "sage" / version, folder)
    text = (folder / "model.json").read_text().replace(f'"version": "{version}"', f'"version": "{name}"')
    (folder / "model.json").write_text(text)
    return folder


def spoil(served, fault):
    """Make a loaded version fail, or answer other things ("errors", "shifted")."""
    run = served.queue._run

    def spoilt(batch):
        if fault == "errors":
            raise RuntimeFailure("broken on purpose")
        return [
            ScoreResult(
                outcome.model,
                outcome.version,
                outcome.graph_version,
                {name: np.roll(values, 1, axis=-1) for name, values in outcome.outputs.items()},
            )
            for outcome in run(batch)
        ]

    served.queue._run = spoilt
    return served


class Faults:
    """Which units misbehave; patch `Loader.load` with it."""

    def __init__(self, monkeypatch):
        self.of = {}
        load = Loader.load

        async def loaded(loader, model, unit):
            found = await load(loader, model, unit)
            if unit.id in self.of:
                spoil(found.served, self.of[unit.id])
            return found

        monkeypatch.setattr(Loader, "load", loaded)


def config(root, **settings):
    overrides = {"graph.path": root / "graph", "models.repository": root / "models"}
    return load_config(overrides={**overrides, **settings})


async def begin(service):
    """Start a service; one that refuses to start is closed, as a server closes it."""
    try:
        await service.start()
    except BaseException:
        await service.close()
        raise
    return service


async def started(root, **settings):
    return await begin(Service(config(root, **settings)))


async def stop(service):
    service.begin_drain()
    assert await service.drain(10)
    await service.close()
