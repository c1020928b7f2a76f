"""Retries are few, short and paid for."""

import random

import pytest

from hopline.features.retry import RetryBudget, RetryPolicy


def budget(calls=1000, now=0.0, **policy):
    made = RetryBudget(RetryPolicy(**policy), rng=lambda: 0.5)
    for _ in range(calls):
        made.called(now)
    return made


def test_one_retry_for_each_call():
    one = budget(max_retries=1)
    assert one.take(0, 0.0, deadline=1.0) is not None
    assert one.take(1, 0.0, deadline=1.0) is None


def test_retries_are_a_share_of_the_calls():
    one = budget(calls=200, share=0.1)
    assert sum(one.take(0, 0.0, deadline=1.0) is not None for _ in range(200)) == 20


@pytest.mark.parametrize("calls", [0, 1, 9])
def test_few_calls_earn_no_retry(calls):
    assert budget(calls=calls, share=0.1).take(0, 0.0, deadline=1.0) is None


def test_calls_of_long_ago_earn_nothing():
    one = budget(calls=1000, window_s=10.0)
    assert one.take(0, 10.5, deadline=11.0) is None


def test_a_retry_that_would_come_too_late_is_not_made_and_costs_nothing():
    one = budget(calls=10, share=0.1, backoff_s=0.002, min_left_s=0.002)  # waits 1 ms, wants 2 more
    assert one.take(0, 0.018, deadline=0.02) is None
    assert one.take(0, 0.016, deadline=0.02) == pytest.approx(0.001)


def test_the_wait_is_anything_from_nothing_to_the_bound_and_doubles():
    rng = random.Random(5)
    one = RetryBudget(RetryPolicy(backoff_s=0.002, share=1.0, max_retries=2), rng.random)
    for _ in range(1000):
        one.called(0.0)
    first = [one.take(0, 0.0, 1.0) for _ in range(300)]
    second = [one.take(1, 0.0, 1.0) for _ in range(300)]
    assert 0 <= min(first) < 0.0002
    assert 0.0018 < max(first) <= 0.002
    assert 0.0036 < max(second) <= 0.004


def test_an_outage_under_load_adds_a_tenth():
    one = RetryBudget(RetryPolicy(), random.Random(1).random)
    retries = 0
    for step in range(20_000):  # 40 s at 500 calls/s, every one of which fails
        now = step / 500
        one.called(now)
        retries += one.take(0, now, now + 0.02) is not None
        assert retries <= 0.1 * (step + 1)
