"""Any pipeline answers what its definition says, computed plainly; and ends once, whatever fails."""

import asyncio
import inspect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.errors import HoplineError, Overloaded
from hopline.types import ScoreRequest
from packages.pipelines.tests.rig import Rig
from tests.fake_version import FakeVersion, hand_in
from tests.thorough import thorough

THRESHOLD = 3.0


def adder(name, when):
    """Columns a and b -> x = a + 2 b."""

    def answer(request):
        return {"x": request.columns["a"] + np.float32(2) * request.columns["b"]}

    return FakeVersion(name, "tabular", {"a": "FP32", "b": "FP32"}, {"x": ("FP32", ())}, answer, when=when)


@st.composite
def graphs(draw):
    """[(kind, sources)] of steps s0, s1, …; a source is an earlier step or "input"."""
    found = []
    for index in range(draw(st.integers(1, 8))):
        earlier = st.sampled_from(["input", *(f"s{i}" for i in range(index))])
        kind = draw(st.sampled_from(["model", "transform", "rules", "ensemble", "route"]))
        if kind in ("ensemble", "route") and index < 2:
            kind = "model"
        if kind in ("ensemble", "route"):
            sources = draw(
                st.lists(
                    st.sampled_from([f"s{i}" for i in range(index)]), min_size=2, max_size=3, unique=True
                )
            )
            if kind == "route":
                sources = [draw(earlier), *sources[:2]]
        else:
            sources = [draw(earlier), draw(earlier)]
        found.append((kind, sources))
    return found


def written(graph):
    """The pipeline.toml of a graph; its steps stand in reverse, and those that none reads are answered."""
    parts = []
    for index, (kind, sources) in reversed(list(enumerate(graph))):
        a, b, *_ = [f"{each}.x" for each in sources]
        head = f'[[step]]\nid = "s{index}"\nkind = "{kind.replace("rules", "transform")}"\n'
        if kind == "rules":  # a step beside it decides which of both it is
            cases = f'[{{ when = "{a} > {b}", then = 1 }}, {{ when = "{a} < {b}", then = 2 }}]'
            head = (
                f'[[step]]\nid = "r{index}"\nkind = "rules"\noutput="side"\ndefault = 0\nrules = {cases}\n'
                + head
            )
        parts.append(
            head
            + {
                "model": f'model = "m{index}"\ncolumns = {{ a = "{a}", b = "{b}" }}',
                "transform": f'columns = {{ x = "{a} - 0.5 * {b}" }}',
                "rules": f'columns = {{ x = "where(r{index}.side == 2, {a}, {b})" }}',
                "ensemble": f'members = {[*sources]}\noutput = "x"\ncombine = "max"'.replace("'", '"'),
                "route": f'default = "{sources[-1]}"\n'
                f'rules = [{{ when = "{a} > {THRESHOLD}", then = "{sources[1]}" }}]',
            }[kind]
        )
    read = {source for _, sources in graph for source in sources}
    outputs = [f's{i} = "s{i}.x"' for i in range(len(graph)) if f"s{i}" not in read]
    return '[inputs.columns]\nx = "FP32"\n' + "\n".join(parts) + "\n[outputs]\n" + "\n".join(outputs)


def plainly(graph, x):
    """What each step's x is, by NumPy alone."""
    found = {"input": x}
    for index, (kind, sources) in enumerate(graph):
        values = [found[each] for each in sources]
        if kind == "model":
            result = values[0] + np.float32(2) * values[1]
        elif kind == "transform":
            result = values[0] - np.float32(0.5) * values[1]
        elif kind == "rules":
            result = np.where(values[0] < values[1], values[0], values[1])
        elif kind == "ensemble":
            result = np.max(values, axis=0)
        else:
            result = np.where(values[0] > np.float32(THRESHOLD), values[1], values[2])
        found[f"s{index}"] = result
    return found


def rig_of(graph, when):
    models = [adder(f"m{i}", when) for i, (kind, _) in enumerate(graph) if kind == "model"]
    if not any("input" in sources for _, sources in graph):
        graph = [("transform", ["input", "input"]), *graph]
    return Rig(written(graph), *models)


columns = st.lists(st.integers(-4, 8), min_size=1, max_size=4)


@settings(max_examples=thorough(37, 150), deadline=None)
@given(graphs(), columns, st.sampled_from(["immediately", "later"]))
def test_a_graph_of_steps_answers_what_numpy_does(graph, x, when):
    async def check():
        rig = rig_of(graph, when)
        answer = await rig.score(columns={"x": x})
        expected = plainly(graph, np.array(x, np.float32))
        for name, array in answer.outputs.items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-6)
        assert rig.pipeline.admission.num_open == 0
        assert all(asked.ended for model in rig.models.values() for asked in model.asked)

    asyncio.run(check())


@settings(max_examples=thorough(37, 150), deadline=None)
@given(graphs(), columns, st.data())
def test_whichever_model_fails_there_is_one_outcome_and_it_is_named(graph, x, data):
    async def check():
        rig = rig_of(graph, "held")
        names = list(rig.models)
        if not names:
            return
        broken = data.draw(st.sampled_from(names))
        rig.models[broken].fails = Overloaded("full")
        outcomes = []
        hand_in(rig.pipeline, request_of(x), outcomes.append)
        answer_in_any_order(rig, data)
        (outcome,) = outcomes
        was_asked = bool(rig.models[broken].asked)
        assert isinstance(outcome, HoplineError) == was_asked
        if was_asked:
            assert str(outcome) == f"step 's{broken[1:]}': full"
        assert rig.pipeline.admission.num_open == 0

    asyncio.run(check())


@settings(max_examples=thorough(37, 150), deadline=None)
@given(graphs(), columns, st.data())
def test_a_run_cancelled_at_any_moment_delivers_nothing_and_leaves_nothing(graph, x, data):
    async def check():
        rig = rig_of(graph, "held")
        outcomes = []
        ticket = hand_in(rig.pipeline, request_of(x), outcomes.append)
        answer_in_any_order(rig, data, most=data.draw(st.integers(0, 6)))
        was_done = bool(outcomes)
        ticket.cancel()
        answer_in_any_order(rig, data)
        assert len(outcomes) == was_done
        assert all(asked.ended for each in rig.models.values() for asked in each.asked)
        assert rig.count("cancelled") == (not was_done)
        assert rig.pipeline.admission.num_open == 0

    asyncio.run(check())


def request_of(x):
    return ScoreRequest("fraud", columns={"x": x})


def answer_in_any_order(rig, data, most=1000):
    """Let held models answer, one at a time, until none waits or `most` have."""
    for _ in range(most):
        waiting = [
            (model, asked) for model in rig.models.values() for asked in model.asked if not (asked.ended)
        ]
        if not waiting:
            return
        model, asked = waiting[data.draw(st.integers(0, len(waiting) - 1))]
        model.answer(asked)


@pytest.mark.parametrize("length", [1, 62])
async def test_a_long_chain(length):
    graph = [("model", ["input", "input"]), *[("model", [f"s{i}", f"s{i}"]) for i in range(length)]]
    rig = rig_of(graph, "immediately")
    answer = await rig.score(columns={"x": [1.0]})
    np.testing.assert_allclose(answer.outputs[f"s{length}"], [3.0 ** (length + 1)], rtol=1e-5)


async def test_a_chain_needs_no_deep_stack():
    """Models that answer at once, as a cache does, must not call each other inside each other."""
    depths = []
    graph = [("model", ["input", "input"]), *[("model", [f"s{i}", f"s{i}"]) for i in range(20)]]
    rig = rig_of(graph, "immediately")
    for model in rig.models.values():
        model._function = lambda request, answer=model._function: [
            depths.append(len(inspect.stack(0))),
            answer(request),
        ][1]
    await rig.score(columns={"x": [1.0]})
    assert len(depths) == 21
    assert depths[-1] - depths[1] < 10
