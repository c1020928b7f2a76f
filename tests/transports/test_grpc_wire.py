"""HTTP/2 and gRPC calls cut at random, bounded by windows, withdrawn and late: h2, and real channels."""

from __future__ import annotations

import asyncio
import gzip
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import grpc
import h2.settings
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.config.reader import load_config
from hopline.transports.grpc import INFERENCE, GrpcApp
from hopline.transports.proto import message
from hopline.types import Deliver, ScoreRequest, Ticket
from tests.fake_service import FakeService
from tests.thorough import thorough
from tests.transports.grpc_rig import grpc_server
from tests.transports.http2_rig import Client, Served, frames_of
from turnserve.http2.frames import (
    ACK,
    DEFAULT_WINDOW,
    RST_STREAM,
    SETTINGS,
    WORD,
    ErrorCode,
    frame,
    window_update,
)

SettingCodes = h2.settings.SettingCodes
Request = message("inference.ModelInferRequest")
Response = message("inference.ModelInferResponse")


class Noting(FakeService):
    """Keeps the requests that it gets."""

    def __init__(self) -> None:
        super().__init__(load_config())
        self.requests: list[ScoreRequest] = []

    def submit(self, request: ScoreRequest, deliver: Deliver) -> Ticket:
        self.requests.append(request)
        return super().submit(request, deliver)


def ask_for(model: str, *, wait_ms: int = 0) -> Any:
    request = Request(model_name=model)
    request.inputs.add(name="node_ids", datatype="INT64", shape=[1]).contents.int64_contents.append(7)
    if wait_ms:
        item = request.inputs.add(name="as_of", datatype="INT64", shape=[1])
        item.contents.int64_contents.append(wait_ms)
    return request


def infer_of(channel: grpc.aio.Channel) -> Any:
    return channel.unary_unary(f"/{INFERENCE}/ModelInfer", Request.SerializeToString, Response.FromString)


async def eventually(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@settings(max_examples=thorough(10, 40), deadline=None)
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=4), st.data())
def test_bytes_cut_at_random_are_answered_as_if_they_were_whole(
    bodies: list[bytes], data: st.DataObject
) -> None:
    client = Client(Served())
    numbers = [client.call("/t/Echo", body) for body in bodies]
    out = client.h2.data_to_send()
    cuts = data.draw(st.lists(st.integers(0, len(out)), max_size=30).map(sorted))
    for start, end in zip([0, *cuts], [*cuts, len(out)], strict=True):
        client.server.data_received(out[start:end])
    client.exchange()
    assert [client.answers[number].messages for number in numbers] == [[body] for body in bodies]


def test_the_window_of_the_connection_bounds_all_streams_together_and_loses_no_byte() -> None:
    client = Client(Served(), {SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20})
    client.takes = False
    bodies = [bytes((place + at // 7) % 256 for at in range(30_000)) for place in range(4)]
    numbers = [client.call("/t/Echo", body) for body in bodies]
    client.exchange()
    assert sum(len(client.answers[number].data) for number in numbers) == DEFAULT_WINDOW
    for _ in range(len(bodies) * 30_100 // 5_000):
        client.h2.increment_flow_control_window(5_000)
        client.exchange()
    assert [client.answers[number].messages for number in numbers] == [[body] for body in bodies]
    assert all(client.answers[number].ended for number in numbers)


def test_settings_are_confirmed_and_a_confirmation_is_not() -> None:
    client = Client(Served())
    client.raw(frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0))
    assert client.transport.written == frame(SETTINGS, ACK, 0)


@pytest.mark.parametrize("data", [window_update(9, 1), frame(RST_STREAM, 0, 9, WORD.pack(8))])
def test_frames_of_streams_that_never_were_end_the_connection(data: bytes) -> None:
    client = Client(Served())
    client.raw(data)
    assert client.goaway()[0] == ErrorCode.PROTOCOL_ERROR


def test_a_stream_whose_window_overflows_is_reset_alone() -> None:
    served = Served()
    client = Client(served)
    bad, good = client.call("/t/Later", b"a"), client.call("/t/Later", b"b")
    client.exchange()
    client.raw(window_update(bad, 2**31 - 1))
    (told,) = frames_of(client.transport.written)
    assert (told[3], told[9:]) == (RST_STREAM, WORD.pack(ErrorCode.FLOW_CONTROL_ERROR))
    client.exchange()
    served.release()
    client.exchange()
    assert client.answers[good].messages == [b"b"]
    assert served.num_gone == 1


async def test_a_bomb_takes_no_more_memory_than_a_message_may() -> None:
    client = Client(Served(max_message_bytes=100_000))
    bomb = gzip.compress(bytes(50_000_000))
    number = client.call("/t/Echo", end=False, grpc_encoding="gzip")
    client.send(number, b"\1" + len(bomb).to_bytes(4, "big") + bomb)
    client.h2.end_stream(number)
    tracemalloc.start()
    try:
        await eventually(lambda: client.exchange() or client.answers[number].ended)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert client.answers[number].status != 0


async def test_a_withdrawn_call_withdraws_its_request_and_leaves_the_others() -> None:
    service = Noting()
    async with grpc_server(GrpcApp(service)) as target, grpc.aio.insecure_channel(target) as channel:
        infer = infer_of(channel)
        withdrawn = infer(ask_for("slow", wait_ms=60_000))
        kept = infer(ask_for("slow", wait_ms=50))
        await eventually(lambda: service.num_waiting == 2)
        withdrawn.cancel()
        await eventually(lambda: service.num_cancelled == 1)
        assert (await kept).model_name == "slow"


async def test_a_client_that_vanishes_withdraws_all_its_requests() -> None:
    service = Noting()
    async with grpc_server(GrpcApp(service)) as target:
        channel = grpc.aio.insecure_channel(target)
        calls = [infer_of(channel)(ask_for("slow", wait_ms=60_000)) for _ in range(3)]
        waits = [asyncio.ensure_future(call.code()) for call in calls]
        await eventually(lambda: service.num_waiting == 3)
        await channel.close()
        await eventually(lambda: service.num_cancelled == 3)
        await asyncio.gather(*waits, return_exceptions=True)


async def test_the_deadline_of_a_call_is_the_deadline_of_its_request() -> None:
    service = Noting()
    async with grpc_server(GrpcApp(service)) as target, grpc.aio.insecure_channel(target) as channel:
        before = time.monotonic()
        await infer_of(channel)(ask_for("sage"), timeout=30)
        after = time.monotonic()
        await infer_of(channel)(ask_for("sage"))
    first, second = (request.deadline for request in service.requests)
    assert first is not None
    # What the channel sends is rounded, and is what is left of it when it is sent.
    assert before + 29 < first < after + 31
    assert second is None


async def test_a_request_that_takes_longer_than_its_deadline_is_answered_so() -> None:
    client, service = Client(Served()), Noting()
    client.server._listener._methods = GrpcApp(service).methods()
    data = ask_for("slow", wait_ms=60_000).SerializeToString()
    number = client.call(f"/{INFERENCE}/ModelInfer", data, grpc_timeout="20m")
    client.exchange()  # the client does not give up by itself, as grpc.aio's would
    await eventually(lambda: client.exchange() or client.answers[number].ended)
    assert client.answers[number].status == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]


async def test_text_of_any_script_comes_back_whole_at_a_client_of_the_c_core() -> None:
    name = 'Käse 中文 🧀 100 % "q"'
    async with grpc_server(GrpcApp(Noting())) as target, grpc.aio.insecure_channel(target) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await infer_of(channel)(ask_for(name), metadata=(("odd-bin", bytes(range(256))),))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert repr(name) in caught.value.details()
