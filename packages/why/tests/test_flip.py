"""Flips against all sets, and against score requests with their edits."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopline.types import ScoreRequest
from hopline_why import shapley
from hopline_why.explain import Explainer, Options
from hopline_why.flip import smallest_flip
from packages.why.tests.worlds import world
from tests.thorough import thorough


@st.composite
def games(draw):
    count = draw(st.integers(1, 6))
    values = np.array(draw(st.lists(st.integers(-9, 9), min_size=2**count, max_size=2**count)), float)
    changeable = draw(st.lists(st.integers(0, count - 1), unique=True, min_size=1))
    return values, count, sorted(changeable), draw(st.integers(-9, 9))


@given(games(), st.integers(0, 70))
def test_a_flip_flips_and_is_the_smallest_where_it_says_so(game, most):
    values, count, changeable, threshold = game
    full = 2**count - 1

    def flips(players):
        left = full - sum(1 << player for player in players)
        return (values[left] >= threshold) != (values[full] >= threshold)

    sizes = [
        size for size in range(1, len(changeable) + 1) if any(map(flips, combinations(changeable, size)))
    ]
    numbers = shapley.exact(values)
    own = smallest_flip(
        lambda sets: values[sets.astype(int)], numbers, values[full], threshold, changeable, most
    )
    if own is None:
        assert not sizes or most < 2 ** len(changeable) - 1
        return
    players, is_smallest = own
    assert flips(players)
    assert {*players} <= {*changeable}
    if is_smallest:
        assert len(players) == sizes[0]
    if most >= 2 ** len(changeable):
        assert is_smallest


@pytest.fixture(scope="module", params=[("typed", [-1, -1]), ("sage", [1, 2]), ("gcn", [-1, -1])])
def own(request, tmp_path_factory):
    return world(tmp_path_factory.mktemp("w"), *request.param)


def test_every_reported_flip_flips_when_it_is_scored(own):
    explainer, answerer, count = Explainer(own.model(cached=True)), own.answerer(), 0
    for user in range(thorough(15, 40)):
        plain = explainer.explain(f"u{user}")
        for share in (0.3, 0.8):
            threshold = plain.background + share * (plain.score - plain.background)
            found = explainer.explain(f"u{user}", Options(threshold=threshold))
            assert found.reasons == plain.reasons
            if found.flip is None:
                continue
            count += 1
            request = ScoreRequest("risk", nodes=[f"u{user}"], edits=found.flip.edits)
            (outcome,) = answerer.answer([request])
            score = outcome.outputs["logits"][0, found.column]
            assert score == found.flip.score
            assert (score >= threshold) != (found.score >= threshold)
    assert count > 20


def test_only_what_is_changeable_is_left_out(own):
    explainer = Explainer(own.model())
    for user in range(12):
        plain = explainer.explain(f"u{user}")
        options = Options(threshold=(plain.score + plain.background) / 2, changeable=["age", "amount"])
        flip = explainer.explain(f"u{user}", options).flip
        assert flip is None or {*flip.without} <= {"age", "amount"}
