"""Conformance tests of feature stores, which the tests of a store inherit.

For a store that Hopline writes:

    class TestMine(WritableFeatureStoreSuite):
        @pytest.fixture
        async def empty_store(self):
            store = MineStore("mine://…", "features.store")
            await store.open()
            yield store
            await store.close()

The tests of a store that is only read inherit `FeatureStoreSuite` and have a fixture `store`: an open store
with every group of `samples`. If a store cannot hold some of the samples, list those that it can hold:
`samples = (ACCOUNTS,)`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import pytest_asyncio

from hopline.errors import FeatureGroupNotFound, FeatureStoreError
from hopline.features.base import FeatureGroup, FeatureStore, FetchedRows
from hopline.types import ExternalIds, FloatArray


@dataclass(frozen=True)
class Sample:
    """A feature group and its rows.

    Attributes:
        group: the schema.
        ids: n distinct ids, all int or all str.
        values: float32 [n, dim]; each is exact in the group's dtype.
        absent: ids of the same kind that have no row.
    """

    group: FeatureGroup
    ids: list[int] | list[str]
    values: FloatArray
    absent: list[int] | list[str]


def _sample(group: FeatureGroup, ids: list[int] | list[str], absent: list[int] | list[str]) -> Sample:
    # Eighths up to 64 are exact in float16, too; every number of a sample's first 512 differs.
    numbers = np.arange(len(ids) * group.dim, dtype=np.int64).reshape(len(ids), group.dim)
    return Sample(group, ids, ((numbers * 7 + 3) % 1021 / 8 - 64).astype(np.float32), absent)


#: Integer ids: negative ones, zero, and the limits of int64.
ACCOUNTS = _sample(
    FeatureGroup("account", 8, feature_names=tuple(f"f{i}" for i in range(8))),
    [7, 0, -1, 42, 2**63 - 1, -(2**63), 1, 10, 100, 4_294_967_296],
    [8, -7, 10**12],
)
#: String ids: of several alphabets, and with separators and special characters.
MERCHANTS = _sample(
    FeatureGroup("merchant", 3, feature_names=("größe", "risk score", "x")),
    [
        "a",
        "42",
        "a:b",
        "Käse & Söhne",
        "日本",
        "{t}",
        "a{t}b",
        "two words",
        "🧀",
        "per%cent",
        "it's",
        "a/b",
    ],
    ["b", "43", "A", "日"],
)
HALF = _sample(FeatureGroup("half", 5, "float16"), [*range(20)], [20])
DOUBLE = _sample(FeatureGroup("double", 2, "float64"), [*range(20)], [-1])
#: One number per row.
SINGLE = _sample(FeatureGroup("single", 1), ["x", "y", "z"], ["w"])
#: More rows than stores accept in one request.
LARGE = _sample(FeatureGroup("large", 16), [3 * i for i in range(2_500)], [1, 2])

SAMPLES = (ACCOUNTS, MERCHANTS, HALF, DOUBLE, SINGLE, LARGE)


def check_rows(rows: FetchedRows, values: Any, found: Any = True) -> None:
    """Fail unless `rows` are these values: shape, dtype, layout, zeros where a row is not found.

    Args:
        values: [n, dim]; rows that are not found may have any values.
        found: bool [n], or one value for all rows.
    """
    values = np.asarray(values, np.float32)
    found = np.broadcast_to(np.asarray(found, bool), len(values))
    assert rows.values.dtype == np.float32
    assert rows.values.flags.c_contiguous
    assert rows.values.shape == values.shape
    assert rows.found.dtype == np.bool_
    assert rows.found.tolist() == found.tolist()
    np.testing.assert_array_equal(rows.values, np.where(found[:, None], values, np.float32(0)))


class FeatureStoreSuite:
    """Tests of reading. The fixture `store` is an open store that holds `samples`.

    Attributes:
        samples: the groups that the store holds.
    """

    pytestmark = pytest.mark.asyncio

    samples: ClassVar[tuple[Sample, ...]] = SAMPLES

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run a test with an argument `sample` once for each sample."""
        if "sample" in metafunc.fixturenames:
            assert metafunc.cls is not None
            metafunc.parametrize("sample", metafunc.cls.samples, ids=lambda sample: sample.group.name)

    async def test_kind_is_one_word(self, store: FeatureStore) -> None:
        """The kind labels metrics."""
        assert store.kind.isidentifier()

    async def test_describe_returns_the_stored_schema(self, store: FeatureStore, sample: Sample) -> None:
        """Names, order, dim and dtype."""
        described = await store.describe(sample.group.name)
        assert described == sample.group
        assert described.hash == sample.group.hash

    async def test_an_unknown_group_is_named(self, store: FeatureStore) -> None:
        """In the error of `describe`."""
        with pytest.raises(FeatureGroupNotFound, match="no_such_group"):
            await store.describe("no_such_group")

    async def test_rows_of_an_unknown_group_are_never_made_up(self, store: FeatureStore) -> None:
        """A store may check rows only: then no row is found."""
        group = FeatureGroup("no_such_group", 4)
        try:
            rows = await store.fetch(group, [1, 2])
        except FeatureGroupNotFound:
            return
        check_rows(rows, np.zeros((2, 4)), False)

    async def test_rows_come_in_the_order_requested(self, store: FeatureStore, sample: Sample) -> None:
        """In any order."""
        order = np.random.default_rng(0).permutation(len(sample.ids))
        check_rows(await store.fetch(sample.group, _pick(sample, order)), sample.values[order])

    async def test_duplicates_get_a_row_each(self, store: FeatureStore, sample: Sample) -> None:
        """Adjacent or not."""
        order = [0, 1, 1, 0, 2, 1, 0]
        check_rows(await store.fetch(sample.group, _pick(sample, order)), sample.values[order])

    async def test_missing_rows_are_marked_where_they_are(
        self, store: FeatureStore, sample: Sample
    ) -> None:
        """First, last, between and repeated; missing rows are not problems."""
        gone, n = sample.absent, len(sample.ids)
        ids: Any = [gone[0], sample.ids[0], gone[-1], gone[0], sample.ids[n - 1], sample.ids[0], gone[-1]]
        rows = await store.fetch(sample.group, ids)
        values = sample.values[[0, 0, 0, 0, n - 1, 0, 0]]
        check_rows(rows, values, [False, True, False, False, True, True, False])
        assert rows.num_invalid == 0
        assert rows.problems == ()

    async def test_all_rows_missing(self, store: FeatureStore, sample: Sample) -> None:
        """The shape is that of the request."""
        rows = await store.fetch(sample.group, sample.absent)
        check_rows(rows, np.zeros((len(sample.absent), sample.group.dim)), False)

    async def test_one_row(self, store: FeatureStore, sample: Sample) -> None:
        """The smallest request."""
        check_rows(await store.fetch(sample.group, _pick(sample, [1])), sample.values[[1]])

    async def test_an_empty_request_is_an_empty_answer(self, store: FeatureStore, sample: Sample) -> None:
        """Of the group's width."""
        check_rows(await store.fetch(sample.group, []), np.zeros((0, sample.group.dim)))
        check_rows(await store.fetch(sample.group, np.empty(0, np.int64)), np.zeros((0, sample.group.dim)))

    async def test_integer_ids_may_be_an_array(self, store: FeatureStore, sample: Sample) -> None:
        """Int64, contiguous or not."""
        if isinstance(sample.ids[0], str):
            return
        ids = np.array(sample.ids, np.int64)
        check_rows(await store.fetch(sample.group, ids), sample.values)
        check_rows(await store.fetch(sample.group, ids[::-2]), sample.values[::-2])

    async def test_a_large_request_with_duplicates(self, store: FeatureStore, sample: Sample) -> None:
        """More rows than the store accepts in one request."""
        order = np.random.default_rng(1).integers(0, len(sample.ids), 3_000)
        check_rows(await store.fetch(sample.group, _pick(sample, order)), sample.values[order])

    async def test_a_group_of_another_width_never_gives_shifted_rows(
        self, store: FeatureStore, sample: Sample
    ) -> None:
        """The rows are refused, or all of them invalid."""
        for dim in {1, sample.group.dim + 1, 2 * sample.group.dim} - {sample.group.dim}:
            other = FeatureGroup(sample.group.name, dim, sample.group.dtype)
            try:
                rows = await store.fetch(other, _pick(sample, [0, 1, 2]))
            except FeatureStoreError:
                continue
            check_rows(rows, np.zeros((3, dim)), False)
            assert rows.num_invalid == 3
            assert len(rows.problems) == 3
            assert str(sample.ids[0]) in rows.problems[0]

    async def test_the_answer_belongs_to_the_caller(self, store: FeatureStore, sample: Sample) -> None:
        """Writing into the result, if possible, does not change stored rows."""
        rows = await store.fetch(sample.group, _pick(sample, [0, 1]))
        if rows.values.flags.writeable:
            rows.values[:] = 12345
        check_rows(await store.fetch(sample.group, _pick(sample, [0, 1])), sample.values[:2])

    async def test_fetches_at_once_get_their_own_rows(self, store: FeatureStore) -> None:
        """Fetches of several groups and sizes, at the same time."""
        rng = np.random.default_rng(2)

        async def one(sample: Sample, size: int) -> None:
            order = rng.integers(0, len(sample.ids), size)
            check_rows(await store.fetch(sample.group, _pick(sample, order)), sample.values[order])

        sizes = (1, 2, 17, 150)
        await asyncio.gather(*(one(sample, size) for size in sizes for sample in self.samples * 2))

    async def test_a_cancelled_fetch_leaves_the_store_usable(self, store: FeatureStore) -> None:
        """Cancelled at any point: concurrent and later fetches get their own rows."""
        first, last = self.samples[0], self.samples[-1]
        for turns in range(8):
            order = np.random.default_rng(turns).permutation(len(last.ids))[:200]
            doomed = asyncio.ensure_future(store.fetch(last.group, _pick(last, order)))
            beside = asyncio.ensure_future(store.fetch(first.group, _pick(first, [turns % len(first.ids)])))
            for _ in range(turns):
                await asyncio.sleep(0)
            doomed.cancel()
            await asyncio.gather(doomed, return_exceptions=True)
            check_rows(await beside, first.values[[turns % len(first.ids)]])
            check_rows(await store.fetch(first.group, _pick(first, [1, 0])), first.values[[1, 0]])
            check_rows(await store.fetch(last.group, _pick(last, order[::-1])), last.values[order[::-1]])


class WritableFeatureStoreSuite(FeatureStoreSuite):
    """Tests of reading and writing. The fixture `empty_store` is an open store without groups.

    Attributes:
        removes: False for a store that refuses to delete rows.
    """

    removes: ClassVar[bool] = True

    @pytest_asyncio.fixture
    async def store(self, empty_store: FeatureStore) -> AsyncIterator[FeatureStore]:
        """The empty store, filled through its own `create` and `write`."""
        for sample in self.samples:
            await empty_store.create(sample.group)
            await empty_store.write(sample.group, sample.ids, sample.values)
        yield empty_store

    async def test_a_created_group_is_there_without_rows(
        self, empty_store: FeatureStore, sample: Sample
    ) -> None:
        """It does not exist before."""
        with pytest.raises(FeatureGroupNotFound, match=sample.group.name):
            await empty_store.describe(sample.group.name)
        await empty_store.create(sample.group)
        assert await empty_store.describe(sample.group.name) == sample.group
        check_rows(await empty_store.fetch(sample.group, _pick(sample, [0])), sample.values[:1], False)

    async def test_rows_are_written_in_parts_and_over_old_ones(
        self, empty_store: FeatureStore, sample: Sample
    ) -> None:
        """Other rows do not change."""
        n = len(sample.ids)
        await empty_store.create(sample.group)
        await empty_store.write(sample.group, _pick(sample, range(2)), sample.values[:2])
        await empty_store.write(sample.group, _pick(sample, range(1, n)), sample.values[:-1])
        check_rows(await empty_store.fetch(sample.group, sample.ids), sample.values[[0, *range(n - 1)]])

    async def test_the_last_of_duplicates_is_kept(self, empty_store: FeatureStore, sample: Sample) -> None:
        """Within one write and across several."""
        await empty_store.create(sample.group)
        await empty_store.write(sample.group, _pick(sample, [0, 1, 0]), sample.values[:3])
        check_rows(await empty_store.fetch(sample.group, _pick(sample, [0, 1])), sample.values[[2, 1]])

    async def test_any_layout_of_values_is_written(self, empty_store: FeatureStore, sample: Sample) -> None:
        """Slices, Fortran order; later changes by the caller have no effect."""
        await empty_store.create(sample.group)
        n = len(sample.ids)
        for values in (np.asfortranarray(sample.values), sample.values.repeat(2, axis=0)[::2]):
            values = values.copy(order="K")
            await empty_store.write(sample.group, sample.ids, values)
            values[:] = 12345
            check_rows(await empty_store.fetch(sample.group, sample.ids), sample.values)
        backwards = sample.values[::-1]
        await empty_store.write(sample.group, _pick(sample, range(n - 1, -1, -1)), backwards)
        check_rows(await empty_store.fetch(sample.group, sample.ids), sample.values)

    async def test_integer_ids_of_a_write_may_be_an_array(
        self, empty_store: FeatureStore, sample: Sample
    ) -> None:
        """They are the same ids as in a list."""
        if isinstance(sample.ids[0], str):
            return
        await empty_store.create(sample.group)
        await empty_store.write(sample.group, np.array(sample.ids, np.int64), sample.values)
        check_rows(await empty_store.fetch(sample.group, sample.ids), sample.values)

    async def test_numbers_that_are_no_ordinary_ones(self, empty_store: FeatureStore) -> None:
        """NaN, infinities, minus zero and subnormal numbers are stored unchanged."""
        group = FeatureGroup("odd", 6)
        values = np.array([[np.nan, np.inf, -np.inf, -0.0, 1e-45, 3.4e38]], np.float32)
        await empty_store.create(group)
        await empty_store.write(group, [1], values)
        rows = await empty_store.fetch(group, [1])
        assert rows.found.all()
        assert rows.values.tobytes() == values.tobytes()

    async def test_numbers_are_rounded_to_the_group_s_dtype(self, empty_store: FeatureStore) -> None:
        """As in NumPy."""
        group = FeatureGroup("coarse", 2, "float16")
        values = np.array([[0.1, 1 / 3]], np.float32)
        await empty_store.create(group)
        await empty_store.write(group, ["a"], values)
        check_rows(await empty_store.fetch(group, ["a"]), values.astype(np.float16))

    async def test_an_empty_write_changes_nothing(self, store: FeatureStore, sample: Sample) -> None:
        """It is not an error."""
        await store.write(sample.group, [], np.empty((0, sample.group.dim), np.float32))
        check_rows(await store.fetch(sample.group, sample.ids), sample.values)

    async def test_removed_rows_are_gone_and_others_stay(self, store: FeatureStore, sample: Sample) -> None:
        """Each second row is removed, twice."""
        gone = np.arange(len(sample.ids)) % 2 == 0
        if not self.removes:
            with pytest.raises(FeatureStoreError, match="read-only"):
                await store.remove(sample.group, sample.ids)
            return
        ids: Any = [id for id, is_gone in zip(sample.ids, gone.tolist(), strict=True) if is_gone]
        for _ in range(2):  # missing rows are not an error
            await store.remove(sample.group, ids[:1] + ids)
            check_rows(await store.fetch(sample.group, sample.ids), sample.values, ~gone)
        assert await store.describe(sample.group.name) == sample.group
        assert sample.group.name in await store.group_names()

    async def test_values_of_another_shape_are_refused(self, store: FeatureStore, sample: Sample) -> None:
        """Before anything is written."""
        n, dim = sample.values.shape
        for shape in ((n, dim + 1), (n - 1, dim), (n * dim,)):
            with pytest.raises(FeatureStoreError, match="values"):
                await store.write(sample.group, sample.ids, np.zeros(shape, np.float32))
        check_rows(await store.fetch(sample.group, sample.ids), sample.values)

    async def test_a_group_that_is_created_anew_has_no_old_rows_of_another_width(
        self, store: FeatureStore, sample: Sample
    ) -> None:
        """Old rows would be shifted."""
        wider = FeatureGroup(sample.group.name, sample.group.dim + 1, sample.group.dtype)
        await store.create(wider)
        assert await store.describe(sample.group.name) == wider
        values = np.ones((1, wider.dim), np.float32)
        await store.write(wider, _pick(sample, [0]), values)
        check_rows(await store.fetch(wider, _pick(sample, [0, 1])), values.repeat(2, axis=0), [True, False])

    async def test_groups_do_not_see_each_other_s_rows(self, empty_store: FeatureStore) -> None:
        """Even if their ids are equal, or one name contains another."""
        groups = [FeatureGroup(name, 2) for name in ("a", "aa", "b", "a_b")]
        for number, group in enumerate(groups):
            await empty_store.create(group)
            await empty_store.write(group, [1, 11], np.full((2, 2), number, np.float32))
        for number, group in enumerate(groups):
            check_rows(await empty_store.fetch(group, [11, 1]), np.full((2, 2), number))


def _pick(sample: Sample, order: Any) -> ExternalIds:
    """The sample's ids at these positions."""
    pick: Callable[[int], Any] = sample.ids.__getitem__
    return [pick(int(i)) for i in order]
