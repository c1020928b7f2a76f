"""Learns baselines (levels and spreads) from normal intervals, and thresholds for a budget of false alarms.

Knows arrays over time, but no steps. Uses medians and quantiles, so single absurd values have no effect.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.detect import kernels
from hopline_mesh.detect.series import UNKNOWN, SeriesTable

#: Fewest values that a series must have in the learned period to get its own level and spread.
_FEWEST = 20
#: Share of a series' outermost values that the spread ignores, and how much further out than normally
#: distributed values the remaining ones may be.
TAIL, _OUTER = 0.01, 3.0 / 2.5758
#: Share of values from which a value occurs often.
_OFTEN = 0.1
#: Share of a series' variance that its load must explain before the load is taken out.
_FOLLOWS = 0.1
#: How much narrower the spread of what the load leaves may be taken: its law was learned at few loads.
_SHARPEST = 3.0
#: Thresholds in spreads: no lower, no higher.
LOWEST, HIGHEST = 4.5, 14.0
#: The lowest threshold where levels and spreads were learnt on the way, anomalies among what they are from.
_LOWEST_UNFITTED = 5.5
#: Intervals after which half of a threshold is what was measured rather than what is assumed.
_HALF_KNOWN = 60.0
#: Normal time, in times that a deviation has to last, in which deviations are half as large as after it.
#: 36 h of normal simulated meshes had 44, 26 and 8 false alarms after 120, 240 and 480 intervals that were
#: learned; with thresholds raised so 11, 10 and 2.
_CAUTION = 20.0
#: A training of fewer times that a deviation has to last is short: below an hour of 15-second intervals.
_SHORT = 40
#: A series' own threshold, as a multiple of its largest deviation in normal time.
_OWN = 1.2
#: The highest threshold of a series. No deviation is counted as larger than `MAX_DEVIATION`, so a series
#: with a higher threshold could never raise an alarm.
_REACHED = 0.95 * kernels.MAX_DEVIATION
#: Deviations below it need no explanation: no threshold is as low, and no series' own is set by them.
LEAST_COUNTED = LOWEST / _OWN
#: Exceedances follow each other; so many are one false alarm.
RUN = 2.0


def learn_scales(table: SeriesTable, history: NDArray[np.float32], tail: float = TAIL) -> None:
    """Set offset, level, spread and slope of each series from normal time.

    Args:
        table: has at least as many slots as `history`.
        history: float32 [T, slots, F], as measured; NaN = not measured. Overwritten.
        tail: share of the values that may be any way out without a wider spread.
    """
    pooled = table.least_spread.copy()
    with np.errstate(invalid="ignore"):
        history[~(np.abs(history) < kernels.ABSURD)] = np.nan
    enough = np.isfinite(history).sum(axis=0) >= _FEWEST
    for f in range(len(table.columns)):
        own = np.flatnonzero(enough[:, f])
        if not len(own):
            continue
        values = history[:, own, f]
        if table.kinds[f] == kernels.AMOUNT:
            values[values < 0] = np.nan
            middle = quantile(values, 0.5)
            step = _steps(values)
            typical = np.median(middle) or np.median(step) / kernels.OFFSET
            offset = np.maximum(0.05 * middle + kernels.OFFSET * typical, np.maximum(step, 1e-9))
            table.offset[own, f] = offset
            table.typical[f] = typical
            values = np.log(values + offset)
        elif table.kinds[f] == kernels.REAL:
            values = np.arcsinh(values)
        history[:, own, f] = values
        level = quantile(values, 0.5)
        spread = _spread(np.abs(values - level), tail)
        pooled[f] = max(pooled[f], float(np.median(spread)))
        table.level[own, f] = table.anchor[own, f] = level
        table.spread[own, f] = np.maximum(spread, max(table.least_spread[f], 0.25 * pooled[f]))
        table.fitted[own, f] = 1
        table.seen[own, f] = np.isfinite(values).sum(axis=0)
    table.pooled[:] = 1.5 * pooled
    _learn_loads(table, history, enough, tail)


def _steps(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the smallest positive value of each series that is often 0, of others 0, float32 [series].

    Such a series counts something rare, for example failures, in steps of this size.

    Args:
        values: float32 [T, series].
    """
    least = np.where(values > 0, values, np.inf).min(axis=0)
    is_rare = (values == 0).mean(axis=0) > _OFTEN
    steps: NDArray[np.float32] = np.where(is_rare & np.isfinite(least), least, 0).astype(np.float32)
    return steps


def _learn_loads(
    table: SeriesTable, history: NDArray[np.float32], enough: NDArray[np.bool_], tail: float
) -> None:
    """Set how much of the load's deviation each series shares, and its spread over that of what is left.

    The latter of what a service uses only: how long it takes and what it sends follow its load by no law
    that would hold for other loads than those that were seen.

    Args:
        history: on the scales of the levels.
        enough: bool [slots, F], series with own levels.
    """
    size = history.shape[1]
    table.slope[:size], table.sharp[:size] = 0.0, 1.0
    if table.load < 0:
        return

    def deviations(f: int) -> NDArray[np.float32]:
        away: NDArray[np.float32] = (history[:, :, f] - table.level[:size, f]) / table.spread[:size, f]
        return away

    all_loads = deviations(table.load)
    load = np.clip(all_loads, -4, 4)
    for f, role in enumerate(table.roles):
        if f == table.load or role == "calls":  # of which the load is a part
            continue
        other = np.clip(deviations(f), -4, 4)
        both = np.isfinite(load) & np.isfinite(other)
        number = np.maximum(both.sum(axis=0), 1)
        x, y = np.where(both, load, 0), np.where(both, other, 0)
        x, y = np.where(both, x - x.sum(0) / number, 0), np.where(both, y - y.sum(0) / number, 0)
        xy, xx, yy = (x * y).sum(0), (x * x).sum(0), (y * y).sum(0)
        explained = xy * xy / np.maximum(xx * yy, 1e-9)
        usable = enough[:, f] & enough[:, table.load] & (explained > _FOLLOWS)
        table.slope[:size, f] = np.where(usable, np.clip(xy / np.maximum(xx, 1e-9), -2, 2), 0)
        mine = np.flatnonzero(table.slope[:size, f])
        if role != "resource" or not len(mine):
            continue
        spread = table.spread[mine, f]
        follows = table.slope[mine, f] * spread * all_loads[:, mine]
        rest = history[:, mine, f] - table.level[mine, f] - follows
        left = np.maximum(_spread(np.abs(rest - quantile(rest, 0.5)), tail), table.least_spread[f])
        table.sharp[mine, f] = np.clip(spread / left, 1.0, _SHARPEST)


def _spread(away: NDArray[np.float32], tail: float) -> NDArray[np.float32]:
    """Of deviations without a sign [T, series]: of the middle ones, or of the outer ones if more."""
    outer = quantile(away, 1 - tail) / (_OUTER * NormalDist().inv_cdf(1 - tail / 2))
    spread: NDArray[np.float32] = np.maximum(1.4826 * quantile(away, 0.5), outer).astype(np.float32)
    return spread


def quantile(values: NDArray[np.float32], share: float) -> NDArray[np.float32]:
    """Return a quantile of each column, float32 [series], without NaN; NaN for a column without any value.

    As `np.nanquantile`, which takes 30 µs for each column that has a NaN.

    Args:
        values: float32 [T, series].
    """
    ordered = np.sort(values, axis=0)  # NaN comes last
    last = np.maximum(np.count_nonzero(~np.isnan(values), axis=0) - 1, 0)
    at = share * last
    low = at.astype(np.int64)
    columns = np.arange(values.shape[1])
    below, above = ordered[low, columns], ordered[np.minimum(low + 1, last), columns]
    found: NDArray[np.float32] = (below + (above - below) * (at - low)).astype(np.float32)
    return found


def discount(
    table: SeriesTable,
    found: NDArray[np.int64],
    lasting: NDArray[np.float64],
    shares: NDArray[np.float64],
    peak: NDArray[np.float32],
) -> None:
    """Count what was found in an interval by what is left of it once it is explained as far as it can be.

    Args:
        table: whose `histogram` has it as it was measured.
        found, lasting: of `SeriesTable.judge`.
        shares: float64 [found], what is left.
        peak: float32 [slots, F], what is left at most; result.
    """
    slots, columns = found.T
    left = lasting * shares
    np.subtract.at(table.histogram, (columns, np.minimum(lasting.astype(int), kernels.BINS - 1)), 1)
    np.add.at(table.histogram, (columns, np.minimum(left.astype(int), kernels.BINS - 1)), 1)
    np.maximum.at(peak, (slots, columns), left / 4.0)


def set_thresholds(
    table: SeriesTable,
    intervals: int,
    interval_s: float,
    budget_per_day: float,
    percentile: float,
    *,
    hold: int = 0,
    times: float = 1.0,
) -> None:
    """Thresholds from the debounced deviations of normal time.

    Above the percentile, exceedances of a threshold are taken to follow a generalised Pareto distribution
    (Pickands, 1975; fitted by moments), by which the threshold is found that is exceeded as often as the
    budget allows. Each column has an equal share of the budget; a series that deviated further in normal
    time than others of its column has a separate threshold.

    Args:
        table: with `histogram` and `peak` over that time.
        intervals: how many there were.
        budget_per_day: false alarms that all columns of the table may give.
        percentile: of the deviations, from where on the tail is fitted.
        hold: intervals that a deviation has to last, where levels and spreads are of the same time as the
            deviations. These are then too small, by the more the shorter that time was, and thresholds are
            raised by so much, after a short training up to those of an untrained watch; 0 where they were
            learnt on the way.
        times: factor on all thresholds.
    """
    if not intervals:
        return
    raised = 1.0 + _CAUTION * hold / intervals
    allowed = RUN * budget_per_day / max(1, len(table.columns)) * intervals * interval_s / 86_400
    known = intervals / (intervals + _HALF_KNOWN)
    lowest = LOWEST if hold else _LOWEST_UNFITTED
    # A watch after a short training must not be less sensitive than an untrained one.
    highest = HIGHEST if hold and intervals >= _SHORT * hold else UNKNOWN
    for f in range(len(table.columns)):
        wanted = tail_level(table.histogram[f], allowed, percentile)
        wanted = min(raised * max(known * wanted + (1 - known) * UNKNOWN, lowest), highest)
        table.threshold[f] = times * wanted
    own = np.minimum(
        np.clip(_OWN * table.peak[: table.size], table.threshold, 3.0 * table.threshold), _REACHED
    )
    table.factor[: table.size] = own / table.threshold


def tail_level(histogram: NDArray[np.int64], allowed: float, percentile: float) -> float:
    """The deviation that is exceeded `allowed` times (less than once: extrapolated).

    Args:
        histogram: int64 [BINS], counts by quarters of a spread.
    """
    number = int(histogram.sum())
    if not number:
        return UNKNOWN
    above = number - np.cumsum(histogram)  # how many are beyond each bin
    start = int(np.argmax(above <= (1 - percentile / 100) * number))
    start = max(start, kernels.HARMLESS)
    beyond = int(above[start])
    if beyond < 5:
        return start / 4.0 + 1.0
    counts = histogram[start + 1 :]
    excess = (np.arange(len(counts)) + 0.5) / 4.0
    mean = float((counts * excess).sum() / beyond)
    variance = float((counts * (excess - mean) ** 2).sum() / beyond) + 1e-6
    shape = min(max(0.5 * (1 - mean * mean / variance), 0.0), 0.4)
    scale = mean * (1 - shape)
    ratio = max(beyond / max(allowed, 1e-9), 1.0)
    if shape < 1e-3:
        return (start + 1) / 4.0 + scale * float(np.log(ratio))
    return (start + 1) / 4.0 + scale / shape * (float(ratio**shape) - 1)
