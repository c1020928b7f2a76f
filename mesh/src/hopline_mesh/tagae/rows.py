"""From series, which lie by slot, to the model's rows, which lie as the snapshot has them.

A row is a few numbers wide, and LLVM would take them one by one: written with `vectors`, each row is a turn
or two.
"""

# mypy: disallow-untyped-defs=False

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from hopline.kernels.jit import njit
from hopline_mesh.vectors import Turn, turns, where

#: Maximum spreads of the load that are taken out of a series.
_LOADED = np.float32(20.0)
_ZERO = np.float32(0)


def _places(context: Any, builder: Any, kinds: Any, arrays: Any, places: Any) -> list[Any]:
    """Where flat places of contiguous arrays lie."""
    return [
        builder.gep(context.make_array(kind)(context, builder, array).data, [place])
        for kind, array, place in zip(kinds, arrays, places, strict=True)
    ]


@intrinsic
def gather_numbers(
    typingctx: Any, slow: Any, near: Any, slope: Any, series: Any, less: Any, most: Any, x: Any, at_x: Any,
    h: Any, at_h: Any, width: Any,
) -> Any:  # fmt: skip
    """`gather` of one row.

    Args:
        slow, near, slope, x, h: contiguous arrays of `gather`; series, at_x, at_h: flat places of the row.
        less: float32, spreads of its load that are taken out of it; width: columns that the model reads.
    """
    place = types.int64
    signature = types.void(
        slow, near, slope, place, types.float32, types.float32, x, place, h, place, place
    )

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        slow, near, slope, series, less, most, x, at_x, h, at_h, width = args
        kinds = [signature.args[k] for k in (0, 1, 2, 6, 6, 8)]
        slow, near, slope, x, there, h = _places(
            context, builder, kinds, (slow, near, slope, x, x, h),
            (series, series, series, at_x, builder.add(at_x, width), at_h),
        )  # fmt: skip

        def body(row: Turn) -> list[Any]:
            high = row.all_of(most)
            low, everywhere = row.floats(0.0) - high, high == high
            a = row.load(slow)
            is_there = a.is_number
            drift, own = a - row.load(near), a - row.load(slope) * row.all_of(less)
            for value, into in ((own, x), (drift, h)):
                value = where(value > low, value, low)
                value = where(value < high, value, high)
                row.store(where(is_there, value, 0.0), into, everywhere)
            row.store(where(is_there, row.floats(1.0), 0.0), there, everywhere)
            return []

        turns(builder, width, [], body)
        return context.get_dummy_value()

    return signature, codegen


@njit(nogil=True, cache=True)
def gather(slow, near, slope, load, slots, most, x, h):
    """A model's inputs from deviations; see `expect.inputs`.

    Args:
        slow, near, slope: float32 [slots, columns]; load: its column, or -1.
        slots: int32 [n]; most: float32, deviations are clipped to it.
        x: float32 [n, 2 F]; h: float32 [n, F]; results, of the first F columns.
    """
    for r in range(len(slots)):
        gather_row(slow, near, slope, load, np.int64(slots[r]), most, x, h, r)


@njit(nogil=True, cache=True, inline="always")
def gather_row(slow, near, slope, load, slot, most, x, h, row):
    """As `gather`, for one slot, into one row."""
    columns, width = slow.shape[1], h.shape[1]
    less = slow[slot, load] if load >= 0 else _ZERO
    is_loaded = less == less
    less = less if less > -_LOADED else -_LOADED
    less = less if less < _LOADED else _LOADED
    less = less if is_loaded else _ZERO
    gather_numbers(slow, near, slope, slot * columns, less, most, x, row * 2 * width, h, row * width, width)
