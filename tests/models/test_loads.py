"""Loads while others are served: several at once, callers that hang up, what is held and given back."""

import asyncio
import dataclasses
import fcntl
import gc
import json
import os
import threading

import numpy as np
import pytest

import hopline.answering.sources as wiring
from hopline.errors import BadRequest, FeatureStoreUnavailable, HoplineError, ModelNotFound
from hopline.features.base import FeatureGroup
from hopline.features.memory import MemoryStore
from hopline.graph import Graph
from hopline.models import graph_kind, graph_version, model_inputs
from hopline.rollout import state
from hopline.rollout.rollout import RolloutRequest
from hopline.types import ScoreRequest
from tests import loaded_units_rig as rig
from tests.engine import zoo


def regions(worker):
    """Unit -> workers that map its tables, as the shared memory's directory has it."""
    fd = worker.config.worker.state_cache_fd
    length = int.from_bytes(os.pread(fd, 8, 0), "little")
    found = json.loads(os.pread(fd, length, 8)) if length else {}
    return {key.rpartition("/")[0]: sorted(region["users"]) for key, region in found.items()}


def is_measured(worker, unit_id):
    return worker.metrics.queue_rows("sage", unit_id).read is not None


async def test_two_loads_of_one_version_at_once_are_one(root, workers, monkeypatch):
    rig.publish(root, "2")
    gate = rig.Gate(monkeypatch, "2")
    calls = [asyncio.ensure_future(worker.load("sage", "2")) for worker in (*workers, *workers)]
    await rig.until(lambda: gate.held)
    gate.open()
    assert await asyncio.gather(*calls) == ["2"] * 4
    assert gate.held == 2  # one for each worker
    for worker in workers:
        assert await rig.version_of(worker) == "2"
        assert is_measured(worker, "2")
    assert regions(workers[0]) == {"sage/1": [0, 1], "sage/2": [0, 1]}


async def test_a_retry_while_another_worker_loads_takes_nothing_from_it(root, workers, monkeypatch):
    rig.publish(root, "2")
    gate = rig.Gate(monkeypatch, "2", workers={1})
    first, second = workers
    begun = asyncio.ensure_future(first.load("sage", "2"))
    await rig.until(lambda: gate.held)  # the other worker follows
    retried = asyncio.ensure_future(second.load("sage", "2"))
    again = asyncio.ensure_future(first.load("sage", "2"))
    await asyncio.sleep(0)
    gate.open()
    assert await asyncio.gather(begun, retried, again) == ["2"] * 3
    assert gate.held == 1
    assert all(is_measured(worker, "2") for worker in workers)
    assert regions(first) == {"sage/1": [0, 1], "sage/2": [0, 1]}
    await first.unload("sage", "1")
    await rig.until(lambda: regions(first) == {"sage/2": [0, 1]})


async def test_a_unit_that_is_loaded_anew_while_it_drains_keeps_its_memory(root, workers, monkeypatch):
    rig.publish(root, "2")
    first, second = workers
    await first.load("sage", "2")
    old = first._lifecycle.loaded.units["sage"]["1"]
    drained = asyncio.Event()
    monkeypatch.setattr(old, "join", drained.wait)
    await first.unload("sage", "1")
    await second.load("sage", "1")  # as it was, while the old one still finishes its requests
    drained.set()
    await asyncio.sleep(0)
    await rig.until(lambda: "sage/1" in regions(first))
    assert regions(first) == {"sage/1": [0, 1], "sage/2": [0, 1]}
    assert is_measured(first, "1")
    assert await rig.version_of(first) == "1"


async def test_a_caller_that_hangs_up_stops_no_load(root, monkeypatch):
    service = await rig.started(root)
    rig.publish(root, "2")
    gate = rig.Gate(monkeypatch, "2")
    impatient = asyncio.ensure_future(service.load("sage", "2"))
    patient = asyncio.ensure_future(service.load("sage", "2"))
    await rig.until(lambda: gate.held)
    impatient.cancel()
    await asyncio.gather(impatient, return_exceptions=True)
    with pytest.raises(ModelNotFound):  # nothing is there before it is whole
        await rig.version_of(service, version="2")
    gate.open()
    assert await patient == "2"
    assert gate.held == 1
    assert await rig.version_of(service) == "2"
    await rig.stop(service)


async def test_a_load_without_a_caller_left_serves_in_the_end(root, workers, monkeypatch):
    rig.publish(root, "2")
    gate = rig.Gate(monkeypatch, "2", workers={1})
    caller = asyncio.ensure_future(workers[0].load("sage", "2"))
    await rig.until(lambda: gate.held)  # published, and not yet acknowledged
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    for worker in workers:
        assert await rig.version_of(worker) == "1"
    gate.open()
    await rig.until(lambda: all(w.describe_rollout("sage")["serving"] == "2" for w in workers))
    for worker in workers:
        assert await rig.version_of(worker) == "2"


async def test_a_load_that_ends_in_vain_leaves_nothing(root, workers, monkeypatch):
    rig.publish(root, "2")
    gate = rig.Gate(monkeypatch, "2", workers={0})
    first, second = workers
    loading = asyncio.ensure_future(first.load("sage", "2"))
    await rig.until(lambda: gate.held)
    rig.publish(root, "3")
    asked = RolloutRequest("sage", "3", steps=(50.0, 100.0), min_step_s=60, preflight=0)
    await second.begin_rollout(asked)
    gate.open()
    with pytest.raises(HoplineError, match="rollout of sage to 3 is under way"):
        await loading
    await rig.until(lambda: "sage/2" not in regions(first))
    assert not is_measured(first, "2")
    assert [unit["id"] for unit in first.describe_rollout("sage")["units"]] == ["1", "3"]


async def test_the_loop_reads_and_writes_no_files_while_it_serves(root, workers, monkeypatch):
    rig.publish(root, "2")
    loop = threading.get_ident()
    called = []

    def watched(module, name):
        work = getattr(module, name)

        def watching(*args, **kwargs):
            called.append((name, threading.get_ident() == loop))
            return work(*args, **kwargs)

        monkeypatch.setattr(module, name, watching)

    watched(os, "fsync")
    watched(fcntl, "flock")
    watched(state.msgspec.json, "format")
    watched(graph_kind, "read_spec")
    watched(graph_version, "load_model")
    watched(model_inputs, "prefault")
    watched(Graph, "open")
    zoo.homogeneous(2).save(root / "later")
    called.clear()
    await workers[0].load("sage", "2", graph=str(root / "later"))
    await workers[1].unload("sage", "1")
    assert {name for name, _ in called} >= {"fsync", "flock", "read_spec", "load_model", "open"}
    assert [name for name, on_loop in called if on_loop] == []


async def test_garbage_of_the_moment_of_a_load_is_not_kept_for_ever(root):
    service = await rig.started(root)
    rig.publish(root, "2")
    gc.collect()
    before = gc.get_freeze_count()
    await service.load("sage", "2")
    await service.unload("sage", "1")
    await service.load("sage", "1")
    assert gc.get_freeze_count() <= before
    await rig.stop(service)


class Stores:
    """Feature stores that count who opens and closes them."""

    def __init__(self, monkeypatch, rows):
        self.open, self.opened, self.allowed = 0, 0, asyncio.Event()
        self.allowed.set()
        self.fail = False
        monkeypatch.setattr(wiring, "open_store", lambda url, setting: CountedStore(self, rows))


class CountedStore(MemoryStore):
    def __init__(self, stores, rows):
        super().__init__()
        self._stores = stores
        self._values = rows

    async def open(self):
        self._stores.opened += 1
        self._stores.open += 1
        await self._stores.allowed.wait()
        if self._stores.fail:
            raise FeatureStoreUnavailable("the store does not answer")
        for name, values in self._values.items():
            group = FeatureGroup(name, values.shape[1])
            await self.create(group)
            await self.write(group, [f"n{i}" for i in range(len(values))], values)

    async def close(self):
        self._stores.open -= 1


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A graph, a later one, and models plain and other on them."""
    from tests.packaged import package

    root = tmp_path_factory.mktemp("stored")
    graph = zoo.homogeneous(1).save(root / "graph")
    zoo.homogeneous(2).save(root / "later")
    for seed, name in enumerate(("plain", "other")):
        zoo.torch.manual_seed(seed)
        package(zoo.Plain().eval(), graph, root / "models", name=name, fanouts=[4, 3, 5], task="multiclass")
    return root


async def stored_service(stored, tmp_path, name="state", **settings):
    given = {"features.store": "memory:", "state_cache.memory_bytes": 0, "models.state": tmp_path / name}
    return await rig.started(stored, **(given | settings))


async def logits(service, model, version=None):
    request = ScoreRequest(
        model, nodes=[f"n{i}" for i in range(zoo.N)], outputs=("logits",), version=version
    )
    return (await service.score(request)).outputs["logits"]


@pytest.mark.release
async def test_loads_that_need_a_store_that_is_being_opened_wait_for_it(stored, tmp_path, monkeypatch):
    later = Graph.open(stored / "later")
    moved = (
        np.array(later.nodes["node"].features) + 1
    )  # so that rows of the store can be told from the graph's
    stores = Stores(monkeypatch, {"node": moved, "others": moved})
    service = await stored_service(stored, tmp_path)
    opened = stores.opened
    stores.allowed.clear()
    calls = [
        asyncio.ensure_future(service.load(m, graph=str(stored / "later"))) for m in ("plain", "other")
    ]
    await rig.until(lambda: stores.opened > opened)
    stores.allowed.set()
    first, second = await asyncio.gather(*calls)
    assert stores.opened == opened + 1  # one for both
    found = [await logits(service, "plain"), await logits(service, "other")]

    # an independent server whose graph holds the store's rows
    changed = tmp_path / "changed"
    (changed / "models").parent.mkdir()
    os.symlink(stored / "models", changed / "models")
    with_rows(stored / "later", moved).save(changed / "graph")
    expected = await stored_service(changed, tmp_path, "other-state", **{"features.store": ""})
    for model, scores in zip(("plain", "other"), found, strict=True):
        np.testing.assert_array_equal(scores, await logits(expected, model))
    await rig.stop(expected)

    await service.load("plain", "1")
    await service.unload("plain", first)
    await service.load("other", "1")
    assert stores.open == 2
    assert (await logits(service, "other", second)).shape == found[1].shape  # the store is still open
    await service.unload("other", second)
    await rig.until(lambda: stores.open == 1)  # the server's own
    await rig.stop(service)
    assert stores.open == 0


def with_rows(folder, rows):
    """The graph of `zoo.homogeneous(2)` with other features."""
    graph = Graph.open(folder)
    nodes = {"node": dataclasses.replace(graph.nodes["node"], features=rows)}
    return Graph(graph.schema, nodes, dict(graph.edges))


async def test_a_store_that_fails_to_open_is_closed_and_tried_again(stored, tmp_path, monkeypatch):
    rows = np.array(Graph.open(stored / "graph").nodes["node"].features)
    stores = Stores(monkeypatch, {"node": rows})
    service = await stored_service(stored, tmp_path)
    stores.fail = True
    later = str(stored / "later")
    calls = [service.load(model, graph=later) for model in ("plain", "other")]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [FeatureStoreUnavailable] * 2
    assert stores.open == 1
    stores.fail = False
    await service.load("plain", graph=later)
    assert stores.open == 2
    await rig.stop(service)
    assert stores.open == 0


async def test_groups_are_those_of_the_store_or_a_bad_request(stored, tmp_path, monkeypatch):
    rows = np.array(Graph.open(stored / "graph").nodes["node"].features)
    stores = Stores(monkeypatch, {"node": rows, "moved": rows + 1, "wide": np.zeros((5, 9), np.float32)})
    service = await stored_service(stored, tmp_path)
    before = await logits(service, "plain")
    for groups, text in (
        (("node=nothing",), "no feature group 'nothing'"),
        (("node=wide",), "dim is 9 in the store, but 6 is expected"),
        (("nodes=moved",), "'nodes' is unknown; did you mean"),
    ):
        with pytest.raises(BadRequest, match=text):
            await service.load("plain", groups=groups)
        assert stores.open == 1
    unit_id = await service.load("plain", groups=("node=moved",))
    assert (await logits(service, "plain", unit_id) != before).any()
    np.testing.assert_array_equal(await logits(service, "plain", "1"), before)
    await rig.stop(service)
    assert stores.open == 0
