"""Coalitions over every form of convolution of the engine, against score requests with their edits."""

import msgspec
import numpy as np
import pytest

from hopline.artifact import read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import StateCachePlan, load_model
from hopline.memory.arena import Arena
from hopline.types import ScoreRequest
from hopline_why import shapley
from hopline_why.explain import Explainer, Options
from tests.engine import zoo
from tests.thorough import thorough

HOMOGENEOUS = ["sage", "plain", "gcn", "gat", "mixed", "aggregated", "general"]
KINDS = [(name, how) for name in HOMOGENEOUS for how in ("", "uniform", "recent", "weighted")]
KINDS += [(name, how) for name in ("hetero", "learned") for how in ("", "uniform")]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return zoo.build(tmp_path_factory.mktemp("zoo"))


@pytest.mark.sample(8)
@pytest.mark.parametrize(("name", "how"), KINDS)
def test_every_coalition_is_the_score_request_with_its_edits_to_the_bit(cases, name, how):
    case, rng = cases[name], np.random.default_rng(len(name))
    spec = read_spec(case.folder)
    if how:
        few = dict.fromkeys(spec.fanouts, (2,) * spec.num_layers)
        spec = msgspec.structs.replace(spec, fanouts=few, sampling=how)
    plan = StateCachePlan(spec, case.graph, 2**24)
    explainer = Explainer(load_model(case.folder, spec, case.graph, plan.build(Arena(plan.num_bytes))))
    answerer = Answerer(load_model(case.folder, spec, case.graph), ("logits",), 10**6)
    for node in range(thorough(4, 30)):
        row = np.array([node])
        (own,) = np.asarray(case.graph.nodes[spec.head.node_type].ids.external(row)).tolist()
        for most in (20, 5):
            game, _ = explainer._game(own, Options(players=most))
            full = int(shapley.full(len(game.players.found)))
            drawn = rng.integers(0, full, 4, np.uint64, endpoint=True)
            coalitions = np.append(drawn, np.array([0, full], np.uint64))
            requests = [
                ScoreRequest(spec.name, nodes=[own], outputs=("logits",), edits=game.edits(int(each)))
                for each in coalitions
            ]
            answered = [outcome.outputs["logits"][0] for outcome in answerer.answer(requests)]
            np.testing.assert_array_equal(game.outputs(coalitions, "logits"), np.stack(answered))
