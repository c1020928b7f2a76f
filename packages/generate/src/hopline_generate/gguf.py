"""Header of a GGUF file: the metadata and the list of tensors (format versions 2 and 3).

    "GGUF" │ u32 version │ u64 tensors │ u64 entries │ entries: string key, u32 type, value
           │ tensors: string name, u32 dimensions, u64 of each, u32 type, u64 offset │ aligned: data

Format: github.com/ggml-org/ggml/blob/master/docs/gguf.md. Lists (the vocabulary) are skipped. Nothing that
the file says is trusted for more than its own bytes.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from hopline.errors import ArtifactError, quoted

_MAGIC = b"GGUF"
#: struct format by type, for numbers and truth values.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST_ENTRIES, _LONGEST_STRING, _LONGEST_ARRAY = 10_000, 64 * 2**20, 64 * 2**20
#: Lists in lists, and characters of all texts that are kept.
_MOST_NESTED, _MOST_KEPT = 8, 64 * 2**20
#: `general.file_type`, see `llama_ftype` in llama.h.
_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K",
    32: "BF16",
}  # fmt: skip


#: Type of a tensor -> weights and bytes of one block, see `type_traits` in ggml.c.
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 30: (1, 2),
}  # fmt: skip
_ALIGNMENT = 32


class GgufModel(NamedTuple):
    """Contents of a file's header.

    Attributes:
        metadata: texts, numbers and truth values.
        num_parameters: weights of all tensors.
    """

    metadata: dict[str, Any]
    num_parameters: int

    def number(self, key: str) -> int:
        """A whole number of the metadata; 0 where there is none."""
        found = self.metadata.get(key, 0)
        return found if isinstance(found, int) and not isinstance(found, bool) else 0


def read_gguf(file: Path) -> GgufModel:
    """Read the metadata and the list of tensors.

    Raises: ArtifactError: it is no GGUF file, or a tensor ends behind its end: it is cut off.
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
            kept = 0
            for _ in range(count):
                key = _string(stream)
                value = _value(stream, *struct.unpack("<I", stream.read(4)))
                if value is not None:
                    found[key] = value
                    kept += len(key) + len(value) if isinstance(value, str) else len(key)
                if kept > _MOST_KEPT:
                    raise ValueError(f"its texts have more than {_MOST_KEPT} characters")
            alignment = found.get("general.alignment", _ALIGNMENT)
            num_parameters = _read_tensors(stream, num_tensors, alignment, file.stat().st_size)
        except (struct.error, ValueError) as error:
            raise ArtifactError(f"{file}: its metadata cannot be read: {error}; is it cut off?") from None
    return GgufModel(found, num_parameters)


def _read_tensors(stream: BinaryIO, count: int, alignment: int, size: int) -> int:
    """The number of weights.

    Each tensor must be inside the file: an engine would crash, or read what is behind as weights.
    """
    if not isinstance(alignment, int) or not 0 < alignment <= 2**20:
        raise ValueError(f"tensors are aligned to {alignment!r:.40} bytes")
    num_parameters = end = 0
    for _ in range(count):
        name = _string(stream)
        (num_dims,) = struct.unpack("<I", stream.read(4))
        if num_dims > 8:
            raise ValueError(f"tensor {quoted(name)} has {num_dims} dimensions")
        num_weights = math.prod(struct.unpack(f"<{num_dims}Q", stream.read(8 * num_dims)))
        kind, offset = struct.unpack("<IQ", stream.read(12))
        per_block, block_bytes = _BLOCKS.get(kind, (max(1, num_weights), 1))  # at least a byte, if unknown
        end = max(end, offset + -(-num_weights // per_block) * block_bytes)
        num_parameters += num_weights
    begin = -(-stream.tell() // alignment) * alignment
    if begin + end > size:
        raise ValueError(f"its tensors end at byte {begin + end}, the file at {size}")
    return num_parameters


def quantisation(metadata: dict[str, Any]) -> str:
    """Name of the file's quantisation; "" if it does not say."""
    kind = metadata.get("general.file_type")
    return _FILE_TYPES.get(kind, f"type {kind}") if isinstance(kind, int) else ""


def _string(stream: BinaryIO) -> str:
    (length,) = struct.unpack("<Q", stream.read(8))
    if length > _LONGEST_STRING:
        raise ValueError(f"a string of {length} bytes")
    data = stream.read(length)
    if len(data) < length:
        raise ValueError("a string ends with the file")
    return data.decode()


def _value(stream: BinaryIO, kind: int, num_lists: int = 0) -> Any:
    """A value; None for a list, which is skipped."""
    if kind == _STRING:
        return _string(stream)
    if kind != _ARRAY:
        if kind not in _NUMBERS:
            raise ValueError(f"a value of type {kind}")
        form = "<" + _NUMBERS[kind]
        return struct.unpack(form, stream.read(struct.calcsize(form)))[0]
    if num_lists == _MOST_NESTED:
        raise ValueError(f"more than {_MOST_NESTED} lists in each other")
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
            _value(stream, _ARRAY, num_lists + 1)
    return None
