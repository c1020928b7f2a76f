"""No 64 KiB that a caller sends keep the event loop for long, or take more than 16 MiB of memory.

The promise is 10 ms. `benchmarks.abuse` measures it; milliseconds depend on the machine and on what else
it does. These tests compare with a reference, which is measured in turn with each request: the time in
which the standard library reads 64 KiB of numbers, 1 ms on two cores of an AMD EPYC. A request that is
quadratic, or slow for each element, takes a larger multiple of it on every machine.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hopline.config.schema import Config
from hopline.transports.compression import decompress
from hopline.transports.grpc import GrpcApp
from hopline.transports.http import HttpApp
from hopline.transports.http_bodies import Reading
from hopline.types import Deliver, ScoreRequest
from tests.fake_service import FakeService
from tests.thorough import thorough
from tests.transports import hostile
from tests.transports.hostile import Hostile
from turnserve.grpc.status import StatusCode
from turnserve.http1.messages import Pending, Request, Response

#: Processor time of the loop's thread, in times of the reference. The worst of 8,000 requests took 5; one
#: disturbed measurement was 8.
MOST_TIMES = 16
MOST_BYTES = 16 * 2**20
#: Measurements of which the fastest counts: other programs only add to a thread's time.
ROUNDS = 8
#: 64 KiB of JSON that the reference reads.
NUMBERS = json.dumps([number * 7919 % 1_000_003 / 7 for number in range(3_500)])
#: Bytes of an answer: what an error says, with nothing of what was sent but a few names.
MOST_ANSWER = 16 * 1024


class Silent(FakeService):
    """Takes every request and answers none: what is measured is what it takes to read them."""

    def submit(self, request: ScoreRequest, deliver: Deliver) -> Any:
        return self

    def cancel(self) -> None:
        """Nothing waits."""

    async def load(self, model: str, **parameters: Any) -> None:
        """Nothing to load."""

    async def begin_rollout(self, request: Any) -> None:
        """Nothing to begin."""

    async def decide_rollout(self, *names: Any) -> None:
        """Nothing to decide."""


class Call:
    """Of gRPC, without a connection."""

    client = deadline = None
    is_open = True

    def __init__(self) -> None:
        self.on_gone: Any = None
        self.code = StatusCode.OK
        self.text = ""

    def finish(self, code: StatusCode, text: str = "", trailers: Any = ()) -> None:
        self.code, self.text = code, text

    def metadata(self, name: str) -> None:
        return None


class Loop:
    """Both transports in a loop, and what they use of its thread."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        service = Silent(Config())
        self.runner.run(service.start())
        self.http = self.runner.run(self._app(service))
        self.infer = GrpcApp(service).methods()[b"/inference.GRPCInferenceService/ModelInfer"].begin

    @staticmethod
    async def _app(service: Silent) -> HttpApp:
        return HttpApp(service, Config())

    async def over_http(self, sent: Hostile) -> tuple[float, int]:
        """Seconds on the loop, and bytes of the answer."""
        headers = {b"content-encoding": sent.encoding.encode()} if sent.encoding else {}
        if sent.json_length:
            headers[b"inference-header-content-length"] = sent.json_length
        begun = time.thread_time()
        answer = self.http(Request(b"POST", sent.target, headers, sent.body))
        took = time.thread_time() - begun
        if isinstance(answer, Reading):
            read, handled = [], answer._answer
            # What goes on the loop once the body was read is timed too; what goes on beside it is not.

            def timed(reading: asyncio.Future[None]) -> Response | Pending:
                begun = time.thread_time()
                found = handled(reading)
                read.append(time.thread_time() - begun)
                return found

            answer._answer = timed
            await asyncio.wait([answer._reading])
            await asyncio.sleep(0)
            took += sum(read)
            assert read
        if isinstance(answer, Pending):
            answer.cancel()
            await asyncio.sleep(0)
            answer = answer.response or Response(b"")
        assert answer.status in (200, 400, 413, 415, 501)
        return took, len(answer.body)

    async def over_grpc(self, sent: Hostile) -> tuple[float, int]:
        """The same of a call whose message is decompressed."""
        call, message = Call(), sent.body
        if sent.encoding:
            try:
                message = decompress(sent.encoding, sent.body, Config().server.max_body_bytes)
            except ValueError:  # more than may become of it
                return 0.0, 0
        others = asyncio.all_tasks()
        begun = time.thread_time()
        self.infer(call, message)  # type: ignore[arg-type]
        if reading := asyncio.all_tasks() - others:  # a large message is read in a thread
            await asyncio.wait(reading)
        took = time.thread_time() - begun
        assert call.code in (StatusCode.OK, StatusCode.INVALID_ARGUMENT)
        return took, len(call.text)


def reference() -> float:
    """Seconds that the standard library takes to read 64 KiB."""
    begun = time.thread_time()
    json.loads(NUMBERS)
    return time.thread_time() - begun


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    made = Loop()
    for place in hostile.PLACES[:2]:  # kernels and decoders, as a server has them
        made.runner.run(made.over_http(hostile.http(place, b"1", "gzip", closed=True)))
    made.runner.run(made.over_grpc(hostile.grpc("inputs", "gzip", 0)))
    gc.collect()
    gc.freeze()  # as a server does: it does not collect what it began with
    yield made
    made.runner.close()


def held(loop: Loop, ask: Callable[[Hostile], Any], sent: Hostile) -> None:
    """Ask until one answer was fast enough, at most `ROUNDS` times; then look at the memory of one more."""
    assert len(sent.body) <= hostile.SENT_BYTES
    took, unit = math.inf, math.inf
    for _ in range(ROUNDS):
        unit = min(unit, *(reference() for _ in range(3)))
        seconds, size = loop.runner.run(ask(sent))
        assert size <= MOST_ANSWER
        if (took := min(took, seconds)) <= MOST_TIMES * unit:
            break
    assert took <= MOST_TIMES * unit, f"{took / unit:.0f} times the reference of {1e3 * unit:.2f} ms"
    tracemalloc.start()
    try:
        loop.runner.run(ask(sent))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= MOST_BYTES


encodings = st.sampled_from(["", "gzip", "deflate"])
lasting = settings(
    max_examples=thorough(15, 60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@lasting
@example(place=(hostile.SCORE, b'{"nodes":[', b"]}"), unit=b"0", encoding="", closed=True)
@example(place=(hostile.SCORE, b'{"inline":[', b"]}"), unit=b'{"features":[]}', encoding="", closed=True)
@example(place=(hostile.LOAD, b'{"parameters":{"groups":[', b"]}}"), unit=b"[]", encoding="", closed=True)
@given(
    place=st.sampled_from(hostile.PLACES),
    unit=st.sampled_from(hostile.UNITS),
    encoding=encodings,
    closed=st.booleans(),
)
def test_bodies_of_json_do_not_hold_the_loop(
    loop: Loop, place: tuple[bytes, bytes, bytes], unit: bytes, encoding: str, closed: bool
) -> None:
    held(loop, loop.over_http, hostile.http(place, unit, encoding, closed=closed))


@pytest.mark.parametrize("place", [place for place in hostile.PLACES if place[0] == hostile.INFER])
def test_megabytes_of_blanks_in_a_tensor_do_not_hold_the_loop(
    loop: Loop, place: tuple[bytes, bytes, bytes]
) -> None:
    held(loop, loop.over_http, hostile.http(place, b" ", "gzip", closed=True))


@lasting
@given(
    tensor=st.sampled_from(
        [
            ("BYTES", b"\0\0\0\0"),
            ("BYTES", b"\1\0\0\0a"),
            ("INT8", b"\1"),
            ("FP16", b"\0\x3c"),
            ("FP32", b"\0" * 4),
        ]
    ),
    shape=st.sampled_from([[0], [0, 1], [1, 0], [0, 2], [4096, 0], [2**40, 0]]),
    encoding=encodings,
)
def test_binary_tensors_do_not_hold_the_loop(
    loop: Loop, tensor: tuple[str, bytes], shape: list[int], encoding: str
) -> None:
    held(loop, loop.over_http, hostile.binary(*tensor, shape, encoding))


@lasting
@given(kind=st.sampled_from(list(hostile.MESSAGES)), encoding=encodings, seed=st.integers(0, 9))
def test_messages_of_protobuf_do_not_hold_the_loop(loop: Loop, kind: str, encoding: str, seed: int) -> None:
    held(loop, loop.over_grpc, hostile.grpc(kind, encoding, seed))
