"""Copies of snapshots on a host: whole or absent, fetched once, verified, bounded, never removed in use."""

import errno
import multiprocessing
import os
import shutil
import threading
from collections import namedtuple

import pytest

from hopline.errors import (
    ConfigError,
    SnapshotDamaged,
    SnapshotNotFound,
    SnapshotTooLarge,
    SnapshotUnavailable,
    Unavailable,
)
from hopline.graph import Graph
from hopline.snapshots.cache import SnapshotCache
from hopline.snapshots.manifest import SnapshotAddress
from hopline.snapshots.store import SnapshotStore

INDICES = "graph/edges/node__to__node/indices.npy"
FEATURES = "graph/nodes/node/features.npy"
Disk = namedtuple("Disk", "total used free")


def nothing():
    raise AssertionError("nothing has to be fetched")


def take(cache, address, snapshot):
    return cache.take(snapshot, lambda: address.store)


def test_a_copy_is_the_published_graph_and_is_fetched_once(address, cache):
    snapshot = address.publish()
    with_copy = take(cache, address, snapshot)
    assert Graph.open(with_copy.graph, verify=True).version == with_copy.manifest.graph_version
    assert cache.fetched_bytes == with_copy.manifest.num_bytes == cache.used_bytes()
    again = cache.take(snapshot, nothing)
    assert again.graph == with_copy.graph


def test_a_second_snapshot_fetches_only_what_differs(address, cache):
    take(cache, address, address.publish(1))
    before = cache.fetched_bytes
    second = take(cache, address, address.publish(2))
    features = second.manifest.files[FEATURES]
    changed = {file.sha256: file.size for file in second.manifest.files.values()}
    assert cache.fetched_bytes - before <= sum(changed.values()) - features.size
    assert cache.fetched_bytes > before


def test_another_process_of_the_host_finds_the_copy_of_the_first(address, cache, tmp_path):
    snapshot = address.publish()
    take(cache, address, snapshot).release()
    assert SnapshotCache(tmp_path / "cache").take(snapshot, nothing)


def test_of_many_that_want_a_snapshot_one_fetches_it(address, tmp_path):
    snapshot = address.publish()
    caches = [SnapshotCache(tmp_path / "cache") for _ in range(6)]
    threads = [threading.Thread(target=take, args=(cache, address, snapshot)) for cache in caches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(cache.fetched_bytes > 0 for cache in caches) == 1


def spoil_changed(address, path):
    content = bytearray(address.files.cat_file(path))
    content[-1] ^= 1
    address.files.pipe_file(path, bytes(content))


def spoil_truncated(address, path):
    address.files.pipe_file(path, address.files.cat_file(path)[:-1])


def spoil_longer(address, path):
    address.files.pipe_file(path, address.files.cat_file(path) + b"x" * 10_000_000)


def spoil_absent(address, path):
    address.files.rm_file(path)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (spoil_changed, r"indices\.npy\): its sha256 is another"),
        (spoil_truncated, r"indices\.npy\) has \d+ bytes, the manifest says \d+"),
        (spoil_longer, r"indices\.npy\) has more than the \d+ bytes"),
        (spoil_absent, r"indices\.npy\) is absent"),
    ],
)
def test_a_file_that_is_not_what_the_manifest_says_is_refused_by_name_and_mended(
    address, cache, spoil, told
):
    snapshot = address.publish()
    path = address.object(snapshot, INDICES)
    whole = address.files.cat_file(path)
    spoil(address, path)
    with pytest.raises(SnapshotDamaged, match=told):
        take(cache, address, snapshot)
    assert cache.snapshots() == {}
    assert not [name for name in os.listdir(cache.folder / "objects") if name.startswith(".")]
    fetched = cache.fetched_bytes
    address.files.pipe_file(path, whole)
    assert Graph.open(take(cache, address, snapshot).graph, verify=True)
    assert cache.fetched_bytes - fetched < take(cache, address, snapshot).manifest.num_bytes


def test_what_is_not_there_is_named(address, cache):
    with pytest.raises(SnapshotNotFound, match=r"latest\.json is absent: no snapshot was published"):
        address.store.pointer()
    with pytest.raises(SnapshotNotFound, match=f"has no snapshot {'0' * 32}"):
        take(cache, address, SnapshotAddress(address.base, "0" * 32))
    assert cache.snapshots() == {}


def test_a_manifest_that_was_changed_is_refused(address, cache):
    snapshot = address.publish()
    spoil_changed(address, f"{address.root}/manifests/{snapshot.id}.json")
    with pytest.raises(SnapshotDamaged, match="not with its name"):
        take(cache, address, snapshot)


@pytest.mark.parametrize("content", [b"{", b'{"snapshot": "../../etc"}', b"[]"])
def test_a_pointer_that_is_none_is_refused(address, content):
    address.files.pipe_file(f"{address.root}/latest.json", content)
    with pytest.raises(SnapshotDamaged, match=r"latest\.json: "):
        address.store.pointer()


def test_a_copy_that_was_changed_on_the_host_is_fetched_again(address, cache):
    snapshot = address.publish()
    with_copy = take(cache, address, snapshot)
    with_copy.release()
    path = with_copy.folder / INDICES
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    mended = take(cache, address, snapshot)
    assert (mended.folder / INDICES).read_bytes() == content


def test_after_a_restart_of_the_machine_every_file_is_compared_again(address, cache, monkeypatch):
    snapshot = address.publish()
    take(cache, address, snapshot).release()
    monkeypatch.setattr("hopline.snapshots.cache.boot_id", lambda: "another")
    compared = []
    from hopline.snapshots.cache import VerifiedFiles

    compare = VerifiedFiles.compare
    monkeypatch.setattr(VerifiedFiles, "compare", lambda *args: compared.append(args[1]) or compare(*args))
    with_copy = cache.take(snapshot, nothing)  # whole: nothing is fetched
    assert len(compared) == len({file.sha256 for file in with_copy.manifest.files.values()})
    compared.clear()
    cache.take(snapshot, nothing)
    assert not compared


# Room


def test_unused_snapshots_are_removed_the_oldest_first_and_used_ones_never(address, tmp_path):
    cache = SnapshotCache(tmp_path / "cache", unused=1)
    snapshots = [address.publish(seed) for seed in range(5)]
    used = take(cache, address, snapshots[0])
    for snapshot in snapshots[1:4]:
        take(cache, address, snapshot).release()
    take(cache, address, snapshots[4]).release()
    cache.tidy()
    assert cache.snapshots() == {snapshots[4].id: False, snapshots[0].id: True}
    assert Graph.open(used.graph, verify=True)
    used.release()
    cache.tidy()
    assert cache.snapshots() == {snapshots[4].id: False}
    assert cache.used_bytes() == sum(
        {f.sha256: f.size for f in address.store.manifest(snapshots[4].id).files.values()}.values()
    )


def test_room_is_made_by_removing_the_oldest_unused(address, tmp_path):
    snapshots = [address.publish(seed) for seed in range(4)]
    size = address.store.manifest(snapshots[0].id).num_bytes
    cache = SnapshotCache(tmp_path / "cache", max_bytes=int(2.5 * size), unused=9)
    held = take(cache, address, snapshots[0])
    for snapshot in snapshots[1:]:
        take(cache, address, snapshot).release()
        assert cache.used_bytes() <= 2.5 * size
    assert cache.snapshots()[snapshots[0].id]
    assert held.graph.is_dir()


def test_a_snapshot_that_cannot_fit_is_refused_with_the_numbers(address, tmp_path):
    first, second = address.publish(1), address.publish(2)
    size = address.store.manifest(first.id).num_bytes
    cache = SnapshotCache(tmp_path / "cache", max_bytes=size + 10)
    held = take(cache, address, first)
    with pytest.raises(SnapshotTooLarge) as refused:
        take(cache, address, second)
    told = str(refused.value)
    assert f"snapshots.cache_bytes is {size + 10}" in told
    assert f"1 snapshots in use ({first.id})" in told
    assert "and 10 can be had" in told
    assert Graph.open(held.graph, verify=True)
    held.release()
    assert take(cache, address, second)


def test_a_disk_without_room_is_refused_before_anything_is_fetched(address, cache, monkeypatch):
    snapshot = address.publish()
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Disk(10**9, 10**9 - 5000, 5000))
    with pytest.raises(SnapshotTooLarge, match="its disk has 5000 bytes free"):
        take(cache, address, snapshot)
    assert cache.fetched_bytes == 0


def test_a_disk_that_fills_meanwhile_is_named_and_nothing_is_left(address, cache, monkeypatch):
    snapshot = address.publish()

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(type(address.files), "get_file", full)
        with pytest.raises(SnapshotTooLarge, match=r"needs \d+ bytes more on this host"):
            take(cache, address, snapshot)
    assert take(cache, address, snapshot)


def test_a_cache_that_cannot_be_written_is_named(address, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"snapshots\.cache: .*file.* cannot be written"):
        take(SnapshotCache(tmp_path / "file"), address, address.publish())


def test_a_driver_that_fails_in_any_way_is_an_address_that_is_away(address, cache, monkeypatch):
    snapshot = address.publish()

    def broken(*args, **kwargs):
        raise RuntimeError("no credentials\nand a long story")

    monkeypatch.setattr(type(address.files), "cat_file", broken)
    with pytest.raises(SnapshotUnavailable, match=r"cannot be used now: RuntimeError: no credentials$"):
        take(cache, address, snapshot)


# Processes that end


def _die_holding(folder, base, snapshot, ready, end):
    held = SnapshotCache(folder).take(SnapshotAddress(base, snapshot), nothing)
    ready.set()
    end.wait()
    os._exit(9)
    held.release()


def test_a_process_that_dies_uses_nothing_any_more(address, cache):
    snapshot = address.publish()
    take(cache, address, snapshot).release()
    context = multiprocessing.get_context("spawn")
    ready, end = context.Event(), context.Event()
    process = context.Process(
        target=_die_holding, args=(cache.folder, address.base, snapshot.id, ready, end)
    )
    process.start()
    assert ready.wait(30)
    assert cache.snapshots() == {snapshot.id: True}
    end.set()
    process.join()
    assert cache.snapshots() == {snapshot.id: False}


def test_what_a_process_that_died_left_is_removed(address, cache):
    first, second = address.publish(1), address.publish(2)
    take(cache, address, first)
    (cache.folder / "objects" / ".x.0123456789ab.draft").write_bytes(b"half")
    (cache.folder / "snapshots" / ".y.0123456789ab.draft").mkdir()
    take(cache, address, second)
    for folder in ("objects", "snapshots"):
        assert not [name for name in os.listdir(cache.folder / folder) if name.startswith(".")]


def test_a_fetch_ends_when_the_server_stops(address, cache, monkeypatch):
    snapshot = address.publish()
    fetch = SnapshotStore.fetch

    def stopping(*args):
        cache.stop()
        fetch(*args)

    monkeypatch.setattr(SnapshotStore, "fetch", stopping)
    with pytest.raises(Unavailable, match="shutting down"):
        take(cache, address, snapshot)


def test_the_snapshot_that_an_address_named_last_is_remembered_while_there_is_a_copy(address, cache):
    snapshot = address.publish()
    cache.remember(address.base, snapshot.id)
    assert cache.remembered(address.base) is None
    take(cache, address, snapshot)
    assert cache.remembered(address.base) == snapshot.id
    assert cache.remembered("s3://another/daily") is None
