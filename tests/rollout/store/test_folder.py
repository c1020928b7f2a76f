"""The store of one host."""

import errno
import itertools
import math
import os
import shutil
import time

import pytest

from hopline.errors import StoreUnavailable
from hopline.rollout.store import folder
from hopline.rollout.store.base import Ack
from hopline.rollout.store.folder import FolderStore
from hopline.testing.state_stores import StateStoreSuite, serving


class TestFolderStore(StateStoreSuite):
    @pytest.fixture
    def join(self, tmp_path):
        stores, numbers = [], itertools.count()

        def join():
            store = FolderStore(tmp_path / "state", index=next(numbers), count=8)
            store.open()
            stores.append(store)
            return store

        yield join
        for store in stores:
            store.close()


def test_a_worker_that_cannot_write_counts_as_cut_off_until_it_can(tmp_path, monkeypatch, caplog):
    first, second = (FolderStore(tmp_path / "state", index=index, count=2) for index in range(2))
    for store in (first, second):
        store.open()
    monkeypatch.setattr(folder, "_AGAIN_S", 0.0)
    first.publish_counts("a-0", b"1")
    assert first.heard().at == math.inf
    before = time.monotonic()

    def full(path, *args, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(folder, "write_atomically", full)
        first.publish_counts("a-0", b"2")
        first.acknowledge(Ack(1, 1, {}))
        first.doubt("a-0", b"")
        with pytest.raises(StoreUnavailable, match=r"nothing was changed: .*No space left"):
            first.check_up()
        assert first.heard().at <= before
        assert list(second.counts("a-0")) == [b"1"]
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "No space left on device" in said
    assert "no caller gets a rollout's candidate" in said
    first.heard()  # writes the acknowledgement that failed
    first.check_up()
    assert first.heard().at == math.inf
    assert second.acknowledgements() == {"0": Ack(1, 1, {})}
    for store in (first, second):
        store.close()


def test_a_change_is_refused_if_the_disk_became_full_since_the_last_write(tmp_path, monkeypatch):
    """The other workers would wait for an acknowledgement that cannot be written."""
    store = FolderStore(tmp_path / "state", count=2)
    store.open()
    store.acknowledge(Ack(1, 1, {}))
    store.check_up()

    def full(path, *args, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(folder, "write_atomically", full)
        with pytest.raises(StoreUnavailable, match=r"nothing was changed: .*No space left"):
            store.check_up()
    store.check_up()
    store.close()


@pytest.mark.parametrize("lost", ["folder", "file", "newer content"])
def test_workers_write_again_what_the_folder_lost(tmp_path, caplog, lost):
    """A worker that starts later serves what the others serve, not what the repository alone gives."""
    place = tmp_path / "state"
    first, other, late = (FolderStore(place, index=index, count=3) for index in range(3))
    first.open()
    first.update(serving("1"))
    older = (place / "lifecycle.json").read_bytes()
    after = first.update(serving("2"))
    other.open()
    assert other.read()[0] == after

    def lose():
        if lost == "folder":
            shutil.rmtree(place)
        elif lost == "file":
            (place / "lifecycle.json").unlink()
        else:
            (place / "lifecycle.json").write_bytes(older)

    lose()
    assert other.heard().identity != first.read()[1]
    assert other.read() == first.read()
    assert first.read()[0] == after
    assert "writing it again" in caplog.text
    late.open()
    assert late.read()[0] == after
    lose()
    assert first.update(serving("3")).generation == 3
    assert other.read()[0].models["m"].serving == "3"
    for store in (first, other, late):
        store.close()
