"""Rows in Parquet files, written by Hopline and by others."""

import errno
import os
from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopline.errors import ConfigError, FeatureStoreError
from hopline.features.base import FeatureGroup
from hopline.features.registry import open_store
from hopline_stores.testing.feature_stores import (
    ACCOUNTS,
    MERCHANTS,
    SAMPLES,
    FeatureStoreSuite,
    WritableFeatureStoreSuite,
    check_rows,
)
from packages.stores.tests.column_stores import ColumnStoreSuite


async def opened(path, query=""):
    store = open_store(f"parquet://{path}{query}")
    await store.open()
    return store


class TestParquetStore(WritableFeatureStoreSuite):
    @pytest.fixture
    async def empty_store(self, tmp_path):
        store = await opened(tmp_path)
        yield store
        await store.close()


class TestParquetColumns(ColumnStoreSuite):
    @pytest.fixture
    async def columns_store(self, tmp_path):
        store = await opened(tmp_path)
        yield store
        await store.close()


async def test_columns_of_a_file_of_others_have_the_types_of_the_file(tmp_path):
    table = pa.table(
        {
            "id": [7, 8],
            "amount": pa.array([Decimal("1.5"), None]),
            "day": pa.array([date(2024, 1, 31), None]),
            "code": pa.array(["x", None]).dictionary_encode(),
            "list": [[1], [2]],
        }
    )
    pq.write_table(table.drop_columns("list"), tmp_path / "account.parquet")
    store = await opened(tmp_path)
    group = await store.describe_columns("account")
    assert group.columns == {"amount": "float", "day": "timestamp", "code": "text"}
    rows = await store.fetch_columns(group, np.array([8, 9, 7]))
    assert rows == [
        {"amount": None, "day": None, "code": None},
        None,
        {"amount": 1.5, "day": datetime(2024, 1, 31), "code": "x"},
    ]
    await store.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("parquet")


class TestReopenedParquetStore(FeatureStoreSuite):
    """As another process sees what was written."""

    @pytest.fixture
    async def store(self, folder):
        if not any(folder.iterdir()):
            writer = await opened(folder)
            for sample in SAMPLES:
                await writer.create(sample.group)
                await writer.write(sample.group, sample.ids, sample.values)
            await writer.close()
        store = await opened(folder)
        yield store
        await store.close()


async def test_a_column_for_each_feature_needs_no_metadata(tmp_path):
    pq.write_table(
        pa.table({"amount": [1.0, 2.0], "key": ["x", "y"], "count": [3, 4], "note": ["a", "b"]}),
        tmp_path / "account.parquet",
    )
    store = await opened(tmp_path / "account.parquet", "?id=key")
    group = await store.describe("account")
    assert group == FeatureGroup("account", 2, "float64", ("amount", "count"))
    check_rows(await store.fetch(group, ["y", "z"]), [[2, 4], [0, 0]], [True, False])
    await store.close()


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.float16()), pa.list_(pa.int32(), 3)])
async def test_a_column_of_lists_needs_no_metadata(tmp_path, kind):
    values = np.arange(6).reshape(2, 3)
    rows = pa.array([list(map(np.float16, row)) for row in values], kind)
    pq.write_table(pa.table({"id": [10, -20], "v": rows}), tmp_path / "g.parquet")
    store = await opened(tmp_path)
    group = await store.describe("g")
    assert group == FeatureGroup("g", 3, "float16" if kind.value_type == pa.float16() else "float32")
    check_rows(await store.fetch(group, [-20, 10]), values[::-1])
    await store.close()


async def test_of_parts_the_last_row_counts(tmp_path):
    (tmp_path / "g").mkdir()
    for name, ids, value in (("b", [1, 2], 5.0), ("a", [1, 3], 4.0)):
        pq.write_table(pa.table({"id": ids, "f": [value, value]}), tmp_path / "g" / f"{name}.parquet")
    store = await opened(tmp_path)
    check_rows(await store.fetch(await store.describe("g"), [1, 2, 3]), [[5], [5], [4]])
    await store.close()


async def test_without_room_for_the_rows_the_error_says_so(tmp_path, monkeypatch):
    """Rows are mapped: a page without its place on a full disk would kill the process."""
    pq.write_table(pa.table({"id": [1], "f": [1.0]}), tmp_path / "g.parquet")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    store = await opened(tmp_path)
    with pytest.raises(FeatureStoreError, match=r"group 'g': .* no room for its 0 MiB: No space left"):
        await store.fetch(await store.describe("g"), [1])
    await store.close()


async def test_a_file_of_others_is_not_changed(tmp_path):
    pq.write_table(pa.table({"id": [1], "f": [1.0]}), tmp_path / "g.parquet")
    before = (tmp_path / "g.parquet").read_bytes()
    store = await opened(tmp_path)
    group = await store.describe("g")
    for attempt in (store.create(group), store.write(group, [1], np.ones((1, 1), np.float32))):
        with pytest.raises(FeatureStoreError, match="does not change"):
            await attempt
    assert (tmp_path / "g.parquet").read_bytes() == before
    await store.close()


@pytest.mark.parametrize(
    ("others", "columns"),
    [
        ({"f": ["a"]}, {"f": "text"}),
        ({"f": [[1.0, 2.0]], "g": [2.0]}, {"f_0": "float", "f_1": "float", "g": "float"}),
    ],
)
async def test_a_file_that_is_no_matrix_has_columns_and_is_refused_as_rows_of_numbers(
    tmp_path, others, columns
):
    pq.write_table(pa.table({"id": [1], **others}), tmp_path / "g.parquet")
    store = await opened(tmp_path)
    with pytest.raises(FeatureStoreError, match=r"g\.parquet: features must be one column of lists"):
        await store.describe("g")
    with pytest.raises(FeatureStoreError, match=r"g\.parquet: features must be one column of lists"):
        await store.fetch(FeatureGroup("g", 1), [1])
    assert (await store.describe_columns("g")).columns == columns
    await store.close()


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"key": [1], "f": [1.0]}, "no column 'id'"),
        ({"id": [1]}, "features must be one column of lists"),
    ],
)
async def test_a_file_that_cannot_be_used_is_named_with_the_setting(tmp_path, columns, said):
    pq.write_table(pa.table(columns), tmp_path / "g.parquet")
    with pytest.raises(ConfigError, match=rf"^features\.store: .*g\.parquet: {said}"):
        await opened(tmp_path)


async def test_a_file_that_is_no_parquet_is_named_with_the_setting(tmp_path):
    (tmp_path / "g.parquet").write_bytes(b"no parquet")
    with pytest.raises(ConfigError, match=r"^features\.store: .*g\.parquet cannot be read as Parquet"):
        await opened(tmp_path)
    with pytest.raises(ConfigError, match=r"^features\.store: .*nowhere' does not exist"):
        await opened(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"^features\.store: unknown option 'di'"):
        open_store("parquet:///x?di=1")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"id": [1, None], "f": [1.0, 2.0]}, "column 'id' has 1 nulls"),
        ({"id": [1.5, 2.5], "f": [1.0, 2.0]}, "must have integers or strings"),
        ({"id": [1, 2], "f": [1.0, None]}, "column 'f' has nulls"),
        ({"id": [1, 2], "f": [[1.0], [1.0, 2.0]]}, "lists of different lengths"),
        ({"id": [1, 2], "f": [[1.0], None]}, "lists of different lengths"),
        ({"id": [1, 2], "f": [[1.0], [None]]}, "column 'f' has nulls"),
        ({"id": [1, 2], "f": [1, 2**24 + 1]}, "column 'f': 16777217 would become 16777216"),
        ({"id": [1, 2], "f": [[1, 2], [3, 2**24 + 1]]}, "column 'f': 16777217 would become 16777216"),
    ],
)
async def test_rows_that_cannot_be_used_are_an_error_and_never_shifted(tmp_path, columns, said):
    pq.write_table(pa.table(columns), tmp_path / "g.parquet")
    store = await opened(tmp_path)
    for _ in range(2):
        with pytest.raises(FeatureStoreError, match=said):
            await store.describe("g")
    await store.close()


async def test_parts_that_do_not_fit_each_other_are_an_error(tmp_path):
    store = await opened(tmp_path)
    group = FeatureGroup("g", MERCHANTS.group.dim)
    await store.create(group)
    await store.write(group, MERCHANTS.ids, MERCHANTS.values)
    await store.write(group, [1], MERCHANTS.values[:1])
    with pytest.raises(FeatureStoreError, match="some parts have integer ids"):
        await store.fetch(group, [1])
    pq.write_table(pa.table({"id": ["a"], "features": [[1.0]]}), tmp_path / "g" / "part-000002.parquet")
    with pytest.raises(FeatureStoreError, match="rows of 1 numbers; group 'g' has 3"):
        await store.fetch(group, [1])
    await store.close()


async def test_the_schema_is_in_the_files(tmp_path):
    store = await opened(tmp_path)
    await store.create(ACCOUNTS.group)
    await store.write(ACCOUNTS.group, ACCOUNTS.ids, ACCOUNTS.values)
    await store.close()
    for path in (tmp_path / "account").iterdir():
        assert b'"feature_names":["f0"' in pq.read_schema(path).metadata[b"hopline"]
