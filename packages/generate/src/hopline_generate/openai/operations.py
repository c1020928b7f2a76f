"""The routes of OpenAI's API and of texts in the inference protocol, which the HTTP server finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hopline.transports.http_operations import EVENTS, JSON, Operation, scoring
from hopline.transports.http_routes import Handler
from hopline_generate.openai.answers import ChatCompletion, Completion
from hopline_generate.openai.bodies import ChatBody, CompletionBody, GenerateBody, Generated
from hopline_generate.openai.routes import OpenAiRoutes

_MESSAGES = {"model": "slm", "messages": [{"role": "user", "content": "Hello"}]}
_PROMPT = {"model": "slm", "prompt": "Once upon a time"}
_TEXT = {"text_input": "Once upon a time", "parameters": {"max_tokens": 20}}
_LISTED = {"names_model": True, "group": "generative models"}

# fmt: off
_OPENAI = (
    scoring("chat_completions", "/v1/chat/completions",
            "Generate the next turn of a conversation, as OpenAI's API does.", ChatCompletion, ChatBody,
            _MESSAGES, answer_types=(JSON, EVENTS), **_LISTED),
    scoring("completions", "/v1/completions", "Generate text after a prompt, as OpenAI's API does.",
            Completion, CompletionBody, _PROMPT, answer_types=(JSON, EVENTS), **_LISTED),
)
_PROTOCOL = (
    scoring("generate", "/v2/models/{model}/generate", "Generate a text.", Generated, GenerateBody, _TEXT,
            versioned=True),
    scoring("generate_stream", "/v2/models/{model}/generate_stream",
            "Generate a text, as server-sent events.", None, GenerateBody, _TEXT, answer_types=(EVENTS,),
            versioned=True),
)
# fmt: on


class TextRoutes:
    """See `hopline.transports.http_operations.Routes`."""

    operations: Mapping[str, Sequence[Operation]] = {"score": _OPENAI, "infer": _PROTOCOL}

    def handlers(self, app: Any, service: Any, *, guarded: bool, traces: bool) -> dict[str, Handler]:
        """As `Routes.handlers`."""
        return OpenAiRoutes(app, service, guarded=guarded, traces=traces).handlers()


ROUTES = TextRoutes()
