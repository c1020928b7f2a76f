"""One outcome for every request, and none that touches its batch-mates."""

import asyncio
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import uvloop

from hopline.errors import BadRequest, DeadlineExceeded, Overloaded, RuntimeFailure, Unavailable
from hopline.scheduling.admission import Admission, Deadlines
from hopline.scheduling.batcher import Batcher
from hopline.scheduling.policy import HIGH, LOW, NORMAL, BatchPolicy, CostModel
from hopline.scheduling.turnstile import Turn, Turnstile
from hopline.scheduling.work import Work
from hopline.types import ScoreRequest

INF = float("inf")
LOOP, THREAD = 1e9, -1.0  # inline_cost_us: everything on the loop, everything on a thread


class Asked(Work, eq=False, gc=False):
    value: object = None
    future: object = None


def asked(value, future, rows=1, num_bytes=1):
    def deliver(outcome):
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    return Asked(ScoreRequest("m"), deliver, rows=rows, num_bytes=num_bytes, value=value, future=future)


class Record:
    def __init__(self):
        self.batches = []
        self.outcomes = []

    def batch(self, items, outcomes, queue_s, compute_s):
        assert len(items) == len(outcomes) == len(queue_s)
        self.batches.append(len(items))
        self.told = [item for item, outcome in zip(items, outcomes, strict=True) if outcome is not None]

    def late(self, item, error):
        assert item.ended

    def outcome(self, code, count=1):
        self.outcomes += [code] * count


class Rig:
    """A batcher whose engine squares numbers; raises what it is told to raise."""

    def __init__(self, where, max_concurrency=0, **policy):
        bounds = {"max_rows": 1000, "max_bytes": 10**9, "queue_delay_s": 0.0, "max_queue_us": 1e12}
        self.pool = ThreadPoolExecutor(1)
        self.record = Record()
        self.seen = []
        self.items = []
        self.gate = threading.Event()
        self.gate.set()
        self.fixed_clock = None
        self.admission = Admission(Deadlines(INF, INF), max_open=max_concurrency)
        self.batcher = Batcher(
            self.run,
            BatchPolicy(**{**bounds, **policy}, inline_cost_us=where),
            CostModel(),
            self.pool,
            self.record,
            lambda: time.monotonic() if self.fixed_clock is None else self.fixed_clock,
        )

    def run(self, batch):
        self.gate.wait(5)
        self.seen.append([item.value for item in batch])
        if any(item.value == "bug" for item in batch):
            raise ZeroDivisionError("a bug")
        return [BadRequest("odd one out") if item.value == "bad" else item.value**2 for item in batch]

    def ask(self, value, deadline=INF, lane=NORMAL, **kwargs):
        item = asked(value, asyncio.get_running_loop().create_future(), **kwargs)
        self.admission.admit(item)
        item.deadline, item.lane = deadline, lane
        try:
            self.batcher.put(item)
        except Overloaded:
            item.end()
            raise
        self.items.append(item)
        return item.future

    def withdraw(self, future):
        next(item for item in self.items if item.future is future).cancel()
        future.cancel()

    async def settle(self):
        await asyncio.wait_for(self.batcher.join(), 5)
        self.pool.shutdown()


@pytest.mark.parametrize("where", [LOOP, THREAD])
async def test_waiting_requests_share_a_batch_and_get_their_own_answers(where):
    rig = Rig(where)
    futures = [rig.ask(i) for i in range(10)]
    assert await asyncio.gather(*futures) == [i * i for i in range(10)]
    assert rig.seen == [list(range(10))]
    await rig.settle()


@pytest.mark.parametrize("where", [LOOP, THREAD])
@pytest.mark.parametrize("position", range(5))
async def test_cancelled_request_leaves_batch_mates_served(where, position):
    rig = Rig(where)
    futures = [rig.ask(i) for i in range(5)]
    rig.withdraw(futures[position])
    answers = await asyncio.gather(*futures, return_exceptions=True)
    assert [a for i, a in enumerate(answers) if i != position] == [i * i for i in range(5) if i != position]
    assert isinstance(answers[position], asyncio.CancelledError)
    assert rig.record.outcomes.count("cancelled") == 1
    await rig.settle()


@pytest.mark.parametrize("position", range(5))
async def test_request_cancelled_while_it_is_computed_leaves_batch_mates_served(position):
    rig = Rig(THREAD)
    rig.gate.clear()
    futures = [rig.ask(i) for i in range(5)]
    await asyncio.sleep(0.01)  # the batch is on the thread now
    rig.withdraw(futures[position])
    rig.gate.set()
    answers = await asyncio.gather(*futures, return_exceptions=True)
    assert [a for i, a in enumerate(answers) if i != position] == [i * i for i in range(5) if i != position]
    await rig.settle()


@pytest.mark.parametrize("where", [LOOP, THREAD])
@pytest.mark.parametrize("position", range(5))
async def test_failing_request_fails_alone(where, position):
    rig = Rig(where)
    values = [i if i != position else "bad" for i in range(5)]
    answers = await asyncio.gather(*[rig.ask(v) for v in values], return_exceptions=True)
    assert isinstance(answers[position], BadRequest)
    assert [a for i, a in enumerate(answers) if i != position] == [i * i for i in range(5) if i != position]
    assert len(rig.seen) == 1
    await rig.settle()


@pytest.mark.parametrize("where", [LOOP, THREAD])
@pytest.mark.parametrize("position", range(5))
async def test_request_that_breaks_the_whole_batch_fails_alone(where, position):
    rig = Rig(where)
    values = [i if i != position else "bug" for i in range(5)]
    answers = await asyncio.gather(*[rig.ask(v) for v in values], return_exceptions=True)
    assert isinstance(answers[position], RuntimeFailure)
    assert "ZeroDivisionError: a bug" in str(answers[position])
    assert [a for i, a in enumerate(answers) if i != position] == [i * i for i in range(5) if i != position]
    await rig.settle()


@pytest.mark.parametrize("where", [LOOP, THREAD])
@pytest.mark.parametrize("position", range(5))
async def test_late_request_gets_its_error_and_is_never_computed(where, position):
    rig = Rig(where)
    rig.fixed_clock = 100.0
    futures = [rig.ask(i, deadline=99.0 if i == position else INF) for i in range(5)]
    answers = await asyncio.gather(*futures, return_exceptions=True)
    assert isinstance(answers[position], DeadlineExceeded)
    assert rig.seen == [[i for i in range(5) if i != position]]
    await rig.settle()


@pytest.mark.parametrize("queued", [False, True])
async def test_deadline_is_kept_while_a_batch_blocks_the_thread(queued):
    rig = Rig(THREAD)
    rig.gate.clear()
    began = time.monotonic()
    if queued:
        blocking = rig.ask(3)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    late = rig.ask(2, deadline=began + 0.05)
    with pytest.raises(DeadlineExceeded):
        await asyncio.wait_for(late, 60)
    assert 0.045 <= time.monotonic() - began < 20  # the gate is closed
    rig.gate.set()
    if queued:
        assert await blocking == 9
    await rig.settle()


@pytest.mark.parametrize("where", [LOOP, THREAD])
async def test_answer_that_cannot_be_delivered_costs_the_others_nothing(where):
    rig = Rig(where)
    futures = [rig.ask(i) for i in range(3)]
    futures[1].set_result("taken")  # delivering raises
    assert await asyncio.gather(*futures) == [0, "taken", 4]
    await rig.settle()


class Failing(Record):
    """An observer of which one method, or all, fail."""

    def __init__(self, name):
        super().__init__()

        def fail(*args):
            raise ZeroDivisionError("an observer's bug")

        for each in ("batch", "late", "outcome", "postponed", "larger"):
            if name in (each, "all"):
                setattr(self, each, fail)


@pytest.mark.parametrize("where", [LOOP, THREAD])
@pytest.mark.parametrize("name", ["batch", "late", "outcome", "all"])
async def test_an_observer_that_fails_costs_no_request_its_answer(where, name, caplog):
    """The next batch is computed too, and the fault is logged."""
    rig = Rig(where, max_rows=2)
    rig.batcher._observer = Failing(name)
    futures = [rig.ask(value) for value in (0, "bad", 2, 3, 4)]
    late = rig.ask(5, deadline=time.monotonic() - 1)
    answers = await asyncio.wait_for(asyncio.gather(*futures, late, return_exceptions=True), 5)
    assert [type(answers[at]) for at in (1, 5)] == [BadRequest, DeadlineExceeded]
    assert answers[:1] + answers[2:5] == [0, 4, 9, 16]
    assert await asyncio.wait_for(rig.ask(6), 5) == 36
    await rig.settle()
    assert "an observer's bug" in caplog.text


@pytest.mark.parametrize("where", [LOOP, THREAD])
async def test_a_request_whose_missing_rows_cannot_be_fetched_gets_an_error(where):
    rig = Rig(where)
    rig.batcher._observer = Failing("postponed")
    rig.batcher._run = lambda batch: [None if item.value == "lacks" else item.value for item in batch]
    first, second = rig.ask("lacks"), rig.ask(2)
    with pytest.raises(RuntimeFailure, match="lacks could not be fetched"):
        await asyncio.wait_for(first, 5)
    assert await second == 2
    await rig.settle()


@pytest.mark.parametrize("where", [LOOP, THREAD])
async def test_a_batch_whose_rows_cannot_be_counted_is_answered(where, caplog):
    rig = Rig(where)
    rig.batcher._rows_of = lambda batch: 1 // 0
    for value in range(8):
        assert await asyncio.wait_for(rig.ask(value), 5) == value**2
    await rig.settle()
    assert "ZeroDivisionError" in caplog.text


async def test_withdrawn_request_is_counted_once_and_never_delivered():
    rig = Rig(LOOP)
    futures = [rig.ask(i) for i in range(3)]
    rig.withdraw(futures[1])
    rig.batcher.withdraw(rig.items[1])
    await asyncio.gather(futures[0], futures[2])
    rig.batcher.withdraw(rig.items[0])  # too late
    assert rig.seen == [[0, 2]]
    assert sorted(rig.record.outcomes) == ["cancelled", "ok", "ok"]
    await rig.settle()


async def test_batches_are_bounded_by_rows_and_bytes():
    rig = Rig(LOOP, max_rows=4, max_bytes=100)
    futures = [rig.ask(i, rows=2) for i in range(3)] + [rig.ask(9, num_bytes=60), rig.ask(8, num_bytes=60)]
    await asyncio.gather(*futures)
    assert rig.seen == [[0, 1], [2, 9], [8]]
    await rig.settle()


async def test_request_larger_than_a_batch_runs_alone():
    rig = Rig(LOOP, max_rows=4)
    futures = [rig.ask(1), rig.ask(2, rows=50), rig.ask(3)]
    assert await asyncio.gather(*futures) == [1, 4, 9]
    assert rig.seen == [[1], [2], [3]]
    await rig.settle()


async def test_full_queue_refuses_with_the_time_to_come_back_and_loses_nothing():
    rig = Rig(THREAD, max_queue_rows=10)
    rig.gate.clear()
    running = rig.ask(1)
    await asyncio.sleep(0.01)
    waiting = [rig.ask(i, rows=5) for i in (2, 3)]
    with pytest.raises(Overloaded, match="10 predicted rows; 1 more would pass the limit of 10") as refused:
        rig.ask(4)
    assert refused.value.retry_after_s > 0
    rig.gate.set()
    assert await asyncio.gather(running, *waiting) == [1, 4, 9]
    await rig.settle()


async def test_empty_queue_takes_any_request():
    rig = Rig(LOOP, max_queue_rows=10)
    assert await rig.ask(2, rows=10_000) == 4
    await rig.settle()


async def test_queue_delay_waits_for_company_but_not_longer():
    rig = Rig(LOOP, queue_delay_s=0.5)
    began = time.monotonic()
    first = rig.ask(1)
    await asyncio.sleep(0.01)
    second = rig.ask(2)
    await asyncio.gather(first, second)
    assert rig.seen == [[1, 2]]
    assert 0.45 <= time.monotonic() - began < 20
    await rig.settle()


async def test_queue_delay_ends_when_the_batch_is_full():
    rig = Rig(LOOP, queue_delay_s=30.0, max_rows=2)
    futures = [rig.ask(1), rig.ask(2)]
    assert await asyncio.wait_for(asyncio.gather(*futures), 2) == [1, 4]
    await rig.settle()


async def test_a_closed_admission_refuses_new_requests_and_old_ones_finish():
    rig = Rig(THREAD)
    rig.gate.clear()
    admitted = [rig.ask(i) for i in range(3)]
    rig.admission.closed = "the server is shutting down"
    with pytest.raises(Unavailable, match="shutting down"):
        rig.ask(7)
    rig.gate.set()
    await rig.settle()
    assert [f.result() for f in admitted] == [0, 1, 4]


async def test_requests_that_come_while_a_batch_runs_form_the_next_one():
    rig = Rig(THREAD)
    rig.gate.clear()
    first = rig.ask(1)
    await asyncio.sleep(0.01)
    others = [rig.ask(i) for i in (2, 3)]
    rig.gate.set()
    assert await asyncio.gather(first, *others) == [1, 4, 9]
    assert rig.seen == [[1], [2, 3]]
    await rig.settle()


async def test_lanes_are_served_in_the_order_of_their_ranks():
    rig = Rig(THREAD, max_rows=2)
    rig.gate.clear()
    first = rig.ask(0)
    await asyncio.sleep(0.01)
    lanes = [LOW, NORMAL, HIGH, LOW, NORMAL, HIGH]
    futures = [rig.ask(value, lane=lane) for value, lane in enumerate(lanes, 1)]
    rig.gate.set()
    await asyncio.gather(first, *futures)
    assert rig.seen == [[0], [3, 6], [2, 5], [1, 4]]
    await rig.settle()


async def test_low_is_not_starved_by_high_that_never_ends():
    rig = Rig(LOOP, max_rows=1)
    rig.fixed_clock = 0.0
    low = rig.ask(1000, lane=LOW)
    served = 0
    while not low.done():
        assert rig.fixed_clock < 2.0
        rig.fixed_clock += 0.05
        high = rig.ask(served, lane=HIGH)  # one for each that is served: the lane is never empty
        rig.ask(-1, lane=HIGH)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        served += high.done()
    assert rig.fixed_clock <= 1.1  # its handicap
    await rig.settle()


async def test_low_is_refused_when_half_the_queue_is_full():
    rig = Rig(THREAD, max_queue_rows=10)
    rig.gate.clear()
    running = rig.ask(1)
    await asyncio.sleep(0.01)
    waiting = [rig.ask(2, rows=4), rig.ask(3, rows=1, lane=LOW)]
    with pytest.raises(Overloaded, match="limit of 5 for low priority"):
        rig.ask(4, lane=LOW)
    waiting += [rig.ask(4, rows=5)]
    rig.gate.set()
    assert await asyncio.gather(running, *waiting) == [1, 4, 9, 16]
    await rig.settle()


async def test_full_queue_gives_way_to_the_more_urgent_newest_first():
    rig = Rig(THREAD, max_queue_rows=10)
    rig.gate.clear()
    running = rig.ask(1)
    await asyncio.sleep(0.01)
    lows = [rig.ask(value, rows=2, lane=LOW) for value in (2, 3)]
    normals = [rig.ask(value, rows=3) for value in (4, 5)]
    high = rig.ask(6, rows=3, lane=HIGH)  # needs the room of both low ones
    for low in lows:
        with pytest.raises(Overloaded, match="gave way"):
            await low
    second = rig.ask(7, rows=3, lane=HIGH)  # now the newest normal one goes
    with pytest.raises(Overloaded, match="gave way"):
        await normals[1]
    with pytest.raises(Overloaded, match="limit of 10"):
        rig.ask(8, rows=2)  # as urgent as those that wait: refused
    rig.gate.set()
    assert await asyncio.gather(running, normals[0], high, second) == [1, 16, 36, 49]
    assert rig.record.outcomes.count("overloaded") == 3
    await rig.settle()


async def test_nobody_gives_way_in_vain():
    rig = Rig(THREAD, max_queue_rows=10)
    rig.gate.clear()
    running = rig.ask(1)
    await asyncio.sleep(0.01)
    waiting = [rig.ask(2, rows=4, lane=LOW), rig.ask(3, rows=6, lane=HIGH)]
    with pytest.raises(Overloaded, match="the limit of 10"):
        rig.ask(4, rows=5)
    rig.gate.set()
    assert await asyncio.gather(running, *waiting) == [1, 4, 9]
    await rig.settle()


async def test_what_waited_longer_than_its_handicap_gives_way_to_nobody():
    rig = Rig(THREAD, max_queue_rows=10)
    rig.fixed_clock = 100.0
    rig.gate.clear()
    running = rig.ask(1)
    await asyncio.sleep(0.01)
    low = rig.ask(2, rows=4, lane=LOW)
    normal = rig.ask(3, rows=6)
    rig.fixed_clock = 101.1
    with pytest.raises(Overloaded):
        rig.ask(4, rows=1, lane=HIGH)
    rig.gate.set()
    assert await asyncio.gather(running, low, normal) == [1, 4, 9]
    await rig.settle()


@pytest.mark.parametrize("where", [LOOP, THREAD])
async def test_concurrency_counts_what_has_no_outcome(where):
    rig = Rig(where, max_concurrency=2)
    first, second = rig.ask(1), rig.ask("bad")
    with pytest.raises(Overloaded, match="max_concurrency"):
        rig.ask(3)
    rig.withdraw(first)
    third = rig.ask(3)  # whoever is withdrawn makes room at once
    with pytest.raises(Overloaded, match="max_concurrency"):
        rig.ask(4)
    assert await third == 9
    with pytest.raises(BadRequest):
        await second
    assert await asyncio.gather(rig.ask(4), rig.ask(5)) == [16, 25]
    assert rig.admission.num_open == 0
    await rig.settle()


async def test_late_requests_make_room():
    rig = Rig(LOOP, max_concurrency=1)
    rig.fixed_clock = 10.0
    with pytest.raises(DeadlineExceeded):
        await rig.ask(1, deadline=9.0)
    assert await rig.ask(2) == 4
    await rig.settle()


class Timed(Turn):
    """A turn whose time follows from its rows, so that a pause of the machine does not count as its use."""

    took_s = 0.0

    def end(self, used_s):
        super().end(self.took_s)


class Pair:
    """Two batchers on one loop that share a turnstile; each row takes 100 µs."""

    def __init__(self, **policy):
        self.gate = Turnstile()
        self.order = []
        self.rigs = [Rig(LOOP, **policy) for _ in range(2)]
        for name, rig in zip("ab", self.rigs, strict=True):
            turn = rig.batcher._turn = Timed(self.gate, 1.0)
            rig.batcher.cost.fixed_us, rig.batcher.cost.us_per_row = 0.0, 100.0
            rig.batcher.cost.observe = lambda rows, us: None
            run = rig.run
            rig.batcher._run = lambda batch, name=name, run=run, turn=turn: (
                self.order.append((name, len(batch))),
                setattr(turn, "took_s", len(batch) * 1e-4),
                run(batch),
            )[2]


async def test_a_flooded_model_keeps_a_shared_loop_for_a_slice_at_a_time():
    pair = Pair(slice_us=500.0)
    a, b = pair.rigs
    await a.ask(1)
    await b.ask(1)
    pair.order.clear()
    flood = [a.ask(value) for value in range(50)]
    await asyncio.sleep(0)
    quiet = b.ask(7)
    assert await quiet == 49
    assert len(pair.order) <= 3  # it did not wait for the flood
    await asyncio.gather(*flood)
    assert max(size for _, size in pair.order) == 5  # 500 µs of 100 µs each
    for rig in pair.rigs:
        await rig.settle()


async def test_a_model_that_is_alone_on_the_loop_batches_all_that_waits():
    pair = Pair(slice_us=500.0)
    a, b = pair.rigs
    await asyncio.gather(*[a.ask(value) for value in range(50)])
    assert pair.order == [("a", 50)]
    for rig in (a, b):
        await rig.settle()


async def test_a_request_larger_than_a_slice_leaves_a_shared_loop():
    pair = Pair(slice_us=500.0)
    a, b = pair.rigs
    await a.ask(1)
    await b.ask(1)
    a.gate.clear()
    large = a.ask(3, rows=40)  # 4 ms: on the loop when alone, on a thread now
    await asyncio.sleep(0.01)
    assert await b.ask(2) == 4
    assert not large.done()
    a.gate.set()
    assert await large == 9
    for rig in (a, b):
        await rig.settle()


def in_loop(name, scenario):
    """Run a coroutine in asyncio's loop, or in that of the server."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if name == "uvloop" else None) as runner:
        runner.run(scenario())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("ahead_s", [0.0, 0.0002, 0.001])
def test_a_deadline_that_has_almost_come_harms_no_other_request(loop, ahead_s):
    async def scenario():
        rig = Rig(THREAD)
        rig.gate.clear()
        running = rig.ask(1)
        await asyncio.sleep(0.02)
        late = rig.ask(2, deadline=time.monotonic() + ahead_s)
        patient, other = rig.ask(3, deadline=time.monotonic() + 30), rig.ask(4)
        with pytest.raises(DeadlineExceeded):
            await late
        rig.gate.set()
        assert await asyncio.gather(running, patient, other) == [1, 9, 16]
        await rig.settle()

    in_loop(loop, scenario)


class Pipelined:
    """A connection that sends its next request when it is told the outcome of the last one, at once."""

    def __init__(self, rig, rng, count):
        self.rig, self.rng, self.left = rig, rng, count
        self.outcomes = {}
        self.done = asyncio.get_running_loop().create_future()

    def send(self):
        value, self.left = self.left, self.left - 1
        ahead_s = self.rng.choice([0.0, 0.0001, 0.0003, 0.002, 0.02, 0.2, INF])

        def deliver(outcome):
            assert value not in self.outcomes
            self.outcomes[value] = outcome
            if self.left:
                self.send()
            elif not self.done.done():
                self.done.set_result(None)

        item = Asked(ScoreRequest("m"), deliver, rows=1, num_bytes=1, value=value)
        self.rig.admission.admit(item)
        item.deadline, item.lane = time.monotonic() + ahead_s, self.rng.choice([HIGH, NORMAL, LOW])
        try:
            self.rig.batcher.put(item)
        except Overloaded as error:
            item.end()
            asyncio.get_running_loop().call_soon(deliver, error)


@pytest.mark.sample(9)
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("policy", [{}, {"max_rows": 2}, {"max_rows": 2, "queue_delay_s": 0.001}])
@pytest.mark.parametrize("seed", range(3))
def test_one_batch_runs_at_a_time_whatever_callers_send_on_an_outcome(loop, policy, seed):
    """Requests of several connections, many with a deadline that passes while they wait or run."""

    async def scenario():
        rng = random.Random(seed)
        rig = Rig(THREAD, **policy)
        rig.pool = rig.batcher._executor = ThreadPoolExecutor(3)
        running, most, right = [0], [0], rig.run

        def run(batch):
            running[0] += 1
            most[0] = max(most[0], running[0])
            time.sleep(rng.choice([0.0, 0.0005, 0.003]))
            found = right(batch)
            running[0] -= 1
            return found

        rig.batcher._run = run
        connections = [Pipelined(rig, rng, 40) for _ in range(6)]
        for connection in connections:
            connection.send()
        await asyncio.wait_for(asyncio.gather(*(each.done for each in connections)), 30)
        assert most[0] == 1
        for connection in connections:
            assert set(connection.outcomes) == set(range(1, 41))
            for value, outcome in connection.outcomes.items():
                assert outcome == value**2 or isinstance(outcome, DeadlineExceeded)
        await rig.settle()

    in_loop(loop, scenario)
