"""The store of one host."""

import itertools

import pytest

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
