"""What a worker counts of a rollout, and where the one that decides finds it."""

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from hopline.answering.outcome_counts import OutcomeCounts
from hopline.answering.served import Ran
from hopline.errors import RuntimeFailure
from hopline.observe.metrics import Metrics
from hopline.rollout.gates import Gates, verdict, weighed
from hopline.rollout.judge import RolloutJudge
from hopline.rollout.monitor import RolloutMonitor
from hopline.rollout.rollout import RolloutRequest, begin, forward
from hopline.rollout.store import fleet as fleet_module
from hopline.rollout.store.fleet import Fleet
from hopline.rollout.store.folder import FolderStore
from hopline.types import ScoreRequest, ScoreResult


@pytest.fixture
def rollout():
    return begin(RolloutRequest("m", "2", "canary"), "1", "2", 0.0)


def scored(count, power=1.0, first=0):
    """A tally of so many rows, whose scores the candidate raises to a power."""
    values = np.random.default_rng(count).beta(2, 5, count)
    pairs = {
        first + row: (None, None, float(value), float(value**power), True)
        for row, value in enumerate(values)
    }
    return OutcomeCounts(requests=count, compared=count, pairs=pairs)


@pytest.fixture
def member(tmp_path, monkeypatch):
    """Members of one fleet, that exchange counts at each `flush`."""
    monkeypatch.setattr(fleet_module, "_JUDGE_READ_S", 0.0)
    monkeypatch.setattr(fleet_module, "_READ_S", 0.0)
    made = []

    def member():
        made.append(Fleet(FolderStore(tmp_path, index=len(made))))
        return made[-1]

    yield member
    for fleet in made:
        fleet.close()


def test_what_one_worker_publishes_another_adds_up(rollout, tmp_path, member):
    fleets = [member(), member()]
    mine, theirs = (RolloutMonitor(rollout, fleet) for fleet in fleets)
    mine.tallies["2"] = scored(30)
    theirs.tallies["2"] = scored(12, first=100)
    for watch in (mine, theirs):
        watch.publish()
    for fleet in (*fleets, fleets[0]):
        fleet.flush()
    for watch in (mine, theirs):
        current, candidate = watch.totals()
        assert (current.requests, candidate.requests, len(candidate.pairs)) == (0, 42, 42)
    assert len(mine.tallies["2"].pairs) == 30  # adding up changes nobody's counts
    theirs.withdraw()
    for fleet in reversed(fleets):
        fleet.flush()
    assert mine.totals()[1].requests == 30
    assert len(list(tmp_path.glob("*.outcomes"))) == 1


@pytest.mark.parametrize(
    "counts",
    [b"", b"rubbish", msgspec.msgpack.encode({"1": 5}), b"\x81\xa1\xff\x80"],
    ids=["empty", "rubbish", "another form", "not UTF-8"],
)
def test_counts_that_cannot_be_read_are_left_out_and_reported_once(rollout, member, caplog, counts):
    ours, others, broken = member(), member(), member()
    mine, theirs = RolloutMonitor(rollout, ours), RolloutMonitor(rollout, others)
    theirs.tallies["2"] = scored(12)
    for watch in (mine, theirs):
        watch.publish()
    step = f"{rollout.id}-{rollout.step}"
    broken.publish_counts(step, counts)
    broken.mark_slow(step, counts)
    for fleet in (broken, others, ours):
        fleet.flush()
    for _ in range(2):
        assert mine.totals()[1].requests == 12
        assert mine.slow_latency() is None
    (warning,) = caplog.messages
    assert "another release of Hopline" in warning


@pytest.mark.parametrize(("kind", "interval_s"), [("canary", 0.2), ("shadow", 1.0)])
def test_a_step_is_judged_in_intervals_and_not_by_its_first_moment(kind, interval_s, member):
    clock = SimpleNamespace(now=5.0)
    rollout = begin(RolloutRequest("m", "2", kind), "1", "2", 0.0)
    watch = RolloutMonitor(rollout, member(), clock=lambda: clock.now)
    for _ in range(3):
        assert not watch.is_due
        clock.now += 0.9 * interval_s
        assert not watch.is_due
        clock.now += 0.11 * interval_s
        assert watch.is_due
        watch.publish()


def test_batches_are_counted_a_few_at_a_time_and_whenever_somebody_looks(rollout, member):
    watch = RolloutMonitor(forward(rollout, "preflighted", 0.0), member())

    def batch(version, outcomes, *, model="m", stages=(), is_copy=False):
        asked = [ScoreRequest(model, is_copy=is_copy)] * len(outcomes)
        served = SimpleNamespace(name=model, version=version)
        watch.record(Ran(served, asked, outcomes, [0.0] * len(outcomes), 0.001, dict.fromkeys(stages), 0.0))

    answer, error = ScoreResult("m", "1", "g", {}), RuntimeFailure("no")
    for turn in range(100):
        batch("1", [answer, None])  # what waits for rows is told of again
        batch("2", [answer, answer, error])
        batch("2", [answer], is_copy=True)
        batch("1", [answer], stages=("cache",))
        batch("1", [answer], model="other")
        batch("9", [answer])
        if turn % 7 == 0:
            current, candidate = watch.totals()
            assert (current.requests, candidate.requests, candidate.errors) == (
                turn + 1,
                3 * (turn + 1),
                turn + 1,
            )
    assert sum(watch.tallies["1"].latency) == 100
    assert sum(watch.tallies["2"].latency) == 200


@pytest.mark.parametrize("is_written", [True, False])
async def test_counts_of_a_step_that_is_over_are_not_left_behind(
    rollout, tmp_path, member, monkeypatch, is_written
):
    monkeypatch.setattr(RolloutMonitor, "is_due", True)
    fleet = member()
    judge = RolloutJudge(Metrics(), [], fleet)
    served = SimpleNamespace(
        name="m", version="1", graph_version="", info=lambda versions: SimpleNamespace(kind="graph")
    )
    judge.between(rollout, served, served)
    assert await anext(judge.judge(lambda: 0.0), None) is None
    if is_written:
        fleet.flush()
        assert list(tmp_path.glob("*.outcomes"))
    judge.leave("m")
    fleet.flush()
    assert not list(tmp_path.glob("*.outcomes"))


async def test_counts_stay_when_a_worker_ends(rollout, tmp_path, member, monkeypatch):
    """A rollout goes on in the others, and after a restart."""
    monkeypatch.setattr(RolloutMonitor, "is_due", True)
    fleet = member()
    judge = RolloutJudge(Metrics(), [], fleet)
    served = SimpleNamespace(
        name="m", version="1", graph_version="", info=lambda versions: SimpleNamespace(kind="graph")
    )
    judge.between(rollout, served, served)
    assert await anext(judge.judge(lambda: 0.0), None) is None
    fleet.flush()
    judge.close()
    fleet.close()
    assert len(list(tmp_path.glob("*.outcomes"))) == 1


async def test_a_candidate_that_is_slow_goes_back_at_the_second_look(rollout, member, monkeypatch):
    monkeypatch.setattr(RolloutMonitor, "is_due", True)
    fleet = member()
    judge = RolloutJudge(Metrics(), [], fleet)
    served = SimpleNamespace(
        name="m", version="1", graph_version="", info=lambda versions: SimpleNamespace(kind="graph")
    )
    rollout = forward(rollout, "preflighted", 0.0)
    judge.between(rollout, served, served)
    (watch,) = judge._watches.values()
    watch.publish()
    fleet.flush()  # takes the lead

    def answer(version, seconds, count):
        for _ in range(count):
            watch.tallies[version].count(object(), seconds)

    async def look():
        moved = await anext(judge.judge(lambda: 0.0), None)
        fleet.flush()
        return judge.seen(rollout)["verdict"], None if moved is None else moved[1].status

    def slow_elsewhere():
        other = member()
        there = RolloutMonitor(rollout, other)
        there.publish()
        other.flush()
        return there.slow_latency()

    answer("1", 0.001, 200)
    answer("2", 0.2, 50)
    assert judge.seen(rollout)["verdict"] == "slow"
    assert await look() == ("wait", "running")
    assert slow_elsewhere() == watch.slow_latency() != watch.tallies["1"].latency
    answer("2", 0.001, 60)
    assert await look() == ("wait", None)
    answer("2", 0.2, 50)
    assert await look() == ("bad", "rolled_back")
    judge.forget(rollout)
    fleet.flush()
    assert slow_elsewhere() is None
    judge.close()


def test_pairs_are_weighed_once_a_second_or_when_there_is_more_to_see(rollout, member):
    clock = SimpleNamespace(now=100.0)
    watch = RolloutMonitor(rollout, member(), clock=lambda: clock.now)
    gates = Gates()
    same, moved = scored(400), scored(400, power=3.0)
    first = watch.evidence(same, gates)
    assert first == weighed(same, gates)
    assert watch.evidence(moved, gates) is first
    clock.now += 1.0
    assert watch.evidence(moved, gates) == weighed(moved, gates) != first
    more = scored(500)
    assert watch.evidence(more, gates) == weighed(more, gates)
    assert watch.evidence(scored(510), gates) == weighed(more, gates)


def test_what_the_pairs_said_is_the_verdict_until_the_next_look(rollout, member):
    watch = RolloutMonitor(rollout, member(), clock=lambda: 1.0)
    moved, gates = scored(1000, power=3.0), Gates(max_disagreement=1.0)
    for candidate in (moved, scored(1000)):
        word, why, gate = verdict(gates, OutcomeCounts(), candidate, evidence=watch.evidence)
        assert (word, gate, "outputs shifted" in why) == ("bad", "max_psi", True)
    assert verdict(gates, OutcomeCounts(), scored(1000)).word == "good"


@pytest.mark.parametrize(
    ("wanted", "found", "compared", "differing"),
    [
        ("g+1", "g+1", 1, 1),
        ("g", "h", 1, 1),  # another snapshot is part of what is tried
        ("g+1", "g+2", 0, 0),
        ("g", "g+2", 0, 0),
    ],
)
def test_answers_about_versions_of_a_live_graph_are_no_difference_of_models(
    wanted: str, found: str, compared: int, differing: int
) -> None:
    def result(graph_version: str, score: float) -> ScoreResult:
        outputs = {"probabilities": np.array([score], np.float32)}
        return ScoreResult("m", "1", graph_version, outputs)

    tally = OutcomeCounts()
    tally.compare(result(wanted, 0.5), result(found, 0.9), 1e-6, lambda count: [1])
    assert (tally.compared, tally.differing) == (compared, differing)
    tally.compare(
        result(wanted, 0.5), result(found, 0.5), 1e-6, lambda count: [1]
    )  # nothing below it has changed
    assert (tally.compared, tally.differing) == (compared + 1, differing)


def test_the_first_rows_that_suffice_are_looked_at_immediately(rollout, member):
    watch = RolloutMonitor(rollout, member(), clock=lambda: 1.0)
    pairs = dict.fromkeys(range(104), (None, None, 0.0, 1.0, True))
    few = OutcomeCounts(pairs={row: pairs[row] for row in range(82)})
    assert watch.evidence(few, Gates())[""].shift is None
    found = watch.evidence(OutcomeCounts(pairs=pairs), Gates())[""].shift
    assert found is not None
    assert found.above(0.25)
