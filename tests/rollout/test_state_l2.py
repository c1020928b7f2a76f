"""Servers share rows of the state cache: the same answers, and no harm without the store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopline.config.reader import load_config
from hopline.engine.state_share import checksums, packed, whole
from hopline.features.memory import MemoryStore
from hopline.rollout import state_l2
from hopline.service import Service
from hopline.testing.faulty_store import FaultyStore
from hopline.types import ScoreRequest
from tests.engine import zoo

N = zoo.N


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from hopline.packaging import package

    root = tmp_path_factory.mktemp("states")
    graph = zoo.homogeneous(1).save(root / "graph")
    zoo.torch.manual_seed(0)
    zoo.torch.set_num_threads(1)
    package(zoo.Plain().eval(), graph, root / "models", name="plain", fanouts=[4, 3, 5], task="multiclass")
    return root


class AnyGroup(MemoryStore):
    """A store that takes rows of groups that were not created, as Redis does."""

    async def write(self, group: Any, ids: Any, values: Any) -> None:
        try:
            await self.describe(group.name)
        except LookupError:
            await self.create(group)
        await super().write(group, ids, values)

    async def fetch(self, group: Any, ids: Any) -> Any:
        try:
            return await super().fetch(group, ids)
        except LookupError:
            await self.create(group)
            return await super().fetch(group, ids)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FaultyStore:
    """L2, in memory; reading it always pays."""
    faulty = FaultyStore(AnyGroup())
    monkeypatch.setattr(state_l2, "open_store", lambda url, setting: faulty)
    monkeypatch.setattr(state_l2._Shared, "may_pay", True)
    monkeypatch.setattr(state_l2._Shared, "gain_s", lambda self, num_rows: 1.0)
    monkeypatch.setattr(state_l2.StateL2, "may_pay", lambda self, num_rows: True)
    monkeypatch.setattr(
        state_l2.StateStore,
        "round_trip_s",
        property(lambda self: 0.0, lambda self, new: None),
        raising=False,
    )
    return faulty


async def started(root: Path, **settings: object) -> Service:
    overrides = {
        "graph.path": root / "graph",
        "models.repository": root / "models",
        "state_cache.memory_bytes": 2**20,
        "state_cache.l2": "memory:",
        "state_cache.l2_timeout_ms": 1000.0,
        **settings,
    }
    service = Service(load_config(overrides=overrides))
    await service.start()
    return service


async def stop(service: Service) -> None:
    service.begin_drain()
    assert await service.drain(5)
    await service.close()


async def answers(service: Service) -> list[np.ndarray]:
    """Of all nodes, two at a time."""

    async def ask(i: int) -> np.ndarray:
        nodes = [f"n{i}", f"n{(i * 7) % N}"]
        result = await service.score(ScoreRequest("plain", nodes=nodes, outputs=("logits",)))
        assert result.degraded == ()
        return np.array(result.outputs["logits"])

    return list(await asyncio.gather(*[ask(i) for i in range(N)]))


def counted(service: Service, result: str) -> float:
    text = service.metrics.render().decode()
    lines = [line for line in text.splitlines() if line.startswith("hopline_state_l2_rows_total")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if f'result="{result}"' in line)


def same(found: list[np.ndarray], wanted: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


async def test_a_second_server_finds_what_the_first_one_computed(root: Path, store: FaultyStore) -> None:
    alone = await started(root, **{"state_cache.l2": ""})
    wanted = await answers(alone)
    await stop(alone)
    first = await started(root)
    assert same(await answers(first), wanted)
    for shared in l2_of(first)._shared.values():
        await shared.write_back.join()
    second = await started(root)
    assert same(await answers(second), wanted)
    assert counted(second, "hit") > counted(first, "hit")
    assert counted(second, "damaged") == 0
    await stop(first)
    await stop(second)


async def test_a_store_that_fails_harms_no_answer(root: Path, store: FaultyStore) -> None:
    alone = await started(root, **{"state_cache.l2": ""})
    wanted = await answers(alone)
    await stop(alone)
    store.kill()
    service = await started(root)
    assert same(await answers(service), wanted)
    assert counted(service, "hit") == 0
    await stop(service)


async def test_a_damaged_row_is_computed_instead(root: Path, store: FaultyStore) -> None:
    first = await started(root)
    wanted = await answers(first)
    for shared in l2_of(first)._shared.values():
        await shared.write_back.join()
        ids = np.arange(N)
        rows = await store._inner.fetch(shared.group, ids)
        rows.values[:, 0] += 1.0  # the checksum stays
        await store._inner.write(shared.group, ids[rows.found], rows.values[rows.found])
    second = await started(root)
    assert same(await answers(second), wanted)
    assert counted(second, "hit") == 0
    assert counted(second, "damaged") > 0
    await stop(first)
    await stop(second)


def test_a_row_is_whole_only_as_the_row_of_its_node_and_group() -> None:
    rng = np.random.default_rng(1)
    ids, rows = np.arange(50), rng.standard_normal((50, 7)).astype(np.float32)
    stored = packed(ids, rows, 17)
    assert whole(ids, stored, 17).all()
    assert not whole(ids, stored, 18).any()
    assert not whole(ids[::-1].copy(), stored, 17).any()
    for column in range(8):
        damaged = stored.copy()
        damaged.view(np.uint32)[:, column] ^= 1 << 22
        assert not whole(ids, damaged, 17).any()
    assert len(set(checksums(ids, np.zeros((50, 7), np.float32), 17).tolist())) == 50


def l2_of(service: Service) -> Any:
    served: Any = service._units("plain")["1"]
    while not hasattr(served, "computer"):
        served = served.inner
    return served.computer._l2
