import uuid

import fsspec
import numpy as np
import pytest

from hopline.graph import Graph
from hopline.snapshots.cache import SnapshotCache
from hopline.snapshots.manifest import SnapshotAddress
from hopline.snapshots.store import SnapshotStore
from hopline_stores.snapshots.publish import publish


def graph_of(folder, seed=0, *, same_features=True):
    """A saved graph; other seeds have other edges, and on request the same features."""
    rng = np.random.default_rng(seed)
    features = np.random.default_rng(0 if same_features else seed).normal(size=(50, 8)).astype(np.float32)
    edges = rng.integers(0, 50, (2, 200))
    return Graph.from_edges(edges, features).save(folder)


class Address:
    """A folder of snapshots in memory, and what a broken one would hold."""

    def __init__(self, folder):
        self.base = f"memory://{uuid.uuid4().hex}/daily"
        self.files = fsspec.filesystem("memory")
        self.root = self.base.removeprefix("memory:/")
        self.store = SnapshotStore(self.base)
        self.folder = folder

    def publish(self, seed=0, **options):
        graph = graph_of(self.folder / f"graph{uuid.uuid4().hex}", seed)
        return SnapshotAddress(self.base, publish(self.store, graph.path, **options).id)

    def object(self, snapshot, name):
        """The path of a file's content."""
        return f"{self.root}/objects/{self.store.manifest(snapshot.id).files[name].sha256}"


@pytest.fixture
def address(tmp_path):
    return Address(tmp_path)


@pytest.fixture
def cache(tmp_path):
    return SnapshotCache(tmp_path / "cache")
