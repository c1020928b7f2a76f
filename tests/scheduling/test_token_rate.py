from __future__ import annotations

import pytest

from hopline.errors import RateLimited
from hopline.scheduling.limiter import LocalLimits
from hopline.scheduling.shared_limiter import Limits
from hopline.scheduling.token_rate import TokenRates

S = 10**9


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> int:
        return int(self.now_s * S)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_client_that_has_used_its_tokens_waits_until_the_debt_is_paid(clock: Clock) -> None:
    rates = TokenRates(600, clock=clock)  # ten a second
    rates.check("a")
    rates.charge("a", 700)
    with pytest.raises(RateLimited, match="client 'a' may use 600 tokens per minute") as caught:
        rates.check("a")
    # a debt of a hundred, and one token more
    assert caught.value.retry_after_s == pytest.approx(10.1)
    clock.now_s = 10.0
    with pytest.raises(RateLimited):
        rates.check("a")
    clock.now_s = 10.11
    rates.check("a")


def test_what_a_text_uses_while_it_runs_is_charged_beyond_the_rate(clock: Clock) -> None:
    rates = TokenRates(60, clock=clock)
    for _ in range(200):
        rates.charge("a", 1)
    with pytest.raises(RateLimited) as caught:
        rates.check("a")
    assert caught.value.retry_after_s == pytest.approx(141)


def test_clients_do_not_share_a_budget_and_those_without_a_name_do(clock: Clock) -> None:
    rates = TokenRates(600, clock=clock)
    rates.charge("a", 1000)
    rates.check("b")
    rates.charge("", 1000)
    with pytest.raises(RateLimited, match="all clients without a key together"):
        rates.check("")


def test_a_budget_is_one_minute_at_most(clock: Clock) -> None:
    rates = TokenRates(600, clock=clock)
    rates.charge("a", 1)
    clock.now_s = 10_000.0
    rates.charge("a", 601)
    with pytest.raises(RateLimited):
        rates.check("a")


def test_a_rate_of_its_own_comes_before_the_default_and_may_be_taken_away(clock: Clock) -> None:
    rates = TokenRates(600, clock=clock)
    rates.set("a", 6000)
    rates.charge("a", 5000)
    rates.check("a")
    rates.charge("a", 2000)
    rates.set("a", None)
    with pytest.raises(RateLimited, match="600 tokens") as caught:
        rates.check("a")
    assert caught.value.retry_after_s == pytest.approx(10.1)  # a debt of ten seconds stays one


def test_workers_share_one_budget(clock: Clock) -> None:
    limits = LocalLimits()

    def shared() -> Limits:
        return limits

    first, second = (TokenRates(600, shared, clock) for _ in range(2))
    first.charge("a", 300)
    second.charge("a", 301)
    for each in (first, second):
        with pytest.raises(RateLimited):
            each.check("a")


def test_without_a_limit_nothing_is_refused_and_no_buckets_are_opened(clock: Clock) -> None:
    def never() -> Limits:
        raise AssertionError

    rates = TokenRates(0, never, clock)
    rates.charge("a", 10**9)
    rates.check("a")
