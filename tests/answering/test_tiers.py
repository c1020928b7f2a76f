"""L1, a real Redis as L2 and Parquet files as the origin, together in one service."""

import asyncio
import time
from functools import partial

import numpy as np
import pytest

from hopline.answering import sources as wiring
from hopline.answering.sources import Sources
from hopline.config.reader import load_config
from hopline.features.base import FeatureGroup
from hopline.features.registry import open_store
from hopline.service import Service
from hopline.types import ScoreRequest
from tests.engine import zoo
from tests.redis_servers import redis_process

N = zoo.N


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    from tests.packaged import package

    root = tmp_path_factory.mktemp("tiers")
    graph = zoo.homogeneous(1).save(root / "graph")
    zoo.torch.manual_seed(0)
    zoo.torch.set_num_threads(1)
    package(zoo.Plain().eval(), graph, root / "models", name="plain", fanouts=[4, 3, 5], task="multiclass")
    (root / "rows").mkdir()

    async def write():
        store = open_store(f"parquet://{root / 'rows'}")
        await store.open()
        group = FeatureGroup("node", 6)
        await store.create(group)
        await store.write(
            group, [f"n{i}" for i in range(N)], np.array(graph.nodes["node"].features, np.float32)
        )
        await store.close()

    asyncio.run(write())
    return root


@pytest.fixture
def own_redis():
    with redis_process() as server:
        yield server


async def started(places, **settings):
    overrides = {
        "graph.path": places / "graph",
        "models.repository": places / "models",
        "features.store": f"parquet://{places / 'rows'}",
        "features.memory_bytes": 2**22,
        "features.fetch_timeout_ms": 2000.0,
        "state_cache.memory_bytes": 0,
    }
    service = Service(load_config(overrides={**overrides, **settings}))
    await service.start()
    return service


async def answers(service):
    results = await asyncio.gather(
        *[service.score(ScoreRequest("plain", nodes=[f"n{i}"], outputs=("logits",))) for i in range(N)]
    )
    assert [result.degraded for result in results] == [()] * N
    return np.concatenate([result.outputs["logits"] for result in results])


async def stop(service):
    service.begin_drain()
    assert await service.drain(5)
    await service.close()


def rows(service, tier, result="found"):
    text = service.metrics.render().decode()
    name = f'hopline_feature_rows_total{{tier="{tier}",result="{result}"}} '
    return sum(float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name))


async def test_rows_come_from_the_nearest_tier_that_has_them(places, own_redis):
    first = await started(places, **{"features.cache": own_redis.url})
    expected = await answers(first)
    assert rows(first, "origin") == N
    await first.sources.l1_rows["node"].client.join()  # the copies to L2
    await stop(first)

    second = await started(places, **{"features.cache": own_redis.url})
    assert (await answers(second) == expected).all()
    assert rows(second, "l2") == N
    assert rows(second, "origin") == 0
    assert (await answers(second) == expected).all()
    assert rows(second, "l2") == N  # now near
    await stop(second)


async def test_an_l2_that_dies_is_stepped_over(places, own_redis, monkeypatch):
    passed_s = 0.0
    monkeypatch.setattr(wiring, "Sources", partial(Sources, clock=lambda: time.monotonic() + passed_s))
    service = await started(places, **{"features.cache": own_redis.url})
    expected = await answers(service)
    own_redis.kill()
    passed_s = 601.0  # L1's rows have expired
    assert (await answers(service) == expected).all()
    own_redis.start()
    await stop(service)
