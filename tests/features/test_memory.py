"""Rows in RAM and rows mapped from .npy files."""

import msgspec
import numpy as np
import pytest

from hopline.errors import ConfigError, FeatureStoreError
from hopline.features.base import FeatureGroup
from hopline.features.memory import MemoryStore
from hopline.features.rows import checked_values
from hopline_stores.testing.feature_stores import (
    ACCOUNTS,
    SAMPLES,
    FeatureStoreSuite,
    WritableFeatureStoreSuite,
    check_rows,
)


class TestMemoryStore(WritableFeatureStoreSuite):
    removes = False

    @pytest.fixture
    async def empty_store(self):
        store = MemoryStore("memory:", "features.store")
        await store.open()
        yield store
        await store.close()


def save(folder, samples=SAMPLES):
    """The files of a mapped store."""
    for sample in samples:
        name, dtype = sample.group.name, sample.group.dtype
        np.save(folder / f"{name}.npy", sample.values.astype(dtype))
        np.save(folder / f"{name}.ids.npy", np.array(sample.ids))
        (folder / f"{name}.json").write_bytes(msgspec.json.encode(sample.group))


class TestMappedStore(FeatureStoreSuite):
    @pytest.fixture
    async def store(self, tmp_path):
        save(tmp_path)
        store = MemoryStore(f"memory://{tmp_path}", "features.store")
        await store.open()
        yield store
        await store.close()


async def test_a_mapped_store_is_not_written(tmp_path):
    save(tmp_path, [ACCOUNTS])
    store = MemoryStore(f"memory://{tmp_path}")
    await store.open()
    with pytest.raises(FeatureStoreError, match="read-only"):
        await store.write(ACCOUNTS.group, ACCOUNTS.ids, ACCOUNTS.values)
    with pytest.raises(FeatureStoreError, match="read-only"):
        await store.create(ACCOUNTS.group)


async def test_an_array_alone_is_a_group_whose_ids_are_row_numbers(tmp_path):
    values = np.arange(12, dtype=np.float16).reshape(4, 3)
    np.save(tmp_path / "node.npy", values)
    store = MemoryStore(f"memory://{tmp_path}")
    await store.open()
    group = await store.describe("node")
    assert group == FeatureGroup("node", 3, "float16")
    check_rows(await store.fetch(group, [3, 4, 0]), values[[3, 0, 0]], [True, False, True])
    check_rows(await store.fetch(group, np.array([3, -1])), values[[3, 0]], [True, False])


async def test_ids_of_another_kind_are_missing(tmp_path):
    save(tmp_path)
    for url in (f"memory://{tmp_path}", "memory:"):
        store = MemoryStore(url)
        await store.open()
        if url == "memory:":
            await store.create(ACCOUNTS.group)
            await store.write(ACCOUNTS.group, ACCOUNTS.ids, ACCOUNTS.values)
        check_rows(await store.fetch(ACCOUNTS.group, ["7", "x"]), ACCOUNTS.values[:2], False)
        check_rows(await store.fetch(ACCOUNTS.group, [2**70, 7]), ACCOUNTS.values[[0, 0]], [False, True])


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "has no <group>.npy"),
        ({"a.npy": np.zeros(3, np.float32)}, r"a.npy must be \[N, dim\]"),
        ({"a.npy": np.zeros((3, 2), np.int64)}, "it is int64"),
        ({"a.npy": b"no array"}, "cannot be read as .npy"),
        ({"a.npy": np.zeros((3, 2)), "a.ids.npy": np.arange(2)}, "must have 3 integers or strings"),
        ({"a.npy": np.zeros((3, 2)), "a.ids.npy": np.zeros(3)}, "must have 3 integers or strings"),
        ({"a.npy": np.zeros((3, 2)), "a.json": b"{}"}, "is not a feature group"),
        (
            {"a.npy": np.zeros((3, 2)), "a.json": b'{"name":"a","dim":3,"dtype":"float64"}'},
            "describes .* has",
        ),
    ],
)
async def test_files_that_cannot_be_used_are_named_with_the_setting(tmp_path, files, said):
    for name, content in files.items():
        if isinstance(content, bytes):
            (tmp_path / name).write_bytes(content)
        else:
            np.save(tmp_path / name, content)
    with pytest.raises(ConfigError, match=rf"^features\.store: .*{said}"):
        await MemoryStore(f"memory://{tmp_path}").open()


async def test_an_absent_folder_is_named_with_the_setting(tmp_path):
    with pytest.raises(ConfigError, match=r"^a\.b: '.*/nowhere' is not a folder"):
        await MemoryStore(f"memory://{tmp_path}/nowhere", "a.b").open()


@pytest.mark.parametrize(
    ("group", "said"),
    [
        (FeatureGroup("", 1), "name"),
        (FeatureGroup("a:b", 1), "name"),
        (FeatureGroup("a", 0), "dim"),
        (FeatureGroup("a", 1, "int8"), "dtype"),
        (FeatureGroup("a", 2, feature_names=("x",)), "1 feature names for 2 numbers"),
    ],
)
async def test_a_group_that_cannot_be_is_refused(group, said):
    with pytest.raises(FeatureStoreError, match=said):
        await MemoryStore().create(group)


@pytest.mark.parametrize("dtype", [np.int64, np.uint32])
def test_integers_that_float32_changes_are_not_stored(dtype):
    group = FeatureGroup("g", 2, feature_names=("age", "merchant"))
    with pytest.raises(FeatureStoreError, match=r"column 'merchant': 16777217 would become 16777216"):
        checked_values(group, [1, 2], np.array([[1, 2], [3, 2**24 + 1]], dtype))
    assert checked_values(group, [1], np.array([[1, 2**24 + 1.0]])).tolist() == [[1, 2**24]]
    assert checked_values(group, [1], np.array([[1, 2**24 + 2]], dtype)).tolist() == [[1, 2**24 + 2]]
