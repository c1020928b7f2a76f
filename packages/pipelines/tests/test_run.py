"""A pipeline over fake models: what it answers, what it asks, and its one outcome."""

import asyncio
import time

import numpy as np
import pytest

from hopline.answering.limits import ModelLimits
from hopline.config.schema import Config
from hopline.errors import (
    BadRequest,
    DeadlineExceeded,
    ModelNotReady,
    NodeNotFound,
    Overloaded,
    PipelineInvalid,
    RateLimited,
    RequestTooLarge,
    RuntimeFailure,
    Unavailable,
)
from hopline.types import InlineNode, ScoreRequest
from packages.pipelines.tests.rig import Rig, gnn, trees
from tests.fake_version import hand_in

FRAUD = """
[inputs]
nodes = true
[inputs.columns]
amount = "FP32"
[inputs.attributes]
country = { type = "string", default = "DE" }

[[step]]
id = "decision"
kind = "rules"
default = "allow"
rules = [
  { when = "attributes.country == 'XX' or trees.probabilities > 0.82", then = "block" },
  { when = "0.60 <= trees.probabilities <= 0.82", then = "step_up" },
]
[[step]]
id = "trees"
kind = "model"
model = "trees"
columns = { "*" = "input.columns", "emb_*" = "gnn.embedding" }
[[step]]
id = "gnn"
kind = "model"
model = "gnn"
nodes = "input.nodes"

[outputs]
score = "trees.probabilities"
decision = "decision.decision"
"""
ROUTE = """
[inputs]
nodes = true
[inputs.columns]
amount = "FP32"
[inputs.attributes]
country = "string"

[[step]]
id = "chosen"
kind = "route"
default = "world"
rules = [
  { when = "attributes.country in ['DE', 'FR']", then = "europe" },
  { when = "input.amount > 100", then = "large" },
]
[[step]]
id = "europe"
kind = "model"
model = "europe"
nodes = "input.nodes"
[[step]]
id = "large"
kind = "model"
model = "large"
nodes = "input.nodes"
[[step]]
id = "world"
kind = "model"
model = "world"
nodes = "input.nodes"

[outputs]
score = "chosen.probabilities"
by = "chosen.chosen"
"""


def ensemble(require='"all"', combine="mean", extra=""):
    members = "\n".join(
        f'[[step]]\nid = "{name}"\nkind = "model"\nmodel = "{name}"\nnodes = "input.nodes"'
        for name in "abc"
    )
    return f"""
[inputs]
nodes = true
[[step]]
id = "all"
kind = "ensemble"
members = ["a", "b", "c"]
output = "probabilities"
combine = "{combine}"
require = {require}
{extra}
{members}
[outputs]
score = "all.probabilities"
"""


async def test_embedding_trees_and_rules():
    rig = Rig(FRAUD, gnn(), trees(scale=0.1))
    answer = await rig.score(nodes=[1, 8, 20], columns={"amount": [0.5, 3.0, 1.0]})
    expected = (np.array([0.5, 3.0, 1.0]) + np.array([1, 8, 20]) / 2) * 0.1
    np.testing.assert_allclose(answer.outputs["score"], expected, rtol=1e-6)
    assert answer.outputs["decision"].tolist() == ["allow", "step_up", "block"]
    assert (answer.model, answer.version, answer.graph_version) == ("fraud", "1", "graph-a")
    assert answer.parts == {"gnn": "gnn/1", "trees": "trees/1"}
    assert set(answer.timings_ms) == {"gnn", "trees", "decision"}
    blocked = await rig.score(nodes=[1], columns={"amount": [0.0]}, attributes={"country": "XX", "more": 1})
    assert blocked.outputs["decision"].tolist() == ["block"]
    assert rig.count("ok") == 2
    assert rig.pipeline.statistics()["inference_count"] == 2
    assert [ran.outcomes[0] for ran in rig.told] == [answer, blocked]
    assert set(rig.told[0].stages) == {"gnn", "trees", "decision"}


async def test_only_what_the_requested_outputs_need_is_run():
    rig = Rig(FRAUD.replace("[outputs]", '[outputs]\nnear = "gnn.probabilities"'), gnn(), trees())
    answer = await rig.score(nodes=[50], columns={"amount": [0.0]}, outputs=("near",))
    assert answer.outputs["near"].tolist() == [0.5]
    assert rig.models["trees"].asked == []
    assert set(answer.timings_ms) == {"gnn"}


async def test_models_compute_what_is_read_with_the_callers_circumstances():
    rig = Rig(FRAUD, gnn(), trees())
    deadline = time.monotonic() + 20
    await rig.score(
        nodes=[1], columns={"amount": [0.0]}, as_of=7, deadline=deadline, key="k", priority="high",
        client="c", traceparent="t", request_id="r", degraded="refuse", is_copy=True,
    )  # fmt: skip
    (first,), (second,) = ([asked.request for asked in rig.models[name].asked] for name in ("gnn", "trees"))
    assert first.outputs == ("embedding",)
    assert second.outputs == ("probabilities",)
    assert (first.as_of, second.as_of) == (7, None)
    assert (second.nodes, first.columns) == ((), None)
    assert list(second.columns) == ["emb_0", "emb_1", "emb_2", "amount"]
    for asked in (first, second):
        assert (asked.deadline, asked.key, asked.priority, asked.client) == (deadline, "k", "high", "c")
        assert (asked.traceparent, asked.request_id, asked.degraded) == ("t", "r", "refuse")
        assert asked.is_copy


async def test_independent_steps_are_called_together():
    rig = Rig(ensemble(), *(gnn(name, when="held") for name in "abc"))
    future, _ = rig.ask(nodes=[1])
    assert [len(rig.models[name].asked) for name in "abc"] == [1, 1, 1]
    for name in "cab":
        rig.models[name].answer()
    assert (await future).outputs["score"].tolist() == [np.float32(0.01)]


@pytest.mark.parametrize(
    ("country", "amounts", "by"),
    [
        ("DE", [1, 500], ["europe", "europe"]),
        ("US", [1, 2], ["world", "world"]),
        ("US", [200, 300], ["large", "large"]),
        ("US", [200, 3, 300], ["large", "world", "large"]),
    ],
)
async def test_a_route_runs_the_chosen_and_each_only_for_its_rows(country, amounts, by):
    rig = Rig(ROUTE, gnn("europe"), gnn("large"), gnn("world"))
    nodes = list(range(10, 10 + len(amounts)))
    answer = await rig.score(nodes=nodes, columns={"amount": amounts}, attributes={"country": country})
    assert answer.outputs["by"].tolist() == by
    np.testing.assert_array_equal(answer.outputs["score"], np.array(nodes, np.float32) / np.float32(100))
    for name in ("europe", "large", "world"):
        asked = [each.request.nodes for each in rig.models[name].asked]
        assert asked == ([[n for n, b in zip(nodes, by, strict=True) if b == name]] if name in by else [])
    assert set(answer.parts) == set(by)


async def test_missing_rows_of_a_route_are_those_of_the_request():
    rig = Rig(ROUTE, gnn("europe"), gnn("large", unknown=frozenset({12})), gnn("world"))
    answer = await rig.score(
        nodes=[11, 12, 13],
        columns={"amount": [1, 200, 300]},
        attributes={"country": "US"},
        on_missing="null",
    )
    assert answer.missing.tolist() == [False, True, False]


async def test_a_candidate_that_others_read_too_computes_all_rows():
    text = ROUTE.replace("[outputs]", '[outputs]\nlarge = "large.probabilities"')
    rig = Rig(text, gnn("europe"), gnn("large"), gnn("world"))
    answer = await rig.score(
        nodes=[1, 2], columns={"amount": [1, 200]}, attributes={"country": "US"}, outputs=("large", "score")
    )
    assert rig.models["large"].asked[0].request.nodes == [1, 2]
    np.testing.assert_array_equal(answer.outputs["large"], answer.outputs["score"])


async def test_inline_nodes_go_where_nodes_go():
    rig = Rig(ROUTE, gnn("europe"), gnn("large"), gnn("world"))
    inline = [InlineNode([1.0]), InlineNode([2.0])]
    rig.ask(nodes=[5], inline=inline, columns={"amount": [1, 200, 2]}, attributes={"country": "US"})
    large, world = (rig.models[name].asked[0].request for name in ("large", "world"))
    assert (large.nodes, large.inline) == ([], inline[:1])
    assert (world.nodes, world.inline) == ([5], inline[1:])


async def test_a_column_can_name_nodes():
    text = """
[inputs.columns]
merchant = "INT64"
payer = "INT64"
[[step]]
id = "pair"
kind = "transform"
columns = { gap = "merchant.embedding[0] - payer.probabilities" }
[[step]]
id = "merchant"
kind = "model"
model = "gnn"
nodes = "input.merchant"
[[step]]
id = "payer"
kind = "model"
model = "gnn"
nodes = "input.payer"
[outputs]
gap = "pair.gap"
"""
    rig = Rig(text, gnn())
    answer = await rig.score(columns={"merchant": [7, 9], "payer": [100, 200]})
    assert answer.outputs["gap"].tolist() == [6, 7]
    assert rig.pipeline.info(("1",)).id_kind == "none"


# Ensembles


@pytest.mark.parametrize(
    ("combine", "extra", "expected"),
    [
        ("mean", "", np.mean),
        ("max", "", np.max),
        ("median", "", np.median),
        ("weighted", "weights = [1, 2, 1]", lambda votes, axis: (votes[0] + 2 * votes[1] + votes[2]) / 4),
        ("vote", "", lambda votes, axis: votes[0]),
    ],
)
async def test_an_ensemble_combines(combine, extra, expected):
    members = []
    for at, name in enumerate("abc"):
        model = gnn(name)
        model._function = lambda request, at=at: {"probabilities": np.float32(request.nodes) * (at + 1)}
        members.append(model)
    rig = Rig(ensemble(combine=combine, extra=extra), *members)
    answer = await rig.score(nodes=[1, 2])
    votes = np.array([[1, 2], [2, 4], [3, 6]], np.float32)
    np.testing.assert_allclose(answer.outputs["score"], expected(votes, axis=0), rtol=1e-6)
    assert answer.outputs["score"].dtype == np.float32


@pytest.mark.parametrize("when", ["immediately", "later"])
@pytest.mark.parametrize(
    ("require", "broken", "answered"),
    [
        ('"all"', "", True), ('"all"', "b", False), ("2", "b", True), ("2", "ab", False),
        ('"any"', "ab", True), ('"any"', "abc", False),
    ],
)  # fmt: skip
async def test_an_ensemble_does_without_members_as_far_as_it_says(when, require, broken, answered):
    rig = Rig(ensemble(require), *(gnn(name, when=when) for name in "abc"))
    for name in broken:
        rig.models[name].fails = Overloaded("full", retry_after_s=3.0)
    if not answered:
        with pytest.raises(Overloaded, match=f"step '{broken[0]}': full") as caught:
            await rig.score(nodes=[1])
        assert caught.value.retry_after_s == 3.0
        return
    answer = await rig.score(nodes=[1])
    assert answer.degraded == tuple(f"ensemble_member:{name}" for name in broken)
    for name in "abc":
        counted = rig.metrics.degraded_answers("fraud", f"ensemble_member:{name}").value
        assert counted == (name in broken)
    assert set(answer.parts) == set("abc") - set(broken)
    with_refusal = rig.score(nodes=[1], degraded="refuse")
    if broken:
        with pytest.raises(Overloaded):
            await with_refusal
    else:
        await with_refusal


async def test_a_slow_member_drops_out_at_its_own_timeout():
    text = ensemble('"any"').replace('model = "c"', 'model = "c"\ntimeout_ms = 50')
    rig = Rig(text, gnn("a"), gnn("b"), gnn("c"))
    before = time.monotonic()
    await rig.score(nodes=[1])
    after = time.monotonic()
    assert before + 0.05 <= rig.models["c"].asked[0].request.deadline <= after + 0.05
    assert rig.models["a"].asked[0].request.deadline >= before + 1
    deadline = time.monotonic() + 0.04
    rig.ask(nodes=[1], deadline=deadline)
    assert rig.models["c"].asked[1].request.deadline == deadline


async def test_a_step_that_is_wanted_after_it_failed_fails_whoever_wants_it():
    text = ensemble('"any"').replace('score = "all.probabilities"', 'score = "late.probabilities"')
    route = """[[step]]
id = "late"
kind = "route"
default = "a"
rules = [{ when = "all.probabilities < 0", then = "b" }]
[outputs]"""
    rig = Rig(text.replace("[outputs]", route), gnn("a"), gnn("b"), gnn("c"))
    rig.models["a"].fails = Overloaded("full")
    with pytest.raises(Overloaded, match="step 'a': full"):
        await rig.score(nodes=[1])
    assert len(rig.models["a"].asked) == 1


# Rows without a value


async def test_unknown_nodes_make_their_rows_missing():
    rig = Rig(FRAUD, gnn(unknown=frozenset({2})), trees(), gnn("spare"))
    answer = await rig.score(nodes=[1, 2], columns={"amount": [0.0, 0.0]}, on_missing="null")
    assert answer.missing.tolist() == [False, True]
    assert np.isnan(answer.outputs["score"]).tolist() == [False, True]
    assert answer.outputs["decision"].tolist()[1] == ""


async def test_unknown_nodes_can_be_filled_and_are_labelled():
    text = FRAUD.replace('model = "gnn"', 'model = "gnn"\nfill = 0.0')
    rig = Rig(text, gnn(unknown=frozenset({2})), trees(scale=1.0))
    answer = await rig.score(nodes=[1, 2], columns={"amount": [0.0, 0.5]})
    assert answer.missing is None
    assert answer.degraded == ("filled:gnn",)
    np.testing.assert_allclose(answer.outputs["score"], [0.5, 0.5])
    assert rig.models["gnn"].asked[0].request.on_missing == "null"
    await rig.score(nodes=[1], columns={"amount": [0.0]}, degraded="refuse")
    assert rig.metrics.degraded_answers("fraud", "filled:gnn").value == 1
    assert rig.models["gnn"].asked[1].request.on_missing == "error"


async def test_rungs_of_all_steps_are_joined():
    rig = Rig(FRAUD, gnn(), trees())
    rig.models["gnn"].degraded = ("features:zero", "stale")
    rig.models["trees"].degraded = ("stale", "student")
    answer = await rig.score(nodes=[1], columns={"amount": [0.0]})
    assert answer.degraded == ("features:zero", "stale", "student")


# One outcome


@pytest.mark.parametrize("when", ["immediately", "later", "held"])
@pytest.mark.parametrize("failing", ["gnn", "trees"])
async def test_a_failing_step_is_named_and_its_error_kept(when, failing):
    rig = Rig(FRAUD, gnn(when=when), trees(when=when))
    error = NodeNotFound("1 of 1 node ids are not there", [1])
    rig.models[failing].fails = error
    future, _ = rig.ask(nodes=[1], columns={"amount": [0.0]})
    for _ in range(2):
        for model in rig.models.values():
            model.answer()
    outcome = await future
    assert type(outcome) is NodeNotFound
    assert str(outcome) == f"step '{failing}': 1 of 1 node ids are not there"
    assert outcome.missing == (1,)
    assert str(error) == "1 of 1 node ids are not there"
    assert rig.count("node_not_found") == 1
    assert rig.told[0].outcomes[0] is outcome
    assert rig.pipeline.admission.num_open == 0


@pytest.mark.parametrize("error", [Unavailable("gone", 2.0), DeadlineExceeded("late"), RuntimeFailure("x")])
async def test_errors_that_are_builtins_too_keep_what_they_carry(error):
    rig = Rig(FRAUD, gnn(), trees())
    rig.models["gnn"].fails = error
    with pytest.raises(type(error), match=f"^step 'gnn': {error}$") as caught:
        await rig.score(nodes=[1], columns={"amount": [0.0]})
    assert vars(caught.value) == vars(error)


@pytest.mark.parametrize("answered", range(3))
async def test_a_cancelled_run_withdraws_its_requests(answered):
    text = FRAUD.replace("[outputs]", '[outputs]\nnear = "other.probabilities"')
    text = text.replace(
        "[outputs]",
        '[[step]]\nid = "other"\nkind = "model"\nmodel = "other"\nnodes = "input.nodes"\n[outputs]',
    )
    rig = Rig(text, gnn(when="held"), trees(when="held"), gnn("other", when="held"))
    future, ticket = rig.ask(nodes=[1], columns={"amount": [0.0]})
    for name in ("gnn", "trees")[:answered]:
        rig.models[name].answer()
    ticket.cancel()
    ticket.cancel()
    for model in rig.models.values():
        assert all(asked.ended for asked in model.asked)
        model.answer()
    await asyncio.sleep(0)
    assert not future.done()
    assert rig.count("cancelled") == 1
    assert rig.pipeline.admission.num_open == 0
    await asyncio.wait_for(rig.pipeline.join(), 1)


async def test_a_failure_withdraws_the_others_and_they_come_too_late():
    rig = Rig(ensemble(), *(gnn(name, when="held") for name in "abc"))
    future, ticket = rig.ask(nodes=[1])
    rig.models["b"].fails = Overloaded("full")
    rig.models["b"].answer()
    assert isinstance(await future, Overloaded)
    assert [len(rig.models[name].cancelled) for name in "abc"] == [1, 0, 1]
    ticket.cancel()
    assert rig.count("cancelled") == 0


async def test_what_goes_wrong_in_a_step_is_its_own_failure():
    rig = Rig(FRAUD, gnn(), trees())
    rig.models["gnn"]._function = lambda request: {"embedding": np.ones((5, 3), np.float32)}
    with pytest.raises(RuntimeFailure, match=r"step 'gnn': .* 5 rows of 'embedding'; 1 were requested"):
        await rig.score(nodes=[1], columns={"amount": [0.0]})
    rig.models["gnn"]._function = lambda request: {"embedding": np.array([["a", "b", "c"]], object)}
    with pytest.raises(RuntimeFailure, match="step 'trees': the pipeline failed: ValueError"):
        await rig.score(nodes=[1], columns={"amount": [0.0]})
    assert rig.pipeline.admission.num_open == 0


async def test_a_receiver_that_fails_costs_nobody_anything():
    rig = Rig(FRAUD, gnn(when="immediately"), trees(when="immediately"))

    def broken(outcome):
        raise ZeroDivisionError

    hand_in(rig.pipeline, ScoreRequest("fraud", nodes=[1], columns={"amount": [0.0]}), broken)
    assert rig.count("ok") == 1
    assert rig.pipeline.admission.num_open == 0


async def test_a_version_that_does_not_fit_is_refused_by_name():
    rig = Rig(FRAUD, gnn(), trees())
    await rig.score(nodes=[1], columns={"amount": [0.0]})
    rig.models["trees"] = trees(columns=("amount", "emb_0", "emb_1", "emb_2", "age"), version="2")
    with pytest.raises(
        ModelNotReady, match=r"step 'trees': version '2' .* needs 'age', which nothing feeds"
    ):
        await rig.score(nodes=[1], columns={"amount": [0.0]})
    rig.models["trees"] = trees(version="3")
    answer = await rig.score(nodes=[1], columns={"amount": [0.0]})
    assert answer.parts["trees"] == "trees/3"
    rig.pipeline.check_model(trees(version="4").interface)
    rig.pipeline.check_model(trees("others", columns=("age",)).interface)
    spoilt = trees(version="5", columns=("amount",)).interface
    with pytest.raises(PipelineInvalid, match="trees/5 does not fit step 'trees' of pipeline fraud/1: col"):
        rig.pipeline.check_model(spoilt)
    del rig.models["trees"]
    with pytest.raises(Exception, match="step 'trees': no model 'trees'"):
        await rig.score(nodes=[1], columns={"amount": [0.0]})


# What comes in


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({}, "names no nodes"),
        ({"columns": {"amount": [1.0]}}, "names no nodes"),
        ({"nodes": [1]}, "column 'amount' is missing"),
        ({"nodes": [1], "columns": {"amount": [1.0, 2.0]}}, "1 nodes but 2 values in column 'amount'"),
        ({"nodes": [1], "columns": {"amount": ["a"]}}, "column 'amount' is FP32 but holds 'a'"),
        ({"nodes": [1], "columns": {"amount": [True]}}, "holds True"),
        ({"nodes": [1], "columns": {"amount": 1.0}}, "is not a list"),
        ({"nodes": [1], "columns": {"amount": np.ones((1, 1))}}, r"has shape \[1, 1\]"),
        ({"nodes": [1], "columns": {"amount": [1.0], "x": [1]}}, "unexpected column 'x'"),
        (
            {"nodes": [1], "columns": {"amount": [1.0]}, "outputs": ("logits",)},
            "output 'logits' is unknown",
        ),
        ({"nodes": [1], "columns": {"amount": [1.0]}, "attributes": {"country": 1}}, "a string is needed"),
        ({"pairs": ([1], [2])}, "takes no pairs"),
        ({"nodes": [1] * 5000, "columns": {"amount": [1.0] * 5000}}, "5000 rows"),
    ],
)
async def test_a_request_that_can_never_be_answered(request_, says):
    rig = Rig(FRAUD, gnn(), trees())
    with pytest.raises(BadRequest, match=says) as caught:
        rig.ask(**request_)
    assert isinstance(caught.value, RequestTooLarge) == ("5000" in says)
    assert rig.models["gnn"].asked == []
    assert rig.pipeline.admission.num_open == 0
    assert len(rig.told) == 1


async def test_null_is_nan_and_arrays_are_taken():
    rig = Rig(FRAUD, gnn(), trees())
    answer = await rig.score(nodes=[0, 0], columns={"amount": [None, 1]})
    assert np.isnan(answer.outputs["score"]).tolist() == [True, False]
    answer = await rig.score(nodes=np.array([0]), columns={"amount": np.array([2], np.int64)})
    assert answer.outputs["score"].tolist() == [2.0]


async def test_limits_of_the_pipeline_itself():
    request = {"nodes": [1], "columns": {"amount": [0.0]}}
    rig = Rig(FRAUD, gnn(when="held"), trees(), limits=ModelLimits(max_concurrency=1, priority="low"))
    rig.ask(**request)
    assert rig.models["gnn"].asked[0].request.priority == "low"
    with pytest.raises(Overloaded, match="max_concurrency"):
        rig.ask(**request)
    rig = Rig(FRAUD, gnn(), trees(), limits=ModelLimits(rate_per_s=1.0))
    rig.ask(**request)
    with pytest.raises(RateLimited):
        rig.ask(**request)


async def test_deadlines_are_the_requests_or_the_servers():
    now = time.monotonic()
    rig = Rig(FRAUD, gnn(when="held"), trees(), clock=lambda: now)
    with pytest.raises(DeadlineExceeded):
        rig.ask(nodes=[1], columns={"amount": [0.0]}, deadline=now)
    rig.ask(nodes=[1], columns={"amount": [0.0]})
    rig.ask(nodes=[1], columns={"amount": [0.0]}, deadline=now + 1e6)
    limits = Config().limits
    assert [asked.request.deadline for asked in rig.models["gnn"].asked] == [
        now + limits.default_timeout_ms / 1e3,
        now + limits.max_timeout_ms / 1e3,
    ]


async def test_closed_pipelines_finish_what_they_took():
    rig = Rig(FRAUD, gnn(when="held"), trees())
    future, _ = rig.ask(nodes=[1], columns={"amount": [0.0]})
    rig.pipeline.close("the server is shutting down")
    with pytest.raises(Unavailable, match="shutting down"):
        rig.ask(nodes=[1], columns={"amount": [0.0]})
    joined = asyncio.ensure_future(rig.pipeline.join())
    await asyncio.sleep(0)
    assert not joined.done()
    rig.models["gnn"].answer()
    assert (await future).outputs
    await asyncio.wait_for(joined, 1)


# Pipelines in pipelines

OUTER = """
[inputs]
nodes = true
[inputs.columns]
amount = "FP32"
[[step]]
id = "inner"
kind = "model"
model = "fraud"
nodes = "input.nodes"
columns = { "*" = "input.columns" }
[outputs]
decision = "inner.decision"
"""


async def test_a_pipeline_can_be_a_step_of_another_one():
    inner = Rig(FRAUD, gnn(), trees())
    outer = Rig(OUTER, inner.pipeline, name="outer")
    answer = await outer.score(nodes=[1], columns={"amount": [0.0]}, attributes={"country": "XX"})
    assert answer.outputs["decision"].tolist() == ["block"]
    assert answer.parts == {"inner": "fraud/1"}
    assert outer.pipeline.info(("1",)).properties["models"] == ["fraud", "gnn", "trees"]


async def test_pipelines_that_come_to_nest_themselves_are_refused():
    """Each was loaded when what it asks was a plain model; what serves under those names has changed."""
    text = """
[inputs]
nodes = true
[[step]]
id = "only"
kind = "model"
model = "MODEL"
nodes = "input.nodes"
[outputs]
probabilities = "only.probabilities"
"""
    first = Rig(text.replace("MODEL", "second"), gnn("second"), name="first")
    second = Rig(text.replace("MODEL", "first"), gnn("first"), name="second")
    first.models["second"] = second.pipeline
    second.models["first"] = first.pipeline
    nested = "step 'only': step 'only': pipelines nest themselves: first → second → first"
    with pytest.raises(ModelNotReady, match=nested):
        await first.score(nodes=[1])
    with pytest.raises(PipelineInvalid, match="pipeline 'first' has this pipeline inside it"):
        Rig(text.replace("MODEL", "first"), first.pipeline, name="second")
