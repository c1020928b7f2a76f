from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from hopline_mesh.changes import Context
from hopline_mesh.detect import MeshDetector
from packages.mesh.tests.detect.meshes import play

NORMAL = 300


@pytest.fixture(scope="session")
def state():
    """What a detector knows after normal time, without a graph model."""
    detector = MeshDetector(neighbours=False)
    snapshots = list(play(NORMAL))
    detector.fit(snapshots, [Context()] * NORMAL)
    return detector.export()


@pytest.fixture
def fitted(state) -> Callable[[], MeshDetector]:
    """Makes detectors that know normal time."""
    return lambda: MeshDetector.restore(*copy.deepcopy(state))
