"""An answer in time, each row asked for once, and a reason for every row that is not there."""

import asyncio
import logging
import time
from collections import Counter

import numpy as np
import pytest

from hopline.errors import (
    FeatureGroupNotFound,
    FeatureSchemaMismatch,
    FeatureStoreError,
    FeatureStoreUnavailable,
)
from hopline.features.answer import Reason
from hopline.features.base import FeatureGroup, FeatureStore, FetchedRows
from hopline.features.breaker import BreakerPolicy
from hopline.features.client import CallPolicy, ClientLimits, FeatureClient
from hopline.features.memory import MemoryStore
from hopline.features.retry import RetryPolicy
from hopline.features.skew import differences
from hopline.features.stamped import stamped_group
from hopline.features.tier import Tier
from hopline_stores.testing.faulty_store import FaultyStore
from tests.features.virtual_time import now, virtual_time

TIMEOUT = 0.02
DIM = 4
GROUP = FeatureGroup("account", DIM, feature_names=("a", "b", "c", "d"))


class Numbers(FeatureStore):
    """Row of id i is (i, i, i, i); every id below a million has one."""

    kind = "numbers"

    async def describe(self, group):
        return GROUP

    async def fetch(self, group, ids):
        wanted = np.array([int(id) for id in ids], np.int64)
        found = wanted < 1_000_000
        return FetchedRows(np.where(found[:, None], rows_of(wanted, group.dim), np.float32(0)), found)


class Counts:
    """A ClientMetrics that keeps what it is told."""

    def __init__(self):
        self.calls, self.results, self.retries, self.open = Counter(), Counter(), Counter(), Counter()

    def called(self, store, tier, outcome, seconds):
        self.calls[tier, outcome] += 1

    def rows(self, tier, result, count):
        assert count > 0
        self.results[tier, result] += count

    def retried(self, tier):
        self.retries[tier] += 1

    def breaker(self, tier, change):
        self.open[tier] += change


class Rig:
    """A client in front of a faulty store, in virtual time."""

    def __init__(self, l2=None, group=GROUP, **settings):
        self.store = FaultyStore(Numbers())
        self.l2 = l2
        self.metrics = Counts()
        self.kept = {}
        self.stamps = {}
        self.client = FeatureClient(
            group,
            self.store,
            l2,
            **{
                "timeout_s": TIMEOUT,
                "metrics": self.metrics,
                "clock": now,
                **settings,
            },
        )
        self.client.on_rows, self.client.wall_clock = self.keep, now

    def keep(self, ids, values, stamps):
        stamps = np.broadcast_to(stamps, ids.shape)
        for id, row, stamp in zip(ids.tolist(), values, stamps.tolist(), strict=True):
            self.kept[id] = row.copy()
            self.stamps[id] = stamp

    async def fetch(self, *ids, **kwargs):
        began = now()
        rows = await self.client.fetch(np.array(ids, np.int64), np.array(ids, np.int64), **kwargs)
        assert now() - began <= kwargs.get("timeout_s", TIMEOUT) + 1e-6
        check(rows, ids)
        return rows

    def ask(self, *ids, **kwargs):
        return asyncio.ensure_future(self.fetch(*ids, **kwargs))

    async def traffic(self, seconds, every_s=0.002, num_ids=10, first=0):
        """Steady requests for rows that nobody asked for before; answers as (second, rows)."""
        answers, tasks, began = [], [], now()

        async def one(ids):
            rows = await self.fetch(*ids)
            answers.append((now() - began, rows))

        for step in range(round(seconds / every_s)):
            base = first + step * num_ids
            tasks.append(asyncio.ensure_future(one(range(base, base + num_ids))))
            await asyncio.sleep(every_s)
        await asyncio.gather(*tasks)
        return answers

    async def settle(self):
        await self.client.join()
        assert len(self.client._in_flight) == self.client._num_remembered
        await self.client.close()


def rows_of(ids, dim=DIM):
    return np.repeat(np.asarray(ids, np.float32)[:, None], dim, axis=1)


def check(rows, ids):
    """Rows that are there are the right ones, others are zeros with a reason."""
    expected = np.where(rows.found[:, None], rows_of(ids), np.float32(0))
    np.testing.assert_array_equal(rows.values, expected)
    assert rows.values.dtype == np.float32
    assert rows.values.flags.c_contiguous
    assert rows.complete == rows.found.all()
    assert sum(rows.why.values()) == np.count_nonzero(~rows.found)


async def turns(count=3):
    for _ in range(count):
        await asyncio.sleep(0)


def memory_l2():
    return FaultyStore(MemoryStore())


# One call for what many ask


@virtual_time
async def test_rows_come_in_request_order_duplicates_and_all():
    rig = Rig()
    rows = await rig.fetch(5, 3, 5, 9, 3)
    assert rows.complete
    assert rows.why == {}
    assert rig.store.asked == {5: 1, 3: 1, 9: 1}
    await rig.settle()


@virtual_time
async def test_callers_of_one_loop_turn_share_one_call():
    rig = Rig()
    await asyncio.gather(rig.fetch(1, 2, 3), rig.fetch(3, 4), rig.fetch(4, 4, 1), rig.fetch(9))
    assert rig.store.num_fetches == 1
    assert rig.store.asked == {1: 1, 2: 1, 3: 1, 4: 1, 9: 1}
    await rig.settle()


@virtual_time
async def test_a_row_under_way_is_not_requested_again():
    rig = Rig()
    rig.store.latency_s = 0.01
    first = rig.ask(1, 2, 3)
    await asyncio.sleep(0.005)
    others = [rig.ask(2, 3, 4), rig.ask(3), rig.ask(4, 1)]
    answers = await asyncio.gather(first, *others)
    assert all(rows.complete for rows in answers)
    assert rig.store.asked == {1: 1, 2: 1, 3: 1, 4: 1}
    assert rig.store.num_fetches == 2
    await rig.settle()


@virtual_time
async def test_each_row_crosses_once_for_any_number_of_requests():
    rig = Rig(timeout_s=1.0)
    rig.store.latency_s = 0.05
    rng = np.random.default_rng(1)
    asks = []
    for _ in range(60):
        asks.append(rig.ask(*rng.integers(0, 300, 40).tolist(), timeout_s=1.0))
        if rng.random() < 0.5:
            await asyncio.sleep(0.0005)
    assert all(rows.complete for rows in await asyncio.gather(*asks))
    assert set(rig.store.asked.values()) == {1}
    await rig.settle()


@virtual_time
async def test_a_turn_with_too_many_rows_goes_out_in_several_calls():
    rig = Rig(limits=ClientLimits(max_call_rows=5))
    asks = [rig.fetch(1, 2, 3), rig.fetch(4, 5), rig.fetch(5, 6), rig.fetch(*range(100, 120))]
    answers = await asyncio.gather(*asks)
    assert all(rows.complete for rows in answers)
    assert rig.store.num_fetches == 3
    assert set(rig.store.asked.values()) == {1}
    await rig.settle()


@virtual_time
async def test_string_ids_lists_and_arrays_may_meet_in_one_call():
    rig = Rig()
    asks = [
        rig.client.fetch(np.array([1, 2]), ["1", "2"]),
        rig.client.fetch(np.array([2, 3]), ["2", "3"]),
        rig.client.fetch(np.array([4]), np.array([4])),
    ]
    for rows, ids in zip(await asyncio.gather(*asks), ([1, 2], [2, 3], [4]), strict=True):
        check(rows, ids)
        assert rows.complete
    assert rig.store.num_fetches == 1
    assert rig.store.asked == {"1": 1, "2": 1, "3": 1, 4: 1}
    await rig.settle()


@virtual_time
async def test_a_callers_buffer_may_be_used_again_at_once():
    rig = Rig()
    ids = np.array([1, 2, 3])
    ask = asyncio.ensure_future(rig.client.fetch(ids, ids))
    await asyncio.sleep(0)
    ids[:] = 99
    check(await ask, [1, 2, 3])
    await rig.settle()


@virtual_time
async def test_no_ids_need_no_call():
    rig = Rig()
    rows = await rig.fetch()
    assert rows.complete
    assert rows.values.shape == (0, DIM)
    assert rig.store.num_fetches == 0
    await rig.settle()


@pytest.mark.parametrize(("ids", "external"), [([1, 2], [1]), ([-1], [7])])
@virtual_time
async def test_a_call_that_cannot_be_meant_is_refused(ids, external):
    rig = Rig()
    with pytest.raises(ValueError, match=r"external ids|negative"):
        await rig.client.fetch(np.array(ids, np.int64), external)
    await rig.settle()


# Rows that are not there


@virtual_time
async def test_missing_rows_are_reported_and_not_requested_again_for_a_while():
    rig = Rig(limits=ClientLimits(negative_ttl_s=0.5))
    absent = 2_000_000
    for _ in range(5):
        rows = await rig.fetch(1, absent, 2)
        assert rows.why == {"missing": 1}
        assert rows.found.tolist() == [True, False, True]
        assert rows.answered.all()
        await asyncio.sleep(0.09)
    assert rig.store.asked[absent] == 1
    assert rig.store.asked[1] == 5  # L1 keeps what is there
    assert rig.metrics.results["memory", "missing"] == 4
    await asyncio.sleep(0.1)
    assert (await rig.fetch(absent)).why == {"missing": 1}
    assert rig.store.asked[absent] == 2
    await rig.settle()


@virtual_time
async def test_a_fetch_of_known_absences_alone_needs_no_call():
    rig = Rig()
    await rig.fetch(2_000_000, 2_000_001)
    rows = await rig.fetch(2_000_001, 2_000_000, 2_000_001)
    assert rows.why == {"missing": 3}
    assert rig.store.num_fetches == 1
    await rig.settle()


@virtual_time
async def test_absences_that_are_remembered_are_bounded():
    rig = Rig(limits=ClientLimits(max_negative_rows=50))
    for first in range(2_000_000, 2_001_000, 20):
        await rig.fetch(*range(first, first + 20))
        assert len(rig.client._in_flight) <= 50
    assert (await rig.fetch(2_000_999)).why == {"missing": 1}
    assert rig.store.asked[2_000_999] == 1
    await rig.settle()


@virtual_time
async def test_half_the_keys_missing_is_no_failure():
    rig = Rig()
    rig.store.missing_share = 0.5
    answers = await rig.traffic(1.0)
    assert {reason for _, rows in answers for reason in rows.why} == {"missing"}
    assert 0.4 < np.mean([rows.found.mean() for _, rows in answers]) < 0.6
    assert rig.client.tiers[0].breaker.state == "closed"
    rig.store.heal()
    await asyncio.sleep(0.5)
    rows = await rig.fetch(*range(500))
    assert rows.complete
    await rig.settle()


@pytest.mark.parametrize("tells", [True, False])
@virtual_time
async def test_rows_of_a_wrong_length_are_invalid_and_their_neighbours_stay_right(tells, caplog):
    rig = Rig()
    rig.store.garbage = "rows"
    if not tells:
        spoilt = rig.store._spoilt

        def silent(rows, ids):
            answer = spoilt(rows, ids)
            answer.invalid = None
            return answer

        rig.store._spoilt = silent
    with caplog.at_level(logging.WARNING):
        rows = await rig.fetch(10, 11, 12, 13)
    assert rows.why == {"invalid": 2}
    assert rows.found.tolist() == [False, True, False, True]
    assert "the row of 10 has the wrong length" in caplog.text
    assert rig.metrics.results["origin", "invalid"] == 2
    assert rig.client.tiers[0].breaker.state == "closed"
    await rig.settle()


@pytest.mark.parametrize("garbage", ["short", "wide"])
@virtual_time
async def test_arrays_of_the_wrong_form_are_never_shifted_into_place(garbage):
    rig = Rig()
    rig.store.garbage = garbage
    rows = await rig.fetch(10, 11, 12)
    assert rows.why == {"invalid": 3}
    assert rig.kept == {}
    await rig.settle()


# A store that is down


@virtual_time
async def test_an_outage_is_answered_in_time_and_retried_little():
    rig = Rig()
    normal = await rig.traffic(2.0)
    assert all(rows.complete for _, rows in normal)
    requests = rig.store.num_fetches
    rig.store.reset_counts()
    rig.store.kill()
    down = await rig.traffic(2.0, first=100_000)
    assert {reason for _, rows in down for reason in rows.why} == {"unavailable", "breaker_open"}
    assert rig.store.num_fetches <= 0.05 * requests
    assert rig.metrics.open["origin"] == 1
    rig.store.heal()
    back = await rig.traffic(2.0, first=200_000)
    recovered = next(second for second, rows in back if rows.complete)
    assert recovered <= 0.35
    assert all(rows.complete for second, rows in back if second > recovered)
    assert rig.metrics.open["origin"] == 0
    await rig.settle()


@virtual_time
async def test_a_hanging_store_costs_the_timeout_until_the_breaker_opens_and_then_nothing():
    rig = Rig()
    await rig.traffic(1.0)
    rig.store.reset_counts()
    rig.store.hanging = True
    waited = []

    async def one(first):
        began = now()
        rows = await rig.fetch(*range(first, first + 10))
        waited.append(now() - began)
        return rows

    asks = []
    for step in range(1000):
        asks.append(asyncio.ensure_future(one(100_000 + 10 * step)))
        await asyncio.sleep(0.002)
    answers = await asyncio.gather(*asks)
    assert {reason for rows in answers for reason in rows.why} == {"timeout", "breaker_open"}
    assert max(waited) <= TIMEOUT + 1e-6
    assert np.median(waited) < 0.001
    assert rig.store.num_fetches <= 1.1 * 1000
    assert rig.store.num_fetches < 100
    rig.store.heal()
    back = await rig.traffic(1.0, first=200_000)
    assert next(second for second, rows in back if rows.complete) <= 0.35
    await rig.settle()


@virtual_time
async def test_a_store_that_ignores_being_cancelled_holds_nothing_up():
    rig = Rig()
    rig.store.hanging = rig.store.deaf = True
    assert (await rig.fetch(1, 2)).why == {"timeout": 2}
    await asyncio.sleep(5 * TIMEOUT)
    assert len(rig.client._in_flight) == 0
    rig.store.hanging = False
    assert (await rig.fetch(1, 2)).complete
    rig.store.heal()
    await turns()
    assert rig.client._ending == set()
    await rig.settle()


@virtual_time
async def test_rows_that_come_late_are_kept_for_others():
    rig = Rig()
    rig.store.latency_s = 0.05
    assert (await rig.fetch(1, 2)).why == {"timeout": 2}
    assert rig.kept == {}
    await asyncio.sleep(0.04)
    assert sorted(rig.kept) == [1, 2]
    assert rig.metrics.calls == {("origin", "timeout"): 1}
    await rig.settle()


@virtual_time
async def test_rows_that_do_not_come_at_all_are_given_up():
    rig = Rig(limits=ClientLimits(linger=5.0))
    rig.store.latency_s = 0.11
    began = now()
    assert (await rig.fetch(1)).why == {"timeout": 1}
    await rig.client.join()
    assert now() - began == pytest.approx(5 * TIMEOUT)
    await asyncio.sleep(0.1)
    assert rig.kept == {}
    assert rig.metrics.results == {("origin", "timeout"): 1}
    await rig.settle()


@virtual_time
async def test_a_late_row_is_awaited_by_each_caller_for_its_own_time():
    rig = Rig()
    rig.store.latency_s = 0.03
    first = rig.ask(7)
    await asyncio.sleep(0.015)
    second = rig.ask(7)
    assert (await first).why == {"timeout": 1}
    assert (await second).complete
    assert rig.store.num_fetches == 1
    await rig.settle()


@virtual_time
async def test_a_caller_may_set_a_shorter_time():
    rig = Rig()
    rig.store.latency_s = 0.01
    short, usual = rig.ask(1, timeout_s=0.002), rig.ask(1)
    assert (await short).why == {"timeout": 1}
    assert (await usual).complete
    await rig.settle()


@virtual_time
async def test_a_slow_store_is_left_alone_like_a_dead_one():
    rig = Rig()
    await rig.traffic(1.0)
    rig.store.reset_counts()
    rig.store.latency_s = 0.05
    await rig.traffic(2.0, first=100_000)
    assert rig.client.tiers[0].breaker.state != "closed"
    assert rig.store.num_fetches < 100
    rig.store.heal()
    back = await rig.traffic(1.0, first=200_000)
    assert next(second for second, rows in back if rows.complete) <= 0.35
    await rig.settle()


@pytest.mark.parametrize(
    "error", [FeatureStoreError("no permission"), KeyError("a bug"), TimeoutError(), OSError("odd")]
)
@virtual_time
async def test_whatever_a_store_raises_is_a_reason_and_not_tried_again(error, caplog):
    rig = Rig(calls=CallPolicy(retry=RetryPolicy(share=1.0)))
    rig.store.error = error
    with caplog.at_level(logging.WARNING):
        rows = await rig.fetch(1, 2)
    assert rows.why == {"unavailable": 2}
    assert not rows.answered.any()
    assert rig.store.num_fetches == 1
    assert type(error).__name__ in caplog.text
    await rig.settle()


@virtual_time
async def test_an_outage_is_logged_once_in_a_while(caplog):
    rig = Rig()
    rig.store.kill()
    with caplog.at_level(logging.WARNING):
        await rig.traffic(3.0)
    assert len(caplog.records) <= 4
    await rig.settle()


# Retries


@virtual_time
async def test_a_transient_failure_is_tried_again_within_the_time():
    rig = Rig(calls=CallPolicy(retry=RetryPolicy(share=1.0, backoff_s=0.002)))
    rig.store.kill()
    ask = rig.ask(1)
    await turns()
    rig.store.heal()
    assert (await ask).complete
    assert rig.store.num_fetches == 2
    assert rig.metrics.retries == {"origin": 1}
    await rig.settle()


@virtual_time
async def test_retries_add_at_most_a_tenth_to_the_requests():
    rig = Rig(calls=CallPolicy(breaker=BreakerPolicy(failure_share=1.1)))
    rig.store.kill()
    rig.store.error_share = 0.3
    answers = await rig.traffic(4.0, num_ids=1)
    requests = len(answers)
    assert rig.store.num_fetches <= 1.1 * requests
    assert rig.metrics.retries["origin"] > 0.07 * requests
    await rig.settle()


@virtual_time
async def test_no_retry_when_the_time_is_nearly_over():
    rig = Rig(calls=CallPolicy(retry=RetryPolicy(share=1.0)))
    rig.store.kill()
    rig.store.latency_s = 0.019
    assert (await rig.fetch(1)).why == {"unavailable": 1}
    assert rig.store.num_fetches == 1
    await rig.settle()


# Callers that go away


@pytest.mark.parametrize("after", range(8))
@virtual_time
async def test_a_cancelled_caller_takes_nothing_from_the_others(after):
    """Cancelled after so many loop turns, or (the last ones) while the store is at work."""
    rig = Rig()
    rig.store.latency_s = 0.005
    doomed, other = rig.ask(1, 2), rig.ask(2, 3)
    if after < 5:
        await turns(after)
    else:
        await asyncio.sleep(0.002 * (after - 4))
    doomed.cancel()
    third = rig.ask(1, 3)
    answers = await asyncio.gather(doomed, other, third, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError) or answers[0].complete
    assert answers[1].complete
    assert answers[2].complete
    assert set(rig.store.asked) == {1, 2, 3}
    await rig.settle()


@virtual_time
async def test_nothing_goes_out_for_callers_that_all_went_away():
    rig = Rig()
    asks = [rig.ask(1), rig.ask(2)]
    await asyncio.sleep(0)
    for ask in asks:
        ask.cancel()
    await asyncio.wait(asks)
    await rig.client.join()
    assert rig.store.num_fetches == 0
    assert (await rig.fetch(1, 2)).complete
    await rig.settle()


@virtual_time
async def test_rows_whose_only_caller_went_away_still_come():
    rig = Rig()
    rig.store.latency_s = 0.005
    ask = rig.ask(1, 2)
    await asyncio.sleep(0.002)
    ask.cancel()
    await asyncio.wait((ask,))
    await rig.client.join()
    assert sorted(rig.kept) == [1, 2]
    await rig.settle()


@virtual_time
async def test_closing_answers_who_waits():
    rig = Rig()
    rig.store.hanging = True
    under_way = rig.ask(1)
    await asyncio.sleep(0.002)
    boarding = rig.ask(2)
    await asyncio.sleep(0)
    await rig.client.close()
    assert (await under_way).why == {"unavailable": 1}
    assert (await boarding).why == {"unavailable": 1}
    assert (await rig.fetch(3)).why == {"unavailable": 1}
    await rig.settle()


@virtual_time
async def test_a_probe_that_is_cancelled_does_not_keep_the_breaker_half_open():
    rig = Rig()
    rig.store.kill()
    for id in range(5):
        await rig.fetch(id)
    rig.store.heal()
    rig.store.hanging = True
    await asyncio.sleep(0.31)
    breaker = rig.client.tiers[0].breaker
    probe = rig.ask(100)
    await turns()
    assert breaker.state == "half_open"
    flight = next(iter(rig.client._flights.values()))
    flight.task.cancel()
    assert (await probe).why == {"unavailable": 1}
    rig.store.heal()
    assert (await rig.fetch(101)).complete
    assert breaker.state == "closed"
    await rig.settle()


# L2


@virtual_time
async def test_what_l2_lacks_comes_from_the_origin_and_goes_to_l2():
    rig = Rig(memory_l2())
    await rig.client.check_schema(GROUP)
    assert (await rig.fetch(1, 2, 2_000_000)).why == {"missing": 1}
    await rig.client.join()
    rows = await rig.fetch(3, 2, 1)
    assert rows.complete
    assert rig.store.asked == {1: 1, 2: 1, 2_000_000: 1, 3: 1}
    assert rig.l2.asked == {1: 2, 2: 2, 2_000_000: 1, 3: 1}
    await rig.client.join()
    assert rig.l2.num_written == 3
    assert rig.metrics.results["l2", "written"] == 3
    assert sorted(rig.kept) == [1, 2, 3]
    await rig.settle()


@virtual_time
async def test_rows_that_l2_has_do_not_wait_for_the_origin():
    rig = Rig(memory_l2())
    await rig.client.check_schema(GROUP)
    await rig.fetch(1, 2)
    await rig.client.join()
    rig.store.latency_s = 0.01
    both, here = rig.ask(1, 3), rig.ask(2, 1)  # one flight
    began = now()
    assert (await here).complete
    assert now() == began
    assert (await both).complete
    assert now() == pytest.approx(began + 0.01)
    await rig.settle()


@virtual_time
async def test_what_has_come_by_the_timeout_is_answered():
    rig = Rig(memory_l2())
    await rig.client.check_schema(GROUP)
    await rig.fetch(1, 2)
    await rig.client.join()
    rig.store.latency_s = 0.03
    rows = await rig.fetch(1, 3, 2)
    assert rows.why == {"timeout": 1}
    assert rows.found.tolist() == [True, False, True]
    before = rows.values.copy()
    await rig.client.join()
    assert 3 in rig.kept
    np.testing.assert_array_equal(rows.values, before)  # late rows do not appear in an answer
    await rig.settle()


@virtual_time
async def test_rows_have_the_time_of_the_call_to_the_origin_however_late_they_come():
    rig = Rig()
    rig.store.latency_s, began = 3 * TIMEOUT, now()
    assert (await rig.fetch(1)).why == {"timeout": 1}
    await rig.client.join()
    assert now() == pytest.approx(began + 3 * TIMEOUT)
    assert rig.stamps == {1: began}
    await rig.settle()


@virtual_time
async def test_a_copy_in_l2_is_as_old_as_the_row_it_was_made_of():
    l2, limits = memory_l2(), ClientLimits(ttl_s=60.0)
    first = Rig(l2, limits=limits)
    await first.client.check_schema(GROUP)
    first.store.latency_s, began = 0.01, now()
    await first.fetch(1)
    await first.settle()
    await asyncio.sleep(40.0)
    other = Rig(l2, limits=limits)  # another host
    await other.client.check_schema(GROUP)
    rows = await other.fetch(1)
    assert not other.store.asked
    assert rows.oldest == other.stamps[1] == pytest.approx(began, abs=1e-3)
    await asyncio.sleep(20.0)  # too old now: the origin has the value of today
    assert (await other.fetch(1)).oldest == now() == other.stamps[1]
    assert other.store.asked == {1: 1}
    await other.settle()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@virtual_time
async def test_a_row_that_is_not_finite_is_a_fault_of_the_store(caplog, wrong):
    class Holed(Numbers):
        async def fetch(self, group, ids):
            rows = await super().fetch(group, ids)
            rows.values[ids == 2, 1] = wrong
            return rows

    rig = Rig(memory_l2(), limits=ClientLimits(negative_ttl_s=0.0))
    await rig.client.check_schema(GROUP)
    rig.store._inner = Holed()
    rows = await rig.fetch(1, 2, 3, 2_000_000)
    assert rows.why == {"invalid": 1, "missing": 1}
    assert rows.found.tolist() == [True, False, True, False]
    assert "the row of 2 has" in caplog.text
    assert f"has {wrong} in column 'b'" in caplog.text
    rig.store._inner = Numbers()
    assert (await rig.fetch(1, 2, 3)).complete  # neither L2 nor the absences have it
    await rig.settle()


@virtual_time
async def test_each_bad_row_is_named_in_the_log_and_never_more_than_ten_at_a_time(caplog):
    class Holed(Numbers):
        async def fetch(self, group, ids):
            rows = await super().fetch(group, ids)
            rows.values[ids % 2 == 0, 1] = np.nan
            return rows

    rig = Rig(limits=ClientLimits(negative_ttl_s=0.0))
    rig.store._inner = Holed()
    with caplog.at_level(logging.WARNING):
        await rig.fetch(1, 2, 3, 4)
        await rig.fetch(6)
        await rig.fetch(6)
        assert len(caplog.records) == 2  # the same trouble again says nothing
        assert all(f"the row of {id} has" in caplog.text for id in (2, 4, 6))
        await rig.fetch(*range(100, 200))
        for id in range(200, 300, 2):
            await rig.fetch(id)
    assert caplog.text.count("the row of") == 3 + 10 + 7
    assert len(caplog.records) == 10
    await rig.settle()


@pytest.mark.parametrize("fault", ["dead", "hanging", "slow", "wide"])
@virtual_time
async def test_an_l2_in_trouble_is_gone_around(fault):
    rig = Rig(memory_l2())
    await rig.client.check_schema(GROUP)
    if fault == "dead":
        rig.l2.kill()
    elif fault == "wide":
        rig.l2.garbage = "wide"
    else:
        rig.l2.hanging, rig.l2.latency_s = fault == "hanging", 0.05 if fault == "slow" else 0.0
    answers = await rig.traffic(1.0)
    assert all(rows.complete for _, rows in answers)
    if fault != "wide":
        assert rig.client.tiers[0].breaker.state != "closed"
        assert rig.l2.num_fetches < 30
    rig.l2.heal()
    await asyncio.sleep(0.35)
    await rig.fetch(500_000)
    await rig.client.join()
    assert rig.client.tiers[0].breaker.state == "closed"
    rig.store.kill()
    await rig.fetch(500_001)
    assert rig.client.tiers[1].breaker.state == "closed"
    await rig.settle()


@virtual_time
async def test_what_l2_has_is_served_while_the_origin_is_down():
    rig = Rig(memory_l2())
    await rig.client.check_schema(GROUP)
    await rig.traffic(0.5)
    await rig.client.join()
    rig.store.kill()
    for _ in range(8):
        rows = await rig.fetch(1, 2, 900_000)
        assert rows.found.tolist() == [True, True, False]
        assert set(rows.why) <= {"unavailable", "breaker_open"}
    await rig.settle()


@virtual_time
async def test_write_back_never_holds_up_an_answer_and_drops_what_is_too_much():
    rig = Rig(memory_l2(), limits=ClientLimits(max_write_back_rows=100))
    await rig.client.check_schema(GROUP)

    async def never(group, ids, values):
        await asyncio.sleep(1e6)

    rig.l2._inner.write = never
    answers = await rig.traffic(0.5)
    assert all(rows.complete for _, rows in answers)
    assert rig.metrics.results["l2", "write_dropped"] > 2000
    assert rig.client._write_back._num_waiting <= 100
    await rig.settle()


@virtual_time
async def test_an_l2_that_refuses_writes_is_still_read(caplog):
    rig = Rig(memory_l2())
    await rig.client.check_schema(GROUP)
    await rig.fetch(1)
    await rig.client.join()

    async def refuse(group, ids, values):
        raise FeatureStoreError("read-only")

    rig.l2._inner.write = refuse
    with caplog.at_level(logging.WARNING):
        for id in range(2, 12):
            await rig.fetch(id, 1)
            await rig.client.join()
    assert rig.client.tiers[0].breaker.state == "closed"
    assert rig.store.asked[1] == 1
    assert caplog.text.count("write-back failed") == 1
    await rig.settle()


@virtual_time
async def test_a_tier_can_be_shared_by_the_groups_of_a_store():
    store = FaultyStore(Numbers())
    tier = Tier("origin", store, clock=now)
    clients = [FeatureClient(FeatureGroup(name, DIM), tier, clock=now) for name in "ab"]
    store.kill()
    for id in range(5):
        await clients[0].fetch(np.array([id]), [id])
    rows = await clients[1].fetch(np.array([1]), [1])
    assert rows.why == {"breaker_open": 1}
    for client in clients:
        await client.close()


# Schemas


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (FeatureGroup("account", 4, feature_names=("a", "b", "c", "d")), []),
        (FeatureGroup("account", 4), []),
        (FeatureGroup("x", 5, "float16"), ["dim is 5", "dtype is float16"]),
        (FeatureGroup("account", 4, feature_names=("a", "c", "b", "d")), ["number 1 is 'c'"]),
        (FeatureGroup("account", 4, feature_names=("a", "b", "c", "e")), ["lacks 'd'", "has 'e'"]),
    ],
)
def test_each_difference_is_named(stored, said):
    found = differences(GROUP, stored)
    assert len(found) == len(said)
    for sentence, part in zip(found, said, strict=True):
        assert part in sentence


def test_many_differing_names_are_counted():
    names = tuple(f"f{number}" for number in range(20))
    (lacking, surplus) = differences(
        FeatureGroup("g", 20, feature_names=names),
        FeatureGroup("g", 20, feature_names=tuple(f"g{number}" for number in range(20))),
    )
    assert "and 15 more" in lacking
    assert "and 15 more" in surplus


@virtual_time
async def test_another_schema_fails_the_start():
    rig = Rig()
    rig.store.described = FeatureGroup("account", DIM, feature_names=("b", "a", "c", "d"))
    with pytest.raises(FeatureSchemaMismatch, match=r"'account'.*order.*'b'"):
        await rig.client.check_schema(GROUP)
    await rig.settle()


@pytest.mark.parametrize("error", [FeatureStoreUnavailable("away"), FeatureGroupNotFound("no account")])
@virtual_time
async def test_an_origin_that_cannot_report_fails_the_start(error):
    rig = Rig()
    rig.store.error = error
    with pytest.raises(type(error)):
        await rig.client.check_schema(GROUP)
    await rig.settle()


@virtual_time
async def test_an_origin_that_never_reports_fails_the_start():
    rig = Rig()
    rig.store.hanging = True
    with pytest.raises(FeatureStoreUnavailable, match="within 5 s"):
        await rig.client.check_schema(GROUP)
    await rig.settle()


@virtual_time
async def test_an_l2_that_is_away_does_not_fail_the_start():
    l2 = memory_l2()
    l2.kill()
    rig = Rig(l2, limits=ClientLimits(recheck_s=30.0))
    await rig.client.check_schema(GROUP)
    l2.heal()
    await asyncio.sleep(30.1)  # the group is created when it is looked at again
    assert await l2.describe("account@time") == stamped_group(GROUP)
    await rig.settle()


@virtual_time
async def test_rows_are_refused_while_the_schema_differs(caplog):
    rig = Rig(memory_l2(), limits=ClientLimits(recheck_s=30.0))
    await rig.client.check_schema(GROUP)
    assert (await rig.fetch(1)).complete
    rig.store.described = FeatureGroup("account", DIM, feature_names=("b", "a", "c", "d"))
    with caplog.at_level(logging.INFO):
        await asyncio.sleep(61)
        assert (await rig.fetch(1, 2)).why == {"schema": 2}
        assert "order differs" in rig.client.refusal
        assert caplog.text.count("rows are refused") == 1
        rig.store.error = FeatureStoreUnavailable("away: proves nothing")
        await asyncio.sleep(31)
        assert (await rig.fetch(1)).why == {"schema": 1}
        rig.store.heal()
        await asyncio.sleep(31)
        assert (await rig.fetch(1, 2)).complete
        assert "matches again" in caplog.text
    await rig.settle()


@virtual_time
async def test_rows_under_way_when_the_schema_changes_are_refused():
    rig = Rig(limits=ClientLimits(recheck_s=1.0))
    await rig.client.check_schema(GROUP)
    rig.store.latency_s = 0.01
    ask = rig.ask(1)
    await asyncio.sleep(0.005)
    rig.store.described, rig.store.latency_s = FeatureGroup("account", 5), 0.0
    await rig.client._watch.check()
    assert (await ask).why == {"schema": 1}
    assert rig.kept == {}
    await rig.settle()


@virtual_time
async def test_an_l2_of_another_schema_is_left_out():
    rig = Rig(memory_l2(), limits=ClientLimits(recheck_s=30.0))
    await rig.client.check_schema(GROUP)
    rig.l2.described = FeatureGroup("account@time", DIM + 2, "float16")
    await asyncio.sleep(31)
    rig.l2.reset_counts()
    assert (await rig.fetch(1)).complete
    assert rig.l2.num_fetches == rig.l2.num_writes == 0
    await rig.settle()


@virtual_time
async def test_a_store_that_notices_the_mismatch_itself_is_believed():
    rig = Rig(group=FeatureGroup("account", DIM))
    rig.store.error = FeatureSchemaMismatch("dim 5 is stored")
    assert (await rig.fetch(1)).why == {"schema": 1}
    assert rig.client.tiers[0].breaker.state == "closed"
    await rig.settle()


# What is told


@virtual_time
async def test_a_cache_that_fails_costs_nobody_the_rows(caplog):
    rig = Rig()

    def full(ids, values, stamps):
        raise MemoryError("full")

    rig.client.on_rows = full
    assert (await rig.fetch(1)).complete
    assert "could not be cached" in caplog.text
    await rig.settle()


@virtual_time
async def test_calls_and_rows_are_reported():
    rig = Rig(memory_l2())
    await rig.client.check_schema(GROUP)
    await rig.fetch(1, 2, 2_000_000)
    await rig.client.join()
    assert rig.metrics.calls == {("l2", "ok"): 1, ("origin", "ok"): 1}
    assert rig.metrics.results == {
        ("l2", "missing"): 3,
        ("origin", "found"): 2,
        ("origin", "missing"): 1,
        ("l2", "written"): 2,
    }
    await rig.settle()


def test_reasons_have_labels():
    assert [reason.label for reason in Reason] == [
        "found", "missing", "invalid", "timeout", "breaker_open", "unavailable", "schema",
    ]  # fmt: skip


# In real time


class Instant(FeatureStore):
    """Answers at once, with the same array: all that remains is the client's own time."""

    kind = "instant"

    def __init__(self, num_rows):
        self._rows = FetchedRows(np.ones((num_rows, 128), np.float32), np.ones(num_rows, bool))

    async def describe(self, group):
        return group

    async def fetch(self, group, ids):
        return self._rows


async def test_the_hot_path_adds_less_than_60_us_for_421_rows():
    client = FeatureClient(FeatureGroup("account", 128), Instant(421))
    client.on_rows = lambda ids, values, stamps: None
    ids = np.random.default_rng(0).permutation(100_000)[:421].astype(np.int64)

    async def bare():
        """A future, a task and three turns of the loop: what any single flight needs."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        async def work():
            done.set_result(None)

        tasks.add(loop.create_task(work()))
        await done
        tasks.clear()

    async def fetch():
        rows = await client.fetch(ids, ids)
        assert rows.complete
        assert rows.values.shape == (421, 128)

    async def best(call):
        times = []
        for _ in range(400):
            began = time.perf_counter()
            await call()
            times.append(time.perf_counter() - began)
        return min(times)

    tasks = set()
    # On a busy or slow machine everything takes longer: the bare loop says by how much.
    assert await best(fetch) < max(60e-6, 10 * await best(bare))
    await client.close()


async def test_answers_keep_the_timeout_in_real_time():
    store = FaultyStore(Numbers())
    client = FeatureClient(GROUP, store, timeout_s=TIMEOUT)
    store.hanging = True
    waited = []

    async def one(first):
        began = time.perf_counter()
        rows = await client.fetch(np.arange(first, first + 10), np.arange(first, first + 10))
        waited.append(time.perf_counter() - began)
        assert set(rows.why) <= {"timeout", "breaker_open"}

    async with asyncio.TaskGroup() as tasks:
        for step in range(100):
            tasks.create_task(one(step * 10))
            await asyncio.sleep(0.003)
    assert max(waited) < 20  # the store hangs until it heals
    store.heal()
    began = time.perf_counter()
    rows = await client.fetch(np.array([1]), [1])
    while not rows.complete:
        await asyncio.sleep(0.01)
        rows = await client.fetch(np.array([1]), [1])
    assert time.perf_counter() - began < 20
    await client.close()
