"""Calls that a model takes none of are refused before their tensors are read: a real server and channel."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from hopline.config.reader import load_config
from hopline.transports.grpc import INFERENCE, GrpcApp
from hopline.transports.proto import message
from tests.transports.grpc_rig import grpc_server
from tests.transports.test_http_lane import Limited


@pytest.fixture
async def channel() -> AsyncIterator[Any]:
    service = Limited(load_config())
    await service.start()
    async with grpc_server(GrpcApp(service)) as target, grpc.aio.insecure_channel(target) as opened:
        yield opened


async def status_of(channel: Any, model: str, *, version: str = "", shape: int = 1) -> grpc.StatusCode:
    request = message("inference.ModelInferRequest")(model_name=model, model_version=version)
    request.inputs.add(name="node_ids", datatype="INT64", shape=[shape]).contents.int64_contents.append(1)
    infer = channel.unary_unary(
        f"/{INFERENCE}/ModelInfer",
        type(request).SerializeToString,
        message("inference.ModelInferResponse").FromString,
    )
    try:
        await infer(request, timeout=20)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            told = dict(error.trailing_metadata())
            assert (told["hopline-error"], told["retry-after-ms"]) == ("rate_limited", "1000")
        return error.code()
    return grpc.StatusCode.OK


async def test_a_flood_is_refused_unread_unless_it_names_a_version(channel: Any) -> None:
    code = grpc.StatusCode
    assert await status_of(channel, "sage") is code.RESOURCE_EXHAUSTED
    assert await status_of(channel, "sage", shape=2) is code.RESOURCE_EXHAUSTED
    assert await status_of(channel, "sage", version="1") is code.OK
    assert await status_of(channel, "sage", version="1", shape=2) is code.INVALID_ARGUMENT
    assert await status_of(channel, "people", shape=2) is code.INVALID_ARGUMENT


async def test_a_stream_goes_on_after_a_refusal(channel: Any) -> None:
    request = message("inference.ModelInferRequest")
    stream = channel.stream_stream(
        f"/{INFERENCE}/ModelStreamInfer",
        request.SerializeToString,
        message("inference.ModelStreamInferResponse").FromString,
    )()
    for number, version in enumerate(("", "1")):
        asked = request(model_name="sage", model_version=version, id=str(number))
        asked.inputs.add(name="node_ids", datatype="INT64", shape=[1]).contents.int64_contents.append(1)
        await stream.write(asked)
    await stream.done_writing()
    answers = [answer async for answer in stream]
    assert [answer.infer_response.id for answer in answers] == ["0", "1"]
    assert "takes nothing" in answers[0].error_message
    assert not answers[1].error_message
