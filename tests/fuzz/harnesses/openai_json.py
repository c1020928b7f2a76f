"""Bodies of OpenAI's routes: answered without failure, and every row is a prompt that was sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hopline.errors import BadRequest
from hopline.types import ScoreRequest
from hopline_generate.openai.bodies import (
    chat_request,
    completion_request,
    decode_chat,
    decode_completion,
)
from tests.fuzz.fed import answered, check_text

_KINDS: tuple[tuple[bytes, Callable[[bytes], Any], Callable[..., ScoreRequest]], ...] = (
    (b"/v1/chat/completions", decode_chat, chat_request),
    (b"/v1/completions", decode_completion, completion_request),
)


def check(data: bytes) -> None:
    """Args: data: a kind of body in the first byte, and the body."""
    if not data:
        return
    path, decode, request_of = _KINDS[data[0] % len(_KINDS)]
    body = data[1:]
    answered(path, body)
    try:
        request = request_of(decode(body), None, "1")
    except BadRequest as error:
        check_text(str(error))
        return
    sent = json.loads(body.decode("utf-8-sig"))
    count = 1 if sent.get("n") is None else sent["n"]
    assert request.columns is not None
    assert f"{request.model}/{request.version}" in (sent["model"], f"{sent['model']}/None")
    if "prompt" in sent:
        prompts = sent["prompt"] if isinstance(sent["prompt"], list) else [sent["prompt"]]
        assert request.columns["prompt"] == [prompt for prompt in prompts for _ in range(count)]
    else:
        texts = [json.loads(row) for row in request.columns["messages"]]
        assert len(texts) == count
        assert [turn["role"] for turn in texts[0]] == [turn["role"] for turn in sent["messages"]]
    assert len({len(column) for column in request.columns.values()}) == 1
    seeds = request.columns.get("seed", [])
    assert seeds[::count] == ([] if sent.get("seed") is None else [sent["seed"]] * (len(seeds) // count))
    assert all(-(2**63) <= seed < 2**63 for at, seed in enumerate(seeds) if at % count)
