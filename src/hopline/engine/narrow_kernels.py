"""Reads of row kernels: directly, or decoded from narrow storage, one element at a time.

`decoder_of` and `value_at` hold the whole difference. Numba selects their code by the type of the input,
so each kernel is written once, and for float32 compiles to the same code as without them. Narrow rows
are decoded in registers: memory delivers only the narrow row, and no float32 copy is created.
The arithmetic equals `NarrowMatrix.decoded`, operation by operation, so a narrow graph gives the same
bits as a float32 graph of the decoded features.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from hopline.graph.narrow import NarrowMatrix
from hopline.kernels.intrinsics import float_of_bits, float_of_half
from hopline.sampling.keyed import frozen
from hopline.types import AnyArray, FloatArray

_NO_FLOATS: FloatArray = np.empty(0, np.float32)


class Narrow(NamedTuple):
    """A feature matrix that is not float32, in the form that kernels read.

    The dtype of the codes defines the encoding: int8, affine numbers of their column; int16, the bits of
    float16 numbers; uint16, the upper bits of float32 ones (bfloat16).

    Attributes:
        codes: int8, int16 or uint16 [N, d], C-contiguous.
        scale, offset: float32 [d] for int8, else [0]: a number is code * scale + offset.
    """

    codes: AnyArray
    scale: FloatArray
    offset: FloatArray

    @property
    def shape(self) -> tuple[int, int]:
        """(N, d)."""
        return self.codes.shape[0], self.codes.shape[1]


#: Input of row kernels: float32 [N, d], C-contiguous, or narrow rows.
Matrix = FloatArray | Narrow


def matrix_of(features: AnyArray | NarrowMatrix) -> Matrix:
    """A node type's features in the form that kernels read, copied only where kernels cannot read them."""
    if isinstance(features, NarrowMatrix):
        return Narrow(frozen(features.codes), frozen(features.scale), frozen(features.offset))
    if features.dtype == np.float16 and features.flags.c_contiguous:
        empty = frozen(_NO_FLOATS)
        return Narrow(frozen(np.asarray(features).view(np.int16)), empty, empty)
    plain: FloatArray = frozen(np.ascontiguousarray(features, np.float32))
    return plain


def decoder_of(base: Any, column: int, w: int) -> Any:
    """In kernels: what `value_at` needs for columns [column, column + w); computed once per call."""
    raise NotImplementedError


def value_at(row: Any, decoder: Any, c: int) -> Any:
    """In kernels: number `c` of part of a row of `stored_in`, as float32."""
    raise NotImplementedError


def stored_in(base: Any) -> Any:
    """In kernels: the array [N, d] that contains the rows."""
    raise NotImplementedError


@overload(decoder_of, inline="always")
def _decoder_of(base, column, w):  # type: ignore[no-untyped-def]
    if not isinstance(base, types.Array) and base.types[0].dtype == types.int8:
        return lambda base, column, w: (base.scale[column : column + w], base.offset[column : column + w])
    return lambda base, column, w: 0


@overload(value_at, inline="always")
def _value_at(row, decoder, c):  # type: ignore[no-untyped-def]
    if row.dtype == types.int8:
        # Two roundings, as in NumPy: Numba does not fuse a product with a sum unless fastmath is set.
        return lambda row, decoder, c: np.float32(row[c]) * decoder[0][c] + decoder[1][c]
    if row.dtype == types.int16:
        return lambda row, decoder, c: float_of_half(row[c])
    if row.dtype == types.uint16:
        return lambda row, decoder, c: float_of_bits(np.uint32(row[c]) << np.uint32(16))
    return lambda row, decoder, c: row[c]


@overload(stored_in, inline="always")
def _stored_in(base):  # type: ignore[no-untyped-def]
    if isinstance(base, types.Array):
        return lambda base: base
    return lambda base: base.codes
