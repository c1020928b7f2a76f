"""Heads of several node types in every protocol: the oracle is the model's module on the full graph."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import torch

import hopline
from hopline.errors import BadRequest
from hopline.jobs.batch.run import BatchOptions, BatchRun
from hopline.server import DEFAULT_SERVICE
from hopline.transports.grpc import INFERENCE
from hopline.transports.proto import message
from hopline_stores.parquet_sink import ParquetFile
from tests.engine import zoo
from tests.packaging.test_heads_of_types import SIZES, Shop, package, truth
from tests.server.live_rig import serving
from tests.servers import RunningServer, running


def probabilities(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    users, items = (torch.from_numpy(rows[name]) for name in ("user", "item"))
    return {"user": users.flatten().sigmoid().numpy(), "item": items.softmax(1).numpy()}


class Place:
    """A graph, a repository with the model, and the probabilities of its module."""

    def __init__(self, root: Path) -> None:
        torch.manual_seed(3)
        self.module = Shop().eval()
        self.graph = zoo.heterogeneous().save(root / "graph")
        self.repository = root / "models"
        self.folder = package(self.module, self.graph, self.repository).path
        self.wanted = probabilities(truth(self.module, self.graph))

    def settings(self) -> dict[str, Any]:
        return {"graph__path": self.graph.path, "models__repository": self.repository}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("types"))


@pytest.fixture(scope="module")
def server(place: Place) -> Iterator[RunningServer]:
    cached = place.repository / "shop" / "serving.toml"
    cached.write_text("cache_bytes = 1000000\ncache_ttl_s = 600\n")
    with running(DEFAULT_SERVICE, **place.settings()) as started:
        yield started
    cached.unlink()


def score(server: RunningServer, **asked: Any) -> dict[str, Any]:
    answer = httpx.post(f"{server.url}/v1/models/shop/score", json=asked)
    assert answer.status_code == 200, answer.text
    outputs: dict[str, Any] = answer.json()["outputs"]
    return outputs


def assert_right(outputs: dict[str, Any], node_type: str, place: Place, rows: Any = slice(None)) -> None:
    assert list(outputs) == [f"{node_type}_probabilities", f"{node_type}_label"]
    found = np.asarray(outputs[f"{node_type}_probabilities"])
    np.testing.assert_allclose(found, place.wanted[node_type][rows], atol=1e-4)


def test_http_and_the_response_cache(server: RunningServer, place: Place) -> None:
    """Equal ids of two types are two nodes, also in the cache."""
    for _ in range(2):
        for name, count in SIZES.items():
            assert_right(score(server, nodes=[*range(count)], node_type=name), name, place)
    found = score(server, nodes=[3], node_type="item", outputs=["item_label"])
    assert list(found) == ["item_label"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"nodes": [1]}, "node_type is missing: model 'shop' takes nodes of type user or item"),
        ({"nodes": [1], "node_type": "shop"}, "node_type shop: model 'shop' takes nodes of type user or"),
        ({"nodes": [1], "node_type": "user", "outputs": ["item_label"]}, "has .*user_probabilities"),
        ({"nodes": [1], "node_type": ""}, "node_type"),
        ({"nodes": [79], "node_type": "item"}, "79"),
    ],
)
def test_what_names_no_node_is_refused(server: RunningServer, asked: dict[str, Any], message: str) -> None:
    with hopline.Client(server.url) as client, pytest.raises(hopline.HoplineError, match=message):
        client.score("shop", asked.pop("nodes"), **asked)


def test_the_client_and_the_metadata(server: RunningServer, place: Place) -> None:
    with hopline.Client(server.url) as client:
        assert_right(dict(client.score("shop", [4, 9], node_type="item").outputs), "item", place, [4, 9])
    info = httpx.get(f"{server.url}/v1/models/shop").json()
    assert info["properties"]["task"] == {"user": "binary", "item": "multiclass"}
    assert info["properties"]["node_types"] == {"user": "int", "item": "int"}
    assert info["default_outputs"] == [
        "user_probabilities", "user_label", "item_probabilities", "item_label",
    ]  # fmt: skip
    assert httpx.get(f"{server.url}/openapi.json").status_code == 200


def test_oip_over_http(server: RunningServer, place: Place) -> None:
    inputs = [{"name": "node_ids", "datatype": "INT64", "shape": [2], "data": [8, 0]}]
    body = {"inputs": inputs, "parameters": {"node_type": "item"}}
    answer = httpx.post(f"{server.url}/v2/models/shop/infer", json=body).json()
    found = {each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in answer["outputs"]}
    assert_right(found, "item", place, [8, 0])
    described = httpx.get(f"{server.url}/v2/models/shop").json()["outputs"]
    shapes = {each["name"]: each["shape"] for each in described}
    assert shapes["user_probabilities"] == [-1]
    assert shapes["item_probabilities"] == [-1, 3]


async def test_oip_over_grpc(server: RunningServer, place: Place) -> None:
    request = message("inference.ModelInferRequest")(model_name="shop")
    tensor = request.inputs.add(name="node_ids", datatype="INT64", shape=[2])
    tensor.contents.int64_contents.extend([8, 0])
    request.parameters["node_type"].string_param = "user"
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        answer = await channel.unary_unary(
            f"/{INFERENCE}/ModelInfer",
            message("inference.ModelInferRequest").SerializeToString,
            message("inference.ModelInferResponse").FromString,
        )(request)
    found = {each.name: raw for each, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)}
    rows = np.frombuffer(found["user_probabilities"], np.float32)
    np.testing.assert_allclose(rows, place.wanted["user"][[8, 0]], atol=1e-4)


def test_batch_files_have_the_bits_of_the_server(
    server: RunningServer, place: Place, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    run = BatchRun(place.folder, place.graph.path, tmp_path / "run", BatchOptions())
    report = run.run(lambda: ParquetFile(tmp_path / "out.parquet"))
    assert report.tables == ("user", "item")
    for name, count in SIZES.items():
        table = pq.read_table(tmp_path / f"out-{name}.parquet")
        assert table.column_names == ["id", f"{name}_probabilities", f"{name}_label"]
        found = np.array(table.column(f"{name}_probabilities").to_pylist(), np.float32)
        served = score(server, nodes=[*range(count)], node_type=name)[f"{name}_probabilities"]
        np.testing.assert_array_equal(found, np.array(served, np.float32))


def test_a_batch_run_of_the_outputs_of_one_type_writes_one_table(place: Place, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    options = BatchOptions(outputs=("item_probabilities",), nodes=[5, 2])
    run = BatchRun(place.folder, place.graph.path, tmp_path / "run", options)
    run.run(lambda: ParquetFile(tmp_path / "out.parquet"))
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["id", "item_probabilities"]
    found = np.array(table.column("item_probabilities").to_pylist())
    np.testing.assert_allclose(found, place.wanted["item"][[5, 2]], atol=1e-4)


def test_precomputed_answers_of_such_a_model_are_refused(place: Place, tmp_path: Path) -> None:
    from hopline.commands.batch import batch

    with pytest.raises(hopline.HoplineError, match=r"has heads of user and item: .*target="):
        batch(model="shop", to=str(tmp_path / "x.precomputed"), graph=place.graph.path,
              repository=str(place.repository), threads=1)  # fmt: skip


@pytest.mark.release
def test_an_isolated_model(place: Place) -> None:
    file = place.repository / "shop" / "serving.toml"
    before = file.read_text() if file.exists() else None
    file.write_text("isolate = true\n")
    try:
        with running(DEFAULT_SERVICE, **place.settings()) as server:
            assert_right(score(server, nodes=[*range(60)], node_type="item"), "item", place)
            assert_right(score(server, nodes=[*range(80)], node_type="user"), "user", place)
    finally:
        file.unlink() if before is None else file.write_text(before)


@pytest.mark.release
def test_a_live_graph_answers_as_one_that_is_built_again(place: Place) -> None:
    """After events, with states in the cache: the module on the changed graph."""
    with serving(**place.settings()) as live:
        (worker,) = live.workers
        asked: list[dict[str, Any]] = [
            {"nodes": [*range(count)], "node_type": name, "outputs": [f"{name}_probabilities"]}
            for name, count in SIZES.items()
        ]
        for each in asked:
            worker.score("shop", **each)
        rng = np.random.default_rng(4)
        pairs = np.stack([rng.integers(0, 80, 30), rng.integers(0, 60, 30)])
        features = rng.standard_normal((3, 5)).astype(np.float32)
        events: list[dict[str, Any]] = [
            {"op": "add_edge", "edge_type": "user__buys__item", "src": int(a), "dst": int(b)}
            for a, b in pairs.T
        ]
        events += [
            {"op": "set_features", "node_type": "user", "node": i, "features": features[i].tolist()}
            for i in range(3)
        ]
        worker.applied(events)
        found = {each["node_type"]: worker.score("shop", **each)["outputs"] for each in asked}
    x, edges = zoo.tensors(place.graph, "hetero")
    x["user"][:3] = torch.from_numpy(features)
    buys = ("user", "buys", "item")
    edges[buys] = torch.cat([edges[buys], torch.from_numpy(pairs)], 1)
    with torch.no_grad():
        out = place.module(x, edges)
    wanted = probabilities({name: rows.numpy() for name, rows in out.items()})
    for name in SIZES:
        np.testing.assert_allclose(found[name][f"{name}_probabilities"], wanted[name], atol=1e-4)


@pytest.mark.release
def test_another_model_says_which_type_it_takes(tmp_path: Path) -> None:
    graph = zoo.heterogeneous().save(tmp_path / "graph")
    package(Shop(), graph, tmp_path / "models", task="binary", target="user")
    settings = {"graph__path": graph.path, "models__repository": tmp_path / "models"}
    with running(DEFAULT_SERVICE, **settings) as server, hopline.Client(server.url) as client:
        assert len(client.score("shop", [1], node_type="user").outputs["label"]) == 1
        with pytest.raises(BadRequest, match="node_type item: model 'shop' takes nodes of type user"):
            client.score("shop", [1], node_type="item")
