"""The HTTP form of an inference request: JSON, with tensors in it or as binary data behind it.

Follows the Open Inference Protocol v2 and Triton's "Binary Tensor Data" extension: the header
Inference-Header-Content-Length tells where the JSON ends; each input with `binary_data_size` takes that
many of the bytes that follow, in order.
"""

from __future__ import annotations

from typing import Any

import msgspec

from hopline.errors import BadRequest
from hopline.transports.http_errors import encode_json
from hopline.transports.http_messages import Response
from hopline.transports.json_body import check_repeated, decode_body
from hopline.transports.oip import answer_parameters, check_parameters, tensors_from_result
from hopline.transports.score_json import encode_rows
from hopline.transports.tensors import Tensor, decode_raw, decode_values, encode_raw
from hopline.types import ScoreResult

_Parameters = dict[str, bool | int | float | str]


class InferInput(msgspec.Struct, forbid_unknown_fields=True):
    """One input tensor; its values are in `data` or behind the JSON."""

    name: str
    datatype: str
    shape: list[int]
    parameters: _Parameters | None = None
    data: list[Any] | None = None


class InferOutput(msgspec.Struct, forbid_unknown_fields=True):
    """One requested output."""

    name: str
    parameters: _Parameters | None = None


class InferBody(msgspec.Struct, forbid_unknown_fields=True):
    """An inference request. Null is as good as absent, as in `ScoreBody`."""

    inputs: list[InferInput]
    id: str | None = None
    parameters: _Parameters | None = None
    outputs: list[InferOutput] | None = None


_decode = msgspec.json.Decoder(InferBody).decode
_EXAMPLE = '{"inputs": [{"name": "node_ids", "datatype": "INT64", "shape": [1], "data": [42]}]}'


def decode_infer(body: bytes, json_length: bytes | None) -> tuple[InferBody, list[Tensor]]:
    """Read an inference request.

    Args:
        body: the whole body.
        json_length: value of Inference-Header-Content-Length, None where it is absent.

    Raises:
        BadRequest: malformed JSON, unknown fields, lengths that do not fit, unsupported parameters.
    """
    end = len(body)
    if json_length is not None:
        if not json_length.isdigit() or int(json_length) > end:
            raise BadRequest(
                f"Inference-Header-Content-Length is {json_length.decode('latin-1')!r}, "
                f"the body has {end} bytes"
            )
        end = int(json_length)
    text = body if end == len(body) else body[:end]
    infer = decode_body(text, _decode, InferBody, "the inference request", _EXAMPLE)
    check_repeated(text, (b'"inputs"', b'"outputs"'))
    check_repeated(text, (b'"data"', b'"shape"', b'"datatype"'), len(infer.inputs))
    tensors = []
    for item in infer.inputs:
        parameters = item.parameters or {}
        size = parameters.pop("binary_data_size", None)
        check_parameters(parameters)
        if size is None:
            if item.data is None:
                raise BadRequest(f"input {item.name!r} has neither data nor parameter binary_data_size")
            tensors.append(decode_values(item.name, item.datatype, item.shape, item.data))
            continue
        if item.data is not None:
            raise BadRequest(f"input {item.name!r} has both data and binary_data_size")
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(body) - end:
            raise BadRequest(
                f"input {item.name!r}: binary_data_size is {size}, {len(body) - end} bytes are left"
            )
        tensors.append(decode_raw(item.name, item.datatype, item.shape, memoryview(body)[end : end + size]))
        end += size
    if end != len(body):
        raise BadRequest(f"{len(body) - end} bytes after the inputs belong to none of them")
    for output in infer.outputs or ():
        parameters = output.parameters or {}
        check_parameters({name: value for name, value in parameters.items() if name != "binary_data"})
    return infer, tensors


def encode_infer(infer: InferBody, result: ScoreResult, headers: bytes) -> Response:
    """The response, each output as JSON or binary as its request said."""
    by_default = bool((infer.parameters or {}).get("binary_data_output", False))
    binary = {
        output.name: bool((output.parameters or {}).get("binary_data", by_default))
        for output in infer.outputs or ()
    }
    outputs: list[dict[str, Any]] = []
    blobs: list[bytes] = []
    for tensor in tensors_from_result(result):
        described: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
        }
        if binary.get(tensor.name, by_default):
            blob = encode_raw(tensor)
            described["parameters"] = {"binary_data_size": len(blob)}
            blobs.append(blob)
        else:
            described["data"] = _json_values(tensor)
        outputs.append(described)
    answer: dict[str, Any] = {
        "model_name": result.model,
        "model_version": result.version,
        "parameters": answer_parameters(result),
        "outputs": outputs,
    }
    if infer.id:
        answer["id"] = infer.id
    text = msgspec.json.encode(answer)
    if not blobs:
        return Response(text, headers=headers)
    headers += b"inference-header-content-length: %d\r\n" % len(text)
    return Response(b"".join([text, *blobs]), 200, b"application/octet-stream", headers)


def _json_values(tensor: Tensor) -> msgspec.Raw:
    if isinstance(tensor.values, list):
        return msgspec.Raw(encode_json([value.decode(errors="replace") for value in tensor.values]))
    return msgspec.Raw(encode_rows(tensor.values))
