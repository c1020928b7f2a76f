"""OpenAI's answers as types for `/openapi.json`, and their encoding."""

from __future__ import annotations

import functools
from typing import Any, Literal

import msgspec
import orjson

from hopline.types import ScoreResult


class Usage(msgspec.Struct):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatMessage(msgspec.Struct):
    """The model's turn."""

    role: Literal["assistant"]
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct):
    """One text."""

    index: int
    message: ChatMessage
    finish_reason: str
    logprobs: dict[str, Any] | None = None


class ChatCompletion(msgspec.Struct):
    """The answer of POST /v1/chat/completions; a stream has the same in pieces."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class TextChoice(msgspec.Struct):
    """One text."""

    index: int
    text: str
    finish_reason: str
    logprobs: dict[str, Any] | None = None


class Completion(msgspec.Struct):
    """The answer of POST /v1/completions; a stream has the same in pieces."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: Usage


def usage_of(result: ScoreResult, per_prompt: int) -> dict[str, int]:
    """Tokens of a result; `per_prompt` rows have the same prompt, which counts once."""
    prompts = int(result.outputs["prompt_tokens"][::per_prompt].sum())
    texts = int(result.outputs["completion_tokens"].sum())
    return {"prompt_tokens": prompts, "completion_tokens": texts, "total_tokens": prompts + texts}


def chat_logprobs(pairs: list[tuple[str, float]]) -> dict[str, Any]:
    """Log probabilities in the form of chats."""
    content = [
        {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []}
        for text, value in pairs
    ]
    return {"content": content, "refusal": None}


def text_logprobs(pairs: list[tuple[str, float]], offset: int = 0) -> dict[str, Any]:
    """The same in the form of completions; `offset` characters came before."""
    offsets = []
    for text, _ in pairs:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": [text for text, _ in pairs],
        "token_logprobs": [value for _, value in pairs],
        "top_logprobs": None,
        "text_offset": offsets,
    }


class Form:
    """Encoding of one kind of answer.

    Args:
        is_chat: of /v1/chat/completions; else of /v1/completions.
        id: of the answer.
        created: seconds since 1970.
        model: as it was asked for.
    """

    #: Whether errors have the form of the Open Inference Protocol.
    is_oip = False

    def __init__(self, is_chat: bool, id: str, created: int, model: str) -> None:
        self.is_chat = is_chat
        self._head = {"id": ("chatcmpl-" if is_chat else "cmpl-") + id}
        self._rest = {"created": created, "model": model}

    def whole(self, result: ScoreResult, per_prompt: int) -> bytes:
        """The body of an answer that is sent whole."""
        outputs = result.outputs
        logprobs = outputs.get("logprobs")
        choices = []
        for at, (text, finish) in enumerate(zip(outputs["text"], outputs["finish_reason"], strict=True)):
            pairs = None if logprobs is None else orjson.loads(logprobs[at])
            content: dict[str, Any] = {"text": text}
            if self.is_chat:
                content = {"message": {"role": "assistant", "content": text, "refusal": None}}
            choices.append(
                {"index": at, **content, "logprobs": self.logprobs(pairs, 0), "finish_reason": finish}
            )
        return orjson.dumps(
            {
                **self._head,
                "object": "chat.completion" if self.is_chat else "text_completion",
                **self._rest,
                "system_fingerprint": f"{result.model}/{result.version}",
                "choices": choices,
                "usage": usage_of(result, per_prompt),
            }
        )

    def logprobs(self, pairs: list[tuple[str, float]] | None, offset: int) -> dict[str, Any] | None:
        """Log probabilities, where there are any."""
        if pairs is None:
            return None
        return chat_logprobs(pairs) if self.is_chat else text_logprobs(pairs, offset)

    @functools.cached_property
    def _chunk_head(self) -> bytes:
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        return b"data: " + orjson.dumps({**self._head, "object": kind, **self._rest})[:-1]

    def event(
        self, row: int, text: str, logprobs: dict[str, Any] | None, finish: str, *, is_first: bool
    ) -> bytes:
        """One piece of a stream."""
        content: dict[str, Any] = {"text": text}
        if self.is_chat:
            delta = {"role": "assistant", "content": text} if is_first else {"content": text}
            content = {"delta": delta if text or is_first else {}}
        choice = {"index": row, **content, "logprobs": logprobs, "finish_reason": finish or None}
        return b'%b,"choices":[%b]}\n\n' % (self._chunk_head, orjson.dumps(choice))

    def ending(self, result: ScoreResult, per_prompt: int, *, has_usage: bool) -> bytes:
        """The end of a stream whose text is complete."""
        if not has_usage:
            return _DONE
        usage = orjson.dumps(usage_of(result, per_prompt))
        return b'%b,"choices":[],"usage":%b}\n\n%b' % (self._chunk_head, usage, _DONE)


_DONE = b"data: [DONE]\n\n"
