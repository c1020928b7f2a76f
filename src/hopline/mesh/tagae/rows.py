"""Between series, which lie by slot, and the model's rows, which lie as the snapshot has them.

Loops without branches: what is chosen by a series' value is not to be guessed by the processor.
"""

# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from hopline.jit import njit

#: Spreads of its own load that are taken out of a series at most.
_LOADED = np.float32(20.0)
_ZERO, _ONE, _HUGE = np.float32(0), np.float32(1), np.float32(1e30)


@njit(nogil=True, cache=True)
def gather(slow, near, slope, load, slots, most, x, h):
    """A model's inputs from deviations; see `expect.inputs`.

    Args:
        slow, near, slope: float32 [slots, columns]; load: its column, or -1.
        slots: int32 [n]; most: float32, deviations are clipped to it.
        x: float32 [n, 2 F]; h: float32 [n, F]; results, of the first F columns.
    """
    for r in range(len(slots)):
        i = np.int64(slots[r])
        gather_row(slow[i], near[i], slope[i], load, most, x[r], h[r])


@njit(nogil=True, cache=True, inline="always")
def gather_row(slow, near, slope, load, most, x, h):
    """The same of one series: rows of `gather`'s arrays."""
    width = len(h)
    less = slow[load] if load >= 0 else _ZERO
    is_loaded = less == less
    less = less if less > -_LOADED else -_LOADED
    less = less if less < _LOADED else _LOADED
    less = less if is_loaded else _ZERO
    for f in range(width):
        a = slow[f]
        there = a == a
        drift = a - near[f]
        drift = drift if drift > -most else -most
        drift = drift if drift < most else most
        own = a - slope[f] * less
        own = own if own > -most else -most
        own = own if own < most else most
        x[f] = own if there else _ZERO
        x[width + f] = _ONE if there else _ZERO
        h[f] = drift if there else _ZERO


@njit(nogil=True, cache=True)
def scatter(values, slots, into, width, most):
    """Rows of `width` columns to their slots, clipped to `most` (float32); what is not finite is 0."""
    for r in range(len(slots)):
        scatter_row(values[r], into[np.int64(slots[r])], width, most)


@njit(nogil=True, cache=True, inline="always")
def scatter_row(values, into, width, most):
    """One row to its slot."""
    for f in range(width):
        value = values[f]
        is_finite = abs(value) < _HUGE
        value = value if value > -most else -most
        value = value if value < most else most
        into[f] = value if is_finite else _ZERO


@njit(nogil=True, cache=True)
def count_absent(absent, slots):
    """One interval more in `absent`, int32, for all but these slots, int32: 0."""
    for i in range(len(absent)):
        absent[i] += 1
    for k in range(len(slots)):
        absent[slots[k]] = 0
