"""Texts that another server generates, which speaks OpenAI's protocol: vLLM, llama.cpp, TGI, a Hopline.

    begin ─► POST, streamed ─► events ─► parts
               │                 └─ none for `_STALL_S`, or cut off before the finish: the text fails
               └─ refused, unreachable: the text fails; after several in a row the breaker opens

A cancelled text closes its connection, by which such servers know that no caller reads any more.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import msgspec

from hopline.errors import (
    BadRequest,
    HoplineError,
    ModelNotReady,
    Overloaded,
    RuntimeFailure,
    Unavailable,
)
from hopline.features.breaker import BreakerPolicy, CircuitBreaker
from hopline.generate import wire
from hopline.generate.engine import EngineInfo
from hopline.generate.request import Prompt
from hopline.generate.spec import GenerativeSpec

log = logging.getLogger(__name__)

_CONNECT_S = 5.0
#: Between two pieces of a text, and to the first one.
_STALL_S = 60.0
#: Of one event; longer ones are no text.
_LONGEST_EVENT = 2**20
_SHOWN = 300
#: Passed on where they differ from their defaults.
_PASSED = (
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "ignore_eos",
)
_BREAKER = BreakerPolicy(max_in_a_row=5, pause_s=1.0, probe_s=30.0)


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode


class Upstream:
    """See the module; a `Generator`.

    Args:
        spec: of the version.
        transport: for tests.
        stall_s: in place of `_STALL_S`.
        clock: seconds, monotonic.

    Attributes:
        breaker: stops requests to an upstream that fails.
    """

    def __init__(
        self,
        spec: GenerativeSpec,
        transport: httpx2.AsyncBaseTransport | None = None,
        stall_s: float = _STALL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = EngineInfo("openai", spec.url, spec.context_tokens, 1, 0)
        self.state: wire.Stats | None = None
        self.reason = ""
        self._spec = spec
        self._transport = transport
        self._stall_s = stall_s
        self._clock = clock
        self.breaker = CircuitBreaker(_BREAKER)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._numbers = 0
        self._http: httpx2.AsyncClient | None = None

    async def start(self) -> None:
        """Open the client. The upstream is not asked: it may start later than this server.

        Raises: ModelNotReady: the environment lacks its key.
        """
        headers = {}
        if self._spec.api_key_env:
            key = os.environ.get(self._spec.api_key_env)
            if not key:
                raise ModelNotReady(
                    f"{self._spec.name}: the environment variable {self._spec.api_key_env} with the "
                    "upstream's key is not set"
                )
            headers["authorization"] = f"Bearer {key}"
        self._http = httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(self._stall_s, connect=_CONNECT_S, pool=_CONNECT_S),
            limits=httpx2.Limits(max_connections=None),
            transport=self._transport,
            trust_env=False,
        )

    def begin(
        self, prompt: Prompt, lane: int, left_s: float, on_part: Callable[[wire.Part], object]
    ) -> int:
        """As `Generator.begin`.

        Raises: Unavailable: the breaker is open.
        """
        began = self._clock()
        if not self.breaker.allow(began):
            raise Unavailable(f"{self._spec.name}: its upstream fails; it is tried again in a moment")
        self._numbers += 1
        number = self._numbers
        task = asyncio.ensure_future(self._generate(number, prompt, began, on_part))
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))
        return number

    def cancel(self, number: int) -> None:
        """As `Generator.cancel`."""
        task = self._tasks.pop(number, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """End what runs, and close connections."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._http is not None:
            await self._http.aclose()

    async def _generate(
        self, number: int, prompt: Prompt, began: float, on_part: Callable[[wire.Part], object]
    ) -> None:
        try:
            await self._stream(number, prompt, on_part)
        except asyncio.CancelledError:
            self.breaker.abandon(self._clock(), began)
            raise
        except HoplineError as error:
            is_its_fault = not isinstance(error, BadRequest | Overloaded)
            self.breaker.record(not is_its_fault, self._clock(), began)
            on_part(wire.Part(number, "", 0, error=wire.pack_error(error)))
        except httpx2.TransportError as error:
            self.breaker.record(False, self._clock(), began)
            what = f"{self._spec.name}: its upstream {_failure(error)}"
            on_part(wire.Part(number, "", 0, error=wire.pack_error(Unavailable(what))))
        except Exception as error:  # the boundary: whatever an upstream sends fails one text
            self.breaker.record(False, self._clock(), began)
            log.exception("%s: an answer of the upstream could not be read", self._spec.name)
            failure = RuntimeFailure(f"the upstream's answer could not be read: {type(error).__name__}")
            on_part(wire.Part(number, "", 0, error=wire.pack_error(failure)))
        else:
            self.breaker.record(True, self._clock(), began)

    async def _stream(self, number: int, prompt: Prompt, on_part: Callable[[wire.Part], object]) -> None:
        assert self._http is not None
        path = "chat/completions" if prompt.messages else "completions"
        async with self._http.stream(
            "POST", f"{self._spec.url}/{path}", json=body_of(prompt, self._spec.upstream_model)
        ) as response:
            if response.status_code != 200:
                raise _refusal(response.status_code, (await response.aread())[: 4 * _SHOWN])
            last = await self._parts(number, response.aiter_bytes(), on_part)
        on_part(last)

    async def _parts(
        self, number: int, data: AsyncIterator[bytes], on_part: Callable[[wire.Part], object]
    ) -> wire.Part:
        """Pass the pieces on; returns the last one, which is passed on after the usage is known."""
        finish, num_tokens, usage = "", 0, _Usage()
        async for event in _events(data):
            if event.error is not None:
                raise RuntimeFailure(f"the upstream failed: {_said(event.error)}")
            usage = event.usage or usage
            for choice in event.choices[:1]:
                text = (choice.delta.content if choice.delta is not None else choice.text) or ""
                logprobs = _logprobs(choice.logprobs)
                finish = choice.finish_reason or finish
                if text or logprobs:
                    num_tokens += max(1, len(logprobs))
                    on_part(wire.Part(number, text, max(1, len(logprobs)), logprobs))
        if not finish:
            raise RuntimeFailure("the upstream's stream was cut off before the end of the text")
        left = max(0, usage.completion_tokens - num_tokens)
        return wire.Part(number, "", left, finish=finish, prompt_tokens=usage.prompt_tokens)


def body_of(prompt: Prompt, model: str) -> dict[str, Any]:
    """The body of a request to an upstream; what has its default is left out."""
    sampling = prompt.sampling
    body: dict[str, Any] = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    if prompt.messages:
        body["messages"] = msgspec.json.decode(prompt.messages)
    else:
        body["prompt"] = prompt.text
    defaults = type(sampling)()
    for name in _PASSED:
        value = getattr(sampling, name)
        if value != getattr(defaults, name):
            body[name] = value
    body |= {"temperature": sampling.temperature, "seed": sampling.seed}
    if sampling.max_tokens:
        body["max_tokens"] = sampling.max_tokens
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.logprobs:
        body["logprobs"] = True if prompt.messages else 0
    return body


async def _events(data: AsyncIterator[bytes]) -> AsyncIterator[_Event]:
    """The events of a stream, until it says that it is done or ends.

    Raises: RuntimeFailure: what comes is no stream of events.
    """
    held = b""
    async for piece in data:
        *lines, held = (held + piece).split(b"\n")
        if len(held) > _LONGEST_EVENT:
            raise RuntimeFailure(f"the upstream sent an event of more than {_LONGEST_EVENT} bytes")
        for line in lines:
            line = line.strip()
            if not line.startswith(b"data:"):
                continue
            content = line[5:].strip()
            if content == b"[DONE]":
                return
            try:
                yield _decode_event(content)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise RuntimeFailure(f"the upstream sent an invalid event: {error}") from None


def _logprobs(found: dict[str, Any] | None) -> tuple[float, ...]:
    if not found:
        return ()
    content = found.get("content")
    if isinstance(content, list):
        return tuple(float(each["logprob"]) for each in content)
    return tuple(float(each) for each in found.get("token_logprobs") or ())


def _refusal(status: int, body: bytes) -> HoplineError:
    said = _said(body.decode("utf-8", "replace"))
    if status == 429:
        return Overloaded(f"the upstream takes no more requests now: {said}", 1.0)
    if status in (400, 413, 415, 422):
        return BadRequest(f"the upstream refuses the request: {said}")
    return Unavailable(f"the upstream answered with status {status}: {said}")


def _said(error: Any) -> str:
    """What an error says, short."""
    if isinstance(error, str):
        try:
            error = msgspec.json.decode(error)
        except msgspec.MsgspecError:
            return str(error)[:_SHOWN]
    if isinstance(error, dict):
        inner = error.get("error", error)
        error = inner.get("message", inner) if isinstance(inner, dict) else inner
    return str(error)[:_SHOWN]


def _failure(error: httpx2.TransportError) -> str:
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return "cannot be reached"
    if isinstance(error, httpx2.TimeoutException):
        return "sent nothing for too long"
    return f"broke the connection off ({type(error).__name__})"
