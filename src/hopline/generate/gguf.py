"""What a GGUF file says of its model: the metadata before the tensors (format versions 2 and 3).

    "GGUF" │ u32 version │ u64 tensors │ u64 entries │ entries: string key, u32 type, value │ …

Format: github.com/ggml-org/ggml/blob/master/docs/gguf.md. Lists (the vocabulary) are skipped. Nothing that
the file says is trusted for more than its own bytes.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

from hopline.errors import ArtifactError

_MAGIC = b"GGUF"
#: struct format by type, for numbers and truth values.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST_ENTRIES, _LONGEST_STRING, _LONGEST_ARRAY = 10_000, 64 * 2**20, 64 * 2**20
#: `general.file_type`, see `llama_ftype` in llama.h.
_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K",
    32: "BF16",
}  # fmt: skip


def read_metadata(file: Path) -> dict[str, Any]:
    """Texts, numbers and truth values of a file's metadata.

    Raises: ArtifactError: it is no GGUF file, or tensors begin behind its end: it is cut off.
    """
    with file.open("rb") as stream:
        if stream.read(4) != _MAGIC:
            raise ArtifactError(f"{file}: is no GGUF file: it does not begin with {_MAGIC.decode()}")
        try:
            (version,) = struct.unpack("<I", stream.read(4))
            if version not in (2, 3):
                raise ArtifactError(f"{file}: GGUF version {version}; versions 2 and 3 are read")
            num_tensors, count = struct.unpack("<QQ", stream.read(16))
            if max(count, num_tensors) > _MOST_ENTRIES:
                raise ArtifactError(f"{file}: {count} entries and {num_tensors} tensors; is it damaged?")
            found: dict[str, Any] = {}
            for _ in range(count):
                key = _string(stream)
                value = _value(stream, *struct.unpack("<I", stream.read(4)))
                if value is not None:
                    found[key] = value
            _check_tensors(stream, num_tensors, file.stat().st_size)
        except (struct.error, UnicodeDecodeError, ValueError, KeyError) as error:
            raise ArtifactError(f"{file}: its metadata cannot be read: {error}; is it cut off?") from None
    return found


def _check_tensors(stream: BinaryIO, count: int, size: int) -> None:
    """Whether each tensor begins inside the file; engines may crash where one does not."""
    last = 0
    for _ in range(count):
        name = _string(stream)
        (num_dims,) = struct.unpack("<I", stream.read(4))
        if num_dims > 8:
            raise ValueError(f"tensor {name!r} has {num_dims} dimensions")
        stream.seek(8 * num_dims + 4, 1)
        (offset,) = struct.unpack("<Q", stream.read(8))
        last = max(last, offset)
    if stream.tell() + last >= size:
        raise ValueError(f"a tensor begins at byte {stream.tell() + last} of {size}")


def quantisation(metadata: dict[str, Any]) -> str:
    """Name of the file's quantisation; "" if it does not say."""
    kind = metadata.get("general.file_type")
    return "" if kind is None else _FILE_TYPES.get(kind, f"type {kind}")


def _string(stream: BinaryIO) -> str:
    (length,) = struct.unpack("<Q", stream.read(8))
    if length > _LONGEST_STRING:
        raise ValueError(f"a string of {length} bytes")
    data = stream.read(length)
    if len(data) < length:
        raise ValueError("a string ends with the file")
    return data.decode()


def _value(stream: BinaryIO, kind: int) -> Any:
    """A value; None for a list, which is skipped."""
    if kind == _STRING:
        return _string(stream)
    if kind != _ARRAY:
        form = "<" + _NUMBERS[kind]
        return struct.unpack(form, stream.read(struct.calcsize(form)))[0]
    element, count = struct.unpack("<IQ", stream.read(12))
    if count > _LONGEST_ARRAY:
        raise ValueError(f"a list of {count} values")
    if element in _NUMBERS:
        stream.seek(count * struct.calcsize("<" + _NUMBERS[element]), 1)
        return None
    if element not in (_STRING, _ARRAY):
        raise ValueError(f"values of type {element}")
    for _ in range(count):
        if element == _STRING:
            _string(stream)
        else:
            _value(stream, _ARRAY)
    return None
