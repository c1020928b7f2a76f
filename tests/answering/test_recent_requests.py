"""Requests that callers send now, tried on a version before it serves."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from hopline.answering.recent_requests import RecentRequests
from hopline.answering.served import Ran
from hopline.errors import BadRequest, Conflict, Overloaded
from hopline.types import InlineNode, ScoreRequest, ScoreResult


def answer(labels=(1,), version="1", name="label"):
    return ScoreResult("m", version, "g", {name: np.asarray(labels)})


def record(recent, request, outcome, version="1"):
    served = SimpleNamespace(name="m", version=version)
    recent.record(Ran(served, [request], [outcome], [0.0], 0.001, {}, 0.0))


class Candidate:
    """Answers by a rule, some of it immediately and some by an exception."""

    version = "2"

    def __init__(self, rule):
        self.rule, self.asked = rule, []

    def accept(self, work):
        self.asked.append(work.request)
        outcome = self.rule(work.request)
        if isinstance(outcome, BadRequest):
            raise outcome
        work.deliver(outcome)


def some(count=40):
    recent = RecentRequests([])
    for node in range(count):
        record(recent, ScoreRequest("m", nodes=[node], key="k", version="1", min_version="g+1"), answer())
    return recent


async def test_a_version_that_answers_them_in_the_same_form_may_serve():
    candidate = Candidate(lambda request: answer([2], "2"))
    await some().check("m", "1", candidate)
    assert [request.nodes for request in candidate.asked] == [[node] for node in range(40)]
    for request in candidate.asked:
        assert (request.version, request.key, request.min_version, request.is_copy) == (None, "", "", True)


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (lambda request: BadRequest("column 'country' is missing"), "column 'country' is missing"),
        (lambda request: answer(["a"]), "its output 'label' holds text, not integers"),
        (lambda request: answer([1], name="probabilities"), "its answer has no output 'label'"),
    ],
)
async def test_one_that_refuses_them_may_not_and_the_share_and_the_command_are_named(rule, told):
    refuses = lambda request: rule(request) if request.nodes[0] % 4 == 0 else answer()  # noqa: E731
    with pytest.raises(Conflict, match=re.escape("would refuse 10 of the 40 requests")) as caught:
        await some().check("m", "1", Candidate(refuses))
    for part in ("(25%)", told, "1 still serves", "hopline models load m --version 2 --force"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(lambda request: Overloaded("busy"), id="busy"),
        pytest.param(
            lambda request: BadRequest("gone") if request.nodes[0] == 3 else answer(), id="one node is gone"
        ),
    ],
)
async def test_what_says_little_of_the_schema_stops_no_load(rule):
    await some().check("m", "1", Candidate(rule))


async def test_nothing_is_tried_of_other_versions_failures_copies_texts_or_large_requests():
    recent = RecentRequests([])
    for request, outcome in [
        (ScoreRequest("m", nodes=[1]), answer(version="0")),
        (ScoreRequest("m", nodes=[2]), BadRequest("x")),
        (ScoreRequest("m", nodes=[3], is_copy=True), answer()),
        (ScoreRequest("m", columns={"prompt": ["x"]}), answer([5], name="completion_tokens")),
        (ScoreRequest("m", nodes=range(17)), answer([1] * 17)),
        (ScoreRequest("m", inline=[InlineNode([1.0])] * 3), answer([1] * 3)),
    ]:
        record(recent, request, outcome)
    candidate = Candidate(lambda request: BadRequest("all"))
    await recent.check("m", "1", candidate)
    assert candidate.asked == []


def test_it_listens_always_until_there_are_some_and_then_a_fifth_of_the_time():
    recorders = ["other"]
    recent = RecentRequests(recorders)
    for _ in range(7):
        recent.look()
        assert recorders == ["other", recent]
    for node in range(60):
        record(recent, ScoreRequest("m", nodes=[node]), answer())
    listens = []
    for _ in range(50):
        recent.look()
        listens.append(recent in recorders)
    assert sum(listens) == 10
    assert recorders[0] == "other"
