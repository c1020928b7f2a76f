"""A server whose feature store fails answers with the student, says so and counts it."""

import asyncio
import shutil

import numpy as np
import pytest

from hopline.answering import sources as wiring
from hopline.config.reader import load_config
from hopline.features.base import FeatureGroup
from hopline.features.memory import MemoryStore
from hopline.models.local_repository import LocalRepository
from hopline.service import Service
from hopline.types import ScoreRequest
from hopline_compress.distill.run import Distillation, DistillOptions
from hopline_compress.distill.settings import Settings
from hopline_stores.repository import FsspecRepository
from hopline_stores.testing.faulty_store import FaultyStore
from packages.compress.tests.distill.places import DIM, N


@pytest.fixture(scope="module")
def distilled(places, tmp_path_factory):
    """The repository after `hopline distill`."""
    root = tmp_path_factory.mktemp("distilled") / "models"
    shutil.copytree(places.repository / "close", root / "close")
    settings = Settings(dropout=0.0, epochs=30)
    options = DistillOptions(force=True, settings=settings)
    Distillation(root / "close" / "1", places.root / "graph", root, options).run()
    return root


async def test_an_outage_leaves_the_student(places, distilled, monkeypatch):
    group = FeatureGroup("node", DIM)
    inner = MemoryStore()
    await inner.create(group)
    features = np.array(places.graph.nodes["node"].features)
    await inner.write(group, [f"n{i}" for i in range(N)], features)
    store = FaultyStore(inner)
    monkeypatch.setattr(wiring, "open_store", lambda url, setting: store)
    config = load_config(
        overrides={
            "graph.path": places.root / "graph",
            "models.repository": distilled,
            "features.store": "memory:",
            "features.memory_bytes": 2**22,
            "features.fetch_timeout_ms": 30.0,
            "state_cache.memory_bytes": 0,
        }
    )
    service = Service(config)
    await service.start()
    names = [f"n{i}" for i in range(20)]
    # the student itself brings these nodes' own rows near, and none of their neighbours'
    own = await service.score(ScoreRequest("close-student", nodes=names))
    assert own.degraded == ()
    store.hanging = True
    outcomes = await asyncio.gather(*[service.score(ScoreRequest("close", nodes=[name])) for name in names])
    by_student = [outcome for outcome in outcomes if outcome.degraded == ("student",)]
    assert len(by_student) > 10
    text = service.metrics.render().decode()
    store.heal()
    service.begin_drain()
    assert await service.drain(5)
    await service.close()
    assert f'hopline_degraded_answers_total{{model="close",reason="student"}} {len(by_student)}' in text


def test_a_student_travels_with_its_teacher_from_a_remote_repository(distilled, tmp_path):
    remote = FsspecRepository(f"file://{distilled}", tmp_path / "cache")
    folder = remote.fetch("close", "1")
    local = LocalRepository(distilled).fetch("close", "1")
    for name in ("student.json", "student.onnx"):
        assert (folder / name).read_bytes() == (local / name).read_bytes()
