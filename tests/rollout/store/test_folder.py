"""The store of one host."""

import errno
import itertools
import math
import os
import time

import pytest

from hopline.errors import StoreUnavailable
from hopline.rollout.store import folder
from hopline.rollout.store.base import Ack
from hopline.rollout.store.folder import FolderStore
from hopline.testing.state_stores import StateStoreSuite


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
