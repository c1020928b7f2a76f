"""A suite for stores of columns: what is written by name is read by name, as a request would have it."""

import math
from datetime import UTC, datetime

import numpy as np
import pytest

from hopline.errors import FeatureGroupNotFound
from hopline.features.base import FeatureGroup
from hopline.graph.stored_columns import cell_of

TYPES = {
    "amount": "float", "visits": "integer", "active": "boolean", "country": "text", "opened": "timestamp",
}  # fmt: skip
GROUP = FeatureGroup.of_columns("account", TYPES)
IDS = ["a1", "a2", "Käse & Söhne", "{t}", "schema", "it's"]
ROWS = {
    "amount": [12.5, -0.1, 1e100, 1 / 3e90, 16777217.0, None],
    "visits": [0, -7, 2**53 - 1, None, 3, 4],
    "active": [True, False, None, True, False, True],
    "country": ["JP", "", "日本", None, "null", "12.50"],
    "opened": [
        datetime(2024, 1, 31, 13, 45, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        None, datetime(9999, 1, 1, tzinfo=UTC), datetime(2024, 1, 1), datetime(2024, 5, 5, tzinfo=UTC),
    ],
}  # fmt: skip


def decoded(row):
    """A row as numbers and texts, by the decoder of requests."""
    return None if row is None else {name: cell_of(TYPES[name], value) for name, value in row.items()}


def written(at):
    return decoded({name: values[at] for name, values in ROWS.items()})


async def fill(store, group=GROUP, ids=IDS, rows=ROWS):
    await store.create(group)
    await store.write_columns(group, ids, rows)


class ColumnStoreSuite:
    """Tests with a fixture `columns_store`: open, empty, and able to hold nulls of texts."""

    pytestmark = pytest.mark.asyncio

    async def test_columns_are_what_was_written_in_the_order_requested(self, columns_store):
        """Nulls, empty texts, texts that look like something else, and ids that repeat or are not there."""
        await fill(columns_store)
        wanted = ["a2", "nobody", *IDS, "a2"]
        rows = await columns_store.fetch_columns(GROUP, wanted)
        assert [decoded(row) for row in rows] == [
            written(IDS.index(id)) if id in IDS else None for id in wanted
        ]
        assert list(await columns_store.fetch_columns(GROUP, [])) == []

    async def test_the_schema_of_columns_is_stored(self, columns_store):
        """With their types; there is none before."""
        with pytest.raises(FeatureGroupNotFound, match="account"):
            await columns_store.describe_columns("account")
        await fill(columns_store)
        assert (await columns_store.describe_columns("account")).columns == TYPES
        assert (await columns_store.describe("account")).dtype == "columns"

    async def test_some_of_the_columns_can_be_read(self, columns_store):
        """Those that a model reads."""
        await fill(columns_store)
        some = FeatureGroup.of_columns("account", {"country": "text", "amount": "float"})
        rows = await columns_store.fetch_columns(some, ["a1"])
        assert [decoded(row) for row in rows] == [{"country": "JP", "amount": 12.5}]

    async def test_a_second_write_replaces_whole_rows(self, columns_store):
        """A value that becomes null is no longer there."""
        await fill(columns_store)
        await columns_store.write_columns(
            GROUP, ["a1"], {name: [values[1]] for name, values in ROWS.items()} | {"amount": [None]}
        )
        (row, other) = await columns_store.fetch_columns(GROUP, ["a1", "a2"])
        assert decoded(row) == written(1) | {"amount": None}
        assert decoded(other) == written(1)

    async def test_a_row_of_nulls_is_a_row(self, columns_store):
        """It is not the same as no row."""
        await fill(columns_store, ids=["a1"], rows={name: [None] for name in TYPES})
        rows = await columns_store.fetch_columns(GROUP, ["a1", "a2"])
        assert [decoded(row) for row in rows] == [dict.fromkeys(TYPES), None]

    async def test_many_rows_with_numpy_s_values(self, columns_store):
        """More than one request; NaN is a null."""
        count = 2_500
        values = np.arange(count, dtype=np.float64)
        values[5] = math.nan
        rows = {
            "amount": values, "visits": np.arange(count), "active": values > 9,
            "country": [f"c{n}" for n in range(count)], "opened": [None] * count,
        }  # fmt: skip
        await fill(columns_store, ids=[f"n{n}" for n in range(count)], rows=rows)
        wanted = [0, 5, 10, count - 1]
        found = await columns_store.fetch_columns(GROUP, [f"n{n}" for n in wanted])
        assert [decoded(row) for row in found] == [
            {
                "amount": None if n == 5 else float(n), "visits": n, "active": int(n > 9),
                "country": f"c{n}", "opened": None,
            }
            for n in wanted
        ]  # fmt: skip
