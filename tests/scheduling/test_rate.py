"""A model's requests in any window stay below its rate, and as many as that get through."""

from hypothesis import given
from hypothesis import strategies as st

from hopline.scheduling.rate import TokenBucket


def test_a_burst_passes_at_once_and_then_the_rate_holds():
    bucket = TokenBucket(rate=10, burst=3, now=100.0)
    assert [bucket.take(100.0) for _ in range(3)] == [0, 0, 0]
    assert bucket.take(100.0) == 0.1
    assert bucket.take(100.05) < 0.051
    assert bucket.take(100.11) == 0


def test_waiting_as_told_is_enough():
    bucket = TokenBucket(rate=3, burst=1, now=0.0)
    now = 0.0
    for _ in range(20):
        assert bucket.take(now) == 0
        wait_s = bucket.take(now)
        assert wait_s > 0
        now += wait_s + 1e-9


@given(
    st.floats(0.1, 1000),
    st.floats(1, 100),
    st.lists(st.floats(0, 0.5), min_size=1, max_size=200),
)
def test_no_window_lets_more_through_than_burst_and_rate(rate, burst, gaps):
    bucket, now, passed = TokenBucket(rate, burst, 0.0), 0.0, []
    for gap in gaps:
        now += gap
        if bucket.take(now) == 0:
            passed.append(now)
    for at, first in enumerate(passed):
        for count, last in enumerate(passed[at:], 1):
            assert count <= burst + rate * (last - first) + 1e-6


def test_a_clock_that_stands_or_goes_back_gives_nothing_away():
    bucket = TokenBucket(rate=1000, burst=1, now=10.0)
    assert bucket.take(10.0) == 0
    assert bucket.take(9.0) > 0
    assert bucket.take(9.5) > 0


@given(st.lists(st.tuples(st.floats(0, 0.5), st.booleans()), max_size=100))
def test_looking_says_what_taking_would_and_takes_nothing(steps):
    looked, plain, now = TokenBucket(4, 2, 0.0), TokenBucket(4, 2, 0.0), 0.0
    for gap, takes in steps:
        now += gap
        wait_s = looked.wait_s(now)
        assert looked.wait_s(now) == wait_s
        if takes:
            assert looked.take(now) == wait_s
            assert (plain.take(now) == 0) == (wait_s == 0)
