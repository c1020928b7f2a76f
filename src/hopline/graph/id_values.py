"""Ids that callers pass: their kind is detected, and they are checked and encoded for the hash table.

On the path of every request: a list of plain ints or strs is recognised without a Python loop.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hopline.errors import BadRequest
from hopline.types import IdArray

_INT, _STR = frozenset({int}), frozenset({str})
_WRITTEN_INTEGER = re.compile("-?(0|[1-9][0-9]*)")


def typed(external_ids: Any) -> tuple[Literal["int", "string"], Any]:
    """Detect whether ids are ints or strings.

    Returns: ("int", integer array or list of int) or ("string", list of str).
    Raises: BadRequest: neither, or both; a set or a mapping, in which ids have no place.
    """
    if type(external_ids) is list:
        types = set(map(type, external_ids))
        if types == _INT:
            return "int", external_ids
        if types == _STR:
            return "string", external_ids
    elif hasattr(external_ids, "__array__"):
        external_ids = np.asarray(external_ids)
    if isinstance(external_ids, np.ndarray):
        if external_ids.ndim != 1:
            raise BadRequest(f"node ids must be one-dimensional; got shape {external_ids.shape}")
        if external_ids.dtype.kind in "iu":
            return "int", external_ids
        external_ids = external_ids.tolist()
    elif isinstance(external_ids, str | bytes):
        raise BadRequest(f"node ids must be a list; got the single value {external_ids!r}")
    elif isinstance(external_ids, set | frozenset | Mapping):
        raise BadRequest(
            f"node ids must be a list, in the order of their rows; got a {type(external_ids).__name__}"
        )
    elif not isinstance(external_ids, list):
        external_ids = list(external_ids)
    types = set(map(type, external_ids))
    if all(issubclass(t, np.integer) or t is int for t in types):
        return "int", [int(value) for value in external_ids]
    if all(issubclass(t, str) for t in types):
        return "string", [str(value) for value in external_ids]
    bad = [v for v in external_ids if isinstance(v, bool) or not isinstance(v, str | int | np.integer)]
    if not bad:
        raise BadRequest("node ids must be all integers or all strings; got both")
    raise BadRequest(f"node ids must be integers or strings; got {bad[0]!r} ({type(bad[0]).__name__})")


def wanted_ints(external_ids: Any) -> tuple[IdArray, NDArray[np.bool_] | None]:
    """Integer ids as int64 [n].

    Returns: the ids, and None or (if some do not fit, so that no graph can have them) a mask of those that
        fit; the others are 0.
    Raises: BadRequest: they are not integers.
    """
    kind, values = typed(external_ids)
    if kind == "string":
        raise BadRequest(f"node ids are integers here; got the string {values[0]!r}")
    ints = as_int64(values)
    if ints is not None:
        return ints, None
    limits = np.iinfo(np.int64)
    known = np.array([limits.min <= int(value) <= limits.max for value in values])
    return np.array([int(v) if k else 0 for v, k in zip(values, known, strict=True)], np.int64), known


def not_strings(ids: Any) -> str:
    """The message for integers where ids are strings."""
    return f'node ids are strings here; got the integer {int(ids[0])}: write "{int(ids[0])}"'


def integer_id(text: str) -> int:
    """Parse an integer id that is written as text, on a command line or in a file.

    Python's `int` accepts more: 1_0 and 010 would be read as the id 10.

    Raises: ValueError: it is not written like 10 or -10.
    """
    if not _WRITTEN_INTEGER.fullmatch(text):
        raise ValueError(f"{text!r} is not an integer id")
    return int(text)


def as_int64(values: Any) -> IdArray | None:
    """The values as int64 [n], None if one does not fit."""
    if isinstance(values, np.ndarray):
        if values.dtype == np.uint64 and len(values) and values.max() > np.iinfo(np.int64).max:
            return None
        return np.ascontiguousarray(values, np.int64)
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return None


def encoded(values: Sequence[str]) -> tuple[NDArray[np.uint8], IdArray]:
    """All strings as one run of UTF-8 bytes, and the byte length of each."""
    joined = "".join(values)
    if joined.isascii():  # one encode for all: an ASCII string has as many bytes as characters
        blob = joined.encode()
        lengths = list(map(len, values))
    else:
        pieces = [value.encode("utf-8", "surrogatepass") for value in values]
        blob = b"".join(pieces)
        lengths = list(map(len, pieces))
    return np.frombuffer(blob, np.uint8), np.array(lengths, np.int64)
