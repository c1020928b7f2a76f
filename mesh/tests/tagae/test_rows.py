"""Rows of the model from series, against NumPy, for any number of columns."""

import numpy as np
import pytest

from hopline_mesh.tagae import rows

MOST = np.float32(4)


def gathered(slow, near, slope, load, slots):
    """As `rows.gather` says."""
    a, b, c = slow[slots], near[slots], slope[slots]
    less = np.clip(np.nan_to_num(a[:, load], nan=0.0), -20, 20) if load >= 0 else np.zeros(len(slots))
    there = ~np.isnan(a)
    own = np.clip(a - c * less[:, None].astype(np.float32), -MOST, MOST)
    x = np.concatenate([np.where(there, own, 0), there], axis=1)
    return x, np.where(there, np.clip(a - b, -MOST, MOST), 0)


@pytest.mark.parametrize("width", [1, 3, 4, 7, 9])
@pytest.mark.parametrize("load", [-1, 0])
def test_inputs_are_clipped_without_the_load_and_zero_where_nothing_was_measured(width, load):
    rng = np.random.default_rng(width)
    slow, near = (rng.normal(0, 15, (60, width)).astype(np.float32) for _ in range(2))
    slow[rng.random(slow.shape) < 0.2] = np.nan
    near[np.isnan(slow)] = np.nan
    slope = rng.random((60, width)).astype(np.float32)
    slots = rng.permutation(60)[:50].astype(np.int32)
    x, h = np.empty((50, 2 * width), np.float32), np.empty((50, width), np.float32)
    rows.gather(slow, near, slope, load, slots, MOST, x, h)
    for found, expected in zip((x, h), gathered(slow, near, slope, load, slots), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-5)
