"""Reads ModelInferRequest messages, and encodes their answers.

Inputs that are equal in many requests are parsed once.
A caller repeats the same inputs, with the same types and shapes, and only raw contents change. So a request
is parsed as an `OuterInferRequest` (outer.proto), whose inputs stay bytes: known inputs are looked up, and
reading a dozen of them needs a third of the time.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from hopline.errors import BadRequest, RequestTooLarge, quoted
from hopline.transports import oip
from hopline.transports.proto import message
from hopline.transports.proto_scan import Layout, check_message, layout_of
from hopline.transports.shares import check_share
from hopline.transports.tensors import (
    Tensor,
    TensorHead,
    check_amount,
    decode_typed,
    encode_raw,
    tensor_head,
)
from hopline.types import ScoreResult
from turnserve.compression import PIECE_BYTES, Decompressed, sent_bytes, share

OUTER = "hopline.oip.v1.OuterInferRequest"
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
#: Limits of the cache of inputs: entries, and bytes of one entry. A full cache is cleared.
_MAX_KNOWN, _MAX_BYTES = 256, 4096
#: Inputs per 64 KiB of a request: an input needs microseconds, and has at least two bytes.
_INPUTS = 1536
#: More than any model has.
_MAX_OUTPUTS = 256


class RequestReader:
    """Reads requests, and caches the parsed heads of their inputs."""

    def __init__(self) -> None:
        self._input = message("inference.ModelInferRequest.InferInputTensor")
        self._output = message("inference.ModelInferRequest.InferRequestedOutputTensor")
        self._known: dict[tuple[bytes, ...], list[TensorHead]] = {}
        self._outer = message(OUTER)
        self._layout = layout_of(message("inference.ModelInferRequest").DESCRIPTOR)

    def read(self, data: bytes) -> Any:
        """Parse a message as an OuterInferRequest.

        Raises:
            BadRequest: the bytes are not a ModelInferRequest.
            RequestTooLarge: it contains more than its sender's share.
        """
        is_counted = len(data) > PIECE_BYTES or isinstance(data, Decompressed)
        if is_counted:
            check_message(self._layout, data)
        try:
            request = self._outer.FromString(data)
        except DecodeError:
            raise BadRequest(f"the message ({len(data)} bytes) is not a ModelInferRequest") from None
        if len(request.inputs) > _INPUTS:
            check_share(
                "the request",
                len(request.inputs),
                "inputs",
                share(_INPUTS, sent_bytes(data)),
                sent_bytes(data),
            )
        if is_counted and request.raw_input_contents:
            heads = [(head.datatype, head.count) for head in self._heads(request.inputs)]
            check_amount("the request", heads, len(data), sent_bytes(data))
        return request

    def tensors(self, request: Any) -> list[Tensor]:
        """Return the inputs, from raw or typed contents.

        Raises:
            BadRequest: both forms together, contents that do not match, unknown parameters, or an invalid
                input.
        """
        inputs, raw = request.inputs, request.raw_input_contents
        if not raw:
            return [_from_contents(item) for item in self._parsed(self._input, "input", inputs)]
        if len(raw) != len(inputs):
            raise BadRequest(f"{len(inputs)} inputs, but {len(raw)} raw_input_contents")
        heads = self._heads(inputs)
        return [head.decode(data) for head, data in zip(heads, raw, strict=True)]

    def outputs(self, request: Any) -> list[str]:
        """Return the names of the requested outputs.

        Raises:
            BadRequest: unknown parameters, or an invalid output.
            RequestTooLarge: more than any model has.
        """
        if len(request.outputs) > _MAX_OUTPUTS:
            raise RequestTooLarge(
                f"the request names {len(request.outputs)} outputs; at most {_MAX_OUTPUTS} are allowed"
            )
        return [item.name for item in self._parsed(self._output, "output", request.outputs)]

    def _heads(self, inputs: Sequence[bytes]) -> list[TensorHead]:
        key = tuple(inputs)
        heads = self._known.get(key)
        if heads is None:
            heads = [_head(item) for item in self._parsed(self._input, "input", inputs)]
            self._remember(key, heads)
        return heads

    def _parsed(self, kind: Any, what: str, parts: Sequence[bytes]) -> Iterator[Any]:
        for number, part in enumerate(parts):
            try:
                item = kind.FromString(part)
            except DecodeError as error:
                raise BadRequest(f"{what} {number} of the request cannot be read: {error}") from None
            if item.parameters:
                oip.check_parameters(parameters_of(item.parameters))
            yield item

    def _remember(self, key: tuple[bytes, ...], heads: list[TensorHead]) -> None:
        if sum(map(len, key)) > _MAX_BYTES:
            return
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[key] = heads


def parameters_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of protobuf parameters by name; None for one without a value."""
    values = {}
    for name, value in parameters.items():
        choice = value.WhichOneof("parameter_choice")
        values[name] = None if choice is None else getattr(value, choice)
    return values


def _head(item: Any) -> TensorHead:
    if item.HasField("contents"):
        raise BadRequest(f"input {quoted(item.name)} has contents and raw_input_contents; send one of them")
    return tensor_head(item.name, item.datatype, item.shape)


def _from_contents(item: Any) -> Tensor:
    field = _CONTENTS.get(item.datatype)
    if field is None:
        raise BadRequest(
            f"input {quoted(item.name)}: {quoted(item.datatype)} is unknown or needs raw_input_contents"
        )
    for other, _ in item.contents.ListFields():
        if other.name != field:
            raise BadRequest(
                f"input {quoted(item.name)} is {item.datatype} but has {other.name}, which is ignored; "
                f"send only {field}"
            )
    return decode_typed(item.name, item.datatype, item.shape, getattr(item.contents, field)[:])


def parsed(kind: Any, data: bytes) -> Any:
    """Parse a message.

    Raises:
        BadRequest: the bytes are not such a message.
        RequestTooLarge: it was compressed, and contains more than its sender's share.
    """
    check_message(_layout(kind.DESCRIPTOR.full_name), data)
    try:
        return kind.FromString(data)
    except DecodeError:
        raise BadRequest(f"the message ({len(data)} bytes) is not a {kind.DESCRIPTOR.name}") from None


@functools.cache
def _layout(name: str) -> Layout:
    return layout_of(message(name).DESCRIPTOR)


def encode_answer(request_id: str, result: ScoreResult) -> bytes:
    """Encode the answer of one call."""
    response = message("inference.ModelInferResponse")()
    fill_response(response, request_id, result)
    encoded: bytes = response.SerializeToString()
    return encoded


def fill_response(response: Any, request_id: str, result: ScoreResult) -> None:
    """Write a result into an empty ModelInferResponse, with raw contents."""
    response.model_name = result.model
    response.model_version = result.version
    response.id = request_id
    for name, value in oip.answer_parameters(result).items():
        response.parameters[name].string_param = value
    for tensor in oip.tensors_from_result(result):
        response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        response.raw_output_contents.append(encode_raw(tensor))
