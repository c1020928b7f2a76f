"""Calls that last, and more calls than can be begun: a real server and a channel of the C core."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from typing import Any

import grpc
import pytest

from hopline.transports.grpc import HEALTH, INFERENCE
from hopline.transports.proto import message
from tests.servers import RunningServer, running

StatusCode = grpc.StatusCode


def request_of(number: int, *, wait_ms: int = 0) -> Any:
    model = "slow" if wait_ms else "sage"
    request = message("inference.ModelInferRequest")(model_name=model, id=str(number))
    request.inputs.add(name="node_ids", datatype="INT64", shape=[1]).contents.int64_contents.append(number)
    if wait_ms:
        request.inputs.add(name="as_of", datatype="INT64", shape=[1]).contents.int64_contents.append(
            wait_ms
        )
    return request


def open_stream(channel: Any) -> Any:
    return channel.stream_stream(
        f"/{INFERENCE}/ModelStreamInfer",
        message("inference.ModelInferRequest").SerializeToString,
        message("inference.ModelStreamInferResponse").FromString,
    )()


async def test_a_stopping_server_answers_what_it_read_of_a_stream_and_ends_it() -> None:
    with running() as server:
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            stream = open_stream(channel)
            await stream.write(request_of(0, wait_ms=1_500))
            await stream.write(request_of(1))
            await asyncio.to_thread(server.wait_for_waiting, 1)
            server.process.send_signal(signal.SIGTERM)
            answers = [await stream.read() for _ in range(2)]
            assert [answer.infer_response.id for answer in answers] == ["0", "1"]
            assert not any(answer.error_message for answer in answers)
            assert await stream.code() is StatusCode.UNAVAILABLE
            assert "again on a new stream" in await stream.details()
            # While the client keeps its channel: nobody waits for the drain's timeout, 30 s.
            assert await asyncio.to_thread(server.process.wait, 15) == 0


async def test_a_health_watch_gets_the_stop_and_does_not_hold_it_up() -> None:
    health = message("grpc.health.v1.HealthCheckRequest")
    with running() as server:
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            watch = channel.unary_stream(
                f"/{HEALTH}/Watch",
                health.SerializeToString,
                message("grpc.health.v1.HealthCheckResponse").FromString,
            )(health())
            statuses = [(await watch.read()).status]
            server.process.send_signal(signal.SIGTERM)
            statuses.append((await watch.read()).status)
            assert statuses == [1, 2]
            assert await watch.code() is StatusCode.UNAVAILABLE
            assert await asyncio.to_thread(server.process.wait, 15) == 0


@pytest.mark.release
async def test_silent_and_idle_connections_do_not_hold_up_a_stop() -> None:
    with running() as server:
        host, _, port = server.grpc.rpartition(":")
        with socket.create_connection((host, int(port))):
            async with grpc.aio.insecure_channel(server.grpc) as channel:
                await channel.channel_ready()
                server.process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(server.process.wait, 15) == 0


async def test_a_client_that_goes_takes_its_requests_with_it() -> None:
    with running() as server:
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            stream = open_stream(channel)
            for _ in range(3):
                await stream.write(request_of(0, wait_ms=20_000))
            await asyncio.to_thread(server.wait_for_waiting, 3)
            stream.cancel()
            await asyncio.to_thread(wait_for_none, server)
            again = open_stream(channel)
            await again.write(request_of(7))
            assert (await again.read()).infer_response.id == "7"
            await again.done_writing()
            assert await again.read() is grpc.aio.EOF
            assert await again.code() is StatusCode.OK


async def test_a_stream_takes_no_more_than_it_may_and_loses_nothing() -> None:
    with running() as server:
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            stream = open_stream(channel)
            await stream.write(request_of(1_000, wait_ms=1_000))
            for number in range(300):
                await stream.write(request_of(number))
            await stream.done_writing()
            answers = [answer.infer_response.id async for answer in stream]
    assert answers == ["1000", *map(str, range(300))]


@pytest.mark.release
async def test_what_is_no_request_ends_a_stream_with_the_reason() -> None:
    with running() as server:
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            stream = channel.stream_stream(f"/{INFERENCE}/ModelStreamInfer")()
            await stream.write(request_of(1).SerializeToString())
            await stream.write(b"\xff\xff\xff")
            answers = [message("inference.ModelStreamInferResponse").FromString(await stream.read())]
            assert answers[0].infer_response.id == "1"
            assert await stream.code() is StatusCode.INVALID_ARGUMENT
            assert "not a ModelInferRequest" in await stream.details()


@pytest.mark.sample(1)
@pytest.mark.parametrize("num_connections", [1, 8])
async def test_a_burst_is_answered_whole(num_connections: int) -> None:
    """gRPC itself cancels calls while more than 1,000 wait to be begun, whichever connections they are of.

    One connection is more than one while it comes of age: the calls under way end on the old one.
    """
    infer_response = message("inference.ModelInferResponse")
    with running() as server:
        async with contextlib.AsyncExitStack() as stack:
            infers = []
            for _ in range(num_connections):
                channel = grpc.aio.insecure_channel(
                    server.grpc, options=[("grpc.use_local_subchannel_pool", 1)]
                )
                await stack.enter_async_context(channel)
                infers.append(
                    channel.unary_unary(
                        f"/{INFERENCE}/ModelInfer",
                        message("inference.ModelInferRequest").SerializeToString,
                        infer_response.FromString,
                    )
                )
            calls = [
                infers[number % num_connections](request_of(number), timeout=60) for number in range(5_000)
            ]
            answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [str(getattr(answer, "id", answer)) for answer in answers] == list(map(str, range(5_000)))


def wait_for_none(server: RunningServer) -> None:
    end = time.monotonic() + 60
    while server.metric('hopline_queue_requests{model="slow",version="2"}'):
        assert time.monotonic() < end, "requests of a client that is gone are still waited for"
        time.sleep(0.02)
