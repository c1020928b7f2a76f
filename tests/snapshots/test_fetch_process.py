"""Snapshots that a separate process fetches."""

import os
import signal
import subprocess

import pytest

from hopline.config.schema import LogConfig
from hopline.errors import (
    RuntimeFailure,
    SnapshotDamaged,
    SnapshotNotFound,
    SnapshotTooLarge,
    SnapshotUnavailable,
    Unavailable,
)
from hopline.graph import Graph
from hopline.snapshots.cache import SnapshotCache
from hopline.snapshots.fetch_process import fetch, orders_of
from hopline.snapshots.manifest import SnapshotAddress
from hopline.snapshots.store import SnapshotStore
from hopline_stores.snapshots.publish import publish
from tests.snapshots.conftest import graph_of


@pytest.fixture
def folder(tmp_path):
    """A folder of snapshots with one in it: (address, folder)."""
    base = f"file://{tmp_path}/daily"
    done = publish(SnapshotStore(base), graph_of(tmp_path / "graph").path)
    return SnapshotAddress(base, done.id), tmp_path / "daily"


def take(cache, address, check=lambda: None):
    def nothing():
        raise AssertionError("the process fetches")

    return cache.take(
        address, nothing, lambda: fetch(orders_of(str(address), "graph", cache, LogConfig()), check)
    )


def test_the_copy_is_whole_and_its_bytes_are_counted(folder, cache):
    address, _ = folder
    held = take(cache, address)
    assert Graph.open(held.graph, verify=True)
    assert cache.fetched_bytes == held.manifest.num_bytes


def test_its_errors_are_those_of_the_fetch(folder, cache, tmp_path):
    address, daily = folder
    absent = address._replace(id="0" * 32)
    with pytest.raises(SnapshotNotFound, match="has no snapshot 000"):
        take(cache, absent)
    with pytest.raises(SnapshotTooLarge, match=r"snapshots\.cache_bytes is 10"):
        take(SnapshotCache(tmp_path / "small", 10), address)
    with pytest.raises(SnapshotUnavailable, match="cannot be used now"):
        take(cache, address._replace(base="http://127.0.0.1:9/daily"))
    path = max((daily / "objects").iterdir(), key=lambda path: path.stat().st_size)
    os.truncate(path, 100)
    with pytest.raises(SnapshotDamaged, match="has 100 bytes"):
        take(cache, address)
    assert cache.snapshots() == {}


def test_it_is_killed_when_the_server_stops(folder, cache, monkeypatch):
    address, _ = folder
    started = []
    popen = subprocess.Popen

    def noting(*args, **kwargs):
        started.append(popen(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", noting)

    def check():
        cache.stop()
        cache.check_running()

    with pytest.raises(Unavailable, match="shutting down"):
        take(cache, address, check)
    assert started[0].returncode == -signal.SIGKILL


def test_a_process_that_dies_is_named_and_leaves_nothing(folder, cache, monkeypatch):
    address, _ = folder
    with monkeypatch.context() as patch:
        patch.setattr("hopline.snapshots.fetch_process.command", lambda entry: ("sh", "-c", "kill -9 $$"))
        with pytest.raises(RuntimeFailure, match="ended with signal 9, SIGKILL"):
            take(cache, address)
    assert take(cache, address)
