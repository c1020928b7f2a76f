from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline_mesh.detect import calibrate, kernels
from hopline_mesh.detect.series import SeriesTable
from packages.mesh.tests.detect import oracle

COLUMNS = ("request_rate", "error_share", "queue_delta", "memory_bytes", "p99_ms")
WINDOW = 16


def table_after(history: np.ndarray, *, fitted: bool = True) -> SeriesTable:
    """A table that knows the levels of `history`."""
    table = SeriesTable(COLUMNS, WINDOW, warm_up=3)
    table.threshold[:] = 5.0
    table.grow(history.shape[1])
    if fitted:
        calibrate.learn_scales(table, history.astype(np.float32).copy())
    return table


def observe(
    table: SeriesTable, values: np.ndarray, step: int, slots: np.ndarray | None = None
) -> tuple[int, int]:
    """Take in an interval of a table: of all slots, or of `slots`. Returns: measured, known."""
    slots = np.arange(len(values), dtype=np.int32) if slots is None else slots
    return table.observe(values.astype(np.float32), slots, step, interval_s=15.0, hold=2)


def judge(table: SeriesTable, step: int, *, hold: int, learn: int) -> tuple[list[tuple[int, int]], float]:
    """What of the table is out of bounds, and the largest score."""
    found, _, largest = table.judge(step, hold=hold, learn=learn)
    return [(slot, column) for slot, column in found.tolist()], largest


def numbers(seed: int, count: int = 60, services: int = 6) -> np.ndarray:
    """[count, services, columns] with gaps, spikes and absurd values."""
    rng = np.random.default_rng(seed)
    values = np.exp(rng.normal(2, 0.3, (count, services, len(COLUMNS))))
    values[..., 1] = rng.uniform(0, 0.1, values.shape[:2])
    values[..., 2] -= 8
    for odd, share in ((np.nan, 0.1), (np.inf, 0.01), (-1.0, 0.01), (1e35, 0.01), (900.0, 0.02)):
        values[rng.random(values.shape) < share] = odd
    return values


@pytest.mark.parametrize("fitted", [True, False])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_windows_hold_the_same_as_from_scratch(fitted, seed):
    values = numbers(seed)
    table = table_after(values, fitted=fitted)
    for step, now in enumerate(values):
        observe(table, now, step)
        mean, count = oracle.window_mean(table.ring[:, : table.size], table.anchor[: table.size])
        np.testing.assert_array_equal(count, table.count[: table.size])
        total = np.where(table.ring == kernels.ABSENT, 0, table.ring.astype(np.int64)).sum(axis=0)
        np.testing.assert_array_equal(total, table.total)
        assert np.isfinite(mean).all()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_deviations_are_those_of_the_definition(seed):
    values = numbers(seed)
    table = table_after(values)
    size = table.size
    for step, now in enumerate(values[:30]):
        level = table.level[:size].astype(float)
        ring = table.ring[:, :size].copy()
        ring[step % WINDOW] = kernels.ABSENT
        mean, count = oracle.window_mean(ring, table.anchor[:size].astype(float))
        observe(table, now, step)
        value = oracle.transformed(now.astype(np.float32), table.kinds, table.offset[:size].astype(float))
        requests = np.nan_to_num(np.where(np.abs(now[:, :1]) < 1e30, now[:, :1], 0)).clip(0) * 15.0
        share = np.clip(np.maximum(level, 1 / np.maximum(requests, 1e-9)), None, 0.5)
        doubt = np.where((table.kinds == kernels.SHARE) & (requests > 0), share * (1 - share), 0)
        width = np.sqrt(table.spread[:size] ** 2 + doubt / np.maximum(requests, 1e-9))
        base = np.where(count >= kernels.MIN_WINDOW, mean, level)
        np.testing.assert_array_equal(np.isnan(table.slow[:size]), np.isnan(value))
        there = ~np.isnan(value)
        np.testing.assert_allclose(
            table.slow[:size][there], ((value - level) / width)[there], rtol=2e-3, atol=2e-3
        )
        np.testing.assert_allclose(
            table.near[:size][there], ((value - base) / width)[there], rtol=2e-3, atol=2e-3
        )


def test_deviations_that_are_plain_are_compared_as_they_are():
    rng = np.random.default_rng(2)
    values = rng.normal(0, 0.5, (80, 3, len(COLUMNS)))
    table = SeriesTable(COLUMNS, WINDOW, warm_up=3, are_plain=True)
    table.grow(3)
    calibrate.learn_scales(table, values[:60].astype(np.float32))
    level, spread = table.level[:3].copy(), table.spread[:3].copy()
    observe(table, values[60], 0)
    np.testing.assert_allclose(table.slow[:3], (values[60] - level) / spread, rtol=1e-3, atol=1e-3)
    assert table.load == -1
    assert (table.slope == 0).all()


@pytest.mark.parametrize("hold", [2, 3, 6])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_what_is_found_lasted_long_enough(hold, seed):
    values = numbers(seed, count=70)
    rng = np.random.default_rng(seed)
    values[50:60] *= np.exp(rng.choice([0, 2.5], size=values.shape[1:]))
    table = table_after(values[:50])
    history = []
    for step, now in enumerate(values):
        observe(table, now, step)
        found, largest = judge(table, step, hold=hold, learn=kernels.NOTHING)
        history.append(table.held[step % kernels.HOLD, : table.size].copy())
        slow, near = table.slow[: table.size], table.near[: table.size]
        deviation = oracle.nearer(slow, near)
        simple = (table.slope[: table.size] == 0) & ~table.still & (np.abs(deviation) >= 2)
        deviation = deviation * np.where(deviation > 0, table.polarity[:, 0], table.polarity[:, 1])
        expected = np.clip(
            np.where(np.isnan(slow), 0, deviation), -kernels.MAX_DEVIATION, kernels.MAX_DEVIATION
        )
        np.testing.assert_allclose(
            np.where(simple, table.dev[: table.size], 0), np.where(simple, expected, 0), atol=1e-4
        )
        steady = oracle.lasting(history, hold) / 4
        steady[np.isnan(slow) | (np.abs(history[-1].astype(int)) < kernels.HARMLESS)] = 0
        score = steady / (table.threshold * table.factor[: table.size])
        assert set(found) == {tuple(pair) for pair in np.argwhere(score >= 1)}
        assert largest == pytest.approx(score.max(), abs=1e-5)


@pytest.mark.parametrize("size", [20.0, 1000.0])
def test_one_interval_within_bounds_hides_no_deviation_however_large(size):
    table = table_after(numbers(2))
    table.slope[:], table.factor[:] = 0, 1
    found = []
    for step in range(7):
        table.slow[0, 4] = table.near[0, 4] = 0.0 if step == 3 else size
        found.append(judge(table, step, hold=6, learn=kernels.NOTHING)[0])
    history = [table.held[step, :1] for step in range(7)]
    assert oracle.lasting(history, 6)[0, 4] / 4 > table.threshold[4]
    assert found[-1] == [(0, 4)]


def test_a_tail_is_continued_beyond_what_was_seen():
    rng = np.random.default_rng(0)
    seen = rng.exponential(1.0, 200_000)
    histogram = np.bincount((seen * 4).astype(int), minlength=kernels.BINS)[: kernels.BINS]
    level = calibrate.tail_level(histogram, 0.2, 99.0)
    assert level == pytest.approx(np.log(200_000 / 0.2), rel=0.25)
    assert calibrate.tail_level(histogram, 20.0, 99.0) < level


def test_what_the_load_leaves_of_a_processors_use_is_how_sharply_it_is_judged():
    columns = ("request_rate", "cpu_cores", "memory_bytes", "p99_ms")
    rng = np.random.default_rng(3)
    load = rng.normal(0, 0.3, (4000, 4, 1))
    left = np.array([0.05, 0.15, 0.3, 0.01]).reshape(4, 1)  # of four services
    values = np.exp(
        2 + 0.8 * load * [1 / 0.8, 1, 1, 1] + left * rng.normal(size=(4000, 4, 4)) * [0, 1, 1, 1]
    )
    table = SeriesTable(columns, WINDOW, warm_up=3)
    table.grow(4)
    calibrate.learn_scales(table, values.astype(np.float32))
    sharp = table.sharp[:4]
    assert (sharp[:, [0, 2, 3]] == 1).all()
    # Offsets shrink all logarithms a little; the last is bounded, by the least spread and by 3.
    expected = np.minimum(np.hypot(0.8 * 0.3, left[:, 0]) / np.maximum(left[:, 0], 0.05), 3.0)
    np.testing.assert_allclose(sharp[:, 1], expected, rtol=0.1)


def test_a_larger_budget_gives_lower_thresholds():
    rng = np.random.default_rng(3)
    seen = np.minimum(rng.exponential(4.0, 100_000), kernels.BINS - 1).astype(int)
    thresholds = []
    for budget in (0.1, 10.0, 1000.0):
        table = table_after(numbers(3))
        table.histogram[:] = np.bincount(seen, minlength=kernels.BINS)
        calibrate.set_thresholds(table, 1000, 15.0, budget, 99.0, hold=6)
        thresholds.append(table.threshold[0])
    assert thresholds[0] > thresholds[1] > thresholds[2]


@pytest.mark.parametrize("order", ["in a row", "with holes", "any", "reversed"])
def test_rows_in_any_order_are_taken_in_alike(order):
    values = numbers(3, count=30)
    slots = values.shape[1]
    rng = np.random.default_rng(0)
    here = np.arange(slots, dtype=np.int32)
    if order == "with holes":  # a path went, another one that came has its row
        here = np.concatenate([here[:5], here[-1:], here[6:-1]]).astype(np.int32)
    elif order == "any":
        here = rng.permutation(here)[: slots - 2].astype(np.int32)
    elif order == "reversed":
        here = here[::-1].copy()
    table, plain = table_after(values[:20]), table_after(values[:20])
    for step, now in enumerate(values[20:]):
        absent = np.full_like(now, np.nan)
        absent[here] = now[here]
        got = observe(table, now[here], step, slots=here)
        observe(plain, absent, step)
        assert got[0] == np.isfinite(table.slow[: table.size]).sum()
    for name in ("level", "slow", "near", "total", "count", "ring", "seen"):
        mine, theirs = (getattr(each, name) for each in (table, plain))
        measured = here if name != "ring" else np.s_[:, here]
        np.testing.assert_array_equal(mine[measured], theirs[measured])
    gone = np.setdiff1d(np.arange(slots), here)
    assert np.isnan(table.slow[gone]).all()
    np.testing.assert_array_equal(table.seen[gone], plain.seen[gone])
