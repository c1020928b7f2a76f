"""Expressions mean for arrays what Python means for one row, and nothing else can be written."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopline.errors import PipelineInvalid
from hopline_pipelines.compile import typed
from hopline_pipelines.expression import parse
from hopline_pipelines.functions import Mismatch
from hopline_pipelines.values import Values, ValueType

TYPES = {
    ("input", "amount"): ValueType("FP64"),
    ("input", "count"): ValueType("INT64"),
    ("input", "country"): ValueType("BYTES"),
    ("input", "is_new"): ValueType("BOOL"),
    ("input", "merchant-id"): ValueType("INT64"),
    ("attributes", "country"): ValueType("BYTES", (), False),
    ("attributes", "limit"): ValueType("FP64", (), False),
    ("attributes", "vip"): ValueType("BOOL", (), False),
    ("gnn", "embedding"): ValueType("FP32", (3,)),
    ("gnn", "wide"): ValueType("FP32", (5,)),
}


def resolve(reference):
    if reference not in TYPES:
        raise Mismatch(f"no {reference}")
    owner, name = reference
    if owner == "attributes":
        return TYPES[reference], lambda values: values.attributes[name]
    if owner == "input":
        return TYPES[reference], lambda values: values.columns[name]
    return TYPES[reference], lambda values: values.of[0][name]


def values_of(rows, attributes=None):
    values = Values(
        len(rows),
        {"country": "DE", "limit": 100.0, "vip": False, **(attributes or {})},
        {
            "amount": np.array([row[0] for row in rows], np.float64),
            "count": np.array([row[1] for row in rows], np.int64),
            "country": np.array([row[2] for row in rows], object),
            "is_new": np.array([row[3] for row in rows], np.bool_),
            "merchant-id": np.arange(len(rows), dtype=np.int64),
        },
        1,
    )
    base = np.array([row[0] for row in rows], np.float32)
    values.of[0] = {
        "embedding": np.stack([base, base + 1, base + 2], axis=1),
        "wide": np.ones((len(rows), 5)),
    }
    return values


SAMPLE = values_of([(1.0, 1, "", True), (1.0, 1, "", True)])


def compiled(text):
    return typed(parse(text), resolve, SAMPLE)


# An expression as text, and as Python for one row (a namespace of plain values).
class Row:
    def __init__(self, **values):
        self.__dict__.update(values)


numbers = st.deferred(
    lambda: st.one_of(
        st.sampled_from(["input.amount", "input.count", "attributes.limit", "2", "0.5", "-3"]),
        st.tuples(numbers, st.sampled_from("+-*"), numbers).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(st.sampled_from(["minimum", "maximum"]), numbers, numbers).map(
            lambda t: f"{t[0]}({t[1]}, {t[2]})"
        ),
        st.tuples(conditions, numbers, numbers).map(lambda t: f"where({t[0]}, {t[1]}, {t[2]})"),
        numbers.map(lambda t: f"abs({t})"),
    )
)
texts = st.sampled_from(["input.country", "attributes.country", "'DE'", "'FR'"])
conditions = st.deferred(
    lambda: st.one_of(
        st.sampled_from(["input.is_new", "attributes.vip", "True"]),
        st.tuples(numbers, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), numbers)
        .map(" ".join)
        .map(lambda t: f"({t})"),
        st.tuples(numbers, numbers, numbers).map(lambda t: f"({t[0]} < {t[1]} <= {t[2]})"),
        st.tuples(texts, st.sampled_from(["==", "!="]), texts).map(" ".join).map(lambda t: f"({t})"),
        st.tuples(texts, st.sampled_from(["in", "not in"])).map(lambda t: f"({t[0]} {t[1]} ['DE', 'XX'])"),
        numbers.map(lambda t: f"({t} in [1, 2, -3])"),
        st.tuples(conditions, st.sampled_from(["and", "or"]), conditions).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        conditions.map(lambda t: f"(not {t})"),
    )
)
rows = st.lists(
    st.tuples(
        st.integers(-50, 50).map(float),
        st.integers(-5, 5),
        st.sampled_from(["DE", "FR", "IT", None]),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


@given(conditions | numbers, rows, st.sampled_from(["DE", "US"]), st.booleans())
def test_an_expression_over_arrays_is_python_for_each_row(text, given_rows, country, vip):
    attributes = {"country": country, "limit": 7.0, "vip": vip}
    expression = compiled(text)
    found = expression.rows(values_of(given_rows, attributes))
    python = {
        "attributes": Row(**attributes),
        "minimum": min,
        "maximum": max,
        "abs": abs,
        "where": lambda condition, yes, no: yes if condition else no,
    }
    for row, value in zip(given_rows, found, strict=True):
        fields = dict(zip(("amount", "count", "country", "is_new"), row, strict=True))
        expected = eval(text, {"__builtins__": {}}, {**python, "input": Row(**fields)})
        assert value == expected, text


@pytest.mark.parametrize(
    ("text", "type", "expected"),
    [
        ("gnn.embedding[1]", "FP32 [n]", [3, 4]),
        ("gnn.embedding * 2", "FP32 [n, 3]", [[4, 6, 8], [6, 8, 10]]),
        ("concat(input.count, gnn.embedding)", "FP64 [n, 4]", [[1, 2, 3, 4], [5, 3, 4, 5]]),
        ("input['merchant-id'] % 2", "INT64 [n]", [0, 1]),
        ("log1p(input.amount)", "FP64 [n]", np.log1p([2.0, 3.0])),
        ("clip(input.amount, 0, 2.5)", "FP64 [n]", [2.0, 2.5]),
        ("isnan(input.amount / 0 - input.amount / 0)", "BOOL [n]", [True, True]),
        ("where(input.is_new, 'new', input.country)", "BYTES [n]", ["new", "FR"]),
        ("sqrt(attributes.limit)", "one number", [10.0, 10.0]),
        ("attributes.limit / 0", "one number", [np.inf, np.inf]),
    ],
)
def test_functions_columns_and_types(text, type, expected):
    expression = compiled(text)
    assert str(expression.type) == type
    with np.errstate(all="ignore"):
        found = expression.rows(values_of([(2.0, 1, "DE", True), (3.0, 5, "FR", False)]))
    np.testing.assert_array_equal(found, expected)


def test_a_threshold_is_compared_as_the_column_is_stored():
    """A float32 score of 0.82 is 0.82, though its nearest float64 is not."""
    stored = np.array([0.82], np.float32)
    values = values_of([(0.82, 1, "", True)])
    values.of[0]["embedding"] = np.stack([stored] * 3, axis=1)
    for text in ("gnn.embedding[0] == 0.82", "gnn.embedding[0] in [0.82]", "not gnn.embedding[0] > 0.82"):
        assert compiled(text).rows(values).tolist() == [True]


def test_a_scalar_keeps_the_columns_precision():
    assert str(compiled("gnn.embedding[0] * log1p(attributes.limit)").type) == "FP32 [n]"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "invalid syntax"),
        ("input.amount >", "invalid syntax"),
        ("input.amount + 'x'", "column 1: + takes numbers, not a text"),
        ("input.country > 'A'", "> takes numbers"),
        ("input.amount == input.country", "== takes numbers here, not a text"),
        ("amount > 1", "column 1: 'amount' alone names nothing; write input.amount"),
        ("input.amount > 1 and input.count", "column 1: 'and' takes conditions, not a number"),
        ("1 + (2 if attributes.vip else 3)", "column 6: if … else"),
        ("gnn.embedding + gnn.wide", "[n, 3] and [n, 5]"),
        ("gnn.embedding + input.amount", "[n] and [n, 3]"),
        ("gnn.embedding[3]", "column 3 of a value that has 3"),
        ("input.amount[0]", "has no columns"),
        ("input.amount in input.count", "a list of constants"),
        ("input.amount in ['a']", "'in' takes numbers here, not a text"),
        ("input.country in []", "a list of constants"),
        ("input.amount is 1", "'is' compares nothing"),
        ("input.amount ** 2", "no such operator"),
        ("floor(input.amount)", "no function 'floor'; there are abs"),
        ("clip(input.amount)", "clip() takes 3 values, not 1"),
        ("abs(x=1)", "takes no named values"),
        ("where(input.amount, 1, 2)", "takes a condition first"),
        ("None", "is no number, text"),
        ("99999999999999999999", "beyond 64 bits"),
        ("input.amount.real", "more than one dot"),
        ("lambda: 1", "a function"),
        ("[each for each in [1]]", "a loop"),
        ("__import__('os').system('true')", "only functions of the table"),
        ("input.amount.__class__.__bases__", "more than one dot"),
        ("().__class__", "more than one dot"),
        ("'%s' % input.amount", "% takes numbers, not a text"),
        ("f'{input.amount}'", "a formatted text"),
        ("(amount := 1)", "an assignment"),
        ("1 +" * 2000 + "1", "at most 2000"),
        ("not " * 60 + "True", "nested deeper than 40"),
        ("-" * 1900 + "1", ""),
        ("(" * 400 + "1" + ")" * 400, ""),
        ("input.amount\x00", ""),
    ],
)
def test_what_means_nothing_is_refused_with_its_place(text, says):
    with pytest.raises(PipelineInvalid) as caught:
        compiled(text)
    assert says in str(caught.value)


@given(st.text(max_size=60) | st.text("input.amoun[]()'+-*/%<>=andorti 0123", max_size=60))
def test_no_text_does_more_than_be_refused(text):
    with contextlib.suppress(PipelineInvalid):
        compiled(text)
