"""Bodies of OpenAI's requests, and the rows of a scoring request that they mean.

A parameter that is not known is refused, and so is one that the engines cannot keep to: an answer that
ignored it would be a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
import orjson

from hopline.errors import BadRequest, quoted
from hopline.transports.json_body import decode_body
from hopline.types import ScoreRequest, ScoreResult
from hopline_generate.openai.answers import Form
from hopline_generate.request import MAX_ROWS, read_stop

GENERATE_EXAMPLE = '{"text_input": "Once upon a time", "parameters": {"max_tokens": 20}}'


class GenerateBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /v2/models/<model>/generate.

    Attributes:
        parameters: columns of a row of the model, such as `max_tokens` and `temperature`.
    """

    text_input: str
    id: str | None = None
    parameters: dict[str, Any] | None = None


class Generated(msgspec.Struct):
    """The answer; a stream has one for each piece.

    Attributes:
        details: `finish_reason`, `prompt_tokens`, `completion_tokens`, and `logprobs` if the parameters ask
            for them: [text, log probability] of each token. In the last one of a stream.
    """

    model_name: str
    model_version: str
    text_output: str
    id: str | msgspec.UnsetType = msgspec.UNSET
    details: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


_decode: Callable[[bytes | memoryview], GenerateBody] = msgspec.json.Decoder(GenerateBody).decode


def decode_generate(body: bytes) -> GenerateBody:
    """Decode a body. Raises: BadRequest: what is wrong with it, and where."""
    return decode_body(body, _decode, GenerateBody, example=GENERATE_EXAMPLE)


def generate_request(
    model: str, version: str | None, body: GenerateBody, deadline: float | None, request_id: str
) -> ScoreRequest:
    """The transport-neutral request.

    Raises: BadRequest: a parameter that is not kept to.
    """
    parameters = dict(body.parameters or {})
    for name in ("prompt", "messages", "stream"):
        if name in parameters:
            raise BadRequest(f"parameters: {name!r} is not one; send text_input, and choose the path", name)
    stops = read_stop(parameters.pop("stop", None))
    columns: dict[str, Any] = {name: [value] for name, value in parameters.items() if value is not None}
    if stops:
        columns["stop"] = [msgspec.json.encode(stops).decode()]
    return ScoreRequest(
        model,
        version=version,
        columns={"prompt": [body.text_input], **columns},
        deadline=deadline,
        request_id=request_id,
    )


class OipForm(Form):
    """Encoding of the extension's answers.

    Args:
        model, version: as it was asked for; `version` "" where none was.
        id: of the request, returned where it had one.
    """

    is_oip = True

    def __init__(self, model: str, version: str, id: str | None) -> None:
        super().__init__(False, "", 0, model)
        self._names: dict[str, Any] = {"model_name": model, "model_version": version}
        if id is not None:
            self._names["id"] = id

    def whole(self, result: ScoreResult, per_prompt: int) -> bytes:
        """As `Form.whole`."""
        names = {**self._names, "model_version": result.version}
        text = result.outputs["text"][0]
        return orjson.dumps({**names, "text_output": text, "details": _details(result)})

    def event(
        self, row: int, text: str, logprobs: dict[str, Any] | None, finish: str, *, is_first: bool
    ) -> bytes:
        """As `Form.event`; the finish comes at the end."""
        if finish and not text:
            return b""
        return b"data: %b\n\n" % orjson.dumps({**self._names, "text_output": text})

    def ending(self, result: ScoreResult, per_prompt: int, *, has_usage: bool) -> bytes:
        """As `Form.ending`."""
        names = {**self._names, "model_version": result.version}
        return b"data: %b\n\n" % orjson.dumps({**names, "text_output": "", "details": _details(result)})


def _details(result: ScoreResult) -> dict[str, Any]:
    details = {
        "finish_reason": result.outputs["finish_reason"][0],
        "prompt_tokens": int(result.outputs["prompt_tokens"][0]),
        "completion_tokens": int(result.outputs["completion_tokens"][0]),
    }
    if "logprobs" in result.outputs:
        details["logprobs"] = orjson.loads(result.outputs["logprobs"][0])
    return details


_OF_SEED = (
    "Start of the random draws. The text depends on the model, the prompt, the parameters and the seed "
    "alone. With a temperature above 0, it is generated alone, after the texts before it."
)


class ContentPart(msgspec.Struct, forbid_unknown_fields=True):
    """A piece of a message; only text is read."""

    type: str
    text: str = ""


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """One turn of a conversation.

    Attributes:
        name, tool_call_id, refusal, annotations, reasoning_content: without effect; clients send back the
            messages that a model wrote.
        tool_calls, function_call, audio: refused unless empty.
    """

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None
    audio: Any = None


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Fields of a stream besides text."""

    include_usage: bool = False


class ResponseFormat(msgspec.Struct):
    """The form of the text; only "text" is known."""

    type: str = "text"


class Common(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Parameters of both kinds.

    Attributes:
        model: a model, or "model/version".
        n: texts for each prompt.
        repeatable: false lets a text with a seed run with others, and be another one next time.
        top_k, min_p, repetition_penalty, ignore_eos: as in vLLM's API.
        timeout_ms, priority, key, tags: as in Hopline's own scoring requests.
    """

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    seed: Annotated[int | None, msgspec.Meta(description=_OF_SEED)] = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    repeatable: bool | None = None
    timeout_ms: float | None = None
    priority: Literal["high", "normal", "low"] | None = None
    key: str | None = None
    tags: tuple[str, ...] | None = None


class ChatBody(Common, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None


class CompletionBody(Common, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/completions."""

    prompt: str | list[str]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None


_decode_chat: Callable[[bytes | memoryview], ChatBody] = msgspec.json.Decoder(ChatBody).decode
_decode_completion: Callable[[bytes | memoryview], CompletionBody] = msgspec.json.Decoder(
    CompletionBody
).decode
CHAT_EXAMPLE = '{"model": "slm", "messages": [{"role": "user", "content": "Hello"}]}'
COMPLETION_EXAMPLE = '{"model": "slm", "prompt": "Once upon a time"}'
_NUMBERS = (
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_k",
    "min_p",
    "repetition_penalty",
    "ignore_eos",
    "repeatable",
)


def decode_chat(body: bytes) -> ChatBody:
    """Decode a body. Raises: BadRequest: what is wrong with it, and where."""
    return decode_body(body, _decode_chat, ChatBody, example=CHAT_EXAMPLE)


def decode_completion(body: bytes) -> CompletionBody:
    """Decode a body. Raises: BadRequest: what is wrong with it, and where."""
    return decode_body(body, _decode_completion, CompletionBody, example=COMPLETION_EXAMPLE)


def model_of(body: Common) -> tuple[str, str | None]:
    """Model and version; None is the one that serves."""
    model, slash, version = body.model.partition("/")
    return model, version if slash else None


def chat_request(body: ChatBody, deadline: float | None, request_id: str) -> ScoreRequest:
    """The transport-neutral request of a chat.

    Raises: BadRequest: a parameter that is not kept to.
    """
    if body.tools or body.tool_choice not in (None, "none", "auto"):
        raise BadRequest("tools: calls of tools are not supported", "tools")
    if body.response_format is not None and body.response_format.type != "text":
        raise BadRequest(
            f"response_format: type {quoted(body.response_format.type)} is not supported; only text is",
            "response_format",
        )
    if body.top_logprobs:
        raise BadRequest(
            "top_logprobs: engines report the log probability of chosen tokens only; send logprobs alone",
            "top_logprobs",
        )
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise BadRequest("max_tokens and max_completion_tokens differ; send one of them", "max_tokens")
    messages = [
        {"role": message.role, "content": _content(message, at)} for at, message in enumerate(body.messages)
    ]
    longest = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
    prompts = [msgspec.json.encode(messages).decode()]
    return _request(body, "messages", prompts, longest, bool(body.logprobs), deadline, request_id)


def completion_request(body: CompletionBody, deadline: float | None, request_id: str) -> ScoreRequest:
    """The transport-neutral request of a completion.

    Raises: BadRequest: a parameter that is not kept to.
    """
    prompts = body.prompt if isinstance(body.prompt, list) else [body.prompt]
    if not prompts:
        raise BadRequest("prompt: the list is empty", "prompt")
    for name, value in (("echo", body.echo), ("suffix", body.suffix)):
        if value:
            raise BadRequest(f"{name}: not supported", name)
    if body.best_of not in (None, 1, body.n):
        raise BadRequest("best_of: not supported; n gives several texts", "best_of")
    if body.logprobs:
        raise BadRequest(
            "logprobs: the engines report the log probability of the chosen token only; send logprobs: 0",
            "logprobs",
        )
    longest = 16 if body.max_tokens is None else body.max_tokens  # OpenAI's default here
    return _request(body, "prompt", prompts, longest, body.logprobs is not None, deadline, request_id)


def _content(message: Message, at: int) -> str:
    refused = {
        "tool_calls": message.tool_calls,
        "function_call": message.function_call,
        "audio": message.audio,
    }
    for name, value in refused.items():
        if value:
            raise BadRequest(f"messages[{at}]: {name} is not supported", "messages")
    content = message.content
    if isinstance(content, str):
        return content
    if content is None:
        raise BadRequest(f"messages[{at}]: content is missing; send text", "messages")
    for part in content:
        if part.type != "text":
            raise BadRequest(
                f"messages[{at}]: content is of type {quoted(part.type)}; send text", "messages"
            )
    return "".join(part.text for part in content)


def _request(
    body: Common,
    name: str,
    prompts: list[str],
    longest: int | None,
    logprobs: bool,
    deadline: float | None,
    request_id: str,
) -> ScoreRequest:
    if body.logit_bias:
        raise BadRequest("logit_bias: not supported", "logit_bias")
    count = 1 if body.n is None else body.n
    rows = len(prompts) * count
    if count < 1 or rows > MAX_ROWS:
        raise BadRequest(
            f"n: {count} texts for each of {len(prompts)} prompts; 1 to {MAX_ROWS} in all", "n"
        )
    columns: dict[str, list[Any]] = {name: [prompt for prompt in prompts for _ in range(count)]}
    if body.seed is not None:
        columns["seed"] = [_seed(body.seed, at) for at in range(count)] * len(prompts)
    if longest is not None:
        columns["max_tokens"] = [longest] * rows
    stops = read_stop(body.stop)
    if stops:
        columns["stop"] = [msgspec.json.encode(stops).decode()] * rows
    if logprobs:
        columns["logprobs"] = [True] * rows
    for parameter in _NUMBERS:
        value = getattr(body, parameter)
        if value is not None:
            columns[parameter] = [value] * rows
    model, version = model_of(body)
    outputs = ("text", "finish_reason", "prompt_tokens", "completion_tokens")
    return ScoreRequest(
        model,
        version=version,
        columns=columns,
        outputs=(*outputs, "logprobs") if logprobs else outputs,
        deadline=deadline,
        request_id=request_id,
        priority=body.priority or "normal",
        key=body.key or body.user or "",
        tags=body.tags or (),
    )


def _seed(seed: int, at: int) -> int:
    """The seed of a prompt's text; within 64 bits, but one that is out of range itself is refused later."""
    return (seed + at + 2**63) % 2**64 - 2**63 if at else seed
