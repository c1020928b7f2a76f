from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hopline.errors import BadRequest
from hopline.request_fields import FIELDS
from hopline.transports.oip import request_from_tensors
from hopline.transports.rows import option_of, priority_of
from hopline.transports.tensors import decode_raw, tensor_from_array

ATTRIBUTES = next(field for field in FIELDS if field.name == "attributes")


@pytest.mark.parametrize(
    ("value", "priority"),
    [
        ("high", "high"),
        ("low", "low"),
        (0, "normal"),
        (1, "high"),
        (2, "low"),
        ("1", "high"),
        (2**63, "low"),
    ],
)
def test_priorities_are_names_or_tritons_numbers(value: object, priority: str) -> None:
    assert priority_of(value) == priority


@pytest.mark.parametrize("value", ["urgent", -1, 1.0, True, None, ""])
def test_other_priorities_are_refused(value: object) -> None:
    with pytest.raises(BadRequest, match="priority must be"):
        priority_of(value)


def test_attributes_are_an_object_of_scalars() -> None:
    assert option_of(ATTRIBUTES, '{"tier": "gold", "age": 7, "vip": true}') == {
        "tier": "gold",
        "age": 7,
        "vip": True,
    }
    for text in ("[1]", '{"a": [1]}', "{", 7, "\ud800"):
        with pytest.raises(BadRequest, match="attributes must be a JSON object"):
            option_of(ATTRIBUTES, text)
    assert option_of(ATTRIBUTES, '{"a": "x\\": y"}') == {"a": 'x": y'}
    for text in ('{"a":1,"a":2}', '{"a":1,"\\u0061" :2}', f'{{"b":"{"x" * 200_000}","a":1,"a":2}}'):
        with pytest.raises(BadRequest, match="'a' is repeated in one object"):
            option_of(ATTRIBUTES, text)


def _read(*tensors: Any, **parameters: Any) -> Any:
    return request_from_tensors("m", "", tensors, (), parameters, "id")


def test_tensors_of_other_names_are_columns() -> None:
    amount = tensor_from_array("amount", np.array([[1.5], [2.5]]))
    request = _read(amount, tensor_from_array("category", np.array(["a", "é"])), key="k", priority=1)
    assert request.columns["amount"].tolist() == [1.5, 2.5]
    assert request.columns["category"] == ["a", "é"]
    assert (request.key, request.priority, len(request.nodes)) == ("k", "high", 0)
    assert _read(tensor_from_array("node_ids", np.array([1]))).columns is None


@pytest.mark.parametrize("value", [True, "1_0", "inf", float("inf"), -1, "soon", 10**400])
@pytest.mark.parametrize("name", ["timeout", "timeout_ms"])
def test_a_time_limit_that_is_none_is_refused(name: str, value: object) -> None:
    with pytest.raises(BadRequest, match=f"'{name}' must be a positive number"):
        _read(tensor_from_array("amount", np.ones(1)), **{name: value})


def test_columns_of_a_wrong_form_are_refused() -> None:
    with pytest.raises(BadRequest, match=r"'amount' has shape \[1, 2\]"):
        _read(tensor_from_array("amount", np.ones((1, 2))))
    with pytest.raises(BadRequest, match="not UTF-8"):
        _read(decode_raw("category", "BYTES", [1], b"\x01\x00\x00\x00\xff"))
    with pytest.raises(BadRequest, match="key must be a string"):
        _read(tensor_from_array("amount", np.ones(1)), key=7)
