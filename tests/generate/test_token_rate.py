from __future__ import annotations

import pytest

from hopline.errors import RateLimited
from hopline.generate.token_rate import TokenRate


def test_a_client_that_has_used_its_tokens_waits_until_the_debt_is_paid() -> None:
    rate = TokenRate(600)  # ten a second
    rate.check("a", 0.0)
    rate.charge("a", 700, 0.0)
    with pytest.raises(RateLimited, match="600 tokens a minute") as caught:
        rate.check("a", 0.0)
    assert caught.value.retry_after_s == pytest.approx(10.0)
    with pytest.raises(RateLimited):
        rate.check("a", 9.9)
    rate.check("a", 10.1)


def test_clients_do_not_share_a_budget() -> None:
    rate = TokenRate(600)
    rate.charge("a", 1000, 0.0)
    rate.check("b", 0.0)


def test_a_budget_is_one_minute_at_most() -> None:
    rate = TokenRate(600)
    rate.charge("a", 1, 0.0)
    rate.charge("a", 601, 10_000.0)
    with pytest.raises(RateLimited):
        rate.check("a", 10_000.0)


def test_workers_have_equal_shares() -> None:
    rate = TokenRate(600, num_workers=2)
    rate.charge("a", 301, 0.0)
    with pytest.raises(RateLimited):
        rate.check("a", 0.0)


def test_without_a_limit_nothing_is_refused() -> None:
    rate = TokenRate(0)
    rate.charge("a", 10**9, 0.0)
    rate.check("a", 0.0)
