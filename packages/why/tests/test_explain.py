"""Reasons against score requests with edits, and against PyG on edited graphs."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopline.errors import BadRequest, NodeNotFound
from hopline.types import ScoreRequest
from hopline_why import explain as module
from hopline_why import shapley
from hopline_why.explain import Explainer, Options
from hopline_why.players import Group
from packages.why.tests.test_shapley import by_definition
from packages.why.tests.worlds import OWNED, OWNS, PAYS, world
from tests.thorough import thorough

WORLDS = {
    "typed": ("typed", [-1, -1]),
    "typed, sampled": ("typed", [2, 2]),
    "sage": ("sage", [-1, -1]),
    "sage, sampled": ("sage", [1, 2]),
    "gat": ("gat", [-1, -1]),
    "gcn": ("gcn", [-1, -1]),
    "gcn, sampled": ("gcn", [2, 1]),
}
WHOLE = ["typed", "sage", "gat", "gcn"]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    made = {}

    def find(name):
        if name not in made:
            made[name] = world(tmp_path_factory.mktemp("w"), *WORLDS[name])
        return made[name]

    return find


def sums_up(found):
    total = math.fsum(reason.value for reason in found.reasons)
    return math.isclose(total, found.score - found.background, abs_tol=1e-9)


@pytest.mark.parametrize("name", WORLDS)
def test_every_coalition_is_the_score_request_with_its_edits_to_the_bit(worlds, name):
    own = worlds(name)
    explainer, answerer = Explainer(own.model(cached=True)), own.answerer()
    rng = np.random.default_rng(1)
    for user in range(thorough(6, 40)):
        for most in (20, 4):
            game, _ = explainer._game(f"u{user}", Options(players=most))
            full = int(shapley.full(len(game.players.found)))
            coalitions = np.append(rng.integers(0, full, 6, np.uint64, endpoint=True), [0, full])
            logits = game.outputs(coalitions.astype(np.uint64), "logits")
            requests = [
                ScoreRequest("risk", nodes=[f"u{user}"], outputs=("logits",), edits=game.edits(int(each)))
                for each in coalitions
            ]
            assert requests[-1].edits == ()
            answered = [outcome.outputs["logits"][0] for outcome in answerer.answer(requests)]
            np.testing.assert_array_equal(logits, np.stack(answered))


@pytest.mark.parametrize("name", WORLDS)
@given(data=st.data())
def test_states_that_coalitions_share_are_those_of_each_alone(worlds, name, data):
    explainer = Explainer(worlds(name).model(cached=True))
    user, most = data.draw(st.integers(0, 39)), data.draw(st.sampled_from([3, 8, 20, 40]))
    game, _ = explainer._game(f"u{user}", Options(players=most))
    full = int(shapley.full(len(game.players.found)))
    coalitions = np.array(data.draw(st.lists(st.integers(0, full), min_size=1, max_size=40)), np.uint64)
    assert game.variants.is_shared == (not name.startswith("gcn"))
    shared = game.outputs(coalitions, "logits")
    game.variants.is_shared = False
    np.testing.assert_array_equal(shared, game.outputs(coalitions, "logits"))


def scored_by_module(own, game, coalition, user):
    """The module's logits on a graph without the edges, and with the row, of a coalition."""
    edges = {key: each.copy() for key, each in own.edges.items()}
    for (name, dst), (neighbors, owners, _) in game.players.lists.items():
        key = tuple(name.split("__"))
        for neighbor, owner in zip(neighbors.tolist(), owners.tolist(), strict=True):
            if owner >= 0 and not coalition >> owner & 1:
                own_key, ends = (OWNS, (dst, neighbor)) if key == OWNED else (key, (neighbor, dst))
                edges[own_key] = edges[own_key][:, (edges[own_key] != np.array([ends]).T).any(axis=0)]
    x = {name: each.copy() for name, each in own.x.items()}
    is_there = coalition >> game.players.columns & 1 != 0
    x["user"][user] = np.where(is_there, own.x["user"][user], np.median(own.x["user"], axis=0))
    return own.module_logits(x, edges)[user]


@pytest.mark.parametrize("name", WHOLE)
def test_exact_values_are_those_of_the_module_on_edited_graphs(worlds, name):
    own, count = worlds(name), 0
    explainer = Explainer(own.model())
    for user in range(40):
        game, _ = explainer._game(f"u{user}", Options())
        if not 2 <= len(game.players.found) <= thorough(7, 12) or count == thorough(4, 50):
            continue
        count += 1
        found = explainer.explain(f"u{user}", Options(exact=True))
        values = [
            scored_by_module(own, game, coalition, user)[found.column]
            for coalition in range(1 << len(game.players.found))
        ]
        expected = dict(
            zip((each.name for each in game.players.found), exact_by_masks(values), strict=True)
        )
        assert {each.name: each.value for each in found.reasons} == pytest.approx(expected, abs=1e-4)
        assert found.score == pytest.approx(values[-1], abs=1e-4)
        assert found.background == pytest.approx(values[0], abs=1e-4)
        assert sums_up(found)
    assert count >= 3


def exact_by_masks(values):
    """Shapley values from the formula over subsets, one by one."""
    count = (len(values) - 1).bit_length()
    if count <= 6:
        return by_definition(values)
    found = [0.0] * count
    for coalition, value in enumerate(values):
        size = coalition.bit_count()
        for player in range(count):
            if coalition >> player & 1:
                found[player] += value / (count * math.comb(count - 1, size - 1))
            else:
                found[player] -= value / (count * math.comb(count - 1, size))
    return found


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("most", [20, 6])
def test_the_values_of_every_answer_sum_up(worlds, name, most):
    explainer = Explainer(worlds(name).model(cached=True))
    answers = worlds(name).answerer()
    for user in range(thorough(8, 40)):
        found = explainer.explain(f"u{user}", Options(players=most))
        (outcome,) = answers.answer([ScoreRequest("risk", nodes=[f"u{user}"])])
        assert found.score == float(outcome.outputs["logits"][0, found.column])
        assert found.column == outcome.outputs["logits"][0].argmax()
        assert sums_up(found)
        assert found.method == ("exact" if len(found.reasons) <= 8 else "orders")


def test_sampled_values_lie_near_the_exact_ones(worlds):
    explainer, near, count = Explainer(worlds("sage").model()), [], 0
    for user in range(40):
        found = explainer.explain(f"u{user}", Options(pairs=16))
        if found.method == "orders" and len(found.reasons) <= module.MOST_EXACT:
            count += 1
            exact = {each.name: each for each in explainer.explain(f"u{user}", Options(exact=True)).reasons}
            near += [
                abs(each.value - exact[each.name].value) <= 3 * each.error + 1e-6 for each in found.reasons
            ]
    assert count > 3
    assert np.mean(near) > 0.95


def test_the_same_bytes_whatever_was_explained_before(worlds):
    own = worlds("typed, sampled")
    warm = Explainer(own.model(cached=True))
    for user in range(10):
        warm.explain(f"u{user}")
    for user in range(10):
        alone = Explainer(own.model()).explain(f"u{user}")
        assert msgspec.json.encode(alone) == msgspec.json.encode(warm.explain(f"u{user}"))


def test_groups_of_the_caller_are_players(worlds):
    explainer = Explainer(worlds("sage").model())
    game, _ = explainer._game("u1", Options())
    senders = [each.nodes[0] for each in game.players.found if each.hop == 1][:2]
    groups = {"money": Group(columns=["amount", "balance"]), "friends": Group(neighbors=senders)}
    found = explainer.explain("u1", Options(groups=groups))
    by_name = {each.name: each for each in found.reasons}
    assert by_name["money"].size == 2
    assert by_name["friends"].kind == "edges"
    assert not {"amount", "balance"} & by_name.keys()
    assert "age" in by_name
    assert sums_up(found)


def test_absent_columns_have_the_value_that_the_caller_gives(worlds):
    own = worlds("sage")
    found = Explainer(own.model()).explain("u3", Options(background={"amount": 9.5}))
    by_name = {each.name: each for each in found.reasons}
    assert by_name["amount"].absent == 9.5
    assert by_name["age"].absent == pytest.approx(np.median(own.x["user"][:, 0]))
    assert by_name["age"].given == pytest.approx(own.x["user"][3, 0])
    assert found.absent == "1 given values, else medians of 40 nodes"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (Options(output="embedding"), "'embedding' has no reasons; those that have: logits, probabilities"),
        (Options(klass=3), "class 3: output 'logits' has 2 columns"),
        (Options(klass="high"), "class 'high' is none of no names"),
        (Options(pairs=1), "pairs: at least 2"),
        (Options(background={"height": 1.0}), "'height' is no column of 'user'"),
        (Options(background={"age": math.nan}), "'age' has no finite value"),
        (Options(groups={"g": Group(columns=["height"])}), "'height' is none of age, amount, balance"),
        (Options(groups={"g": Group(neighbors=["u39", "x"])}), "is no neighbour that is read"),
        (Options(groups={"g": Group()}), "has either columns or neighbours"),
        (
            Options(groups={"g": Group(columns=["age"]), "h": Group(columns=["age"])}),
            "a member is in another group too",
        ),
    ],
)
def test_what_cannot_be_explained_is_refused_with_the_reason(worlds, options, reason):
    own = worlds("sage")
    explainer = Explainer(own.model())
    busiest = np.bincount(own.edges[PAYS][1]).argmax()
    with pytest.raises(BadRequest, match=reason.replace(".", r"\.")):
        explainer.explain(f"u{busiest}", options)


def test_a_node_that_the_graph_lacks_is_named(worlds):
    with pytest.raises(NodeNotFound, match="'nobody'"):
        Explainer(worlds("sage").model()).explain("nobody")


def test_a_node_with_too_many_edges_is_refused(worlds, monkeypatch):
    monkeypatch.setattr("hopline_why.players.MOST_EDGES", 3)
    own = worlds("sage")
    with pytest.raises(BadRequest, match="have more than 3 edges"):
        Explainer(own.model()).explain(f"u{np.bincount(own.edges[PAYS][1]).argmax()}")
