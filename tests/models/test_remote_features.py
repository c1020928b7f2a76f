"""A service whose features lie in a store: the same answers, on time, and honest when they are not."""

import asyncio
import gc
import time
from types import SimpleNamespace, TracebackType

import numpy as np
import pytest

from hopline.answering import sources as wiring
from hopline.config.reader import load_config
from hopline.engine.source import RowsAbsent
from hopline.errors import (
    ConfigError,
    FeatureGroupNotFound,
    FeatureSchemaMismatch,
    FeatureStoreUnavailable,
    HoplineError,
)
from hopline.features.base import FeatureGroup
from hopline.features.memory import MemoryStore
from hopline.models import graph_version
from hopline.service import Service
from hopline.types import ScoreRequest
from hopline_stores.testing.faulty_store import FaultyStore
from tests import loaded_units_rig as rig
from tests.engine import zoo
from tests.shared_memory import create_shared

N = zoo.N
GROUP = FeatureGroup("node", 6)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    from tests.packaged import package

    root = tmp_path_factory.mktemp("remote")
    graph = zoo.homogeneous(1).save(root / "graph")
    zoo.torch.manual_seed(0)
    zoo.torch.set_num_threads(1)
    package(zoo.Plain().eval(), graph, root / "models", name="plain", fanouts=[4, 3, 5], task="multiclass")
    return root, graph


@pytest.fixture
async def store(places, monkeypatch):
    """The store that services open: in memory, with faults on request."""
    inner = MemoryStore()
    await inner.create(GROUP)
    features = np.array(places[1].nodes["node"].features)
    await inner.write(GROUP, [f"n{i}" for i in range(N)], features)
    faulty = FaultyStore(inner)
    monkeypatch.setattr(wiring, "open_store", lambda url, setting: faulty)
    return faulty


def config(places, **settings):
    root, _ = places
    overrides = {
        "graph.path": root / "graph",
        "models.repository": root / "models",
        "features.store": "memory:",
        "features.memory_bytes": 2**22,
        "state_cache.memory_bytes": 0,
    }
    return load_config(overrides={**overrides, **settings})


async def started(places, **settings):
    return await rig.begin(Service(config(places, **settings)))


async def stop(service):
    service.begin_drain()
    assert await service.drain(5)
    await service.close()


@pytest.fixture
async def expected(places):
    """Answers of a service that has the features itself."""
    service = await started(places, **{"features.store": ""})
    ids = [f"n{i}" for i in range(N)]
    result = await service.score(ScoreRequest("plain", nodes=ids, outputs=("logits",)))
    await stop(service)
    return result.outputs["logits"]


def ask(service, *nodes, **kwargs):
    return service.score(
        ScoreRequest("plain", nodes=[f"n{i}" for i in nodes], outputs=("logits",), **kwargs)
    )


async def until_recovered(service):
    """Ask until the store is read again: after failures its client pauses."""
    while (await ask(service, 0)).degraded:  # noqa: ASYNC110 - the pause ends by itself
        await asyncio.sleep(0.01)


async def test_answers_are_those_of_features_in_the_graph(places, store, expected):
    service = await started(places, **{"state_cache.memory_bytes": 2**20})
    for _ in range(2):
        results = await asyncio.gather(*[ask(service, i, (i * 7) % N) for i in range(N)])
        for i, result in enumerate(results):
            assert (result.outputs["logits"] == expected[[i, (i * 7) % N]]).all()
            assert result.degraded == ()
    await stop(service)


async def test_each_row_is_fetched_once_for_any_number_of_requests(places, store, expected):
    service = await started(places)
    store.reset_counts()
    await asyncio.gather(*[ask(service, i) for i in range(N) for _ in range(3)])
    assert store.num_rows <= N
    before = store.num_rows
    await asyncio.gather(*[ask(service, i) for i in range(N)])
    assert store.num_rows == before
    await stop(service)


async def test_requests_whose_rows_are_near_do_not_wait_for_those_whose_are_not(places, store, expected):
    service = await started(places, **{"features.fetch_timeout_ms": 60_000.0})
    await ask(service, 5)
    store.hanging = True
    far = [asyncio.ensure_future(ask(service, i)) for i in range(40, 60)]
    await asyncio.sleep(0.01)
    assert (await asyncio.wait_for(ask(service, 5), 20)).degraded == ()
    assert not any(task.done() for task in far)
    store.heal()
    for i, result in zip(range(40, 60), await asyncio.gather(*far), strict=True):
        assert (result.outputs["logits"] == expected[[i]]).all()
    await stop(service)


async def test_an_outage_is_answered_in_time_and_labelled(places, store, expected):
    service = await started(places, **{"features.fetch_timeout_ms": 60_000.0})
    store.kill()
    began = time.monotonic()
    results = await asyncio.gather(*[ask(service, i) for i in range(20)])
    assert time.monotonic() - began < 20
    for result in results:
        assert result.degraded
        assert np.isfinite(result.outputs["logits"]).all()
    with pytest.raises(FeatureStoreUnavailable, match="refuses a degraded answer"):
        await ask(service, 5, degraded="refuse")
    text = service.metrics.render().decode()
    assert 'hopline_degraded_answers_total{model="plain",reason="mean_features"} 20' in text
    store.heal()
    await until_recovered(service)
    for i in range(20):
        result = await ask(service, i, degraded="refuse")
        assert (result.outputs["logits"] == expected[[i]]).all()
    await stop(service)


async def test_a_store_that_hangs_costs_the_timeout_and_no_more(places, store):
    service = await started(places)
    store.hanging = True
    began = time.monotonic()
    result = await ask(service, 3)
    assert 0.015 < time.monotonic() - began < 20  # it hangs until it heals
    assert result.degraded
    store.heal()
    await stop(service)


async def test_expired_rows_stand_in_for_an_outage(places, store, expected):
    service = await started(places, **{"features.ttl_s": 0.05})
    await ask(service, 3)
    await asyncio.sleep(0.1)
    store.kill()
    result = await ask(service, 3)
    assert result.degraded == ("stale_features",)
    assert (result.outputs["logits"] == expected[[3]]).all()
    await stop(service)


async def test_degraded_rows_are_not_kept_in_the_embedding_table(places, store, expected):
    service = await started(places, **{"state_cache.memory_bytes": 2**20})
    store.kill()
    await asyncio.gather(*[ask(service, i) for i in range(N)])
    store.heal()
    await until_recovered(service)
    for i in range(N):
        result = await ask(service, i, degraded="refuse")
        assert (result.outputs["logits"] == expected[[i]]).all()
    await stop(service)


async def test_a_row_that_is_nan_for_a_while_leaves_nothing_behind(places, store, expected, monkeypatch):
    right = np.array(places[1].nodes["node"].features)
    wrong = right.copy()
    wrong[7] = np.nan
    service = await started(places, **{"state_cache.memory_bytes": 2**20, "features.negative_ttl_ms": 0.0})
    names = [f"n{i}" for i in range(N)]
    await store._inner.write(GROUP, names, wrong)
    for result in await asyncio.gather(*[ask(service, i) for i in range(N)]):
        assert np.isfinite(result.outputs["logits"]).all()
    (result,) = [await ask(service, 7)]
    assert result.degraded
    with pytest.raises(FeatureStoreUnavailable, match="1 invalid"):
        await ask(service, 7, degraded="refuse")
    await store._inner.write(GROUP, names, right)
    for i, result in enumerate(await asyncio.gather(*[ask(service, i) for i in range(N)])):
        assert result.degraded == ()
        assert (result.outputs["logits"] == expected[[i]]).all()
    await stop(service)


async def test_a_cancelled_request_leaves_the_others_their_rows(places, store, expected):
    service = await started(places, **{"features.fetch_timeout_ms": 1000.0})
    store.latency_s = 0.05
    tasks = [asyncio.ensure_future(ask(service, i)) for i in range(8)]
    await asyncio.sleep(0.01)
    tasks[0].cancel()
    tasks[5].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for i, result in enumerate(results):
        if i in (0, 5):
            assert isinstance(result, asyncio.CancelledError)
        else:
            assert (result.outputs["logits"] == expected[[i]]).all()
    await stop(service)


def kept():
    gc.collect()
    return sum(type(o) in (RowsAbsent, TracebackType) for o in gc.get_objects())


async def test_requests_that_waited_for_rows_leave_nothing_behind(places, store):
    service = await started(places, **{"features.ttl_s": 0.001})
    before = kept()
    for _ in range(3):
        await asyncio.gather(*[ask(service, i) for i in range(N)])
    assert kept() - before < 20
    await stop(service)


async def test_draining_waits_for_requests_that_wait_for_rows(places, store, expected):
    service = await started(places, **{"features.fetch_timeout_ms": 1000.0})
    store.latency_s = 0.1
    task = asyncio.ensure_future(ask(service, 3))
    await asyncio.sleep(0.01)
    service.begin_drain()
    assert await service.drain(5)
    assert (await task).degraded == ()
    await service.close()


async def test_a_request_that_waits_for_rows_keeps_its_deadline(places, store):
    service = await started(places, **{"features.fetch_timeout_ms": 300.0})
    store.hanging = True
    with pytest.raises(HoplineError, match="deadline"):
        await ask(service, 3, deadline=time.monotonic() + 0.05)
    store.heal()
    await stop(service)


async def test_prewarming_fills_l1_before_the_service_is_ready(places, store, expected):
    service = await started(places, **{"features.prewarm_nodes": N})
    store.reset_counts()
    results = await asyncio.gather(*[ask(service, i) for i in range(N)])
    assert store.num_rows == 0
    assert (np.concatenate([r.outputs["logits"] for r in results]) == expected).all()
    await stop(service)


async def test_prewarming_from_a_file_skips_ids_that_are_gone(places, store, tmp_path):
    (tmp_path / "ids").write_text("n5\nn6\ngone\nn5\n")
    service = await started(places, **{"features.prewarm_file": tmp_path / "ids"})
    store.reset_counts()
    await ask(service, 5, 6)
    assert store.num_rows == 0
    await stop(service)


async def test_prewarming_goes_on_after_a_row_that_the_store_lacks(places, store, monkeypatch):
    monkeypatch.setattr(graph_version, "_AT_ONCE", 4)
    store.missing_share = 0.1
    service = await started(places, **{"features.prewarm_nodes": N, "features.negative_ttl_ms": 1.0})
    asked = set(store.asked)
    store.reset_counts()
    store.heal()
    for i in range(N):
        await ask(service, i)
    lacked = set(store.asked)  # those that were not there, and only those, are asked for again
    assert lacked
    assert len(lacked) <= 0.2 * N
    assert len(asked) == N
    await stop(service)


async def test_prewarming_is_of_each_node_type_that_has_a_head(places, monkeypatch):
    computed = []

    async def compute(computer, model, node_type, ids):
        computed.append((model, node_type, ids.tolist()))
        return {}

    monkeypatch.setattr(graph_version, "_compute", compute)
    monkeypatch.setattr(
        graph_version, "most_read", lambda model, count: np.arange(count) + 10 * model.place
    )
    by_type = {name: SimpleNamespace(place=at, is_stored=False) for at, name in enumerate(("a", "b"))}
    computer = SimpleNamespace(name="m", model=SimpleNamespace(by_type=by_type))
    await graph_version.prewarm(computer, config(places, **{"features.prewarm_nodes": 2}))
    assert computed == [(by_type["a"], "a", [0, 1]), (by_type["b"], "b", [10, 11])]


async def test_a_store_that_is_down_does_not_keep_prewarming_from_ending(places, store):
    service = Service(config(places, **{"features.prewarm_nodes": N}))
    describe = store._inner.describe
    store.describe = describe  # the schema is told, rows are not
    store.hanging = True
    await asyncio.wait_for(service.start(), 20)
    assert service.ready()
    store.heal()
    await stop(service)


async def test_two_workers_fetch_each_row_once(places, store, expected):
    fd = create_shared()
    shared = config(places, **{"features.fetch_timeout_ms": 1000.0})
    workers = [
        Service(shared.replace(worker__rows_fd=fd, worker__index=i, worker__count=2)) for i in range(2)
    ]
    for worker in workers:
        await worker.start()
    store.reset_counts()
    store.latency_s = 0.02
    asked = [ask(workers[k], i) for i in range(N) for k in (0, 1)]
    results = await asyncio.gather(*asked)
    assert store.num_rows <= N
    for at, result in enumerate(results):
        assert (result.outputs["logits"] == expected[[at // 2]]).all()
        assert result.degraded == ()
    for worker in workers:
        await stop(worker)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"features.groups": ("node=other",)}, FeatureGroupNotFound, "other"),
        ({"features.groups": ("user=node",)}, ConfigError, "features.groups: 'user' is unknown"),
        ({"features.groups": ("node",)}, ConfigError, "name=value"),
        ({"features.ttls": ("node=soon",)}, ConfigError, "features.ttls"),
        ({"features.memory_bytes": 1}, ConfigError, "features.memory_bytes"),
        ({"features.prewarm_file": "/nowhere/ids"}, ConfigError, "features.prewarm_file"),
    ],
)
async def test_what_cannot_be_used_is_reported_at_start(places, store, settings, error, message):
    with pytest.raises(error, match=message):
        await started(places, **settings)


async def test_rows_of_another_schema_are_refused_at_start(places, store):
    await store._inner.create(FeatureGroup("node", 5))
    with pytest.raises(FeatureSchemaMismatch, match="dim is 5 in the store, but 6 is expected"):
        await started(places)
