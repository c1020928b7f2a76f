"""A deep model over many edge types: one node looks like tens of thousands of rows, and is cheap."""

import asyncio
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

with warnings.catch_warnings():
    # PyG 2.8 scripts some of its classes when imported, which torch 2.13 has deprecated.
    warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
    from torch_geometric.nn import HeteroConv, SAGEConv

from hopline.answering.graph_computer import GraphComputer
from hopline.answering.queued import QueuedVersion
from hopline.artifact import read_spec
from hopline.config.reader import load_config
from hopline.engine.model import Model
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.observe.metrics import Metrics
from hopline.packaging import package
from hopline.types import EdgeEdit, ScoreRequest, ScoreResult
from tests.answering.test_queued_metrics import LABELS
from tests.fake_version import hand_in

TYPES = ("account", "card", "shop")
KEYS = [(a, "to", b) for a in TYPES for b in TYPES if a != b]
N, DIM = 1000, 4


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            HeteroConv({key: SAGEConv((DIM, DIM), DIM) for key in KEYS}) for _ in range(3)
        )

    def forward(self, x_dict, edge_index_dict):
        for layer in self.layers:
            x_dict = {name: x.relu() for name, x in layer(x_dict, edge_index_dict).items()}
        return x_dict["account"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    rng = np.random.default_rng(0)
    graph = Graph.from_tables(
        {name: NodeTable(rng.standard_normal((N, DIM), dtype=np.float32)) for name in TYPES},
        {key: EdgeTable(rng.integers(0, N, (2, 8 * N))) for key in KEYS},
    )
    root = tmp_path_factory.mktemp("models")
    package(
        Wide(),
        graph,
        root,
        name="wide",
        fanouts=[8, 8, 8],
        task="embedding",
        target="account",
        check_nodes=8,
    )
    folder = root / "wide" / "1"
    return Model(folder, read_spec(folder), graph)


def behind_a_queue(model):
    config = load_config()
    metrics = Metrics().model(*LABELS.values())
    return QueuedVersion(GraphComputer(model, config), config, metrics, ThreadPoolExecutor(1))


@pytest.mark.sample(1)
@pytest.mark.parametrize("is_warm", [False, True])
async def test_a_hundred_cheap_requests_that_come_at_once_are_all_taken(model, is_warm):
    version = behind_a_queue(model)
    if is_warm:
        version.warm_up()
    futures = [asyncio.get_running_loop().create_future() for _ in range(100)]
    for node, future in enumerate(futures):
        hand_in(version, ScoreRequest("wide", nodes=[node]), future.set_result)
    assert all(isinstance(outcome, ScoreResult) for outcome in await asyncio.gather(*futures))
    await version.join()
    if is_warm:
        assert version.num_batches < 60  # those that came together ran together


async def test_what_batches_read_is_learned(model):
    version = behind_a_queue(model)
    for at in range(30):
        future = asyncio.get_running_loop().create_future()
        hand_in(version, ScoreRequest("wide", nodes=[at]), future.set_result)
        held_s, rows = version.queue.queued_s, version.queued_rows
        await future
    assert rows < 2 * model.guard.rows
    assert held_s < 0.05
    await version.join()


def warmed_up(model, monkeypatch):
    """Requests of a warm-up, each with its outcome."""
    version = behind_a_queue(model)
    answerer, seen = version.computer.answerer, []
    answer = answerer.answer_supplied

    def noted(requests, supplies):
        outcomes = answer(requests, supplies)
        seen.extend(zip(requests, outcomes, strict=True))
        return outcomes

    monkeypatch.setattr(answerer, "answer_supplied", noted)
    version.warm_up()
    return seen


def test_a_warm_up_answers_a_described_node_and_edits_too(model, monkeypatch):
    """Their kernels are other ones: compiled for a request, they stop the event loop."""
    seen = warmed_up(model, monkeypatch)
    assert all(isinstance(outcome, ScoreResult) for _, outcome in seen)
    edits = [[each.add_edge for each in request.edits] for request, _ in seen if request.edits]
    target, edge_types = model.spec.head.node_type, model.graph.schema.edge_types.values()
    into = [each.key for each in edge_types if each.dst == target]
    assert [[each and each.type for each in own] for own in edits] == [[None], into]
    assert sum(len(request.inline) for request, _ in seen) == 1
    assert all(request.as_of is None for request, _ in seen)  # no edge has a time, so none would be taken


class Near(nn.Module):
    def __init__(self):
        super().__init__()
        keys = [("shop", "sells", "account"), ("ghost", "haunts", "account"), ("account", "fears", "ghost")]
        keys += [("account", "pays", "shop")]
        self.layer = HeteroConv({key: SAGEConv((DIM, DIM), DIM) for key in keys})

    def forward(self, x_dict, edge_index_dict):
        return self.layer(x_dict, edge_index_dict)["account"]


def haunted(num_ghosts):
    """A graph whose ids are texts."""
    rng, counts = np.random.default_rng(0), {"account": 40, "shop": 40, "ghost": num_ghosts}
    ids = {name: [f"{name} {i}" for i in range(count)] for name, count in counts.items()}
    return Graph.from_tables(
        {name: NodeTable(rng.random((len(own), DIM), np.float32), ids=own) for name, own in ids.items()},
        {
            ("shop", "sells", "account"): EdgeTable((ids["shop"], ids["account"][::-1])),
            ("account", "pays", "shop"): EdgeTable((ids["account"], ids["shop"][::-1])),
            ("ghost", "haunts", "account"): EdgeTable((ids["ghost"], ids["account"][:num_ghosts])),
            ("account", "fears", "ghost"): EdgeTable((ids["account"][:num_ghosts], ids["ghost"])),
        },
    )


def test_a_warm_up_edits_a_graph_whose_ids_are_texts(tmp_path, monkeypatch):
    """Also if a node type has no nodes any more."""
    package(Near(), haunted(9), tmp_path, name="near", fanouts=[8], task="embedding", target="account")
    folder = tmp_path / "near" / "1"
    seen = warmed_up(Model(folder, read_spec(folder), haunted(0)), monkeypatch)
    edits = [(*request.edits, outcome) for request, outcome in seen if request.edits]
    (row, first), (edge, second) = edits
    assert row.set.id == "account 0"
    assert edge.add_edge == EdgeEdit("shop 0", "account 0", "shop__sells__account")
    assert all(isinstance(outcome, ScoreResult) for outcome in (first, second))
