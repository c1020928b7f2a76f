"""Evidence, groups and suspects computed with arrays are those of the plain form, on random meshes."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline_mesh.detect.blame import suspects
from hopline_mesh.detect.calls import COLUMN
from hopline_mesh.detect.clues import Clue, together
from hopline_mesh.detect.paths import Pairs
from hopline_mesh.detect.series import SeriesTable
from hopline_mesh.detect.tracker import TrackedIncident, Tracker
from hopline_mesh.detect.witness import Witness
from hopline_mesh.schema import Schema
from packages.mesh.tests.detect import blame_rules, plain_incident
from packages.mesh.tests.detect.meshes import paths_of
from packages.mesh.tests.detect.test_blame import FEATURES
from tests.thorough import thorough

SERVICES = 12
#: Few services, so that evidence of several kinds meets.
FEW = 5


def clues_of(services):
    return st.lists(
        st.builds(
            lambda feature, service, caller, is_up, is_firm, score: Clue(
                service, caller, feature, FEATURES[feature], score, is_up, is_firm, 1.0, 2.0
            ),
            st.sampled_from(sorted(FEATURES)),
            st.integers(0, services - 1),
            st.integers(-1, services - 1),
            st.booleans(),
            st.booleans(),
            st.floats(0.5, 20.0),
        ),
        max_size=25,
    )


def calls_of(services):
    slots = st.integers(0, services - 1)
    return st.lists(st.tuples(slots, slots), max_size=40, unique=True)


@settings(max_examples=thorough(100, 400), deadline=None)
@given(clues_of(SERVICES), calls_of(SERVICES))
def test_groups_are_those_of_the_plain_form(clues, calls):
    found = together(clues, paths_of(calls))
    assert found == plain_incident.together(clues, calls)


def score_of(blames):
    return {(blame.service, blame.caller): pytest.approx(blame.score, rel=1e-9) for blame in blames}


@settings(max_examples=thorough(100, 400), deadline=None)
@given(clues_of(FEW), calls_of(FEW))
def test_suspects_are_those_of_the_rules(clues, calls):
    found = suspects(clues, paths_of(calls), most=50)
    assert score_of(found) == blame_rules.scores(clues, calls)
    assert [blame.score for blame in found] == sorted((blame.score for blame in found), reverse=True)


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(8))
def test_suspects_of_much_evidence_are_those_of_the_rules(seed):
    drawn = random.Random(seed)
    for _ in range(150):
        clues = []
        for _ in range(drawn.randrange(25)):
            feature = drawn.choice(sorted(FEATURES))
            ends, score = (drawn.randrange(FEW), drawn.randrange(-1, FEW)), drawn.uniform(0.5, 20)
            is_up, is_firm = drawn.random() < 0.5, drawn.random() < 0.5
            clues.append(Clue(*ends, feature, FEATURES[feature], score, is_up, is_firm, 1.0, 2.0))
        calls = [(a, b) for a in range(FEW) for b in range(FEW) if drawn.random() < 0.3]
        assert score_of(suspects(clues, paths_of(calls), most=50)) == blame_rules.scores(clues, calls)


@settings(max_examples=thorough(50, 200), deadline=None)
@given(clues_of(FEW), calls_of(FEW), st.randoms())
def test_suspects_do_not_depend_on_the_order_of_evidence(clues, calls, drawn):
    clues = list({clue.key: clue for clue in clues}.values())
    before = suspects(clues, paths_of(calls), most=50)
    shuffled = drawn.sample(clues, len(clues))
    after = suspects(shuffled, paths_of(drawn.sample(calls, len(calls))), most=50)
    assert score_of(before) == {(blame.service, blame.caller): blame.score for blame in after}
    assert {(b.service, b.caller): [c.key for c in b.clues] for b in before} == {
        (b.service, b.caller): [c.key for c in b.clues] for b in after
    }


def random_mesh(seed: int, services: int = 60, edges: int = 300):
    """Tables, pairs and snapshot with random numbers, some of them not measured."""
    rng = np.random.default_rng(seed)
    schema = Schema()
    keys = rng.choice(services * services, edges, replace=False)
    src, dst = (keys // services).astype(np.int32), (keys % services).astype(np.int32)
    pairs = Pairs()
    pairs.slots(src, dst)
    nodes = SeriesTable(schema.node_features, 20, 10)
    links = SeriesTable((*schema.edge_features, COLUMN), 20, 10)
    for table, size in ((nodes, services), (links, edges)):
        table.grow(size)
        shape = table.level.shape
        table.level[:] = rng.normal(2, 2, shape)
        table.spread[:] = rng.lognormal(-2, 0.5, shape)
        table.offset[:] = rng.uniform(0, 1, shape)
        table.slow[:] = rng.normal(0, 12, shape)
        table.near[:] = table.slow * rng.uniform(-0.2, 1.5, shape)
        table.wide[:] = table.spread * rng.choice([1.0, 3.0], shape)
        table.now[:] = table.level + table.wide * table.slow
        table.dev[:] = np.clip(np.where(rng.random(shape) < 0.2, 31.7, table.slow), -31.75, 31.75)
        table.sharp[:] = rng.choice([0.0, 0.5, 1.0], shape, p=[0.05, 0.25, 0.7])
        table.quiet[:] = rng.choice([0.0, 0.5, 1.0], shape, p=[0.05, 0.1, 0.85])
        table.score[:] = rng.lognormal(-0.5, 1, shape)
        table.slow[rng.random(shape) < 0.05] = np.nan
    shown = rng.permutation(edges)[: edges * 9 // 10]
    snapshot = SimpleNamespace(edge_src=src[shown], edge_dst=dst[shown])
    places = [np.argwhere(table.score[: table.size] > 2.0).tolist() for table in (nodes, links)]
    found = [(number, *place) for number, some in enumerate(places) for place in some]
    return nodes, links, pairs, snapshot, found


@pytest.mark.parametrize("most", [10_000, 40])
@pytest.mark.parametrize("seed", range(8))
def test_evidence_is_that_of_the_plain_form(seed, most, monkeypatch):
    for module in (plain_incident, __import__("hopline_mesh.detect.witness", fromlist=["x"])):
        monkeypatch.setattr(module, "_MOST_FIRM", most)
        monkeypatch.setattr(module, "_MOST_SUPPORTS", most)
    nodes, links, pairs, snapshot, found = random_mesh(seed)
    fast, plain = Witness(nodes, links, pairs), plain_incident.Witness(nodes, links, pairs)
    places = np.array(found, np.int64).reshape(-1, 3)
    np.testing.assert_allclose(fast.shares(snapshot, places), plain.shares(snapshot, found))
    same(fast.firm(snapshot, places), plain.firm(snapshot, found))
    same(fast.supporting(snapshot, places, [3]), plain.supporting(snapshot, found, [3]))
    services = set(range(0, nodes.size, 3))
    paths = fast.paths(snapshot, services)
    assert list(zip(paths.src.tolist(), paths.dst.tolist(), strict=True)) == plain.calls(snapshot, services)
    keys = [clue.key for clue in plain.firm(snapshot, found)]
    keys += [(-1, 3, "crash_loop"), (0, nodes.size - 1, "client_ms"), (-1, nodes.size + 5, "p99_ms")]
    assert fast.scores(keys) == [plain.score(key) for key in keys]


def test_call_paths_without_columns_have_no_evidence():
    nodes, links, pairs, snapshot, found = random_mesh(1)
    bare = SeriesTable((), 20, 10)
    bare.grow(links.size)
    fast, plain = Witness(nodes, bare, pairs), plain_incident.Witness(nodes, bare, pairs)
    found = [place for place in found if place[0] == 0]
    same(fast.firm(snapshot, np.array(found)), plain.firm(snapshot, found))
    same(fast.supporting(snapshot, np.array(found), []), plain.supporting(snapshot, found, []))
    assert fast.scores([(0, 1, "client_ms")]) == [0.0]


def same(fast, plain):
    assert plain
    exact = ("service", "caller", "feature", "role", "score", "is_up", "is_firm")
    for one, other in zip(fast, plain, strict=True):
        for name in exact:
            assert getattr(one, name) == getattr(other, name)
        for name in ("seen", "expected"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-12)


def belongs_to(tracker, group, calls, alive):
    """The open incident that shares most with a group, by comparing it with each."""
    firm = [clue for clue in group if clue.is_firm]
    reported = {clue.service for clue in firm if clue.role in ("trouble", "gone")}
    services = {clue.service for clue in group} | {clue.caller for clue in group} - {-1}
    found = []
    for trouble in tracker.open:
        same = sum(key in trouble.clues for key in {clue.key for clue in firm})
        same += any(clue.caller < 0 and clue.service in reported for clue in trouble.clues.values())
        theirs = trouble.services
        touches = any((a in services and b in theirs) or (b in services and a in theirs) for a, b in calls)
        found.append(same + (trouble.id in alive and (bool(services & theirs) or touches)))
    best = max(found, default=0)
    return tracker.open[found.index(best)] if best else None


@pytest.mark.parametrize("seed", range(6))
def test_a_group_joins_the_incident_that_shares_most_with_it(seed):
    drawn = random.Random(seed)
    joined = 0
    for _ in range(60):
        calls = [(a, b) for a in range(SERVICES) for b in range(SERVICES) if drawn.random() < 0.05]

        def clue():
            feature = drawn.choice(sorted(FEATURES))
            ends = drawn.randrange(SERVICES), drawn.choice([-1, -1, drawn.randrange(SERVICES)])
            return Clue(*ends, feature, FEATURES[feature], drawn.uniform(1, 9), True, True, 1.0, 2.0)

        tracker = Tracker()
        for number in range(drawn.randrange(1, 6)):
            trouble = TrackedIncident(str(number), 0.0, 0.0)
            trouble.clues = {each.key: each for each in (clue() for _ in range(drawn.randrange(1, 4)))}
            tracker.open.append(trouble)
        alive = {each.id for each in tracker.open if drawn.random() < 0.6}
        is_alive = {key for each in tracker.open if each.id in alive for key in each.clues}
        dead = {key for each in tracker.open if each.id not in alive for key in each.clues}
        if is_alive & dead:
            continue
        group = [clue() for _ in range(drawn.randrange(1, 4))]
        expected = belongs_to(tracker, group, calls, alive)
        before = {each.id: set(each.clues) for each in tracker.open}

        def present(keys, is_alive=is_alive):
            return [2.0 if key in is_alive else 0.0 for key in keys]

        tracker.update(15.0, 0.0, [group], paths_of(calls), present, 99, str)
        keys = {each.key for each in group}
        if expected is None:
            assert all(set(each.clues) == before[each.id] for each in tracker.open if each.id in before)
        else:
            joined += 1
            assert set(expected.clues) == before[expected.id] | keys
            assert len(tracker.open) == len(before)
    assert joined > 10
