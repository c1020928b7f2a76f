"""Reads of neighbours and weights in kernels: the same functions for arrays and for packed data.

Numba selects the code by type at compile time: for plain arrays it is the same as without this file.
Packed ids are (address of offsets, address of data, bits); packed weights are (address of codes, address of
sums, scale, code of 0), with addresses 0 where there are no weights. The caller keeps the arrays alive.
Neighbours that lie in a graph store are (0,): kernels choose positions and read no neighbours; see
`store_columns.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from hopline.graph.codec_kernels import (
    FEW,
    SUM_BITS,
    code_sum,
    prefetch_block,
    read_number,
    sum_of_bytes,
    sum_of_eight,
    touch_number,
)
from hopline.kernels.intrinsics import load_byte, load_word, prefetch

#: Edges between the three steps of a packed neighbour.
_TOUCHED, _AHEAD = 32, 32

_INLINE = {"forceinline": True}


def touch(ids: Any, position: Any) -> None:
    """Prefetch the neighbour at `position`, or the offset that locates it."""


def id_at(ids: Any, position: Any) -> Any:
    """The neighbour at `position`, int64."""


def follow(ids: Any, positions: Any, total: Any, ahead: Any, done: Any, out: Any) -> Any:
    """Read neighbours while the caller fills positions[:total] (`touch` was called for each).

    Packed neighbours need two memory accesses, first the offset of a block, then the block. They are
    prefetched some edges before they are read, between the draws. Plain arrays are read only in `finish`.

    Returns: the new (ahead, done).
    """


def finish(ids: Any, positions: Any, total: Any, ahead: Any, done: Any, out: Any) -> None:
    """out[e] = the neighbour at positions[e], for done <= e < total."""


def has_weights(weights: Any) -> Any:
    """True if there are weights."""


def weight_at(weights: Any, position: Any) -> Any:
    """The weight at `position`, float32."""


def weight_up_to(sums: Any, start: Any, position: Any) -> Any:
    """The sum of weights from `start`, where a list begins, to `position` inclusive, float64."""


def first_beyond(sums: Any, start: Any, n: Any, bound: Any) -> Any:
    """The first of the `n` weights of the list at `start` that brings their sum above `bound`; n for none.

    Needs sums that ascend: no weight may be negative.
    """


def _is_packed(what: Any) -> bool:
    return isinstance(what, types.BaseTuple)


def _is_in_store(what: Any) -> bool:
    return isinstance(what, types.BaseTuple) and what.count == 1


@overload(touch, jit_options=_INLINE)
def _touch(ids, position):  # type: ignore[no-untyped-def]
    if _is_in_store(ids):
        return lambda ids, position: None
    if _is_packed(ids):
        return lambda ids, position: touch_number(ids[0], ids[1], ids[2], position)
    return lambda ids, position: prefetch(ids, position)


@overload(id_at, jit_options=_INLINE)
def _id_at(ids, position):  # type: ignore[no-untyped-def]
    if _is_in_store(ids):  # no node: callers that need the id refuse such a graph when they are created
        return lambda ids, position: np.int64(-1)
    if _is_packed(ids):
        return lambda ids, position: read_number(ids[0], ids[1], ids[2], position)
    return lambda ids, position: ids[position]


@overload(follow, jit_options=_INLINE)
def _follow(ids, positions, total, ahead, done, out):  # type: ignore[no-untyped-def]
    if not _is_packed(ids) or _is_in_store(ids):
        return lambda ids, positions, total, ahead, done, out: (ahead, done)

    def advance(ids, positions, total, ahead, done, out):  # type: ignore[no-untyped-def]
        while ahead < total - _TOUCHED:
            prefetch_block(ids[0], ids[1], positions[ahead])
            ahead += 1
        while done < ahead - _AHEAD:
            out[done] = read_number(ids[0], ids[1], ids[2], positions[done])
            done += 1
        return ahead, done

    return advance


@overload(finish, jit_options=_INLINE)
def _finish(ids, positions, total, ahead, done, out):  # type: ignore[no-untyped-def]
    if _is_in_store(ids):
        return lambda ids, positions, total, ahead, done, out: None
    if _is_packed(ids):

        def read_rest(ids, positions, total, ahead, done, out):  # type: ignore[no-untyped-def]
            for e in range(ahead, total):
                prefetch_block(ids[0], ids[1], positions[e])
            for e in range(done, total):
                out[e] = read_number(ids[0], ids[1], ids[2], positions[e])

        return read_rest

    def read(ids, positions, total, ahead, done, out):  # type: ignore[no-untyped-def]
        for e in range(total):
            out[e] = ids[positions[e]]

    return read


@overload(has_weights, jit_options=_INLINE)
def _has_weights(weights):  # type: ignore[no-untyped-def]
    if _is_packed(weights):
        return lambda weights: weights[0] != 0
    return lambda weights: weights.shape[0] > 0


@overload(weight_at, jit_options=_INLINE)
def _weight_at(weights, position):  # type: ignore[no-untyped-def]
    if _is_packed(weights):
        return lambda weights, position: np.float32(
            (load_byte(weights[0] + position) - weights[3]) * weights[2]
        )
    return lambda weights, position: weights[position]


@overload(weight_up_to, jit_options=_INLINE)
def _weight_up_to(sums, start, position):  # type: ignore[no-untyped-def]
    if not _is_packed(sums):
        return lambda sums, start, position: sums[position]

    def of_codes(sums, start, position):  # type: ignore[no-untyped-def]
        codes_at, sums_at, scale, zero = sums
        end = position + 1
        of_zeros = zero * (end - start)
        if end - start <= FEW:
            return scale * np.float64(sum_of_bytes(codes_at + start, codes_at + end) - of_zeros)
        total = code_sum(codes_at, sums_at, end) - code_sum(codes_at, sums_at, start)
        return scale * np.float64(total - of_zeros)

    return of_codes


@overload(first_beyond)
def _first_beyond(sums, start, n, bound):  # type: ignore[no-untyped-def]
    if not _is_packed(sums):

        def search(sums, start, n, bound):  # type: ignore[no-untyped-def]
            low, high = 0, n
            while low < high:
                middle = (low + high) >> 1
                if sums[start + middle] > bound:
                    high = middle
                else:
                    low = middle + 1
            return low

        return search

    def search_blocks(sums, start, n, bound):  # type: ignore[no-untyped-def]
        codes_at, sums_at, scale, _ = sums  # of unsigned weights: their code of 0 is 0
        end = start + n
        at, total = start, np.int64(0)
        if n > FEW:
            before = code_sum(codes_at, sums_at, start)
            # The last block boundary inside the list up to which the sum is not above the bound.
            low, high = start >> SUM_BITS, end >> SUM_BITS
            while low < high:
                middle = (low + high + 1) >> 1
                if scale * np.float64(np.int64(load_word(sums_at + 8 * middle)) - before) > bound:
                    high = middle - 1
                else:
                    low = middle
            if (low << SUM_BITS) > start:
                at = low << SUM_BITS
                total = np.int64(load_word(sums_at + 8 * low)) - before
        while at + 8 <= end:
            eight = sum_of_eight(codes_at + at)
            if scale * np.float64(total + eight) > bound:
                break
            total += eight
            at += 8
        while at < end:
            total += load_byte(codes_at + at)
            if scale * np.float64(total) > bound:
                break
            at += 1
        return at - start

    return search_blocks
