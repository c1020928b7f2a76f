"""Products of rows by packed weights, in float32, in bfloat16 or in eight bits: compiled.

Knows where weights and rows lie by the plan, and nothing of layers' order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopline.kernels.jit import njit
from hopline_mesh.model import plan as at
from hopline_mesh.model.eight_bits import many_bytes, one_bytes, quantise_row
from hopline_mesh.model.emit import LANES
from hopline_mesh.model.lanes import (
    PANEL,
    TILE_COLUMNS,
    TILE_ROWS,
    many_halves,
    many_rows,
    one_half,
    one_row,
    round_row,
)

Plan = NDArray[np.int64]

#: Address of row 0, and bytes of a row.
Below = tuple[int, int]
#: Rows of a piece of work at most.
MOST_ROWS = 48

_PANEL_BYTES, _TILE_BYTES = 4 * PANEL, 4 * TILE_COLUMNS
_ONE = np.float32(1.0)


@njit(nogil=True, cache=True)
def multiply(
    a: int,
    a_step: int,
    depth: int,
    b: int,
    columns_bytes: int,
    start: int,
    start_step: int,
    c: int,
    c_step: int,
    slope: float,
    begin: int,
    end: int,
) -> None:
    """Rows begin to end of c = leaky(start + a @ b); all are addresses, `b` is packed in panels."""
    for panel in range(columns_bytes // _PANEL_BYTES):
        shift = panel * _PANEL_BYTES
        packed = b + shift * depth
        tiled = end - (end - begin) % TILE_ROWS
        for part in range(0, _PANEL_BYTES, _TILE_BYTES):
            for row in range(begin, tiled, TILE_ROWS):
                many_rows(
                    a + row * a_step, a_step, depth, packed + part, start + shift + part + row * start_step,
                    start_step, c + shift + part + row * c_step, c_step, slope,
                )  # fmt: skip
        for row in range(tiled, end):
            one_row(
                a + row * a_step, a_step, depth, packed, start + shift + row * start_step, start_step,
                c + shift + row * c_step, c_step, slope,
            )  # fmt: skip


@njit(nogil=True, cache=True)
def multiply_halves(
    a: int,
    a_step: int,
    depth: int,
    b: int,
    columns_bytes: int,
    start: int,
    start_step: int,
    c: int,
    c_step: int,
    slope: float,
    begin: int,
    end: int,
) -> None:
    """`multiply` of bfloat16, whose sums are float32."""
    pairs = (depth + 1) // 2
    for panel in range(columns_bytes // _PANEL_BYTES):
        shift = panel * _PANEL_BYTES
        packed = b + shift * pairs
        tiled = end - (end - begin) % TILE_ROWS
        for part in range(0, _PANEL_BYTES, _TILE_BYTES):
            for row in range(begin, tiled, TILE_ROWS):
                many_halves(
                    a + row * a_step, a_step, pairs, packed + part, start + shift + part + row * start_step,
                    start_step, c + shift + part + row * c_step, c_step, slope,
                )  # fmt: skip
        for row in range(tiled, end):
            one_half(
                a + row * a_step, a_step, pairs, packed, start + shift + row * start_step, start_step,
                c + shift + row * c_step, c_step, slope,
            )  # fmt: skip


@njit(nogil=True, cache=True)
def factor(plan: Plan, rows: int, columns: int, begin: int, end: int, rounded: int) -> Below:
    """Return the factor for `multiply_by` of float32 rows: the rows, or bfloat16 in `rounded`, by the plan.

    Returns: address of row 0, bytes of a row.
    """
    if not plan[at.HALVES]:
        return rows, 4 * columns
    step = (columns + LANES - 1) // LANES * LANES * 2
    for row in range(begin, end):
        round_row(rows + row * 4 * columns, columns, rounded + (row - begin) * step)
    return rounded - begin * step, step


@njit(nogil=True, cache=True)
def multiply_by(
    plan: Plan, rows: Below, depth: int, b: int, columns_bytes: int, start: int, start_step: int, c: int,
    slope: float, begin: int, end: int,
) -> None:  # fmt: skip
    """`multiply` of what `factor` gave, by weights that are packed as the plan wants them."""
    a, step = rows
    if plan[at.HALVES]:
        multiply_halves(
            a, step, depth, b, columns_bytes, start, start_step, c, columns_bytes, slope, begin, end
        )
    else:
        multiply(a, step, depth, b, columns_bytes, start, start_step, c, columns_bytes, slope, begin, end)


@njit(nogil=True, cache=True)
def quantise_rows(rows: int, depth: int, begin: int, end: int, rounded: int, scales: int) -> None:
    """Rows begin to end in eight bits, into scratch, and their scales."""
    for row in range(begin, end):
        k = row - begin
        quantise_row(rows + row * 4 * depth, depth // LANES, rounded + k * depth, scales + 4 * k)


@njit(nogil=True, cache=True)
def multiply_bytes(
    rounded: int, depth: int, scales: int, b: int, columns_bytes: int, columns: int, start: int, bias: int,
    c: int, begin: int, end: int,
) -> None:  # fmt: skip
    """Rows begin to end of c = bias + a @ b, of what `quantise_rows` left in scratch."""
    fours = depth // 4
    whole = (end - begin) - (end - begin) % TILE_ROWS
    for panel in range(columns_bytes // _PANEL_BYTES):
        shift = panel * _PANEL_BYTES
        packed, into = b + shift * fours, c + shift + begin * columns_bytes
        for k in range(0, whole, TILE_ROWS):
            many_bytes(
                rounded + k * depth, depth, fours, packed, scales + 4 * k, columns + shift, start + shift,
                bias + shift, into + k * columns_bytes, columns_bytes,
            )  # fmt: skip
        for k in range(whole, end - begin):
            one_bytes(
                rounded + k * depth, depth, fours, packed, scales + 4 * k, columns + shift, start + shift,
                bias + shift, into + k * columns_bytes, columns_bytes,
            )  # fmt: skip


@njit(nogil=True, cache=True)
def state_products(plan: Plan, layer: int, begin: int, end: int, rounded: int) -> None:
    """What is listened to of the state below a layer, and who listens without the temporal term."""
    here = at.LAYERS + at.LAYER_PLACES * layer
    depth = plan[at.HEADS] * plan[at.CHANNELS]
    width, rows = 4 * depth, plan[here + at.OWN_ROWS]
    source, target = plan[here + at.SOURCE_ROWS], plan[here + at.TARGET_ROWS]
    if plan[at.EIGHT_BITS]:
        scales = rounded + MOST_ROWS * depth
        quantise_rows(rows, depth, begin, end, rounded, scales)
        multiply_bytes(
            rounded, depth, scales, plan[here + at.W_SOURCE], width, plan[here + at.SOURCE_SCALES],
            plan[here + at.SOURCE_START], plan[here + at.B_SOURCE], source, begin, end,
        )  # fmt: skip
        if not plan[at.SHARED]:
            multiply_bytes(
                rounded, depth, scales, plan[here + at.W_TARGET], width, plan[here + at.TARGET_SCALES],
                plan[here + at.TARGET_START], plan[here + at.B_TARGET], target, begin, end,
            )  # fmt: skip
    else:
        products(plan, layer, factor(plan, rows, depth, begin, end, rounded), depth, begin, end)


@njit(nogil=True, cache=True)
def products(plan: Plan, layer: int, below: Below, depth: int, begin: int, end: int) -> None:
    """As above, for rows of `factor`, with a number of columns."""
    here = at.LAYERS + at.LAYER_PLACES * layer
    width = plan[at.HEADS] * plan[at.CHANNELS] * 4
    multiply_by(
        plan, below, depth, plan[here + at.W_SOURCE], width, plan[here + at.B_SOURCE], 0,
        plan[here + at.SOURCE_ROWS], _ONE, begin, end,
    )  # fmt: skip
    if not plan[at.SHARED]:
        multiply_by(
            plan, below, depth, plan[here + at.W_TARGET], width, plan[here + at.B_TARGET], 0,
            plan[here + at.TARGET_ROWS], _ONE, begin, end,
        )  # fmt: skip
