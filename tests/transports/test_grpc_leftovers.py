"""Nothing of a call or a connection that ended stays, though the garbage collector never runs."""

from __future__ import annotations

import asyncio
import gc
import gzip
import logging
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hopline.config.reader import load_config
from hopline.transports.grpc import HEALTH, INFERENCE, GrpcApp
from hopline.transports.grpc_stream import InferStream, _Place
from packages.turnserve.tests import raw_http2
from tests.fake_service import FakeService
from tests.transports.grpc_rig import endpoint_of
from tests.transports.http2_rig import Client, Served
from tests.transports.test_grpc_call import eventually, framed, infer_request
from turnserve.budget import Budget
from turnserve.grpc.call import Call
from turnserve.grpc.unpacking import Unpacking
from turnserve.http2.connection import Http2Connection
from turnserve.http2.frames import ErrorCode, rst_stream
from turnserve.http2.head import Head, HeadReader
from turnserve.http2.stream import Stream

KINDS = (Http2Connection, Stream, Call, InferStream, _Place, Unpacking, Head, HeadReader)
INFER, STREAM = f"/{INFERENCE}/ModelInfer", f"/{INFERENCE}/ModelStreamInfer"


def request(model: str = "sage", num_nodes: int = 1) -> bytes:
    made = infer_request([1] * num_nodes)
    made.model_name = model
    if model == "slow":
        made.inputs.add(name="as_of", datatype="INT64", shape=[1]).contents.int64_contents.append(60_000)
    encoded: bytes = made.SerializeToString()
    return encoded


def packed(data: bytes) -> bytes:
    return framed(gzip.compress(data), 1)


#: path, and what is sent of a call that does not come to its end by itself
UNFINISHED: dict[str, tuple[str, bytes]] = {
    "no message": (INFER, b""),
    "a part of a message": (INFER, framed(bytes(100_000))[:50_000]),
    "a packed message": (INFER, packed(bytes(100_000))),
    "a call of a method that only names": (f"/{HEALTH}/Watch", framed(b"")),
    "a stream without message": (STREAM, b""),
    "a stream with a part of a message": (STREAM, framed(bytes(100_000))[:50_000]),
    "a stream whose requests wait": (STREAM, framed(request("slow")) * 100),
    "a stream whose packed requests wait": (STREAM, packed(request("slow")) * 100),
    "a stream with a large request": (STREAM, framed(request(num_nodes=70_000))),
    "a stream with a packed bomb": (STREAM, packed(bytes(900_000)) * 2),
}
#: The same of calls that are answered, or refused.
FINISHED: dict[str, tuple[str, bytes]] = {
    "a request": (INFER, framed(request())),
    "a packed request": (INFER, packed(request())),
    "a large request": (INFER, framed(request(num_nodes=70_000))),
    "a packed bomb": (INFER, packed(bytes(3_000_000))),
    "a request that waits": (INFER, framed(request("slow"))),
    "a model that fails": (INFER, framed(request("broken"))),
    "no model": (INFER, framed(request("absent"))),
    "no request": (INFER, framed(b"\xff")),
    "no message": (INFER, b"\0"),
    "two messages": (INFER, framed(request()) * 2),
    "unknown method": ("/t/No", framed(b"")),
    "health": (f"/{HEALTH}/Check", framed(b"")),
    "no health": (f"/{HEALTH}/Check", framed(b"\x0a\x01x")),
    "a stream": (STREAM, framed(request()) * 70),
    "a stream of failures": (STREAM, framed(request("broken")) + framed(request("absent"))),
    "a stream that breaks the rules": (STREAM, framed(request("slow")) + framed(b"\xff")),
    "a stream with two large requests": (STREAM, framed(request(num_nodes=70_000)) * 2),
}


@pytest.fixture
def uncollected() -> Iterator[Callable[[], dict[str, int]]]:
    """Objects of connections that there are more than before, by kind; there is no collector."""

    def count() -> Counter[str]:
        return Counter(type(each).__name__ for each in gc.get_objects() if type(each) in KINDS)

    logging.disable()  # pytest keeps what is logged, and errors with it
    gc.collect()
    gc.disable()
    before = count()
    try:
        yield lambda: dict(count() - before)
    finally:
        gc.enable()
        logging.disable(logging.NOTSET)


class Ends:
    """How a call may end."""

    @staticmethod
    def lost(client: Client) -> None:
        client.server.connection_lost(None)

    @staticmethod
    def reset(client: Client) -> None:
        for number in client.answers:
            client.raw(rst_stream(number, ErrorCode.CANCEL))
        client.server.connection_lost(None)

    @staticmethod
    def broken(client: Client) -> None:
        client.raw(b"\0\0\0\x07\0\0\0\0\1")
        assert client.transport.at_eof
        client.server.connection_lost(ConnectionResetError())

    @staticmethod
    def aborted(client: Client) -> None:
        client.server.abort()
        client.server.connection_lost(None)


def begun(path: str, sent: bytes, *, end: bool) -> tuple[Client, Budget, FakeService]:
    service, budget = FakeService(load_config()), Budget(20_000_000)
    served = Served()
    served.endpoint = endpoint_of(GrpcApp(service), max_message_bytes=2_000_000, budget=budget)
    client = Client(served)
    number = client.call(path, end=False, grpc_encoding="gzip")
    client.send(number, sent)
    if end:
        client.h2.end_stream(number)
    client.server.data_received(client.h2.data_to_send())
    return client, budget, service


async def served_by(client: Client, service: FakeService) -> None:
    """Wait for the answer, unless it is for ever; then the client goes."""
    await eventually(lambda: client.exchange() or service.num_waiting or client.server.idle)
    if service.num_waiting:
        Ends.reset(client)
    else:
        assert client.server.output.held.num_bytes == 0
        client.server.connection_lost(None)


@pytest.mark.parametrize("end", ["lost", "reset", "broken", "aborted"])
@pytest.mark.parametrize("what", UNFINISHED)
async def test_a_call_that_did_not_come_to_its_end_leaves_nothing(
    what: str, end: str, uncollected: Callable[[], dict[str, int]]
) -> None:
    client, budget, service = begun(*UNFINISHED[what], end=False)
    await asyncio.sleep(0)
    getattr(Ends, end)(client)
    del client
    await eventually(lambda: not uncollected() and not budget.used and not service.num_waiting)


@pytest.mark.parametrize("what", FINISHED)
async def test_a_call_leaves_nothing(what: str, uncollected: Callable[[], dict[str, int]]) -> None:
    client, budget, service = begun(*FINISHED[what], end=True)
    await served_by(client, service)
    del client
    await eventually(lambda: not uncollected() and not budget.used)


def test_unfinished_messages_of_closed_sockets_are_given_back(
    uncollected: Callable[[], dict[str, int]],
) -> None:
    """Over a real listener: what eight streams of each of ten clients hold is gone with the sockets."""
    loop = asyncio.new_event_loop()
    app = GrpcApp(FakeService(load_config()))
    endpoint = endpoint_of(app, max_message_bytes=2_000_000, budget=Budget(100_000_000))
    server = loop.run_until_complete(loop.create_server(endpoint, "127.0.0.1", 0))
    port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    tracemalloc.start()

    def attack() -> None:
        with raw_http2.Peer(port) as peer:
            for number in range(1, 17, 2):
                fields = [
                    (":method", "POST"),
                    (":scheme", "http"),
                    (":path", (INFER, STREAM)[number % 4 // 2]),
                ]
                fields += [("content-type", "application/grpc"), ("grpc-encoding", "gzip")]
                peer.send(raw_http2.frame(1, 4, number, raw_http2.block(*fields)))
                data = framed(bytes(100_000))[:-1]
                for start in range(0, len(data), 16_384):
                    peer.send(raw_http2.frame(0, 0, number, data[start : start + 16_384]))
            assert not raw_http2.verdicts(peer.frames())

    async def is_empty() -> None:
        await eventually(lambda: not endpoint.connections)

    def settle() -> int:
        asyncio.run_coroutine_threadsafe(is_empty(), loop).result()
        return tracemalloc.get_traced_memory()[0]

    try:
        attack()
        before = settle()
        for _ in range(10):
            attack()
        assert settle() - before < 200_000  # 8 MB were held
        assert endpoint.budget.used == 0
    finally:
        tracemalloc.stop()

        async def close() -> None:
            server.close()

        asyncio.run_coroutine_threadsafe(close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    left: Any = uncollected()
    assert not left
