"""Inference requests over HTTP: JSON, with tensors in the JSON or as binary data after it.

Follows the Open Inference Protocol v2 and Triton's "Binary Tensor Data" extension: the header
Inference-Header-Content-Length is the length of the JSON; each input with `binary_data_size` has that many
of the following bytes, in order.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec

from hopline.errors import BadRequest, quoted
from hopline.transports.http_errors import encode_json
from hopline.transports.json_body import decode_body, refuse_repeated
from hopline.transports.oip import answer_parameters, check_parameters, tensors_from_result
from hopline.transports.score_json import encode_rows
from hopline.transports.tensors import (
    Tensor,
    check_amount,
    checked_shape,
    decode_json,
    decode_raw,
    encode_raw,
)
from hopline.types import ScoreResult
from turnserve.compression import PIECE_BYTES, Decompressed, sent_bytes
from turnserve.http1.messages import Response

_Parameters = dict[str, bool | int | float | str]
_Size: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class InferInput(msgspec.Struct, forbid_unknown_fields=True):
    """One input tensor; its values are in `data`, decoded once its shape is known, or after the JSON."""

    name: str
    datatype: str
    shape: list[_Size]
    parameters: _Parameters | None = None
    data: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class InferOutput(msgspec.Struct, forbid_unknown_fields=True):
    """One requested output."""

    name: str
    parameters: _Parameters | None = None


#: Characters of an id that the log keeps, as of a header's.
_MAX_ID = 128


class InferBody(msgspec.Struct, forbid_unknown_fields=True):
    """An inference request. Null is the same as a missing field, as in `ScoreBody`.

    Attributes:
        model_name, model_version: also in the path; KServe's client sends them here too.
    """

    inputs: list[InferInput]
    id: str | None = None
    model_name: str | None = None
    model_version: str | None = None
    parameters: _Parameters | None = None
    outputs: list[InferOutput] | None = None


_decode = msgspec.json.Decoder(InferBody).decode
_EXAMPLE = '{"inputs": [{"name": "node_ids", "datatype": "INT64", "shape": [1], "data": [42]}]}'


def decode_infer(
    body: bytes, json_length: bytes | None, *, is_counted: bool = False
) -> tuple[InferBody, list[Tensor]]:
    """Decode an inference request.

    Args:
        body: the whole body.
        json_length: value of Inference-Header-Content-Length, None without it.
        is_counted: True if the body was already checked for repeated names.

    Raises:
        BadRequest: malformed JSON, unknown fields, lengths that do not fit, unsupported parameters.
    """
    text = json_part(body, json_length)
    end = len(text)
    infer = decode_body(text, _decode, InferBody, "the inference request", _EXAMPLE)
    if not is_counted:
        # An input has at least four names, or is refused below.
        least = 1 + 4 * len(infer.inputs) + (0 if infer.outputs is None else 1 + len(infer.outputs))
        if text.count(b":") > least:
            refuse_repeated(text, _num_names(infer))
    if len(body) > PIECE_BYTES or isinstance(body, Decompressed):
        heads = [(item.datatype, checked_shape(item.name, item.shape)[1]) for item in infer.inputs]
        check_amount("the inference request", heads, len(body), sent_bytes(body))
    view, tensors = memoryview(body), []
    for item in infer.inputs:
        parameters = item.parameters or {}
        size = parameters.pop("binary_data_size", None)
        check_parameters(parameters)
        data = bytes(item.data)
        has_data = data not in (b"", b"null")
        if size is None:
            if not has_data:
                raise BadRequest(
                    f"input {quoted(item.name)} has neither data nor parameter binary_data_size"
                )
            tensors.append(decode_json(item.name, item.datatype, item.shape, data))
            continue
        if has_data:
            raise BadRequest(f"input {quoted(item.name)} has both data and binary_data_size")
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(body) - end:
            raise BadRequest(
                f"input {quoted(item.name)}: binary_data_size is {quoted(size)}, but "
                f"{len(body) - end} bytes are left"
            )
        tensors.append(decode_raw(item.name, item.datatype, item.shape, view[end : end + size]))
        end += size
    if end != len(body):
        raise BadRequest(f"{len(body) - end} bytes follow the data of the last input")
    for output in infer.outputs or ():
        parameters = output.parameters or {}
        check_parameters(parameters)
    return infer, tensors


def _num_names(infer: InferBody) -> int:
    """Return the number of names of all decoded objects."""
    count = sum(value is not None for value in msgspec.structs.astuple(infer)) + len(infer.parameters or ())
    for item in infer.inputs:
        count += 3 + (item.parameters is not None) + len(item.parameters or ()) + bool(bytes(item.data))
    for output in infer.outputs or ():
        count += 1 + (output.parameters is not None) + len(output.parameters or ())
    return count


def check_names(infer: InferBody, model: str, version: str | None) -> str | None:
    """Return the version that a request selects in its path or its body.

    Raises: BadRequest: its path and its body contradict each other.
    """
    if infer.model_name and infer.model_name != model:
        raise BadRequest(f"the path has model {quoted(model)}, but the body has {quoted(infer.model_name)}")
    if version and infer.model_version and infer.model_version != version:
        raise BadRequest(f"the path says version {quoted(version)}, the body {quoted(infer.model_version)}")
    return version or infer.model_version


def json_part(body: bytes, length: bytes | None) -> bytes:
    """Return the JSON part of a request's body.

    Args:
        length: value of Inference-Header-Content-Length, None without it.

    Raises: BadRequest: the header is invalid.
    """
    if length is None:
        return body
    # Digits of any possible length, including leading zeros.
    if not length.isdigit() or len(length) > 20 or int(length) > len(body):
        raise BadRequest(
            f"Inference-Header-Content-Length is {quoted(length.decode('latin-1'))}, but "
            f"the body has {len(body)} bytes"
        )
    return body[: int(length)]


def logged_id(infer: InferBody, headers: dict[bytes, bytes], id_line: bytes) -> str:
    """The id by which a caller finds an inference in the log: the header's, else the body's, else ours."""
    if infer.id and b"x-request-id" not in headers:
        return infer.id[:_MAX_ID]
    return id_line[14:-2].decode()


def encode_infer(infer: InferBody, result: ScoreResult, headers: bytes) -> Response:
    """Build the response, each output as JSON or binary as requested."""
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
