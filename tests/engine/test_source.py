"""Models whose features are not in the process: the same answers, or an honest lower rung."""

import math

import numpy as np
import pytest

from hopline.artifact import read_spec
from hopline.engine.answer import Answerer, FetchedInputs
from hopline.engine.fallbacks import MEAN_FEATURES, SMALLER_FANOUT, STALE_FEATURES
from hopline.engine.model import Model, StateCachePlan
from hopline.engine.plan import drop_edges
from hopline.engine.source import Absent, FetchedRows
from hopline.engine.tasks import default_outputs
from hopline.errors import FeatureStoreUnavailable
from hopline.memory.arena import Arena
from hopline.sampling.keyed import NO_CUT
from hopline.types import InlineNode, ScoreRequest, ScoreResult
from tests.engine import zoo
from tests.engine.test_answers import ALL, count_of, request

DEFAULT_STANDS_IN = 0.25


class Rows:
    """A source that has some rows, and stale ones."""

    def __init__(self, values):
        self.values = np.array(values, np.float32)
        self.near = np.ones(len(values), bool)
        self.stale = np.zeros(len(values), bool)
        self.stamps = np.zeros(len(values))

    ttl_s = 10.0

    def read(self, ids, out, *, stale=False):
        here = self.near[ids] | (self.stale[ids] if stale else False)
        out[here] = self.values[ids[here]]
        out[~here] = np.nan  # what is not filled must not be read
        return np.flatnonzero(~here), np.where(here, self.stamps[ids], math.inf)

    def age_s(self, stamp):
        return self.ttl_s / 2 - stamp

    def mean(self):
        return np.full(self.values.shape[1], DEFAULT_STANDS_IN, np.float32)


def remote(case, caches=True):
    spec = read_spec(case.folder)
    plan = StateCachePlan(spec, case.graph, 2**26 if caches else 0, ages=True)
    sources = {name: Rows(nodes.features) for name, nodes in case.graph.nodes.items()}
    model = Model(case.folder, spec, case.graph, plan.build(Arena(plan.num_bytes)), sources=sources)
    return Answerer(model, default_outputs(spec), 1000), sources


def forget(sources, keep=()):
    for name, rows in sources.items():
        rows.near[:] = False
        for ids in keep:
            rows.near[ids.get(name, [])] = True


def logits(outcome):
    assert isinstance(outcome, ScoreResult), outcome
    return outcome.outputs["logits"]


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", ALL)
def test_rows_that_are_near_give_the_same_bits(cases, name):
    case = cases[name]
    local = case.answerer(False)
    answerer, _ = remote(case)
    rng = np.random.default_rng(0)
    for size in (1, 5, 40):
        asked = [request(case, rng.permutation(count_of(case))[:size]) for _ in range(3)]
        found = answerer.answer_supplied(asked, [FetchedInputs()] * 3)
        for outcome, expected in zip(found, local.answer(asked), strict=True):
            assert (logits(outcome) == logits(expected)).all()
            assert outcome.degraded == ()


@pytest.mark.parametrize("name", ALL)
def test_a_cached_state_expires_with_the_oldest_row_that_it_was_computed_from(cases, name):
    case = cases[name]
    (answerer, sources), rng = remote(case), np.random.default_rng(0)
    for rows in sources.values():
        rows.stamps = rng.uniform(0, rows.ttl_s / 2, len(rows.stamps))
    answerer.answer_supplied([request(case, [3, 17, 40])], [FetchedInputs()])
    bare = remote(case, caches=False)[0].model
    num_states = 0
    for (level, node_type), cache in answerer.model.state_caches.items():
        ids = np.arange(case.graph.nodes[node_type].num_nodes)
        out, stamps = np.empty((len(ids), cache.dim), np.float32), np.empty(len(ids))
        cached = np.setdiff1d(ids, cache.read(ids, out, -math.inf, stamps))
        num_states += len(cached)
        for v in cached:
            reads = bare._plan(level, {node_type: np.array([v])}, NO_CUT).reads
            each = [sources[read.reader.node_type].stamps[read.ids] for read in reads]
            oldest = np.concatenate(each).min(initial=math.inf)
            assert stamps[v] == oldest
            assert v in cache.read(ids, out, oldest, stamps.copy())
    assert num_states > 0


@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_absent_rows_are_named_and_what_is_fetched_gives_the_same_bits(cases, name, caches):
    case = cases[name]
    answerer, sources = remote(case, caches)
    forget(sources)
    asked = request(case, [3, 17, 40])
    (absent,) = answerer.answer_supplied([asked], [FetchedInputs()])
    assert isinstance(absent, Absent)
    fetched_rows = {}
    for node_type, ids in absent.absent.items():
        assert (np.diff(ids) > 0).all()
        fetched_rows[node_type] = [FetchedRows(ids[::-1], sources[node_type].values[ids[::-1]])]
    (outcome,) = answerer.answer_supplied([asked], [FetchedInputs(fetched_rows)])
    assert (logits(outcome) == logits(case.answerer(False).answer([asked])[0])).all()
    # one row less is one row named
    node_type, ids = next(iter(absent.absent.items()))
    if not caches:
        fetched_rows[node_type] = [FetchedRows(ids[1:], sources[node_type].values[ids[1:]])]
        (again,) = answerer.answer_supplied([asked], [FetchedInputs(fetched_rows)])
        assert {k: v.tolist() for k, v in again.absent.items()} == {node_type: [ids[0]]}


@pytest.mark.parametrize("name", ALL)
def test_batch_mates_whose_rows_are_near_are_answered_at_once(cases, name):
    case = cases[name]
    answerer, sources = remote(case, caches=False)
    forget(sources)
    first, second, third = (request(case, [v]) for v in (5, 60, 33))
    needs = [answerer.answer_supplied([r], [FetchedInputs()])[0].absent for r in (first, third)]
    forget(sources, needs)
    found = answerer.answer_supplied([first, second, third], [FetchedInputs()] * 3)
    expected = case.answerer(False).answer([first, third])
    assert isinstance(found[1], Absent)
    assert (logits(found[0]) == logits(expected[0])).all()
    assert (logits(found[2]) == logits(expected[1])).all()


@pytest.mark.parametrize("name", ALL)
def test_doing_without_is_labelled_and_never_kept(cases, name):
    case = cases[name]
    answerer, sources = remote(case)
    forget(sources)
    asked = [request(case, [v]) for v in (3, 17, 40)]
    found = answerer.answer_supplied(asked, [FetchedInputs(is_last=True)] * 3)
    for outcome in found:
        assert np.isfinite(logits(outcome)).all()
        assert MEAN_FEATURES in outcome.degraded
    for rows in sources.values():
        rows.near[:] = True
    full = answerer.answer_supplied(asked, [FetchedInputs()] * 3)
    for outcome, expected in zip(full, case.answerer(False).answer(asked), strict=True):
        assert (logits(outcome) == logits(expected)).all()
        assert outcome.degraded == ()


@pytest.mark.parametrize("name", ALL)
def test_stale_rows_come_before_doing_without(cases, name):
    case = cases[name]
    answerer, sources = remote(case, caches=False)
    forget(sources)
    for rows in sources.values():
        rows.stale[:] = True
    asked = request(case, [3, 17])
    (outcome,) = answerer.answer_supplied([asked], [FetchedInputs(is_last=True)])
    assert outcome.degraded == (STALE_FEATURES,)
    assert (logits(outcome) == logits(case.answerer(False).answer([asked])[0])).all()


def test_neighbours_without_rows_are_left_out(cases):
    case = cases["plain"]
    answerer, sources = remote(case, caches=False)
    (rows,) = sources.values()
    # a destination whose in-neighbours lose their rows, while every own row that is read stays
    asked = request(case, [7])
    forget(sources)
    absent = answerer.answer_supplied([asked], [FetchedInputs()])[0].absent["node"]
    spec = answerer.model.spec
    plan_own = _own_rows(answerer, 7)
    lost = np.setdiff1d(absent, plan_own)
    assert len(lost)
    rows.near[:] = True
    rows.near[lost] = False
    (outcome,) = answerer.answer_supplied([asked], [FetchedInputs(is_last=True)])
    assert outcome.degraded == (SMALLER_FANOUT,)
    expected = _by_hand(case, spec, 7, set(lost.tolist()))
    np.testing.assert_allclose(logits(outcome)[0], expected, atol=1e-4)


def _own_rows(answerer, node):
    """Nodes whose own raw row the plan of one seed reads: those computed at the first layer."""
    from hopline.engine.plan import make_plan

    plan = make_plan(answerer.model.levels, answerer.model.spec.num_layers, {"node": np.array([node])})
    return plan.needs[-2][0].compute.copy()


def _by_hand(case, spec, node, lost):
    """PyG's layers on the sampled block of each level, without the edges from `lost` at the first."""
    import torch

    from hopline.sampling import BlockBuffers, Sampler, layer_key

    module, graph = case.module, case.graph
    adjacency = graph.edges[zoo.EDGE]
    x = torch.from_numpy(np.array(graph.nodes["node"].features))
    convs = {1: module.a, 2: module.b, 3: module.c}

    def state(level, v):
        if level == 0:
            return x[v]
        key = layer_key(spec.salt, level, zoo.EDGE)
        sampler = Sampler(adjacency, spec.fanout(zoo.EDGE, level), spec.sampling, key, spec.max_degree)
        block = sampler.sample(np.array([v]), BlockBuffers())
        seen = [int(u) for u in block.neighbors if level > 1 or int(u) not in lost]
        rows = torch.stack([state(level - 1, v), *[state(level - 1, u) for u in seen]])
        edges = torch.tensor([list(range(1, len(rows))), [0] * len(seen)], dtype=torch.long)
        return convs[level](rows, edges)[0].relu()

    with torch.no_grad():
        return module.out(state(3, node)).numpy()


def test_a_request_that_refuses_less_than_full_quality_fails_and_its_mates_do_not(cases):
    case = cases["plain"]
    answerer, sources = remote(case)
    forget(sources)
    asked = [request(case, [3]), request(case, [3], degraded="refuse")]
    first, second = answerer.answer_supplied(asked, [FetchedInputs(is_last=True, why="timeout")] * 2)
    assert isinstance(first, ScoreResult)
    assert isinstance(second, FeatureStoreUnavailable)
    assert "timeout" in str(second)


@pytest.mark.parametrize("name", ["plain", "gcn", "hetero"])
def test_inline_nodes_read_sources_too(cases, name):
    case = cases[name]
    answerer, sources = remote(case, caches=False)
    node_type = answerer.model.spec.head.node_type
    index = case.graph.nodes[node_type].ids
    key = next(k for k, e in case.graph.edges.items() if e.dst == node_type)
    others = case.graph.nodes[case.graph.edges[key].src].ids
    dim = case.graph.nodes[node_type].features.shape[1]
    inline = InlineNode([0.5] * dim, {key: list(others.external(np.array([1, 2, 3])))})
    nodes = list(index.external(np.array([9])))
    asked = ScoreRequest(name, nodes=nodes, inline=[inline], outputs=("logits",))
    expected = logits(case.answerer(False).answer([asked])[0])
    assert (logits(answerer.answer_supplied([asked], [FetchedInputs()])[0]) == expected).all()
    forget(sources)
    fetched_rows = {}
    for _ in range(5):  # a round for each level at most
        (outcome,) = answerer.answer_supplied([asked], [FetchedInputs(fetched_rows)])
        if isinstance(outcome, ScoreResult):
            break
        for kind, ids in outcome.absent.items():
            fetched_rows.setdefault(kind, []).append(FetchedRows(ids, sources[kind].values[ids]))
    assert (logits(outcome) == expected).all()


def test_edges_to_lost_rows_are_dropped_in_place():
    lost = np.array([False, True, False])
    rows = np.array([0, 1, 2, 1, 1, 2, 0])
    offsets = np.array([0, 3, 5, 7])
    neighbors, positions = rows * 10, np.arange(7)
    assert drop_edges(lost, rows, offsets, neighbors, positions) == 4
    assert offsets.tolist() == [0, 2, 2, 4]
    assert rows[:4].tolist() == [0, 2, 2, 0]
    assert neighbors[:4].tolist() == [0, 20, 20, 0]
    assert positions[:4].tolist() == [0, 2, 5, 6]
