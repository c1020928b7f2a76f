from itertools import islice

from hopline.retry import Backoff, delays


def test_delays_double_up_to_the_longest():
    assert list(islice(delays(0.1, 1.0), 6)) == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert list(islice(delays(5.0, 1.0), 2)) == [1.0, 1.0]


def test_a_spread_makes_waits_shorter_by_a_random_part():
    draws = iter([0.0, 0.5, 0.999, 0.0])
    found = list(islice(delays(0.1, 1.0, spread=0.5, rng=lambda: next(draws)), 4))
    assert [round(wait_s, 3) for wait_s in found] == [0.05, 0.15, 0.4, 0.4]


def test_a_success_or_a_long_attempt_begins_with_the_first_wait_again():
    backoff = Backoff(0.1, 1.0, spread=0.0, steady_s=30.0)
    assert [backoff.next(worked_s=30.0) for _ in range(5)] == [0.1, 0.2, 0.4, 0.8, 1.0]  # not long enough
    assert backoff.wait_s == 1.0
    assert backoff.next(worked_s=30.1) == 0.1
    assert backoff.next() == 0.2
    backoff.reset()
    assert backoff.next() == 0.1
