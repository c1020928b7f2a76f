"""Limits of one model as its requests meet them, in the server's own process."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from hopline.answering.limits import ModelLimits
from hopline.answering.queued import QueuedVersion
from hopline.config.reader import load_config
from hopline.errors import Overloaded, RateLimited
from hopline.observe.metrics import Metrics
from hopline.scheduling.turnstile import Turnstile
from hopline.types import ScoreRequest, ScoreResult
from tests.fake_version import hand_in
from tests.scripted import ScriptedComputer

NOW = time.monotonic


def made(limits, turnstile=None, **settings):
    config, metrics = load_config().replace(**settings), Metrics().model("m", "1")
    return QueuedVersion(
        ScriptedComputer("m", "1"), config, metrics, ThreadPoolExecutor(1),
        limits=limits, turnstile=turnstile, clock=NOW,
    )  # fmt: skip


def submit(version, value, **kwargs):
    future = asyncio.get_running_loop().create_future()
    hand_in(version, ScoreRequest("m", columns={"x": [float(value)]}, **kwargs), future.set_result)
    return future


@pytest.fixture
def clock(monkeypatch):
    """Stands still unless it is moved; begins at the present, for the sake of deadlines."""
    clock = SimpleNamespace(now=time.monotonic())
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr("tests.answering.test_limited.NOW", clock.monotonic)
    return clock


async def test_rate_is_refused_with_the_time_of_the_next(clock):
    version = made(ModelLimits(rate_per_s=10, burst=2))
    answers = [submit(version, 1), submit(version, 2)]
    with pytest.raises(RateLimited, match="10 requests a second") as refused:
        submit(version, 3)
    assert refused.value.retry_after_s == pytest.approx(0.1)
    assert refused.value.per_s == 10
    clock.now += 0.1001
    answers.append(submit(version, 4))
    for answer in answers:
        assert isinstance(await answer, ScoreResult)
    assert version.statistics()["inference_stats"]["fail"]["count"] == 1


async def test_a_request_is_turned_away_unread_exactly_when_it_would_be_refused(clock):
    version = made(ModelLimits(rate_per_s=10, burst=2, max_concurrency=3))
    version.reject_early()
    answers = [submit(version, 1), submit(version, 2)]
    with pytest.raises(RateLimited, match="10 requests a second"):
        version.reject_early()
    clock.now += 0.2001
    version.reject_early()  # takes no token
    answers.append(submit(version, 3))
    with pytest.raises(Overloaded, match="max_concurrency"):
        version.reject_early()
    for answer in answers:
        assert isinstance(await answer, ScoreResult)
    version.reject_early()
    assert version.statistics()["inference_stats"]["fail"]["count"] == 2


async def test_nothing_is_rejected_unread_where_requests_are_recorded(clock):
    version = made(ModelLimits(rate_per_s=10, burst=1))
    await submit(version, 1)
    told = []
    version._recorders = [SimpleNamespace(record=told.append)]
    version.reject_early()
    with pytest.raises(RateLimited):
        submit(version, 2)
    assert [ran.requests[0].columns["x"] for ran in told] == [[2.0]]


async def test_a_version_has_its_whole_rate_whichever_workers_its_requests_reach(clock, tmp_path):
    shared = {"worker__count": 5, "worker__metrics_dir": str(tmp_path)}
    workers = [made(ModelLimits(rate_per_s=10, burst=4), **shared) for _ in range(5)]
    answers = [submit(workers[0], 1), submit(workers[0], 2), submit(workers[0], 3), submit(workers[3], 4)]
    for worker in workers:
        with pytest.raises(RateLimited, match="10 requests a second"):
            submit(worker, 5)
    clock.now += 0.2001
    answers += [submit(workers[4], 6), submit(workers[4], 7)]
    with pytest.raises(RateLimited):
        submit(workers[0], 8)
    for answer in answers:
        assert isinstance(await answer, ScoreResult)


async def test_a_refused_request_costs_no_token(clock):
    version = made(ModelLimits(rate_per_s=1, burst=2))
    for _ in range(5):
        version.admission.pay()
        version.admission.refund()
    version.admission.refund()  # a full bucket stays full
    version.admission.pay()
    version.admission.pay()
    with pytest.raises(RateLimited):
        version.admission.pay()


async def test_inside_its_own_process_rate_and_concurrency_were_counted_outside():
    version = made(ModelLimits(rate_per_s=1, max_concurrency=1), worker__isolated=True)
    answers = [submit(version, value) for value in range(10)]
    assert len([await answer for answer in answers]) == 10


async def test_concurrency_refuses_what_is_one_too_many():
    version = made(ModelLimits(max_concurrency=2))
    answers = [submit(version, value) for value in range(2)]
    with pytest.raises(Overloaded, match="max_concurrency"):
        submit(version, 3)
    for answer in answers:
        await answer
    assert (await submit(version, 4)).outputs["y"] == [8.0]


async def test_a_request_has_its_own_class_or_the_models():
    version = made(ModelLimits(priority="low", max_batch_rows=1))
    asked = [("normal", 1), ("high", 2), ("low", 3), ("high", 4), ("normal", 5)]
    answers = [submit(version, value, priority=priority) for priority, value in asked]
    for answer in answers:
        await answer
    assert version.computer.seen == [2, 4, 1, 3, 5]  # normal is what the model says: low


async def test_timeout_of_the_model_holds_for_requests_that_name_none():
    version = made(ModelLimits(timeout_ms=20.0), compute__inline_cost_us=0.0)
    outcome = await submit(version, 1, attributes={"spin_ms": 200})
    assert outcome.code == "deadline_exceeded"
    await version.join()


async def test_one_turnstile_lets_a_quiet_model_in_between_a_floods_batches():
    gate = Turnstile()
    flooded, quiet = made(ModelLimits(), gate), made(ModelLimits(), gate)
    for version in (flooded, quiet):
        version.queue.cost.fixed_us, version.queue.cost.us_per_row = 0.0, 250.0
        version.queue.cost.observe = lambda rows, us: None
        await submit(version, 1)
    flood = [submit(flooded, value) for value in range(100)]
    await asyncio.sleep(0)
    await submit(quiet, 7)
    assert sum(answer.done() for answer in flood) <= 6
    for answer in flood:
        await answer
