"""Structure features against a dense solution, and those of nodes that come later."""

import numpy as np
import pytest

from benchmarks.distill_phases.accuracy import new_rows
from hopline.errors import ConfigError
from hopline_compress.distill.propagate import by_destination, directions
from hopline_compress.distill.run import structure_features
from hopline_compress.distill.settings import Settings

EXACT = Settings(structure=True, tolerance=1e-7)


def drawn(seed: int, num_nodes: int = 30, num_edges: int = 90, dim: int = 5):
    """A directed graph in which some nodes have no in-edges, and features."""
    chance = np.random.default_rng(seed)
    edges = np.stack(
        [chance.integers(0, num_nodes, num_edges), chance.integers(0, num_nodes - 5, num_edges)]
    ).astype(np.int64)
    return edges, chance.normal(size=(num_nodes, dim)).astype(np.float32)


def dense(edges, base, restart):
    """The fixed point, solved as a linear system."""
    num_nodes = len(base)
    adjacency = np.zeros((num_nodes, num_nodes))
    np.add.at(adjacency, (edges[1], edges[0]), 1)
    degrees = adjacency.sum(1)
    scale = 1 / np.sqrt(np.maximum(degrees, 1))
    weights = (1 - restart) * scale[:, None] * adjacency * scale
    own = np.where(degrees > 0, restart, 1.0)
    return np.linalg.solve(np.eye(num_nodes) - weights, own[:, None] * base)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("restart", [0.1, 0.5, 1.0])
def test_rows_are_the_fixed_point_of_the_diffusion(seed, restart):
    edges, x = drawn(seed)
    settings = Settings(restart=restart, tolerance=1e-7)
    base = x @ directions(x, settings.width)
    expected = dense(edges, base.astype(np.float64), restart)
    found = structure_features(edges, x, settings)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_row_of_a_new_node_follows_from_its_neighbours_rows():
    edges, x = drawn(4)
    rows = structure_features(edges, x, EXACT)
    arrived = np.random.default_rng(5).normal(size=(3, x.shape[1])).astype(np.float32)
    new_edges = np.array([[0, 4, 4, 9, 12], [30, 30, 31, 31, 31]])  # the last one, 32, has none
    indptr, sources = by_destination(new_edges - [[0], [30]], 3)
    degrees = np.bincount(edges[1], minlength=len(x))
    base = arrived @ directions(x, EXACT.width)
    found = new_rows(base, indptr, rows[sources], degrees[sources], EXACT)

    whole = np.concatenate([x @ directions(x, EXACT.width), base])
    expected = dense(np.concatenate([edges, new_edges], 1), whole.astype(np.float64), EXACT.restart)
    np.testing.assert_allclose(found, expected[30:], atol=2e-5)
    np.testing.assert_allclose(rows, expected[:30], atol=2e-5)
    np.testing.assert_array_equal(found[2], base[2])


def test_row_of_an_old_node_follows_from_its_neighbours_rows():
    edges, x = drawn(6)
    rows = structure_features(edges, x, EXACT)
    indptr, sources = by_destination(edges, len(x))
    degrees = np.diff(indptr)
    again = new_rows(x @ directions(x, EXACT.width), indptr, rows[sources], degrees[sources], EXACT)
    np.testing.assert_allclose(again, rows, atol=1e-5)


def test_wide_features_keep_their_strongest_directions():
    chance = np.random.default_rng(7)
    x = (chance.normal(size=(60, 4)) @ chance.normal(size=(4, 40))).astype(np.float32)
    found = directions(x, 4)
    reduced = x @ found
    assert reduced.shape == (60, 4)
    # Four directions hold everything of features of rank four: lengths differ by one factor only.
    ratio = np.linalg.norm(reduced, axis=1) / np.linalg.norm(x, axis=1)
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)
    np.testing.assert_array_equal(found, directions(x, 4))


def test_narrow_features_come_to_one_scale():
    x = np.random.default_rng(8).normal(size=(50, 3)).astype(np.float32) * [1.0, 1000.0, 0.0]
    reduced = x.astype(np.float32) @ directions(x.astype(np.float32), 16)
    np.testing.assert_allclose((reduced**2).mean(0), [0.5, 0.5, 0], rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"restart": 0.0}, "restart is 0.0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"epochs": 0}, "epochs is 0"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"width": -1}, "width is -1"),
        ({"label_weight": 1.5}, "label_weight is 1.5"),
    ],
)
def test_settings_out_of_range_are_refused(values, told):
    with pytest.raises(ConfigError, match=told):
        Settings(**values)
