"""The two passes over all series of a step, each over memory once.

`observe` reads one interval: it computes the transformed value, its deviations from the long-run level and
from the mean of its window, and updates the window. `judge` compares each series with all expected values,
and finds those that deviate for long enough. NaN is a value that was not measured, so there is no fast
maths here.

Windows hold whole numbers (16 bits, `STEP` apart, around the first value seen): their sums are exact,
however long they run, and equal sums from scratch.
"""

# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math

import numpy as np

from hopline.kernels.jit import njit
from hopline_mesh.tagae import usual

#: Resolution of kept values, in transformed units: a 512th of a natural logarithm, 0.2 %.
PER_STEP = 512.0
STEP = 1.0 / PER_STEP
#: A kept value that was not measured.
ABSENT = np.int16(-32768)
#: Longest debounce, in intervals.
HOLD = 16
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
HARMLESS = int(4 * usual.HARMLESS)

AMOUNT, SHARE, REAL = 0, 1, 2
NOTHING, USUAL, ALL = 0, 1, 2
#: Series younger than this have no window mean yet.
MIN_WINDOW = 8
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
    return math.asinh(value)


@njit(nogil=True, cache=True, inline="always")
def nearer(a, b):
    """The one of two deviations that is closer to 0; 0 where they do not even agree in direction."""
    if a > 0 and b > 0:
        return min(a, b)
    if a < 0 and b < 0:
        return max(a, b)
    return 0.0


@njit(nogil=True, cache=True, inline="always")
def within(value, most):
    """A value clipped to `most`; 0 where it is no number."""
    return min(max(value, -most), most) if abs(value) < ABSURD else 0.0


@njit(nogil=True, cache=True)
def observe(
    begin, end, values, rows, kinds, load, clip, interval_s, warm_up, drift, pos, ago, recent, window,
    offset, anchor, level, spread, wobble, pooled, typical, seen, fitted, ring, total, count,
    slow, near, moved, threshold, held, at, score, dev, mark, amount, plain, still, clips, pools, per,
    scratch,
):  # fmt: skip
    """Take one interval in, for slots `begin` to `end`, and tell what is fine from what is to be judged.

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
        of columns with a clip of 0, from how it was.
        threshold to dev: see `judge`; mark: int8 [slots, F], result, for `judge`: see `usual`.
        amount, plain, still, clips, pools, per: of columns, for a block of slots: see `usual.take_in`.
        scratch: see `Scratch`.

    Usual series take vector instructions, all others one by one.

    Returns: how many values were measured, and how many there should have been.
    """
    width, block = len(kinds), usual.BLOCK
    has_still, room = np.any(clip == 0), ring.shape[1]
    taken, doubt, inverse, told, others = scratch
    of_block = (doubt, amount, plain, clips, still, pools, per, told)
    of_all = (
        offset, anchor, level, spread, wobble, seen, fitted, total, count, slow, near, moved, score, dev,
        mark,
    )  # fmt: skip
    before_at = (at - 1) % HOLD
    measured, known = 0, 0
    for i in range(begin, end, block):
        here = rows[i : min(i + block, end)]
        size = len(here) * width
        given, row = values, first_in_a_row(here, len(values)) * width
        if row < 0:
            fetch(here, values, taken)
            given, row = taken, 0
        doubts(here, values, load, interval_s, inverse, doubt)
        num_usual, num_measured, num_known = usual.take_in(
            given, row, ring, (pos * room + i) * width, ((pos - ago) % window * room + i) * width,
            ((pos - recent) % window * room + i) * width, of_block, of_all, i * width, size, has_still,
            np.float32(drift), np.int32(warm_up), np.int32(window), held, (at * room + i) * width,
            (before_at * room + i) * width,
        )  # fmt: skip
        measured += num_measured
        known += num_known
        if num_usual < size:
            usual.not_usual(told[:size], others)
            num_measured, num_known = observe_others(
                i, others, size - num_usual, values, rows, kinds, load, clip, interval_s, warm_up, drift,
                pos, ago, recent, window, offset, anchor, level, spread, wobble, pooled, typical, seen,
                fitted, ring, total, count, slow, near, moved,
            )  # fmt: skip
            measured += num_measured
            known += num_known
            mark_others(i, others, size - num_usual, slow, near, threshold, held, at, score, dev, mark)
    return measured, known


@njit(nogil=True, cache=True)
def mark_others(begin, others, num_others, slow, near, threshold, held, at, score, dev, mark):
    """Mark series that are fine and series to be judged, one at a time; `others` as in `observe_others`."""
    columns, before_at = len(threshold), (at - 1) % HOLD
    for k in range(num_others):
        i, f = begin + others[k] // columns, others[k] % columns
        if math.isnan(slow[i, f]):
            held[at, i, f] = held[before_at, i, f] // 2
            score[i, f] = 0.0
            dev[i, f] = 0.0
            mark[i, f] = usual.UNMEASURED
            continue
        least = abs(nearer(slow[i, f], near[i, f]))
        held[at, i, f] = 0
        score[i, f] = least / threshold[f]
        mark[i, f] = usual.FINE if least < usual.HARMLESS else usual.DOUBTFUL


@njit(nogil=True, cache=True)
def first_in_a_row(rows, num_rows):
    """n where these are n, n + 1, n + 2 …, but for those below 0, which are absent; else -1."""
    first = np.int64(-1)
    for k in range(len(rows)):
        if rows[k] >= 0:
            first = rows[k] - k
            break
    if first < 0 or first + len(rows) > num_rows:
        return np.int64(-1)
    differing = 0
    for k in range(len(rows)):
        differing += (rows[k] >= 0) & (rows[k] != first + k)
    return first if differing == 0 else np.int64(-1)


@njit(nogil=True, cache=True)
def fetch(rows, values, taken):
    """A block's values in the order of its slots: `taken`, float32 [block, F]; NaN where one is absent."""
    width = values.shape[1]
    for k in range(len(rows)):
        row = np.int64(rows[k])
        for f in range(width):
            taken[k, f] = values[row, f] if row >= 0 else np.float32(math.nan)


@njit(nogil=True, cache=True, error_model="numpy")
def doubts(rows, values, load, interval_s, inverse, doubt):
    """Of how many requests each share is, inverted.

    Args:
        inverse: float32 [block], scratch.
        doubt: float32 [block, F], result: 0 where that is not known, -1 where the slot is absent.
    """
    scale, zero, one = np.float32(interval_s), np.float32(0), np.float32(1)
    if load < 0:
        for k in range(len(rows)):
            inverse[k] = zero if rows[k] >= 0 else -one
    else:
        for k in range(len(rows)):
            row = np.int64(rows[k])
            inverse[k] = values[row, load] * scale if row >= 0 else -one
        for k in range(len(rows)):
            requests = inverse[k]
            each = one / requests
            each = each if requests > zero else zero  # also where it is NaN
            inverse[k] = each if rows[k] >= 0 else -one
    for f in range(doubt.shape[1]):
        for k in range(len(rows)):
            doubt[k, f] = inverse[k]


@njit(nogil=True, cache=True)
def observe_others(
    begin, others, num_others, values, rows, kinds, load, clip, interval_s, warm_up, drift, pos, ago,
    recent, window, offset, anchor, level, spread, wobble, pooled, typical, seen, fitted, ring, total,
    count, slow, near, moved,
):  # fmt: skip
    """As `observe`, one at a time, for series of a block that are not usual.

    Args:
        begin: the block's first slot; others: int32 [block * F], places in the block; num_others: how many.
    """
    measured, known = 0, 0
    columns = len(kinds)
    for k in range(num_others):
        i, f = begin + others[k] // columns, others[k] % columns
        row = rows[i]
        requests = 0.0
        if row >= 0 and load >= 0 and values[row, load] > 0:
            requests = values[row, load] * interval_s
        old = ring[pos, i, f]
        if old != ABSENT:
            total[i, f] -= old
            count[i, f] -= 1
        u = math.nan
        if row >= 0:
            known += seen[i, f] > 0
            if offset[i, f] < 0 and 0 <= values[row, f] < ABSURD:  # never seen before
                offset[i, f] = max(0.05 * values[row, f], 0.02 * typical[f], 1e-9)
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
        elif math.isnan(level[i, f]):  # to be set again; values in the window are relative to the anchor
            level[i, f] = u
        width = spread[i, f]
        if not fitted[i, f]:  # its own wobble so far, with room for how little is known of it
            width = max(pooled[f], 1.25 * wobble[i, f] * (1.5 + 10.0 / (1.0 + seen[i, f])))
            spread[i, f] = width
        if kinds[f] == SHARE and requests > 0:  # of few requests a share is known badly
            share = min(max(level[i, f], 1.0 / requests), 0.5)
            width = math.sqrt(width * width + share * (1 - share) / requests)
        base = level[i, f]
        if count[i, f] >= MIN_WINDOW:
            base = anchor[i, f] + STEP * total[i, f] / count[i, f]
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
    begin, end, mark, slow, near, moved, still, load, slope, sharp, expected, rows, most, gain, polarity,
    threshold, factor, quiet, seen, fitted, warm_up, held, at, hold, slack, learn,
    score, dev, histogram, peak, found, others,
):  # fmt: skip
    """Compare each series of slots `begin` to `end` with all that was expected of it.

    Args:
        mark, slow, near, moved: of `observe`, which has judged all but what is DOUBTFUL; load: the column
        that others may follow, or -1.
        still: bool [F], columns that stand still in normal time: what moved and stands still again is no
        trouble any more.
        slope: float32 [slots, F], how much of the load's deviation a series shares; 0 for the load itself.
        sharp: float32 [slots, F], its spread over that of what the load leaves; 1 where it does not follow.
        expected: float32 [n, columns], what the model expects; rows: int32 [slots], a slot's row in it;
        most: what is expected is clipped to it; gain: float32 [slots, F], how far it is believed.
        polarity: float32 [F, 2]; threshold: float32 [F]; factor: float32 [slots, F], of each series' own.
        quiet: float32 [slots, F], what deviations are multiplied by during planned changes; 1 = all counts.
        held: int8 [HOLD, slots, F], the last deviations; at: this interval's place; hold: how many must
        agree, of which `slack` may be smaller.
        score: float32 [slots, F], result: 1.0 = threshold, of this interval alone; no more than that
        where harmless.
        dev: float32 [slots, F], result where it is not harmless: spreads, with sign; sharper ones where
        the load was taken out.
        learn: NOTHING, USUAL (what is within bounds) or ALL: what is counted as normal time.
        histogram: int64 [F, BINS], of debounced deviations; peak: float32 [slots, F], their largest.
        found: int32 [room, 2], results: slot and column of debounced scores above 1.
        others: int32 [BLOCK * F], scratch.

    Returns: how many were found (may exceed the room), and the largest debounced score.
    """
    num_found = 0
    largest = 0.0
    width, block = len(threshold), usual.BLOCK
    marks = mark.reshape(-1)
    if learn:
        histogram[:, 0] += end - begin
    for start in range(begin, end, block):
        num_others = usual.marked(marks, start * width, min(start + block, end) * width, others)
        for place in others[:num_others]:
            i, f = np.int64(place) // width, np.int64(place) % width
            if learn:
                histogram[f, 0] -= 1
            if marks[place] == usual.UNMEASURED:
                continue
            a, b = slow[i, f], near[i, f]
            d = nearer(a, b)
            if slope[i, f] != 0.0 and d != 0.0:
                load_slow, load_near = 0.0, 0.0
                if load >= 0 and not math.isnan(slow[i, load]):
                    load_slow = min(max(slow[i, load], -20.0), 20.0)
                    load_near = min(max(near[i, load], -20.0), 20.0)
                a -= slope[i, f] * load_slow
                d = nearer(d, nearer(a, b - slope[i, f] * load_near))
            if gain[i, f] > 0.0 and d != 0.0 and len(expected):
                d = nearer(d, a - gain[i, f] * within(expected[rows[i], f], most))
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
            least, second = abs(whole), 127
            mean = 1.0 * least
            for k in range(1, hold):
                other = held[(at - k) % HOLD, i, f]
                size = abs(other) if (other > 0) == (whole > 0) else 0
                if size < least:
                    second, least = least, size
                elif size < second:
                    second = size
                mean += size
            least = second if slack and second < 127 else least
            # As much on average, and each nearly as much: one that is far out cannot speak for all.
            lasting = min(mean / hold, UNEVEN * least)
            steady = lasting / 4.0
            lasting_score = steady / (threshold[f] * factor[i, f])
            if learn == ALL or (learn == USUAL and lasting_score < 1.0):
                histogram[f, min(int(lasting), BINS - 1)] += 1
                peak[i, f] = max(peak[i, f], steady)
            if lasting_score > largest:
                largest = lasting_score
            if lasting_score >= 1.0:
                if num_found < len(found):
                    found[num_found, 0] = i
                    found[num_found, 1] = f
                num_found += 1
    return num_found, largest
