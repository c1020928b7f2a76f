"""A graph that is read from its folder by number: the same answers, whatever is in the page cache."""

import asyncio
import os

import numpy as np
import pytest

from hopline.config.reader import load_config
from hopline.errors import GraphError
from hopline.graph_store.disk import DiskStore
from hopline.memory.file_reads import EntryFile
from hopline.packaging import package
from hopline.service import Service
from hopline.types import ScoreRequest
from tests.engine import zoo
from tests.graph_store.answers import answer, answerer_on, request_of, same
from tests.graph_store.suite import GraphStoreSuite

N = zoo.N


def evict(folder):
    """Drop a folder's files from the page cache."""
    for path in folder.rglob("*.npy"):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


class TestDisk(GraphStoreSuite):
    @pytest.fixture(params=["sage", "hetero"])
    def graph(self, request, cases, tmp_path):
        return cases[request.param].graph.save(tmp_path / "graph")

    @pytest.fixture
    async def store(self, graph):
        store = DiskStore(graph)
        await store.open()
        yield store
        await store.close()


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("name", ["sage", "gat", "hetero"])
async def test_answers_are_those_of_the_graph_in_memory(cases, tmp_path, name, cold):
    case = cases[name]
    graph = case.graph.save(tmp_path / "graph")
    store = DiskStore(graph)
    stored, local = answerer_on(case, store.graph, False), case.answerer(False)
    for first in range(0, 60, 9):
        if cold:
            evict(tmp_path)
        request = request_of(case, range(first, first + 4))
        found, _ = await answer(stored, store, request)
        assert same(found, local.answer([request])[0])
    await store.close()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
async def test_feature_rows_are_those_that_kernels_read(cases, tmp_path, dtype):
    graph = cases["sage"].graph.with_features_as(dtype).save(tmp_path / "graph")
    store = DiskStore(graph)
    ids = np.array([5, 3, 3, 119, 0])
    expected = np.asarray(graph.nodes["node"].features[ids], np.float32)
    out = np.empty_like(expected)
    lost, _ = store.rows["node"].read(ids, out)
    here = np.setdiff1d(np.arange(5), lost)
    assert np.array_equal(out[here], expected[here])
    fetched = await store.rows["node"].fetch(ids, 30.0)
    assert np.array_equal(fetched.values, expected)
    assert fetched.is_complete
    await store.close()


def test_a_compressed_graph_is_refused(cases, tmp_path):
    graph = cases["sage"].graph.compressed().save(tmp_path / "graph")
    with pytest.raises(GraphError, match="without --compress-edges"):
        DiskStore(graph)


def test_entries_are_read_by_number_in_any_order(tmp_path):
    values = np.random.default_rng(0).integers(0, 2**31, (5000, 3)).astype(np.int32)
    path = tmp_path / "entries"
    path.write_bytes(b"head" + values.tobytes())
    file = EntryFile(path, 4, np.int32, 3)
    for entries in (np.array([4999]), np.arange(100, 900), np.array([7, 8, 9, 3, 3, 4998, 4999, 0])):
        assert np.array_equal(file.read(entries), values[entries])
        found, lost = file.read_now(entries)
        here = np.setdiff1d(np.arange(len(entries)), lost)
        assert np.array_equal(found[here], values[entries][here])
    assert file.read(np.empty(0, np.int64)).shape == (0, 3)
    file.close()


def test_a_file_that_is_cut_is_an_error(tmp_path):
    path = tmp_path / "entries"
    path.write_bytes(np.arange(100, dtype=np.int32).tobytes())
    file = EntryFile(path, 0, np.int32)
    os.truncate(path, 40)
    _, lost = file.read_now(np.array([3, 50]))
    assert 1 in lost
    with pytest.raises(OSError, match="ends before entry 50"):
        file.read(np.array([3, 50]))
    file.close()


async def test_a_server_answers_from_the_disk(tmp_path):
    graph = zoo.homogeneous(1).save(tmp_path / "graph")
    zoo.torch.manual_seed(0)
    zoo.torch.set_num_threads(1)
    package(
        zoo.Plain().eval(), graph, tmp_path / "models", name="plain", fanouts=[4, 3, 5], task="multiclass"
    )

    async def answers(memory):
        service = Service(
            load_config(
                overrides={
                    "graph.path": tmp_path / "graph",
                    "graph.memory": memory,
                    "graph.fetch_timeout_ms": 30_000.0,
                    "models.repository": tmp_path / "models",
                    "state_cache.memory_bytes": 0,
                }
            )
        )
        await service.start()
        if memory == "disk":
            evict(tmp_path / "graph")
        asked = [ScoreRequest("plain", nodes=[f"n{i}"], outputs=("logits",)) for i in range(N)]
        results = await asyncio.gather(*[service.score(request) for request in asked])
        service.begin_drain()
        assert await service.drain(5)
        await service.close()
        assert all(result.degraded == () for result in results)
        return np.concatenate([result.outputs["logits"] for result in results])

    assert np.array_equal(await answers("disk"), await answers("mapped"))
