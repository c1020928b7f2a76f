"""The age of an answer is at most the time to live of every feature row, or the answer is labelled.

The store here changes rows, loses them, has NaN and rows of another width, fails, hangs, and answers late
with what it had when it was asked. All caches of a server are between it and the answers: L1, which two
workers share, L2, which all hosts share, absences, state caches, response cache, single flight, precomputed
rows and a student. Each row is a multiple of a unit vector, and the model is a sum, so that an answer shows
which value of which row it stands on. The oracle is the module on these rows, and the store's history.
"""

import asyncio
import math
import time
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from torch_geometric.nn import GraphConv

from hopline.answering import response_cache
from hopline.answering import sources as wiring
from hopline.answering.response_cache import CachedVersion
from hopline.answering.sources import Sources
from hopline.artifact import read_spec
from hopline.config.reader import load_config
from hopline.errors import FeatureStoreUnavailable, PrecomputedFileError
from hopline.features.base import FeatureGroup, FeatureStore, FetchedRows
from hopline.features.memory import MemoryStore
from hopline.graph import Graph
from hopline.packaging import package
from hopline.service import Service
from hopline.types import InlineNode, ScoreRequest, ScoreResult
from hopline_compress.distill.export import write_fallback
from hopline_compress.distill.settings import Settings
from hopline_compress.distill.train import Student
from tests.precomputed_files import write_table
from tests.shared_memory import create_shared
from tests.thorough import thorough

N, TTL_S = 10, 100.0
GROUP = FeatureGroup("node", N)
#: Turns of the loop in which all happens that can happen without the store.
TURNS = 200


class Sum(torch.nn.Module):
    """Rows of a node and of all nodes within two hops, added with small weights."""

    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Linear(N, N, bias=False)
        self.convs = torch.nn.ModuleList(GraphConv(N, N, aggr="add", bias=False) for _ in range(2))
        for weight in self.parameters():
            torch.nn.init.eye_(weight)
        for conv in self.convs:
            conv.lin_root.weight.data.mul_(2)

    def forward(self, x, edge_index):
        x = self.encoder(x).relu()
        x = self.convs[0](x, edge_index).relu()
        return self.convs[1](x, edge_index)


class Clock:
    """The time of caches and stores: it runs, and jumps."""

    passed_s = 0.0

    def __call__(self):
        return time.monotonic() + self.passed_s


class UnkindStore(FeatureStore):
    """A store whose rows have a history.

    Attributes:
        gate: fetches wait for it, with the rows that were there when they came; None lets them through.
        history: node -> times from which on it had a value; None for no usable row.
    """

    kind = "unkind"

    def __init__(self, clock):
        self._clock = clock
        self.down = False
        self.gate = None
        self.rows = dict.fromkeys(range(N), 1.0)
        self.history = {v: [(-math.inf, 1.0)] for v in range(N)}
        self._last = 1.0

    def change(self, v, how):
        self._last += 1.0
        self.rows[v] = value = self._last if how == "new" else how
        self.history[v].append((self._clock(), value if how == "new" else None))

    def held(self, v, since, until):
        """The values of a row from `since` to `until`."""
        times = [moment for moment, _ in self.history[v]] + [math.inf]
        return {
            value
            for at, (moment, value) in enumerate(self.history[v])
            if moment <= until and times[at + 1] >= since and value is not None
        }

    async def describe(self, group):
        return GROUP

    async def fetch(self, group, ids):
        if self.down:
            raise FeatureStoreUnavailable("down")
        ids = [int(v) for v in ids]
        rows, gate = [self.rows[v] for v in ids], self.gate
        values = np.zeros((len(ids), N), np.float32)
        found = np.array([row not in ("gone", "wide") for row in rows])
        for at, (v, row) in enumerate(zip(ids, rows, strict=True)):
            if found[at]:
                values[at, v] = float(row)
        if gate is not None:
            await gate.wait()
        wide = np.array([row == "wide" for row in rows])
        return FetchedRows(values, found, ("wide",) * int(wide.any()), int(wide.sum()), wide)


@dataclass
class Rig:
    """Servers of one store."""

    runner: asyncio.Runner
    clock: Clock
    store: UnkindStore
    graph: Graph
    edge_index: torch.Tensor
    services: dict[str, Service] = field(default_factory=dict)

    def wanted(self, rows, node, inline):
        """What the user's module answers: float32 [N]."""
        x, edges = torch.from_numpy(rows), self.edge_index
        if inline is not None:
            x = torch.cat([x, torch.zeros(1, N)])
            edges = torch.cat([edges, torch.tensor([inline, [N] * len(inline)])], 1)
        with torch.no_grad():
            return Sum()(x, edges)[N if inline is not None else node].numpy()


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    root = tmp_path_factory.mktemp("ages")
    rng = np.random.default_rng(3)
    src, dst = np.unique(rng.integers(0, N, (2, 2 * N)), axis=1)
    graph = Graph.from_edges([src, dst], np.eye(N, dtype=np.float32))
    graph.save(root / "graph")
    graph = Graph.open(root / "graph")
    for repository in ("models", "cached"):
        package(
            Sum().eval(),
            graph,
            root / repository,
            name="sum",
            fanouts=[-1, -1],
            task="multiclass",
            progress=False,
        )
        folder = root / repository / "sum" / "1"
        student = Student(N, 0, N, Settings(structure=False)).eval()
        write_fallback(folder, student, read_spec(folder), np.eye(N, dtype=np.float32), ("s", "1"), 0.9)
    (root / "cached" / "sum" / "serving.toml").write_text("cache_bytes = 1_000_000\ncache_ttl_s = 1000\n")
    write_table(root / "sum.precomputed", root / "models" / "sum" / "1", graph)
    return root, graph, torch.from_numpy(np.stack([src, dst]))


def config(root, **changed):
    return load_config(
        overrides={
            "graph.path": root / "graph",
            "models.repository": root / "models",
            "models.state": root / "state",
            "features.store": "memory:",
            "features.memory_bytes": 2**20,
            "features.ttl_s": TTL_S,
            "features.fetch_timeout_ms": 40.0,
            "features.breaker_pause_ms": 1.0,
            "state_cache.memory_bytes": 2**20,
            "compute.inline_cost_us": 1e9,
            **changed,
        }
    )


@pytest.fixture
def rig(places, monkeypatch):
    root, graph, edge_index = places
    clock = Clock()
    store = UnkindStore(clock)
    l2 = MemoryStore()
    stores = {"features.store": store, "features.cache": l2}
    monkeypatch.setattr(wiring, "open_store", lambda url, setting: stores[setting])
    monkeypatch.setattr(wiring, "Sources", partial(Sources, clock=clock, wall_clock=clock))
    monkeypatch.setattr(response_cache, "CachedVersion", partial(CachedVersion, clock=clock))
    shared = config(root).replace(worker__rows_fd=create_shared(), worker__count=2)
    configs = {
        "worker 0": shared.replace(worker__index=0),
        "worker 1": shared.replace(worker__index=1),
        "caches answers": config(
            root,
            **{
                "models.repository": root / "cached",
                "models.state": root / "cached-state",
                "features.cache": "memory:",
            },
        ),
        "small L1, and L2": config(root, **{"features.memory_bytes": 2**15, "features.cache": "memory:"}),
        "precomputed": config(
            root, **{"precomputed.file": (str(root / "sum.precomputed"),), "precomputed.stale": "serve"}
        ),
    }
    with asyncio.Runner() as runner:
        rig = Rig(runner, clock, store, graph, edge_index)
        for name, each in configs.items():
            rig.services[name] = Service(each)
            runner.run(rig.services[name].start())
        yield rig
        for service in rig.services.values():
            service.begin_drain()
            assert runner.run(service.drain(5))
            runner.run(service.close())


EVERYBODYS = {"node": 3, "inline": None, "degraded": "refuse"}
NODES = st.integers(0, N - 1)
CHANGES = st.sampled_from(["new", "new", "new", "gone", "nan", "inf", "wide"])
SECONDS = st.sampled_from([0.5, 30.0, 50.0, TTL_S - 1, TTL_S + 1, 2.5 * TTL_S])
SERVICES = st.sampled_from(["worker 0", "worker 1", "caches answers", "small L1, and L2", "precomputed"])
ASKED = st.fixed_dictionaries(
    {
        "node": NODES,
        "inline": st.none() | st.none() | st.lists(NODES, min_size=1, max_size=3, unique=True),
        "degraded": st.sampled_from(["allow", "allow", "refuse"]),
    }
)


class Answers(RuleBasedStateMachine):
    """See the module."""

    rig: Rig

    @initialize()
    def begin(self):
        """What an example before this one has left behind is too old for it."""
        self.heal()
        self.rig.clock.passed_s += 10 * TTL_S

    def heal(self):
        store = self.rig.store
        store.down, gate, store.gate = False, store.gate, None
        if gate is not None:
            gate.set()

    @rule(v=NODES, how=CHANGES)
    def change(self, v, how):
        self.rig.store.change(v, how)

    @rule(seconds=SECONDS)
    def wait(self, seconds):
        self.rig.clock.passed_s += seconds

    @rule(down=st.booleans())
    def fail_or_heal(self, down):
        self.heal()
        self.rig.store.down = down

    @rule(name=SERVICES, asked=st.lists(ASKED, min_size=1, max_size=3), copies=st.sampled_from([1, 1, 3]))
    def ask(self, name, asked, copies):
        for each, (outcome, since) in self.rig.runner.run(self.answers(name, asked * copies)):
            self.check(name, each, outcome, since)

    @rule(
        name=SERVICES,
        asked=st.lists(ASKED, min_size=1, max_size=3),
        v=NODES,
        how=CHANGES,
        seconds=SECONDS,
        late=st.lists(ASKED, max_size=2),
    )
    def ask_while_the_store_takes_its_time(self, name, asked, v, how, seconds, late):
        async def meanwhile():
            self.rig.store.change(v, how)
            self.rig.clock.passed_s += seconds

        for each, (outcome, since) in self.rig.runner.run(self.answers(name, asked, meanwhile, late)):
            self.check(name, each, outcome, since)

    async def answers(self, name, asked, meanwhile=None, late=()):
        """(question, (outcome, the time before which it was not computed)) of each."""
        store, clock, service = self.rig.store, self.rig.clock, self.rig.services[name]

        def begin(questions):
            return [asyncio.ensure_future(service.score(request(each))) for each in questions]

        since = clock()
        if meanwhile is None:
            outcomes = await asyncio.gather(*begin(asked), return_exceptions=True)
            return [(each, (outcome, since)) for each, outcome in zip(asked, outcomes, strict=True)]
        gate = store.gate = asyncio.Event()
        tasks = begin(asked)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        were_done = [task.done() for task in tasks]
        await meanwhile()
        opened = clock()
        tasks += begin(late)
        await asyncio.sleep(0)
        gate.set()
        store.gate = None
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        times = [since if done else opened for done in (*were_done, *[False] * len(late))]
        return list(zip([*asked, *late], zip(outcomes, times, strict=True), strict=True))

    def check(self, name, asked, outcome, since):
        if isinstance(outcome, FeatureStoreUnavailable):
            assert asked["degraded"] == "refuse"
            return
        assert isinstance(outcome, ScoreResult), outcome
        if outcome.degraded:
            assert asked["degraded"] == "allow"
            return
        (found,) = outcome.outputs["logits"]
        weights = self.rig.wanted(np.eye(N, dtype=np.float32), asked["node"], asked["inline"])
        values = np.divide(found, weights, out=np.zeros(N, np.float32), where=weights != 0)
        until = self.rig.clock()
        for v in np.flatnonzero(weights).tolist():
            held = self.rig.store.held(v, since - TTL_S, until)
            assert values[v] in held, f"{name}: row {v} is {values[v]}, and was one of {held}"
        rows = np.diag(values)
        assert (found == self.rig.wanted(rows, asked["node"], asked["inline"])).all()
        assert 0 <= outcome.features_age_ms <= 1e3 * TTL_S

    def teardown(self):
        """In the end all is well, and no cache has anything left of what was not."""
        rig = self.rig
        self.heal()
        for v in range(N):
            rig.store.change(v, "new")
        rig.clock.passed_s += 2 * TTL_S
        for name in rig.services:
            for v in range(N):
                asked = {"node": v, "inline": None, "degraded": "refuse"}
                for _ in range(50):  # a breaker may be open, and this machine busy
                    ((_, (outcome, since)),) = rig.runner.run(self.answers(name, [asked]))
                    if isinstance(outcome, ScoreResult):
                        break
                    rig.clock.passed_s += 1.0
                assert isinstance(outcome, ScoreResult), outcome
                self.check(name, asked, outcome, since)


def request(asked):
    nodes = [] if asked["inline"] is not None else [asked["node"]]
    inline = ()
    if asked["inline"] is not None:
        features = np.zeros(N, np.float32)
        inline = (InlineNode(features=features, neighbors={"node__to__node": asked["inline"]}),)
    return ScoreRequest("sum", nodes=nodes, inline=inline, outputs=("logits",), degraded=asked["degraded"])


def test_no_answer_is_older_than_its_rows_may_be_or_it_says_so(rig):
    class OfRig(Answers):
        pass

    OfRig.rig = rig
    run_state_machine_as_test(
        OfRig,
        settings=settings(
            max_examples=thorough(8, 40),
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_ages_add_up_from_cache_to_cache(rig):
    """What one server has read, another may take over; the row was replaced in the meantime."""
    each = Answers()
    each.rig = rig
    for first in rig.services:
        for second in rig.services:
            each.begin()
            each.ask(first, [EVERYBODYS], 1)
            rig.store.change(EVERYBODYS["node"], "new")
            for _ in range(3):
                rig.clock.passed_s += 0.6 * TTL_S
                each.ask(second, [EVERYBODYS], 1)


@pytest.mark.parametrize(("stale", "refused"), [("refuse", True), ("compute", False)])
def test_rows_of_the_graph_folders_features_are_not_served_unlabelled(places, rig, stale, refused):
    root, _, _ = places
    changed = {"precomputed.file": (str(root / "sum.precomputed"),), "precomputed.stale": stale}
    service = Service(config(root, **changed, **{"models.required": "all"}))
    if refused:
        with pytest.raises(PrecomputedFileError, match=r"from the features of the graph folder.*stale"):
            rig.runner.run(service.start())
        rig.runner.run(service.close())
        return
    rig.runner.run(service.start())
    rig.store.change(3, "new")
    result = rig.runner.run(service.score(request({"node": 3, "inline": None, "degraded": "allow"})))
    assert result.degraded == ()
    rows = np.diag([rig.store.rows[v] for v in range(N)]).astype(np.float32)
    assert (result.outputs["logits"][0] == rig.wanted(rows, 3, None)).all()
    service.begin_drain()
    assert rig.runner.run(service.drain(5))
    rig.runner.run(service.close())
