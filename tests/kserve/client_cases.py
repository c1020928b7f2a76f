"""Unmodified clients of the `kserve` package, over REST and gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

from tests.servers import RunningServer


class Rest:
    """The REST client with the calls of the gRPC client."""

    def __init__(self, client: InferenceRESTClient, url: str) -> None:
        self._client, self._url = client, url

    async def infer(self, request: InferRequest) -> Any:
        return await self._client.infer(self._url, request, model_name=request.model_name)

    async def is_server_ready(self) -> bool:
        return bool(await self._client.is_server_ready(self._url))

    async def is_server_live(self) -> bool:
        return bool(await self._client.is_server_live(self._url))

    async def is_model_ready(self, name: str) -> bool:
        return bool(await self._client.is_model_ready(self._url, name))


@pytest.fixture(params=["rest", "grpc"])
async def kserve(request: pytest.FixtureRequest, server: RunningServer) -> AsyncIterator[Any]:
    if request.param == "rest":
        async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
            yield Rest(client, f"http://{server.address}")
    else:
        async with InferenceGRPCClient(server.grpc) as client:
            yield client


def asking(model: str, ids: list[Any], *, binary: bool = False, **options: Any) -> InferRequest:
    is_text = isinstance(ids[0], str)
    tensor = InferInput("node_ids", [len(ids)], "BYTES" if is_text else "INT64")
    tensor.set_data_from_numpy(np.array(ids, dtype=object if is_text else np.int64), binary_data=binary)
    return InferRequest(model, [tensor], **options)


async def test_health(kserve: Any) -> None:
    assert await kserve.is_server_live()
    assert await kserve.is_server_ready()
    assert await kserve.is_model_ready("sage")
    assert not await kserve.is_model_ready("loading")


@pytest.mark.parametrize("binary", [False, True])
async def test_infer(kserve: Any, binary: bool) -> None:
    answer = await kserve.infer(asking("sage", [1, 2, 3], binary=binary, request_id="mine"))
    outputs = {output.name: output.as_numpy() for output in answer.outputs}
    np.testing.assert_array_equal(outputs["label"], [1, 0, 1])
    np.testing.assert_array_equal(
        outputs["probabilities"], np.array([[0.1, 0.9], [0.9, 0.1], [0.1, 0.9]], dtype=np.float32)
    )
    assert (answer.id, answer.model_name) == ("mine", "sage")


@pytest.mark.parametrize("binary", [False, True])
async def test_string_ids_and_selected_outputs(kserve: Any, binary: bool) -> None:
    outputs = [RequestedOutput("embedding", {"binary_data": binary})]
    answer = await kserve.infer(asking("people", ["n4"], binary=binary, request_outputs=outputs))
    (output,) = answer.outputs
    np.testing.assert_array_equal(output.as_numpy(), np.array([[4, 2, 4 / 3, 0]], np.float32))


async def test_errors_say_what_is_wrong(kserve: Any) -> None:
    with pytest.raises((httpx.HTTPStatusError, grpc.RpcError), match="unknown"):
        await kserve.infer(asking("unknown", [1]))
    with pytest.raises((httpx.HTTPStatusError, grpc.RpcError), match="nobody"):
        await kserve.infer(asking("people", ["n4", "nobody"]))
