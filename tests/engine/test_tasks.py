"""Labels of rows that are no numbers, or infinite."""

import numpy as np
import pytest

from hopline.engine.tasks import labels

NAN = np.nan


@pytest.mark.parametrize(
    ("task", "logits", "right"),
    [
        ("multiclass", [[0.0, 2.0], [NAN, 1.0], [1.0, NAN], [NAN, NAN]], [1, -1, -1, -1]),
        ("multiclass", [[-np.inf, np.inf], [np.inf, 0.0], [-np.inf, 0.0]], [-1, -1, 1]),
        ("binary", [[1.0], [NAN], [-1.0]], [1, -1, 0]),
        ("multilabel", [[1.0, NAN], [NAN, -1.0]], [[1, -1], [-1, 0]]),
    ],
)
def test_a_row_whose_probabilities_are_nan_has_no_label(task, logits, right):
    found = labels(task, np.array(logits, np.float32))
    assert found.dtype == np.int64
    assert found.tolist() == right
