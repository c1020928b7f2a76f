"""Inference requests of gRPC: answered without failure, and read as protobuf itself reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from hopline.errors import HoplineError
from hopline.transports.grpc_request import OUTER, RequestReader
from hopline.transports.proto import message
from tests.fuzz.harnesses import http2
from turnserve.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS, frame
from turnserve.http2.head import block_of

_METHODS = (
    b"/inference.GRPCInferenceService/ModelInfer",
    b"/inference.GRPCInferenceService/ModelStreamInfer",
    b"/inference.GRPCInferenceService/RepositoryModelLoad",
    b"/inference.GRPCInferenceService/RepositoryIndex",
    b"/inference.GRPCInferenceService/ModelStatistics",
)
_REST = ((b"content-type", b"application/grpc"), (b"te", b"trailers"))
_HEADS = [
    block_of([(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), *_REST]) for path in _METHODS
]
_FULL = "inference.ModelInferRequest"


def check(data: bytes) -> None:
    """Args: data: a method in the first byte, and the message."""
    if not data:
        return
    head, body = _HEADS[data[0] % len(_HEADS)], data[1:]
    sent = frame(HEADERS, END_HEADERS, 1, head)
    sent += frame(DATA, END_STREAM, 1, b"\0" + len(body).to_bytes(4, "big") + body)
    http2.check(b"\x01\x01" + sent)
    try:
        outer = message(OUTER).FromString(body)
        reader = RequestReader()
        tensors, outputs = reader.tensors(outer), reader.outputs(outer)
    except (DecodeError, HoplineError):
        return
    full = message(_FULL).FromString(body)
    assert outputs == [item.name for item in full.outputs]
    assert len(full.inputs) == len(tensors)
    for item, tensor in zip(full.inputs, tensors, strict=True):
        found = (tensor.name, tensor.datatype, list(tensor.shape))
        assert found == (item.name, item.datatype, list(item.shape))
        if not full.raw_input_contents:
            _check_contents(item, tensor)


def _check_contents(item: Any, tensor: Any) -> None:
    """Typed contents, of whichever field is not empty."""
    (values,) = [list(each) for _, each in item.contents.ListFields() if len(each)] or [[]]
    if isinstance(tensor.values, list):
        assert tensor.values == values
    else:
        assert np.array_equal(tensor.values, np.array(values, tensor.values.dtype), equal_nan=True)
