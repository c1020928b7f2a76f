from __future__ import annotations

import numpy as np
import pytest

from hopline.errors import BadRequest
from hopline.generate.request import read_rows, read_stop


def test_a_row_is_a_text() -> None:
    rows = read_rows({"prompt": ["a", "b"], "max_tokens": np.array([3, 4]), "stop": ['["x", "y"]', ""]})
    assert [row.text for row in rows] == ["a", "b"]
    assert [row.sampling.max_tokens for row in rows] == [3, 4]
    assert [row.sampling.stop for row in rows] == [("x", "y"), ()]


def test_numbers_may_come_as_another_type_without_loss() -> None:
    (row,) = read_rows({"prompt": ["a"], "max_tokens": [3.0], "temperature": [1]})
    assert row.sampling.max_tokens == 3
    assert row.sampling.temperature == 1.0


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (None, "column prompt or messages"),
        ({"prompt": ["a"], "messages": ["[]"]}, "one of both"),
        ({"prompt": ["a"], "beams": [1]}, "unexpected column 'beams'"),
        ({"prompt": ["a", "b"], "seed": [1]}, "unequal length"),
        ({"prompt": []}, "0 rows"),
        ({"prompt": ["a"] * 33}, "33 rows"),
        ({"prompt": [""]}, "prompt is empty"),
        ({"prompt": [3]}, "must be a string"),
        ({"messages": ["{}"]}, "messages"),
        ({"messages": ["[]"]}, "empty"),
        ({"prompt": ["a"], "max_tokens": [1.5]}, "max_tokens must be int"),
        ({"prompt": ["a"], "max_tokens": [True]}, "max_tokens must be int"),
        ({"prompt": ["a"], "temperature": [float("nan")]}, "temperature must be float from 0 to 2"),
        ({"prompt": ["a"], "temperature": [10**400]}, "temperature must be float"),
        ({"prompt": ["a"], "logprobs": [2]}, "logprobs must be true or false"),
        ({"prompt": ["a"], "stop": [[""]]}, "no stop string"),
    ],
)
def test_wrong_columns_are_refused(columns: object, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        read_rows(columns)  # type: ignore[arg-type]


def test_a_stop_string_may_begin_with_a_bracket() -> None:
    assert read_stop("[END") == ("[END",)
