"""The four ways to say the same request, with one form of answer, for the shared behaviour suite."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import grpc
import httpx
import numpy as np

from hopline.transports.proto import message
from hopline.transports.tensors import Tensor, decode_raw, decode_values, encode_raw, tensor_from_array
from tests.servers import RunningServer


@dataclass
class Ask:
    """A request that every dialect can say."""

    model: str = "sage"
    nodes: list[Any] | None = None
    pairs: list[tuple[Any, Any]] | None = None
    features: list[list[float]] | None = None
    neighbors: list[list[int]] | None = None
    outputs: list[str] = field(default_factory=list)
    as_of: int | str | None = None
    on_missing: str | None = None
    timeout_ms: float | None = None
    version: str = ""
    columns: dict[str, list[Any]] | None = None
    key: str | None = None
    priority: str | None = None
    attributes: dict[str, Any] | None = None


@dataclass
class Outcome:
    """`code` is "ok" or the error's; outputs have None for unknown nodes.

    `graph` is its version, and its age in ms where that is told.
    """

    code: str
    text: str = ""
    outputs: dict[str, Any] = field(default_factory=dict)
    version: str = ""
    graph: tuple[str, int | None] = ("", None)


class V1Json:
    name = "v1-json"

    def __init__(self, server: RunningServer) -> None:
        self._http = httpx.Client(base_url=server.url)

    def ask(self, ask: Ask) -> Outcome:
        body: dict[str, Any] = {}
        if ask.nodes is not None:
            body["nodes"] = ask.nodes
        if ask.pairs is not None:
            body["pairs"] = ask.pairs
        if ask.features is not None:
            neighbors = ask.neighbors or [[] for _ in ask.features]
            body["inline"] = [
                {"features": row, "neighbors": ids}
                for row, ids in zip(ask.features, neighbors, strict=True)
            ]
        if ask.outputs:
            body["outputs"] = ask.outputs
        if ask.columns is not None:
            names = list(ask.columns)
            body["rows"] = [
                dict(zip(names, row, strict=True)) for row in zip(*ask.columns.values(), strict=True)
            ]
        for key in ("as_of", "on_missing", "timeout_ms", "key", "priority", "attributes"):
            if getattr(ask, key) is not None:
                body[key] = getattr(ask, key)
        path = f"/versions/{ask.version}" if ask.version else ""
        response = self._http.post(f"/v1/models/{ask.model}{path}/score", json=body)
        answer = response.json()
        if response.status_code != 200:
            return Outcome(answer["error"]["code"], answer["error"]["message"])
        graph = (answer["graph_version"], answer.get("graph_age_ms"))
        return Outcome("ok", "", answer["outputs"], answer["version"], graph)

    def close(self) -> None:
        self._http.close()


class OipJson:
    name = "oip-json"
    binary = False

    def __init__(self, server: RunningServer) -> None:
        self._http = httpx.Client(base_url=server.url)

    def ask(self, ask: Ask) -> Outcome:
        inputs, blobs = [], []
        for tensor in tensors(ask):
            item: dict[str, Any] = {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": list(tensor.shape),
            }
            if self.binary:
                blobs.append(encode_raw(tensor))
                item["parameters"] = {"binary_data_size": len(blobs[-1])}
            elif isinstance(tensor.values, list):
                item["data"] = [value.decode() for value in tensor.values]
            else:
                item["data"] = tensor.values.tolist()
            inputs.append(item)
        body = {"inputs": inputs, "parameters": parameters(ask) | {"binary_data_output": self.binary}}
        if ask.outputs:
            body["outputs"] = [{"name": name} for name in ask.outputs]
        text = json.dumps(body).encode()
        headers = {"Inference-Header-Content-Length": str(len(text))} if self.binary else {}
        path = f"/versions/{ask.version}" if ask.version else ""
        url = f"/v2/models/{ask.model}{path}/infer"
        response = self._http.post(url, content=b"".join([text, *blobs]), headers=headers)
        if response.status_code != 200:
            return Outcome(response.headers["hopline-error"], response.json()["error"])
        end = int(response.headers.get("Inference-Header-Content-Length", len(response.content)))
        answer = json.loads(response.content[:end])
        found = []
        for item in answer["outputs"]:
            shape = item["shape"]
            if "data" in item:
                data = [np.nan if value is None else value for value in item["data"]]
                found.append(decode_values(item["name"], item["datatype"], shape, data))
            else:
                size = item["parameters"]["binary_data_size"]
                blob = response.content[end : end + size]
                found.append(decode_raw(item["name"], item["datatype"], shape, blob))
                end += size
        return Outcome("ok", "", as_lists(found), answer["model_version"], told(answer["parameters"]))

    def close(self) -> None:
        self._http.close()


class OipBinary(OipJson):
    name = "oip-binary"
    binary = True


class Grpc:
    name = "grpc"

    def __init__(self, server: RunningServer) -> None:
        self._channel = grpc.insecure_channel(server.grpc)
        self._infer = self._channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            message("inference.ModelInferRequest").SerializeToString,
            message("inference.ModelInferResponse").FromString,
        )

    def ask(self, ask: Ask) -> Outcome:
        try:
            answer = self._infer(infer_request(ask), timeout=10)
        except grpc.RpcError as error:
            trailers = dict(error.trailing_metadata())
            return Outcome(str(trailers.get("hopline-error")), str(error.details()))
        found = [
            decode_raw(output.name, output.datatype, output.shape, raw)
            for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
        ]
        named = {name: value.string_param for name, value in answer.parameters.items()}
        return Outcome("ok", "", as_lists(found), answer.model_version, told(named))

    def close(self) -> None:
        self._channel.close()


def told(parameters: dict[str, str]) -> tuple[str, int | None]:
    """Version and age of the graph, of an answer's parameters."""
    age = parameters.get("graph_age_ms")
    return parameters["graph_version"], None if age is None else int(age)


def infer_request(ask: Ask) -> Any:
    request = message("inference.ModelInferRequest")(model_name=ask.model, model_version=ask.version)
    for tensor in tensors(ask):
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        request.raw_input_contents.append(encode_raw(tensor))
    for name in ask.outputs:
        request.outputs.add(name=name)
    for key, value in parameters(ask).items():
        if isinstance(value, str):
            request.parameters[key].string_param = value
        else:
            request.parameters[key].double_param = value
    return request


def tensors(ask: Ask) -> list[Tensor]:
    found = []
    if ask.nodes is not None:
        found.append(tensor_from_array("node_ids", np.array(ask.nodes)))
    if ask.pairs is not None:
        found.append(
            tensor_from_array("src_ids", np.array([pair[0] for pair in ask.pairs], dtype=np.int64))
        )
        found.append(
            tensor_from_array("dst_ids", np.array([pair[1] for pair in ask.pairs], dtype=np.int64))
        )
    if ask.features is not None:
        found.append(tensor_from_array("features", np.array(ask.features, dtype=np.float32)))
    if ask.neighbors is not None:
        flat = np.array([item for ids in ask.neighbors for item in ids], dtype=np.int64)
        found.append(tensor_from_array("neighbors", flat))
        found.append(tensor_from_array("neighbor_counts", np.array([len(ids) for ids in ask.neighbors])))
    for name, values in (ask.columns or {}).items():
        found.append(tensor_from_array(name, np.array(values)))
    if ask.as_of is not None:
        found.append(tensor_from_array("as_of", np.array([ask.as_of])))
    return found


def parameters(ask: Ask) -> dict[str, Any]:
    found = {
        "on_missing": ask.on_missing,
        "timeout_ms": ask.timeout_ms,
        "key": ask.key,
        "priority": ask.priority,
        "attributes": None if ask.attributes is None else json.dumps(ask.attributes),
    }
    return {key: value for key, value in found.items() if value is not None}


def as_lists(found: list[Tensor]) -> dict[str, Any]:
    """Like /v1's JSON: nested lists, None for unknown nodes."""
    arrays = {tensor.name: np.array(tensor.values).reshape(tensor.shape) for tensor in found}
    missing = arrays.pop("missing", None)
    # Through float32's own text, as /v1 writes it.
    lists = {
        name: (array.astype(str).astype(float) if array.dtype.kind == "f" else array).tolist()
        for name, array in arrays.items()
    }
    if missing is not None:
        lists = {
            name: [None if gone else row for gone, row in zip(missing, rows, strict=True)]
            for name, rows in lists.items()
        }
    return lists
