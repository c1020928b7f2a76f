"""What is counted of answers that are held against each other."""

from collections.abc import Callable

import numpy as np
import pytest

from hopline.answering.outcome_counts import OutcomeCounts, merged
from hopline.answering.pairs import MAX_PAIRS, weigh
from hopline.answering.row_keys import row_keys
from hopline.errors import DeadlineExceeded, RuntimeFailure
from hopline.types import ScoreRequest, ScoreResult


def answer(**outputs: object) -> ScoreResult:
    arrays = {name: np.asarray(values) for name, values in outputs.items()}
    return ScoreResult(model="m", version="1", graph_version="g", outputs=arrays)


def keys_of(*nodes: object) -> Callable[[int], list[int]]:
    return lambda count: row_keys(ScoreRequest("m", nodes=nodes), count)


def test_pairs_are_those_of_the_same_rows_and_only_the_newest_of_each() -> None:
    tally = OutcomeCounts()
    tally.compare(
        answer(value=[0.1, np.nan, 0.3]), answer(value=[0.2, 0.5, np.nan]), 0.0, keys_of("a", "b", "c")
    )
    first, third = keys_of("a", "c")(2)
    assert tally.pairs.keys() == {first, third}  # nothing to compare where the current one is null
    assert tally.pairs[first] == (None, None, 0.1, 0.2, True)
    assert np.isnan(tally.pairs[third][3])
    assert (tally.compared, tally.differing) == (1, 1)
    tally.compare(answer(value=[0.1]), answer(value=[0.1]), 0.0, keys_of("a"))
    assert tally.pairs[first] == (None, None, 0.1, 0.1, True)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.5])
def test_equal_answers_agree_whatever_they_are(value: float) -> None:
    tally = OutcomeCounts()
    both = [answer(embedding=np.array([[value, 1.0]], np.float32), label=np.array([3])) for _ in range(2)]
    tally.compare(*both, 0.0, keys_of(1))
    assert (tally.compared, tally.differing, tally.difference) == (1, 0, 0.0)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (answer(value=np.array([0.25]), label=np.array(["a"])), "differ by 0.25, 0 labels"),
        (answer(value=np.array([0.5]), label=np.array(["b"])), "differ by 0, 1 labels"),
        (answer(value=np.array([0.5, 0.5]), label=np.array(["a"])), "differ by inf"),
        (answer(label=np.array(["a"])), "its answer has no output 'value'"),
        (answer(value=np.array([0.5]), label=np.array([1])), "its output 'label' holds integers, not text"),
        (answer(value=np.array([np.nan]), label=np.array(["a"])), "differ by inf"),
        (answer(value=np.array([0.5], np.float32), label=np.array(["a"])), ""),
    ],
)
def test_differences_are_reported(other: ScoreResult, told: str) -> None:
    tally = OutcomeCounts()
    tally.compare(answer(value=np.array([0.5]), label=np.array(["a"])), other, 0.0, keys_of(1))
    assert tally.differing + tally.refused == (told != "")
    assert told in tally.last_difference + tally.last_refusal


def test_the_sample_is_even_over_distinct_rows_whoever_counted_them() -> None:
    parts = [OutcomeCounts() for _ in range(3)]
    number = answer(value=[1.0])
    for node in range(20_000):
        for _ in range(1 + 20 * (node < 100)):  # hot ones are no further rows
            parts[node % 3].compare(number, number, 0.0, keys_of(node))
    together, other_way = merged(parts), merged(reversed(parts))
    assert together.pairs == other_way.pairs
    assert len(together.pairs) == MAX_PAIRS
    place = {keys_of(node)(1)[0]: node for node in range(20_000)}
    kept = np.array([place[key] for key in together.pairs])
    # of each quarter a quarter, within six standard deviations
    assert np.all(np.abs(np.histogram(kept, 4, (0, 20_000))[0] - 500) < 6 * np.sqrt(2000 * 0.25 * 0.75))


def test_answers_without_numbers_have_no_scores() -> None:
    tally = OutcomeCounts()
    tally.compare(answer(text=np.array(["x"])), answer(text=np.array(["y"])), 0.0, keys_of(1))
    assert ([*tally.pairs.values()], tally.differing) == ([(None, None, 0.0, 0.0, False)], 1)


def test_two_models_may_write_other_words_but_not_texts_of_another_length() -> None:
    tally = OutcomeCounts()
    for number in range(200):
        wanted = answer(text=np.array(["a cat"]), prompt_tokens=[7], completion_tokens=[number % 20])
        found = answer(text=np.array(["a dog"]), prompt_tokens=[7], completion_tokens=[20 + number % 20])
        tally.compare(wanted, found, 0.1, keys_of(number), is_text=True)
    assert (tally.compared, tally.differing) == (200, 0)
    seen = weigh(tally.pairs, 0.05)
    assert (seen.decided, seen.ordered) == (0, 0)
    assert seen.shift is not None
    assert seen.shift.above(0.5)


def test_a_text_in_place_of_an_error_says_nothing_and_an_error_in_place_of_a_text_does() -> None:
    tally = OutcomeCounts()
    text = answer(text=np.array(["a cat"]), completion_tokens=[2])
    tally.compare(DeadlineExceeded("too long"), text, 0.1, keys_of(1), is_text=True)
    assert (tally.compared, tally.differing) == (0, 0)
    tally.compare(text, RuntimeFailure("broken"), 0.1, keys_of(1), is_text=True)
    assert (tally.compared, tally.differing) == (1, 1)
