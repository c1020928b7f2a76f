"""Messages, metadata, deadlines and statuses of gRPC calls: over h2, and over the channel of the C core."""

from __future__ import annotations

import asyncio
import gzip
import time
import zlib
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.config.reader import load_config
from hopline.transports.grpc import INFERENCE, GrpcApp
from hopline.transports.proto import message
from tests.fake_service import FakeService
from tests.thorough import thorough
from tests.transports.grpc_rig import endpoint_of, grpc_server
from tests.transports.http2_rig import Alone, Answer, Client, Served
from turnserve.budget import Budget
from turnserve.grpc.status import StatusCode
from turnserve.http2.output import SHARE_BYTES

Code = StatusCode


def framed(data: bytes, flag: int = 0) -> bytes:
    return bytes([flag]) + len(data).to_bytes(4, "big") + data


def raw(client: Client, path: str, data: bytes, **headers: str) -> Any:
    """A call whose bytes are given as they are."""
    number = client.call(path, end=False, **headers)
    client.send(number, data)
    client.h2.end_stream(number)
    client.exchange()
    return client.answers[number]


def failed(answer: Any, code: StatusCode) -> str:
    """The text of a status that is given without an answer."""
    assert answer.status == code
    assert answer.ended
    assert not answer.data
    text: str = answer.text
    return text


@settings(max_examples=thorough(10, 40), deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(1, 20), max_size=40))
def test_messages_may_be_cut_anywhere(messages: list[bytes], cuts: list[int]) -> None:
    client = Client(Served())
    data = b"".join(map(framed, messages))
    number = client.call("/t/Each", end=False)
    for cut in cuts:
        client.h2.send_data(number, data[:cut])
        client.exchange()
        data = data[cut:]
    client.h2.send_data(number, data, end_stream=True)
    client.exchange()
    assert client.answers[number].messages == messages
    assert client.answers[number].status == 0


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_messages_are_read(encoding: str, pack: Any) -> None:
    answer = raw(Client(Served()), "/t/Echo", framed(pack(b"hello" * 100), 1), grpc_encoding=encoding)
    assert answer.messages == [b"hello" * 100]


def test_a_compressed_message_is_bounded_by_what_it_becomes() -> None:
    served = Served(max_message_bytes=10_000)
    answer = raw(Client(served), "/t/Echo", framed(gzip.compress(bytes(10_001)), 1), grpc_encoding="gzip")
    assert answer.status != 0
    assert "larger than 10000 bytes" in answer.text


def test_an_encoding_that_is_not_known_is_named() -> None:
    answer = raw(Client(Served()), "/t/Echo", framed(b"x", 1), grpc_encoding="snappy")
    assert "'snappy'" in failed(answer, Code.UNIMPLEMENTED)
    answer = raw(Client(Served()), "/t/Echo", framed(b"x", 1))
    assert "compressed" in failed(answer, Code.INTERNAL)


async def test_a_message_that_is_too_large_is_refused_before_it_is_sent() -> None:
    client = Client(Served(max_message_bytes=1_000))
    number = client.call("/t/Echo", end=False)
    client.h2.send_data(number, b"\0" + (1_001).to_bytes(4, "big"))
    client.exchange()
    assert "server.max_body_bytes" in failed(client.answers[number], Code.RESOURCE_EXHAUSTED)
    assert client.answers[number].reset == 0  # it need not send the rest
    number = client.call("/t/Echo", b"x")
    while not client.answers[number].ended:  # it was refused, so the others come first
        client.exchange()
        await asyncio.sleep(0)
    assert client.answers[number].messages == [b"x"]


def test_a_unary_method_takes_one_whole_message() -> None:
    client = Client(Served())
    for data, what in (
        (framed(b"a") + framed(b"b"), "accepts only one message"),
        (b"\0\0\0\0\2a", "incomplete"),
        (b"\0\0", "incomplete"),
    ):
        assert what in failed(raw(client, "/t/Echo", data), Code.INVALID_ARGUMENT)
    assert "none was sent" in failed(client.ask("/t/Echo"), Code.INVALID_ARGUMENT)
    assert client.ask("/t/Echo", b"").messages == [b""]


MODEL_INFER, STREAM_INFER = f"/{INFERENCE}/ModelInfer", f"/{INFERENCE}/ModelStreamInfer"
#: What is wrong with a call: its path, its bytes, headers, and the stable code of the answer.
FAULTS: dict[str, tuple[str, bytes, dict[str, str], str]] = {
    "cut short": (MODEL_INFER, framed(b"abc")[:-1], {}, "bad_request"),
    "cut short in its prefix": (MODEL_INFER, b"\0\0", {}, "bad_request"),
    "two messages": (MODEL_INFER, framed(b"") * 2, {}, "bad_request"),
    "none": (MODEL_INFER, b"", {}, "bad_request"),
    "compressed without an encoding": (MODEL_INFER, framed(b"x", 1), {}, "bad_request"),
    "an unknown flag": (MODEL_INFER, framed(b"x", 9), {}, "bad_request"),
    "an unknown encoding": (MODEL_INFER, framed(b"x", 1), {"grpc_encoding": "br"}, "unsupported_encoding"),
    "damaged": (MODEL_INFER, framed(b"x", 1), {"grpc_encoding": "gzip"}, "bad_request"),
    "too large": (MODEL_INFER, b"\0" + (1 << 30).to_bytes(4, "big"), {}, "request_too_large"),
    "no protobuf": (MODEL_INFER, framed(b"\xff"), {}, "bad_request"),
    "a deadline that is none": (MODEL_INFER, framed(b""), {"grpc_timeout": "soon"}, "bad_request"),
    "an unknown method": (f"/{INFERENCE}/Nothing", framed(b""), {}, "not_found"),
    "a method that is not offered": (f"/{INFERENCE}/TraceSetting", framed(b""), {}, "not_found"),
    "in a stream, cut short": (STREAM_INFER, framed(b"abc")[:-1], {}, "bad_request"),
    "in a stream, compressed": (STREAM_INFER, framed(b"x", 1), {}, "bad_request"),
    "in a stream, unknown": (
        STREAM_INFER,
        framed(b"x", 1),
        {"grpc_encoding": "br"},
        "unsupported_encoding",
    ),
    "in a stream, too large": (STREAM_INFER, b"\0" + (1 << 30).to_bytes(4, "big"), {}, "request_too_large"),
}


@pytest.mark.parametrize(("path", "data", "headers", "code"), FAULTS.values(), ids=FAULTS)
async def test_every_failed_call_has_a_stable_code(
    path: str, data: bytes, headers: dict[str, str], code: str
) -> None:
    client = Client(_serving(GrpcApp(FakeService(load_config()))))
    answer = raw(client, path, data, **headers)
    assert answer.status != 0
    assert answer.headers[-1][b"hopline-error"] == code.encode()


async def test_a_call_that_does_not_arrive_and_one_without_room_have_stable_codes() -> None:
    app = GrpcApp(FakeService(load_config()))
    served = _serving(app, read_timeout_s=5.0)
    client = Client(served)
    number = client.call(MODEL_INFER, end=False)
    client.exchange()
    for now in (1.0, 7.0):
        served.endpoint.tick(now)
        client.exchange()
    assert client.answers[number].headers[-1][b"hopline-error"] == b"request_timeout"
    full = Client(_serving(app, budget=Budget(10)))
    answer = raw(full, MODEL_INFER, framed(bytes(100_000)))
    assert answer.headers[-1][b"hopline-error"] == b"overloaded"
    assert answer.headers[-1][b"retry-after-ms"] == b"1000"


@pytest.mark.parametrize(
    ("content_type", "status", "code"),
    [
        ("application/grpc", b"200", 0),
        ("application/grpc+proto", b"200", 0),
        ("Application/GRPC+Proto", b"200", 0),
        ("application/grpc;charset=utf-8", b"200", 0),
        ("application/grpc+proto ; a=b", b"200", 0),
        ("application/grpc+json", b"200", Code.UNIMPLEMENTED.value),
        ("application/grpc+thrift;a=b", b"200", Code.UNIMPLEMENTED.value),
        ("application/grpc-web", b"415", None),
        ("application/grpc-web+proto", b"415", None),
        ("application/grpc-web-text", b"415", None),
        ("application/grpcs", b"415", None),
        ("text/plain;application/grpc", b"415", None),
        ("", b"415", None),
    ],
)
def test_only_protobuf_over_http2_is_a_call(content_type: str, status: bytes, code: int | None) -> None:
    client = Client(Served())
    number = client.h2.get_next_available_stream_id()
    headers = {":method": "POST", ":scheme": "http", ":authority": "here", ":path": "/t/Echo"}
    client.answers[number] = answer = Answer()
    client.h2.send_headers(number, [*headers.items(), ("content-type", content_type)])
    client.h2.send_data(number, framed(b"x"), end_stream=True)
    client.exchange()
    assert answer.headers[0][b":status"] == status
    if code is not None:
        assert answer.status == code
    if code:
        assert "application/grpc+proto" in answer.text


def test_what_is_no_call_is_refused() -> None:
    client = Client(Served())
    assert "'/t/Nothing'" in failed(client.ask("/t/Nothing", b"x"), Code.UNIMPLEMENTED)
    assert "250m" in failed(client.ask("/t/Echo", b"x", grpc_timeout="soon"), Code.INVALID_ARGUMENT)
    for changed, status in ((("content-type", "application/json"), b"415"), ((":method", "GET"), b"405")):
        number = client.call("/t/Later", end=False)
        client.h2.reset_stream(number)
        number = client.h2.get_next_available_stream_id()
        headers = {":method": "POST", ":scheme": "http", ":authority": "here", ":path": "/t/Echo"}
        headers |= {"content-type": "application/grpc"} | dict([changed])
        client.answers[number] = type(client.answers[1])()
        client.h2.send_headers(number, list(headers.items()), end_stream=True)
        client.exchange()
        assert client.answers[number].headers[0][b":status"] == status


def test_texts_of_errors_come_back_as_they_were() -> None:
    served = Served()
    client = Client(served)
    number = client.call("/t/Later", b"x")
    client.exchange()
    served.waiting.pop()[0].finish(Code.NOT_FOUND, 'no "Käse" at 100 %\nmore', [("hopline-error", "odd")])
    client.exchange()
    assert failed(client.answers[number], Code.NOT_FOUND) == 'no "Käse" at 100 %\nmore'
    assert client.answers[number].headers[0][b"hopline-error"] == b"odd"


def test_deadlines_are_read_in_all_units() -> None:
    served = Served()
    client = Client(served)
    for timeout, seconds in (
        ("1H", 3600),
        ("2M", 120),
        ("3S", 3),
        ("4000m", 4),
        ("5000000u", 5),
        ("99999999n", 0.1),
    ):
        before = time.monotonic()
        client.call("/t/Later", b"x", grpc_timeout=timeout)
        client.exchange()
        deadline = served.waiting.pop()[0].deadline
        assert deadline is not None
        assert before + seconds - 1e-6 <= deadline <= time.monotonic() + seconds
    client.call("/t/Later", b"x")
    client.exchange()
    assert served.waiting.pop()[0].deadline is None


def test_binary_metadata_is_bytes() -> None:
    served = Served()
    client = Client(served)
    client.call("/t/Later", b"x", trace_bin="AAEC", name="value")
    client.exchange()
    call = served.waiting.pop()[0]
    assert {("trace-bin", b"\0\1\2"), ("name", "value")} <= set(call.invocation_metadata())
    assert call.metadata("name") == "value"
    assert call.metadata("other") is None


def test_a_request_that_does_not_come_to_its_end_is_given_up() -> None:
    served = Served(read_timeout_s=5.0)
    client = Client(served)
    slow = client.call("/t/Echo", end=False)
    stream = client.call("/t/Each", end=False)
    client.exchange()
    served.endpoint.tick(4.0)
    client.exchange()
    assert not client.answers[slow].headers
    served.endpoint.tick(6.0)
    client.exchange()
    assert "within 5.0 s" in failed(client.answers[slow], Code.DEADLINE_EXCEEDED)
    assert not client.answers[stream].headers  # streams last


async def test_a_message_of_a_stream_that_does_not_come_to_its_end_is_given_up() -> None:
    """Else a few streams could hold all the memory for large requests, for as long as they like."""
    served = Served(read_timeout_s=5.0)
    client = Client(served)
    data = framed(b"x" * 1_000)
    slow, busy = (client.call("/t/Each", end=False) for _ in range(2))
    client.send(slow, data + data[:500])
    now = 0.0
    while not client.answers[slow].ended and now < 20:
        now += 1
        client.send(busy, data[500:] + data[:500] if now > 1 else data[:500])  # always one that has begun
        client.exchange()
        served.endpoint.tick(now)
        client.exchange()
    assert 5 < now < 8
    assert client.answers[slow].messages == [b"x" * 1_000]
    assert client.answers[slow].status == Code.DEADLINE_EXCEEDED.value
    assert "within 5.0 s" in client.answers[slow].text
    assert not client.answers[busy].ended
    assert len(client.answers[busy].messages) == now - 1


@pytest.mark.parametrize(
    ("flag", "headers", "code"),
    [(1, {}, Code.INTERNAL), (9, {}, Code.INTERNAL), (1, {"grpc_encoding": "snappy"}, Code.UNIMPLEMENTED)],
)
async def test_a_stream_ends_at_a_message_that_cannot_be_unpacked(
    flag: int, headers: dict[str, str], code: grpc.StatusCode
) -> None:
    good = infer_request([7]).SerializeToString()
    data = framed(good) + framed(good, flag) + framed(good)
    answer = raw(
        _over(GrpcApp(FakeService(load_config()))), f"/{INFERENCE}/ModelStreamInfer", data, **headers
    )
    assert len(answer.messages) == 1
    assert answer.status == code.value


def test_an_answer_that_is_not_taken_is_given_up() -> None:
    served = Served(read_timeout_s=5.0)
    client = Client(served)
    client.takes = False
    number = client.call("/t/Echo", bytes(100_000))  # more than the window
    waits = client.call("/t/Later", b"x")
    client.exchange()
    assert not client.answers[number].ended
    for now in (4.0, 6.0, 10.0):
        served.endpoint.tick(now)
        client.exchange()
    assert client.answers[number].reset == 8
    served.release()
    client.exchange()
    assert client.answers[waits].reset is None  # what the server takes long for


def test_who_was_refused_is_read_after_the_others() -> None:
    async def play() -> None:
        served = Served()
        bad, good = Client(served), Client(served)
        number = bad.call("/t/Later", b"x")
        bad.exchange()
        served.waiting.pop()[0].finish(Code.RESOURCE_EXHAUSTED, "too much")
        bad.exchange()
        assert bad.answers[number].status == 8
        again = bad.call("/t/Echo", b"again")
        bad.server.data_received(bad.h2.data_to_send())
        assert not bad.transport.written
        assert good.ask("/t/Echo", b"good").messages == [b"good"]
        for _ in range(10):  # turns of the loop
            await asyncio.sleep(0)
        bad.exchange()
        assert bad.answers[again].messages == [b"again"]

    asyncio.run(play())


def infer_request(nodes: list[int], **more: Any) -> Any:
    request = message("inference.ModelInferRequest")(model_name="sage", **more)
    item = request.inputs.add(name="node_ids", datatype="INT64", shape=[len(nodes)])
    item.contents.int64_contents.extend(nodes)
    return request


async def test_the_channel_of_the_c_core_may_compress() -> None:
    async with (
        grpc_server(GrpcApp(FakeService(load_config()))) as target,
        grpc.aio.insecure_channel(target, compression=grpc.Compression.Gzip) as channel,
    ):
        infer = channel.unary_unary(
            f"/{INFERENCE}/ModelInfer",
            message("inference.ModelInferRequest").SerializeToString,
            message("inference.ModelInferResponse").FromString,
        )
        answers = [await infer(infer_request([7] * 500, id=str(number))) for number in range(3)]
        assert [answer.id for answer in answers] == ["0", "1", "2"]


async def test_a_stream_whose_answers_nobody_reads_is_not_read_either() -> None:
    """What it may send waits with the client once answers fill the windows; all of it is answered."""
    app = GrpcApp(FakeService(load_config()))
    request = infer_request(list(range(500))).SerializeToString()
    num_requests = 3 * SHARE_BYTES // 2_000
    client = _over(app)
    client.takes = False
    number = client.call(f"/{INFERENCE}/ModelStreamInfer", end=False)
    num_sent = 0
    data = framed(request)
    while num_sent < num_requests and client.h2.local_flow_control_window(number) > len(data):
        client.send(number, data)
        client.exchange()
        num_sent += 1
    assert num_sent < num_requests
    (stream,) = client.server._input.streams.values()
    assert stream.num_pending < 2 * SHARE_BYTES
    client.takes = True
    for _ in range(200):
        client.h2.increment_flow_control_window(100_000)
        client.h2.increment_flow_control_window(100_000, number)
        client.exchange()
    client.h2.end_stream(number)
    client.exchange()
    assert len(client.answers[number].messages) == num_sent
    assert client.answers[number].status == 0


def _serving(app: GrpcApp, **limits: Any) -> Served:
    """The real methods, and the real answers to failures."""
    served = Served()
    served.endpoint = endpoint_of(app, turns=Alone(), **limits)
    return served


def _over(app: GrpcApp) -> Client:
    """A client of the real methods."""
    served = Served()
    served.endpoint._methods = app.methods()
    return Client(served)


async def test_a_stream_that_breaks_the_rules_withdraws_its_requests_and_is_forgotten() -> None:
    app = GrpcApp(FakeService(load_config()))
    slow = infer_request([1], id="0")
    slow.model_name = "slow"
    slow.inputs.add(name="as_of", datatype="INT64", shape=[1]).contents.int64_contents.append(60_000)
    client = _over(app)
    number = client.call(f"/{INFERENCE}/ModelStreamInfer", slow.SerializeToString(), end=False)
    client.exchange()
    await asyncio.sleep(0)
    client.send(number, b"\0" + (2 << 20).to_bytes(4, "big"))
    client.exchange()
    assert client.answers[number].status == Code.RESOURCE_EXHAUSTED
    assert not app._streams
    await asyncio.sleep(0)
    assert app._service.num_cancelled == 1


async def test_packed_messages_wait_packed() -> None:
    app = GrpcApp(FakeService(load_config()))
    slow = infer_request([1])
    slow.model_name = "slow"
    slow.inputs.add(name="as_of", datatype="INT64", shape=[1]).contents.int64_contents.append(60_000)
    client = _over(app)
    number = client.call(f"/{INFERENCE}/ModelStreamInfer", end=False, grpc_encoding="gzip")
    client.send(number, framed(slow.SerializeToString()) * 64)  # all places are taken
    bomb = framed(gzip.compress(bytes(1_000_000)), 1)
    client.send(number, bomb * 100)
    client.exchange()
    assert client.server.output.held.num_arriving == 100 * len(bomb)
    assert client.server.output.held.num_bytes < 101 * len(bomb) + 64 * 200
    client.server.connection_lost(None)


async def test_requests_that_do_not_end_are_bounded_together() -> None:
    served = Served(max_message_bytes=500_000)
    client = Client(served)
    numbers = [client.call("/t/Echo", end=False) for _ in range(4)]
    for number, size in zip(numbers, (300_000, 200_000, 50_000, 100_000), strict=True):
        client.send(number, framed(bytes(size))[:-1])
        client.exchange()
    assert [client.answers[number].ended for number in numbers] == [False, False, False, True]
    assert "565536 bytes" in failed(client.answers[numbers[3]], Code.RESOURCE_EXHAUSTED)
    assert client.server.output.held.num_arriving == 550_000 + 3 * 4
    client.h2.reset_stream(numbers[0])
    client.exchange()
    for _ in range(10):  # one was refused, so the others come first
        await asyncio.sleep(0)
    client.send(numbers[1], b"\0")
    client.h2.end_stream(numbers[1])
    client.exchange()
    assert client.answers[numbers[1]].messages == [bytes(200_000)]
    assert client.server.output.held.num_arriving == client.server.output.held.num_bytes == 50_004


def test_requests_of_all_connections_share_one_budget() -> None:
    """What exceeds 64 KiB of a connection is reserved; who finds no room is refused alone."""
    budget = Budget(2_000_000)
    served = Served(max_message_bytes=1_000_000, budget=budget)
    clients = [Client(served) for _ in range(4)]
    numbers = [client.call("/t/Later", end=False) for client in clients]
    for client, number in zip(clients, numbers, strict=True):
        client.send(number, framed(bytes(900_000))[:-1])
        client.exchange()
    ended = [client.answers[number].ended for client, number in zip(clients, numbers, strict=True)]
    assert ended == [False, False, True, True]
    assert "2000000 bytes in total" in failed(clients[3].answers[numbers[3]], Code.RESOURCE_EXHAUSTED)
    assert 2 * 830_000 < budget.used <= budget.limit
    client, number = clients[0], numbers[0]
    client.send(number, b"\0")
    client.h2.end_stream(number)
    client.exchange()
    assert budget.used > 2 * 830_000  # until it is answered
    served.release()
    client.exchange()
    assert client.answers[number].messages == [bytes(900_000)]
    clients[1].server.connection_lost(None)
    assert budget.used == 0


async def test_messages_that_are_unpacked_are_counted_by_what_they_become() -> None:
    """One at a time, so that what they become is never in memory all at once."""
    budget = Budget(3_000_000)
    served = Served(max_message_bytes=2_000_000, budget=budget)
    client = Client(served)
    packed = framed(gzip.compress(bytes(1_900_000)), 1)
    numbers = [client.call("/t/Later", end=False, grpc_encoding="gzip") for _ in range(5)]
    for number in numbers:
        client.send(number, packed)
        client.h2.end_stream(number)
    client.exchange()
    assert not served.waiting  # a thread is at work
    await eventually(lambda: client.exchange() or len(served.waiting) + _num_ended(client) == 5)
    assert [len(data) for _, data in served.waiting] == [1_900_000]
    assert budget.used <= budget.limit
    assert sum(answer.ended and answer.status == 8 for answer in client.answers.values()) == 4
    served.release()
    await eventually(lambda: client.exchange() or budget.used == 0)


def _num_ended(client: Client) -> int:
    return sum(answer.ended for answer in client.answers.values())


async def test_calls_that_end_while_they_are_unpacked_leave_nothing() -> None:
    budget = Budget(300_000_000)
    served = Served(max_message_bytes=100_000_000, budget=budget)
    client = Client(served)
    packed = framed(gzip.compress(bytes(20_000_000)), 1)
    for _ in range(3):
        number = client.call("/t/Later", end=False, grpc_encoding="gzip")
        client.send(number, packed)
        client.h2.end_stream(number)
    client.exchange()
    assert budget.used > 0
    client.server.connection_lost(None)
    await eventually(lambda: budget.used == 0)
    assert not served.waiting


async def test_connections_take_turns_at_unpacking() -> None:
    served = Served(max_message_bytes=10_000_000)
    greedy, other = Client(served), Client(served)
    large, small = (framed(gzip.compress(bytes(size)), 1) for size in (4_000_000, 100_000))
    for client, packed in [(greedy, large)] * 5 + [(other, small)]:
        number = client.call("/t/Later", end=False, grpc_encoding="gzip")
        client.send(number, packed)
        client.h2.end_stream(number)
        client.exchange()
    await eventually(lambda: len(served.waiting) == 6)
    assert [len(data) for _, data in served.waiting].index(100_000) <= 2


async def eventually(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("timeout", ["9" * 5_000, "9" * 5_000 + "S", "5x", "", "\u00b2S"])
def test_a_timeout_that_is_none_is_quoted_in_part(timeout: str) -> None:
    text = failed(Client(Served()).ask("/t/Echo", b"x", grpc_timeout=timeout), Code.INVALID_ARGUMENT)
    assert "invalid grpc-timeout" in text
    assert len(text) < 300


def test_texts_repeat_little_of_what_was_sent() -> None:
    served = Served()
    texts = [
        failed(Client(served).ask("/t/" + "x" * 5_000, b"x"), Code.UNIMPLEMENTED),
        failed(
            raw(Client(served), "/t/Echo", framed(b"x", 1), grpc_encoding="x" * 5_000), Code.UNIMPLEMENTED
        ),
    ]
    assert all(100 < len(text) < 400 for text in texts)
