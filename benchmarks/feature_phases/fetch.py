"""Cost of 421 rows of 512 bytes: one GET each, one MGET, through an empty L1, and from L1.

In one process and on one event loop; the four take turns, each with ids that were never requested before,
so that neither Redis' nor the processor's caches favour one.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

import numpy as np
import redis
import uvloop

from benchmarks.feature_phases.redis_process import GROUP, RedisProcess
from hopline.answering.feature_fetcher import FeatureFetcher
from hopline.engine.source import Absent, FetchedRows
from hopline.features.client import FeatureClient
from hopline.features.l1 import CachePlan, L1FeatureCache
from hopline.features.l1_rows import L1Rows
from hopline.memory.arena import Arena
from hopline.types import FloatArray, IdArray
from hopline_stores.redis.features import RedisStore

#: A seed, 20 neighbours, 20 of each of these: 2 layers, fanout 20.
NUM_ROWS = 1 + 20 + 400
_NAIVE_EVERY = 10


def measure(store: RedisProcess, num_nodes: int, dim: int, rounds: int) -> dict[str, float]:
    """Median milliseconds: naive_ms, mget_ms, cold_ms, warm_ms.

    Args:
        store: holds rows [num_nodes, dim] of the group.
        num_nodes: at least 3 * NUM_ROWS.
        rounds: ids are used again where there are not enough for so many.
    """
    with uvloop_runner() as runner:
        return runner.run(_measure(store, num_nodes, dim, rounds))


def uvloop_runner() -> asyncio.Runner:
    """The loop that the server runs on."""
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def _measure(server: RedisProcess, num_nodes: int, dim: int, rounds: int) -> dict[str, float]:
    store = RedisStore(server.url)
    await store.open()
    group = await store.describe(GROUP)
    rounds = min(rounds, num_nodes // (3 * NUM_ROWS))
    # holds all that is asked for: eviction is no part of this
    slots = num_nodes
    plan = CachePlan(num_nodes, dim, (slots,))
    cache = L1FeatureCache(Arena(plan.num_bytes), plan, 600.0)
    client = FeatureClient(group, store, timeout_s=1.0)
    near = L1Rows(group, cache, client, lambda ids: ids, lambda: np.zeros(dim, np.float32))
    feature_fetcher = FeatureFetcher({GROUP: near}, 1.0)
    bare = redis.Redis(port=server.port)
    times: dict[str, list[float]] = {"naive_ms": [], "mget_ms": [], "cold_ms": [], "warm_ms": []}
    order = np.random.default_rng(4).permutation(num_nodes)[: rounds * 3 * NUM_ROWS]
    out = np.empty((NUM_ROWS, dim), np.float32)

    def blocking(name: str, ask: Callable[[list[bytes]], object], ids: IdArray) -> None:
        keys = server.keys(ids)
        began = time.perf_counter()
        ask(keys)
        times[name].append(time.perf_counter() - began)

    async def cold(ids: IdArray) -> None:
        absent = Absent({GROUP: ids})
        fetched_rows: dict[str, list[FetchedRows]] = {}
        began = time.perf_counter()
        why = await feature_fetcher.fetch(absent, fetched_rows, 1.0)
        left, _ = near.read(ids, out)
        times["cold_ms"].append(time.perf_counter() - began)
        assert not why
        assert not left.shape[0]
        began = time.perf_counter()
        left, _ = near.read(ids, out)
        times["warm_ms"].append(time.perf_counter() - began)

    gc.collect()
    gc.freeze()  # as the server does
    for number, ids in enumerate(order.reshape(-1, 3, NUM_ROWS)):
        naive, mget, ours = np.sort(ids, axis=1)  # what a plan lacks is sorted
        steps = [0, 1] if number % 2 else [1, 0]
        for step in steps:
            if step:
                await cold(ours)
            else:
                blocking("mget_ms", bare.mget, mget)
        if number % _NAIVE_EVERY == 0:
            blocking("naive_ms", lambda keys: [bare.get(key) for key in keys], naive)
    gc.unfreeze()
    _check(near, server, ours)
    await client.close()
    await store.close()
    bare.close()
    # the first ones compile and connect
    return {name: 1e3 * float(np.median(taken[len(taken) // 10 :])) for name, taken in times.items()}


def _check(near: L1Rows, server: RedisProcess, ids: IdArray) -> None:
    """Check that L1 has the rows of Redis."""
    out: FloatArray = np.empty((ids.shape[0], near.group.dim), np.float32)
    assert not near.read(ids, out)[0].shape[0]
    with redis.Redis(port=server.port) as bare:
        rows = bare.mget(server.keys(ids))
    assert b"".join(rows) == out.tobytes()
