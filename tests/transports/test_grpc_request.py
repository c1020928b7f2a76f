"""Requests as they come over gRPC are read as the published message says, however often they look alike."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from hopline.errors import BadRequest
from hopline.transports.grpc_request import OUTER, RequestReader
from hopline.transports.proto import message
from hopline.transports.tensors import Tensor

Request = message("inference.ModelInferRequest")
Outer = message(OUTER)
#: protocol name -> typed field, dtype
KINDS = {
    "BOOL": ("bool_contents", np.dtype(np.bool_)),
    "INT8": ("int_contents", np.dtype(np.int8)),
    "UINT16": ("uint_contents", np.dtype(np.uint16)),
    "INT64": ("int64_contents", np.dtype(np.int64)),
    "FP32": ("fp32_contents", np.dtype(np.float32)),
    "FP64": ("fp64_contents", np.dtype(np.float64)),
}
READER = RequestReader()


@st.composite
def inputs(draw: st.DrawFn) -> list[tuple[str, str, list[int], Any]]:
    found = []
    for _ in range(draw(st.integers(0, 4))):
        shape = draw(st.lists(st.integers(0, 3), min_size=1, max_size=2))
        count = int(np.prod(shape))
        datatype = draw(st.sampled_from([*KINDS, "BYTES"]))
        if datatype == "BYTES":
            values: Any = draw(st.lists(st.binary(max_size=6), min_size=count, max_size=count))
        else:
            dtype = KINDS[datatype][1]
            data = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
            values = (
                np.frombuffer(data, np.uint8).view(dtype)
                if dtype != np.bool_
                else np.frombuffer(data, np.uint8) % 2 == 1
            )
        found.append((draw(st.sampled_from(["a", "ß", "node_ids", ""])), datatype, shape, values))
    return found


def request_of(tensors: list[tuple[str, str, list[int], Any]], *, raw: bool) -> Any:
    request = Request(model_name="m", id="7")
    for name, datatype, shape, values in tensors:
        item = request.inputs.add(name=name, datatype=datatype, shape=shape)
        if raw and datatype == "BYTES":
            request.raw_input_contents.append(b"".join(struct.pack("<I", len(v)) + v for v in values))
        elif raw:
            request.raw_input_contents.append(values.tobytes())
        elif datatype == "BYTES":
            item.contents.bytes_contents.extend(values)
        else:
            getattr(item.contents, KINDS[datatype][0]).extend(values.tolist())
    return request


def outer(request: Any) -> Any:
    return Outer.FromString(request.SerializeToString())


def same(tensor: Tensor, told: tuple[str, str, list[int], Any]) -> None:
    name, datatype, shape, values = told
    assert (tensor.name, tensor.datatype, tensor.shape) == (name, datatype, tuple(shape))
    if datatype == "BYTES":
        assert tensor.values == values
    else:
        np.testing.assert_array_equal(tensor.values, values)
        assert isinstance(tensor.values, np.ndarray)
        assert tensor.values.dtype == values.dtype


@given(inputs(), st.booleans())
def test_what_was_written_is_read_the_first_time_and_again(tensors: Any, raw: bool) -> None:
    asked = outer(request_of(tensors, raw=raw))
    assert (asked.model_name, asked.id) == ("m", "7")
    for reader in (RequestReader(), READER, READER):
        found = reader.tensors(asked)
        assert len(found) == len(tensors)
        for tensor, told in zip(found, tensors, strict=True):
            same(tensor, told)


def test_requests_that_look_alike_keep_their_own_values() -> None:
    reader = RequestReader()
    for number in range(3):
        told = [("x", "INT64", [1], np.array([number])), ("y", "BYTES", [1], [b"%d" % number])]
        for tensor, each in zip(reader.tensors(outer(request_of(told, raw=True))), told, strict=True):
            same(tensor, each)


def test_contents_are_checked_of_requests_that_look_alike_too() -> None:
    reader = RequestReader()
    good = outer(request_of([("x", "INT64", [2], np.array([1, 2]))], raw=True))
    reader.tensors(good)
    del good.raw_input_contents[:]
    good.raw_input_contents.append(b"12345678")
    with pytest.raises(BadRequest, match=r"tensor 'x' INT64\[2\] needs 16 bytes, but 8 were sent"):
        reader.tensors(good)
    good.raw_input_contents.append(b"12345678")
    with pytest.raises(BadRequest, match="1 inputs, but 2 raw_input_contents"):
        reader.tensors(good)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "1 BYTES values, but 0 were sent"),
        (b"\x01\x00", "a length begins at byte 0, but only 2 bytes follow"),
        (b"\x02\x00\x00\x00a", "a value of 2 bytes begins at byte 4, but only 1 bytes follow"),
        (b"\x01\x00\x00\x00a\x00\x00\x00\x00", "1 BYTES values, but 4 bytes follow the last one"),
    ],
)
def test_a_single_string_is_checked_as_many_are(data: bytes, why: str) -> None:
    request = Request()
    request.inputs.add(name="x", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(data)
    with pytest.raises(BadRequest, match=why):
        RequestReader().tensors(outer(request))


def test_what_is_no_input_is_refused_by_its_number() -> None:
    request = outer(request_of([("x", "INT64", [1], np.array([1]))], raw=True))
    request.inputs.append(b"\xff\xff")
    request.raw_input_contents.append(b"")
    with pytest.raises(BadRequest, match="input 1 of the request cannot be read"):
        RequestReader().tensors(request)
    request.outputs.append(b"\x0a\x05a")
    with pytest.raises(BadRequest, match="output 0 of the request cannot be read"):
        RequestReader().outputs(request)


def test_parameters_of_an_input_are_checked_each_time() -> None:
    request = request_of([("x", "INT64", [1], np.array([1]))], raw=True)
    request.inputs[0].parameters["shared_memory_region"].string_param = "r"
    reader = RequestReader()
    for _ in range(2):
        with pytest.raises(BadRequest, match="shared_memory"):
            reader.tensors(outer(request))


def test_contents_beside_raw_contents_are_refused_each_time() -> None:
    request = request_of([("x", "INT64", [1], np.array([1]))], raw=True)
    request.inputs[0].contents.int64_contents.append(1)
    reader = RequestReader()
    for _ in range(2):
        with pytest.raises(BadRequest, match="contents and raw_input_contents"):
            reader.tensors(outer(request))


@pytest.mark.parametrize("own", [[], [7]])
def test_contents_of_another_type_are_refused(own: list[int]) -> None:
    request = message("inference.ModelInferRequest")()
    item = request.inputs.add(name="a", datatype="INT64", shape=[1])
    item.contents.int64_contents.extend(own)
    item.contents.int_contents.append(8)
    with pytest.raises(BadRequest, match="has int_contents, which is ignored"):
        RequestReader().tensors(outer(request))


def test_a_caller_with_ever_different_requests_is_served_and_takes_no_more_memory() -> None:
    reader = RequestReader()
    requests = [
        request_of([(f"{number:03}" * size, "INT64", [1], np.array([number]))], raw=True)
        for size in (1_000, 2_000)  # what is remembered, and what is too large for it
        for number in range(1_000)
    ]
    asked = [(each, outer(each)) for each in requests]
    tracemalloc.start()
    try:
        for request, same_bytes in asked:
            (tensor,) = reader.tensors(same_bytes)
            assert tensor.name == request.inputs[0].name
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        request = Outer.FromString(data)
    except DecodeError:
        return
    for read in (READER.tensors, READER.outputs):
        with contextlib.suppress(BadRequest):
            assert isinstance(read(request), list)
