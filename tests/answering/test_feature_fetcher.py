"""What a worker does with what its prefetcher says."""

import asyncio
import time

import numpy as np
import pytest

from hopline.answering.feature_fetcher import FeatureFetcher
from hopline.engine.answer import FetchedInputs
from hopline.engine.source import Absent
from hopline.features.base import FeatureGroup
from hopline.features.client import FeatureClient
from hopline.features.l1 import CachePlan, L1FeatureCache
from hopline.features.l1_rows import L1Rows
from hopline.features.memory import MemoryStore
from hopline.features.prefetcher import PrefetchResponse
from hopline.memory.arena import Arena
from hopline_stores.testing.faulty_store import FaultyStore

N, GROUP = 50, FeatureGroup("node", 2)
VALUES = np.arange(2 * N, dtype=np.float32).reshape(N, 2)


class Prefetcher:
    """Says what a test wants, and brings what it wants."""

    was_lost = False

    def __init__(self, near):
        self.near, self.told, self.brings, self.asked = near, PrefetchResponse({}, ""), [], []

    async def fetch(self, absent, wanted, timeout_s):
        self.asked.append((absent, wanted))
        ids = np.array(self.brings, np.int64)
        self.near.cache.write(ids, VALUES[ids], time.monotonic())
        return self.told


@pytest.fixture
async def parts():
    inner = MemoryStore()
    await inner.create(GROUP)
    await inner.write(GROUP, list(range(N)), VALUES)
    store = FaultyStore(inner)
    plan = CachePlan.within(N, 2, 2**20, 2)
    cache = L1FeatureCache(Arena(plan.num_bytes), plan)
    client = FeatureClient(GROUP, store, timeout_s=1.0)
    near = L1Rows(GROUP, cache, client, lambda ids: ids, lambda: VALUES[0], shared=True)
    prefetcher = Prefetcher(near)
    yield FeatureFetcher({"node": near}, 1.0, prefetcher), prefetcher, store, cache
    await client.close()


def absent(*ids):
    return Absent({"node": np.array(ids, np.int64)})


async def test_what_it_brought_is_not_fetched_again(parts):
    feature_fetcher, prefetcher, store, _ = parts
    prefetcher.brings = [3, 4]
    fetched_rows = {}
    assert await feature_fetcher.fetch(absent(3, 4), fetched_rows, 1.0, hold=False) == {}
    assert fetched_rows == {}  # they are in L1
    assert store.num_rows == 0


async def test_rows_of_a_later_round_are_held(parts):
    feature_fetcher, prefetcher, store, _ = parts
    prefetcher.brings = [3, 4]
    fetched_rows = {}
    assert await feature_fetcher.fetch(absent(3, 4), fetched_rows, 1.0) == {}
    out = np.empty((2, 2), np.float32)
    left = fetched_rows["node"][0].take(np.array([4, 3]), np.arange(2), out, np.empty(2))
    assert left.tolist() == []
    assert (out == VALUES[[4, 3]]).all()
    assert store.num_rows == 0


async def test_what_was_displaced_meanwhile_is_fetched_by_the_worker(parts):
    feature_fetcher, prefetcher, store, _ = parts
    prefetcher.brings = [3]
    fetched_rows = {}
    assert await feature_fetcher.fetch(absent(3, 4), fetched_rows, 1.0, hold=False) == {}
    assert store.num_rows == 1
    out = np.empty((1, 2), np.float32)
    assert fetched_rows["node"][0].take(np.array([4]), np.arange(1), out, np.empty(1)).tolist() == []


async def test_what_cannot_be_had_is_believed(parts):
    feature_fetcher, prefetcher, store, _ = parts
    prefetcher.brings, prefetcher.told = [3], PrefetchResponse({"node": np.array([4, 9])}, "missing")
    assert await feature_fetcher.fetch(absent(3, 4), {}, 1.0, hold=False) == {"missing": 1}
    assert store.num_rows == 0


async def test_after_its_patience_the_request_goes_on(parts):
    feature_fetcher, prefetcher, store, _ = parts
    prefetcher.brings, prefetcher.told = [3], PrefetchResponse(None, "timeout")
    assert await feature_fetcher.fetch(absent(3, 4, 5), {}, 1.0, hold=False) == {"timeout": 2}
    assert store.num_rows == 0


async def test_where_it_cannot_help_the_worker_fetches(parts):
    feature_fetcher, prefetcher, store, _ = parts
    prefetcher.told = None
    fetched_rows = {}
    assert await feature_fetcher.fetch(absent(3, 4), fetched_rows, 1.0, hold=False) == {}
    assert store.num_rows == 2


async def test_claims_of_one_that_was_lost_are_not_waited_for(parts):
    feature_fetcher, prefetcher, store, cache = parts
    # the words of another process, as they stand in shared memory
    claims = cache._claims
    claims._owner = 2
    now = int(time.monotonic() * 1000)
    assert claims.take(np.array([3]), now, now + 60_000).all()
    claims._owner = 1
    prefetcher.told, prefetcher.was_lost = None, True
    began = time.monotonic()
    assert await feature_fetcher.fetch(absent(3), {}, 60.0, hold=False) == {}
    assert time.monotonic() - began < 20
    assert store.num_rows == 1


async def test_a_request_says_what_it_is_about_in_its_first_round_only(parts):
    feature_fetcher, prefetcher, _, _ = parts
    prefetcher.brings = [3]
    resumed = asyncio.Queue()

    def resume(supply, until):
        resumed.put_nowait((supply, until))

    feature_fetcher.begin(absent(3), FetchedInputs(), 0.0, resume, lambda: "about")
    supply, until = await resumed.get()
    assert supply == FetchedInputs({}, False, "")
    feature_fetcher.begin(absent(3), supply, until, resume, lambda: "about")
    supply, _ = await resumed.get()
    assert list(supply.fetched_rows) == ["node"]
    assert [wanted for _, wanted in prefetcher.asked] == ["about", None]
