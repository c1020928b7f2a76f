"""The two passes over all series of a step, each over memory once.

`observe` reads one interval: it computes the transformed value, its deviations from the long-run level and
from the mean of its window, and updates the window. `judge` compares each series with all expected values,
and finds those that deviate for long enough. NaN is a value that was not measured, so there is no fast
maths here. A slot without a row in an interval is absent.

Windows hold whole numbers (16 bits, `STEP` apart, around the first value seen): their sums are exact,
however long they run, and equal sums from scratch.
"""

# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math

import numpy as np

from hopline.kernels.jit import njit
from hopline_mesh.settings import HOLD

#: Resolution of kept values, in transformed units: a 512th of a natural logarithm, 0.2 %.
PER_STEP = 512.0
STEP = 1.0 / PER_STEP
#: A kept value that was not measured.
ABSENT = np.int16(-32768)
#: Deviations are kept in quarters of a spread, up to this.
MAX_DEVIATION = 31.75
#: Bins of the histogram of debounced deviations, four to a unit.
BINS = 128

#: Spreads that a series which stands still in normal time must have moved to count as moving.
MOVING = 0.5
#: How many times less it must have moved lately.
SLOWEST = 5.0
#: How much smaller than their average the smallest of several deviations in a row may be.
UNEVEN = 1.4
#: Deviations, in quarters of a spread, that no threshold is near: counted and kept as 0.
HARMLESS = 8

#: Scales of values: logarithm, difference, inverse hyperbolic sine, and none.
AMOUNT, SHARE, REAL, PLAIN = 0, 1, 2, 3
NOTHING, USUAL, ALL = 0, 1, 2
#: Series younger than this have no window mean yet.
MIN_WINDOW = 8
#: Least offset of an amount before its logarithm is taken, as a share of what is typical of its column.
OFFSET = 0.02
#: Larger than anything measured; what is beyond is not believed.
ABSURD = 1e30


@njit(nogil=True, cache=True, inline="always")
def transform(value, kind, offset):
    """A value on the scale on which it is compared; NaN where it cannot have been measured."""
    if not (-ABSURD < value < ABSURD):
        return math.nan
    if kind == AMOUNT:
        return math.log(value + offset) if value >= 0 else math.nan
    if kind == SHARE:
        return value if -0.001 <= value <= 1.001 else math.nan
    return math.asinh(value) if kind == REAL else value


@njit(nogil=True, cache=True, inline="always")
def doubted(width, level, kind, requests):
    """The spread with which a value is compared: a share of few requests is known badly."""
    if kind == SHARE and requests > 0:
        share = min(max(level, 1.0 / requests), 0.5)
        width = math.sqrt(width * width + share * (1 - share) / requests)
    return width


@njit(nogil=True, cache=True, inline="always")
def nearer(a, b):
    """The one of two deviations that is closer to 0; 0 where they do not even agree in direction."""
    if a > 0 and b > 0:
        return min(a, b)
    if a < 0 and b < 0:
        return max(a, b)
    return 0.0


@njit(nogil=True, cache=True)
def observe(
    values, rows, kinds, load, clip, interval_s, warm_up, drift, pos, ago, recent, window,
    offset, anchor, level, spread, wobble, pooled, typical, seen, fitted, ring, total, count,
    slow, near, moved, now, wide,
):  # fmt: skip
    """Take one interval in, for all slots.

    Args:
        values: float32 [n, F]; rows: int32 [slots], a slot's row in `values`, -1 where it is absent.
        kinds: int8 [F]; load: the column of requests per second, or -1.
        clip: float32 [F], spreads from its base that a value is kept at most; 0 for a column that is
        constant in normal time: kept unchanged, and compared with how it was `ago` and `recent` intervals
        before.
        drift: share of the way to its window's mean that the level goes.
        pos: place of this interval in the ring of `window` intervals.
        offset to fitted: [slots, F], state of each series (`pooled` and `typical`: [F]).
        ring: int16 [window, slots, F].
        slow, near, moved: float32 [slots, F], results: spreads from the level, from the window's mean, and,
        of columns with a clip of 0, from how it was; NaN where nothing was measured.
        now, wide: float32 [slots, F], results where something was measured: the transformed value, and the
        spread that it was compared with.

    Returns: how many values were measured, and how many there should have been.
    """
    measured, known = 0, 0
    for i in range(len(rows)):
        row = rows[i]
        requests = 0.0
        if row >= 0 and load >= 0 and values[row, load] > 0:
            requests = values[row, load] * interval_s
        for f in range(len(kinds)):
            old = ring[pos, i, f]
            if old != ABSENT:
                total[i, f] -= old
                count[i, f] -= 1
            u = math.nan
            if row >= 0:
                known += seen[i, f] > 0
                if offset[i, f] < 0 and 0 <= values[row, f] < ABSURD:  # never seen before
                    offset[i, f] = max(0.05 * values[row, f], OFFSET * typical[f], 1e-9)
                u = transform(values[row, f], kinds[f], offset[i, f])
            if math.isnan(u):
                ring[pos, i, f] = ABSENT
                slow[i, f] = math.nan
                near[i, f] = math.nan
                continue
            measured += 1
            if seen[i, f] == 0 and not fitted[i, f]:
                anchor[i, f] = u
                level[i, f] = u
            elif math.isnan(level[i, f]):  # to be set again; the window is relative to the anchor
                level[i, f] = u
            width = spread[i, f]
            if not fitted[i, f]:  # its own wobble so far, with room for how little is known of it
                width = max(pooled[f], 1.25 * wobble[i, f] * (1.5 + 10.0 / (1.0 + seen[i, f])))
                spread[i, f] = width
            width = doubted(width, level[i, f], kinds[f], requests)
            base = level[i, f]
            if count[i, f] >= MIN_WINDOW:
                base = anchor[i, f] + STEP * total[i, f] / count[i, f]
            now[i, f] = u
            wide[i, f] = width
            per = 1.0 / width
            slow[i, f] = (u - level[i, f]) * per
            near[i, f] = (u - base) * per
            kept = u
            if clip[f] == 0:
                moved[i, f] = MAX_DEVIATION
                before = ring[(pos - ago) % window, i, f]
                lately = ring[(pos - recent) % window, i, f]
                if before != ABSENT and lately != ABSENT:
                    moved[i, f] = nearer(
                        (u - anchor[i, f] - STEP * before) * per,
                        (u - anchor[i, f] - STEP * lately) * per * SLOWEST,
                    )
            elif seen[i, f] >= warm_up or fitted[i, f]:
                kept = min(max(u, base - clip[f] * width), base + clip[f] * width)
            whole = int(min(max(math.floor((kept - anchor[i, f]) * PER_STEP + 0.5), -32767.0), 32767.0))
            ring[pos, i, f] = whole
            total[i, f] += whole
            count[i, f] += 1
            if seen[i, f] < 1_000_000:
                seen[i, f] += 1
            if fitted[i, f]:
                level[i, f] += drift * (base - level[i, f])
            else:
                n = seen[i, f]
                wobble[i, f] += (abs(kept - level[i, f]) - wobble[i, f]) / min(n, window)
                level[i, f] += (kept - level[i, f]) / n
                if n >= window:
                    fitted[i, f] = 1
    return measured, known


@njit(nogil=True, cache=True)
def judge(
    slow, near, moved, still, load, slope, sharp, polarity, threshold, factor, quiet, seen, fitted, warm_up,
    held, at, hold, slack, learn, score, dev, histogram, peak, found, lasting,
):  # fmt: skip
    """Compare each series of all slots with all that was expected of it.

    Args:
        slow, near, moved: of `observe`; load: the column that others may follow, or -1.
        still: bool [F], columns that stand still in normal time: what moved and stands still again is no
        trouble any more.
        slope: float32 [slots, F], how much of the load's deviation a series shares; 0 for the load itself.
        sharp: float32 [slots, F], its spread over that of what the load leaves; 1 where it does not follow.
        polarity: float32 [F, 2]; threshold: float32 [F]; factor: float32 [slots, F], of each series' own.
        quiet: float32 [slots, F], what deviations are multiplied by during planned changes; 1 = all counts.
        held: int8 [HOLD, slots, F], the last deviations; at: this interval's place; hold: how many must
        agree; slack: whether one of them but the first and the last may be smaller.
        score: float32 [slots, F], result: 1.0 = threshold, of this interval alone; no more than that
        where harmless.
        dev: float32 [slots, F], result where it is not harmless: spreads, with sign; sharper ones where
        the load was taken out.
        learn: NOTHING, USUAL (what is within bounds) or ALL: what is counted as normal time.
        histogram: int64 [F, BINS], of debounced deviations; peak: float32 [slots, F], their largest.
        found: int32 [room, 2], results: slot and column of debounced scores above 1.
        lasting: float64 [room], results: their debounced deviations, in quarters of a spread.

    Returns: how many were found (may exceed the room), and the largest debounced score.
    """
    num_found = 0
    largest = 0.0
    before = (at - 1) % HOLD
    for i in range(len(slow)):
        for f in range(len(threshold)):
            a, b = slow[i, f], near[i, f]
            if math.isnan(a):
                held[at, i, f] = held[before, i, f] // 2
                score[i, f] = 0.0
                dev[i, f] = 0.0
                continue
            d = nearer(a, b)
            if abs(d) < HARMLESS / 4:  # what else is expected only lessens it
                held[at, i, f] = 0
                score[i, f] = abs(d) / threshold[f]
                if learn:
                    histogram[f, 0] += 1
                continue
            if slope[i, f] != 0.0 and d != 0.0:
                load_slow, load_near = 0.0, 0.0
                if load >= 0 and not math.isnan(slow[i, load]):
                    load_slow = min(max(slow[i, load], -20.0), 20.0)
                    load_near = min(max(near[i, load], -20.0), 20.0)
                a -= slope[i, f] * load_slow
                d = nearer(d, nearer(a, b - slope[i, f] * load_near))
            if (
                still[f]
                and abs(moved[i, f]) < MAX_DEVIATION
                and moved[i, f] * (1 if d > 0 else -1) < MOVING
            ):
                d = 0.0
            weight = polarity[f, 0] if d > 0 else polarity[f, 1]
            d *= weight * sharp[i, f] * quiet[i, f]
            if seen[i, f] <= warm_up and not fitted[i, f]:
                d = 0.0
            d = min(max(d, -MAX_DEVIATION), MAX_DEVIATION)
            dev[i, f] = d
            score[i, f] = abs(d) / (threshold[f] * factor[i, f])
            whole = int(d * 4.0)
            held[at, i, f] = whole
            if -HARMLESS < whole < HARMLESS:
                held[at, i, f] = 0
                if learn:
                    histogram[f, 0] += 1
                continue
            least, second, size = abs(whole), 127, 0
            mean = 1.0 * least
            for k in range(1, hold):
                other = held[(at - k) % HOLD, i, f]
                size = abs(other) if (other > 0) == (whole > 0) else 0
                if size < least:
                    second, least = least, size
                elif size < second:
                    second = size
                mean += size
            # One interval between may be within bounds, but not the oldest: it must have lasted so long.
            least = second if slack and size > 0 else least
            # As much on average, and each nearly as much: one that is far out cannot speak for all.
            quarters = min(mean / hold, UNEVEN * least)
            steady = quarters / 4.0
            lasting_score = steady / (threshold[f] * factor[i, f])
            if learn == ALL or (learn == USUAL and lasting_score < 1.0):
                histogram[f, min(int(quarters), BINS - 1)] += 1
                peak[i, f] = max(peak[i, f], steady)
            if lasting_score > largest:
                largest = lasting_score
            if lasting_score >= 1.0:
                if num_found < len(found):
                    found[num_found, 0] = i
                    found[num_found, 1] = f
                    lasting[num_found] = quarters
                num_found += 1
    return num_found, largest
