"""When a store is asked, and when it is left alone."""

import random

import pytest

from hopline.features.breaker import BreakerPolicy, CircuitBreaker
from hopline.features.window import SlidingWindow


def breaker(**policy):
    return CircuitBreaker(BreakerPolicy(**{"jitter": 0.0, **policy}), rng=lambda: 0.5)


def opened(now=0.0, **policy):
    made = breaker(**policy)
    for _ in range(5):
        assert made.allow(now)
        made.record(False, now, began=now)
    assert made.state == "open"
    return made


def test_a_store_that_answers_is_always_called():
    one = breaker()
    for step in range(1000):
        assert one.allow(step / 100)
        one.record(True, step / 100)
    assert one.state == "closed"


def test_fewer_failures_than_the_least_number_of_calls_do_not_open_it():
    one = breaker(min_calls=5)
    for _ in range(4):
        one.record(False, 0.0)
    assert one.state == "closed"
    one.record(False, 0.0)
    assert one.state == "open"


@pytest.mark.parametrize(("successes", "failures", "state"), [(6, 5, "closed"), (5, 5, "open")])
def test_the_share_of_failures_decides(successes, failures, state):
    one = breaker(failure_share=0.5)
    for _ in range(successes):
        one.record(True, 0.0)
    for _ in range(failures):
        one.record(False, 0.0)
    assert one.state == state


def test_failures_older_than_the_window_do_not_count():
    one = breaker(window_s=1.0, max_in_a_row=1000)
    for step in range(50):
        one.record(False, step * 0.4)  # never five within a second
    assert one.state == "closed"


def test_a_full_window_does_not_hide_an_outage():
    one = breaker(max_in_a_row=10)
    for _ in range(1000):
        one.record(True, 0.0)
    for _ in range(9):
        one.record(False, 0.0)
    one.record(True, 0.0)
    for _ in range(9):
        one.record(False, 0.0)
        assert one.state == "closed"
    one.record(False, 0.0)
    assert one.state == "open"


def test_an_outage_under_little_traffic_is_noticed_too():
    one = breaker(max_in_a_row=10)
    for second in range(10):
        assert one.state == "closed"
        one.record(False, 5.0 * second)
    assert one.state == "open"


def test_one_probe_goes_out_after_the_pause_and_its_success_closes():
    one = opened(pause_s=0.25)
    assert not one.allow(0.24)
    assert one.allow(0.25)
    assert one.state == "half_open"
    assert not one.allow(0.26)
    one.record(True, 0.27, began=0.25)
    assert one.state == "closed"
    assert one.allow(0.27)


def test_after_it_closed_the_failures_of_the_outage_are_forgotten():
    one = opened(pause_s=0.25)
    assert one.allow(0.25)
    one.record(True, 0.25, began=0.25)
    one.record(False, 0.26, began=0.26)
    assert one.state == "closed"


def test_a_failed_probe_starts_the_pause_again_and_it_does_not_grow():
    one = opened(pause_s=0.25)
    now = 0.0
    for _ in range(20):
        now += 0.25
        assert not one.allow(now - 0.01)
        assert one.allow(now)
        one.record(False, now, began=now)
        assert one.state == "open"


def test_a_probe_that_never_reports_is_given_up():
    one = opened(pause_s=0.25, probe_s=0.1)
    assert one.allow(0.25)
    assert not one.allow(0.34)
    assert one.allow(0.36)
    one.record(True, 0.37, began=0.25)  # the first probe, at last: no longer the one that counts
    assert one.state == "half_open"
    one.record(True, 0.38, began=0.36)
    assert one.state == "closed"


def test_a_cancelled_probe_leaves_its_place_to_the_next_call():
    one = opened(pause_s=0.25)
    assert one.allow(0.25)
    one.abandon(0.26, began=0.25)
    assert one.allow(0.26)
    assert not one.allow(0.27)


def test_a_cancelled_straggler_does_not_let_a_second_probe_out():
    one = opened(pause_s=0.25)
    assert one.allow(0.25)
    one.abandon(0.26, began=0.0)
    assert not one.allow(0.26)


@pytest.mark.parametrize("ok", [True, False])
def test_stragglers_of_the_time_before_decide_nothing(ok):
    one = opened(pause_s=0.25)
    one.record(ok, 0.1, began=0.0)
    assert one.state == "open"
    assert one.allow(0.25)
    one.record(ok, 0.26, began=0.0)
    assert one.state == "half_open"
    one.record(True, 0.27, began=0.25)
    for _ in range(9):
        one.record(False, 0.28, began=0.0)
    assert one.state == "closed"


def test_jitter_keeps_the_pause_near_what_was_set():
    rng = random.Random(7)
    firsts = set()
    for _ in range(200):
        one = CircuitBreaker(BreakerPolicy(pause_s=0.25, jitter=0.2), rng.random)
        for _ in range(5):
            one.record(False, 0.0)
        firsts.add(next(ms for ms in range(1000) if one.allow(ms / 1000)))
    assert min(firsts) >= 200
    assert max(firsts) <= 301
    assert len(firsts) > 30


def test_a_window_equals_a_list_of_events():
    rng = random.Random(3)
    window, events, now = SlidingWindow(1.0, num_slices=10), [], 0.0
    for _ in range(3000):
        now += rng.choice([0.0, 0.01, 0.05, 0.3, 2.5])
        kind = rng.randrange(2)
        window.add(kind, now)
        events.append((int(now / 0.1), kind))
        alive = [each for slice_number, each in events if slice_number > int(now / 0.1) - 10]
        assert window.totals == [alive.count(0), alive.count(1)]
