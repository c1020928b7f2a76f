"""Feast, with repositories of its local provider: a registry and an online store in files."""

import asyncio
import sqlite3
import sys
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta

import feast
import numpy as np
import pandas as pd
import pytest
from feast import Entity, FeatureService, FeatureView, Field, FileSource, ValueType
from feast.protos.feast.types.Value_pb2 import Value as ValueProto
from feast.types import Array, Bool, Float32, Float64, Int32, Int64, Set, String, UnixTimestamp
from msgspec.structs import replace

from hopline.errors import (
    ConfigError,
    FeatureGroupNotFound,
    FeatureSchemaMismatch,
    FeatureStoreError,
    FeatureStoreUnavailable,
)
from hopline.features.base import FeatureGroup
from hopline.features.skew import column_differences
from hopline.graph.list_columns import lists_of
from hopline_stores.feast import FeastStore
from hopline_stores.testing.feature_stores import (
    ACCOUNTS,
    MERCHANTS,
    SINGLE,
    FeatureStoreSuite,
    Sample,
    check_rows,
)

CONFIG = """
project: shop
provider: local
registry: registry.db
online_store: {type: sqlite, path: online.db}
offline_store: {type: file}
entity_key_serialization_version: 3
"""
ACCOUNT = Entity(name="account", join_keys=["account_id"], value_type=ValueType.INT64)
DEVICE = Entity(name="device", join_keys=["device_id"], value_type=ValueType.INT32)
SHOP = Entity(name="shop", join_keys=["shop_id"], value_type=ValueType.STRING)
NOW = pd.Timestamp("2026-01-01", tz="UTC")


class Repository:
    """A Feast repository in a folder."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "feature_store.yaml").write_text(CONFIG)
        self.feast = feast.FeatureStore(repo_path=str(folder))

    def add(self, name, entities, schema, columns=None):
        """Apply a view and write its rows, columns by name."""
        source = FileSource(name=f"{name}-source", path="absent.parquet", timestamp_field="event_timestamp")
        view = FeatureView(
            name=name, entities=entities, schema=schema, source=source, ttl=timedelta(days=1)
        )
        self.feast.apply([*entities, source, view])
        if columns is not None:
            self.feast.write_to_online_store(name, pd.DataFrame({"event_timestamp": NOW} | columns))
        return view

    async def open(self):
        store = FeastStore(f"feast://{self.folder}", "features.store")
        await store.open()
        return store


def named(sample):
    """The sample with names: Feast's features always have one."""
    names = sample.group.feature_names or tuple(f"n{i}" for i in range(sample.group.dim))
    return Sample(replace(sample.group, feature_names=names), sample.ids, sample.values, sample.absent)


MANY = Sample(
    FeatureGroup("many", 2, feature_names=("a", "b")),
    list(range(0, 1_200, 3)),
    np.arange(800, dtype=np.float32).reshape(400, 2),
    [1, 2],
)
SAMPLES = (ACCOUNTS, MERCHANTS, named(SINGLE), MANY)


@pytest.fixture(scope="module")
def samples_repository(tmp_path_factory):
    repository = Repository(tmp_path_factory.mktemp("samples"))
    for sample in SAMPLES:
        entity = SHOP if isinstance(sample.ids[0], str) else ACCOUNT
        schema = [Field(name=name, dtype=Float32) for name in sample.group.feature_names]
        columns = dict(zip(sample.group.feature_names, sample.values.T, strict=True))
        repository.add(sample.group.name, [entity], schema, {entity.join_key: sample.ids} | columns)
    return repository


@pytest.fixture
async def store(samples_repository):
    store = await samples_repository.open()
    yield store
    await store.close()


class TestFeast(FeatureStoreSuite):
    samples = SAMPLES

    @pytest.fixture
    async def store(self, samples_repository):
        store = await samples_repository.open()
        yield store
        await store.close()


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path)


MIXED = [
    Field(name="z_first", dtype=Float64),
    Field(name="city", dtype=String),
    Field(name="embedding", dtype=Array(Float32), vector_length=3),
    Field(name="count", dtype=Int64),
    Field(name="flag", dtype=Bool),
    Field(name="tags", dtype=Set(Int64)),
    Field(name="a_last", dtype=Int32),
]
MIXED_GROUP = FeatureGroup(
    "mixed", 6, feature_names=("z_first", "embedding[0]", "embedding[1]", "embedding[2]", "count", "a_last")
)


def mixed():
    return {
        "account_id": [1, 2],
        "z_first": [0.5, 1.5],
        "city": ["x", "y"],
        "embedding": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]],
        "count": [7, 8],
        "flag": [True, False],
        "tags": [{1, 2}, {3}],
        "a_last": [-1, -2],
    }


async def test_a_row_is_all_numeric_features_in_the_order_of_the_view(repository):
    repository.add("mixed", [ACCOUNT], MIXED, mixed())
    store = await repository.open()
    assert await store.describe("mixed") == MIXED_GROUP
    rows = await store.fetch(MIXED_GROUP, [2, 3, 1])
    check_rows(rows, [[1.5, 4, 5, 6, 8, -2], [0] * 6, [0.5, 1, 2, 3, 7, -1]], [True, False, True])
    await store.close()


async def test_columns_are_named_values_of_all_single_types(repository):
    times = Field(name="opened", dtype=UnixTimestamp)
    opened = pd.to_datetime(["2024-01-31 13:45:00+00:00", None], utc=True)
    repository.add("mixed", [ACCOUNT], [*MIXED, times], mixed() | {"opened": opened, "city": ["x", None]})
    store = await repository.open()
    group = await store.describe_columns("mixed")
    assert group.columns == {
        "z_first": "float", "city": "text", "count": "integer", "flag": "boolean", "a_last": "integer",
        "opened": "timestamp", "embedding": "vector",
    }  # fmt: skip
    rows = await store.fetch_columns(group, [2, 3, 1, 2])
    one = {
        "z_first": 0.5, "city": "x", "count": 7, "flag": True, "a_last": -1,
        "opened": datetime(2024, 1, 31, 13, 45, tzinfo=UTC), "embedding": [1, 2, 3],
    }  # fmt: skip
    two = {
        "z_first": 1.5, "city": None, "count": 8, "flag": False, "a_last": -2, "opened": None,
        "embedding": [4, 5, 6],
    }  # fmt: skip
    assert rows == [two, None, one, two]
    assert await store.fetch_columns(group, ["a", 2**70]) == [None, None]
    await store.close()


async def test_arrays_and_sets_of_texts_are_codes_and_arrays_of_numbers_are_vectors(repository):
    fields = {"emb": Array(Float32), "tags": Array(String), "few": Set(String), "counts": Array(Int64)}
    rows = {
        "account_id": [1, 2],
        "emb": [[0.5, 2.0], [1.0, 2.0]],
        "tags": [["a", "later"], []],
        "few": [{"b"}, {"b", "a"}],
        "counts": [[1, 2], [3]],
    }
    schema = [Field(name=name, dtype=kind) for name, kind in fields.items()]
    repository.add("lists", [ACCOUNT], schema, rows)
    store = await repository.open()
    found = await store.describe_columns("lists")
    assert found.columns == {"emb": "vector", "tags": "codes", "few": "codes", "counts": "vector"}
    names = {
        "emb_0": "float",
        "emb_1": "float",
        "tags=a": "boolean",
        "tags#": "integer",
        "few=b": "boolean",
    }
    wanted = FeatureGroup.of_columns("lists", names)
    assert column_differences(wanted, found, lists_of(names)) == []
    one, two = await store.fetch_columns(wanted, [1, 2])
    assert {name: one[name] for name in names} == {
        "emb_0": 0.5, "emb_1": 2.0, "tags=a": True, "tags#": 2, "few=b": True
    }  # fmt: skip
    assert {name: two[name] for name in ("tags=a", "tags#", "few=b")} == {
        "tags=a": False, "tags#": 0, "few=b": True
    }  # fmt: skip
    counts = FeatureGroup.of_columns("lists", {"counts_0": "integer", "counts_1": "integer"})
    _, wrong = await store.fetch_columns(counts, [1, 2])
    assert wrong == "column 'counts': 1 values instead of a list of 2 numbers"
    await store.close()


async def test_rows_that_cannot_be_used_are_counted_and_named(repository):
    rows = {
        "account_id": [1, 2, 3, 4, 5],
        "z_first": [None, 1.0, 2.0, 3.0, 4.0],
        "embedding": [[1.0] * 3, [1.0] * 2, [1.0] * 4, [1.0] * 3, [1.0] * 3],
        "count": [0, 0, 0, 44, 0],
    }
    repository.add(
        "mixed",
        [ACCOUNT],
        MIXED,
        mixed() | rows | {"city": "x", "flag": True, "tags": [{1}] * 5, "a_last": 9},
    )
    with closing(sqlite3.connect(repository.folder / "online.db", isolation_level=None)) as online:
        # As rows are that were written before the view got its latest feature.
        count = ValueProto(int64_val=44).SerializeToString()
        gone = online.execute("DELETE FROM shop_mixed WHERE feature_name = 'count' AND value = ?", [count])
        assert gone.rowcount == 1
    store = await repository.open()
    fetched = await store.fetch(MIXED_GROUP, [1, 9, 2, 3, 2, 4, 5])
    check_rows(fetched, [[0] * 6] * 6 + [[4, 1, 1, 1, 0, 9]], [False] * 6 + [True])
    assert fetched.num_invalid == 5
    assert fetched.problems == (
        "mixed 1: feature 'z_first' has no value",
        "mixed 2: feature 'embedding' has 2 numbers, not 3",
        "mixed 3: feature 'embedding' has 4 numbers, not 3",
        "mixed 2: feature 'embedding' has 2 numbers, not 3",
        "mixed 4: 1 of 4 features are missing",
    )
    await store.close()


async def test_values_that_are_no_numbers_are_never_zeros(repository):
    repository.add("odd", [ACCOUNT], [Field(name="f", dtype=String)], {"account_id": [1], "f": ["word"]})
    repository.add("odd", [ACCOUNT], [Field(name="f", dtype=Float32)])
    store = await repository.open()
    rows = await store.fetch(FeatureGroup("odd", 1), [1])
    check_rows(rows, [[0]], False)
    assert rows.problems == ("odd 1: feature 'f' is a string",)
    await store.close()


async def test_an_integer_that_float32_changes_is_not_served(repository):
    numbers = mixed() | {"count": [2**24 + 1, 2**24 + 2]}
    repository.add("mixed", [ACCOUNT], MIXED, numbers)
    store = await repository.open()
    rows = await store.fetch(MIXED_GROUP, [1, 2])
    assert rows.found.tolist() == [False, True]
    assert rows.problems == (
        "mixed 1: feature 'count': 16777217 would become 16777216: float32 holds all integers up to "
        "16,777,216 only",
    )
    await store.close()


async def test_a_feature_service_is_a_group_of_several_views(repository):
    first = repository.add(
        "first", [ACCOUNT], [Field(name="f", dtype=Float32)], {"account_id": [1, 2], "f": [1.0, 2.0]}
    )
    second = repository.add(
        "second",
        [ACCOUNT],
        [Field(name="f", dtype=Float32), Field(name="g", dtype=Float32)],
        {"account_id": [2, 1, 3], "f": [20.0, 10.0, 30.0], "g": [0.0, 0.0, 0.0]},
    )
    renamed = second[["f"]].with_name("again")
    repository.feast.apply([FeatureService(name="both", features=[renamed, first])])
    store = await repository.open()
    group = await store.describe("both")
    assert group == FeatureGroup("both", 2, feature_names=("again__f", "first__f"))
    rows = await store.fetch(group, [2, 1, 3, 4])
    check_rows(rows, [[20, 2], [10, 1], [0, 0], [0, 0]], [True, True, False, False])
    assert rows.problems == ("both 3: 1 of 2 features are missing",)
    await store.close()


async def test_ids_that_the_join_key_cannot_have_are_not_found(repository):
    schema = [Field(name="f", dtype=Float32)]
    repository.add("device", [DEVICE], schema, {"device_id": [1, 2], "f": [1.0, 2.0]})
    repository.add("shop", [SHOP], schema, {"shop_id": ["1", ""], "f": [1.0, 2.0]})
    store = await repository.open()
    for id in ("1", 2**31, -(2**70), ""):
        rows = await store.fetch(FeatureGroup("device", 1), [2, id, 1])
        check_rows(rows, [[2], [0], [1]], [True, False, True])
    for id in (1, "\udc80", "2"):
        rows = await store.fetch(FeatureGroup("shop", 1), ["1", id, ""])
        check_rows(rows, [[1], [0], [2]], [True, False, True])
    await store.close()


async def test_a_view_that_changed_is_a_mismatch_not_a_shifted_row(repository):
    a, b = Field(name="a", dtype=Float32), Field(name="b", dtype=Float32)
    columns = {"account_id": [1], "a": [1.0], "b": [2.0]}
    repository.add("view", [ACCOUNT], [a, b], columns)
    store = await repository.open()
    group = await store.describe("view")
    check_rows(await store.fetch(group, [1]), [[1, 2]])
    repository.add(
        "view", [ACCOUNT], [Field(name="c", dtype=Float32), a], {"account_id": [1], "a": 1.0, "c": 3.0}
    )
    assert (await store.describe("view")).dim == 2
    with pytest.raises(FeatureSchemaMismatch, match="features c, a; expected a, b"):
        await store.fetch(group, [1])
    check_rows(await store.fetch(FeatureGroup("view", 2), [1]), [[3, 1]])
    with pytest.raises(FeatureSchemaMismatch, match="the store has dim 2, but 3 was requested"):
        await store.fetch(FeatureGroup("view", 3), [1])
    await store.close()


async def test_views_that_cannot_be_rows_say_why(repository):
    number = Field(name="f", dtype=Float32)
    repository.add("pair", [ACCOUNT, DEVICE], [number])
    repository.add("words", [ACCOUNT], [Field(name="f", dtype=String)])
    repository.add("endless", [ACCOUNT], [Field(name="f", dtype=Array(Float32))])
    repository.add("nobody", [], [number])
    store = await repository.open()
    for name, why in {
        "pair": "must have one join key, but has 'account_id', 'device_id'",
        "nobody": "must have one join key, but has none",
        "words": "'words' has no numeric features",
        "endless": "the length of array 'f' is unknown; set vector_length",
    }.items():
        with pytest.raises(FeatureStoreError, match="Feast repository") as caught:
            await store.describe(name)
        assert why in str(caught.value)
    await store.close()


async def test_an_unknown_group_is_refused_with_those_that_exist(store):
    with pytest.raises(
        FeatureGroupNotFound, match="'acount'; known groups: 'account', 'many', 'merchant', 'single'"
    ):
        await store.describe("acount")


async def test_it_is_read_only(store):
    with pytest.raises(FeatureStoreError, match="read-only"):
        await store.create(ACCOUNTS.group)
    with pytest.raises(FeatureStoreError, match="read-only"):
        await store.write(ACCOUNTS.group, ACCOUNTS.ids, ACCOUNTS.values)


def refuse(store, error):
    def get_online_features(**request):
        raise error

    store._feast.get_online_features = get_online_features


def of_a_driver(name):
    return type(name, (Exception,), {})("driver")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionRefusedError("nobody there"), FeatureStoreUnavailable),
        (of_a_driver("ConnectionError"), FeatureStoreUnavailable),
        (of_a_driver("ReadTimeout"), FeatureStoreUnavailable),
        (sqlite3.OperationalError("database is locked"), FeatureStoreUnavailable),
        (sqlite3.OperationalError("no such table: shop_account"), FeatureStoreError),
        (FileNotFoundError("registry.db"), FeatureStoreError),
        (ValueError("All entity_rows must have the same keys."), FeatureStoreError),
    ],
)
async def test_trouble_of_a_connection_is_distinguished_from_a_refusal(store, error, expected):
    refuse(store, error)
    with pytest.raises(FeatureStoreError, match="reading 'account': ") as caught:
        await store.fetch(ACCOUNTS.group, [1])
    assert type(caught.value) is expected
    assert caught.value.__cause__ is error


async def test_a_locked_online_store_is_unavailable_and_comes_back(repository, monkeypatch):
    repository.add("view", [ACCOUNT], [Field(name="f", dtype=Float32)], {"account_id": [1], "f": [1.0]})
    store = await repository.open()
    group = await store.describe("view")
    other = sqlite3.connect(repository.folder / "online.db", isolation_level=None)
    monkeypatch.setattr(store._feast._get_provider().online_store, "_conn", None)
    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *args, **options: connect(*args, **options | {"timeout": 0})
    )
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(FeatureStoreUnavailable, match="locked"):
        await store.fetch(group, [1])
    other.execute("ROLLBACK")
    other.close()
    check_rows(await store.fetch(group, [1]), [[1]])
    await store.close()


async def test_an_answer_that_is_short_is_refused(store):
    get_online_features = store._feast.get_online_features

    def short(**request):
        answer = get_online_features(**request)
        del answer.proto.results[-1].values[-1]
        return answer

    await store.describe("account")
    store._feast.get_online_features = short
    with pytest.raises(FeatureStoreError, match="did not return the 3 requested values of 'account__"):
        await store.fetch(ACCOUNTS.group, [7, 0, 1])


async def test_fetches_that_were_cancelled_while_they_waited_are_never_sent(store):
    get_online_features = store._feast.get_online_features
    asked, begun, go_on = [], threading.Semaphore(0), threading.Event()

    def slow(**request):
        asked.append(request["entity_rows"]["account_id"])
        begun.release()
        go_on.wait(10)
        return get_online_features(**request)

    await store.describe("account")
    store._feast.get_online_features = slow
    fetches = [asyncio.ensure_future(store.fetch(ACCOUNTS.group, [id])) for id in range(20)]
    await asyncio.to_thread(begun.acquire, timeout=10)
    for fetch in fetches:
        fetch.cancel()
    await asyncio.wait(fetches)
    go_on.set()
    check_rows(await store.fetch(ACCOUNTS.group, [42]), ACCOUNTS.values[[3]])
    assert len(asked) <= 4 + 1


async def refusal(url):
    store = FeastStore(url, "features.store")
    with pytest.raises(ConfigError, match=r"^features\.store: ") as caught:
        await store.open()
    with pytest.raises(FeatureStoreError, match="not open"):
        await store.fetch(ACCOUNTS.group, [1])
    return str(caught.value)


async def test_a_folder_without_a_repository_is_a_config_error(tmp_path):
    assert "feature_store.yaml" in await refusal(f"feast://{tmp_path}")


async def test_a_repository_without_views_is_a_config_error(repository):
    assert "has no feature views; has it been applied?" in await refusal(f"feast://{repository.folder}")


async def test_an_online_store_that_cannot_be_reached_is_a_config_error(repository, tmp_path):
    repository.add("view", [ACCOUNT], [Field(name="f", dtype=Float32)])
    (tmp_path / "feature_store.yaml").write_text(CONFIG.replace("online.db", "absent/online.db"))
    told = await refusal(f"feast://{repository.folder}")
    assert "a first read" in told


@pytest.mark.parametrize("url", ["feast://", "feast:"])
def test_a_url_without_a_folder_is_a_config_error(url):
    with pytest.raises(ConfigError, match=r"^features\.store: .* must be feast://<folder"):
        FeastStore(url, "features.store")


async def test_without_feast_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "feast", None)
    assert "hopline[feast]" in await refusal(f"feast://{tmp_path}")
