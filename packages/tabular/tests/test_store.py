"""Rows of a store that are encoded as they are fetched: bit for bit the graph's, and each fault named."""

import asyncio

import numpy as np
import pytest

from hopline.engine.encoders import encoder_of
from hopline.errors import FeatureSchemaMismatch, FeatureStoreError
from hopline.features.base import FeatureGroup
from hopline.features.memory import MemoryStore
from hopline.features.skew import SchemaWatch
from hopline_tabular.store import EncodedStore
from packages.tabular.tests.fraud_world import as_sent


@pytest.fixture
def encoder(world):
    return encoder_of(world.report.path, world.report.spec, "account")


TYPES = {
    "amount": "float", "country": "text", "mcc": "text", "age": "integer", "active": "boolean",
    "opened": "timestamp",
}  # fmt: skip
COLUMNS = FeatureGroup.of_columns("accounts", TYPES)


def stored(encoder, rows, types=TYPES):
    """The encoded store of a memory that holds rows by id."""
    memory = MemoryStore()
    features = FeatureGroup("account@1", encoder.width)
    asyncio.run(memory.create(FeatureGroup.of_columns("accounts", types)))
    memory._columns["accounts"] = dict(rows)
    return EncodedStore(memory, COLUMNS, features, encoder), features


def fetch(encoder, rows, ids):
    store, features = stored(encoder, rows)
    return asyncio.run(store.fetch(features, ids))


@pytest.mark.parametrize("count", [1, 5, 300])
def test_rows_of_a_store_are_those_of_the_graph_bit_for_bit(world, encoder, count):
    rows = {id: as_sent(row) for id, row in zip(world.ids, world.frame.to_dict("records"), strict=True)}
    ids = [*world.ids[:count], "nobody", world.ids[0]]
    found = fetch(encoder, rows, ids)
    graph = encoder.encode(world.graph.nodes["account"].columns.values(slice(0, 300)), 300)
    assert found.found.tolist() == [True] * count + [False, True]
    assert found.values[:count].tobytes() == graph[:count].tobytes()
    assert found.values[-1].tobytes() == graph[0].tobytes()
    assert (found.num_invalid, found.problems) == (0, ())


FAULTS = {
    "gone": ({"amount": 1.0}, "column 'country' is missing"),
    "type": ({"age": "old"}, "column 'age': 'old' instead of a whole number"),
    "flag": ({"active": 1}, "column 'active': 1 instead of true or false"),
    "time": ({"opened": "31/01/2024"}, "column 'opened': '31/01/2024' instead of a time in ISO 8601"),
    "huge": ({"age": 2**60}, f"column 'age': {2**60} is beyond ±{2**53}"),
    "list": ({"amount": [1]}, "column 'amount': [1] instead of a number"),
    "form": ("is no hash", "is no hash"),
}


@pytest.mark.parametrize("others", [1, 100])
def test_a_row_that_cannot_be_used_is_named_and_the_others_are_used(world, encoder, others):
    good = as_sent(world.frame.iloc[0])
    rows = {f"a{n}": good for n in range(others)}
    for name, (change, _) in FAULTS.items():
        if name == "gone":
            rows[name] = change
        else:
            rows[name] = change if isinstance(change, str) else good | change
    for name, (_, said) in FAULTS.items():
        found = fetch(encoder, rows, [*list(rows)[:others], name])
        assert found.found.tolist() == [True] * others + [False]
        assert (found.num_invalid, found.invalid.tolist()) == (1, [False] * others + [True])
        (problem,) = found.problems
        assert problem.startswith(f"group 'accounts': the row of '{name}': {said}")
        assert not found.values[-1].any()
        expected = encoder.rows([good])
        assert found.values[:-1].tobytes() == np.repeat(expected, others, axis=0).tobytes()
    every = fetch(encoder, rows, list(rows))
    assert every.num_invalid == len(FAULTS)
    assert len(every.problems) == 5


def test_a_null_is_what_the_preprocessing_makes_of_it(world, encoder):
    good = as_sent(world.frame.iloc[0])
    nulls = dict.fromkeys(good)
    found = fetch(encoder, {"a": good, "b": nulls}, ["a", "b"])
    assert found.found.all()
    assert found.values[1].tobytes() == encoder.rows([nulls]).tobytes()
    merchants = encoder_of(world.report.path, world.report.spec, "merchant")
    memory = MemoryStore()
    asyncio.run(memory.create(group := FeatureGroup.of_columns("m", {"risk": "float", "category": "text"})))
    memory._columns["m"] = {1: {"risk": None, "category": "food"}, 2: {"risk": 1.5, "category": None}}
    store = EncodedStore(memory, group, FeatureGroup("m@1", merchants.width), merchants)
    found = asyncio.run(store.fetch(group, np.array([1, 2])))
    assert found.found.tolist() == [False, True]
    assert found.problems == ("group 'm': the row of 1: column 'risk': no value, but a number is needed",)


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ({name: kind for name, kind in TYPES.items() if name != "mcc"}, "the store has no column 'mcc'"),
        (TYPES | {"mcc": "integer"}, "column 'mcc' is integer in the store, and text is expected"),
        (TYPES | {"more": "text", "amount": "integer"}, ""),
    ],
)
def test_columns_that_change_refuse_all_rows_with_the_difference(encoder, types, said):
    async def scenario():
        store, features = await asyncio.to_thread(stored, encoder, {})
        watch = SchemaWatch(features, store, None, 100.0)
        await watch.start()
        await store._store.create(FeatureGroup.of_columns("accounts", types))
        await watch.check()
        await watch.close()
        return watch.refusal

    refusal = asyncio.run(scenario())
    assert said in refusal
    assert bool(said) == bool(refusal)


def test_a_store_of_numbers_is_refused_with_what_to_do(encoder):
    async def scenario():
        memory = MemoryStore()
        await memory.create(FeatureGroup("accounts", 6))
        with pytest.raises(
            FeatureSchemaMismatch, match=r"6 numbers, and no columns.*hopline features load"
        ):
            await EncodedStore(memory, COLUMNS, FeatureGroup("x", encoder.width), encoder).describe("x")
        with pytest.raises(FeatureStoreError, match="no columns"):
            await FeatureStoreWithout().fetch_columns(COLUMNS, ["a"])

    asyncio.run(scenario())


class FeatureStoreWithout(MemoryStore):
    """A store that was written before there were columns."""

    fetch_columns = MemoryStore.__mro__[1].fetch_columns
