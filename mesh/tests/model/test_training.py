"""Training tells a node from its neighbours and its past; the same seed gives the same weights."""

import numpy as np
import pytest

from hopline_mesh.errors import MeshError, SnapshotInvalid
from hopline_mesh.model import reference
from hopline_mesh.model.frames import Frame
from hopline_mesh.model.shape import ModelShape
from hopline_mesh.model.training import Schedule, fine_tune, non_edges, train
from hopline_mesh.model.weights import Weights

SHAPE = ModelShape(2, 2, 1, 2, 1, hidden=32, heads=2, d_out=16, d_edge_temporal=1, d_decoder=16)
SHORT = Schedule(steps=150, every=25, batch_frames=16)
SOURCES, TARGETS = np.array([0, 0, 1, 2], np.int32), np.array([1, 2, 3, 3], np.int32)


def frames_of(count, seed=0):
    """A wave of load that all four services follow; the second column is half the first."""
    rng = np.random.default_rng(seed)
    found = []
    load = np.zeros(4)
    for k in range(count):
        before, load = load, np.sin(k / 9) + rng.normal(0, 0.05, 4)
        x = np.stack([load, load / 2], axis=1).astype(np.float32)
        h = np.stack([before, before / 2], axis=1).astype(np.float32)
        amount = load[TARGETS][:, None].astype(np.float32)
        wanted = x.copy()
        wanted[k % 4, 0] = np.nan
        past = before[TARGETS][:, None].astype(np.float32)
        found.append(Frame(x, h, SOURCES, TARGETS, amount, past, wanted, amount.copy()))
    return found


def error_of(weights, frames):
    off = []
    for frame in frames:
        z = reference.encode(weights, frame.sources, frame.targets, frame.x, frame.h, frame.e)
        nodes, edges, _ = reference.decode(weights, z, frame.sources, frame.targets, frame.g)
        off += [np.nanmean((nodes - frame.node_targets) ** 2), np.mean((edges - frame.edge_targets) ** 2)]
    return float(np.mean(off))


@pytest.fixture(scope="module")
def learned():
    told = []
    frames = frames_of(120)
    return (
        frames,
        train(frames, SHAPE, seed=1, schedule=SHORT, progress=lambda done, of: told.append((done, of))),
        told,
    )


def test_a_trained_model_expects_what_comes(learned):
    _, weights, told = learned
    later = frames_of(140, seed=5)[120:]
    assert error_of(weights, later) < 0.1 * error_of(Weights.initial(SHAPE, 1), later)
    assert error_of(weights, later) < 0.02
    assert told[-1] == (150, 150)
    assert told == sorted(told)


def test_the_same_seed_gives_the_same_weights(learned):
    frames = learned[0][:30]
    brief = Schedule(steps=6, every=3)
    assert (
        train(frames, SHAPE, seed=2, schedule=brief).to_bytes()
        == train(frames, SHAPE, seed=2, schedule=brief).to_bytes()
    )


def test_fine_tuning_goes_on_from_present_weights_and_leaves_them(learned):
    _, weights, _ = learned
    before = weights.to_bytes()
    shifted = []
    for frame in frames_of(60, seed=3):
        shifted.append(
            Frame(
                frame.x,
                frame.h,
                SOURCES,
                TARGETS,
                frame.e,
                frame.g,
                frame.node_targets + 0.5,
                frame.edge_targets,
            )
        )
    tuned = fine_tune(weights, shifted, schedule=Schedule(steps=60, every=20, learning_rate=3e-3))
    assert error_of(tuned, shifted) < 0.3 * error_of(weights, shifted)
    assert weights.to_bytes() == before


def test_what_was_not_measured_teaches_nothing():
    frames = [
        Frame(
            f.x,
            f.h,
            SOURCES,
            TARGETS,
            f.e,
            f.g,
            np.full_like(f.node_targets, np.nan),
            f.edge_targets * np.nan,
        )
        for f in frames_of(4)
    ]
    weights = train(frames, SHAPE, schedule=Schedule(steps=2, link_weight=0.0))
    assert all(np.isfinite(array).all() for array in weights.arrays.values())


def test_meshes_without_edges_and_empty_intervals_are_borne():
    none = np.zeros(0, np.int32)
    frames = [
        Frame(f.x, f.h, none, none, f.e[:0], f.g[:0], f.node_targets, f.edge_targets[:0])
        for f in frames_of(4)
    ]
    empty = Frame(*(a[:0] for a in (frames[0].x, frames[0].h)), none, none, frames[0].e, frames[0].g,
                  frames[0].node_targets[:0], frames[0].edge_targets)  # fmt: skip
    train([empty, *frames], SHAPE, schedule=Schedule(steps=2))
    with pytest.raises(MeshError, match="at least 2 intervals"):
        train([empty, frames[0]], SHAPE)


def test_frames_that_do_not_fit_are_refused():
    frame = frames_of(1)[0]
    with pytest.raises(SnapshotInvalid, match="not finite"):
        Frame(frame.x * np.nan, *(getattr(frame, n) for n in Frame.__slots__[1:])).check(SHAPE)
    with pytest.raises(SnapshotInvalid, match=r"frame's x is"):
        frame.check(ModelShape(3, 2, 1, 2, 1))


def test_non_edges_are_all_that_are_free_or_five_for_each_edge():
    edges = np.array([[0, 1], [1, 2]])
    free = non_edges(3, edges, np.random.default_rng(0))
    assert {(int(a), int(b)) for a, b in free.T} == {(0, 2), (1, 0), (2, 0), (2, 1)}
    rng = np.random.default_rng(0)
    many = np.unique(rng.integers(0, 2000, (2, 9000)), axis=1)
    free = non_edges(2000, many, rng)
    assert abs(free.shape[1] / many.shape[1] - 5) < 0.01
    calls = set(map(tuple, many.T.tolist()))
    assert all(a != b and (a, b) not in calls for a, b in free.T.tolist())
