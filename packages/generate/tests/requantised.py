"""A second quantisation of SmolLM2: the same weights as Q8_0, written here out of the file in Q4_1.

Formats of blocks of 32 weights, from ggml-common.h: Q4_1 is a scale and a least value in float16 and 32
numbers of four bits, the first half in the low ones; Q8_0 is a scale in float16 and 32 signed bytes.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_Q4_1, _Q8_0 = 3, 8
#: Of `general.file_type`.
_MOSTLY_Q4_1, _MOSTLY_Q8_0 = 3, 7
_ALIGNMENT = 32
_Q4_1_BLOCK = np.dtype([("scale", "<f2"), ("least", "<f2"), ("numbers", "u1", 16)])
_Q8_0_BLOCK = np.dtype([("scale", "<f2"), ("numbers", "i1", 32)])
_FIRST_TENSOR = b"token_embd.weight"


def q8_0(source: Path, target: Path, *, is_broken: bool = False) -> Path:
    """Write the model of a file in Q4_1 as Q8_0.

    Args:
        is_broken: all layers are a thousand times too large: the model loads, and writes nonsense.
    """
    data = source.read_bytes()
    begin = data.index(struct.pack("<Q", len(_FIRST_TENSOR)) + _FIRST_TENSOR)
    (count,) = struct.unpack_from("<Q", data, 8)
    tensors, at = [], begin
    for _ in range(count):
        (length,) = struct.unpack_from("<Q", data, at)
        (num_dims,) = struct.unpack_from("<I", data, at + 8 + length)
        head = data[at : at + 12 + length + 8 * num_dims]
        kind, offset = struct.unpack_from("<IQ", data, at + len(head))
        tensors.append((head, kind, offset))
        at += len(head) + 12
    first = _aligned(at)
    ends = [offset for _, _, offset in tensors[1:]] + [len(data) - first]
    infos, bodies, written = b"", [], 0
    for (head, kind, offset), end in zip(tensors, ends, strict=True):
        body = data[first + offset : first + end]
        if kind == _Q4_1:
            kind, body = _Q8_0, _converted(body, is_broken=is_broken)
        infos += head + struct.pack("<IQ", kind, written)
        body += bytes(_aligned(len(body)) - len(body))
        bodies.append(body)
        written += len(body)
    name = b"general.file_type" + struct.pack("<I", 4)
    header = data[:begin].replace(
        name + struct.pack("<I", _MOSTLY_Q4_1), name + struct.pack("<I", _MOSTLY_Q8_0)
    )
    header += infos
    target.write_bytes(header + bytes(_aligned(len(header)) - len(header)) + b"".join(bodies))
    return target


def _converted(body: bytes, *, is_broken: bool) -> bytes:
    blocks = np.frombuffer(body[: len(body) // 20 * 20], _Q4_1_BLOCK)
    low, high = blocks["numbers"] & 15, blocks["numbers"] >> 4
    numbers: NDArray[np.float32] = np.concatenate([low, high], axis=1).astype(np.float32)
    weights = numbers * blocks["scale"][:, None].astype(np.float32) + blocks["least"][:, None]
    scales = np.abs(weights).max(axis=1) / 127
    found = np.zeros(len(blocks), _Q8_0_BLOCK)
    found["numbers"] = np.rint(weights / np.maximum(scales, 1e-12)[:, None])
    found["scale"] = scales * (1000 if is_broken else 1)
    return found.tobytes()


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
