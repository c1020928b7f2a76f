"""A service on snapshots at an address: started, swapped as a unit, and what a bad snapshot leaves."""

import asyncio
import shutil
import uuid

import fsspec
import numpy as np
import pytest

from hopline.answering.unit import Unit
from hopline.config.reader import load_config
from hopline.errors import (
    BadRequest,
    ConfigError,
    PrecomputedFileError,
    SnapshotDamaged,
    SnapshotNotFound,
    SnapshotTooLarge,
    SnapshotUnavailable,
)
from hopline.graph import Graph
from hopline.rollout.gates import Gates
from hopline.rollout.rollout import RolloutRequest
from hopline.rollout.snapshot_watch import gates_of
from hopline.service import Service
from hopline.snapshots.store import SnapshotStore
from hopline.types import ScoreRequest
from hopline_stores.snapshots.publish import point_to, publish
from tests import loaded_units_rig as rig
from tests.engine import zoo
from tests.precomputed_files import write_table

NODES = ["n1", "n2", "n3", "n4"]


class Daily:
    """Snapshots at an address in memory; the graph of each day has other edges."""

    def __init__(self, folder, source):
        self.base = f"memory://{uuid.uuid4().hex}/daily"
        self.files = fsspec.filesystem("memory")
        self.root = self.base.removeprefix("memory:/")
        self.store = SnapshotStore(self.base)
        self.folder = folder
        self.source = source

    def graph(self, day):
        path = self.folder / f"day{day}"
        if not path.is_dir():
            zoo.homogeneous(day).save(path)
        return path

    def publish(self, day, **options):
        return publish(self.store, self.graph(day), **options).id

    def version(self, day):
        return Graph.open(self.graph(day)).version

    def config(self, **settings):
        overrides = {
            "graph.path": self.base,
            "models.repository": self.source / "models",
            "models.state": self.folder / "state",
            "snapshots.cache": self.folder / "cache",
        }
        return load_config(overrides={**overrides, **settings})

    async def started(self, **settings):
        return await rig.begin(Service(self.config(**settings)))

    async def local_answer(self, day):
        """What a server on the graph's own folder answers."""
        settings = {"graph.path": self.graph(day), "models.state": self.folder / f"other{day}"}
        service = await self.started(**settings)
        result = await service.score(ScoreRequest("sage", nodes=NODES))
        await rig.stop(service)
        return result


@pytest.fixture
def daily(root, tmp_path):
    return Daily(tmp_path, root)


async def answer(service, **options):
    return await service.score(ScoreRequest("sage", nodes=NODES, **options))


def same(a, b):
    assert a.graph_version == b.graph_version
    for name, values in a.outputs.items():
        np.testing.assert_array_equal(values, b.outputs[name])


def told(service):
    return service.metrics.render().decode()


async def look(service):
    """Read the pointer once, as the watch does every `snapshots.poll_s`."""
    await service._lifecycle._watch.look()


WATCHED = {
    "snapshots.poll_s": 1e6,
    "snapshots.rollout": "blue_green",
    "snapshots.min_step_s": 0,
    "snapshots.preflight": 0,
    "snapshots.gates": ("min_requests=1", "max_disagreement=1", "max_psi=1e6", "max_p99_ratio=1e6"),
}


async def test_a_server_on_an_address_answers_as_one_on_the_folder(daily):
    daily.publish(1)
    service = await daily.started()
    found = await answer(service)
    same(found, await daily.local_answer(1))
    assert found.version.startswith("1@")
    same(await answer(service, version="1"), found)  # callers that name a version know no snapshot
    same(await answer(service, version=found.version), found)
    await rig.stop(service)


async def test_a_restart_takes_the_newest_snapshot_and_without_the_address_the_last(daily, monkeypatch):
    daily.publish(1)
    await rig.stop(await daily.started())
    daily.publish(2)
    service = await daily.started()
    assert (await answer(service)).graph_version == daily.version(2)
    await rig.stop(service)

    def away(*args, **kwargs):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(type(daily.files), "cat_file", away)
    service = await daily.started()
    assert (await answer(service)).graph_version == daily.version(2)
    await rig.stop(service)
    with pytest.raises(SnapshotUnavailable, match="no route to host"):
        await daily.started(**{"snapshots.cache": daily.folder / "empty"})


async def test_a_version_that_was_loaded_on_a_local_graph_is_not_taken_for_one_on_the_address(daily):
    daily.publish(2)
    service = await daily.started(**{"graph.path": daily.graph(1)})
    await service.load("sage", "1")
    await rig.stop(service)
    with pytest.raises(ConfigError, match="load it again with this address, or remove"):
        await daily.started()


async def test_a_load_swaps_to_the_newest_snapshot_and_a_rollback_returns(daily):
    daily.publish(1)
    service = await daily.started()
    daily.publish(2)
    unit_id = await service.load("sage", "1", graph=daily.base)
    found = await answer(service)
    assert found.version == unit_id
    same(found, await daily.local_answer(2))
    await service.decide_rollout("sage", "rollback")
    assert (await answer(service)).graph_version == daily.version(1)
    await rig.stop(service)


async def test_a_new_version_is_loaded_on_the_snapshot_that_serves(daily):
    daily.publish(1)
    service = await daily.started()
    daily.publish(2)
    rig.publish(daily.source, "2")
    await service.load("sage", "2")
    assert (await answer(service)).graph_version == daily.version(1)
    await rig.stop(service)


async def test_precomputed_answers_come_with_the_snapshot(daily):
    artifact = daily.source / "models" / "sage" / "1"
    files = [
        write_table(daily.folder / f"sage{day}.answers", artifact, Graph.open(daily.graph(day)))
        for day in (1, 2)
    ]
    daily.publish(1, precomputed=files[:1])
    service = await daily.started()
    daily.publish(2, precomputed=files[1:])
    await service.load("sage", "1", graph=daily.base)
    for version in (None, service.describe_rollout("sage")["previous"]):
        found = await answer(service, version=version)
        same(found, await daily.local_answer(1 if version else 2))
        line = (
            f'hopline_precomputed_rows_total{{model="sage",version="{found.version}",outcome="looked_up"}}'
        )
        assert f"{line} {len(NODES)}" in told(service)
    await rig.stop(service)


async def test_precomputed_answers_of_another_graph_are_refused_and_the_old_ones_serve_on(daily):
    artifact = daily.source / "models" / "sage" / "1"
    file = write_table(daily.folder / "sage.answers", artifact, Graph.open(daily.graph(1)))
    daily.publish(1, precomputed=[file])
    service = await daily.started()
    daily.publish(2, precomputed=[file])
    with pytest.raises(PrecomputedFileError, match="graph"):
        await service.load("sage", "1", graph=daily.base)
    assert (await answer(service)).graph_version == daily.version(1)
    await rig.stop(service)


async def test_the_watch_rolls_a_new_snapshot_out_and_unloads_what_is_older(daily):
    first = daily.publish(1)
    service = await daily.started(**WATCHED)
    await look(service)
    assert service.describe_rollout("sage")["rollout"] is None
    for day in (2, 3):
        newest = daily.publish(day)
        await look(service)
        begun = service.describe_rollout("sage")["rollout"]
        assert begun["candidate"] == Unit("1", f"{daily.base}#{newest}").id
        assert 'hopline_snapshot_behind{model="sage"} 1' in told(service)
        await service.decide_rollout("sage", "promote")
        await look(service)
        same(await answer(service), await daily.local_answer(day))
        assert 'hopline_snapshot_behind{model="sage"} 0' in told(service)
        assert len(service.describe_rollout("sage")["units"]) == 2
    cached = service._loader.tools.inputs.snapshots.cache.snapshots()
    assert cached[newest]
    assert not cached.get(first, False)
    await rig.stop(service)


async def test_gates_decide_on_a_snapshot_as_on_a_version(daily):
    daily.publish(1)
    service = await daily.started(**WATCHED)
    daily.publish(2)
    await look(service)
    async with asyncio.timeout(20):
        while service.describe_rollout("sage")["rollout"] is not None:
            await answer(service)
    same(await answer(service), await daily.local_answer(2))
    assert service.describe_rollout("sage")["past"][0]["status"] == "promoted"
    await rig.stop(service)


async def test_a_snapshot_that_was_rolled_back_is_not_tried_again_until_the_pointer_moves(daily):
    first = daily.publish(1)
    service = await daily.started(**WATCHED)
    second = daily.publish(2)
    await look(service)
    await service.decide_rollout("sage", "rollback", "worse")
    for _ in range(3):
        await look(service)
        assert service.describe_rollout("sage")["rollout"] is None
    point_to(daily.store, first)
    await look(service)
    point_to(daily.store, second)
    await look(service)
    assert service.describe_rollout("sage")["rollout"] is not None
    await rig.stop(service)


async def test_a_rollback_after_the_promotion_holds_until_the_pointer_moves(daily):
    daily.publish(1)
    service = await daily.started(**WATCHED)
    daily.publish(2)
    await look(service)
    await service.decide_rollout("sage", "promote")
    await service.decide_rollout("sage", "rollback")
    await look(service)
    assert service.describe_rollout("sage")["rollout"] is None
    assert (await answer(service)).graph_version == daily.version(1)
    third = daily.publish(3)
    await look(service)
    assert service.describe_rollout("sage")["rollout"]["candidate"] == Unit("1", f"{daily.base}#{third}").id
    await rig.stop(service)


async def test_a_snapshot_names_the_version_that_is_rolled_out_with_it(daily):
    daily.publish(1)
    service = await daily.started(**WATCHED)
    rig.publish(daily.source, "2")
    newest = daily.publish(2, models={"sage": "2"})
    await look(service)
    assert (
        service.describe_rollout("sage")["rollout"]["candidate"] == Unit("2", f"{daily.base}#{newest}").id
    )
    await rig.stop(service)


INDICES = "graph/edges/node__to__node/indices.npy"


def changed(daily, snapshot):
    path = f"{daily.root}/objects/{daily.store.manifest(snapshot).files[INDICES].sha256}"
    content = bytearray(daily.files.cat_file(path))
    content[-1] ^= 1
    daily.files.pipe_file(path, bytes(content))


def truncated(daily, snapshot):
    path = f"{daily.root}/objects/{daily.store.manifest(snapshot).files[INDICES].sha256}"
    daily.files.pipe_file(path, daily.files.cat_file(path)[:-1])


def absent(daily, snapshot):
    daily.files.rm_file(f"{daily.root}/objects/{daily.store.manifest(snapshot).files[INDICES].sha256}")


def no_manifest(daily, snapshot):
    daily.files.rm_file(f"{daily.root}/manifests/{snapshot}.json")


@pytest.mark.parametrize(
    ("spoil", "error", "reason"),
    [
        (changed, SnapshotDamaged, "snapshot_damaged"),
        (truncated, SnapshotDamaged, "snapshot_damaged"),
        (absent, SnapshotDamaged, "snapshot_damaged"),
        (no_manifest, SnapshotNotFound, "snapshot_not_found"),
    ],
)
async def test_a_bad_snapshot_is_refused_and_counted_and_the_old_one_serves_on(
    daily, spoil, error, reason, caplog
):
    daily.publish(1)
    service = await daily.started(**WATCHED)
    before = await answer(service)
    spoil(daily, daily.publish(2))
    with pytest.raises(error):
        await service.load("sage", "1", graph=daily.base)
    assert f'hopline_snapshot_failures_total{{reason="{reason}"}} 1' in told(service)
    await look(service)
    assert f'hopline_snapshot_failures_total{{reason="{reason}"}} 2' in told(service)
    assert "cannot be taken up, and 1@" in caplog.text
    await look(service)  # its next try is not due yet
    assert f'hopline_snapshot_failures_total{{reason="{reason}"}} 2' in told(service)
    same(await answer(service), before)
    daily.publish(3)
    await look(service)
    assert service.describe_rollout("sage")["rollout"] is not None
    await rig.stop(service)


async def test_a_disk_without_room_is_refused_and_the_old_one_serves_on(daily):
    daily.publish(1)
    size = daily.store.manifest(daily.store.pointer().snapshot).num_bytes
    service = await daily.started(**{"snapshots.cache_bytes": int(1.2 * size)})
    before = await answer(service)
    daily.publish(2)
    with pytest.raises(SnapshotTooLarge, match=r"snapshots\.cache_bytes is"):
        await service.load("sage", "1", graph=daily.base)
    assert 'hopline_snapshot_failures_total{reason="snapshot_too_large"} 1' in told(service)
    same(await answer(service), before)
    await rig.stop(service)


async def test_a_pointer_that_cannot_be_read_is_said_once_and_counted(daily, caplog, monkeypatch):
    daily.publish(1)
    service = await daily.started(**WATCHED)
    pointer = f"{daily.root}/latest.json"
    for content in (b"{", b'{"snapshot": "nonsense"}'):
        daily.files.pipe_file(pointer, content)
        caplog.clear()
        for _ in range(2):
            await look(service)
        assert caplog.text.count("the pointer of snapshots cannot be read, and the old ones serve on") == 1
    daily.files.pipe_file(pointer, b'{"snapshot": "%s"}' % (b"0" * 32))
    await look(service)
    assert "has no snapshot 0000" in caplog.text
    assert 'hopline_snapshot_failures_total{reason="snapshot_damaged"} 4' in told(service)
    assert (await answer(service)).graph_version == daily.version(1)
    await rig.stop(service)


async def test_an_address_that_is_none_is_refused(daily):
    service = await daily.started(**{"graph.path": daily.graph(1)})
    for graph, message in {
        "memory://x/daily#latest": "is not the id of a snapshot",
        "https://x/daily?sig=secret": "cannot have a query",
        f"{daily.base}": "no snapshot was published",
    }.items():
        with pytest.raises((BadRequest, SnapshotNotFound), match=message) as refused:
            await service.load("sage", "1", graph=graph)
        assert "secret" not in str(refused.value)
    with pytest.raises(BadRequest, match="nosuch"):
        await service.load("sage", "1", graph="nosuch://x/daily")
    await rig.stop(service)


async def test_a_server_on_a_folder_rolls_out_a_snapshot_by_one_call(daily):
    daily.publish(2)
    service = await daily.started(**{"graph.path": daily.graph(1)})
    gates = Gates(min_requests=1, max_disagreement=1, max_psi=1e6, max_p99_ratio=1e6)
    await service.begin_rollout(
        RolloutRequest("sage", "1", "blue_green", graph=daily.base, gates=gates, preflight=0, min_step_s=0)
    )
    async with asyncio.timeout(20):
        while service.describe_rollout("sage")["rollout"] is not None:
            await answer(service)
    same(await answer(service), await daily.local_answer(2))
    await rig.stop(service)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"live.enabled": True}, r"live\.enabled: a live graph begins with a local folder"),
        ({"features.prefetcher": "/tmp/p.sock"}, r"features\.prefetcher: needs a graph in a local folder"),
        ({"graph.path": "memory://x/daily#" + "0" * 32, "snapshots.poll_s": 1}, "names one snapshot"),
        ({"graph.path": "nosuch://x/daily"}, r"graph\.path: "),
        ({"snapshots.poll_s": 1, "snapshots.gates": ("max_psy=1",)}, r"snapshots\.gates: 'max_psy=1'"),
    ],
)
async def test_settings_that_do_not_go_together_are_refused(daily, settings, message):
    daily.publish(1)
    with pytest.raises(ConfigError, match=message):
        await daily.started(**settings)


async def test_a_pointer_without_an_address_is_refused(daily):
    with pytest.raises(ConfigError, match=r"snapshots\.poll_s: graph\.path is not an address"):
        await daily.started(**{"graph.path": daily.graph(1), "snapshots.poll_s": 1})


@pytest.mark.parametrize("item", ["max_psi", "max_psi=x", "min_requests=0.5", "max_error_rate=2"])
def test_gates_that_make_no_sense_are_refused(item):
    with pytest.raises(ConfigError, match=r"snapshots\.gates"):
        gates_of((item,))


def test_gates_that_are_not_named_keep_their_defaults():
    assert gates_of(("max_psi=0.5", "min_requests=10")) == Gates(max_psi=0.5, min_requests=10)


async def test_two_workers_of_a_host_fetch_a_snapshot_once_and_switch_together(daily, tmp_path):
    from tests.shared_memory import create_shared

    daily.publish(1)
    (tmp_path / "shared").mkdir()
    shared = daily.config(**{"server.workers": 2}).replace(
        worker__metrics_dir=str(tmp_path / "shared"),
        worker__state_cache_fd=create_shared(),
        worker__count=2,
    )
    workers = [Service(shared.replace(worker__index=i)) for i in range(2)]
    for worker in workers:
        await worker.start()
    daily.publish(2)
    await workers[0].load("sage", "1", graph=daily.base)
    for worker in workers:
        same(await answer(worker), await daily.local_answer(2))
    fetched = [worker._loader.tools.inputs.snapshots.cache.fetched_bytes for worker in workers]
    assert sorted(map(bool, fetched)) == [False, True]
    for worker in workers:
        await rig.stop(worker)
    shutil.rmtree(tmp_path / "shared")
