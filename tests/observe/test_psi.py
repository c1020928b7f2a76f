from __future__ import annotations

import math
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hopline.observe.psi import NumberBins, compare, number_bins, psi_limit, psi_noise, psi_terms
from hopline_drift.bins import DEGREE_BINS, PROBABILITY_BINS, Bins, CategoryBins, Sketch, category_bins

counts = st.lists(st.integers(0, 1000), min_size=2, max_size=12)
two_counts = st.integers(2, 12).flatmap(
    lambda size: st.tuples(*[st.lists(st.integers(0, 1000), min_size=size, max_size=size)] * 2)
)
numbers = hnp.arrays(np.float64, st.integers(0, 40), elements=st.floats(allow_nan=True, width=32))


def psi(a: list[int], b: list[int], smoothing: float = 0.5) -> float:
    return float(psi_terms(a, b, smoothing).sum())


def plain_psi(p: list[int], q: list[int]) -> float:
    """The formula as it is written everywhere; every bin occupied."""
    share_p, share_q = np.array(p) / sum(p), np.array(q) / sum(q)
    return float(((share_p - share_q) * np.log(share_p / share_q)).sum())


@given(two_counts)
def test_index_is_symmetric_and_never_negative(sides: tuple[list[int], list[int]]) -> None:
    a, b = sides
    assert psi(a, b) == pytest.approx(psi(b, a), abs=1e-12)
    assert (psi_terms(a, b) >= 0).all()
    assert math.isfinite(psi(a, b))


@given(counts, st.integers(1, 50))
def test_equal_shares_have_index_zero_whatever_the_sizes(a: list[int], times: int) -> None:
    assert psi(a, a) == 0
    assert psi(a, [count * times for count in a]) == pytest.approx(0, abs=1e-12)


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1000)), min_size=2, max_size=12))
def test_without_smoothing_it_is_the_plain_formula(pairs: list[tuple[int, int]]) -> None:
    a, b = [one for one, _ in pairs], [other for _, other in pairs]
    assert psi(a, b, smoothing=0) == pytest.approx(plain_psi(a, b), abs=1e-12)
    assert psi([1000 * n for n in a], [1000 * n for n in b]) == pytest.approx(
        plain_psi(a, b), rel=0.05, abs=1e-6
    )


def test_a_bin_that_one_side_lacks_is_infinite_only_without_smoothing() -> None:
    assert psi([10, 10], [20, 0], smoothing=0) == math.inf
    assert 0.25 < psi([10, 10], [20, 0]) < 10
    assert psi([10, 10], [0, 0]) == 0  # nothing is known


@pytest.mark.parametrize(("n", "m"), [(200, 200), (10_000, 200), (10_000, 2000)])
@pytest.mark.parametrize("shares", [[0.1] * 10, [0.7, 0.1, 0.1, 0.05, 0.05]])
def test_noise_and_limit_are_those_of_samples_of_one_distribution(
    n: int, m: int, shares: list[float]
) -> None:
    rng = np.random.default_rng(3)
    found = np.array(
        [psi(rng.multinomial(n, shares).tolist(), rng.multinomial(m, shares).tolist()) for _ in range(2000)]
    )
    assert found.mean() == pytest.approx(psi_noise(n, m, len(shares)), rel=0.1)
    assert (found > psi_limit(n, m, len(shares))).mean() <= 0.001
    two_sigma = psi_limit(n, m, len(shares), chance=2.0)
    assert (found > two_sigma).mean() == pytest.approx(0.0228, abs=0.012)


@pytest.mark.parametrize("m", [50, 200, 1000, 5000])
def test_unchanged_values_never_pass_a_threshold_however_few_they_are(m: int) -> None:
    rng = np.random.default_rng(4)
    reference = rng.lognormal(size=5000)
    bins = number_bins(reference)
    before = Sketch.of(bins, reference)
    fired = sum(compare(before, Sketch.of(bins, rng.lognormal(size=m))).above(0.1) for _ in range(500))
    assert fired == 0


@pytest.mark.parametrize(("m", "shift"), [(200, 1.0), (1000, 0.6)])
def test_a_shift_passes_the_threshold(m: int, shift: float) -> None:
    rng = np.random.default_rng(5)
    reference = rng.normal(size=5000)
    bins = number_bins(reference)
    comparison = compare(Sketch.of(bins, reference), Sketch.of(bins, rng.normal(shift, size=m)))
    assert comparison.above(0.25)
    assert comparison.num_current == m
    assert comparison.bin in bins.names()


@given(numbers, numbers)
def test_every_value_is_counted_once_in_the_bin_that_holds_it(
    reference: np.ndarray, values: np.ndarray
) -> None:
    bins = number_bins(reference)
    assert all(low < high for low, high in pairwise(bins.edges))
    found = bins.count(values)
    assert found.sum() == values.size
    expected = [0] * bins.num_bins
    for value in values.tolist():
        at = bins.num_bins - 1 if math.isnan(value) else sum(edge < value for edge in bins.edges)
        expected[at] += 1
    assert found.tolist() == expected
    assert len(bins.names()) == bins.num_bins


@given(st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=40))
def test_categories_are_the_most_frequent_ones(values: list[str]) -> None:
    bins = category_bins(values, top=3)
    kept = {category: values.count(category) for category in bins.categories}
    others = [values.count(category) for category in set(values) - set(kept)]
    assert max(others, default=0) <= min(kept.values())
    assert bins.count(values).tolist() == [*kept.values(), sum(others), 0]


def test_what_is_missing_has_a_bin_of_its_own() -> None:
    assert NumberBins((1.0,)).count([0.5, None, math.nan, "no number", 1.0, 2]).tolist() == [2, 1, 3]
    assert NumberBins((1.0,)).count(np.array([1.0, np.nan], np.float32)).tolist() == [1, 0, 1]
    assert CategoryBins(("a", "1")).count(["a", None, math.nan, b"a", 1, "z"]).tolist() == [2, 1, 1, 2]
    assert CategoryBins(("1",)).count(np.array([1, 1, 2])).tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    "ones",
    [
        [1, 1.0, True],
        [True, 1.0, 1],
        ["1", 1, True],
        [np.bool_(True), np.float32(1), np.int64(1)],
        np.ones(3),
        np.ones(3, np.bool_),
    ],
)
def test_equal_values_are_one_category_whatever_their_type(ones: object) -> None:
    assert CategoryBins(("1",)).count(ones).tolist() == [3, 0, 0]


def test_a_value_that_is_frequent_has_a_bin_of_its_own() -> None:
    reference = np.concatenate([np.zeros(700), np.arange(1.0, 301.0)])
    bins = number_bins(reference)
    below, zero = bins.count([-0.001, 0.0]).nonzero()[0]
    assert below != zero
    constant = number_bins(np.full(100, 5.0, np.float32))
    assert constant.count([4.999, 5.0, 5.001, np.nan]).tolist() == [1, 1, 1, 1]


@given(st.lists(numbers, min_size=1, max_size=4), st.randoms())
def test_the_order_of_merging_does_not_matter(parts: list[np.ndarray], random) -> None:
    whole = Sketch.of(PROBABILITY_BINS, np.concatenate(parts))
    merged = Sketch(PROBABILITY_BINS)
    random.shuffle(parts)
    for part in parts:
        merged.add(Sketch.of(PROBABILITY_BINS, part))
    updated = whole.empty_copy()
    for part in parts:
        updated.update(part)
    assert merged == whole == updated


@pytest.mark.parametrize(
    "bins", [PROBABILITY_BINS, DEGREE_BINS, number_bins([0.1, 1 / 3, 1 / 3, 7]), CategoryBins(("é",))]
)
def test_sketches_are_read_back_as_they_were_written(bins: Bins) -> None:
    sketch = Sketch.of(bins, [0.1, 1 / 3, None])
    assert msgspec.json.decode(msgspec.json.encode(sketch), type=Sketch) == sketch
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sketch), type=Sketch) == sketch


def test_sketches_of_other_bins_are_refused() -> None:
    one, other = Sketch(PROBABILITY_BINS), Sketch(DEGREE_BINS)
    with pytest.raises(ValueError, match="different bins"):
        one.add(other)
    with pytest.raises(ValueError, match="different bins"):
        compare(one, other)
    with pytest.raises(ValueError, match="need as many counts"):
        Sketch(DEGREE_BINS, [1, 2])
