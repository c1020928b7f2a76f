"""Identities of the rows of a request: the same node, pair or content has the same key in every worker.

Repeated rows are no further evidence about a version, so gates count keys. Keys are spread evenly over 53
bits: the smallest of them are an even sample of all distinct rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from hopline.types import ScoreRequest

#: Numbers up to 2^53 are exact in every format that counts travel in.
_BITS = 53


def row_keys(request: ScoreRequest, count: int) -> list[int]:
    """Keys of the first `count` rows of a request; fewer if it has fewer.

    Routing, time, outputs and the caller are not in them.
    """
    if len(request.nodes):
        keys = [_key(_plain(node)) for node in request.nodes[:count]]
        return keys + [_key(node) for node in request.inline[: count - len(keys)]]
    if request.inline:
        return [_key(node) for node in request.inline[:count]]
    if request.edges:
        return [_key(edge) for edge in request.edges[:count]]
    if request.pairs is not None:
        ends = zip(*(side[:count] for side in request.pairs), strict=True)
        return [_key([_plain(end) for end in pair]) for pair in ends]
    columns = request.columns or {}
    names = sorted(columns)
    values: list[Sequence[Any]] = [columns[name][:count] for name in names]
    return [_key([names, [_plain(value) for value in row]]) for row in zip(*values, strict=False)]


def _key(content: Any) -> int:
    try:
        encoded = _encode(content)
    except (TypeError, ValueError, OverflowError, RecursionError):
        encoded = repr(content).encode(errors="replace")
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest()) >> (64 - _BITS)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _other(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no key")


_encode = msgspec.msgpack.Encoder(enc_hook=_other, order="deterministic").encode
