"""What the gates make of two versions' answers to the same rows, as tables.

The oracle of each row of a table is what a person would say of the two lists of scores.
"""

import numpy as np
import pytest
from scipy.stats import rankdata
from sklearn.metrics import cohen_kappa_score

from hopline.answering import pairs
from hopline.answering.outcome_counts import OutcomeCounts
from hopline.answering.row_keys import row_keys
from hopline.rollout.gates import Gates, verdict
from hopline.types import ScoreRequest, ScoreResult


def result(scores, labels=None, name="probabilities"):
    outputs = {name: np.asarray(scores)}
    if labels is not None:
        outputs["label"] = np.asarray(labels)
    return ScoreResult("m", "1", "g", outputs)


def judged(before, after, *, gates=None, times=1, requests=300, name="probabilities"):
    """The word of the gates for scores of nodes 0, 1, …; each is asked for so many times."""
    tally = OutcomeCounts(requests=requests)
    for _ in range(times):
        for node, scores in enumerate(zip(before, after, strict=True)):
            labels = [None, None] if name == "value" else [[int(score >= 0.5)] for score in scores]
            wanted, found = (result([s], one, name) for s, one in zip(scores, labels, strict=True))
            request = ScoreRequest("m", nodes=[node])
            tally.compare(wanted, found, 0.05, lambda count, request=request: row_keys(request, count))
    return verdict(gates or Gates(), OutcomeCounts(), tally)


RNG = np.random.default_rng(3)
HOT = RNG.uniform(0.05, 0.95, 8)
MANY = RNG.beta(0.5, 0.5, 600)
RARE = RNG.beta(0.3, 4, 1500)
NUMBERS = RNG.normal(1e6, 1e4, 600)


def noisy(scores, by, seed=0):
    logits = np.log(scores / (1 - scores)) + np.random.default_rng(seed).normal(0, by, len(scores))
    return 1 / (1 + np.exp(-logits))


def shifted(scores, by):
    return 1 / (1 + np.exp(-np.log(scores / (1 - scores)) - by))


def part(scores, share, change):
    changed = scores.copy()
    at = np.random.default_rng(1).random(len(scores)) < share
    changed[at] = change(scores)[at]
    return changed


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(HOT, HOT + 1e-3, id="hot keys, equal to a thousandth"),
        pytest.param(HOT[:1], HOT[:1] + 1e-13, id="one node, a difference of 1e-13"),
        pytest.param(
            np.full(300, 0.3), np.full(300, 0.3) + RNG.normal(0, 1e-13, 300), id="one score, noise"
        ),
        pytest.param(MANY, MANY + RNG.normal(0, 1e-13, 600), id="many keys, noise of arithmetic"),
        pytest.param(MANY, noisy(MANY, 0.4), id="another seed"),
        pytest.param(MANY, shifted(MANY, 0.1), id="a day more"),
        pytest.param(RARE, noisy(RARE, 0.3), id="a rare class, another seed"),
    ],
)
@pytest.mark.parametrize("times", [1, 5])
def test_an_honest_version_passes_however_often_its_keys_are_requested(before, after, times):
    word, why, _ = judged(before, after, times=times)
    assert word == "good", why


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("before", "after", "gate"),
    [
        pytest.param(HOT, 1 - HOT, "max_disagreement", id="hot keys, inverted"),
        pytest.param(MANY, 1 - MANY, "max_disagreement", id="inverted"),
        pytest.param(MANY, shifted(MANY, 1.5), "max_disagreement", id="bias"),
        pytest.param(MANY, np.full(600, 0.4), "max_disagreement", id="constant"),
        pytest.param(MANY, RNG.permutation(MANY), "max_disagreement", id="permuted"),
        pytest.param(MANY, part(MANY, 0.25, np.flip), "max_disagreement", id="a quarter broken"),
        pytest.param(MANY, part(MANY, 0.05, lambda s: s * np.nan), "max_error_rate", id="null for a part"),
        pytest.param(RARE, 1 - RARE, "max_disagreement", id="a rare class, inverted"),
        pytest.param(RARE, RARE * 0.2, "max_disagreement", id="a rare class, lost"),
    ],
)
@pytest.mark.parametrize("times", [1, 3])
def test_a_broken_version_is_rolled_back_and_the_gate_named(before, after, gate, times):
    word, why, failed = judged(before, after, times=times)
    assert (word, failed) == ("bad", gate), why
    assert " allowed" in why


@pytest.mark.parametrize(
    ("after", "word"),
    [
        pytest.param(NUMBERS + RNG.normal(0, 1e3, 600), "good", id="another seed"),
        pytest.param(NUMBERS * (1 + 1e-7), "good", id="arithmetic"),
        pytest.param(NUMBERS + 5e3, "bad", id="shifted"),
        pytest.param(2e6 - NUMBERS, "bad", id="inverted"),
        pytest.param(RNG.permutation(NUMBERS), "bad", id="permuted"),
    ],
)
def test_numbers_without_labels_are_judged_in_their_own_scale(after, word):
    assert judged(NUMBERS, after, name="value").word == word


def test_few_rows_that_all_speak_against_a_version_hold_it_but_do_not_decide():
    word, why, _ = judged([0.9, 0.2, 0.8], [0.1, 0.9, 0.3], times=100)
    assert (word, "3 of 3 rows" in why, "of more different nodes" in why) == ("wait", True, True)
    assert judged([0.9] * 8, [0.1] * 8).word == "bad"


def test_decisions_are_those_at_the_callers_threshold():
    low = np.linspace(0.001, 0.2, 400)
    assert judged(low, low * 0.5, gates=Gates(max_psi=1e9)).word == "good"  # no label changes
    word, why, gate = judged(low, low * 0.5, gates=Gates(threshold=0.08))
    assert (word, gate) == ("bad", "max_disagreement"), why


def test_any_difference_can_be_forbidden():
    exact = Gates(max_changed=0, tolerance=0)
    assert judged(MANY, MANY, gates=exact).word == "good"
    assert judged(MANY, MANY + 1e-5, gates=exact)[::2] == ("bad", "max_changed")
    assert judged(MANY, MANY + 1e-5).word == "good"


def test_a_limit_of_one_allows_every_decision():
    gates = Gates(max_disagreement=1, max_psi=1e9)
    for after in (1 - MANY, RNG.permutation(MANY), np.full(600, 0.4)):
        assert judged(MANY, after, gates=gates).word == "good"


@pytest.mark.parametrize("labels", [[0, 1, 2], ["a", "b", "c"]])
def test_classes_in_another_order_are_found_though_most_rows_keep_theirs(labels):
    classes = np.random.default_rng(5).choice(3, 600, p=[0.8, 0.1, 0.1])
    tally = OutcomeCounts()
    for node, at in enumerate(classes):
        one = np.full((1, 3), 0.1)
        one[0, at] = 0.8
        other = [0, 2, 1][at]
        wanted, found = result(one, [labels[at]]), result(one[:, [0, 2, 1]], [labels[other]])
        request = ScoreRequest("m", nodes=[node])
        tally.compare(wanted, found, 0.05, lambda count, request=request: row_keys(request, count))
    found = verdict(Gates(), OutcomeCounts(), tally)
    assert (found.word, found.gate) == ("bad", "max_disagreement")


def test_probabilities_in_another_order_are_found_beside_labels_that_are_right():
    tally, rng = OutcomeCounts(requests=300), np.random.default_rng(0)
    for node in range(300):
        classes = rng.dirichlet([0.3] * 3, 1)
        wanted, found = result(classes, [0]), result(np.roll(classes, 1, axis=1), [0])
        tally.compare(wanted, found, 0.05, lambda count, node=node: [node])
    assert verdict(Gates(), OutcomeCounts(), tally)[::2] == ("bad", "max_disagreement")


def test_embeddings_of_two_trainings_are_not_compared_but_nulls_are_found():
    tally, rng = OutcomeCounts(requests=300), np.random.default_rng(0)
    for node in range(300):
        wanted, found = (result(rng.normal(size=(1, 8)), name="embedding") for _ in range(2))
        tally.compare(wanted, found, 0.05, lambda count, node=node: [node])
    assert verdict(Gates(), OutcomeCounts(), tally).word == "good"
    for node in range(20):
        broken = result(np.full((1, 8), np.nan), name="embedding")
        tally.compare(wanted, broken, 0.05, lambda count, node=node: [node])
    assert verdict(Gates(), OutcomeCounts(), tally)[::2] == ("bad", "max_error_rate")


@pytest.mark.parametrize("seed", range(4))
def test_measures_are_those_of_scipy_and_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    before = rng.random(400).round(2)  # with ties
    after = np.clip(before + rng.normal(0, 0.3, 400), 0, 1)
    rows = {
        node: (int(one >= 0.5), int(other >= 0.5), one, other, True)
        for node, (one, other) in enumerate(zip(before.tolist(), after.tolist(), strict=True))
    }
    seen = pairs.weigh(rows, 0.0)
    first, second = before >= 0.5, after >= 0.5
    kappa = cohen_kappa_score(first, second)
    assert seen.flipped / seen.decided / seen.by_chance == pytest.approx(1 - kappa)
    assert seen.one_way == abs(int(first.sum()) - int(second.sum()))
    far = np.abs(rankdata(before) - rankdata(after)) / 400 > 0.25
    assert abs(seen.moved - int(far.sum())) <= 2  # ranks that differ by just a quarter


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (
            ScoreRequest("m", nodes=[5]),
            ScoreRequest("m", nodes=np.array([5]), key="a", outputs=("label",)),
            True,
        ),
        (ScoreRequest("m", nodes=[5]), ScoreRequest("m", nodes=["5"]), False),
        (
            ScoreRequest("m", columns={"a": [1.0], "b": [2]}),
            ScoreRequest("m", columns={"b": [2], "a": [1.0]}),
            True,
        ),
        (ScoreRequest("m", columns={"a": [1.0]}), ScoreRequest("m", columns={"a": np.array([1.0])}), True),
        (ScoreRequest("m", columns={"a": [1.0]}), ScoreRequest("m", columns={"a": [1.5]}), False),
        (ScoreRequest("m", pairs=([1], [2])), ScoreRequest("m", pairs=([2], [1])), False),
        (ScoreRequest("m", columns={"a": [object]}), ScoreRequest("m", columns={"a": [object]}), True),
    ],
)
def test_equal_rows_have_one_key_whoever_sends_them(one, other, same):
    first, second = row_keys(one, 9), row_keys(other, 9)
    assert len(first) == len(second) == 1
    assert (first == second) == same
    assert 0 <= first[0] < 1 << 53


def test_rows_of_a_request_are_in_the_order_of_its_answer():
    keys = row_keys(ScoreRequest("m", nodes=[1, 2, 3]), 2)
    assert keys == [row_keys(ScoreRequest("m", nodes=[node]), 1)[0] for node in (1, 2)]
    rows = row_keys(ScoreRequest("m", columns={"a": [1, 2, 1]}), 9)
    assert rows[0] == rows[2] != rows[1]


def of_outputs(**scores):
    outputs = {}
    for name, values in scores.items():
        outputs[f"{name}_probabilities"] = np.asarray(values)
        outputs[f"{name}_label"] = (np.asarray(values) >= 0.5).astype(np.int64)
    return ScoreResult("m", "1", "g", outputs)


@pytest.mark.parametrize("broken", [None, "fraud", "churn"])
def test_each_of_several_outputs_is_judged_by_itself(broken):
    tally = OutcomeCounts(requests=300)
    for node, score in enumerate(MANY):
        before = {"fraud": [score], "churn": [1 - score]}
        after = before | ({broken: [1 - before[broken][0]]} if broken else {})
        request = ScoreRequest("m", nodes=[node])
        keys = lambda count, request=request: row_keys(request, count)  # noqa: E731
        # callers ask for some outputs, in any order
        for names in (("fraud", "churn"), ("churn",)):
            ours, theirs = (of_outputs(**{name: each[name] for name in names}) for each in (before, after))
            tally.compare(ours, theirs, 0.05, keys)
    half = OutcomeCounts()
    half.add(tally)
    found = verdict(Gates(), OutcomeCounts(), half)
    assert found.word == ("bad" if broken else "good")
    assert broken is None or f"output '{broken}'" in found.why
