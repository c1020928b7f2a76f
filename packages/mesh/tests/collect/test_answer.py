"""Answers as bytes: whatever they are, they are read or refused."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline_mesh.collect.answer import read_answer, read_matrix
from hopline_mesh.errors import QueryFailed
from tests.thorough import thorough

labels = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3)
numbers = st.floats(width=64).map(
    lambda value: "NaN" if value != value else repr(value).replace("inf", "Inf").replace("--", "-")
)
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ("status", "data", "result", "resultType", "metric", "value", "warnings", "error")
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def body(result, **other):
    return json.dumps(
        {"status": "success", "data": {"resultType": "vector", "result": result}, **other}
    ).encode()


@settings(max_examples=thorough(15, 60))
@given(st.lists(st.tuples(labels, st.floats(0, 2e9), numbers), max_size=20))
def test_series_are_read_as_python_reads_them(series):
    text = body([{"metric": names, "value": [time_s, value]} for names, time_s, value in series])
    answer = read_answer(text)
    assert [json.loads(raw) for raw in answer.labels] == [names for names, _, _ in series]
    expected = np.array([float(value) for _, _, value in series])
    assert np.array_equal(answer.values, expected, equal_nan=True)
    assert np.array_equal(answer.times, [time_s for _, time_s, _ in series])
    assert answer.unreadable == 0


@settings(max_examples=thorough(15, 60))
@given(st.binary(max_size=60) | anything.map(lambda value: json.dumps(value).encode()))
def test_nothing_else_is_raised_than_that_it_failed(text):
    said = ""
    try:
        read_answer(text)
    except QueryFailed as error:
        said = str(error)
    assert len(said) < 500
    assert said.isprintable()


@settings(max_examples=thorough(15, 60))
@given(st.lists(anything, max_size=5))
def test_what_is_no_series_is_counted(parts):
    answer = read_answer(body([{"metric": {"a": "b"}, "value": [1.0, "2"]}, *parts]))
    assert answer.values[0] == 2.0
    assert len(answer) + answer.unreadable == 1 + len(parts)


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_an_answer_that_is_cut_off_is_refused(cut):
    text = body([{"metric": {"a": "b"}, "value": [1.0, "2"]}])
    with pytest.raises(QueryFailed):
        read_answer(text[:-cut])


def test_a_range_is_read_as_the_answers_at_its_times():
    def series(name, *pairs):
        return {"metric": {"app": name}, "values": [[time_s, str(value)] for time_s, value in pairs]}

    result = [series("a", (10.0, 1.5), (30.0, 3)), series("b", (20.0, "NaN"))]
    text = body(result, warnings=["partial"]).replace(b"vector", b"matrix")
    answers = read_matrix(text, np.array([10.0, 20.0, 30.0]))
    names = [[json.loads(raw)["app"] for raw in each.labels] for each in answers]
    assert names == [["a"], ["b"], ["a"]]
    assert np.array_equal(np.concatenate([each.values for each in answers]), [1.5, np.nan, 3], True)
    assert [each.times.tolist() for each in answers] == [[10.0], [20.0], [30.0]]
    assert {each.warnings for each in answers} == {("partial",)}


@pytest.mark.parametrize("time_s", [0.0, 40.0])
def test_a_value_outside_of_the_range_is_no_value_of_another_time(time_s):
    result = [{"metric": {"app": "a"}, "values": [[time_s, "1"]]}]
    with pytest.raises(QueryFailed, match="a series of the response is invalid"):
        read_matrix(body(result).replace(b"vector", b"matrix"), np.array([10.0, 20.0, 30.0]))
