"""Hashes of external ids: how rows are matched with nodes in another snapshot of a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.graph import IdIndex
from hopline.graph.id_values import encoded, typed
from hopline.graph.ids import RangeIds
from hopline.kernels.jit import njit
from hopline.types import AnyArray, IdArray

_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)
_BASIS, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)


def id_hashes(external_ids: AnyArray | list[str]) -> NDArray[np.uint64]:
    """A hash of each id, uint64 [n]. The hash is part of the file format and never changes.

    Args:
        external_ids: int64 [n], or n strings.
    """
    kind: str = "int"
    values: Any = external_ids
    if len(external_ids):
        kind, values = typed(external_ids)
    out = np.empty(len(values), np.uint64)
    if kind == "int":
        out[:] = np.asarray(values, np.int64).view(np.uint64)
        _mix_all(out)
        return out
    blob, lengths = encoded(values)
    _hash_all(blob, lengths, out)
    return out


def hashes_of_nodes(index: IdIndex, num_rows: int, begin: int = 0) -> NDArray[np.uint64]:
    """The hashes of rows [begin, num_rows) of a node type."""
    rows: IdArray = np.arange(begin, num_rows, dtype=np.int64)
    return id_hashes(rows if isinstance(index, RangeIds) else index.external(rows))


@njit(nogil=True, cache=True)
def _mix(x: Any) -> Any:
    """The finaliser of splitmix64 (Steele et al., OOPSLA 2014)."""
    x = (x ^ (x >> _S30)) * _MULTIPLY_1
    x = (x ^ (x >> _S27)) * _MULTIPLY_2
    return x ^ (x >> _S31)


@njit(nogil=True, cache=True)
def _mix_all(values: Any) -> None:
    for i in range(values.shape[0]):
        values[i] = _mix(values[i])


@njit(nogil=True, cache=True)
def _hash_all(blob: Any, lengths: Any, out: Any) -> None:
    """FNV-1a over each string's bytes, mixed."""
    at = 0
    for i in range(lengths.shape[0]):
        state = _BASIS
        for _ in range(lengths[i]):
            state = (state ^ np.uint64(blob[at])) * _PRIME
            at += 1
        out[i] = _mix(state)
