"""The benchmark's splits: nothing that is judged on reaches training."""

import numpy as np
import pytest

from benchmarks.distill_phases.splits import Data, draw, largest_component, load, observe


@pytest.fixture(scope="module")
def data() -> Data:
    chance = np.random.default_rng(0)
    one_way = chance.integers(0, 400, (2, 1600))
    y = np.arange(400) % 3
    return Data(np.concatenate([one_way, one_way[::-1]], 1), np.eye(400, 8, dtype=np.float32), y)


@pytest.mark.parametrize("seed", range(3))
def test_splits_are_disjoint_and_of_the_protocols_sizes(data, seed):
    split = draw(data, seed)
    parts = [split.train, split.valid, split.tran, split.ind]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(400))
    assert [len(part) for part in parts] == [60, 90, 200, 50]
    assert np.bincount(data.y[split.train]).tolist() == [20, 20, 20]
    assert np.bincount(data.y[split.valid]).tolist() == [30, 30, 30]


def test_held_out_nodes_and_test_labels_are_not_observed(data):
    split = draw(data, 1)
    seen = observe(data, split)
    assert not set(seen.nodes) & set(split.ind)
    assert seen.edge_index.max() < len(seen.nodes)
    assert (seen.labels[seen.tran] == -1).all()
    assert set(np.flatnonzero(seen.labels >= 0)) == set(seen.train) | set(seen.valid)
    kept = np.isin(data.edge_index, seen.nodes).all(0)
    np.testing.assert_array_equal(seen.nodes[seen.edge_index], data.edge_index[:, kept])


def test_test_labels_change_nothing_that_is_observed(data):
    split = draw(data, 2)
    twisted = data.y.copy()
    for part in (split.tran, split.ind):
        twisted[part] = (twisted[part] + 1) % 3
    mine, theirs = observe(data, split), observe(Data(data.edge_index, data.x, twisted), split)
    for name in ("edge_index", "x", "labels", "nodes", "train", "valid", "tran"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))


def test_largest_component_of_a_chain_and_two_triangles():
    pairs = [(0, 1), (1, 2), (2, 0), (3, 4), (5, 6), (6, 7), (7, 8), (9, 9)]
    assert largest_component(np.array(pairs).T, 10).tolist() == [5, 6, 7, 8]


def test_file_of_sparse_rows_is_read(tmp_path):
    file = tmp_path / "graph.npz"
    np.savez(
        file,
        edge_index=np.array([[0, 1, 1, 2], [1, 0, 2, 1]], np.int32),
        y=np.array([0, 1, 0, 1], np.int16),
        x_shape=(4, 3),
        x_indptr=np.array([0, 1, 3, 3, 4], np.int32),
        x_indices=np.array([0, 1, 2, 2], np.int32),
    )
    read = load(file)
    half = np.sqrt(0.5)
    np.testing.assert_allclose(read.x, [[1, 0, 0], [0, half, half], [0, 0, 0]], atol=1e-6)
    assert read.y.tolist() == [0, 1, 0]
