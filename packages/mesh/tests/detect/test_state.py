from __future__ import annotations

import copy
import json

import numpy as np
import pytest

from hopline_mesh.changes import Context
from hopline_mesh.detect import DetectorSettings, MeshDetector
from hopline_mesh.errors import StateDamaged
from packages.mesh.tests.detect.conftest import NORMAL
from packages.mesh.tests.detect.meshes import INTERVAL_S, START_S, node, play

NEXT_S = START_S + NORMAL * INTERVAL_S


def fault(number, nodes, edges):
    if 20 <= number < 50:
        nodes[2, node("p99_ms")] *= 9


@pytest.mark.parametrize("neighbours", [False, True])
def test_a_detector_goes_on_from_its_state_in_the_middle_of_an_incident(neighbours):
    detector = MeshDetector(neighbours=neighbours)
    detector.fit(list(play(100)), [Context()] * 100)
    snapshots = list(play(80, fault, seed=1, start_s=NEXT_S))
    for snapshot in snapshots[:35]:
        detector.step(snapshot, Context())
    meta, arrays = detector.export()
    other = MeshDetector.restore(json.loads(json.dumps(meta)), {k: v.copy() for k, v in arrays.items()})
    for snapshot in snapshots[35:]:
        assert other.step(snapshot, Context()) == detector.step(snapshot, Context())
    assert other.step(snapshots[-1], Context()).state == "normal"


def test_one_that_has_seen_nothing_goes_on_as_well():
    detector = MeshDetector.restore(*MeshDetector(DetectorSettings(window_size=60)).export())
    assert detector.settings.window_size == 60
    assert detector.step(next(play(1)), Context()).state == "learning"


@pytest.mark.parametrize(
    "what", ["format", "steps", "tracker", "settings", "absent", "nodes.level", "edges.ring"]
)
def test_a_state_that_lacks_something_is_refused(state, what):
    meta, arrays = copy.deepcopy(state)
    meta.pop(what) if what in meta else arrays.pop(what)
    if what == "steps":
        meta["steps"] = None
    with pytest.raises(StateDamaged):
        MeshDetector.restore(meta, arrays)


def test_a_state_of_an_earlier_version_is_refused(state):
    meta, arrays = copy.deepcopy(state)
    meta["format"] = "hopline-mesh-tagae-1"
    with pytest.raises(StateDamaged, match=r"format 'hopline-mesh-tagae-1', not 'hopline-mesh-4'"):
        MeshDetector.restore(meta, arrays)


@pytest.mark.parametrize(
    "excused", [["x"], [[1, 2]], [["a", None, None, True]], [[1, "3", 7, False]], [None]]
)
def test_excuses_that_are_none_are_refused(state, excused):
    meta, arrays = copy.deepcopy(state)
    meta["excused"] = excused
    with pytest.raises(StateDamaged):
        MeshDetector.restore(meta, arrays)


@pytest.mark.parametrize("name", ["nodes.level", "edges.ring", "absent"])
def test_a_state_of_other_sizes_is_refused(state, name):
    meta, arrays = copy.deepcopy(state)
    arrays[name] = np.concatenate([arrays[name], arrays[name]], axis=-1)
    with pytest.raises(StateDamaged):
        MeshDetector.restore(meta, arrays)


def test_state_does_not_grow_with_time(fitted):
    detector = fitted()
    sizes = []
    for number, snapshot in enumerate(play(600, seed=1, start_s=NEXT_S)):
        detector.step(snapshot, Context())
        if number in (150, 599):
            sizes.append(sum(array.nbytes for array in detector.export()[1].values()))
    assert sizes[0] == sizes[1]
