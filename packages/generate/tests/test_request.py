from __future__ import annotations

import numpy as np
import pytest

from hopline.errors import BadRequest
from hopline.types import ScoreRequest
from hopline_drift.replay import is_repeatable
from hopline_generate.request import completed, read_rows, read_stop


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
        ({"prompt": ["a"], "max_tokens": [1.5]}, "max_tokens must be a whole number from 1 to 1048576"),
        ({"prompt": ["a"], "max_tokens": [True]}, "max_tokens must be a whole number from 1 to 1048576"),
        ({"prompt": ["a"], "temperature": [float("nan")]}, "temperature must be a number from 0 to 2"),
        ({"prompt": ["a"], "temperature": [10**400]}, "temperature must be a number"),
        ({"prompt": ["a"], "logprobs": [2]}, "logprobs must be true or false"),
        ({"prompt": ["a"], "seed": [2**63]}, "from -9223372036854775808 to 9223372036854775807, not 9223"),
        ({"prompt": ["a"], "stop": [3]}, "a string or a list of strings, not 3"),
        ({"prompt": ["a"], "stop": [{"a": 1}]}, "a string or a list of strings, not an object"),
        ({"prompt": ["a"], "stop": ["[1]"]}, "1 to 256 characters; 1 does not"),
        ({"prompt": ["a"], "stop": [[""]]}, "1 to 256 characters; '' does not"),
        ({"prompt": ["a"], "stop": [["a"] * 17]}, "17 stop strings; at most 16"),
    ],
)
def test_wrong_columns_are_refused(columns: object, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        read_rows(columns)  # type: ignore[arg-type]


def test_a_stop_string_may_begin_with_a_bracket() -> None:
    assert read_stop("[END") == ("[END",)


def test_only_rows_of_several_are_numbered() -> None:
    with pytest.raises(BadRequest, match=r"^max_tokens must"):
        read_rows({"prompt": ["a"], "max_tokens": [0]})
    with pytest.raises(BadRequest, match=r"^row 1: max_tokens must"):
        read_rows({"prompt": ["a", "b"], "max_tokens": [1, 0]})


@pytest.mark.parametrize(
    ("columns", "param"),
    [
        ({"prompt": ["a"], "beams": [1]}, "beams"),
        ({"prompt": [""]}, "prompt"),
        ({"messages": ["[]"]}, "messages"),
        ({"prompt": ["a"], "top_p": [2.0]}, "top_p"),
        ({"prompt": ["a"], "stop": [3]}, "stop"),
    ],
)
def test_a_refusal_names_the_parameter(columns: dict[str, list[object]], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_rows(columns)
    assert caught.value.param == param


DEFAULTS = ("text", "finish_reason")


def test_a_row_without_a_seed_gets_one() -> None:
    request = ScoreRequest("slm", columns={"prompt": ["a", "b", "c"], "seed": [None, 7, None]})
    columns = completed(request, DEFAULTS).columns
    assert columns is not None
    first, given, last = columns["seed"]
    assert given == 7
    assert first != last
    read_rows(columns)
    drawn = completed(ScoreRequest("slm", columns={"prompt": ["a", "b"]}), DEFAULTS).columns
    assert drawn is not None
    assert len(set(drawn["seed"])) == 2


@pytest.mark.parametrize(
    ("columns", "repeatable"),
    [
        ({"seed": [1, None]}, [True, False]),
        ({}, [False, False]),
        ({"seed": [1, 2], "repeatable": [False, None]}, [False, True]),
    ],
)
def test_a_text_with_a_seed_is_repeatable_unless_that_is_declined(
    columns: dict[str, list[object]], repeatable: list[bool]
) -> None:
    request = ScoreRequest("slm", columns={"prompt": ["a", "b"], **columns})
    found = completed(request, DEFAULTS).columns
    assert found is not None
    assert found["repeatable"] == repeatable
    for temperature in (0.0, 1.0):  # the most probable token depends on the batch too
        at = {**found, "temperature": [temperature] * 2}
        assert [prompt.sampling.repeatable for prompt in read_rows(at)] == repeatable
        assert is_repeatable(at) is all(repeatable)
    assert completed(ScoreRequest("slm", columns=found), DEFAULTS).columns == found


def test_log_probabilities_are_an_output_if_a_row_requests_them_and_the_reverse() -> None:
    asked = completed(ScoreRequest("slm", columns={"prompt": ["a"], "logprobs": [True]}), DEFAULTS)
    assert asked.outputs == (*DEFAULTS, "logprobs")
    named = completed(ScoreRequest("slm", columns={"prompt": ["a"]}, outputs=("logprobs",)), DEFAULTS)
    assert named.columns is not None
    assert read_rows(named.columns)[0].sampling.logprobs
    neither = completed(ScoreRequest("slm", columns={"prompt": ["a"], "logprobs": [False]}), DEFAULTS)
    assert neither.outputs == DEFAULTS
