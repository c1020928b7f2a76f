"""Gates: certain when they act, and quick to be certain."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopline.answering.outcome_counts import OutcomeCounts, bucket, merged
from hopline.answering.row_keys import row_keys
from hopline.errors import BadRequest, NodeNotFound, Overloaded, RateLimited, RuntimeFailure
from hopline.rollout.gates import Gates, Verdict, exceeds, verdict
from hopline.rollout.rollout import RolloutRequest, begin, paused, step
from hopline.rollout.split import Split
from hopline.types import ScoreRequest, ScoreResult
from tests.fake_version import hand_in


def binomial_tail(hits, count, share):
    """P(X >= hits), exactly."""
    return sum(math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(hits, count + 1))


@given(st.integers(1, 80), st.data(), st.floats(0.01, 0.99))
def test_what_exceeds_is_improbable(count, data, limit):
    hits = data.draw(st.integers(0, count))
    if exceeds(hits, count, limit):
        assert binomial_tail(hits, count, limit) < 1e-5


@pytest.mark.parametrize(("hits", "count"), [(3, 3), (4, 8), (10, 100)])
def test_clear_evidence_does_not_wait(hits, count):
    assert exceeds(hits, count, 0.01)


@pytest.mark.parametrize(("hits", "count"), [(1, 1), (1, 40), (3, 150), (12, 1000)])
def test_little_evidence_does_not_decide(hits, count):
    assert not exceeds(hits, count, 0.01)


class Steady:
    """Every answer takes as long."""

    def uniform(self, low, high):
        return 1.0


#: Slow before, but what was slow is not among what is given.
NO_COUNTS = [0] * len(OutcomeCounts().latency)


def tally(seconds=0.001, requests=1000, errors=0, scores=None, rng=None):
    rng = rng or random.Random(0)
    found = OutcomeCounts()
    for i in range(requests):
        outcome = RuntimeFailure("broken") if i < errors else object()
        found.count(outcome, seconds * rng.uniform(0.5, 1.5))
    for row, (before, after) in enumerate([] if scores is None else zip(*scores, strict=True)):
        compare(found, row, answer(before), answer(after))
    return found


def compare(tally, node, wanted, found):
    """Both versions' outcomes for one node."""
    tally.compare(wanted, found, 0.1, lambda count: row_keys(ScoreRequest("m", nodes=[node]), count))


def answer(score):
    return ScoreResult("m", "1", "g", {"probabilities": np.array([score], np.float32)})


def shifted(requests, by):
    before = np.random.default_rng(1).beta(2, 5, requests)
    return before, before**by


def test_an_equal_candidate_is_good():
    word, why, gate = verdict(Gates(), tally(), tally(rng=random.Random(1)))
    assert (word, gate) == ("good", ""), why


def test_equal_candidates_are_never_rolled_back_by_chance():
    rng = np.random.default_rng(7)
    for _ in range(300):
        current = tally(requests=400, errors=2)
        # few entities, asked about many times: only pairs tell that nothing changed
        scores = rng.choice(rng.beta(2, 5, 7), 120)
        candidate = tally(requests=120, errors=1, scores=(scores, scores), rng=random.Random(3))
        assert verdict(Gates(), current, candidate)[0] != "bad"


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (tally(requests=10, errors=5), "error rate: 5 of 10 requests failed"),
        (tally(seconds=0.01, requests=10), "latency: 10 of 10"),
        (tally(seconds=0.0023, requests=60, rng=Steady()), "the current median is 1."),
        (tally(requests=300, scores=shifted(300, 0.2)), "have another decision"),
    ],
)
def test_each_fault_is_named(candidate, reason):
    word, why, gate = verdict(Gates(), tally(), candidate, slow_latency=NO_COUNTS)
    assert word == "bad"
    assert reason in why
    assert gate in Gates.__struct_fields__


def test_one_pause_of_the_machine_is_not_the_versions_fault():
    gates = Gates(min_requests=100)
    candidate = tally(seconds=0.2, requests=60)  # all that came in one pause
    word, why, _ = verdict(gates, tally(), candidate)
    assert (word, "latency: 60 of 60" in why) == ("slow", True)
    slow_latency = list(candidate.latency)
    assert verdict(gates, tally(), candidate, slow_latency=slow_latency)[:2] == (
        "wait",
        "0 of 100 requests",
    )
    candidate.add(tally(requests=99))
    assert verdict(gates, tally(), candidate, slow_latency=slow_latency)[:2] == (
        "wait",
        "99 of 100 requests",
    )
    candidate.add(tally(requests=1))
    assert verdict(gates, tally(), candidate, slow_latency=slow_latency)[0] == "good"
    candidate.add(tally(seconds=0.2, requests=60))
    word, why, _ = verdict(gates, tally(), candidate, slow_latency=slow_latency)
    assert (word, "latency: 60 of 160" in why) == ("bad", True)


def test_after_a_slow_verdict_one_answer_is_not_enough():
    candidate = tally(seconds=0.2, requests=60)
    slow_latency = list(candidate.latency)
    candidate.add(tally(seconds=0.2, requests=1))
    assert verdict(Gates(min_requests=1), tally(), candidate, slow_latency=slow_latency) == Verdict(
        "wait", "1 of 20 requests"
    )


def test_small_differences_harm_nobody():
    fast, slower = tally(seconds=0.0001), tally(seconds=0.0002, rng=random.Random(1))
    assert verdict(Gates(), fast, slower)[0] == "good"
    assert "latency" in verdict(Gates(slack_ms=0.0), fast, slower)[1]


def test_a_preflight_is_not_judged_by_its_speed():
    slow = tally(seconds=1.0, requests=100)
    assert verdict(Gates(), tally(), slow, preflight=100)[0] == "good"
    assert verdict(Gates(), tally(), tally(requests=99), preflight=100)[0] == "wait"
    assert verdict(Gates(), tally(), tally(requests=20, errors=9), preflight=100)[0] == "bad"


def test_too_few_requests_wait():
    assert verdict(Gates(min_requests=100), tally(), tally(requests=99, errors=0)) == Verdict(
        "wait", "99 of 100 requests"
    )


@pytest.mark.parametrize(
    ("rows", "far", "word"), [(110, 11, "wait"), (110, 3, "good"), (330, 33, "bad"), (2000, 88, "good")]
)
def test_undecided_rows_hold_a_candidate_back_until_more_of_them_or_a_full_sample_decide(rows, far, word):
    before = np.linspace(0.0, 1.0, rows)
    after = before.copy()
    after[:far] = before[:far] + 0.6  # 4 % of ranks may move by more than a quarter
    found = verdict(Gates(min_requests=100), tally(), tally(requests=rows, scores=(before, after)))
    assert found.word == word, found.why
    if word != "good":
        assert (found.gate, f"ranks of {far} of {rows} rows" in found.why) == ("max_disagreement", True)


def test_a_candidate_that_refuses_what_the_current_version_answers_fails_by_its_own_words():
    answer = ScoreResult("m", "1", "g", {"label": np.array([1])})
    found = OutcomeCounts()
    for node in range(20):
        compare(found, node, answer, BadRequest("column 'country' is missing"))
        compare(found, node, BadRequest("nonsense"), BadRequest("nonsense"))
        compare(found, node, BadRequest("a column that is not needed any more"), answer)
        compare(found, node, answer, RateLimited("the caller's own pace"))
    assert (found.compared, found.refused, found.differing) == (20, 20, 0)
    word, why, gate = verdict(Gates(), tally(), found)
    assert (word, gate) == ("bad", "max_error_rate")
    assert "20 of 20 that the current version answers (bad_request: column 'country' is missing)" in why


@pytest.mark.parametrize(("graph", "refused"), [("0123456789abcdef", 1), ("0123456789abcdef+4", 0)])
def test_a_node_that_a_live_graph_has_lost_is_no_refusal_of_the_candidate(graph, refused):
    """Both versions read one live graph, one of them perhaps a moment later; a snapshot never changes."""
    found, answer = OutcomeCounts(), ScoreResult("m", "1", graph, {"label": np.array([1])})
    compare(found, 1, answer, NodeNotFound("1 of 1 node ids are not in the graph"))
    assert (found.refused, found.differing) == (refused, 0)


def test_callers_own_mistakes_are_nobodys_errors():
    found = OutcomeCounts()
    found.count(BadRequest("x"), 0.0)
    found.count(Overloaded("x"), 0.0)
    assert (found.requests, found.errors) == (1, 1)


@given(st.lists(st.floats(1e-6, 200), min_size=200, max_size=400))
def test_the_p99_is_an_upper_bound_within_a_bucket(seconds):
    found = OutcomeCounts()
    for each in seconds:
        found.count(object(), each)
    exact = sorted(seconds)[min(len(seconds) - 1, math.floor(0.99 * len(seconds)))]
    p99 = found.p99_s()
    assert p99 is not None
    assert bucket(exact) <= bucket(p99 * 0.9999)
    if 1e-5 < exact < 90:
        assert exact * 0.999 <= p99 <= exact * 10 ** (1 / 20) * 1.001


def test_tallies_of_workers_add_up():
    both = merged([tally(requests=10), tally(requests=20, errors=3)])
    assert (both.requests, both.errors, sum(both.latency)) == (30, 3, 27)


def test_steps_need_time_and_evidence():
    rollout = begin(RolloutRequest("m", "2", min_step_s=60), "1", "2", 1000.0)
    assert (rollout.percent, rollout.copies) == (0, 100)
    rollout = step(rollout, Verdict("good", "100 copies"), 1000.0)  # a pre-flight lasts as long as it takes
    assert (rollout.percent, rollout.copies) == (5, 0)
    assert step(rollout, Verdict("good", ""), 1059.0) is rollout
    assert step(rollout, Verdict("wait", ""), 2000.0) is rollout
    doubtful = step(rollout, Verdict("slow", "latency: 4 of 4"), 1010.0)
    assert (doubtful.percent, doubtful.events[-1].text[-15:]) == (5, "latency: 4 of 4")
    for percent in (25, 50, 100):
        rollout = step(rollout, Verdict("good", "fine"), rollout.step_since + 60)
        assert rollout.percent == percent
    rollout = step(rollout, Verdict("good", "fine"), rollout.step_since + 60)
    assert rollout.status == "promoted"
    assert step(rollout, Verdict("bad", ""), 9999.0) is rollout


def test_one_that_is_not_automatic_waits_for_people_but_still_goes_back():
    rollout = begin(RolloutRequest("m", "2", min_step_s=0, auto=False), "1", "2", 0.0)
    assert step(rollout, Verdict("good", ""), 100.0) is rollout
    assert step(rollout, Verdict("bad", "errors", "max_error_rate"), 100.0).status == "rolled_back"


@pytest.mark.parametrize("kind", ["canary", "blue_green", "shadow", "ab"])
@pytest.mark.parametrize("is_paused", [False, True])
def test_gates_hold_for_every_kind_and_name_the_next_command(kind, is_paused):
    rollout = begin(RolloutRequest("m", "2", kind), "1", "2@abcdef", 0.0)
    if is_paused:
        rollout = paused(rollout, 1.0)
    for gate, advice in [
        ("max_error_rate", "mend the version, and start again: hopline rollout start m 2"),
        ("max_p99_ratio", "--gate max_p99_ratio=N"),
        ("max_disagreement", "--gate max_disagreement=N"),
    ]:
        after = step(rollout, Verdict("bad", "the cause", gate), 2.0)
        assert (after.status, after.gate, after.percent) == ("rolled_back", gate, 0)
        assert after.reason.startswith("the cause. Next: ")
        assert advice in after.reason
        assert (f"--kind {kind}" in after.reason) == (kind != "canary")
        assert after.events[-1].text == f"rolled back: {after.reason}"
    assert len(step(rollout, Verdict("bad", "x" * 900, "max_psi"), 2.0).reason) <= 500


@pytest.mark.parametrize(
    ("kind", "options", "ends"),
    [
        ("canary", {}, True),
        ("canary", {"preflight": 0}, True),
        ("blue_green", {}, True),
        ("canary", {"auto": False}, False),
        ("shadow", {}, False),
        ("ab", {}, False),
    ],
)
def test_a_canary_without_traffic_does_not_run_for_ever(kind, options, ends):
    asked = RolloutRequest("m", "2", kind, min_step_s=60, max_wait_s=3600, **options)
    rollout = begin(asked, "1", "2", 1000.0)
    waits = Verdict("wait", "3 of 200 requests")
    assert rollout.waits_until == (1000.0 + 60 + 3600 if ends else None)
    assert step(rollout, waits, 4659.0) is rollout
    after = step(rollout, waits, 4660.0)
    assert after.status == ("rolled_back" if ends else "running")
    if ends:
        assert after.reason.startswith("3 of 200 requests in 3660 s (max_wait_s)")
        assert "--gate min_requests=N" in after.reason
        assert step(paused(rollout, 1.0), waits, 1e9).status == "paused"


def test_a_canary_that_few_nodes_speak_against_names_the_gate_that_they_leave_open():
    rollout = begin(RolloutRequest("m", "2", "canary", min_step_s=60, max_wait_s=3600), "1", "2", 1000.0)
    (found,) = {verdict(Gates(), tally(), tally(scores=([0.9, 0.1], [0.1, 0.9])))}
    assert (found.word, found.gate) == ("wait", "max_disagreement")
    after = step(rollout, found, 1e5)
    assert after.status == "rolled_back"
    assert "Answers of more different nodes are needed" in after.reason
    assert after.reason.endswith("--gate max_disagreement=N")  # a smaller number of requests would not help


class Arm:
    graph_version = name = "m"

    def __init__(self, version):
        self.version = version

    def accept(self, work):
        work.finish(self.version)


def side(split, key):
    seen = []
    hand_in(split, ScoreRequest("m", key=key), seen.append)
    return seen[0]


@given(st.text(min_size=1), st.lists(st.floats(0.1, 100), min_size=2, max_size=5))
def test_a_key_that_went_over_stays_as_the_share_grows(key, percents):
    sides = [side(Split(Arm("1"), Arm("2"), percent, "salt"), key) for percent in sorted(percents)]
    assert sides == sorted(sides)


def test_shares_are_as_requested():
    split = Split(Arm("1"), Arm("2"), 25, "salt")
    keyed = sum(side(split, f"k{i}") == "2" for i in range(4000)) / 4000
    drawn = sum(side(split, "") == "2" for _ in range(4000)) / 4000
    assert keyed == pytest.approx(0.25, abs=0.03)
    assert drawn == pytest.approx(0.25, abs=0.03)
