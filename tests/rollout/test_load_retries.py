"""A load whose failure may pass is repeated until it succeeds, or is not wanted any more."""

import asyncio
import shutil
import time

import pytest

from hopline.answering.unit import Unit
from hopline.errors import (
    ArtifactCorrupted,
    FeatureStoreUnavailable,
    GraphStoreUnavailable,
    ModelNotReady,
    RepositoryUnavailable,
)
from hopline.models import graph_version
from hopline.models.graph_kind import GraphKind
from hopline.models.load import Load
from hopline.models.model_inputs import SharedInputs
from hopline.observe.metrics import Metrics
from hopline.rollout import loaded_units
from hopline.rollout.loaded_units import LoadedUnits
from hopline.rollout.rollout import RolloutRequest
from hopline.rollout.state import LifecycleState, ModelState
from hopline.types import ScoreRequest
from tests import loaded_units_rig as rig
from tests.rollout.stub_workers import Answers

PIPELINE = """
[inputs]
nodes = true
[[step]]
id = "a"
kind = "model"
model = "sage"
nodes = "input.nodes"
[outputs]
score = "a.embedding"
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return rig.repository(tmp_path_factory.mktemp("retries"))


@pytest.fixture
def root(source, tmp_path):
    return shutil.copytree(source, tmp_path / "root")


@pytest.fixture
def soon(monkeypatch):
    """Loads are repeated after a moment."""
    monkeypatch.setattr(loaded_units, "_FIRST_S", 0.001)


class Store:
    """Something that models need to load, and that does not answer at first."""

    def __init__(self, patch, owner, method, error):
        self.error, self.calls = error, 0
        self.is_up = False
        healthy = getattr(owner, method)

        async def waiting(*args):
            self.check()
            return await healthy(*args)

        def blocking(*args):
            self.check()
            return healthy(*args)

        is_async = asyncio.iscoroutinefunction(healthy)
        patch.setattr(owner, method, waiting if is_async else blocking)

    def check(self):
        self.calls += 1
        if not self.is_up:
            raise self.error


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def ask(**kwargs):
    return ScoreRequest("sage", nodes=["n1"], **kwargs)


@pytest.mark.parametrize("error", [FeatureStoreUnavailable("slow"), GraphStoreUnavailable("slow")])
async def test_a_version_that_fails_while_its_store_stalls_serves_when_it_is_back(
    root, soon, monkeypatch, error
):
    store = Store(monkeypatch, graph_version, "_made", error)
    service = await rig.started(root, **{"models.required": "none"})
    served = service._lifecycle.loaded
    await until(lambda: served.failed["sage", "3"].attempts >= 3)
    with pytest.raises(
        ModelNotReady, match=rf"sage/3 is not ready: {error.code}: slow \(attempt \d+ failed"
    ):
        await service.score(ask())
    assert not service.ready()
    assert "next one is in" in service.unavailable()["sage"]
    assert f'model="sage",version="3",code="{error.code}"' in service.metrics.render().decode()
    store.is_up = True
    await until(service.ready)
    assert (await service.score(ask())).version == "3"
    await until(lambda: not served.failed)
    assert 'hopline_model_unavailable{model="sage",version="3"} 0' in service.metrics.render().decode()
    await service.unload("sage", "1")
    store.is_up = False
    with pytest.raises(type(error)):  # a load that a person asks for: refused, and nothing changes
        await service.load("sage", "1")
    assert not served.failed
    await rig.stop(service)


@pytest.mark.parametrize(
    ("owner", "method", "error"),
    [
        (SharedInputs, "_open_graph", GraphStoreUnavailable("no connection")),
        (SharedInputs, "_open_sources", FeatureStoreUnavailable("no connection")),
    ],
)
async def test_a_server_starts_while_its_own_store_is_down_if_no_model_is_required(
    root, soon, monkeypatch, owner, method, error
):
    store = Store(monkeypatch, owner, method, error)
    for required in ("any", "all"):
        with pytest.raises(type(error), match="no connection"):
            await rig.started(root, **{"models.required": required})
    service = await rig.started(root, **{"models.required": "none"})
    assert not service.ready()
    assert set(service.unavailable()) == {"sage"}
    store.is_up = True
    await until(lambda: len(service._lifecycle.loaded.units.get("sage", {})) == 3)
    assert service.ready()
    assert (await service.score(ask())).version == "3"
    await rig.stop(service)


async def test_a_setting_that_is_wrong_ends_the_start_whatever_is_required(root):
    with pytest.raises(Exception, match=r"graph\.path"):
        await rig.started(root, **{"graph.path": root / "absent", "models.required": "none"})


async def test_a_candidate_is_not_rolled_back_while_its_store_is_away(root, soon, monkeypatch, tmp_path):
    state = {"models.state": tmp_path / "state", "models.names": ("sage",)}
    service = await rig.started(root, **state)
    await service.load("sage", "1")
    await service.begin_rollout(
        RolloutRequest("sage", "2", steps=(50.0, 100.0), min_step_s=60, preflight=0)
    )
    await rig.stop(service)
    load_graph, down = GraphKind.load, [True]

    async def failing(kind, load, folder, limits, tools):
        if load.unit.version == "2" and down[0]:
            raise FeatureStoreUnavailable("slow")
        await load_graph(kind, load, folder, limits, tools)

    monkeypatch.setattr(GraphKind, "load", failing)
    service = await rig.started(root, **state)
    assert service.describe_rollout("sage")["rollout"]["candidate"] == "2"
    assert (await service.score(ask())).version == "1"
    down[0] = False
    await until(lambda: "2" in service._lifecycle.loaded.units["sage"])
    assert service.describe_rollout("sage")["rollout"]["candidate"] == "2"
    await rig.stop(service)


class Units:
    """Units whose loads take no time, on a clock that the test moves."""

    def __init__(self, error):
        self.errors = [error] * 100
        self.loads = 0
        self.loaded = LoadedUnits(self, self, lambda: None, Metrics())
        self.leave = self.forget = lambda *names: None

    async def load(self, name, unit):
        self.loads += 1
        if self.errors:
            raise self.errors.pop()
        made = Load(name, unit)
        made.served = Answers(unit.id)
        return made

    def adopt(self, *units, generation):
        state = ModelState(tuple(Unit(unit) for unit in units), "".join(units))
        self.loaded.adopt(LifecycleState(generation, {"m": state}))

    @property
    def wait_s(self):
        next_at = self.loaded.failed["m", "1"].next_at
        return None if next_at is None else next_at - time.monotonic()


async def test_the_waits_between_loads_grow_to_half_a_minute():
    units = Units(RepositoryUnavailable("away"))
    units.adopt("1", generation=1)
    waits = []
    for attempt in range(1, 12):
        await until(lambda: ("m", "1") in units.loaded.failed and not units.loaded._tasks)
        failure = units.loaded.failed["m", "1"]
        assert failure.attempts == units.loads == attempt
        waits.append(units.wait_s)
        failure.timer.cancel()
        units.loaded._try_again("m", "1")
        await until(lambda attempt=attempt: units.loads > attempt)
    for wait_s, longest_s in zip(waits, (0.5, 1, 2, 4, 8, 16, 30, 30, 30, 30, 30), strict=True):
        assert longest_s / 2 - 0.1 < wait_s <= longest_s
    await units.loaded.close()


async def test_a_pipeline_serves_when_the_model_of_a_step_does(root, soon, monkeypatch):
    folder = root / "models" / "doubled" / "1"
    folder.mkdir(parents=True)
    (folder / "pipeline.toml").write_text(PIPELINE)
    store = Store(monkeypatch, graph_version, "_made", FeatureStoreUnavailable("slow"))
    service = await rig.started(root, **{"models.required": "none"})
    assert "step 'a': sage/3 is not ready: feature_store_unavailable" in service.unavailable()["doubled"]
    store.is_up = True
    await until(lambda: not service.unavailable())
    assert (await service.score(ScoreRequest("doubled", nodes=["n1"]))).model == "doubled"
    await rig.stop(service)


async def test_a_failure_that_cannot_pass_is_not_repeated():
    units = Units(ArtifactCorrupted("sha256"))
    units.adopt("1", generation=1)
    await until(lambda: ("m", "1") in units.loaded.failed)
    assert units.wait_s is None
    assert units.loaded.why("m", "1") == "artifact_corrupted: sha256"
    await units.loaded.close()


@pytest.mark.parametrize("end", ["unloaded", "closed", "loaded by a person"])
async def test_nothing_is_repeated_after_the_end_of_the_need(end):
    units = Units(RepositoryUnavailable("away"))
    units.adopt("1", generation=1)
    await until(lambda: ("m", "1") in units.loaded.failed)
    timer = units.loaded.failed["m", "1"].timer
    if end == "unloaded":
        units.adopt(generation=2)
    elif end == "closed":
        await units.loaded.close()
    else:
        units.errors.clear()
        await units.loaded.load("m", Unit("1"))
        assert "m" in units.loaded.serving
    assert timer.cancelled()
    await units.loaded.close()
