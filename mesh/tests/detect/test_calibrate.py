"""Levels and spreads of normal time."""

import warnings

import numpy as np
import pytest

from hopline_mesh.detect.calibrate import quantile


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 0.0, 1.0])
def test_quantiles_are_those_of_numpy(share):
    rng = np.random.default_rng(3)
    values = rng.normal(0, 5, (241, 40)).astype(np.float32)
    values[rng.random(values.shape) < rng.random(40)] = np.nan
    values[:, 3] = np.nan
    values[1:, 4] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the column without any value
        expected = np.nanquantile(values.astype(np.float64), share, axis=0)
    np.testing.assert_allclose(quantile(values, share), expected, rtol=1e-6, atol=1e-6)
