"""Tensors of the Open Inference Protocol, for all transports.

HTTP requests contain JSON or binary data, gRPC requests raw or typed contents. This file handles the
protocol's datatypes and does not depend on models.

Each BYTES element is preceded by its length, 4 bytes little-endian (the protocol's "Binary Tensor Data"
extension).
"""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from hopline.errors import BadRequest, quoted
from hopline.json_faults import syntax
from hopline.transports.shares import NUMBERS, STRINGS, check_share, most_objects
from hopline.types import AnyArray, IdArray
from turnserve.compression import PIECE_BYTES, share

#: Datatypes of the Open Inference Protocol that are numbers; BYTES has none.
DATATYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
_NAMES = {dtype: name for name, dtype in DATATYPES.items()}
#: Integers below these are exact as floats. The limit itself is excluded: JSON or the client may already
#: have rounded its neighbour to it.
_EXACT = {"FP16": 2**11, "FP32": 2**24, "FP64": 2**53}
#: Limits of a shape: dimensions, below NumPy's limit, and elements, far below an overflow.
_MAX_DIMS, _MAX_ELEMENTS = 32, 2**48
_NESTED = re.compile(rb"\s*\[\s*\[")
#: JSON type for each kind of dtype; "S" is BYTES.
_JSON_TYPES: dict[str, Any] = {"b": bool, "i": int, "u": int, "f": float, "S": str}


class Tensor(msgspec.Struct, frozen=True, eq=False):
    """One named tensor.

    Attributes:
        datatype: protocol name.
        shape: as sent.
        values: flat array with the datatype's dtype; for BYTES a list of bytes.
        exact: float64 values as sent, if the datatype rounds the JSON numbers; else None.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: AnyArray | list[bytes]
    exact: AnyArray | None = None

    def __len__(self) -> int:
        return len(self.values)

    def ids(self) -> list[str] | IdArray:
        """Return external ids: str for BYTES, int64 for numbers that convert without loss.

        Raises: BadRequest: not [n] or [n, 1], not whole numbers, beyond 64 bits, not UTF-8.
        """
        texts = self.column("ids")
        return texts if isinstance(texts, list) else self.integers()

    def column(self, what: str = "strings") -> list[str] | AnyArray:
        """Return a table column: str for BYTES, otherwise an array as sent.

        Raises: BadRequest: not [n] or [n, 1], or not UTF-8.
        """
        if not (len(self.shape) == 1 or (len(self.shape) == 2 and self.shape[1] == 1)):
            raise self._misshapen("[n] or [n, 1]")
        if not isinstance(self.values, list):
            return self.values
        try:
            return [value.decode() for value in self.values]
        except UnicodeDecodeError as error:
            position = f"byte {error.start} of one is {error.object[error.start]:#04x}"
            raise BadRequest(
                f"tensor {quoted(self.name)} has {what} that are not UTF-8: {position}"
            ) from None

    def integers(self) -> IdArray:
        """Return the values as int64 [n].

        Raises: BadRequest: not whole numbers, or beyond 64 bits.
        """
        values = self.values
        if isinstance(values, list) or values.dtype.kind == "b":
            raise BadRequest(f"tensor {quoted(self.name)} is {self.datatype}; expected INT64")
        if values.dtype.kind == "f":
            limit = _EXACT[self.datatype]
            values = values if self.exact is None else self.exact
            lossless = bool(
                (np.isfinite(values) & (values == np.floor(values)) & (np.abs(values) < limit)).all()
            )
            if not lossless:
                raise BadRequest(
                    f"tensor {quoted(self.name)} is {self.datatype} and has values that are not whole "
                    f"numbers below {limit}, the limit of exact integers; send INT64"
                )
        elif self.datatype == "UINT64" and (values > np.uint64(2**63 - 1)).any():
            raise BadRequest(f"tensor {quoted(self.name)} has values above 2^63 - 1; send INT64")
        return values.astype(np.int64)

    def rows(self) -> AnyArray:
        """Return the values as numbers [n, d], as sent: the engine refuses those that float32 changes.

        Raises: BadRequest: not two-dimensional, rows without values, not numbers, or integers that FP16
            changes.
        """
        if isinstance(self.values, list) or self.values.dtype.kind == "b":
            raise BadRequest(f"tensor {quoted(self.name)} is {self.datatype}; expected FP32")
        if len(self.shape) != 2 or (self.shape[0] and not self.shape[1]):  # rows without values
            raise self._misshapen("[n, features]")
        values = self.values
        if self.exact is not None and self.datatype == "FP16":
            lost = (self.exact == np.floor(self.exact)) & (self.exact != values)
            if lost.any():
                at = int(lost.argmax())
                raise BadRequest(
                    f"tensor {quoted(self.name)} is FP16, which changes {self.exact[at]:.0f} to "
                    f"{values[at]:.0f}; send FP32"
                )
        elif self.exact is not None and values.size and not np.abs(values).max() < _EXACT["FP32"]:
            values = self.exact
        return values.reshape(self.shape)

    def _misshapen(self, needed: str) -> BadRequest:
        return BadRequest(f"tensor {quoted(self.name)} has shape {quoted(self.shape)}; expected {needed}")


def tensor_from_array(name: str, array: AnyArray) -> Tensor:
    """Return an output as a tensor; strings become BYTES."""
    if array.dtype.kind in "OUS":
        values = [
            item if isinstance(item, bytes) else str(item).encode() for item in array.ravel().tolist()
        ]
        return Tensor(name, "BYTES", array.shape, values)
    datatype = _NAMES.get(array.dtype)
    if datatype is None:
        raise TypeError(f"output {name!r} has dtype {array.dtype}, which is not a datatype of the protocol")
    return Tensor(name, datatype, array.shape, np.ascontiguousarray(array).ravel())


def checked_shape(name: str, shape: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Return a shape as a tuple, and its number of elements.

    Raises: BadRequest: no dimension, too many dimensions, a negative one, or too many elements.
    """
    if len(shape) == 1 and 0 <= shape[0] <= _MAX_ELEMENTS:  # the typical case
        return (shape[0],), shape[0]
    if len(shape) > _MAX_DIMS:
        raise BadRequest(
            f"tensor {quoted(name)} has a shape of {len(shape)} dimensions; at most {_MAX_DIMS} are allowed"
        )
    dims = tuple(shape)
    if not dims or min(dims) < 0:
        raise BadRequest(f"tensor {quoted(name)} has shape {quoted(dims)}; expected positive dimensions")
    if math.prod(max(size, 1) for size in dims) > _MAX_ELEMENTS:
        raise BadRequest(f"tensor {quoted(name)} has shape {quoted(dims)}, larger than any request")
    return dims, math.prod(dims)


def check_amount(name: str, heads: Iterable[tuple[str, int]], num_bytes: int, sent_bytes: int) -> None:
    """Refuse a large or compressed request whose tensors have more values than its sender's share.

    Args:
        name: of the request, for messages.
        heads: datatype and number of values of each tensor.
        num_bytes: size of the decompressed request.
        sent_bytes: size as sent.

    Raises: RequestTooLarge.
    """
    if num_bytes <= min(sent_bytes, PIECE_BYTES):
        return
    num_strings = num_others = 0
    for datatype, count in heads:
        if datatype == "BYTES":
            num_strings += count
        else:
            num_others += count
    most = most_objects(STRINGS, sent_bytes, num_bytes)
    check_share(name, num_strings, "BYTES values", most, sent_bytes)
    check_share(name, num_others, "values", share(NUMBERS, sent_bytes), sent_bytes)


class TensorHead(msgspec.Struct, frozen=True, eq=False):
    """The description of a tensor without its values, checked once for all tensors that share it.

    Attributes:
        datatype: protocol name.
        shape: as sent; has `count` elements.
        dtype: None for BYTES.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    count: int
    dtype: np.dtype[Any] | None

    def decode(self, data: bytes | memoryview) -> Tensor:
        """Return the tensor with values from binary data.

        Raises: BadRequest: the bytes do not match the shape.
        """
        dtype = self.dtype
        if dtype is None:
            return Tensor(self.name, self.datatype, self.shape, _split_bytes(self.name, self.count, data))
        if len(data) != self.count * dtype.itemsize:
            raise BadRequest(
                f"tensor {quoted(self.name)} {self.datatype}{quoted(self.shape)} needs "
                f"{self.count * dtype.itemsize} bytes, but {len(data)} were sent"
            )
        return Tensor(self.name, self.datatype, self.shape, np.frombuffer(data, dtype))


def tensor_head(name: str, datatype: str, shape: Sequence[int]) -> TensorHead:
    """Build a head from the fields of a request.

    Raises: BadRequest: unknown datatype, no dimension, or a negative one.
    """
    dims, count = checked_shape(name, shape)
    return TensorHead(name, datatype, dims, count, None if datatype == "BYTES" else _dtype(name, datatype))


def decode_raw(name: str, datatype: str, shape: Sequence[int], data: bytes | memoryview) -> Tensor:
    """Decode a tensor from binary data.

    Raises: BadRequest: unknown datatype, or the bytes do not match the shape.
    """
    return tensor_head(name, datatype, shape).decode(data)


def decode_json(name: str, datatype: str, shape: Sequence[int], text: bytes) -> Tensor:
    """Decode a tensor from a JSON list of values, flat or nested according to its shape.

    Raises: BadRequest: unknown datatype, a value of another type, or a wrong number of values.
    """
    dims, count = checked_shape(name, shape)
    dtype = None if datatype == "BYTES" else _dtype(name, datatype)
    is_nested = _NESTED.match(text) is not None
    try:
        values = _decoder("S" if dtype is None else dtype.kind, len(dims) if is_nested else 1)(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return decode_values(name, datatype, shape, _any_values(name, text))  # raises the exact error
    flat = _flatten(name, dims, values) if is_nested else values
    if len(flat) != count:
        raise _uneven(name, dims, count, len(flat))
    if dtype is None:
        return Tensor(name, datatype, dims, [value.encode() for value in flat])
    return _of_numbers(name, datatype, dims, flat, dtype)


def decode_values(name: str, datatype: str, shape: Sequence[int], values: Sequence[Any]) -> Tensor:
    """Build a tensor from Python values, nested or flat.

    Raises: BadRequest: unknown datatype, a value of another type, or a wrong number of values.
    """
    dims, count = checked_shape(name, shape)
    flat = _flatten(name, dims, values)
    if len(flat) != count:
        raise _uneven(name, dims, count, len(flat))
    if datatype == "BYTES":
        return Tensor(name, datatype, dims, [_as_bytes(name, value) for value in flat])
    dtype = _dtype(name, datatype)
    wanted = {"b": (bool,), "i": (int,), "u": (int,), "f": (int, float)}[dtype.kind]
    for value in flat:
        if not isinstance(value, wanted) or (isinstance(value, bool) and dtype.kind != "b"):
            raise BadRequest(f"tensor {quoted(name)} is {datatype} but holds {quoted(value)}")
    return _of_numbers(name, datatype, dims, flat, dtype)


def decode_typed(name: str, datatype: str, shape: Sequence[int], values: list[Any]) -> Tensor:
    """Build a tensor from values of a known type, for gRPC's typed contents.

    Raises: BadRequest: a wrong number of values, or one that does not fit the datatype.
    """
    dims, count = checked_shape(name, shape)
    if len(values) != count:
        raise _uneven(name, dims, count, len(values))
    if datatype == "BYTES":
        return Tensor(name, datatype, dims, values)
    return _of_numbers(name, datatype, dims, values, DATATYPES[datatype])


def encode_raw(tensor: Tensor) -> bytes:
    """Encode a tensor as binary data."""
    if isinstance(tensor.values, list):
        return b"".join(struct.pack("<I", len(value)) + value for value in tensor.values)
    return tensor.values.tobytes()


def _uneven(name: str, dims: tuple[int, ...], count: int, sent: int) -> BadRequest:
    shape = f"tensor {quoted(name)} has shape {quoted(dims)}"
    return BadRequest(f"{shape}, so {count} values, but {sent} were sent")


@functools.cache
def _decoder(kind: str, depth: int) -> Callable[[bytes], list[Any]]:
    wanted: Any = _JSON_TYPES[kind]
    for _ in range(depth):
        wanted = list[wanted]
    return msgspec.json.Decoder(wanted).decode


def _any_values(name: str, text: bytes) -> list[Any]:
    try:
        values: list[Any] = _decoder_of_any(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise BadRequest(f"tensor {quoted(name)}: data: {syntax(error, text)}") from None
    return values


_decoder_of_any = msgspec.json.Decoder(list[Any]).decode


def _of_numbers(
    name: str, datatype: str, dims: tuple[int, ...], values: list[Any], dtype: np.dtype[Any]
) -> Tensor:
    try:
        if dtype.kind != "f" or dtype.itemsize == 8:
            return Tensor(name, datatype, dims, np.array(values, dtype))
        exact = np.array(values, np.float64)
        with np.errstate(over="raise"):
            return Tensor(name, datatype, dims, np.array(exact, dtype), exact)
    except (FloatingPointError, OverflowError, ValueError):
        raise BadRequest(f"tensor {quoted(name)} has values that do not fit {datatype}") from None


def _dtype(name: str, datatype: str) -> np.dtype[Any]:
    dtype = DATATYPES.get(datatype)
    if dtype is None:
        raise BadRequest(
            f"tensor {quoted(name)} has datatype {quoted(datatype)}; known are "
            f"{', '.join(DATATYPES)}, BYTES"
        )
    return dtype


def _split_bytes(name: str, count: int, data: bytes | memoryview) -> list[bytes]:
    if count == 1 and len(data) >= 4 and int.from_bytes(data[:4], "little") == len(data) - 4:  # mostly
        return [bytes(data[4:])]
    values: list[bytes] = []
    whole, at, end = bytes(data), 0, len(data)
    while at < end and len(values) < count:
        if at + 4 > end:
            raise BadRequest(
                f"tensor {quoted(name)}: a length begins at byte {at}, but only {end - at} bytes follow"
            )
        start = at + 4
        at = start + int.from_bytes(whole[at:start], "little")
        if at > end:
            raise BadRequest(
                f"tensor {quoted(name)}: a value of {at - start} bytes begins at byte {start}, "
                f"but only {end - start} bytes follow"
            )
        values.append(whole[start:at])
    if len(values) != count or at < end:
        more = f"{len(values)} were sent" if at == end else f"{end - at} bytes follow the last one"
        raise BadRequest(f"tensor {quoted(name)} needs {count} BYTES values, but {more}")
    return values


def _flatten(name: str, dims: tuple[int, ...], values: Sequence[Any]) -> list[Any]:
    """Return values without nesting. Raises: BadRequest: they are nested differently from the shape."""
    flat: list[Any] = list(values)
    if not any(isinstance(value, list) for value in flat):
        return flat
    fits = len(flat) == dims[0]
    for size in dims[1:]:
        fits = fits and all(isinstance(value, list) and len(value) == size for value in flat)
        if not fits:
            break
        flat = [item for value in flat for item in value]
    if not fits or any(isinstance(value, list) for value in flat):
        raise BadRequest(
            f"tensor {quoted(name)} has shape {quoted(dims)}, but its data is nested differently; send it "
            "flat, or nested according to the shape"
        )
    return flat


def _as_bytes(name: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise BadRequest(f"tensor {quoted(name)} is BYTES but holds {quoted(value)}")
