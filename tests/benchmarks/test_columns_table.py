"""The table of the benchmark of columns becomes as many features as the model of the workload reads."""

import numpy as np

from benchmarks.columns_table import CODES, NUMBERS, draw, transformer
from benchmarks.workload import NUM_FEATURES


def test_twenty_columns_become_the_features_of_the_workload():
    frame = draw(2_000)
    assert list(frame) == [*NUMBERS, *CODES]
    assert len(frame.columns) == 20
    features = transformer().fit_transform(frame)
    assert features.shape == (2_000, NUM_FEATURES)
    assert np.isfinite(features).all()
    assert draw(2_000).equals(frame)
