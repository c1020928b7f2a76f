"""Integers that float32 would change are refused, whichever way they come to a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

import hopline
from hopline.client import Client
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.transports.proto import message
from tests.server.live_rig import DEFAULT_SERVICE
from tests.servers import RunningServer, running

NEXT = 2**24 + 1
TEXT = "column 'merchant': 16777217 would become 16777216"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    from torch_geometric.nn import GraphSAGE

    root = tmp_path_factory.mktemp("exact")
    rng = np.random.default_rng(0)
    nodes = NodeTable(
        rng.standard_normal((20, 3)).astype(np.float32),
        feature_names=("age", "merchant", "amount"),
        rounded=["amount"],
    )
    edges = EdgeTable(rng.integers(0, 20, (2, 60)))
    graph = Graph.from_tables({"node": nodes}, {("node", "to", "node"): edges}).save(root / "graph")
    hopline.package(
        GraphSAGE(3, 4, 2, 2), graph, root / "models", name="m", fanouts=[4, 4], task="multiclass",
        progress=False,
    )  # fmt: skip
    settings = {"live__enabled": True, "live__spare_nodes": 100, "live__spare_edges": 100}
    paths = {"graph__path": graph.path, "models__repository": root / "models"}
    with running(DEFAULT_SERVICE, **settings, **paths) as started:
        yield started


def v1(server: RunningServer, row: list[float]) -> Any:
    body = {"inline": [{"features": [1, 2, 3]}, {"features": row}]}
    return httpx.post(f"{server.url}/v1/models/m/score", json=body, timeout=60)


def oip(datatype: str, *, binary: bool = False) -> Any:
    dtype = {"FP32": np.float32, "FP64": np.float64, "INT64": np.int64, "FP16": np.float16}[datatype]

    def ask(server: RunningServer, row: list[float]) -> Any:
        item: dict[str, Any] = {"name": "features", "datatype": datatype, "shape": [1, 3]}
        blob = np.array(row, dtype).tobytes() if binary else b""
        item |= {"parameters": {"binary_data_size": len(blob)}} if binary else {"data": row}
        head = json.dumps({"inputs": [item]}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))} if binary else {}
        url = f"{server.url}/v2/models/m/infer"
        return httpx.post(url, content=head + blob, headers=headers, timeout=60)

    return ask


def through_grpc(datatype: str) -> Any:
    def ask(server: RunningServer, row: list[float]) -> Any:
        request = message("inference.ModelInferRequest")(model_name="m")
        dtype = np.int64 if datatype == "INT64" else np.float64
        request.inputs.add(name="features", datatype=datatype, shape=[1, 3])
        request.raw_input_contents.append(np.array(row, dtype).tobytes())
        with grpc.insecure_channel(server.grpc) as channel:
            call = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                message("inference.ModelInferRequest").SerializeToString,
                message("inference.ModelInferResponse").FromString,
            )
            try:
                call(request, timeout=60)
            except grpc.RpcError as error:
                return httpx.Response(400, text=str(error.details()))
        return httpx.Response(200)

    return ask


def through_client(make: Any) -> Any:
    def ask(server: RunningServer, row: list[float]) -> Any:
        with Client(server.url) as client:
            try:
                client.score_inline("m", [{"features": make(row)}])
            except hopline.errors.BadRequest as error:
                return httpx.Response(400, text=str(error))
        return httpx.Response(200)

    return ask


WAYS = {
    "v1": v1,
    "OIP, FP32 in JSON": oip("FP32"),
    "OIP, FP64 in JSON": oip("FP64"),
    "OIP, INT64 in JSON": oip("INT64"),
    "OIP, FP64": oip("FP64", binary=True),
    "OIP, INT64": oip("INT64", binary=True),
    "gRPC, FP64": through_grpc("FP64"),
    "gRPC, INT64": through_grpc("INT64"),
    "client, list": through_client(list),
    "client, int64": through_client(np.array),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_unseen_node_with_a_code_that_float32_changes_is_refused(
    server: RunningServer, way: str
) -> None:
    answer = WAYS[way](server, [1, NEXT, 3])
    assert answer.status_code == 400, answer.text
    assert TEXT in answer.text
    assert "--round merchant" in answer.text
    for row in ([1, 2**24 + 2, 3], [1, 2, NEXT]):
        answer = WAYS[way](server, row)
        assert answer.status_code == 200, answer.text


def test_numbers_that_the_sender_has_as_float32_are_taken(server: RunningServer) -> None:
    for ask in (oip("FP32", binary=True), through_client(lambda row: np.array(row, np.float32))):
        assert ask(server, [0.1, NEXT, 3]).status_code == 200


def test_integers_that_fp16_changes_are_refused(server: RunningServer) -> None:
    answer = oip("FP16")(server, [1, 2049, 3])
    assert answer.status_code == 400
    assert "changes 2049 to 2048; send FP32" in answer.text
    assert oip("FP16")(server, [0.1, 2048, 3]).status_code == 200


def test_a_refused_number_is_not_answered_from_a_cache_of_answers(server: RunningServer) -> None:
    assert v1(server, [1, 2**24, 3]).status_code == 200
    assert v1(server, [1, NEXT, 3]).status_code == 400


def test_events_with_a_code_that_float32_changes_are_refused(server: RunningServer) -> None:
    def event(*features: float) -> dict[str, Any]:
        return {"op": "set_features", "node": 1, "features": list(features)}

    with Client(server.url) as client:
        outcome = client.send_events([event(1, NEXT, 3), event(1, 2, NEXT), event(0.1, 2**24, 3)])
    assert outcome.applied == 2
    (refused,) = outcome.refused
    assert (refused.index, refused.code) == (0, "not_exact")
    assert TEXT in refused.reason
