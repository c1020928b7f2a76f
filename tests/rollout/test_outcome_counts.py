"""What is counted of answers that are held against each other."""

import numpy as np
import pytest

from hopline.errors import DeadlineExceeded, RuntimeFailure
from hopline.rollout.outcome_counts import OutcomeCounts
from hopline.types import ScoreResult


def answer(**outputs: object) -> ScoreResult:
    arrays = {name: np.asarray(values) for name, values in outputs.items()}
    return ScoreResult(model="m", version="1", graph_version="g", outputs=arrays)


def test_pairs_of_scores_are_those_of_the_same_rows() -> None:
    tally = OutcomeCounts()
    tally.compare(answer(value=[0.1, np.nan, 0.3]), answer(value=[0.2, 0.5, 0.6]), 0.0)
    assert tally.scores == [(0.1, 0.2), (0.3, 0.6)]
    assert (tally.num_scores, tally.compared, tally.differing) == (2, 1, 1)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.5])
def test_equal_answers_agree_whatever_they_are(value: float) -> None:
    tally = OutcomeCounts()
    both = [answer(embedding=np.array([[value, 1.0]], np.float32), label=np.array([3])) for _ in range(2)]
    tally.compare(*both, 0.0)
    assert (tally.compared, tally.differing, tally.difference) == (1, 0, 0.0)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (answer(value=np.array([0.25]), label=np.array(["a"])), "differ by 0.25, 0 labels"),
        (answer(value=np.array([0.5]), label=np.array(["b"])), "differ by 0, 1 labels"),
        (answer(value=np.array([0.5, 0.5]), label=np.array(["a"])), "differ by inf"),
        (answer(value=np.array([np.nan]), label=np.array(["a"])), "differ by inf"),
        (answer(value=np.array([0.5], np.float32), label=np.array(["a"])), ""),
    ],
)
def test_differences_are_told(other: ScoreResult, told: str) -> None:
    tally = OutcomeCounts()
    tally.compare(answer(value=np.array([0.5]), label=np.array(["a"])), other, 0.0)
    assert tally.differing == (told != "")
    assert told in tally.last_difference


def test_the_sample_is_even_over_all_that_was_seen() -> None:
    tally = OutcomeCounts()
    for number in range(4000):
        tally.compare(answer(value=[float(number)]), answer(value=[float(number)]), 0.0)
    kept = np.array([ours for _, ours in tally.scores])
    assert (len(kept), tally.num_scores) == (1000, 4000)
    # of each quarter a quarter, within six standard deviations
    assert np.all(np.abs(np.histogram(kept, 4, (0, 4000))[0] - 250) < 6 * np.sqrt(1000 * 0.25 * 0.75))


def test_the_sample_is_even_over_what_another_process_counted() -> None:
    tally = OutcomeCounts()
    for first in range(0, 4000, 125):
        pairs = [(float(number), float(number)) for number in range(first, first + 125)]
        tally.absorb(OutcomeCounts(compared=125, num_scores=125, scores=pairs))
    kept = np.array([ours for _, ours in tally.scores])
    assert (len(kept), tally.num_scores, tally.compared) == (1000, 4000, 4000)
    assert np.all(np.abs(np.histogram(kept, 4, (0, 4000))[0] - 250) < 6 * np.sqrt(1000 * 0.25 * 0.75))


def test_answers_without_numbers_have_no_scores() -> None:
    tally = OutcomeCounts()
    tally.compare(answer(text=np.array(["x"])), answer(text=np.array(["y"])), 0.0)
    assert (tally.scores, tally.differing) == ([], 1)


def test_two_models_may_write_other_words_but_not_texts_of_another_length() -> None:
    tally = OutcomeCounts()
    for number in range(200):
        wanted = answer(text=np.array(["a cat"]), prompt_tokens=[7], completion_tokens=[number % 20])
        found = answer(text=np.array(["a dog"]), prompt_tokens=[7], completion_tokens=[20 + number % 20])
        tally.compare(wanted, found, 0.1, is_text=True)
    assert (tally.compared, tally.differing) == (200, 0)
    shift = tally.shift()
    assert shift is not None
    assert shift.above(0.25)


def test_a_text_in_place_of_an_error_says_nothing_and_an_error_in_place_of_a_text_does() -> None:
    tally = OutcomeCounts()
    text = answer(text=np.array(["a cat"]), completion_tokens=[2])
    tally.compare(DeadlineExceeded("too long"), text, 0.1, is_text=True)
    assert (tally.compared, tally.differing) == (0, 0)
    tally.compare(text, RuntimeFailure("broken"), 0.1, is_text=True)
    assert (tally.compared, tally.differing) == (1, 1)
