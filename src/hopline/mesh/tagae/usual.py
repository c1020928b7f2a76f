"""The usual series of a block of slots, all at once in vector instructions; the others are told apart.

Each loop writes one array and reads a few: LLVM turns a loop into vector instructions only where it can
check beforehand, in few comparisons, that what is written is not what is read. No branches, no fast maths
(NaN is a value that was not measured); numbers between the loops lie in scratch memory that stays in the
first cache.
"""

# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from hopline.jit import njit

#: Slots of a block: scratch of some columns lies in the first cache.
BLOCK = 64
#: Rows of scratch, float32: see `take_in`.
SCRATCH = 8
_STEP, _PER_STEP = np.float32(1 / 512), np.float32(512)
_ABSENT = np.int16(-32768)
_ABSURD = np.float32(1e30)
_MIN_WINDOW = 8
_SLOWEST, _MOST = np.float32(5.0), np.float32(31.75)
_MANY = 1_000_000
_NAN, _ZERO, _ONE, _HALF = np.float32(np.nan), np.float32(0), np.float32(1), np.float32(0.5)
_MANTISSA, _ROOT_HALF = np.int32(0x007FFFFF), np.int32(0x3F3504F3)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
#: Cephes' polynomial of the logarithm (Moshier): error below 1e-7 within a factor of two of 1.
_P0, _P1, _P2 = np.float32(7.0376836292e-2), np.float32(-1.1514610310e-1), np.float32(1.1676998740e-1)
_P3, _P4, _P5 = np.float32(-1.2420140846e-1), np.float32(1.4249322787e-1), np.float32(-1.6668057665e-1)
_P6, _P7, _P8 = np.float32(2.0000714765e-1), np.float32(-2.4999993993e-1), np.float32(3.3333331174e-1)


@njit(nogil=True, cache=True, inline="always")
def logarithm(x):
    """Natural logarithm of a normal float32 above 0, in float32, to some units in the last place."""
    bits = np.float32(x).view(np.int32)
    power = (bits - _ROOT_HALF) >> np.int32(23)  # so that the rest lies between the roots of 1/2 and 2
    rest = np.int32(bits - (power << np.int32(23))).view(np.float32) - _ONE
    square = rest * rest
    sum_ = ((((((((_P0 * rest + _P1) * rest + _P2) * rest + _P3) * rest + _P4) * rest + _P5) * rest + _P6)
            * rest + _P7) * rest + _P8) * rest * square  # fmt: skip
    whole = np.float32(power)
    sum_ += whole * _LN2_LOW
    return whole * _LN2_HIGH + (rest + (sum_ - _HALF * square))


@njit(nogil=True, cache=True, error_model="numpy")
def take_in(
    values, doubt, amount, plain, clip, still, has_still, before, lately, drift, offset, anchor, level,
    spread, seen, fitted, ring, total, count, slow, near, moved, scratch, others,
):  # fmt: skip
    """Take one interval in for the usual series of a block: fitted ones with a level, in a plain column.

    Args:
        values: float32 [block * F], NaN where nothing was measured.
        doubt: float32 [block * F], 1 / requests, 0 = does not matter, below 0 = the slot is absent.
        amount, plain, still: bool [block * F], by column: compared by ratio; not real; standing still in
        normal time.
        clip: float32 [block * F], by column, infinite where nothing is clipped.
        has_still: whether any column stands still.
        before, lately: int16 [block * F], the window's rows that those are compared with.
        offset to moved: of `kernels.observe`, this block's part, flat.
        scratch: float32 [SCRATCH, block * F]; others: int32 [block * F], result: places of all that are not
        usual: nothing of them was changed.

    Returns: how many were usual, how many of them were measured, and how many there should have been.
    """
    n = len(values)
    u, width, base = scratch[0][:n], scratch[1][:n], scratch[2][:n]
    t, c = scratch[3].view(np.int32)[:n], scratch[4].view(np.int32)[:n]
    w, usual = scratch[5].view(np.int32)[:n], scratch[6].view(np.int32)[:n]
    per = scratch[7][:n]
    num_usual, measured, known = np.int32(0), np.int32(0), np.int32(0)
    for j in range(n):
        is_usual = np.int32((fitted[j] != 0) & (level[j] == level[j]) & (offset[j] >= _ZERO) & plain[j])
        usual[j] = is_usual
        num_usual += is_usual
    for j in range(n):
        value = values[j]
        x = value + offset[j]
        is_amount = amount[j]
        there = (value >= _ZERO) & (value < _ABSURD) & (x > np.float32(1e-37))
        there_share = (value >= np.float32(-0.001)) & (value <= np.float32(1.001))
        result = logarithm(x) if is_amount else value
        u[j] = result if (there if is_amount else there_share) else _NAN
    for j in range(n):
        here = usual[j] & np.int32(doubt[j] >= _ZERO)
        known += here & np.int32(seen[j] > 0)
        measured += here & np.int32(u[j] == u[j])
    for j in range(n):
        inverse = doubt[j]
        share = level[j] if level[j] > inverse else inverse
        share = share if share < _HALF else _HALF
        more = share * (_ONE - share) * inverse if inverse > _ZERO else _ZERO
        more = _ZERO if amount[j] else more
        width[j] = np.sqrt(spread[j] * spread[j] + more)
    for j in range(n):
        per[j] = _ONE / width[j]
    for j in range(n):
        old = ring[j]
        t[j] = total[j] - (np.int32(old) if old != _ABSENT else np.int32(0))
    for j in range(n):
        c[j] = count[j] - np.int32(ring[j] != _ABSENT)
    for j in range(n):
        many = np.float32(c[j])
        mean = anchor[j] + _STEP * np.float32(t[j]) / (many if many > _ONE else _ONE)
        base[j] = mean if c[j] >= np.int32(_MIN_WINDOW) else level[j]
    for j in range(n):
        slow[j] = (u[j] - level[j]) * per[j] if usual[j] else slow[j]
    for j in range(n):
        near[j] = (u[j] - base[j]) * per[j] if usual[j] else near[j]
    if has_still:
        for j in range(n):
            here = u[j] - anchor[j]
            a = (here - _STEP * np.float32(before[j])) * per[j]
            b = (here - _STEP * np.float32(lately[j])) * per[j] * _SLOWEST
            size = abs(a) if abs(a) < abs(b) else abs(b)
            size = size if a * b > _ZERO else _ZERO
            gone = size if a > _ZERO else -size
            gone = gone if (before[j] != _ABSENT) & (lately[j] != _ABSENT) else _MOST
            moved[j] = gone if still[j] & (usual[j] != 0) & (u[j] == u[j]) else moved[j]
    for j in range(n):
        room = clip[j] * width[j]
        low, high = base[j] - room, base[j] + room
        kept = u[j] if u[j] > low else low
        kept = kept if kept < high else high
        x = (kept - anchor[j]) * _PER_STEP + _HALF
        x = x if x > np.float32(-32767) else np.float32(-32767)
        x = x if x < np.float32(32767) else np.float32(32767)
        whole = np.int32(x)
        whole -= np.int32(np.float32(whole) > x)  # as `floor`
        w[j] = whole if u[j] == u[j] else np.int32(_ABSENT)
    for j in range(n):
        ring[j] = np.int16(w[j]) if usual[j] else ring[j]
    for j in range(n):
        more = w[j] if w[j] != np.int32(_ABSENT) else np.int32(0)
        total[j] = t[j] + more if usual[j] else total[j]
    for j in range(n):
        count[j] = c[j] + np.int32(w[j] != np.int32(_ABSENT)) if usual[j] else count[j]
    for j in range(n):
        more = usual[j] & np.int32(w[j] != np.int32(_ABSENT)) & np.int32(seen[j] < np.int32(_MANY))
        seen[j] = seen[j] + more
    for j in range(n):
        moved = level[j] + drift * (base[j] - level[j])
        level[j] = moved if usual[j] & np.int32(u[j] == u[j]) else level[j]
    if num_usual < n:
        num_others = 0
        for j in range(n):
            others[num_others] = j
            num_others += 1 - usual[j]
    return num_usual, measured, known


@njit(nogil=True, cache=True, error_model="numpy")
def tell_apart(slow, near, per, least, score, held, apart, others):
    """Score the harmless series of a block, and find all others.

    Args:
        slow, near: float32 [block * F]; per: float32 [block * F], 1 / threshold, by column.
        least: deviations below are harmless.
        score, held: of `kernels.judge`, this block's part, flat; apart: float32 [block * F], scratch.
        others: int32 [block * F], result: places of what is not harmless, or not measured.

    Returns: how many others there are.
    """
    n = len(slow)
    for j in range(n):
        a, b = abs(slow[j]), abs(near[j])
        both = a if a < b else b
        apart[j] = both if slow[j] * near[j] > _ZERO else slow[j] - slow[j]  # 0, or NaN
    for j in range(n):
        score[j] = apart[j] * per[j]
    for j in range(n):
        held[j] = 0
    num_others = 0
    for j in range(n):
        others[num_others] = j
        num_others += not (apart[j] < least)
    return num_others
