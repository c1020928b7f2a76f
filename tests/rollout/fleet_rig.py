"""A service whose candidates misbehave on request, for tests of rollouts."""

import shutil

import numpy as np

from hopline.config import load_config
from hopline.errors import RuntimeFailure
from hopline.rollout.loader import Loader
from hopline.service import Service
from hopline.types import ScoreResult
from tests.engine import zoo


def repository(root):
    """A graph, and versions 1 and 2 of model sage with other weights, 3 with those of 1."""
    from hopline.packaging import package

    graph = zoo.homogeneous(1).save(root / "graph")
    options = {"name": "sage", "fanouts": [4, 3, 5], "task": "multiclass", "check_nodes": 20}
    for version in ("1", "2"):
        zoo.torch.manual_seed(int(version))
        package(zoo.Sage().eval(), graph, root / "models", version=version, **options)
    copy_version(root / "models", "1", "3")
    return root


def copy_version(models, version, name):
    folder = models / "sage" / name
    shutil.copytree(models / "sage" / version, folder)
    text = (folder / "model.json").read_text().replace(f'"version": "{version}"', f'"version": "{name}"')
    (folder / "model.json").write_text(text)
    return folder


def spoil(served, fault):
    """Make a loaded version fail, or answer other things ("errors", "shifted")."""
    run = served.batcher._run

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

    served.batcher._run = spoilt
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


async def started(root, **settings):
    service = Service(config(root, **settings))
    await service.start()
    return service


async def stop(service):
    service.begin_drain()
    assert await service.drain(10)
    await service.close()
