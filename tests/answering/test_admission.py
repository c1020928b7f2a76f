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
from hopline.types import ScoreRequest, ScoreResult
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


def test_a_warm_up_answers_a_described_node_too(model, monkeypatch):
    """Its kernels are other ones: compiled for a request, they stop the event loop."""
    version = behind_a_queue(model)
    answerer, seen = version.computer.answerer, []
    answer = answerer.answer_supplied

    def noted(requests, supplies):
        outcomes = answer(requests, supplies)
        seen.extend(zip(requests, outcomes, strict=True))
        return outcomes

    monkeypatch.setattr(answerer, "answer_supplied", noted)
    version.warm_up()
    assert all(isinstance(outcome, ScoreResult) for _, outcome in seen)
    assert sum(len(request.inline) for request, _ in seen) == 1
    assert all(request.as_of is None for request, _ in seen)  # no edge has a time, so none would be taken
