"""A model in a process of its own: killed, stopped, leaking and hanging, with real processes."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime

import numpy as np
import pytest

from hopline.answering.limits import ModelLimits
from hopline.answering.outcome_counts import bucket
from hopline.config.schema import Config
from hopline.errors import (
    ArtifactError,
    BadRequest,
    ConfigError,
    DeadlineExceeded,
    ModelNotReady,
    Overloaded,
    RateLimited,
    RuntimeFailure,
    Unavailable,
)
from hopline.isolated.version import ProcessVersion, Program
from hopline.isolated.wire import pack_copy
from hopline.observe.metrics import Metrics
from hopline.process import keeper as process_keeper
from hopline.process.memory import anonymous_bytes
from hopline.retry import Backoff
from hopline.types import ScoreRequest, ScoreResult
from tests.fake_version import hand_in
from tests.scripted import FACTORY

MIB = 2**20


class Ears:
    """A recorder that listens."""

    def __init__(self):
        self.heard = []

    def record(self, ran):
        self.heard.append(ran)


class Rig:
    def __init__(self, limits=None, factory=FACTORY, **arguments):
        self.metrics = Metrics()
        self.ears = Ears()
        self.version = ProcessVersion(
            "m", "1", Config(), limits or ModelLimits(isolate=True), self.metrics, [self.ears],
            program=Program(factory, arguments),
        )  # fmt: skip

    def submit(self, value, timeout_s=20.0, priority="normal", **attributes):
        """A ticket, and a future of the outcome, whatever it is."""
        future = asyncio.get_running_loop().create_future()
        request = ScoreRequest(
            "m", columns={"x": [float(value)]}, attributes=attributes or None, priority=priority,
            deadline=time.monotonic() + timeout_s,
        )  # fmt: skip
        return hand_in(self.version, request, future.set_result), future

    async def ask(self, value, timeout_s=20.0, **attributes):
        return await self.submit(value, timeout_s, **attributes)[1]

    async def answers(self, value):
        """Whether it answers as it should."""
        outcome = await self.ask(value)
        return isinstance(outcome, ScoreResult) and outcome.outputs["y"].tolist() == [2.0 * value]

    async def revived(self, old_pid, within_s=60.0):
        """Until another process serves."""
        await until(lambda: self.version.pid not in (None, old_pid), within_s)

    def restarts(self, reason):
        family = self.metrics._families["hopline_model_process_restarts_total"]
        child = family.children.get(("m", "1", reason))
        return 0 if child is None else child.value


@contextlib.asynccontextmanager
async def running(limits=None, factory=FACTORY, **arguments):
    rig = Rig(limits, factory, **arguments)
    await rig.version.begin()
    try:
        yield rig
    finally:
        await rig.version.release()


async def until(holds, within_s=60.0):
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - other processes set no events
            await asyncio.sleep(0.005)


async def gone(pid):
    await until(lambda: not os.path.exists(f"/proc/{pid}"))


async def test_answers_and_errors_are_those_of_the_model():
    async with running() as rig:
        assert all(await asyncio.gather(*(rig.answers(value) for value in range(200))))
        refused = await rig.ask(1, do="refuse")
        assert (type(refused), str(refused)) == (BadRequest, "refused, as asked")
        failed = await rig.ask(1, do="fail")
        assert (type(failed), failed.code) == (RuntimeFailure, "runtime_failure")
        objects = await rig.ask(1, objects=True)
        assert objects.outputs["y"].tolist() == [{"v": 1}, None]
        assert (await rig.ask(1, degraded="student")).degraded == ("student",)
        assert rig.metrics.degraded_answers("m", "student").value == 1
        info = rig.version.info(("0", "1"))
        assert (info.state, info.versions, info.properties) == ("READY", ("0", "1"), {"pi": 3})
        assert rig.version.pid != os.getpid()


async def test_requests_of_one_turn_are_computed_together_and_reach_recorders():
    async with running(threaded=True) as rig:
        outcomes = await asyncio.gather(*(rig.ask(value) for value in range(30)))
        assert len(outcomes) == 30
        # a first batch may run while the rest is read; nothing is lost or told twice
        told = [request.columns["x"][0] for ran in rig.ears.heard for request in ran.requests]
        assert sorted(told) == list(range(30))
        assert len(rig.ears.heard) <= 3
        assert all(ran.served is rig.version and ran.compute_s > 0 for ran in rig.ears.heard)
        counted = rig.version.statistics()
        assert counted["inference_count"] == 30
        assert counted["execution_count"] == len(rig.ears.heard)


async def test_requests_with_a_time_cut_are_counted_in_their_batch():
    async with running(factory="tests.isolated.fork_entries:open_with_times") as rig:
        as_of, slow = datetime(2020, 1, 1, tzinfo=UTC), {"spin_ms": 20}
        request = ScoreRequest("m", columns={"x": [1.0]}, as_of=as_of, attributes=slow)
        future = asyncio.get_running_loop().create_future()
        hand_in(rig.version, request, future.set_result)
        assert isinstance(await future, ScoreResult)
        assert [ran.compute_s > 0.01 for ran in rig.ears.heard] == [True]
        counted = []
        copy = pack_copy(request, future.result())
        rig.version.compare([copy], 0.0, counted.append)
        await until(lambda: counted)
        assert (counted[0].answered, counted[0].latency[bucket(0.0)]) == (1, 0)


async def test_a_copy_that_fails_before_it_is_queued_is_compared():
    async with running() as rig:
        pid, counted = rig.version.pid, []
        request = ScoreRequest("m", columns={"other": [1.0]})
        copy = pack_copy(request, ScoreResult("m", "1", "", {"y": np.array([2.0])}))
        rig.version.compare([copy], 0.0, counted.append)
        await until(lambda: counted)
        assert (counted[0].requests, counted[0].errors) == (1, 1)
        assert await rig.answers(1)
        assert rig.version.pid == pid


async def test_a_killed_process_fails_what_it_had_and_is_started_again():
    async with running(threaded=True) as rig:
        pid = rig.version.pid
        asked = [rig.submit(value, spin_ms=300)[1] for value in range(5)]
        await asyncio.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
        for outcome in await asyncio.wait_for(asyncio.gather(*asked), 5):
            assert isinstance(outcome, ModelNotReady)
            assert "its process ended (signal 9, SIGKILL); another one is started" in str(outcome)
            assert outcome.retry_after_s > 0
        info = rig.version.info(("1",))
        assert (info.state, "signal 9" in info.reason) == ("UNAVAILABLE", True)
        with pytest.raises(ModelNotReady, match="signal 9"):
            rig.submit(1)
        await rig.revived(pid)
        assert await rig.answers(3)
        assert rig.version.info(("1",)).state == "READY"
        assert rig.restarts("died") == 1
        assert rig.version.num_failed == 6
        assert sum(len(ran.requests) for ran in rig.ears.heard) == 7


@pytest.mark.sample(1)
@pytest.mark.parametrize(("do", "how"), [("crash", "signal 11"), ("exit", "exit code 3")])
async def test_a_crash_leaves_other_models_alone(do, how):
    async with running() as bad, running() as good:
        pid = bad.version.pid
        beside = [good.submit(value)[1] for value in range(20)]
        outcome = await bad.ask(1, do=do)
        assert isinstance(outcome, ModelNotReady)
        assert how in str(outcome)
        assert all(isinstance(each, ScoreResult) for each in await asyncio.gather(*beside))
        assert await good.answers(5)
        await bad.revived(pid)
        assert await bad.answers(5)
        assert good.restarts("died") == 0


async def test_a_process_that_crashes_again_and_again_is_started_ever_later(monkeypatch):
    monkeypatch.setattr(process_keeper, "Backoff", lambda *_, **__: Backoff(0.02, 10.0, spread=0.0))
    async with running() as rig:
        pauses = []
        for _ in range(4):
            pid = rig.version.pid
            pauses.append(rig.version._keeper._backoff.wait_s)
            await rig.ask(1, do="crash")
            await rig.revived(pid)
        assert pauses == [0.02, 0.04, 0.08, 0.16]
        assert await rig.answers(1)


async def test_a_process_that_cannot_be_started_again_is_tried_until_it_can(tmp_path):
    broken = tmp_path / "broken"
    async with running(fail_if=str(broken)) as rig:
        pid = rig.version.pid
        broken.touch()
        os.kill(pid, signal.SIGKILL)
        await until(lambda: "could not be started again" in rig.version.info(("1",)).reason)
        with pytest.raises(ModelNotReady, match="fail_if exists"):
            rig.submit(1)
        broken.unlink()
        await rig.revived(pid)
        assert await rig.answers(2)


async def test_a_model_that_cannot_be_opened_says_why_and_takes_nothing(tmp_path):
    (tmp_path / "there").touch()
    rig = Rig(fail_if=str(tmp_path / "there"))
    with pytest.raises(ArtifactError, match="fail_if exists"):
        await rig.version.begin()
    rig = Rig(exit_if=str(tmp_path / "there"))
    with pytest.raises(ModelNotReady, match="exit code 7"):
        await rig.version.begin()
    with pytest.raises(ModelNotReady):
        rig.submit(1)


async def test_a_leaking_process_is_replaced_and_no_request_is_lost():
    async with running() as probe:
        base = anonymous_bytes(probe.version.pid)
    limits = ModelLimits(isolate=True, memory_bytes=base + 60 * MIB, hang_s=2.0)
    async with running(limits) as rig:
        first, outcomes, pids = rig.version.pid, [], set()
        end = time.monotonic() + 20
        while len(pids) < 2 and time.monotonic() < end:
            pids.add(rig.version.pid)
            outcomes.append(await rig.ask(1, leak=MIB if len(pids) < 2 else 0))
            await asyncio.sleep(0.01)
        assert len(pids) == 2, "it was not replaced"
        assert all(isinstance(outcome, ScoreResult) for outcome in outcomes)
        await gone(first)
        assert rig.restarts("memory") == 1
        assert anonymous_bytes(rig.version.pid) < limits.memory_bytes
        assert await rig.answers(4)


async def test_copies_are_compared_though_another_process_ends_meanwhile():
    async with running(ModelLimits(isolate=True, hang_s=60)) as rig:
        first, counted = rig.version.pid, []
        rig.version._keeper._renew("memory")
        await rig.revived(first)
        second = rig.version.pid
        os.kill(second, signal.SIGSTOP)
        request, wanted = ScoreRequest("m", columns={"x": [1.0]}), {"y": np.array([2.0])}
        copy = pack_copy(request, ScoreResult("m", "1", "", wanted))
        rig.version.compare([copy], 0.0, counted.append)
        await until(lambda: not rig.version._keeper._retiring)  # the first one
        os.kill(second, signal.SIGCONT)
        await until(lambda: counted)
        assert [(tally.answered, tally.compared, tally.differing) for tally in counted] == [(1, 1, 0)]
        assert await rig.answers(3)
        assert rig.version.pid == second


async def test_a_request_that_wants_all_memory_fails_alone():
    async with running() as probe:
        base = anonymous_bytes(probe.version.pid)
    async with running(ModelLimits(isolate=True, memory_bytes=base + 100 * MIB)) as rig:
        pid = rig.version.pid
        outcome = await rig.ask(1, do="huge")
        assert isinstance(outcome, RuntimeFailure)
        assert "MemoryError" in str(outcome)
        assert await rig.answers(2)
        assert rig.version.pid == pid


async def test_a_model_larger_than_its_limit_is_refused_at_once():
    rig = Rig(ModelLimits(isolate=True, memory_bytes=5 * MIB))
    with pytest.raises(ConfigError, match=r"memory_bytes: model 'm' takes .* before its first request"):
        await rig.version.begin()


async def test_a_stopped_process_keeps_no_deadline_from_holding_and_is_replaced():
    async with running(ModelLimits(isolate=True, hang_s=2)) as rig:
        pid = rig.version.pid
        assert await rig.answers(1)
        os.kill(pid, signal.SIGSTOP)
        asked = [rig.submit(value, timeout_s=0.2)[1] for value in range(3)]
        for outcome in await asyncio.wait_for(asyncio.gather(*asked), 20):
            assert isinstance(outcome, DeadlineExceeded)
        assert rig.version.pid == pid  # it is not replaced yet
        patient = rig.submit(9, timeout_s=60)[1]  # its deadline is far away
        outcome = await asyncio.wait_for(patient, 20)
        assert isinstance(outcome, ModelNotReady)
        assert "gave no answer" in str(outcome)
        await rig.revived(pid)
        assert await rig.answers(2)
        assert rig.restarts("hung") == 1


@pytest.mark.release
async def test_a_stopped_process_without_requests_is_replaced():
    async with running(ModelLimits(isolate=True, hang_s=1.0)) as rig:
        pid = rig.version.pid
        os.kill(pid, signal.SIGSTOP)
        await rig.revived(pid)
        assert await rig.answers(2)
        assert rig.restarts("hung") == 1


async def test_a_thread_that_hangs_is_noticed_though_the_process_lives():
    async with running(ModelLimits(isolate=True, hang_s=0.5), threaded=True) as rig:
        pid = rig.version.pid
        assert isinstance(await rig.ask(1, timeout_s=0.2, do="hang"), DeadlineExceeded)
        waiting = rig.submit(2)[1]
        assert isinstance(await asyncio.wait_for(waiting, 5), ModelNotReady)
        await rig.revived(pid)
        assert await rig.answers(3)


@pytest.mark.sample(1)
@pytest.mark.parametrize("num_later", [0, 2])
async def test_a_thread_that_hangs_is_noticed_though_few_requests_come(num_later):
    async with running(ModelLimits(isolate=True, hang_s=1.0), threaded=True) as rig:
        pid = rig.version.pid
        assert isinstance(await rig.ask(1, timeout_s=0.2, do="hang"), DeadlineExceeded)
        for _ in range(num_later):
            assert isinstance(await rig.ask(2, timeout_s=0.1), DeadlineExceeded)
        await rig.revived(pid, 20)
        assert await rig.answers(3)
        assert rig.restarts("hung") == 1


@pytest.mark.release
async def test_slow_is_not_hung():
    async with running(ModelLimits(isolate=True, hang_s=2.0), threaded=True) as rig:
        pid = rig.version.pid
        for _ in range(24):  # each is too late, and yet there is progress
            await rig.ask(1, timeout_s=0.05, spin_ms=120)
        assert rig.version.pid == pid
        assert await rig.answers(2)


async def test_a_withdrawn_request_is_not_delivered_and_not_computed():
    async with running(threaded=True) as rig:
        blocking = rig.submit(1, spin_ms=200)[1]
        await asyncio.sleep(0.05)
        ticket, outcome = rig.submit(2, do="crash")
        await asyncio.sleep(0.05)  # it is in the process's queue now
        ticket.cancel()
        ticket.cancel()
        assert isinstance(await blocking, ScoreResult)
        assert await rig.answers(3)
        assert not outcome.done()
        assert rig.version.pid is not None
        ticket, _ = rig.submit(4, do="crash")
        ticket.cancel()  # before it is sent
        assert await rig.answers(5)
        assert rig.restarts("died") == 0
        assert rig.version.queued_rows == 0


@pytest.mark.release
async def test_limits_hold_before_the_process_is_called():
    limits = ModelLimits(isolate=True, max_concurrency=4, rate_per_s=1000.0, burst=6)
    async with running(limits, threaded=True) as rig:
        asked = [rig.submit(value, spin_ms=20)[1] for value in range(2)]
        with pytest.raises(Overloaded, match="of low priority"):
            rig.submit(2, priority="low")
        asked += [rig.submit(value)[1] for value in range(2)]
        with pytest.raises(Overloaded, match="4 requests wait or run"):
            rig.submit(5)
        assert all(isinstance(outcome, ScoreResult) for outcome in await asyncio.gather(*asked))
    async with running(ModelLimits(isolate=True, rate_per_s=0.01, burst=1)) as rig:
        assert await rig.answers(1)
        with pytest.raises(RateLimited):
            rig.submit(2)
    async with running(ModelLimits(isolate=True, max_queue_rows=10)) as rig:
        asked = [rig.submit(value)[1] for value in range(10)]
        with pytest.raises(Overloaded, match="max_queue_rows"):
            rig.submit(11)
        await asyncio.gather(*asked)


async def test_requests_are_turned_away_unread_when_none_can_be_answered():
    async with running(ModelLimits(isolate=True, rate_per_s=0.01, burst=1)) as rig:
        rig.version._recorders = []
        pid = rig.version.pid
        rig.version.reject_early()
        assert await rig.answers(1)
        with pytest.raises(RateLimited):
            rig.version.reject_early()
        os.kill(pid, signal.SIGKILL)
        await until(lambda: rig.version.pid != pid)
        with pytest.raises(ModelNotReady, match="signal 9"):
            rig.version.reject_early()
        assert rig.version.num_failed == 2


async def test_a_request_that_cannot_be_sent_fails_alone():
    async with running() as rig:
        mates = [rig.submit(value)[1] for value in range(3)]
        future = asyncio.get_running_loop().create_future()
        hand_in(rig.version, ScoreRequest("m", columns={"x": [object()]}), future.set_result)
        mates += [rig.submit(value)[1] for value in range(3)]
        assert isinstance(await future, BadRequest)
        assert all(isinstance(outcome, ScoreResult) for outcome in await asyncio.gather(*mates))


async def test_large_requests_and_answers_pass():
    async with running() as rig:
        x = np.random.default_rng(0).normal(size=1_000_000)
        future = asyncio.get_running_loop().create_future()
        hand_in(rig.version, ScoreRequest("m", columns={"x": x}), future.set_result)
        np.testing.assert_array_equal((await future).outputs["y"], 2 * x)


async def test_closing_finishes_what_was_taken():
    rig = Rig(threaded=True)
    await rig.version.begin()
    pid = rig.version.pid
    asked = [rig.submit(value, spin_ms=30)[1] for value in range(5)]
    rig.version.close("the server is shutting down")
    with pytest.raises(Unavailable, match="shutting down"):
        rig.submit(9)
    await asyncio.wait_for(rig.version.join(), 10)
    assert all(isinstance(future.result(), ScoreResult) for future in asked)
    await rig.version.release()
    await gone(pid)
    assert rig.restarts("died") == 0


async def test_deadlines_of_many_requests_are_reported_in_time():
    async with running(ModelLimits(isolate=True, hang_s=60), threaded=True) as rig:
        os.kill(rig.version.pid, signal.SIGSTOP)
        blocking = rig.submit(1, timeout_s=60)[1]
        asked = [rig.submit(value, timeout_s=0.1 + value / 1000)[1] for value in range(100)]
        for outcome in await asyncio.wait_for(asyncio.gather(*asked), 20):
            assert isinstance(outcome, DeadlineExceeded)
        assert not blocking.done()
        os.kill(rig.version.pid, signal.SIGCONT)
        assert isinstance(await blocking, ScoreResult)


async def test_memory_is_measured():
    async with running(ModelLimits(isolate=True, hang_s=0.2)) as rig:
        memory = rig.metrics._families["hopline_model_process_memory_bytes"].children["m", "1"]
        await until(lambda: memory.value)
        assert 10 * MIB < memory.value < 1024 * MIB
    assert memory.value == 0


_PARENT = """
import asyncio, sys
from hopline.config.schema import Config
from hopline.observe.metrics import Metrics
from hopline.answering.limits import ModelLimits
from hopline.isolated.version import ProcessVersion, Program
from tests.scripted import FACTORY
from tests.fake_version import hand_in
from hopline.types import ScoreRequest

async def main():
    limits = ModelLimits(isolate=True)
    version = ProcessVersion("m", "1", Config(), limits, Metrics(), program=Program(FACTORY))
    await version.begin()
    if sys.argv[1] == "busy":
        hand_in(version, ScoreRequest("m", columns={"x": [1.0]}, attributes={"do": "hang"}), print)
        await asyncio.sleep(0.2)
    print(version.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("doing", ["idle", "busy"])
async def test_no_process_outlives_its_server(doing):
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, doing], stdout=subprocess.PIPE, text=True)
    try:
        pid = int(parent.stdout.readline())
        assert os.path.exists(f"/proc/{pid}")
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    await gone(pid)
