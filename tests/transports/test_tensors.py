from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopline.errors import BadRequest
from hopline.transports.tensors import (
    Tensor,
    decode_json,
    decode_raw,
    decode_typed,
    decode_values,
    encode_raw,
    tensor_from_array,
)


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_bytes_survive_the_round_trip(values: list[bytes]) -> None:
    raw = encode_raw(Tensor("x", "BYTES", (len(values),), values))
    assert decode_raw("x", "BYTES", [len(values)], raw).values == values


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_integers_survive_the_round_trip(values: list[int]) -> None:
    tensor = tensor_from_array("x", np.array(values, dtype=np.int64))
    assert decode_raw("x", "INT64", [len(values)], encode_raw(tensor)).integers().tolist() == values
    assert decode_values("x", "INT64", [len(values)], values).integers().tolist() == values


@given(st.binary(max_size=60), st.integers(0, 10))
def test_damaged_bytes_are_refused_and_never_crash(raw: bytes, count: int) -> None:
    try:
        decoded = decode_raw("x", "BYTES", [count], raw)
    except BadRequest:
        return
    assert encode_raw(decoded) == raw


@pytest.mark.parametrize(
    ("datatype", "shape", "values", "text"),
    [
        ("INT64", [2], [1], "2 values, but 1"),
        ("INT64", [1], [True], "holds True"),
        ("INT64", [1], ["1"], "holds '1'"),
        ("INT64", [1], [1.5], "holds 1.5"),
        ("INT32", [1], [2**40], "do not fit INT32"),
        ("UINT8", [1], [-1], "do not fit UINT8"),
        ("FP16", [1], [65_520], "do not fit FP16"),
        ("FP32", [1], [1e39], "do not fit FP32"),
        ("BYTES", [1], [1], "BYTES but holds 1"),
        ("INT63", [1], [1], "known are"),
        ("INT64", [], [1], "positive dimensions"),
        ("INT64", [-1], [1], "positive dimensions"),
        ("FP32", [1], [None], "holds None"),
    ],
)
def test_wrong_values_are_named(datatype: str, shape: list[int], values: list[Any], text: str) -> None:
    with pytest.raises(BadRequest, match=text):
        decode_values("x", datatype, shape, values)


@pytest.mark.parametrize(
    ("shape", "values"),
    [
        ([2, 1], [[1, 2]]),
        ([2, 3], [[1, 2], [3, 4], [5, 6]]),
        ([4, 1], [[1], [2, 3], [4]]),
        ([4], [[1, 2], [3, 4]]),
        ([2, 2], [[1, 2], 3, 4]),
        ([2, 2], [[[1], [2]], [[3], [4]]]),
    ],
)
def test_nested_json_of_another_form_than_the_shape_is_refused(shape: list[int], values: list[Any]) -> None:
    with pytest.raises(BadRequest, match="flat, or nested according to the shape"):
        decode_values("x", "FP32", shape, values)


def test_floats_below_their_last_exact_integer_are_ids() -> None:
    for datatype, limit in (("FP16", 2**11), ("FP32", 2**24), ("FP64", 2**53)):
        values = [limit - 1, 1 - limit, 0, -0.0]
        found = decode_values("x", datatype, [4], values).ids()
        assert list(found) == [limit - 1, 1 - limit, 0, 0]


def test_nested_json_rows_are_flattened() -> None:
    assert decode_values("x", "FP32", [2, 2], [[1, 2], [3, 4.5]]).rows().tolist() == [[1, 2], [3, 4.5]]


@pytest.mark.parametrize(
    "tensor",
    [
        decode_values("x", "FP32", [1], [2.5]),
        decode_values("x", "FP16", [1], [2049]),
        decode_values("x", "FP16", [1], [1500.3]),  # 1500 as FP16
        decode_values("x", "FP16", [1], [2047.2]),
        decode_json("x", "FP16", [2], b"[1, -1024.5001]"),
        decode_values("x", "FP32", [1], [8388609.3]),  # 8388609 as FP32
        decode_json("x", "FP32", [1], b"[16777214.4]"),
        decode_typed("x", "FP16", [1], [1500.3]),
        decode_values("x", "FP16", [1], [-2048]),
        decode_values("x", "FP32", [1], [2**24 + 1]),
        decode_raw("x", "FP32", [1], np.float32(2**24).tobytes()),
        decode_typed("x", "FP32", [1], [float(2**25)]),
        decode_values("x", "FP64", [1], [2**53 + 1]),
        decode_typed("x", "FP64", [1], [-float(2**53)]),
        decode_values("x", "FP64", [1], [float("nan")]),
        decode_values("x", "UINT64", [1], [2**63]),
        decode_values("x", "BOOL", [1], [True]),
        decode_values("x", "INT64", [1, 1, 1], [1]),
        Tensor("x", "BYTES", (1,), [b"\xff"]),
    ],
)
def test_ids_that_would_lose_something_are_refused(tensor: Tensor) -> None:
    with pytest.raises(BadRequest):
        tensor.ids()


def test_raw_length_must_fit_the_shape() -> None:
    with pytest.raises(BadRequest, match="needs 16 bytes, but 15 were sent"):
        decode_raw("x", "INT64", [2], b"0" * 15)
