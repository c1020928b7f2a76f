"""Nodes with a million neighbours beside nodes with three, where no fanout bounds what is read."""

import asyncio
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

with warnings.catch_warnings():
    # PyG 2.8 scripts some of its classes when imported, which torch 2.13 has deprecated.
    warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
    from torch_geometric.nn import SAGEConv

from hopline.answering.graph_computer import GraphComputer
from hopline.answering.queued import QueuedVersion
from hopline.artifact import read_spec
from hopline.config.reader import load_config
from hopline.engine.answer import Answerer
from hopline.engine.model import Model
from hopline.errors import DeadlineExceeded, Overloaded, RequestTooLarge
from hopline.graph import Graph
from hopline.observe.metrics import Metrics
from hopline.packaging import package
from hopline.types import InlineNode, ScoreRequest, ScoreResult
from tests.fake_version import hand_in

N, HUB_EDGES = 20_000, 1_200_000
HUB, BESIDE = 0, 1  # the second one's only neighbour is the hub
PLAIN = 2_000  # and the ten after it: three neighbours each, far from any hub


class Sage(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = SAGEConv(4, 8), SAGEConv(8, 2)

    def forward(self, x, edge_index):
        return self.b(self.a(x, edge_index).relu(), edge_index)


@pytest.fixture(scope="module")
def graph():
    rng = np.random.default_rng(0)
    others = np.repeat(np.arange(2, N), 3)
    sources = [rng.integers(2, N, HUB_EDGES), [HUB], rng.integers(2, N, others.shape[0])]
    targets = [np.zeros(HUB_EDGES, np.int64), [BESIDE], others]
    edges = np.stack([np.concatenate(sources), np.concatenate(targets)])
    return Graph.from_edges(edges, rng.standard_normal((N, 4), dtype=np.float32))


@pytest.fixture(scope="module")
def folder(graph, tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    package(Sage(), graph, root, name="sage", fanouts=[-1, -1], task="multiclass", check_nodes=8)
    return root / "sage" / "1"


class Running:
    """The model behind its queue."""

    def __init__(self, folder, graph, **settings):
        self.model = Model(folder, read_spec(folder), graph)
        self.on_thread = []
        self.thread = ThreadPoolExecutor(1)
        config = load_config(overrides=settings)
        computer = GraphComputer(self.model, config)
        self.version = QueuedVersion(computer, config, Metrics().model("sage", "1"), self.thread)
        run = self.version.queue._run

        def noted(batch):
            if threading.current_thread() is not threading.main_thread():
                self.on_thread.append([node for item in batch for node in item.request.nodes])
            return run(batch)

        self.version.queue._run = noted

    def ask(self, *nodes, **kwargs):
        future = asyncio.get_running_loop().create_future()
        hand_in(self.version, ScoreRequest("sage", nodes=list(nodes), **kwargs), future.set_result)
        return future


@pytest.fixture(scope="module")
def answers(folder, graph):
    """What a model without a queue says."""
    model = Model(folder, read_spec(folder), graph)
    answerer = Answerer(model, ("probabilities", "label"), 10)

    def of(*nodes):
        (outcome,) = answerer.answer([ScoreRequest("sage", nodes=list(nodes))])
        return outcome.outputs["probabilities"].tobytes()

    return of


async def test_a_hub_is_taken_for_what_it_is(folder, graph, answers):
    rig = Running(folder, graph)
    hub = rig.ask(HUB)
    assert rig.version.queued_rows > HUB_EDGES
    assert rig.version.queue.queued_s > 0.05
    plain = rig.ask(PLAIN)
    assert (await hub).outputs["probabilities"].tobytes() == answers(HUB)
    assert (await plain).outputs["probabilities"].tobytes() == answers(PLAIN)
    assert rig.on_thread[0] == [HUB]
    await rig.version.join()


async def test_a_full_queue_refuses_a_hub_and_takes_others(folder, graph):
    rig = Running(folder, graph, **{"batching.max_queue_ms": 50.0, "compute.inline_cost_us": 0.0})
    running = rig.ask(PLAIN)
    await asyncio.sleep(0)
    waiting = rig.ask(PLAIN + 1)
    with pytest.raises(Overloaded, match="max_queue_ms"):
        rig.ask(HUB)
    others = [rig.ask(PLAIN + at) for at in range(2, 10)]
    for each in (running, waiting, *others):
        assert isinstance(await each, ScoreResult)
    await rig.version.join()


async def test_who_is_beside_a_hub_leaves_the_batch_and_is_known_the_next_time(folder, graph, answers):
    rig = Running(folder, graph)
    order = []
    nodes = (PLAIN, BESIDE, PLAIN + 1, PLAIN + 2)
    futures = [rig.ask(node) for node in nodes]
    assert rig.version.queued_rows < 10_000  # one neighbour is all that is seen of it
    for node, future in zip(nodes, futures, strict=True):
        future.add_done_callback(lambda _, node=node: order.append(node))
    for node, outcome in zip(nodes, await asyncio.gather(*futures), strict=True):
        assert outcome.outputs["probabilities"].tobytes() == answers(node)
    assert order == [PLAIN, PLAIN + 1, PLAIN + 2, BESIDE]
    assert rig.on_thread == [[BESIDE]]  # never on the loop
    again = rig.ask(BESIDE)
    assert rig.version.queued_rows > HUB_EDGES
    assert (await again).outputs["probabilities"].tobytes() == answers(BESIDE)
    assert rig.version.computer._rows.share < 2  # the others are what they were
    await rig.version.join()


async def test_many_new_nodes_are_computed_beside_the_loop_however_cheap_the_model_is(folder, graph):
    rig = Running(folder, graph)
    rig.version.queue.cost.us_per_row = 1e-3  # learned from requests of rows that are cached
    described = [InlineNode(np.ones(4, np.float32), {"node__to__node": [PLAIN, PLAIN + 1]})] * 300
    few = rig.ask(inline=described[:10])
    assert isinstance(await few, ScoreResult)
    assert rig.on_thread == []
    many, plain = rig.ask(inline=described), rig.ask(PLAIN)
    assert isinstance(await many, ScoreResult)
    assert isinstance(await plain, ScoreResult)
    assert rig.on_thread[0] == []  # the nodes that it names
    await rig.version.join()


@pytest.mark.parametrize("node", [HUB, BESIDE])
async def test_a_request_that_does_not_fit_is_refused_and_its_batch_mates_are_served(folder, graph, node):
    rig = Running(folder, graph, **{"limits.max_request_bytes": 32 * 2**20})
    plain, refused, other = rig.ask(PLAIN), rig.ask(node), rig.ask(PLAIN + 1)
    assert isinstance(await plain, ScoreResult)
    assert isinstance(await other, ScoreResult)
    error = await refused
    assert isinstance(error, RequestTooLarge)
    assert f"reads {HUB_EDGES + (node == BESIDE)} neighbours" in str(error)
    await rig.version.join()


async def test_a_hub_whose_deadline_passes_is_given_up_between_steps(folder, graph, monkeypatch):
    rig = Running(folder, graph)
    hub = rig.ask(HUB)
    looks = []
    look = type(rig.model.guard).look

    def late(guard):
        looks.append(guard)
        if len(looks) == 3:
            for item in rig.version.queue._running:
                item.deadline = 0.0
        look(guard)

    monkeypatch.setattr(type(rig.model.guard), "look", late)
    assert isinstance(await hub, DeadlineExceeded)
    assert len(looks) == 3
    await rig.version.join()


async def test_memory_is_given_back_after_a_hub(folder, graph):
    def held():
        levels = [level for stages in rig.model.levels for level in stages.values()]
        arrays = [
            array
            for level in levels
            for thing in (level, level.interner, *(each.buffers for each in level.relations.values()))
            for name in (getattr(thing, "__slots__", ()) or vars(thing))
            for array in [getattr(thing, name)]
            if isinstance(array, np.ndarray)
        ]
        return sum(array.nbytes for array in arrays)

    rig = Running(folder, graph)
    await rig.ask(PLAIN)
    before = held()
    await rig.ask(HUB)
    assert held() < before + 20 * 2**20
    assert all(each.buffers.neighbors.shape[0] < 2**20 for each in _relations(rig.model))
    await rig.version.join()


def _relations(model):
    return [
        each for stages in model.levels for level in stages.values() for each in level.relations.values()
    ]


async def test_what_described_nodes_list_is_predicted_and_counted_alike(graph, tmp_path):
    """Their lists are sampled: 100 x 5,000 ids are no 500,000 nodes, and batches teach what they cost."""
    package(Sage(), graph, tmp_path, name="sage", fanouts=[10, 5], task="multiclass", check_nodes=8)
    rig = Running(tmp_path / "sage" / "1", graph)
    rows = []
    observe = rig.version.queue.cost.observe
    rig.version.queue.cost.observe = lambda count, us: (rows.append(count), observe(count, us))
    rng = np.random.default_rng(0)
    lists = rng.integers(2, N, (100, 5000)).tolist()
    inline = [InlineNode(rng.random(4), {"": ids}) for ids in lists]
    for _ in range(3):
        large = rig.ask(inline=inline)
        predicted = rig.version.queued_rows
        assert predicted < 200_000
        plain = rig.ask(PLAIN)  # not refused
        assert isinstance(await large, ScoreResult)
        assert isinstance(await plain, ScoreResult)
        assert predicted / 4 < max(rows) < 4 * predicted
        rows.clear()
    await rig.version.join()


async def test_a_full_queue_refuses_what_lists_too_much(graph, tmp_path):
    package(Sage(), graph, tmp_path, name="sage", fanouts=[10, 5], task="multiclass", check_nodes=8)
    rig = Running(tmp_path / "sage" / "1", graph, **{"batching.max_queue_ms": 40.0})
    waiting = rig.ask(PLAIN)
    node = InlineNode(np.zeros(4), {"": list(range(2, 5002))})
    small = rig.ask(inline=[node])
    with pytest.raises(Overloaded, match="max_queue_ms"):
        rig.ask(inline=[node] * 500)  # takes some 100 ms
    assert isinstance(await waiting, ScoreResult)
    assert isinstance(await small, ScoreResult)
    await rig.version.join()
