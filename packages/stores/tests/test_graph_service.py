"""A server whose edges lie in a cluster: the same answers, and 503 while a master is away."""

import asyncio

import numpy as np
import pytest

from hopline.config.reader import load_config
from hopline.errors import BadRequest, ConfigError, GraphStoreUnavailable
from hopline.service import Service
from hopline.types import ScoreRequest
from hopline_stores.redis.graph_push import push
from packages.stores.tests.test_graph import cluster_url
from tests import loaded_units_rig as rig
from tests.engine import zoo
from tests.packaged import package

N = zoo.N


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    root = tmp_path_factory.mktemp("stored")
    graph = zoo.homogeneous(1).save(root / "graph")
    zoo.torch.manual_seed(0)
    zoo.torch.set_num_threads(1)
    package(zoo.Plain().eval(), graph, root / "models", name="plain", fanouts=[4, 3, 5], task="multiclass")
    return root, graph


async def started(places, **settings):
    root, _ = places
    overrides = {"models.repository": root / "models", "graph.cache": root / "cache"}
    overrides["graph.fetch_timeout_ms"] = 30_000.0
    return await rig.begin(Service(load_config(overrides={**overrides, **settings})))


async def stop(service):
    service.begin_drain()
    assert await service.drain(5)
    await service.close()


@pytest.fixture
async def expected(places):
    service = await started(places, **{"graph.path": places[0] / "graph"})
    ids = [f"n{i}" for i in range(N)]
    result = await service.score(ScoreRequest("plain", nodes=ids, outputs=("logits",)))
    await stop(service)
    return result.outputs["logits"]


def ask(service, *nodes, **kwargs):
    return service.score(
        ScoreRequest("plain", nodes=[f"n{i}" for i in nodes], outputs=("logits",), **kwargs)
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("cache_bytes", [0, 2**20])
async def test_answers_are_those_of_the_folder(places, redis_nodes, expected, cache_bytes):
    url = cluster_url(redis_nodes)
    await push(places[1], url)
    service = await started(places, **{"graph.store": url, "state_cache.memory_bytes": cache_bytes})
    for _ in range(2):
        results = await asyncio.gather(*[ask(service, i, (i * 7) % N) for i in range(N)])
        for i, result in enumerate(results):
            assert (result.outputs["logits"] == expected[[i, (i * 7) % N]]).all()
            assert result.degraded == ()
            assert result.graph_version == places[1].version
    text = service.metrics.render()
    assert 'hopline_graph_store_reads_total{kind="redis",outcome="ok"}' in text.decode()
    await stop(service)


async def test_features_may_lie_in_a_feature_store(places, redis_nodes, expected):
    from hopline.features.base import FeatureGroup
    from hopline_stores.redis.features import RedisClusterStore

    url = cluster_url(redis_nodes, "bare:")
    await push(places[1], url, features=False)
    features = RedisClusterStore(url)
    await features.open()
    group = FeatureGroup("node", 6)
    await features.create(group)
    values = np.array(places[1].nodes["node"].features)
    await features.write(group, [f"n{i}" for i in range(N)], values)
    await features.close()
    service = await started(
        places, **{"graph.store": url, "features.store": url, "features.fetch_timeout_ms": 5000.0}
    )
    results = await asyncio.gather(*[ask(service, i) for i in range(N)])
    for i, result in enumerate(results):
        assert (result.outputs["logits"] == expected[[i]]).all()
        assert result.degraded == ()
    await stop(service)


async def test_a_lost_master_is_unavailable_and_never_a_wrong_answer(places, own_redis_nodes, expected):
    url = cluster_url(own_redis_nodes)
    await push(places[1], url)
    service = await started(
        places, **{"graph.store": url, "state_cache.memory_bytes": 0, "graph.fetch_timeout_ms": 300.0}
    )
    for server in own_redis_nodes:
        server.kill()
    results = await asyncio.gather(*[ask(service, i) for i in range(30)], return_exceptions=True)
    for result in results:
        assert isinstance(result, GraphStoreUnavailable)
        assert result.retry_after_s > 0
        assert "retry" in str(result)
    await stop(service)


@pytest.mark.release
async def test_a_master_that_comes_back_is_used_again(places, own_redis_nodes, expected):
    url = cluster_url(own_redis_nodes)
    await push(places[1], url)
    service = await started(
        places, **{"graph.store": url, "state_cache.memory_bytes": 0, "graph.fetch_timeout_ms": 30_000.0}
    )
    own_redis_nodes[0].signal(19)
    tasks = [asyncio.ensure_future(ask(service, i)) for i in range(20)]
    await asyncio.wait(tasks, timeout=0.1)
    own_redis_nodes[0].signal(18)
    for i, result in enumerate(await asyncio.gather(*tasks, return_exceptions=True)):
        if isinstance(result, BaseException):
            assert isinstance(result, GraphStoreUnavailable)
        else:
            assert (result.outputs["logits"] == expected[[i]]).all()
    await stop(service)


async def test_time_cuts_are_refused(places, redis_nodes):
    url = cluster_url(redis_nodes)
    await push(places[1], url)
    service = await started(places, **{"graph.store": url})
    with pytest.raises(BadRequest, match=r"as_of.*graph store"):
        await ask(service, 1, as_of=50)
    await stop(service)


async def test_settings_that_contradict_are_refused(places, redis_nodes):
    url = cluster_url(redis_nodes)
    await push(places[1], url)
    with pytest.raises(ConfigError, match=r"graph.store: graph.path is set as well"):
        await started(places, **{"graph.store": url, "graph.path": places[0] / "graph"})
