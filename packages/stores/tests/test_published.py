"""Notes of stores, which published results hang on: swapped only by who knows what is there."""

import numpy as np
import pytest

from hopline.errors import FeatureGroupNotFound
from hopline.features.base import FeatureGroup
from hopline.features.registry import open_store
from hopline_stores.published import packed_ids, unpacked_ids

IDS = ["a", "schema", "{t}", "日本", "a:b"]


@pytest.fixture(params=["redis", "redis+cluster"])
async def store(request, redis_server, redis_nodes):
    port = redis_server.port if request.param == "redis" else redis_nodes[0].port
    store = open_store(f"{request.param}://127.0.0.1:{port}?prefix={request.param}-notes:")
    await store.open()
    yield store
    await store.close()


async def check_notes(store):
    assert await store.note("n") is None
    assert not await store.swap_note("n", b"other", b"a")
    assert await store.note("n") is None
    assert await store.swap_note("n", None, b"a\r\n\0")
    assert not await store.swap_note("n", None, b"b")
    assert not await store.swap_note("n", b"b", None)
    assert await store.note("n") == b"a\r\n\0"
    assert await store.swap_note("n", b"a\r\n\0", b"b" * 300_000)
    assert await store.note("n") == b"b" * 300_000
    assert await store.swap_note("n", b"b" * 300_000, None)
    assert await store.note("n") is None


async def check_removal(store):
    group = FeatureGroup("g", 3)
    await store.create(group)
    await store.write(group, IDS, np.ones((len(IDS), 3), np.float32))
    await store.remove(group, IDS[:2])
    await store.remove(group, [*IDS[:3], "absent"])
    rows = await store.fetch(group, IDS)
    assert rows.found.tolist() == [False, False, False, True, True]
    await store.remove(group, [])
    await store.forget("g")
    with pytest.raises(FeatureGroupNotFound):
        await store.describe("g")


async def test_a_note_is_swapped_by_who_knows_it(store):
    await check_notes(store)


async def test_rows_are_removed_and_groups_forgotten(store):
    await check_removal(store)


async def test_an_incarnation_lasts_as_long_as_the_server(own_redis):
    store = open_store(own_redis.url)
    await store.open()
    first = await store.incarnation()
    assert first
    assert await store.incarnation() == first
    await store.close()
    own_redis.kill()
    own_redis.start()
    store = open_store(own_redis.url)
    await store.open()
    assert await store.incarnation() != first
    await store.close()


@pytest.mark.parametrize("ids", [[], [1, -(2**63)], ["a", "käse", "\ud800"], np.array([3, 4])])
def test_ids_come_back(ids):
    assert unpacked_ids(packed_ids(ids)) == list(ids)
