"""What admission took of a queue is given back however a request leaves it, and at once."""

import asyncio
import itertools
from collections import deque
from concurrent.futures import Future

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hopline.errors import BadRequest, DeadlineExceeded, Overloaded
from hopline.scheduling.admission import Admission, Deadlines
from hopline.scheduling.batcher import Batcher
from hopline.scheduling.policy import HIGH, LOW, NORMAL, BatchPolicy, CostModel
from hopline.scheduling.work import LargerThanPredicted, Work
from hopline.types import ScoreRequest
from tests.scheduling.test_batcher import THREAD, Rig
from tests.thorough import thorough

US_PER_ROW = 10.0


def cost():
    """One that does not learn: a row is 10 µs."""
    model = CostModel(0.0, US_PER_ROW)
    model.observe = lambda rows, us: None
    return model


async def full(**kwargs):
    """A rig that computes something on its thread, while ten requests fill its queue."""
    rig = Rig(THREAD, max_queue_us=10 * (1 + US_PER_ROW))
    rig.batcher.cost = cost()
    rig.gate.clear()
    running = rig.ask(1)
    await asyncio.sleep(0.01)
    waiting = [rig.ask(value, **kwargs) for value in range(10)]
    with pytest.raises(Overloaded, match="max_queue_ms"):
        rig.ask(7)
    return rig, running, waiting


async def test_what_is_cancelled_makes_room_in_the_queue_at_once():
    rig, running, waiting = await full()
    for future in waiting:
        rig.withdraw(future)
    assert (rig.batcher.queued_s, rig.batcher.queued_rows, rig.batcher.num_queued) == (0.0, 0, 0)
    lives = [rig.ask(value) for value in range(10)]
    rig.gate.set()
    assert await asyncio.gather(running, *lives) == [1, *(value**2 for value in range(10))]
    await rig.settle()


async def test_what_is_late_makes_room_in_the_queue_at_once():
    rig, running, waiting = await full(deadline=1.0)
    rig.fixed_clock = 2.0
    rig.batcher._expire_late()
    assert (rig.batcher.queued_s, rig.batcher.queued_rows, rig.batcher.num_queued) == (0.0, 0, 0)
    live = rig.ask(5)
    rig.gate.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(outcome, DeadlineExceeded) for outcome in outcomes)
    assert await asyncio.gather(running, live) == [1, 25]
    await rig.settle()


async def test_what_is_cancelled_is_held_no_more():
    rig, running, waiting = await full()
    for future in waiting:
        rig.withdraw(future)
    assert not any(rig.batcher._lanes)
    rig.gate.set()
    await running
    await rig.settle()


async def test_a_late_request_gets_its_error_while_its_queue_waits_for_company():
    rig = Rig(THREAD, queue_delay_s=30.0)
    began = asyncio.get_running_loop().time()
    late = rig.ask(1, deadline=began + 0.02)
    with pytest.raises(DeadlineExceeded):
        await asyncio.wait_for(late, 5)
    await rig.settle()  # waits for nothing


async def test_a_queue_is_bounded_by_time_not_by_rows():
    rig = Rig(THREAD, max_queue_us=1000.0)
    rig.batcher.cost = CostModel(0.0, 1e-4)
    rig.gate.clear()
    running = rig.ask(1)
    await asyncio.sleep(0.01)
    waiting = [rig.ask(2, rows=1_000_000) for _ in range(9)]  # 100 µs each
    with pytest.raises(Overloaded, match=r"0.9 ms of predicted.*0.1 ms more would pass the limit of 1 ms"):
        rig.ask(2, rows=1_000_000)
    rig.gate.set()
    await asyncio.gather(running, *waiting)
    await rig.settle()


class Larger(Rig):
    """An engine that says of 'hub' that it is larger than predicted, unless it runs as what it is."""

    def run(self, batch):
        if any(item.value == "hub" for item in batch):
            found = self.batcher.larger(batch, 50_000)
            if found is not None:
                self.seen.append("larger")
                raise found
        self.seen.append([item.value for item in batch])
        return [0 if item.value == "hub" else item.value**2 for item in batch]


@pytest.mark.parametrize("where", [1000.0, THREAD])
async def test_what_is_larger_than_predicted_leaves_its_batch_and_runs_as_what_it_is(where):
    rig = Larger(where)
    rig.record.larger = lambda item: rig.seen.append(item.rows)
    futures = [rig.ask(value) for value in (1, 2, "hub", 3)]
    assert await asyncio.gather(*futures) == [1, 4, 0, 9]
    assert rig.seen == ["larger", [1, 2], "larger", "larger", [3], 50_000, ["hub"]]
    assert rig.record.batches == [3, 1]
    assert rig.record.outcomes.count("ok") == 4
    assert not rig.batcher._counted
    await rig.settle()


async def test_what_was_larger_than_predicted_holds_what_it_costs():
    rig = Larger(1000.0, max_queue_us=200_000.0)
    rig.batcher.cost = cost()
    pool = Held()
    rig.batcher._executor = pool
    rig.record.larger = lambda item: None
    hub = rig.ask("hub")
    await asyncio.sleep(0)  # on the loop, as predicted: 1 row
    assert not hub.done()
    assert rig.batcher.queued_s == pytest.approx(0.5, rel=1e-4)
    with pytest.raises(Overloaded, match=r"500\.0 ms of predicted"):
        rig.ask(1)
    await asyncio.sleep(0)  # on the thread, as counted
    assert rig.batcher.queued_s == 0.0
    quick = rig.ask(3)
    pool.finish()
    assert await asyncio.gather(hub, quick, asyncio.to_thread(pool.finish_all)) == [0, 9, None]
    await rig.settle()


class Held:
    """An executor whose work is done when a test says so."""

    def __init__(self):
        self.work = deque()
        self.is_open = False

    def submit(self, function, *arguments):
        future = Future()
        self.work.append((future, function, arguments))
        return future

    def finish(self):
        future, function, arguments = self.work.popleft()
        future.set_result(function(*arguments))

    def finish_all(self):
        while self.work:
            self.finish()


class Asked(Work, eq=False, gc=False):
    what: str = ""
    outcomes: list = msgspec.field(default_factory=list)
    is_cancelled: bool = False


def asked(what, rows):
    def deliver(outcome):
        assert not item.is_cancelled
        item.outcomes.append(outcome)
        assert len(item.outcomes) == 1

    item = Asked(ScoreRequest("m"), deliver, rows=rows, num_bytes=1, what=what)
    return item


class Ledger(RuleBasedStateMachine):
    """Any sequence of what can happen to requests, against sums taken anew from the requests themselves."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.now = 100.0
        self.executor = Held()
        self.items, self.away = [], []
        self.admission = Admission(Deadlines(1e9, 1e9), max_open=12, clock=lambda: self.now)
        self.batcher = Batcher(
            self.run,
            BatchPolicy(20, 10**9, 0.0, 400.0, THREAD, max_queue_rows=60),
            cost(),
            self.executor,
            self,
            lambda: self.now,
        )

    def run(self, batch):
        if any(item.what == "crash" for item in batch):
            raise ZeroDivisionError("a bug")
        for item in batch:
            if item.what == "larger" and self.batcher.larger(batch, 90):
                raise LargerThanPredicted(90)
        return [self.outcome_of(item) for item in batch]

    def outcome_of(self, item):
        if item.what == "postpone":
            item.what = "answer"
            return None
        return BadRequest("odd") if item.what == "fail" else "an answer"

    # the observer

    def batch(self, items, outcomes, queue_s, compute_s):
        assert len(items) == len(outcomes) == len(queue_s)

    def late(self, item, error):
        assert item.ended

    def outcome(self, code, count=1):
        pass

    def postponed(self, item):
        self.away.append(item)

    def larger(self, item):
        assert item.rows >= 90

    def on_loop(self, function, *arguments):
        async def call():
            try:
                return function(*arguments)
            finally:
                for _ in range(3):
                    await asyncio.sleep(0)

        return self.loop.run_until_complete(call())

    # rules

    @rule(
        what=st.sampled_from(["answer", "answer", "fail", "crash", "postpone", "larger"]),
        rows=st.integers(0, 30),
        patience=st.sampled_from([0.5, 5.0, float("inf")]),
        lane=st.sampled_from([HIGH, NORMAL, LOW]),
    )
    def submit(self, what, rows, patience, lane):
        item = asked(what, rows)
        before = self.taken()

        def put():
            self.admission.admit(item)
            item.deadline, item.lane = self.now + patience, lane
            self.batcher.put(item)

        try:
            self.on_loop(put)
        except Overloaded:
            item.end()
            assert self.taken() == before  # a refusal takes nothing, and moves nobody
        else:
            self.items.append(item)

    @precondition(lambda self: self.items)
    @rule(at=st.integers(0, 10**6))
    def cancel(self, at):
        item = self.items[at % len(self.items)]
        item.is_cancelled = item.is_cancelled or not item.ended
        self.on_loop(item.cancel)

    @rule(seconds=st.sampled_from([0.1, 1.0, 10.0]))
    def wait(self, seconds):
        self.now += seconds
        self.on_loop(self.batcher._expire_late)

    @precondition(lambda self: self.executor.work)
    @rule()
    def compute(self):
        self.on_loop(self.executor.finish)

    @precondition(lambda self: self.away)
    @rule()
    def resume(self):
        self.on_loop(self.batcher.resume, self.away.pop())

    def taken(self):
        return self.batcher._queued_us, self.batcher.queued_rows, self.admission.num_open

    @invariant()
    def what_is_taken_is_what_live_requests_hold(self):
        batcher = self.batcher
        open_ = [item for item in self.items if not item.ended]
        waiting = list(itertools.chain.from_iterable(lane.items() for lane in batcher._lanes))
        assert self.admission.num_open == len(open_)
        assert batcher._queued_us == sum(us for _, us in waiting)
        assert batcher.queued_rows == sum(item.rows for item, _ in waiting)
        assert all(us > 0 for _, us in waiting)
        elsewhere = {*batcher._running, *self.away}
        assert {item for item, _ in waiting} == {item for item in open_ if item not in elsewhere}
        assert all(item.is_cancelled or len(item.outcomes) == 1 for item in self.items if item.ended)
        assert batcher._counted <= {*open_, *batcher._running}

    def teardown(self):
        for _ in range(100):
            while self.away:
                self.on_loop(self.batcher.resume, self.away.pop())
            if not self.executor.work:
                break
            self.on_loop(self.executor.finish)
        assert self.taken() == (0, 0, 0)
        assert self.batcher.num_waiting == 0
        assert all(item.ended for item in self.items)
        assert not self.batcher._counted
        self.loop.close()


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=thorough(15, 60), stateful_step_count=40, deadline=None)
