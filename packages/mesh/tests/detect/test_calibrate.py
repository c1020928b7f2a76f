"""Levels and spreads of normal time."""

import warnings

import numpy as np
import pytest

from hopline_mesh.detect.calibrate import quantile, set_thresholds
from hopline_mesh.detect.series import UNKNOWN, SeriesTable


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


@pytest.mark.parametrize(("intervals", "hold"), [(20, 2), (20, 6), (100, 6), (135, 6), (239, 6), (600, 16)])
def test_after_a_short_training_no_threshold_is_above_that_of_an_untrained_watch(intervals, hold):
    table = SeriesTable(("p99_ms", "error_share"), 120, 10)
    table.grow(4)
    table.histogram[:, 0] = intervals * 4
    table.histogram[1, :60] = 10
    set_thresholds(table, intervals, 15.0, 0.5, 99.0, hold=hold)
    assert table.threshold.max() <= UNKNOWN


def test_deviations_in_normal_time_may_set_a_higher_threshold():
    table = SeriesTable(("p99_ms",), 120, 10)
    table.grow(4)
    table.histogram[0, :60] = 100
    set_thresholds(table, 1500, 15.0, 0.5, 99.0, hold=6)
    assert table.threshold[0] > UNKNOWN
