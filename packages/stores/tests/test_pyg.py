"""PyG feature stores: PyG's own `Data` and `HeteroData`, its test store, and ones that misbehave."""

import asyncio
import sys
import threading
import warnings

import numpy as np
import pytest
import torch

from hopline.errors import ConfigError, FeatureGroupNotFound, FeatureStoreError, FeatureStoreUnavailable
from hopline.features.base import FeatureGroup
from hopline_stores.pyg import PygStore
from hopline_stores.testing.feature_stores import FeatureStoreSuite, Sample, check_rows

with warnings.catch_warnings():
    # PyG 2.8 scripts some of its classes when imported, which torch 2.13 has deprecated.
    warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.testing import MyFeatureStore

torch.set_num_threads(1)


def sample(name, num_rows, dim, dtype, absent):
    values = np.arange(num_rows * dim, dtype=np.float32).reshape(num_rows, dim) / 8
    return Sample(FeatureGroup(name, dim, dtype), list(range(num_rows)), values, absent)


SAMPLES = (
    sample("paper", 10, 8, "float32", [10, -1, 2**63 - 1]),
    sample("half", 20, 5, "float16", [20]),
    sample("double", 20, 2, "float64", [-1]),
    sample("single", 3, 1, "float32", [3]),
    sample("large", 2_500, 16, "float32", [2_500, -2_500]),
)
PAPERS = SAMPLES[0]

#: What a URL of these tests names: pyg://packages.stores.tests.test_pyg:named
named = None


@pytest.fixture
async def opened(monkeypatch):
    """A function that opens a `PygStore` of a PyG store."""
    stores = []

    async def open(pyg):
        monkeypatch.setattr(sys.modules[__name__], "named", pyg)
        store = PygStore(f"pyg://{__name__}:named", "features.store")
        await store.open()
        stores.append(store)
        return store

    yield open
    for store in stores:
        await store.close()


def filled(pyg, samples=SAMPLES):
    for part in samples:
        values = torch.from_numpy(part.values.astype(part.group.dtype))
        pyg.put_tensor(values, group_name=part.group.name, attr_name="x", index=None)
    return pyg


class TestHeteroData(FeatureStoreSuite):
    samples = SAMPLES

    @pytest.fixture
    async def store(self, opened):
        return await opened(filled(HeteroData()))


class TestData(FeatureStoreSuite):
    samples = (sample("node", 20, 8, "float32", [20, -1]),)

    @pytest.fixture
    async def store(self, opened):
        return await opened(Data(x=torch.from_numpy(self.samples[0].values)))


class TestStoreOfItsOwn(FeatureStoreSuite):
    samples = SAMPLES[:4]

    @pytest.fixture
    async def store(self, opened):
        return await opened(filled(MyFeatureStore(), self.samples))


async def test_rows_are_written_with_pyg(opened):
    store = await opened(filled(HeteroData(), [PAPERS]))
    for call in (store.create(PAPERS.group), store.write(PAPERS.group, [0], PAPERS.values[:1])):
        with pytest.raises(FeatureStoreError, match="pyg stores are read-only"):
            await call


async def test_a_graph_that_was_made_for_training_is_served_as_it_is(opened):
    graph = filled(HeteroData(), SAMPLES)
    graph["paper"].y = torch.zeros(10)
    graph["unfeatured"].num_nodes = 4
    store = await opened(graph)
    for part in SAMPLES:
        assert await store.describe(part.group.name) == part.group
        check_rows(await store.fetch(part.group, part.ids), part.values)


@pytest.mark.parametrize("kind", ["function", "class"])
async def test_a_factory_is_called_once(opened, kind):
    calls = []

    class Made(MyFeatureStore):
        def __init__(self):
            super().__init__()
            calls.append(threading.current_thread().name)
            filled(self, [PAPERS])

    store = await opened(Made if kind == "class" else lambda: Made())
    check_rows(await store.fetch(PAPERS.group, [2, 1]), PAPERS.values[[2, 1]])
    assert len(calls) == 1
    assert "hopline-pyg" in calls[0]


async def test_a_store_without_group_names_has_the_group_node(opened):
    store = MyFeatureStore()
    store.put_tensor(torch.from_numpy(PAPERS.values), group_name=None, attr_name="x", index=None)
    for pyg in (store, Data(x=torch.from_numpy(PAPERS.values))):
        store = await opened(pyg)
        group = await store.describe("node")
        assert group == FeatureGroup("node", 8)
        check_rows(await store.fetch(group, [3, 3, 10]), PAPERS.values[[3, 3, 0]], [True, True, False])
        with pytest.raises(FeatureGroupNotFound, match="known groups: 'node'"):
            await store.describe("paper")
        assert await store.describe("node") == group


async def test_a_request_for_an_unknown_group_makes_none(opened):
    graph = filled(HeteroData(), [PAPERS])
    store = await opened(graph)
    with pytest.raises(FeatureGroupNotFound, match="no feature group 'papers'; known groups: 'paper'"):
        await store.describe("papers")
    with pytest.raises(FeatureGroupNotFound):
        await store.fetch(FeatureGroup("papers", 8), [1])
    assert graph.node_types == ["paper"]


@pytest.mark.parametrize("make", [HeteroData, MyFeatureStore])
async def test_ids_that_are_no_row_numbers_are_not_found(opened, make):
    store = await opened(filled(make(), [PAPERS]))
    for id in (-1, -10, 10, 2**63, -(2**70), "3", "paper"):
        rows = await store.fetch(PAPERS.group, [2, id, 4])
        check_rows(rows, PAPERS.values[[2, 0, 4]], [True, False, True])


class Leaves(MyFeatureStore):
    """Has rows 0, 2, 4 …: leaves the others out of its answers, without a word."""

    def _get_tensor(self, attr):
        if attr.index is None:
            return super()._get_tensor(attr)
        kept = attr.index[attr.index % 2 == 0]
        return super()._get_tensor(type(attr)(attr.group_name, attr.attr_name, kept))


class Raises(MyFeatureStore):
    """Has rows 0, 2, 4 …: raises for any other."""

    def _get_tensor(self, attr):
        if attr.index is not None and (attr.index % 2 != 0).any():
            raise KeyError("no such row")
        return super()._get_tensor(attr)


@pytest.mark.parametrize("make", [Leaves, Raises])
async def test_a_short_answer_never_shifts_rows(opened, make):
    store = await opened(filled(make(), SAMPLES))
    ids = np.random.default_rng(0).integers(0, 2_500, 300)
    rows = await store.fetch(SAMPLES[-1].group, ids)
    check_rows(rows, SAMPLES[-1].values[ids], ids % 2 == 0)
    assert rows.num_invalid == 0


async def test_a_row_that_a_store_has_twice_is_invalid(opened):
    class Twice(MyFeatureStore):
        def _get_tensor(self, attr):
            if attr.index is not None:
                attr.index = torch.cat([attr.index, attr.index[attr.index == 5]])
            return super()._get_tensor(attr)

    store = await opened(filled(Twice(), [PAPERS]))
    rows = await store.fetch(PAPERS.group, [4, 5, 6])
    check_rows(rows, PAPERS.values[4:7], [True, False, True])
    assert rows.problems == ("paper 5: the store has 2 rows with this number",)


async def test_rows_of_the_wrong_length_are_counted_and_named(opened):
    store = await opened(filled(HeteroData(), [PAPERS]))
    rows = await store.fetch(FeatureGroup("paper", 7), [9, 1, 12, 9, 1, 1, 1])
    check_rows(rows, np.zeros((7, 7)), False)
    assert rows.num_invalid == 6
    assert rows.problems[0] == "paper 9: the row has 8 numbers, not 7"
    assert len(rows.problems) == 5


async def test_a_graph_that_changes_is_served_as_it_is_now(opened):
    graph = filled(HeteroData(), [PAPERS])
    store = await opened(graph)
    check_rows(await store.fetch(PAPERS.group, [9]), PAPERS.values[[9]])
    graph["paper"].x = torch.ones(20, 8)
    check_rows(await store.fetch(PAPERS.group, [19, 20]), np.ones((2, 8)), [True, False])
    graph["paper"].x = torch.full((2, 8), 2.0)
    check_rows(
        await store.fetch(PAPERS.group, [19, 1, 0, 2]), np.full((4, 8), 2), [False, True, True, False]
    )


@pytest.mark.parametrize(
    "x",
    [
        torch.arange(6).reshape(3, 2),
        torch.arange(6).reshape(3, 2).to(torch.bfloat16),
        torch.arange(6.0).reshape(3, 2).requires_grad_(),
        torch.arange(6.0).reshape(2, 3).T,
    ],
    ids=["int64", "bfloat16", "requires_grad", "transposed"],
)
async def test_whatever_the_tensor_is_rows_are_float32(opened, x):
    graph = HeteroData()
    graph["paper"].x = x
    store = await opened(graph)
    group = await store.describe("paper")
    assert group == FeatureGroup("paper", 2)
    expected = x.detach().float().numpy()[[2, 0]]
    check_rows(await store.fetch(group, [2, 0]), expected)


async def test_a_column_is_a_group_of_single_numbers(opened):
    store = await opened(Data(x=torch.arange(5.0), num_nodes=5))
    group = await store.describe("node")
    assert group.dim == 1
    check_rows(await store.fetch(group, [4, 2]), [[4], [2]])


async def test_rows_that_are_matrices_are_refused(opened):
    store = await opened(Data(x=torch.zeros(5, 2, 2)))
    with pytest.raises(FeatureStoreError, match=r"must be vectors; the tensor is \[5, 2, 2\]"):
        await store.describe("node")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionResetError("gone"), FeatureStoreUnavailable),
        (TimeoutError("slow"), FeatureStoreUnavailable),
        (type("ServiceUnavailable", (Exception,), {})("driver"), FeatureStoreUnavailable),
        (RuntimeError("refused"), FeatureStoreError),
        (PermissionError("refused"), FeatureStoreError),
        (KeyError("odd"), None),
    ],
)
async def test_trouble_of_a_connection_is_distinguished_from_a_refusal(opened, error, expected):
    class Fails(MyFeatureStore):
        fails = False

        def _get_tensor(self, attr):
            if self.fails and attr.index is not None:
                raise error
            return super()._get_tensor(attr)

    pyg = filled(Fails(), [PAPERS])
    store = await opened(pyg)
    await store.describe("paper")
    pyg.fails = True
    if expected is None:
        check_rows(await store.fetch(PAPERS.group, [1, 2]), np.zeros((2, 8)), False)
    else:
        with pytest.raises(FeatureStoreError, match="test_pyg:named: reading 'paper': ") as caught:
            await store.fetch(PAPERS.group, [1, 2])
        assert type(caught.value) is expected
    pyg.fails = False
    check_rows(await store.fetch(PAPERS.group, [1]), PAPERS.values[[1]])


async def test_fetches_that_were_cancelled_while_they_waited_are_never_sent(opened):
    asked, begun, go_on = [], threading.Event(), threading.Event()

    class Slow(MyFeatureStore):
        def _get_tensor(self, attr):
            if attr.index is not None and attr.index.numel():
                asked.append(attr.index.tolist())
                begun.set()
                go_on.wait(10)
            return super()._get_tensor(attr)

    store = await opened(filled(Slow(), [PAPERS]))
    fetches = [asyncio.ensure_future(store.fetch(PAPERS.group, [id])) for id in range(10)]
    await asyncio.to_thread(begun.wait, 10)
    for fetch in fetches:
        fetch.cancel()
    await asyncio.wait(fetches)
    go_on.set()
    check_rows(await store.fetch(PAPERS.group, [7]), PAPERS.values[[7]])
    assert asked == [[0], [7]]


async def test_fetches_that_wait_while_the_store_is_closed_fail(opened):
    begun, go_on = threading.Event(), threading.Event()

    class Slow(MyFeatureStore):
        def _get_tensor(self, attr):
            if attr.index is not None and attr.index.numel():
                begun.set()
                go_on.wait(10)
            return super()._get_tensor(attr)

    store = await opened(filled(Slow(), [PAPERS]))
    first, second, third = (asyncio.ensure_future(store.fetch(PAPERS.group, [id])) for id in range(3))
    await asyncio.to_thread(begun.wait, 10)
    third.cancel()
    await store.close()
    with pytest.raises(FeatureStoreUnavailable, match="was closed"):
        await second
    with pytest.raises(asyncio.CancelledError):
        await third
    go_on.set()
    await asyncio.gather(first, return_exceptions=True)


async def test_a_closed_store_says_so(opened):
    store = await opened(HeteroData())
    await store.close()
    with pytest.raises(FeatureStoreError, match="not open"):
        await store.fetch(PAPERS.group, [1])


def breaks():
    raise ConnectionRefusedError("nobody there")


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("no.such.module:store", "No module named 'no'"),
        (f"{__name__}:no_such_thing", "no attribute 'no_such_thing'"),
        (f"{__name__}:PAPERS", "is a Sample, neither a torch_geometric.data.FeatureStore"),
        (f"{__name__}:sample.__name__.upper", "is a str, neither"),
        (f"{__name__}:breaks", "nobody there"),
    ],
)
async def test_what_is_no_store_is_a_config_error_at_start(target, why):
    store = PygStore(f"pyg://{target}", "features.store")
    with pytest.raises(ConfigError, match=r"^features\.store: ") as caught:
        await store.open()
    assert why in str(caught.value)


@pytest.mark.parametrize("url", ["pyg://", "pyg://module", "pyg://:attr"])
def test_a_url_that_names_nothing_is_a_config_error(url):
    with pytest.raises(ConfigError, match=r"^features\.store: .* must be pyg://<module>:<attribute>"):
        PygStore(url, "features.store")


async def test_without_pyg_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    store = PygStore(f"pyg://{__name__}:named", "features.store")
    with pytest.raises(ConfigError, match=r"^features\.store: .*hopline\[train\]"):
        await store.open()
