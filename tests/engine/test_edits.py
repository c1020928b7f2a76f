"""Answers under edits of a request: those of a graph that is built from the edited edges, bit for bit."""

from __future__ import annotations

import dataclasses
import warnings

import msgspec
import numpy as np
import pytest
from torch import nn

from hopline.artifact import read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import Model, StateCachePlan
from hopline.engine.tasks import default_outputs
from hopline.errors import BadRequest, NodeNotFound, RequestTooLarge
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.memory.arena import Arena
from hopline.sampling.keyed import NO_CUT
from hopline.transports.score_json import decode_score, score_request
from hopline.types import ContextNode, EdgeEdit, Edit, InlineNode, ScoreRequest
from tests.engine import zoo
from tests.engine.test_live import Live
from tests.graph.unpacked import decompressed
from tests.packaged import package

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
    from torch_geometric import nn as pyg

NAMES = ["sage", "plain", "gcn", "gat", "mixed", "aggregated", "general", "hetero"]


def set_row(external, features, node_type="") -> Edit:
    return Edit(set=ContextNode(features, id=external, type=node_type))


class World:
    """A graph as plain arrays, which edits change, and from which it is built again."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.rows = {name: np.array(nodes.features) for name, nodes in graph.nodes.items()}
        self.edges = {}
        for key in graph.schema.own_edge_types:
            part = graph.edges[key]
            target = np.repeat(np.arange(len(part.indptr) - 1), np.diff(part.indptr))
            self.edges[key] = {"src": part.indices.astype(np.int64), "dst": target}
            for name in ("time", "weight", "attr"):
                if getattr(part, name) is not None:
                    self.edges[key][name] = np.array(getattr(part, name))

    def ids(self, name, rows):
        found = self.graph.nodes[name].ids.external(np.atleast_1d(rows))
        return found if isinstance(found, list) else found.tolist()

    def built(self) -> Graph:
        if set(self.graph.nodes) == {"node"}:
            own = self.edges[zoo.EDGE]
            ends = [self.ids("node", own[end]) if len(own[end]) else [] for end in ("src", "dst")]
            ids = self.ids("node", np.arange(len(self.rows["node"])))
            table = EdgeTable(ends, own.get("attr"), own.get("time"), own.get("weight"))
            both = self.graph.schema.both_directions
            nodes = {"node": NodeTable(self.rows["node"], ids=ids)}
            return Graph.from_tables(nodes, {("node", "to", "node"): table}, both_directions=both)
        parts = self.graph.edges
        return Graph.from_tables(
            {name: NodeTable(rows) for name, rows in self.rows.items()},
            {
                (parts[key].src, parts[key].relation, parts[key].dst): EdgeTable(
                    np.stack([own["src"], own["dst"]])
                )
                for key, own in self.edges.items()
            },
        )

    def edit(self, rng, size: int) -> tuple[Edit, ...]:
        """Make random edits, and return them as a request has them."""
        return tuple(self._one(rng) for _ in range(size))

    def _one(self, rng) -> Edit:
        kind = rng.choice(["set", "add", "add", "remove", "remove"])
        if kind == "set":
            name = str(rng.choice([*self.rows]))
            row = int(rng.integers(len(self.rows[name])))
            self.rows[name][row] = rng.standard_normal(self.rows[name].shape[1]).astype(np.float32)
            (external,) = self.ids(name, row)
            return set_row(external, self.rows[name][row].tolist(), name)
        key = str(rng.choice([*self.edges]))
        own, part = self.edges[key], self.graph.edges[key]
        if kind == "remove" and len(own["src"]):
            at = int(rng.integers(len(own["src"])))
            source, target = own["src"][at], own["dst"][at]
            gone = (own["src"] == source) & (own["dst"] == target)
            time = None
            if "time" in own and rng.random() < 0.3:
                time = int(own["time"][at])
                gone &= own["time"] == time
            self.edges[key] = {name: column[~gone] for name, column in own.items()}
            ends = self.ids(part.src, source)[0], self.ids(part.dst, target)[0]
            return Edit(remove_edge=EdgeEdit(*ends, key, time))
        # few sources, so that lists have repeated edges; some self-loops
        source = int(rng.integers(min(20, len(self.rows[part.src]))))
        target = int(rng.integers(len(self.rows[part.dst])))
        if part.src == part.dst and rng.random() < 0.2:
            target = source
        new = {"src": source, "dst": target}
        ends = self.ids(part.src, source)[0], self.ids(part.dst, target)[0]
        time = weight = attr = None
        if "time" in own:
            new["time"] = time = int(rng.integers(0, 100))
        if "weight" in own:
            new["weight"] = np.float32(rng.random() + 0.1)
            weight = float(new["weight"])
        if "attr" in own:
            new["attr"] = rng.standard_normal(2).astype(np.float32)
            attr = new["attr"].tolist()
        self.edges[key] = {
            name: np.concatenate([column, np.asarray([new[name]], column.dtype)])
            for name, column in own.items()
        }
        return Edit(add_edge=EdgeEdit(*ends, key, time, weight, attr))


def answerer_of(case, graph, *, caches: bool, fanout: int | None = None, sampling: str = "") -> Answerer:
    spec = read_spec(case.folder)
    if fanout is not None:
        spec = msgspec.structs.replace(
            spec, fanouts=dict.fromkeys(spec.fanouts, (fanout,) * spec.num_layers)
        )
    if sampling:
        spec = msgspec.structs.replace(spec, sampling=sampling)
    plan = StateCachePlan(spec, graph, 2**26 if caches else 0)
    model = Model(case.folder, spec, graph, plan.build(Arena(plan.num_bytes)))
    return Answerer(model, default_outputs(spec), 1000)


def logits(answerer, *requests):
    outcomes = answerer.answer(requests)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return [outcome.outputs["logits"] for outcome in outcomes]


def asked(case, world, rows, edits=(), **fields):
    head = read_spec(case.folder).head
    nodes = world.ids(head.node_type, rows) if len(rows) else []
    return ScoreRequest(case.name, nodes=nodes, outputs=("logits",), edits=edits, **fields)


def check_caches(case, answerer, cold) -> None:
    """Every cached row is that of the graph as it is."""
    for (level, name), cache in answerer.model.state_caches.items():
        ids = np.arange(len(case.graph.nodes[name].features))
        width = answerer.model.levels[level][name].stage.state_dim
        rows = np.empty((len(ids), width), np.float32)
        missing = cache.read(ids, rows).copy()
        kept = np.delete(ids, missing)
        if len(kept):
            expected = cold.model._states(level, {name: kept}, NO_CUT)[name]
            assert (rows[kept] == expected).all()


def compare(
    case, seed, *, fanout=None, sampling="", rounds=4, size=4, as_of=None, oracle=False, plain=None
) -> int:
    """Answer random requests with random edits, some of them in one batch; returns the number of edits.

    Args:
        plain: the case's graph in the form from which it is built again, if that is another one.
    """
    plain = plain or case.graph
    rng = np.random.default_rng([seed, len(case.name)])
    options = {"fanout": fanout, "sampling": sampling}
    warm = answerer_of(case, case.graph, caches=True, **options)
    cold = answerer_of(case, case.graph, caches=False, **options)
    head = read_spec(case.folder).head
    count = len(case.graph.nodes[head.node_type].features)
    logits(warm, asked(case, World(plain), rng.permutation(count)[: count // 2]))
    requests, expected, made = [], [], 0
    for _ in range(rounds):
        world = World(plain)
        edits = world.edit(rng, int(rng.integers(1, 2 * size)))
        made += len(edits)
        rows = rng.permutation(count)[: int(rng.choice([1, 3, count]))]
        graph = world.built()
        rebuilt = answerer_of(case, graph, caches=False, **options)
        (found,) = logits(rebuilt, asked(case, world, rows, as_of=as_of))
        if oracle:
            np.testing.assert_allclose(found, case.oracle(graph)[rows], atol=1e-4, rtol=1e-4)
        requests.append(asked(case, world, rows, edits, as_of=as_of))
        expected.append(found)
        for answerer in (cold, warm):
            (alone,) = logits(answerer, requests[-1])
            assert (alone == found).all(), (edits, rows)
    usual = asked(case, World(plain), np.arange(count), as_of=as_of)
    (before,) = logits(cold, usual)
    for answerer in (cold, warm):
        together = logits(answerer, *requests, usual)
        for one, other in zip(together, [*expected, before], strict=True):
            assert (one == other).all()
    check_caches(case, warm, cold)
    return made


@pytest.mark.sample(8)
@pytest.mark.parametrize("fanout", [None, -1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_of_a_rebuilt_graph(cases, name, fanout):
    assert compare(cases[name], 1, fanout=fanout, oracle=fanout == -1)


@pytest.mark.sample(3)
@pytest.mark.parametrize("sampling", ["recent", "weighted"])
@pytest.mark.parametrize("name", ["sage", "plain", "gcn", "gat"])
def test_samples_of_edited_lists_are_those_of_a_rebuilt_graph(cases, name, sampling):
    assert compare(cases[name], 2, sampling=sampling)


@pytest.mark.sample(3)
@pytest.mark.parametrize("sampling", ["uniform", "recent", "weighted"])
@pytest.mark.parametrize("name", ["plain", "gcn", "mixed"])
def test_a_cut_holds_for_edited_lists(cases, name, sampling):
    assert compare(cases[name], 3, sampling=sampling, as_of=50)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["sage", "plain", "gat", "hetero"])
def test_lists_of_a_compressed_graph_are_edited(cases, name):
    packed = cases[name].graph.compressed()
    case = dataclasses.replace(cases[name], graph=packed)
    assert compare(case, 4, plain=decompressed(packed))


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_rows_among_narrow_features_are_set(cases, dtype):
    narrow = cases["sage"].graph.with_features_as(dtype)
    case = dataclasses.replace(cases["sage"], graph=narrow)
    assert compare(case, 5, plain=narrow.with_features_as("float32"))


def test_a_model_that_samples_by_weight_takes_no_edits_of_a_compressed_graph(cases):
    packed = cases["sage"].graph.compressed()
    answerer = answerer_of(cases["sage"], packed, caches=False, sampling="weighted")
    edit = Edit(remove_edge=EdgeEdit("n1", "n2"))
    (outcome,) = answerer.answer([asked(cases["sage"], World(cases["sage"].graph), [1], (edit,))])
    assert isinstance(outcome, BadRequest)
    assert "samples by weight" in str(outcome)


@pytest.mark.parametrize("fanout", [None, -1])
def test_pairs_are_scored_under_edits(cases, fanout):
    case = cases["link"]
    answerer = answerer_of(case, case.graph, caches=True, fanout=fanout)
    rng = np.random.default_rng(8)
    requests, expected = [], []
    for _ in range(6):
        world = World(case.graph)
        edits = world.edit(rng, 6)
        pairs = tuple(world.ids("node", rng.integers(0, zoo.N, 9)) for _ in range(2))
        requests.append(ScoreRequest("link", pairs=pairs, outputs=("logits",), edits=edits))
        there = answerer_of(case, world.built(), caches=False, fanout=fanout)
        expected += logits(there, ScoreRequest("link", pairs=pairs, outputs=("logits",)))
    for found, truth in zip(logits(answerer, *requests), expected, strict=True):
        assert (found == truth).all()


@pytest.mark.sample(1)
@pytest.mark.parametrize("how", ["self", "reverse"])
@pytest.mark.parametrize("fanout", [None, -1])
def test_edges_that_are_scored_are_not_seen_by_their_own_message_passing(cases, fanout, how):
    """Against PyG on the graph without the edges of the pair, a graph for each pair."""
    case, rng = cases["link"], np.random.default_rng(9)
    world = World(case.graph)
    own = world.edges[zoo.EDGE]
    at = rng.permutation(len(own["src"]))[:12]
    known = [own[end][at] for end in ("src", "dst")]
    others = rng.integers(0, zoo.N, (2, 4))
    # edges, the same pairs turned, a repeated pair, and pairs that are no edges
    ends = [np.concatenate([known[k], known[1 - k][:6], known[k][:1], others[k]]) for k in (0, 1)]
    options = {"pairs": tuple(world.ids("node", end) for end in ends), "outputs": ("logits",)}
    plain, request = (
        ScoreRequest("link", **options),
        ScoreRequest("link", **options, exclude_seed_edges=how),
    )
    expected = []
    for source, target in zip(*ends, strict=True):
        there = World(case.graph)
        gone = (own["src"] == source) & (own["dst"] == target)
        if how == "reverse":
            gone |= (own["src"] == target) & (own["dst"] == source)
        there.edges[zoo.EDGE] = {name: column[~gone] for name, column in own.items()}
        graph = there.built()
        pair = tuple(there.ids("node", end) for end in (source, target))
        alone = answerer_of(case, graph, caches=False, fanout=fanout)
        expected += logits(alone, ScoreRequest("link", pairs=pair, outputs=("logits",)))
        if fanout == -1:
            states = case.oracle(graph)
            np.testing.assert_allclose(
                expected[-1][0], states[source] @ states[target], atol=1e-4, rtol=1e-4
            )
    cold = answerer_of(case, case.graph, caches=False, fanout=fanout)
    (before,) = logits(cold, plain)
    assert (np.concatenate(expected) != before).any()
    for answerer in (cold, answerer_of(case, case.graph, caches=True, fanout=fanout)):
        for _ in range(2):
            found, again, other = logits(answerer, request, plain, request)
            assert (found == np.concatenate(expected)).all()
            assert (other == found).all()
            assert (again == before).all()
        check_caches(case, answerer, cold)


def test_excluded_edges_go_with_edits_and_with_unknown_ids(cases):
    case = cases["link"]
    world = World(case.graph)
    own = world.edges[zoo.EDGE]
    source, target = own["src"][0], own["dst"][0]
    pair = [world.ids("node", end)[0] for end in (source, target)]
    back = Edit(add_edge=EdgeEdit(*pair, time=5, edge_weight=1.0, edge_attr=[0.0, 0.0]))
    options = {"outputs": ("logits",), "exclude_seed_edges": "self", "on_missing": "null"}
    answerer = answerer_of(case, case.graph, caches=True)
    pairs = ([pair[0], "nobody", pair[0]], [pair[1], pair[0], "nobody"])
    request = ScoreRequest("link", pairs=pairs, **options)
    first, second = answerer.answer([request, msgspec.structs.replace(request, edits=(back,))])
    assert first.missing.tolist() == [False, True, True]
    assert first.outputs["logits"][0] == second.outputs["logits"][0]  # the added edge is removed too


@pytest.mark.parametrize("name", ["plain", "gcn", "mixed"])
def test_edits_hold_on_a_live_graph(cases, name):
    case = cases[name]
    live = Live(case, seed=5)
    model = live.model()
    answerer = Answerer(model, default_outputs(model.spec), 1000)
    rng = np.random.default_rng(6)
    for _ in range(4):
        live.change(30)
        snapshot = live.view.snapshot()
        world = World(snapshot)
        edits = world.edit(rng, 8)
        rows = rng.permutation(len(world.rows["node"]))[:20]
        (expected,) = logits(answerer_of(case, world.built(), caches=False), asked(case, world, rows))
        (found,) = logits(answerer, asked(case, world, rows, edits))
        assert (found == expected).all()
        (plain,) = logits(answerer_of(case, snapshot, caches=False), asked(case, world, rows))
        assert (logits(answerer, asked(case, world, rows))[0] == plain).all()


class Turned(nn.Module):
    """A layer against the edges, and one along them."""

    def __init__(self, conv):
        super().__init__()
        self.a, self.b = conv(6, 8, flow="target_to_source"), conv(8, 3)

    def forward(self, x, edge_index):
        return self.b(self.a(x, edge_index).relu(), edge_index)


@pytest.mark.parametrize("conv", [pyg.SAGEConv, pyg.GCNConv])
def test_an_edit_changes_the_lists_of_both_directions(conv, tmp_path):
    own = World(zoo.homogeneous(2))
    own.edges[zoo.EDGE] = {name: own.edges[zoo.EDGE][name] for name in ("src", "dst")}
    ids = own.ids("node", np.arange(zoo.N))
    ends = [own.ids("node", own.edges[zoo.EDGE][end]) for end in ("src", "dst")]
    graph = Graph.from_tables(
        {"node": NodeTable(own.rows["node"], ids=ids)},
        {("node", "to", "node"): EdgeTable(ends)},
        both_directions=True,
    )
    module = Turned(conv).eval()
    options = {"name": "turned", "fanouts": [4, 3], "task": "multiclass", "check_nodes": 60}
    case = zoo.Case("turned", package(module, graph, tmp_path, **options).path, module, graph)
    assert compare(case, 7)
    assert compare(case, 8, fanout=-1, oracle=True)


def test_an_edit_of_a_far_node_reaches_the_seed(cases):
    """A chain a -> b -> c -> d: with three layers, the row of a changes the answer for d."""
    case = cases["sage"]
    answerer = answerer_of(case, case.graph, caches=True)
    world = World(case.graph)
    ends = [(f"n{a}", f"n{b}") for a, b in ((110, 111), (111, 112), (112, 113))]
    chain = tuple(Edit(add_edge=EdgeEdit(*each, "", 200, 1.0, [0.0, 0.0])) for each in ends)
    cut = tuple(
        Edit(remove_edge=EdgeEdit(source, f"n{target}"))
        for target in (111, 112, 113)
        for source in dict.fromkeys(
            world.ids("node", case.graph.edges[zoo.EDGE].neighbors(target))
            if len(case.graph.edges[zoo.EDGE].neighbors(target))
            else []
        )
    )
    row = set_row("n110", [3.0] * 6)
    (plain, far) = logits(
        answerer, asked(case, world, [113], (*cut, *chain)), asked(case, world, [113], (*cut, *chain, row))
    )
    assert (plain != far).any()


def test_an_unseen_node_reads_edited_nodes(cases):
    case = cases["sage"]
    world = World(case.graph)
    edits = world.edit(np.random.default_rng(4), 12)
    inline = [
        InlineNode([0.5] * 6, {"": world.ids("node", np.arange(30))}, None, {zoo.EDGE: np.zeros((30, 2))}),
        InlineNode([0.1] * 6, {"": ["n3"]}, None, {zoo.EDGE: np.zeros((1, 2))}),
    ]
    rows = [5, 3, 90]
    for fanout in (None, -1):
        here = answerer_of(case, case.graph, caches=True, fanout=fanout)
        there = answerer_of(case, world.built(), caches=False, fanout=fanout)
        (found,) = logits(here, asked(case, world, rows, edits, inline=inline))
        (expected,) = logits(there, asked(case, world, rows, inline=inline))
        assert (found == expected).all()


def test_edits_that_cannot_be_made_are_refused_alone(cases):
    case = cases["sage"]
    answerer, world = answerer_of(case, case.graph, caches=True), World(case.graph)
    good = asked(case, world, [1])
    (truth,) = logits(answerer, good)
    wrong = [
        (Edit(remove_edge=EdgeEdit("n119", "n119", zoo.EDGE, 7)), BadRequest, "no edge from"),
        (Edit(remove_edge=EdgeEdit("nobody", "n1")), NodeNotFound, "nobody"),
        (Edit(add_edge=EdgeEdit("n1", "n2")), BadRequest, "times; give one"),
        (Edit(add_edge=EdgeEdit("n1", "n2", "a__b__c", 1)), BadRequest, "no edge type"),
        (set_row("n1", [1.0]), BadRequest, r"features"),
        (set_row("n1", [1.0] * 6, "shop"), BadRequest, "no node type"),
        (Edit(set=ContextNode([1.0] * 6)), BadRequest, "id is missing"),
        (Edit(set=ContextNode([1.0] * 6, {"": ["n2"]}, "n1")), BadRequest, "edges are separate edits"),
        (Edit(add_edge=EdgeEdit("n1", "n2", time=1, edge_weight=float("nan"))), BadRequest, "finite"),
        (Edit(add_edge=EdgeEdit("n1", "n2", time=1, edge_attr=[1.0])), BadRequest, "expected"),
        (Edit(remove_edge=EdgeEdit("n1", "n2", edge_weight=1.0)), BadRequest, "whatever its data"),
    ]
    for edit, kind, text in wrong:
        outcomes = answerer.answer([good, asked(case, world, [1], (edit,)), good])
        assert isinstance(outcomes[1], kind)
        assert text in str(outcomes[1])
        for each in (outcomes[0], outcomes[2]):
            assert (each.outputs["logits"] == truth).all()


def test_a_list_that_is_too_long_is_not_edited(cases):
    case = cases["sage"]
    model = answerer_of(case, case.graph, caches=False).model
    hub = int(np.diff(case.graph.edges[zoo.EDGE].indptr).argmax())
    (outcome,) = Answerer(model, default_outputs(model.spec), 5).answer([
        asked(case, World(case.graph), [1], (Edit(add_edge=EdgeEdit("n1", f"n{hub}", time=1)),))
    ])  # fmt: skip
    assert isinstance(outcome, RequestTooLarge)
    assert "limits.max_inline_neighbors" in str(outcome)


def test_json_has_edits_as_if():
    body = (
        b'{"nodes": [1], "if": [{"remove_edge": {"from": 1, "to": 2}},'
        b' {"add_edge": {"from": 1, "to": 3, "time": 4, "edge_weight": 0.5}},'
        b' {"set": {"id": 7, "features": [1]}}]}'
    )
    request = score_request("m", None, decode_score(body), None, "")
    assert request.edits == (
        Edit(remove_edge=EdgeEdit(1, 2)),
        Edit(add_edge=EdgeEdit(1, 3, "", 4, 0.5)),
        set_row(7, [1.0]),
    )
    for wrong in (b'{"nodes": [1], "if": [{}]}', b'{"nodes": [1], "if": [{"set": {"id": 1, "id": 2}}]}'):
        with pytest.raises(BadRequest):
            decode_score(wrong)
