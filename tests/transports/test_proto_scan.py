"""Counts of protobuf's wire format against what its own reader makes of it."""

from __future__ import annotations

import gzip
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.errors import BadRequest, RequestTooLarge
from hopline.transports import proto_scan
from hopline.transports.compression import decompress
from hopline.transports.grpc_request import RequestReader
from hopline.transports.proto import message
from hopline.transports.proto_scan import check_message, layout_of
from tests.transports import hostile
from tests.transports.bounded_arrays import Bounded, bounded

REQUEST = message("inference.ModelInferRequest")
LAYOUT = layout_of(REQUEST.DESCRIPTOR)
texts = st.text(max_size=5)


@st.composite
def requests(draw: st.DrawFn) -> Any:
    request = REQUEST(model_name=draw(texts), id=draw(texts))
    for name in draw(st.lists(texts, unique=True, max_size=3)):
        request.parameters[name].int64_param = draw(st.integers(-5, 5))
    for _ in range(draw(st.integers(0, 3))):
        shape = draw(st.lists(st.integers(-1, 300), max_size=3))
        item = request.inputs.add(name=draw(texts), datatype="INT64", shape=shape)
        item.contents.int64_contents.extend(draw(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9)))
        item.contents.fp32_contents.extend(draw(st.lists(st.floats(width=32), max_size=9)))
        item.contents.fp64_contents.extend(draw(st.lists(st.floats(), max_size=9)))
        item.contents.bytes_contents.extend(draw(st.lists(st.binary(max_size=4), max_size=4)))
    request.raw_input_contents.extend(draw(st.lists(st.binary(max_size=4), max_size=3)))
    return request


def counted(value: Any) -> tuple[int, int]:
    """Messages and values in a message."""
    messages = values = 0
    for field, content in value.ListFields():
        if field.message_type is None:
            values += 1 if isinstance(content, str | bytes | int | float) else len(content)
        elif field.message_type.GetOptions().map_entry:
            for item in content.values():
                inner = counted(item)
                messages, values = messages + 2 + inner[0], values + 1 + inner[1]
        else:
            for item in content if hasattr(content, "add") else [content]:
                inner = counted(item)
                messages, values = messages + 1 + inner[0], values + inner[1]
    return messages, values


@settings(deadline=None)  # the first example loads the kernel
@given(requests())
def test_counts_are_those_of_the_reader(request: Any) -> None:
    data = np.frombuffer(request.SerializeToString(), np.uint8)
    found = proto_scan._count(data, LAYOUT.kinds, 10**6, 10**6) if len(data) else (0, 0)
    assert found == counted(request)


@settings(deadline=None)  # the first example loads the kernel
@given(st.binary(max_size=200))
def test_any_bytes_are_counted(data: bytes) -> None:
    messages, values = proto_scan._count(np.frombuffer(data, np.uint8), LAYOUT.kinds, 10**6, 10**6)
    assert messages + values <= len(data)


@settings(deadline=None)  # plain Python is slow
@given(st.binary(max_size=200) | requests().map(lambda request: request.SerializeToString() + b"\x0a\x80"))
def test_no_bytes_lead_out_of_an_array(data: bytes) -> None:
    patch = bounded(proto_scan)
    try:
        kinds = LAYOUT.kinds.view(Bounded)
        proto_scan._count(proto_scan.np.frombuffer(data, np.uint8), kinds, 10**6, 10**6)
    finally:
        patch.undo()


@pytest.mark.parametrize(
    "kind", ["empty inputs", "empty parameters", "empty strings", "int64 contents", "groups"]
)
def test_a_compressed_message_has_its_senders_share(kind: str) -> None:
    data = hostile.field(1, b"sage") + hostile.MESSAGES[kind](2**20, random.Random(0))
    sent = gzip.compress(data)
    assert len(sent) < 16_000
    with pytest.raises(RequestTooLarge, match=f"for {len(sent)} bytes sent"):
        RequestReader().read(decompress("gzip", sent, 2**26))
    check_message(LAYOUT, data[: 2**17])  # sent as it is


@pytest.mark.parametrize(
    "kind", ["empty inputs", "empty parameters", "empty strings", "int64 contents", "groups"]
)
def test_a_message_that_was_not_compressed_has_the_share_of_a_mebibyte(kind: str) -> None:
    data = hostile.field(1, b"sage") + hostile.MESSAGES[kind](2**24, random.Random(0))
    with pytest.raises(RequestTooLarge, match="the message holds"):
        RequestReader().read(data)


def test_what_is_no_message_is_refused_as_such() -> None:
    for data in (b"\xff", b"\x2a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x0a\x05a"):
        with pytest.raises(BadRequest, match="not a ModelInferRequest"):
            RequestReader().read(decompress("gzip", gzip.compress(data), 1000))
