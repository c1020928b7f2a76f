"""An upstream that speaks OpenAI's protocol, well and badly: a server of the test, over a socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable

import pytest

from hopline.errors import BadRequest, HoplineError, Overloaded, Unavailable
from hopline.process.wire import unpack_error
from hopline.scheduling.policy import NORMAL
from hopline_generate import wire
from hopline_generate.request import Prompt, Sampling
from hopline_generate.spec import GenerativeSpec
from hopline_generate.upstream import Upstream

OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def event(text: str = "", finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7}}\n\n'
DONE = b"data: [DONE]\n\n"


class Server:
    """Answers every request with one script: bytes, and pauses until the client has gone."""

    def __init__(self) -> None:
        self.script: list[bytes | None] = []
        self.bodies: list[dict[str, object]] = []
        self.gone = asyncio.Event()
        self.url = ""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        self.bodies.append(json.loads(await reader.readexactly(length)))
        for step in self.script:
            if step is None:
                with contextlib.suppress(ConnectionResetError):  # it went without reading all
                    await reader.read()
                self.gone.set()
            else:
                writer.write(step)
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    found = Server()
    listener = await asyncio.start_server(found.talk, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    found.url = f"http://127.0.0.1:{port}/v1"
    yield found
    listener.close()
    await listener.wait_closed()


Make = Callable[..., Upstream]


@pytest.fixture
async def upstream(server: Server) -> AsyncIterator[Upstream]:
    spec = GenerativeSpec("slm", "1", "openai", url=server.url, upstream_model="theirs")
    found = Upstream(spec, stall_s=0.3)
    await found.start()
    yield found
    await found.close()


PROMPT = Prompt("", '[{"role": "user", "content": "Hi"}]', Sampling(20, 0.5, stop=("x",), seed=3))


async def ask(upstream: Upstream, prompt: Prompt = PROMPT) -> list[wire.Part]:
    parts: list[wire.Part] = []
    ended = asyncio.Event()

    def take(part: wire.Part) -> None:
        parts.append(part)
        if part.finish or part.error:
            ended.set()

    upstream.begin(prompt, NORMAL, 30.0, take)
    await asyncio.wait_for(ended.wait(), 20)
    return parts


def error_of(parts: list[wire.Part]) -> HoplineError:
    error = parts[-1].error
    assert error is not None
    return unpack_error(error)


async def test_a_text_is_passed_on_with_its_usage(server: Server, upstream: Upstream) -> None:
    # an event in two pieces, and two events in one
    first = event("Hel")
    server.script = [OK, first[:9], first[9:], event("lo") + event("", "length") + USAGE + DONE]
    parts = await ask(upstream)
    assert "".join(part.text for part in parts) == "Hello"
    assert parts[-1].finish == "length"
    assert parts[-1].prompt_tokens == 5
    assert sum(part.num_tokens for part in parts) == 7
    assert server.bodies == [
        {
            "model": "theirs",
            "stream": True,
            "stream_options": {"include_usage": True},
            "messages": [{"role": "user", "content": "Hi"}],
            "temperature": 0.5,
            "seed": 3,
            "max_tokens": 20,
            "stop": ["x"],
        }
    ]


def status(code: int, body: bytes = b'{"error": {"message": "no luck"}}') -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (code, len(body), body)


def usage(tokens: int) -> bytes:
    return b'data: {"usage": {"prompt_tokens": 1, "completion_tokens": %d}}\n\n' % tokens


def logprobs(value: str) -> bytes:
    return b'data: {"choices": [{"delta": {"content": "H"}, "logprobs": %b}]}\n\n' % value.encode()


@pytest.mark.parametrize(
    ("script", "kind", "said"),
    [
        ([status(400)], BadRequest, "no luck"),
        ([status(429)], Overloaded, "no luck"),
        ([status(500, b"<html>")], Unavailable, "status 500: <html>"),
        ([OK, event("Hel")], Unavailable, "cut off"),
        ([OK, event("Hel"), DONE], Unavailable, "cut off"),
        ([OK, event("Hel"), b'data: {"error": {"message": "out of memory"}}\n\n'], Unavailable, "memory"),
        ([OK, b"data: nonsense\n\n"], Unavailable, "an invalid event"),
        ([OK, b'data: {"choices": [{"text": "\xff"}]}\n\n'], Unavailable, "an invalid event"),
        ([OK, usage(-1)], Unavailable, "an invalid event"),
        ([OK, usage(10**12)], Unavailable, "an invalid event"),
        ([OK, logprobs('{"content": [{"token": "H"}]}')], Unavailable, "an invalid event"),
        ([OK, logprobs('{"token_logprobs": ["H"]}')], Unavailable, "an invalid event"),
        ([OK, b"data: " + b"x" * 2**21], Unavailable, "more than"),
        ([OK, event("la") * 41], Unavailable, "more than the 20 tokens of max_tokens"),
        ([OK.replace(b"text/event-stream", b"application/json"), b"{}"], Unavailable, "application/json"),
        ([OK, event("Hel"), None], Unavailable, "sent nothing for too long"),
        ([b"garbage\r\n\r\n"], Unavailable, "broke the connection off"),
        ([], Unavailable, "broke the connection off"),
    ],
)
async def test_what_goes_wrong_is_said(
    server: Server, upstream: Upstream, script: list[bytes | None], kind: type[HoplineError], said: str
) -> None:
    server.script = script
    error = error_of(await ask(upstream))
    assert type(error) is kind
    assert said in str(error)


@pytest.mark.parametrize(
    "rest",
    [
        [None],  # says no more, and does not close
        [],
        [USAGE],
        [b'data: {"choices": null, "usage": null}\n\n', DONE],
        [b'data: {"usage": {"prompt_tokens": null}}\n\n', DONE],
        [b'data: {"choices": [{"index": 1, "delta": {"content": "other"}}]}\n\n', DONE],
    ],
)
async def test_a_text_that_has_ended_is_complete_whatever_follows(
    server: Server, upstream: Upstream, rest: list[bytes | None]
) -> None:
    server.script = [OK, event("Hello"), event("", "stop"), *rest]
    parts = await ask(upstream)
    assert "".join(part.text for part in parts) == "Hello"
    assert parts[-1].finish == "stop"


async def test_the_end_of_an_endless_refusal_is_not_read(server: Server, upstream: Upstream) -> None:
    head = b"HTTP/1.1 500 X\r\ncontent-type: text/plain\r\n\r\n"
    server.script = [head, b"no luck " * 2**17, None]
    error = error_of(await ask(upstream))
    assert type(error) is Unavailable
    assert "status 500: no luck" in str(error)
    await asyncio.wait_for(server.gone.wait(), 10)


@pytest.mark.parametrize(
    ("header", "seconds"), [(b"17", 17), (b"", 1), (b"0", 1), (b"9" * 20, 3600), (b"Mon", 1)]
)
async def test_the_time_of_a_retry_is_that_of_the_upstream(
    server: Server, upstream: Upstream, header: bytes, seconds: float
) -> None:
    for code in (429, 503):
        server.script = [status(code).replace(b" X\r\n", b" X\r\nretry-after: %b\r\n" % header)]
        error = error_of(await ask(upstream))
        assert isinstance(error, Overloaded | Unavailable)
        assert error.retry_after_s == seconds


async def test_cancelling_closes_the_connection(server: Server, upstream: Upstream) -> None:
    server.script = [OK, event("Hel"), None]
    begun = asyncio.Event()
    number = upstream.begin(PROMPT, NORMAL, 30.0, lambda part: begun.set())
    await asyncio.wait_for(begun.wait(), 10)
    upstream.cancel(number)
    await asyncio.wait_for(server.gone.wait(), 10)


async def test_breaker_opens_after_failures_and_not_after_refusals(
    server: Server, upstream: Upstream
) -> None:
    server.script = [status(400)]
    for _ in range(8):
        await ask(upstream)
    server.script = [status(500)]
    while len(server.bodies) < 16 and upstream.breaker.state == "closed":
        await ask(upstream)
    with pytest.raises(Unavailable, match="upstream fails"):
        await ask(upstream)
    assert len(server.bodies) < 16
