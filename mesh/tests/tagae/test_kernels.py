from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit, types
from numba.extending import intrinsic

from hopline_mesh.tagae import calibrate, kernels, sweep, usual
from hopline_mesh.tagae.series import SeriesTable
from hopline_mesh.tagae.sweep import Sweep
from hopline_mesh.vectors import turns
from tests.tagae import oracle

COLUMNS = ("request_rate", "error_share", "queue_delta", "memory_bytes", "p99_ms")
WINDOW = 16


def table_after(history: np.ndarray, *, fitted: bool = True) -> SeriesTable:
    """A table that knows the levels of `history`."""
    table = SeriesTable(COLUMNS, WINDOW, threshold=5.0)
    table.grow(history.shape[1])
    if fitted:
        calibrate.learn_scales(table, history.astype(np.float32).copy())
    return table


def sweep_of(table: SeriesTable) -> Sweep:
    """Over this table, and one of services that has none."""
    return Sweep(SeriesTable(("request_rate",), WINDOW, threshold=5.0), table, threads=2)


def observe(
    table: SeriesTable,
    values: np.ndarray,
    step: int,
    slots: np.ndarray | None = None,
    by: Sweep | None = None,
) -> tuple[int, int]:
    """Take in an interval of a table: of all slots, or of `slots`. Returns: measured, known."""
    slots = np.arange(len(values), dtype=np.int32) if slots is None else slots
    none = np.zeros((0, 1), np.float32), np.zeros(0, np.int32)
    taken = (by or sweep_of(table)).take_in(
        (none[0], values.astype(np.float32)), (none[1], slots), step,
        interval_s=15.0, warm_up=3, drift=0.001, ago=4, recent=2,
    )  # fmt: skip
    return taken.measured, taken.known


def judge(
    table: SeriesTable, step: int, *, hold: int, learn: int, by: Sweep | None = None
) -> tuple[list[tuple[int, int]], float]:
    """What of the table is out of bounds, and the largest score."""
    found, largest = (by or sweep_of(table)).judge(step, warm_up=3, hold=hold, learn=learn)
    assert all(number == 1 for number, _, _ in found)
    return [(slot, column) for _, slot, column in found], largest


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


@pytest.mark.parametrize("services", [1, 6, 150])
@pytest.mark.parametrize("fitted", [True, False])
def test_many_at_once_are_taken_in_as_one_by_one(fitted, services):
    values = numbers(7, count=40, services=services)
    together, single = table_after(values, fitted=fitted), table_after(values, fitted=fitted)
    rng = np.random.default_rng(0)
    for step, now in enumerate(values.astype(np.float32)):
        for name in (*together.export(), "slow", "near", "moved"):
            getattr(single, name)[...] = getattr(together, name)
        slots = rng.permutation(services)[: services - services // 5].astype(np.int32)
        measured = observe(together, now[slots], step, slots)
        single.typical[:] = together.typical
        assert measured == one_by_one(single, now[slots], slots, step)
        for name in ("count", "seen", "fitted", "offset"):
            np.testing.assert_array_equal(getattr(together, name), getattr(single, name))
        for name in ("slow", "near", "moved", "level", "spread", "wobble", "anchor"):
            np.testing.assert_allclose(
                getattr(together, name), getattr(single, name), rtol=1e-3, atol=1e-3, err_msg=name
            )
        apart = np.abs(together.ring.astype(int) - single.ring)
        assert apart.max() <= 1  # a value that lies between two steps of the window
        assert (apart > 0).mean() < 1e-3


@pytest.mark.parametrize("services", [1, 6, 150])
@pytest.mark.parametrize("fitted", [True, False])
def test_many_at_once_are_marked_as_one_by_one(fitted, services):
    marking = ("score", "held", "dev", "mark")
    values = numbers(8, count=40, services=services)
    values[20:26] *= 3.0  # a deviation that lasts, so that some are held when they are missed
    values[26:28, ::2] = np.nan
    together, single = table_after(values[:20], fitted=fitted), table_after(values[:20], fitted=fitted)
    by, slots = sweep_of(together), np.arange(services, dtype=np.int32)
    seen: set[int] = set()
    halved = 0
    for step, now in enumerate(values.astype(np.float32)):
        for name in (*together.export(), *marking, "slow", "near", "moved"):
            getattr(single, name)[...] = getattr(together, name)
        observe(together, now, step, by=by)
        single.typical[:] = together.typical
        one_by_one(single, now, slots, step)
        least = np.abs(oracle.nearer(single.slow, single.near))
        is_told = ~(np.abs(least - usual.HARMLESS) < 1e-3)[: together.size]
        for name in ("score", "dev"):
            np.testing.assert_allclose(
                getattr(together, name), getattr(single, name), rtol=1e-3, atol=1e-3, err_msg=name
            )
        size = together.size
        np.testing.assert_array_equal(together.mark[:size][is_told], single.mark[:size][is_told])
        now_held = together.held[step % kernels.HOLD, :size]
        np.testing.assert_array_equal(now_held, single.held[step % kernels.HOLD, :size])
        seen |= set(together.mark[:size].ravel().tolist())
        halved += np.count_nonzero(now_held)
        judge(together, step, hold=3, learn=kernels.NOTHING, by=by)
    assert seen == {usual.FINE, usual.DOUBTFUL, usual.UNMEASURED}
    assert halved or not fitted or services == 1


def one_by_one(table: SeriesTable, values: np.ndarray, slots: np.ndarray, step: int) -> tuple[int, int]:
    """`observe` without vector instructions."""
    rows = np.full(table.size, -1, np.int32)
    rows[slots] = np.arange(len(slots))
    places = np.arange(table.size * len(COLUMNS), dtype=np.int32)
    state = (
        table.offset,
        table.anchor,
        table.level,
        table.spread,
        table.wobble,
        table.pooled,
        table.typical,
    )
    windows = (table.seen, table.fitted, table.ring, table.total, table.count)
    measured = kernels.observe_others(
        0, places, len(places), values, rows, table.kinds, table.load, table.clip, 15.0, 3, 0.001,
        step % WINDOW, 4, 2, WINDOW, *state, *windows, table.slow, table.near, table.moved,
    )  # fmt: skip
    kernels.mark_others(
        0, places, len(places), table.slow, table.near, table.threshold, table.held,
        step % kernels.HOLD, table.score, table.dev, table.mark,
    )  # fmt: skip
    return measured


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
        by = sweep_of(table)
        observe(table, now, step, by=by)
        found, largest = judge(table, step, hold=hold, learn=kernels.NOTHING, by=by)
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
    table = SeriesTable(columns, WINDOW, threshold=5.0)
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
        calibrate.set_thresholds(table, 1000, 15.0, budget, 99.0)
        thresholds.append(table.threshold[0])
    assert thresholds[0] > thresholds[1] > thresholds[2]


def test_two_threads_find_what_one_finds(monkeypatch):
    values = numbers(5, count=70, services=300)  # some pieces for each
    values[50:] *= np.exp(np.random.default_rng(0).choice([0, 2.5], size=values.shape[1:]))
    tables = []
    for shared_from in (10**9, 0):
        monkeypatch.setattr(sweep, "SHARED_FROM", shared_from)
        table = table_after(values[:50])
        by = sweep_of(table)
        found = []
        for step, now in enumerate(values):
            by.rouse()
            measured = observe(table, now, step, by=by)
            found.append((measured, *judge(table, step, hold=2, learn=kernels.ALL, by=by)))
        tables.append((found, table.export()))
    assert tables[0][0] == tables[1][0]
    assert any(pairs for _, pairs, _ in tables[0][0])
    for name, array in tables[0][1].items():
        np.testing.assert_array_equal(array, tables[1][1][name])


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


@intrinsic
def _logarithms(typingctx, values, found):
    def codegen(context, builder, signature, args):
        at = [context.make_array(k)(context, builder, v) for k, v in zip(signature.args, args, strict=True)]

        def one_turn(row):
            value = row.load(at[0].data)
            row.store(usual.logarithm(value), at[1].data, value.is_number)
            return []

        turns(builder, builder.extract_value(at[0].shape, 0), [], one_turn)
        return context.get_dummy_value()

    return types.void(values, found), codegen


@njit
def logarithms(values, found):
    _logarithms(values, found)


def test_the_logarithm_is_that_of_numpy():
    values = np.exp(np.random.default_rng(0).uniform(-20, 68, 3000)).astype(np.float32)
    values[:1000] = np.random.default_rng(1).uniform(0.9, 1.1, 1000)
    exact = np.log(values.astype(np.float64))
    found = np.empty_like(values)
    logarithms(values, found)
    np.testing.assert_allclose(found, exact, rtol=3e-7, atol=1e-7)


@pytest.mark.parametrize(
    ("value", "is_told"),
    [(0.5, 0.5), (9.0, 4.0), (-9.0, -4.0), (np.nan, 0.0), (np.inf, 0.0), (-np.inf, 0.0), (1e35, 0.0)],
)
def test_what_a_model_expects_is_bounded_and_nonsense_is_nothing(value, is_told):
    assert kernels.within(np.float32(value), np.float32(4.0)) == np.float32(is_told)
