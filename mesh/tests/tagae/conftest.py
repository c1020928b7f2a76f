from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from hopline_mesh.changes import Context
from hopline_mesh.tagae import Tagae, TagaeSettings
from tests.tagae.meshes import play

NORMAL = 300


@pytest.fixture(scope="session")
def state():
    """What a detector knows after normal time, without a graph model."""
    detector = Tagae(TagaeSettings(model="none"))
    snapshots = list(play(NORMAL))
    detector.fit(snapshots, [Context()] * NORMAL)
    return detector.export()


@pytest.fixture
def fitted(state) -> Callable[[], Tagae]:
    """Makes detectors that know normal time."""
    return lambda: Tagae.restore(*copy.deepcopy(state))
