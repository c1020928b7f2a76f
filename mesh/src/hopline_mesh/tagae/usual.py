"""Processes the usual series of a block of slots with vector instructions, and marks the others.

One loop that keeps its numbers in registers, written with `vectors`: LLVM would turn neither such a
loop into vector instructions (two dozen arrays that might overlap) nor, without branches, a part of it.
No fast maths: NaN is a value that was not measured.
"""

# mypy: disallow-untyped-defs=False

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from hopline.kernels.intrinsics import address_of, pointer
from hopline.kernels.jit import njit
from hopline_mesh.vectors import Turn, Vector, turns, where

#: Slots of a block: what the passes before and after it work on lies in the first cache.
BLOCK = 64
_STEP, _PER_STEP = 1 / 512, 512.0
_ABSENT = -32768
_ABSURD = 1e30
_LEAST_AMOUNT = float(np.float32(1e-37))
_LEAST_SHARE, _LARGEST_SHARE = float(np.float32(-0.001)), float(np.float32(1.001))
_MIN_WINDOW = 8
_SLOWEST, _MAX_DEVIATION = 5.0, 31.75
_MANY = 1_000_000
#: The value of a series in an interval: fine, to be judged, or not measured.
FINE, DOUBTFUL, UNMEASURED = 0, 1, 2
#: Spreads below which a deviation is fine: no threshold is near.
HARMLESS = 2.0
_MANTISSA_BITS, _ROOT_HALF = 23, 0x3F3504F3
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
#: Cephes' polynomial of the logarithm (Moshier): error below 1e-7 within a factor of two of 1.
_LOGARITHM = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip


def logarithm(x: Vector) -> Vector:
    """Natural logarithm of normal float32 above 0, in float32, to some units in the last place."""
    bits = x.bits()
    power = (bits - _ROOT_HALF) >> _MANTISSA_BITS  # so that the rest lies between the roots of 1/2 and 2
    rest = (bits - (power << _MANTISSA_BITS)).bits() - 1.0
    square = rest * rest
    sum_: Vector | float = _LOGARITHM[0]
    for factor in _LOGARITHM[1:]:
        sum_ = sum_ * rest + factor
    sum_ = sum_ * rest * square
    whole = power.to_float()
    sum_ = sum_ + whole * _LN2_LOW
    return whole * _LN2_HIGH + (rest + (sum_ - 0.5 * square))


def _one_turn(row: Turn, at: dict[str, Any], counts: tuple[Any, ...]) -> list[Any]:
    """See `take_in`; `at` has where each array begins, and the numbers that hold for all."""
    builder = row.builder
    value, offset, level = row.load(at["values"]), row.load(at["offset"]), row.load(at["level"])
    is_amount, is_fitted = row.load(at["amount"]) != 0, row.load(at["fitted"]) != 0
    seen = row.load(at["seen"])
    is_known = is_fitted | (seen > 0)
    usual = is_known & level.is_number & (offset >= 0.0) & (row.load(at["plain"]) != 0)

    x = value + offset
    is_amount_there = (value >= 0.0) & (value < _ABSURD) & (x > _LEAST_AMOUNT)
    is_share_there = (value >= _LEAST_SHARE) & (value <= _LARGEST_SHARE)
    u = where(is_amount, logarithm(x), value)
    doubt = row.load(at["doubt"])
    is_here = doubt >= 0.0
    is_there = (is_amount & is_amount_there) | (~is_amount & is_share_there)
    u = where(is_here & is_there, u, float("nan"))
    is_measured = usual & u.is_number
    is_learning = is_measured & ~is_fitted

    here = usual & is_here
    found = (usual, is_measured, here & (seen > 0))

    known_spread = row.variable(row.load(at["spread"]))
    with builder.if_then(row.is_any(is_learning), likely=False):
        # Its own wobble so far, with room for how little is known of it.
        least, known = row.load(at["pooled"]), seen.to_float() + 1.0
        own = 1.25 * row.load(at["wobble"]) * (1.5 + 10.0 / known)
        own = where(own > least, own, least)
        row.store(own, at["spread"], is_learning)
        known_spread.set(where(is_learning, own, known_spread.get()))
    spread = known_spread.get()
    # Of few requests a share is known badly.
    share = where(level > doubt, level, doubt)
    share = where(share < 0.5, share, 0.5)
    more = where(~is_amount & (doubt > 0.0), share * (1.0 - share) * doubt, 0.0)
    width = (spread * spread + more).sqrt()
    per = 1.0 / width

    old = row.load(at["ring"])
    was_there = old != _ABSENT
    total = row.load(at["total"]) - where(was_there, old, 0)
    count = row.load(at["count"]) - was_there.to_int()
    many = count.to_float()
    anchor = row.load(at["anchor"])
    mean = anchor + _STEP * total.to_float() / where(many > 1.0, many, 1.0)
    base = where(count >= _MIN_WINDOW, mean, level)
    slow, near = (u - level) * per, (u - base) * per
    row.store(slow, at["slow"], usual)
    row.store(near, at["near"], usual)
    _mark(row, at, slow, near, usual, is_measured)

    with builder.if_then(at["has_still"]):
        before, lately = row.load(at["before"]), row.load(at["lately"])
        a = (u - anchor - _STEP * before.to_float()) * per
        b = (u - anchor - _STEP * lately.to_float()) * per * _SLOWEST
        size = where(abs(a) < abs(b), abs(a), abs(b))
        size = where(a * b > 0.0, size, 0.0)
        moved = where(a > 0.0, size, -size)
        moved = where((before != _ABSENT) & (lately != _ABSENT), moved, _MAX_DEVIATION)
        row.store(moved, at["moved"], is_measured & (row.load(at["still"]) != 0))

    # Series with a short history are not clipped.
    is_clipped = is_fitted | (seen >= row.all_of(at["warm_up"]))
    room = where(is_clipped, row.load(at["clip"]) * width, float("inf"))
    low, high = base - room, base + room
    kept = where(u > low, u, low)
    kept = where(kept < high, kept, high)
    place = (kept - anchor) * _PER_STEP + 0.5
    place = where(place > -32767.0, place, -32767.0)
    place = where(place < 32767.0, place, 32767.0)
    whole = place.floor()
    row.store(where(is_measured, whole, _ABSENT), at["ring"], usual)
    row.store(total + where(is_measured, whole, 0), at["total"], usual)
    row.store(count + is_measured.to_int(), at["count"], usual)
    now_seen = where(seen < _MANY, seen + 1, seen)
    row.store(now_seen, at["seen"], is_measured)
    row.store(level + row.all_of(at["drift"]) * (base - level), at["level"], is_measured & is_fitted)
    with builder.if_then(row.is_any(is_learning), likely=False):
        times, window = now_seen.to_float(), row.all_of(at["window"])
        wobble, off = row.load(at["wobble"]), abs(kept - level)
        weight = 1.0 / where(times < window.to_float(), times, window.to_float())
        row.store(wobble + (off - wobble) * weight, at["wobble"], is_learning)
        row.store(level + (kept - level) / times, at["level"], is_learning)
        row.store(row.ints(1), at["fitted"], is_learning & (now_seen >= window))
    row.store(usual.to_int(), at["told"], usual | ~usual)
    return [builder.add(sum_, row.count(mask)) for sum_, mask in zip(counts, found, strict=True)]


def _mark(
    row: Turn, at: dict[str, Any], slow: Vector, near: Vector, usual: Vector, is_measured: Vector
) -> None:
    """Score what is fine, as nearly all is: what else is expected of it only lessens it."""
    least = where(abs(slow) < abs(near), abs(slow), abs(near))
    least = where(slow * near > 0.0, least, 0.0)  # 0 also where nothing was measured
    row.store(least * row.load(at["per"]), at["score"], usual)
    mark = where(least < HARMLESS, row.ints(FINE), row.ints(DOUBTFUL))
    row.store(where(is_measured, mark, UNMEASURED), at["mark"], usual)
    none = row.ints(0)
    held = row.variable(none)
    absent = usual & ~is_measured
    with row.builder.if_then(row.is_any(absent), likely=False):
        held.set(where(absent, row.load(at["held_before"]) >> 1, 0))
        row.store(none.to_float(), at["dev"], absent)
    row.store(held.get(), at["held"], usual)


#: Arrays by which `take_in` calls them: of a block, and of all slots.
_OF_BLOCK = ("doubt", "amount", "plain", "clip", "still", "pooled", "per", "told")
_OF_ALL = (
    "offset", "anchor", "level", "spread", "wobble", "seen", "fitted", "total", "count", "slow", "near",
    "moved", "score", "dev", "mark",
)  # fmt: skip


@intrinsic
def take_in(
    typingctx: Any, values: Any, row: Any, ring: Any, now: Any, before: Any, lately: Any, of_block: Any,
    of_all: Any, start: Any, size: Any, has_still: Any, drift: Any, warm_up: Any, window: Any, held: Any,
    held_now: Any, held_before: Any,
) -> Any:  # fmt: skip
    """Take one interval in for the usual series of a block: known ones with a level, in a plain column.

    Arrays are contiguous, and places those of a flat array.

    Args:
        values: float32, NaN where nothing was measured, anything where a slot is absent; row: place of the
            block's first one.
        ring: int16, the window; now, before, lately: places of the block's first series in this interval
            and in those that columns which stand still are compared with.
        of_block: arrays of [BLOCK * F]. `doubt`, float32: 1 / requests, 0 = does not matter, below 0 = the
            slot is absent. `amount`, `plain`, bool, by column: compared by ratio; not real. `clip`,
            float32, by column: infinite where nothing is clipped. `still`, bool, by column: standing still
            in normal time. `pooled`, float32, by column: least spread of a series that is not known for
            long. `per`, float32, by column: 1 / threshold. `told`, int8, result: 1 where a series is usual;
            nothing is changed of others.
        of_all: arrays of [slots, F]: see `kernels.observe`.
        start: place of the block's first series in them; size: how many series.
        has_still: bool, whether any column stands still.
        drift: float32, share of the way to its window's mean that a level goes.
        warm_up, window: int32, intervals from which values are clipped, and after which a series is fitted.
        held: int8, deviations of the last intervals; held_now, held_before: places of the block's first
            series in this interval and the one before.

    Returns: how many were usual, how many of them were measured, and how many there should have been.
    """
    place = types.int64
    signature = types.UniTuple(place, 3)(
        values,
        place,
        ring,
        place,
        place,
        place,
        of_block,
        of_all,
        place,
        place,
        types.boolean,
        types.float32,
        types.int32,
        types.int32,
        held,
        place,
        place,
    )

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values, row, ring, now, before, lately, of_block, of_all, start, size, has_still, drift = args[:12]
        warm_up, window, held, held_now, held_before = args[12:]

        def begin(kind: Any, array: Any, place: Any) -> Any:
            return builder.gep(context.make_array(kind)(context, builder, array).data, [place])

        kinds = signature.args
        none = ir.Constant(ir.IntType(64), 0)
        at: dict[str, Any] = {
            "has_still": has_still,
            "drift": drift,
            "warm_up": warm_up,
            "window": window,
            "held": begin(kinds[14], held, held_now),
            "held_before": begin(kinds[14], held, held_before),
            "values": begin(kinds[0], values, row),
        }
        for name, place in (("ring", now), ("before", before), ("lately", lately)):
            at[name] = begin(kinds[2], ring, place)
        for names, kind, arrays, place in (
            (_OF_BLOCK, kinds[6], of_block, none),
            (_OF_ALL, kinds[7], of_all, start),
        ):
            for number, name in enumerate(names):
                at[name] = begin(kind[number], builder.extract_value(arrays, number), place)
        sums = turns(builder, size, [none] * 3, lambda row, *counts: _one_turn(row, at, counts))
        return cgutils.pack_array(builder, sums)

    return signature, codegen


@njit(nogil=True, cache=True)
def not_usual(told, others):
    """Places where `told` is 0, into `others` (int32 [block * F]). Returns: how many."""
    found = 0
    for j in range(len(told)):
        others[found] = j
        found += 1 - told[j]
    return found


@njit(nogil=True, cache=True)
def marked(marks, first, last, places):
    """Places first to last of `marks` (int8, flat) that are not FINE, into `places` (int32).

    By eights, as nearly all are. Returns: how many.
    """
    eights = carray(pointer(address_of(marks) + first), ((last - first) // 8,), np.int64)
    found = 0
    for k in range(len(eights)):
        if eights[k]:
            for j in range(first + 8 * k, first + 8 * k + 8):
                places[found] = j
                found += marks[j] != 0
    for j in range(first + 8 * len(eights), last):
        places[found] = j
        found += marks[j] != 0
    return found
