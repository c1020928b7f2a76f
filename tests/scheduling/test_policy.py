"""Who is let in, who goes first, who gives way: decisions without a clock of their own."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopline.scheduling.policy import (
    HANDICAP_S,
    HIGH,
    LOW,
    NORMAL,
    BatchPolicy,
    CostModel,
    first_lane,
    lane_to_displace,
)

POLICY = BatchPolicy(
    max_rows=1000, max_bytes=10**9, queue_delay_s=0.0, max_queue_us=100, inline_cost_us=5000
)
ARRIVALS = st.lists(st.tuples(st.floats(0, 3), st.sampled_from([HIGH, NORMAL, LOW])), max_size=40)


def served_order(arrivals):
    """Arrivals (time, lane) in the order in which lanes that are queues serve them, all waiting at once."""
    lanes = [sorted(came for came, lane in arrivals if lane == each) for each in (HIGH, NORMAL, LOW)]
    order = []
    while any(lanes):
        lane = first_lane([each[0] if each else None for each in lanes])
        order.append((lanes[lane].pop(0), lane))
    return order


@given(ARRIVALS)
def test_order_is_by_arrival_with_a_handicap(arrivals):
    ranks = [came + HANDICAP_S[lane] for came, lane in served_order(arrivals)]
    assert ranks == sorted(ranks)
    assert len(ranks) == len(arrivals)


@given(ARRIVALS)
def test_nobody_who_comes_after_the_handicap_goes_before(arrivals):
    order = served_order(arrivals)
    for at, (came, lane) in enumerate(order):
        assert all(came + HANDICAP_S[lane] >= earlier for earlier, _ in order[:at])


@given(ARRIVALS)
def test_high_goes_before_what_came_at_the_same_time(arrivals):
    order = served_order([(1.0, lane) for _, lane in arrivals])
    assert [lane for _, lane in order] == sorted(lane for _, lane in order)


@given(st.integers(0, 200), st.integers(1, 200))
def test_an_empty_queue_takes_any_request_and_low_has_half_of_one(queued, held):
    def admits(queued_us, lane):
        return not POLICY.too_full(queued_us, held, lane=lane)

    assert admits(0, LOW)
    assert admits(queued, NORMAL) == (queued == 0 or queued + held <= 100)
    assert admits(queued, HIGH) == admits(queued, NORMAL)
    assert admits(queued, LOW) == (queued == 0 or queued + held <= 50)


def test_rows_bound_a_queue_only_where_that_is_requested():
    assert not POLICY.too_full(1, 1, 10**9, 10**9)
    bounded = dataclasses.replace(POLICY, max_queue_rows=10)
    assert not bounded.too_full(1, 1, 5, 5)
    assert "5 predicted rows; 6 more would pass the limit of 10 (max_queue_rows)" in bounded.too_full(
        1, 1, 5, 6
    )
    assert "limit of 5 for low priority" in bounded.too_full(1, 1, 5, 1, LOW)


@given(
    st.lists(st.one_of(st.none(), st.floats(0, 5)), min_size=3, max_size=3),
    st.sampled_from([HIGH, NORMAL, LOW]),
)
def test_only_who_would_be_overtaken_gives_way(tails, lane):
    now = 5.0
    victim = lane_to_displace(tails, lane, now)
    can = [
        other
        for other in (NORMAL, LOW)
        if other > lane
        and tails[other] is not None
        and tails[other] + HANDICAP_S[other] > now + HANDICAP_S[lane]
    ]
    assert victim == (max(can) if can else None)


def test_low_is_displaced_before_normal_and_nobody_by_low():
    assert lane_to_displace([None, 1.0, 1.0], HIGH, 1.0) == LOW
    assert lane_to_displace([None, 1.0, None], HIGH, 1.0) == NORMAL
    assert lane_to_displace([None, 1.0, None], NORMAL, 1.0) is None
    assert lane_to_displace([1.0, 1.0, 1.0], LOW, 1.0) is None


@given(st.floats(0, 1000), st.floats(0.001, 1000), st.floats(0, 10_000))
def test_rows_within_a_limit_are_predicted_to_take_no_longer(fixed_us, us_per_row, limit_us):
    cost = CostModel(fixed_us, us_per_row)
    rows = cost.rows_within(limit_us)
    if rows:
        assert cost.predict_us(rows) <= limit_us * (1 + 1e-9)
        assert cost.predict_us(rows + 1) > limit_us * (1 - 1e-9)


def test_a_slice_that_not_even_one_request_fits_leaves_the_loop():
    cost = CostModel(fixed_us=30, us_per_row=1)
    assert POLICY.slice_rows(cost, first_rows=10) == 470
    assert POLICY.slice_rows(cost, first_rows=470) == 470
    assert POLICY.slice_rows(cost, first_rows=471) is None


@pytest.mark.parametrize("us_per_row", [0.01, 50.0, 2000.0])
def test_long_batches_that_were_mispredicted_are_learnt_from_at_once(us_per_row):
    cost = CostModel()
    for _ in range(100):  # of what went before
        cost.observe(1000, cost.fixed_us + 1000 * 2.0)
    for _ in range(15):
        cost.observe(1000, cost.fixed_us + 1000 * us_per_row)
    assert 0.4 < cost.predict_us(1000) / (cost.fixed_us + 1000 * us_per_row) < 20


def test_a_short_batch_says_little_of_long_ones():
    cost = CostModel(fixed_us=30, us_per_row=0.5)
    cost.observe(1, 200.0)  # mostly what every batch costs
    assert cost.us_per_row < 10


def test_cost_model_learns_the_cost_of_a_row_and_of_a_batch():
    cost = CostModel(fixed_us=300, us_per_row=100)
    for _ in range(300):
        for rows in (1, 50):
            cost.observe(rows, 10 + rows * 2.0)
    assert cost.predict_us(10) == pytest.approx(30, rel=0.01)
    assert cost.fixed_us == pytest.approx(10, rel=0.05)


@given(st.floats(1, 500), st.floats(0.02, 50), st.lists(st.integers(1, 10_000), min_size=1, max_size=8))
def test_predictions_come_near_any_sequence_of_requests_and_stay_there(fixed_us, us_per_row, sizes):
    cost = CostModel()
    for _ in range(400):
        for rows in sizes:
            cost.observe(rows, fixed_us + us_per_row * rows)
    for rows in sizes:
        assert 0.5 < cost.predict_us(rows) / (fixed_us + us_per_row * rows) < 2.0


def test_one_batch_that_was_stalled_hardly_changes_what_is_predicted():
    cost = CostModel()
    for _ in range(200):
        cost.observe(10, 60.0)
        cost.observe(1000, 250.0)
    small, large = cost.predict_us(10), cost.predict_us(1000)
    cost.observe(10, 100_000.0)
    assert cost.predict_us(10) < 2 * small
    assert cost.predict_us(1000) < 1.5 * large


def test_first_measurements_distinguish_a_batch_from_its_rows():
    cost = CostModel()
    cost.begin((20, 620), (130.0, 250.0))
    assert cost.us_per_row == pytest.approx(0.2)
    assert cost.fixed_us == pytest.approx(126)
    cost.begin((20, 20), (130.0, 250.0))  # say nothing
    assert cost.us_per_row == pytest.approx(0.2)
    cost.begin((20, 40), (130.0, 90.0))  # the larger one was the quicker
    assert cost.us_per_row == pytest.approx(0.1)


def test_a_million_rows_never_look_cheap_whatever_small_batches_took():
    cost = CostModel()
    for at in range(5000):
        cost.observe(20, 40.0 + at % 7)
        cost.observe(40, 39.0)
    assert cost.predict_us(10**6) >= 20_000
