"""Snapshots at real addresses: s3:// as moto's server plays it, https's plain brother, and a folder."""

import errno
import functools
import os
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hopline.errors import ConfigError, SnapshotDamaged, SnapshotNotFound, SnapshotUnavailable
from hopline.graph import Graph
from hopline.snapshots.cache import SnapshotCache
from hopline.snapshots.manifest import SnapshotAddress
from hopline.snapshots.store import SnapshotStore
from hopline_stores.snapshots.publish import point_to, prune, publish
from tests.s3_server import bucket, s3_server
from tests.snapshots.conftest import graph_of


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    nowhere = str(tmp_path_factory.mktemp("aws") / "absent")
    with s3_server(nowhere) as endpoint, bucket(endpoint, "snapshots") as client:
        yield client


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def http(tmp_path):
    """A web server of a folder: (URL, folder)."""
    folder = tmp_path / "web"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()
    thread.join()


def fetched(base, snapshot, folder):
    held = SnapshotCache(folder).take(SnapshotAddress(base, snapshot), lambda: SnapshotStore(base))
    graph = Graph.open(held.graph, verify=True)
    held.release()
    return graph.version


def test_a_bucket(s3, tmp_path):
    base = "s3://snapshots/daily"
    store = SnapshotStore(base)
    versions = {}
    for seed in (1, 2):
        graph = graph_of(tmp_path / f"graph{seed}", seed)
        done = publish(store, graph.path, name=f"day {seed}")
        versions[done.id] = graph.version
        assert store.pointer().snapshot == done.id
        assert 0 < done.uploaded_bytes <= done.num_bytes
    assert done.uploaded_bytes < done.num_bytes  # the features are as they were
    assert publish(store, graph.path, name="day 2")._replace(uploaded_bytes=0) == done._replace(
        uploaded_bytes=0
    )
    assert {entry.name for entry in store.manifests()} == versions.keys()
    for snapshot, version in versions.items():
        assert fetched(base, snapshot, tmp_path / "cache") == version


@pytest.mark.release
def test_a_bucket_that_is_away_or_refuses_is_named(s3, tmp_path, monkeypatch):
    graph = graph_of(tmp_path / "graph")
    done = publish(SnapshotStore("s3://snapshots/refused"), graph.path)
    with pytest.raises(SnapshotNotFound, match=r"s3://absent/daily/latest\.json is absent"):
        SnapshotStore("s3://absent/daily").pointer()
    with monkeypatch.context() as patch:
        patch.delenv("AWS_ACCESS_KEY_ID")
        patch.delenv("AWS_SECRET_ACCESS_KEY")
        with pytest.raises(SnapshotUnavailable, match=r"s3://snapshots/refused .*NoCredentials"):
            SnapshotStore("s3://snapshots/refused").pointer()
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        patch.setenv("AWS_MAX_ATTEMPTS", "1")
        with pytest.raises(SnapshotUnavailable, match="s3://snapshots/refused cannot be used now"):
            fetched("s3://snapshots/refused", done.id, tmp_path / "cache")
    assert fetched("s3://snapshots/refused", done.id, tmp_path / "cache") == graph.version


def test_an_object_that_was_truncated_in_the_bucket(s3, tmp_path):
    base = "s3://snapshots/truncated"
    store = SnapshotStore(base)
    done = publish(store, graph_of(tmp_path / "graph").path)
    name, file = max(store.manifest(done.id).files.items(), key=lambda item: item[1].size)
    key = f"truncated/objects/{file.sha256}"
    content = s3.get_object(Bucket="snapshots", Key=key)["Body"].read()
    s3.put_object(Bucket="snapshots", Key=key, Body=content[:-7])
    with pytest.raises(SnapshotDamaged, match=f"has {file.size - 7} bytes, the manifest says {file.size}"):
        fetched(base, done.id, tmp_path / "cache")
    s3.delete_object(Bucket="snapshots", Key=key)
    with pytest.raises(SnapshotDamaged, match=f"{name}.*is absent"):
        fetched(base, done.id, tmp_path / "cache")


def test_a_web_server_and_a_folder(http, tmp_path):
    url, folder = http
    graph = graph_of(tmp_path / "graph")
    done = publish(SnapshotStore(f"file://{folder}/daily"), graph.path)
    assert SnapshotStore(f"{url}/daily").pointer().snapshot == done.id
    assert fetched(f"{url}/daily", done.id, tmp_path / "cache") == graph.version
    assert fetched(f"file://{folder}/daily", done.id, tmp_path / "other") == graph.version
    with pytest.raises(SnapshotNotFound):
        SnapshotStore(f"{url}/absent").pointer()
    with pytest.raises(SnapshotUnavailable, match=r"cannot be used now: .*501"):
        publish(SnapshotStore(f"{url}/daily"), graph_of(tmp_path / "other graph", 7).path)


def test_a_driver_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"graph: nosuch://"):
        SnapshotStore("nosuch://bucket/daily")


def test_old_snapshots_of_an_address_are_pruned_and_shared_files_stay(address, tmp_path):
    snapshots = [address.publish(seed).id for seed in range(4)]
    point_to(address.store, snapshots[1])
    listed = [entry.name for entry in address.store.manifests()]
    assert set(listed) == set(snapshots)
    gone, freed = prune(address.store, keep=1)
    stays = {snapshots[1], listed[0]}
    assert set(gone) == set(snapshots) - stays
    assert freed > 0
    for snapshot in stays:
        assert fetched(address.base, snapshot, tmp_path / "cache")
    assert prune(address.store, keep=1) == ([], 0)


def test_the_pointer_never_names_what_is_not_there(address):
    snapshot = address.publish(1)
    with pytest.raises(SnapshotNotFound):
        point_to(address.store, "0" * 32)
    assert address.store.pointer().snapshot == snapshot.id


def test_a_damaged_pointer_is_repaired_by_publishing_or_by_naming_a_snapshot(address):
    first, second = address.publish(1), address.publish(2)
    for repair in (lambda: point_to(address.store, first.id), lambda: address.publish(2)):
        address.files.pipe(f"{address.root}/latest.json", b'{"snapshot": ')
        with pytest.raises(SnapshotDamaged):
            address.store.pointer()
        repair()
        assert address.store.pointer().snapshot in (first.id, second.id)


def test_a_file_of_a_right_size_and_wrong_content_is_repaired_as_its_message_says(address, tmp_path):
    first = address.publish(1)
    path = address.object(first, "graph/nodes/node/features.npy")
    content = address.files.cat_file(path)
    address.files.pipe(path, content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(SnapshotDamaged, match="remove this file there, and publish the snapshot again"):
        fetched(address.base, first.id, tmp_path / "cache")
    address.files.rm_file(path)
    assert address.publish(1).id == first.id
    assert fetched(address.base, first.id, tmp_path / "cache")


def test_other_files_beside_manifests_are_no_snapshots(address):
    snapshots = {address.publish(seed).id for seed in (1, 2)}
    for name in ("README.json", "f" * 64 + ".json", "notes.txt"):
        address.files.pipe(f"{address.root}/manifests/{name}", b"{}")
    assert {entry.name for entry in address.store.manifests()} == snapshots
    point_to(address.store, min(snapshots))
    prune(address.store, keep=2)
    assert {entry.name for entry in address.store.manifests()} == snapshots
    assert address.files.exists(f"{address.root}/manifests/README.json")


def test_a_graph_that_is_damaged_is_not_published(address, tmp_path):
    from hopline.errors import GraphError

    folder = graph_of(tmp_path / "graph").path
    path = folder / "edges/node__to__node/indices.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(GraphError, match=r"indices\.npy"):
        publish(address.store, folder)
    assert address.store.manifests() == []


def test_a_full_disk_leaves_no_part_of_a_file_at_an_address(tmp_path, monkeypatch):
    """Nothing else removes it: a snapshot that is too large would fill the disk more at each attempt."""

    def full(source, target):
        target.write_bytes(b"a part")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    graph = graph_of(tmp_path / "graph")
    store = SnapshotStore(f"file://{tmp_path}/daily")
    with monkeypatch.context() as patch:
        patch.setattr("hopline.snapshots.store.shutil.copyfile", full)
        with pytest.raises(OSError, match="No space left"):
            publish(store, graph.path)
    assert [path for path in (tmp_path / "daily").rglob("*") if path.is_file()] == []
    assert publish(store, graph.path).id == store.pointer().snapshot
