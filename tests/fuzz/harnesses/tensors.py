"""Binary tensors, held against NumPy and against a plain reading of BYTES."""

from __future__ import annotations

import struct

import numpy as np

from hopline.errors import BadRequest
from hopline.transports.tensors import decode_raw, encode_raw
from tests.fuzz.fed import check_refusal

_DTYPES = {
    "BOOL": "?",
    "INT8": "i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "UINT8": "u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
    "BYTES": "",
    "BF16": "",
}
_NAMES = tuple(_DTYPES)


def check(data: bytes) -> None:
    """Args: data: a datatype, how many dimensions, the dimensions (int64 each), and the values."""
    if len(data) < 2:
        return
    datatype, num_dims = _NAMES[data[0] % len(_NAMES)], data[1] % 4 if data[1] < 240 else data[1]
    dims = data[2 : 2 + 8 * num_dims]
    shape = [value for (value,) in struct.iter_unpack("<q", dims[: len(dims) // 8 * 8])]
    values = data[2 + len(dims) :]
    try:
        tensor = decode_raw("x", datatype, shape, values)
    except BadRequest as error:
        check_refusal(error)
        return
    assert encode_raw(tensor) == values
    assert tensor.shape == tuple(shape)
    if datatype == "BYTES":
        assert tensor.values == _strings(values)
    else:
        expected = np.frombuffer(values, _DTYPES[datatype])
        assert len(expected) == np.prod(shape, dtype=object)
        # bit for bit: a NaN is none of its equals
        assert (tensor.values.dtype, tensor.values.tobytes()) == (expected.dtype, values)
    for read in (tensor.ids, tensor.column, tensor.rows):
        try:
            read()
        except BadRequest:
            continue


def _strings(values: bytes) -> list[bytes]:
    found = []
    while values:
        end = 4 + int.from_bytes(values[:4], "little")
        found.append(values[4:end])
        values = values[end:]
    return found
