"""Requests of KServe's client (kserve 0.21: `InferenceRESTClient`, `InferenceGRPCClient`), byte by byte.

The package itself brings a web framework and Kubernetes; these are what its `InferRequest.to_rest` and
`to_grpc` make.
"""

from __future__ import annotations

import json
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from hopline.transports.proto import message
from tests.servers import RunningServer

IDS = b"\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0"
STRINGS = b"\x02\0\0\0n3\x02\0\0\0n4"
HEAD = b'{"id":"r-1","model_name":"%b","inputs":[{"name":"node_ids","shape":[2],"datatype":"%b",'
#: Name -> model, JSON, what is behind it.
REST = {
    "json": ("sage", HEAD % (b"sage", b"INT64") + b'"data":[3,4]}]}', b""),
    "binary": (
        "sage",
        HEAD % (b"sage", b"INT64")
        + b'"parameters":{"binary_data_size":16}}],'
        + b'"outputs":[{"name":"label","parameters":{"binary_data":true}}]}',
        IDS,
    ),
    "strings": ("people", HEAD % (b"people", b"BYTES") + b'"data":["n3","n4"]}]}', b""),
    "binary strings": (
        "people",
        HEAD % (b"people", b"BYTES") + b'"parameters":{"binary_data_size":12}}]}',
        STRINGS,
    ),
    "binary outputs": (
        "sage",
        HEAD % (b"sage", b"INT64")
        + b'"parameters":{"binary_data_size":16}}],"parameters":{"binary_data_output":true}}',
        IDS,
    ),
}
SIZE = b'"\x16\n\x10binary_data_size\x12\x02\x10'
INPUT = b"\n\x08node_ids\x12\x05%b\x1a\x01\x02"
GRPC = {
    "typed": b"\n\x04sage\x1a\x03r-1*\x1a" + INPUT % b"INT64" + b"*\x04\x1a\x02\x03\x04",
    "raw": b"\n\x04sage\x1a\x03r-1*," + INPUT % b"INT64" + SIZE + b"\x102\x1a\n\x05label"
    b"\x12\x11\n\x0bbinary_data\x12\x02\x08\x01:\x10" + IDS,
    "strings": b"\n\x06people\x1a\x03r-1*\x1e" + INPUT % b"BYTES" + b"*\x08B\x02n3B\x02n4",
    "raw strings": b"\n\x06people\x1a\x03r-1*," + INPUT % b"BYTES" + SIZE + b"\x0c:\x0c" + STRINGS,
    "raw outputs": b'\n\x04sage\x12\x012\x1a\x03r-1"\x18\n\x12binary_data_output\x12\x02\x08\x01*,'
    + INPUT % b"INT64"
    + SIZE
    + b"\x10:\x10"
    + IDS,
}


@pytest.mark.parametrize("name", REST)
def test_requests_over_rest_are_answered(server: RunningServer, name: str) -> None:
    model, text, blob = REST[name]
    headers = {"content-type": "application/json"}
    if blob:
        headers = {
            "content-type": "application/octet-stream",
            "inference-header-content-length": str(len(text)),
        }
    answer = httpx.post(f"{server.url}/v2/models/{model}/infer", content=text + blob, headers=headers)
    assert answer.status_code == 200, answer.text
    length = int(answer.headers.get("inference-header-content-length", len(answer.content)))
    told = json.loads(answer.content[:length])
    assert (told["id"], told["model_name"]) == ("r-1", model)
    assert labels(told, answer.content[length:]) == [1, 0]


def labels(told: dict[str, Any], rest: bytes) -> list[int]:
    for output in told["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        if output["name"] == "label":
            return output["data"] if size is None else np.frombuffer(rest[:size], "<i8").tolist()
        rest = rest[size or 0 :]
    raise AssertionError("no labels")


@pytest.mark.parametrize("name", GRPC)
def test_requests_over_grpc_are_answered(server: RunningServer, name: str) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        read = message("inference.ModelInferResponse").FromString
        answer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", None, read)(GRPC[name])
    assert answer.id == "r-1"
    (at,) = [at for at, output in enumerate(answer.outputs) if output.name == "label"]
    assert np.frombuffer(answer.raw_output_contents[at], "<i8").tolist() == [1, 0]


def test_a_body_that_contradicts_its_path_is_refused(server: RunningServer) -> None:
    _, text, _ = REST["json"]
    answer = httpx.post(f"{server.url}/v2/models/people/infer", content=text)
    assert (answer.status_code, answer.json()) == (
        400,
        {"error": "the path has model 'people', but the body has 'sage'"},
    )
    versioned = text.replace(b'"id"', b'"model_version":"1","id"')
    answer = httpx.post(f"{server.url}/v2/models/sage/versions/2/infer", content=versioned)
    assert answer.json() == {"error": "the path says version '2', the body '1'"}
    answer = httpx.post(f"{server.url}/v2/models/sage/infer", content=versioned)
    assert answer.json()["model_version"] == "1"
