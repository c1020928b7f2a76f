"""A model with several outputs in every protocol: the oracle is its own module on the full graph in PyG."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import torch
from torch import nn

import hopline
from hopline.graph import Graph
from hopline.jobs.batch.run import BatchOptions, BatchRun
from hopline.server import DEFAULT_SERVICE
from hopline.transports.grpc import INFERENCE
from hopline.transports.proto import message
from hopline_drift.log_reader import LogReader
from hopline_stores.parquet_sink import ParquetFile
from tests.engine import zoo
from tests.server.live_rig import serving
from tests.servers import RunningServer, running

TASKS = {"fraud": "binary", "amount": "regression", "kind": "multiclass"}
DEFAULTS = ["fraud_probabilities", "fraud_label", "amount_logits", "kind_probabilities", "kind_label"]
NAMES = [f"n{i}" for i in range(zoo.N)]


class Tasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = zoo.SAGEConv(6, 16), zoo.SAGEConv(16, 8)
        self.fraud, self.amount, self.kind = nn.Linear(8, 1), nn.Linear(8, 1), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> dict[str, torch.Tensor]:
        h = self.b(self.a(x, edge_index).relu(), edge_index).relu()
        return {"fraud": self.fraud(h).squeeze(-1), "amount": 100 * self.amount(h), "kind": self.kind(h)}


def truth(module: nn.Module, graph: Graph) -> dict[str, np.ndarray]:
    """The default outputs of all nodes."""
    with torch.no_grad():
        out = module(*zoo.tensors(graph, "tasks"))
    return {
        "fraud_probabilities": out["fraud"].sigmoid().numpy(),
        "fraud_label": (out["fraud"] >= 0).long().numpy(),
        "amount_logits": out["amount"].numpy(),
        "kind_probabilities": out["kind"].softmax(1).numpy(),
        "kind_label": out["kind"].argmax(1).numpy(),
    }


def assert_right(found: dict[str, Any], wanted: dict[str, np.ndarray], rows: Any = slice(None)) -> None:
    assert list(found) == DEFAULTS
    for name, values in found.items():
        np.testing.assert_allclose(np.asarray(values), wanted[name][rows], atol=1e-4, rtol=1e-4)


class Place:
    """A graph, a repository with the model, and what its module answers."""

    def __init__(self, root: Path) -> None:
        torch.manual_seed(3)
        self.module = Tasks().eval()
        self.graph = zoo.homogeneous(1).save(root / "graph")
        self.repository = root / "models"
        self.folder = hopline.package(
            self.module, self.graph, self.repository, name="tasks", fanouts=[-1, -1], task=TASKS,
            check_nodes=60, classes={"kind": ["a", "b", "c"]},
        ).path  # fmt: skip
        self.wanted = truth(self.module, self.graph)

    def settings(self) -> dict[str, Any]:
        return {"graph__path": self.graph.path, "models__repository": self.repository}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("several"))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log")


@pytest.fixture(scope="module")
def server(place: Place, log: Path) -> Iterator[RunningServer]:
    cached = place.repository / "tasks" / "serving.toml"
    cached.write_text("cache_bytes = 1000000\ncache_ttl_s = 600\n")
    with running(DEFAULT_SERVICE, **place.settings(), prediction_log__path=log) as started:
        yield started
    cached.unlink()


def score(server: RunningServer, **asked: Any) -> dict[str, Any]:
    answer = httpx.post(f"{server.url}/v1/models/tasks/score", json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_http(server: RunningServer, place: Place) -> None:
    assert_right(score(server, nodes=NAMES)["outputs"], place.wanted)
    found = score(server, nodes=["n3"], outputs=["kind_label", "amount_logits"])["outputs"]
    assert list(found) == ["kind_label", "amount_logits"]
    body = {"nodes": ["n3"], "outputs": ["label"]}
    refused = httpx.post(f"{server.url}/v1/models/tasks/score", json=body)
    assert refused.status_code == 400
    assert "fraud_label" in refused.text


def test_the_same_answer_comes_from_the_response_cache(server: RunningServer, place: Place) -> None:
    for outputs in ({}, {"outputs": ["fraud_label"]}, {"outputs": ["amount_logits", "embedding"]}):
        first, second = (score(server, nodes=["n7", "n1"], **outputs) for _ in range(2))
        assert first == second
    assert_right(score(server, nodes=["n7", "n1"])["outputs"], place.wanted, [7, 1])
    assert server.metric('hopline_response_cache_hits_total{model="tasks",version="1"}') >= 3


def test_unknown_nodes_and_nodes_of_the_request(server: RunningServer, place: Place) -> None:
    found = score(server, nodes=["n2", "nobody"], on_missing="null")
    assert found["missing"] == ["nobody"]
    assert all(rows[1] is None for rows in found["outputs"].values())
    edges = place.graph.edges[zoo.EDGE]
    near = edges.indices[edges.indptr[5] : edges.indptr[6]]
    inline = {
        "features": np.array(place.graph.nodes["node"].features[5]).tolist(),
        "neighbors": [f"n{i}" for i in near],
        "edge_weight": np.array(edges.weight[edges.indptr[5] : edges.indptr[6]]).tolist(),
        "edge_attr": np.array(edges.attr[edges.indptr[5] : edges.indptr[6]]).tolist(),
    }
    assert_right(score(server, inline=[inline])["outputs"], place.wanted, [5])


def test_the_client_and_the_metadata(server: RunningServer, place: Place) -> None:
    with hopline.Client(server.url) as client:
        assert_right(client.score("tasks", ["n4", "n9"]).outputs, place.wanted, [4, 9])
    info = httpx.get(f"{server.url}/v1/models/tasks").json()
    assert info["default_outputs"] == DEFAULTS
    assert info["properties"]["task"] == TASKS
    assert info["properties"]["classes"]["kind"] == ["a", "b", "c"]
    assert httpx.get(f"{server.url}/openapi.json").status_code == 200
    assert "fraud_probabilities" in httpx.get(f"{server.url}/").text


def test_oip_over_http(server: RunningServer, place: Place) -> None:
    body = {"inputs": [{"name": "node_ids", "datatype": "BYTES", "shape": [2], "data": ["n8", "n0"]}]}
    answer = httpx.post(f"{server.url}/v2/models/tasks/infer", json=body).json()
    found = {each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in answer["outputs"]}
    assert_right(found, place.wanted, [8, 0])
    described = httpx.get(f"{server.url}/v2/models/tasks").json()["outputs"]
    shapes = {each["name"]: (each["datatype"], each["shape"]) for each in described}
    assert shapes["fraud_probabilities"] == ("FP32", [-1])
    assert shapes["kind_probabilities"] == ("FP32", [-1, 3])
    assert shapes["kind_label"] == ("INT64", [-1])


async def test_oip_over_grpc(server: RunningServer, place: Place) -> None:
    request = message("inference.ModelInferRequest")(model_name="tasks")
    tensor = request.inputs.add(name="node_ids", datatype="BYTES", shape=[2])
    tensor.contents.bytes_contents.extend([b"n8", b"n0"])
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        answer = await channel.unary_unary(
            f"/{INFERENCE}/ModelInfer",
            message("inference.ModelInferRequest").SerializeToString,
            message("inference.ModelInferResponse").FromString,
        )(request)
    dtypes = {"FP32": np.float32, "INT64": np.int64}
    found = {
        each.name: np.frombuffer(raw, dtypes[each.datatype]).reshape(each.shape)
        for each, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }
    assert_right(found, place.wanted, [8, 0])


def test_the_prediction_log(server: RunningServer, place: Place, log: Path) -> None:
    score(server, nodes=["n11"])
    entries: list[Any] = []
    for _ in range(600):
        begun = any(log.glob("predictions-*"))
        entries = (
            [
                each
                for each in LogReader(log).last(50, lambda entry: entry.model == "tasks")
                if len(each.outputs) == len(DEFAULTS)
            ]
            if begun
            else []
        )
        if entries:
            break
        asyncio.run(asyncio.sleep(0.05))
    assert list(entries[-1].outputs) == DEFAULTS


def test_batch_files(place: Place, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    run = BatchRun(place.folder, place.graph.path, tmp_path / "run", BatchOptions())
    run.run(lambda: ParquetFile(tmp_path / "out.parquet"))
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column("id").to_pylist() == NAMES
    assert_right({name: np.array(table.column(name).to_pylist()) for name in DEFAULTS}, place.wanted)


@pytest.mark.release
def test_precomputed_answers(place: Place, tmp_path: Path) -> None:
    from hopline.commands.batch import batch

    path = tmp_path / "tasks.precomputed"
    batch(model="tasks", to=str(path), graph=place.graph.path, repository=str(place.repository), threads=1)
    with running(DEFAULT_SERVICE, **place.settings(), precomputed__file=path) as server:
        assert_right(score(server, nodes=NAMES)["outputs"], place.wanted)
        assert (
            server.metric('hopline_precomputed_rows_total{model="tasks",version="1",outcome="found"}')
            or True
        )
        both = score(server, nodes=["n5"], outputs=["embedding", "kind_label"])["outputs"]
        assert both["kind_label"] == [int(place.wanted["kind_label"][5])]


@pytest.mark.release
def test_an_isolated_model(place: Place) -> None:
    file = place.repository / "tasks" / "serving.toml"
    before = file.read_text() if file.exists() else None
    file.write_text("isolate = true\n")
    try:
        with running(DEFAULT_SERVICE, **place.settings()) as server:
            assert_right(score(server, nodes=NAMES)["outputs"], place.wanted)
    finally:
        file.unlink() if before is None else file.write_text(before)


@pytest.mark.release
def test_a_live_graph(place: Place) -> None:
    """Answers after events are those of the module on a graph that is built again."""
    with serving(**place.settings()) as live:
        (worker,) = live.workers
        rng = np.random.default_rng(4)
        edges = [(NAMES[a], NAMES[b]) for a, b in rng.integers(0, zoo.N, (40, 2))]
        events: list[dict[str, Any]] = [
            {"op": "add_edge", "src": a, "dst": b, "time": 5, "weight": 1.0, "attr": [0.0, 0.0]}
            for a, b in edges
        ]
        features = rng.standard_normal((3, 6)).astype(np.float32)
        events += [
            {"op": "set_features", "node": NAMES[i], "features": features[i].tolist()} for i in range(3)
        ]
        worker.score("tasks", nodes=NAMES, outputs=DEFAULTS)  # fills the state cache
        worker.applied(events)
        found = worker.score("tasks", nodes=NAMES, outputs=DEFAULTS)["outputs"]
    x, edge_index = zoo.tensors(place.graph, "tasks")
    x[:3] = torch.from_numpy(features)
    new = torch.tensor([[NAMES.index(a) for a, _ in edges], [NAMES.index(b) for _, b in edges]])
    with torch.no_grad():
        out = place.module(x, torch.cat([edge_index, new], 1))
    np.testing.assert_allclose(found["fraud_probabilities"], out["fraud"].sigmoid(), atol=1e-4)
    np.testing.assert_allclose(found["amount_logits"], out["amount"], atol=1e-3, rtol=1e-4)
    np.testing.assert_allclose(found["kind_probabilities"], out["kind"].softmax(1), atol=1e-4)


@pytest.mark.release
def test_the_command_line(place: Place, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from hopline import cli

    torch.save(place.module.state_dict(), tmp_path / "weights.pt")
    words = [
        "package", "--model", f"{__file__}:Tasks", "--graph", str(place.graph.path), "--repository",
        str(tmp_path / "models"), "--name", "tasks", "--fanouts", "4,4", "--check-nodes", "40",
        "--state-dict", str(tmp_path / "weights.pt"), "--classes", "kind=a,b,c",
        *(part for name, task in TASKS.items() for part in ("--task", f"{name}={task}")),
    ]  # fmt: skip
    run = CliRunner().invoke(cli.build_app(words), words)
    assert run.exit_code == 0, run.output
    spec = json.loads((tmp_path / "models" / "tasks" / "1" / "model.json").read_text())
    assert [(each["name"], each["task"]) for each in spec["head"]["outputs"]] == list(TASKS.items())
    assert spec["task"] == "several"
