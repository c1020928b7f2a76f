"""Features of inline nodes: what is refused, and where it is."""

import numpy as np
import pytest

from hopline.engine.inline_features import feature_rows
from hopline.errors import BadRequest
from hopline.graph.schema import NodeTypeSchema
from hopline.types import InlineNode

NEXT = 2**24 + 1
SCHEMA = NodeTypeSchema(2, feature_names=("age", "merchant"))
FORMS = {
    "list": list,
    "floats": lambda row: [float(value) for value in row],
    "float64": lambda row: np.array(row, np.float64),
    "int64": lambda row: np.array(row, np.int64),
    "uint32": lambda row: np.array(row, np.uint32),
}


def rows(*features, schema=SCHEMA):
    return feature_rows([InlineNode(row) for row in features], "node", schema)


@pytest.mark.parametrize("form", FORMS)
def test_an_integer_that_float32_changes_is_refused_by_place(form):
    bad = FORMS[form]([3, NEXT])
    for others in ([], [[1, 2]], [[0.5, 2]]):
        place = rf"inline\[{len(others)}\].features: column 'merchant': 16777217 would become 16777216"
        with pytest.raises(BadRequest, match=place):
            rows(*others, bad)
        allowed = NodeTypeSchema(2, rounded=(1,))
        assert rows(*others, bad, schema=allowed)[-1].tolist() == [3, 2**24]
    with pytest.raises(BadRequest, match=r"column 1: .*--round COLUMN"):
        rows(bad, schema=NodeTypeSchema(2))


def test_other_numbers_are_rounded_as_always():
    given = [[0.1, NEXT + 0.5], [2**24, 1e30], [-(2**31), 1.7e9 + 0.25], [True, 2**63]]
    assert rows(*given).tolist() == np.array(given, np.float64).astype(np.float32).tolist()
    assert rows(np.array([NEXT, 0.1], np.float32)).dtype == np.float32
    assert rows().shape == (0, 2)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ([1], r"shape \[1\]; node type 'node' has 2 features"),
        ([1, "x"], "must be 2 numbers"),
        ([1, [2]], "must be 2 numbers"),
        ([10**400, 0], "must be 2 numbers"),
        ([0, 1e39], r"features\[1\] is inf as float32"),
        ([float("nan"), NEXT], r"features\[0\] is nan as float32"),
    ],
)
def test_what_is_no_row_is_refused_by_place(row, text):
    with pytest.raises(BadRequest, match=rf"inline\[1\].features.*{text}|inline\[1\].{text}"):
        rows([1, 2], row)


def test_integers_of_64_bits_are_compared_exactly():
    with pytest.raises(BadRequest, match=f"{2**53 + 1} would become {2**53}"):
        rows([0, 2**53 + 1])
    with pytest.raises(BadRequest, match=f"{2**64 - 1} would become {2**64}"):
        rows(np.array([0, 2**64 - 1], np.uint64))
