"""Texts that another server generates, which speaks OpenAI's protocol: vLLM, llama.cpp, TGI, a Hopline.

    begin ─► POST, streamed ─► events ─► parts
               │                 └─ none for `_STALL_S`, or cut off before the finish: the text fails
               └─ refused, unreachable: the text fails; after several in a row the breaker opens

All that an upstream does wrong is `Unavailable`: another server, or a retry, may give the text.

A cancelled text closes its connection, by which such servers know that no caller reads any more.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

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
from hopline.process.wire import pack_error
from hopline_generate import wire
from hopline_generate.engine import EngineInfo
from hopline_generate.request import MOST_TOKENS, Prompt
from hopline_generate.spec import GenerativeSpec

log = logging.getLogger("hopline.generate")

_CONNECT_S = 5.0
#: Between two pieces of a text, and to the first one.
_STALL_S = 60.0
#: From the end of a text to its usage, which is not worth a longer wait.
_USAGE_S = 2.0
#: Of one event, and of an error's body, in bytes; longer ones are no text and no reason.
_LONGEST_EVENT, _LONGEST_ERROR = 2**20, 2**16
#: Characters of an upstream's reason that a caller is shown.
_SHOWN = 300
#: Seconds that an upstream may ask to wait.
_LONGEST_RETRY_S = 3600.0
#: An event may have less than a token, as where a character is sent in pieces: at most two are one token.
_EVENTS_PER_TOKEN = 2
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


class _Logprob(msgspec.Struct):
    logprob: float


class _Logprobs(msgspec.Struct):
    """Of a chat (`content`), or of a completion."""

    content: list[_Logprob] | None = None
    token_logprobs: list[float] | None = None

    def values(self) -> tuple[float, ...]:
        if self.content is not None:
            return tuple(each.logprob for each in self.content)
        return tuple(self.token_logprobs or ())


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class _Usage(msgspec.Struct):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
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
        headers = {"accept-encoding": "identity"}  # compressing would hold events back
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
            on_part(wire.Part(number, "", 0, error=pack_error(error)))
        except httpx2.TransportError as error:
            self.breaker.record(False, self._clock(), began)
            what = f"{self._spec.name}: its upstream {_failure(error)}"
            on_part(wire.Part(number, "", 0, error=pack_error(Unavailable(what))))
        except Exception as error:  # the boundary: whatever an upstream sends fails one text
            self.breaker.record(False, self._clock(), began)
            log.exception("%s: an answer of the upstream could not be read", self._spec.name)
            failure = RuntimeFailure(f"the upstream's answer could not be read: {type(error).__name__}")
            on_part(wire.Part(number, "", 0, error=pack_error(failure)))
        else:
            self.breaker.record(True, self._clock(), began)

    async def _stream(self, number: int, prompt: Prompt, on_part: Callable[[wire.Part], object]) -> None:
        assert self._http is not None
        path = "chat/completions" if prompt.messages else "completions"
        async with self._http.stream(
            "POST", f"{self._spec.url}/{path}", json=body_of(prompt, self._spec.upstream_model)
        ) as response:
            if response.status_code != 200:
                raise _refusal(response, await _beginning(response.aiter_bytes()))
            kind = response.headers.get("content-type", "nothing")
            if not kind.startswith("text/event-stream"):
                raise Unavailable(f"the upstream answered with {kind:.80}, not with text/event-stream")
            text = _Streamed(number, prompt.sampling.max_tokens or MOST_TOKENS, on_part)
            try:
                async with asyncio.timeout(None) as patience:
                    async for event in _events(response.aiter_bytes()):
                        text.take(event)
                        if text.finish and patience.when() is None:
                            end = asyncio.get_running_loop().time() + min(_USAGE_S, self._stall_s)
                            patience.reschedule(end)
            except (TimeoutError, httpx2.TransportError):
                if not text.finish:
                    raise
        on_part(text.last())


class _Streamed:
    """Present result of a text.

    Args:
        number: of the text.
        most: tokens that were asked for.
        on_part: takes the pieces; the last one follows when the usage is known.

    Attributes:
        finish: why it ended; "" before.
    """

    def __init__(self, number: int, most: int, on_part: Callable[[wire.Part], object]) -> None:
        self.finish = ""
        self._number = number
        self._most = most
        self._on_part = on_part
        self._num_tokens = self._num_events = 0
        self._usage = _Usage()

    def take(self, event: _Event) -> None:
        """Pass an event on.

        Raises: Unavailable: it has an error, or the text is longer than it may be.
        """
        if event.error is not None:
            raise Unavailable(f"the upstream failed: {_said(event.error)}")
        self._usage = event.usage or self._usage
        for choice in event.choices or ():
            if choice.index:  # one text was asked for
                continue
            text = (choice.delta.content if choice.delta is not None else choice.text) or ""
            logprobs = () if choice.logprobs is None else choice.logprobs.values()
            self.finish = choice.finish_reason or self.finish
            if text or logprobs:
                num_tokens = max(1, len(logprobs))
                self._num_tokens += num_tokens
                self._num_events += 1
                if self._num_events > self._most * _EVENTS_PER_TOKEN:
                    raise Unavailable(f"the upstream sends more than the {self._most} tokens of max_tokens")
                self._on_part(wire.Part(self._number, text, num_tokens, logprobs))

    def last(self) -> wire.Part:
        """The last piece.

        Raises: Unavailable: the text has not ended.
        """
        if not self.finish:
            raise Unavailable("the upstream's stream was cut off before the end of the text")
        left = max(0, (self._usage.completion_tokens or 0) - self._num_tokens)
        prompt_tokens = self._usage.prompt_tokens or 0
        return wire.Part(self._number, "", left, finish=self.finish, prompt_tokens=prompt_tokens)


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

    Raises: Unavailable: what comes is no stream of events.
    """
    held = b""
    async for piece in data:
        *lines, held = (held + piece).split(b"\n")
        if len(held) > _LONGEST_EVENT:
            raise Unavailable(f"the upstream sent an event of more than {_LONGEST_EVENT} bytes")
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
                raise Unavailable(f"the upstream sent an invalid event: {error}") from None


async def _beginning(data: AsyncIterator[bytes]) -> bytes:
    """The body of an error, of which an endless one has no more than a beginning."""
    found = b""
    async for piece in data:
        found += piece[:_LONGEST_ERROR]
        if len(found) >= _LONGEST_ERROR:
            break
    return found


def _refusal(response: httpx2.Response, body: bytes) -> HoplineError:
    status, said = response.status_code, _said(body.decode("utf-8", "replace"))
    retry_after_s = _seconds(response.headers.get("retry-after", ""))
    if status == 429:
        return Overloaded(f"the upstream takes no more requests now: {said}", retry_after_s)
    if status in (400, 413, 415, 422):
        return BadRequest(f"the upstream refuses the request: {said}")
    return Unavailable(f"the upstream answered with status {status}: {said}", retry_after_s)


def _seconds(retry_after: str) -> float:
    """Seconds of a Retry-After header; 1 where it is missing, a date, or no number."""
    if not (retry_after.isascii() and retry_after.isdigit()):
        return 1.0
    return min(max(1.0, float(retry_after[:9])), _LONGEST_RETRY_S)


def _said(error: Any) -> str:
    """Short text of an error."""
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
