"""The handlers of OpenAI's routes."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from hopline.errors import BadRequest
from hopline.transports.http_access import client_of
from hopline.transports.http_bodies import check_json
from hopline.transports.http_routes import Handler
from hopline.transports.score_json import deadline_after
from hopline.transports.traces import join_trace
from hopline.types import ScoreRequest
from hopline_generate.openai.answers import Form
from hopline_generate.openai.bodies import (
    ChatBody,
    CompletionBody,
    OipForm,
    chat_request,
    completion_request,
    decode_chat,
    decode_completion,
    decode_generate,
    generate_request,
)
from hopline_generate.openai.waiting import Generating, Streaming
from turnserve.http1.messages import Pending, Request

if TYPE_CHECKING:
    from hopline.service import Service
    from hopline.transports.http_waiting import Application


class OpenAiRoutes:
    """See the module.

    Args:
        app: makes responses of errors, and counts.
        service: generates.
        guarded: True if clients are authenticated.
        traces: True if requests join the caller's trace.
    """

    def __init__(self, app: Application, service: Service, *, guarded: bool, traces: bool) -> None:
        self._app = app
        self._service: Any = service
        self._guarded = guarded
        self._traces = traces

    def handlers(self) -> dict[str, Handler]:
        """The handler of each operation."""
        return {
            "chat_completions": Handler(self.chat, check_json),
            "completions": Handler(self.completions, check_json),
            "generate": Handler(functools.partial(self.generate, streams=False), check_json),
            "generate_stream": Handler(functools.partial(self.generate, streams=True), check_json),
        }

    def chat(self, request: Request, id_line: bytes) -> Pending:
        """POST /v1/chat/completions."""
        body = decode_chat(self._checked(request))
        wanted = chat_request(body, self._deadline(body.timeout_ms, request), _id_of(id_line))
        return self._begin_openai(body, wanted, request, id_line)

    def completions(self, request: Request, id_line: bytes) -> Pending:
        """POST /v1/completions."""
        body = decode_completion(self._checked(request))
        wanted = completion_request(body, self._deadline(body.timeout_ms, request), _id_of(id_line))
        return self._begin_openai(body, wanted, request, id_line)

    def generate(
        self, model: str, version: str | None, request: Request, id_line: bytes, *, streams: bool
    ) -> Pending:
        """POST /v2/models/<model>/generate, and generate_stream."""
        body = decode_generate(self._checked(request))
        wanted = generate_request(model, version, body, self._deadline(None, request), _id_of(id_line))
        form = OipForm(model, version or "", body.id)
        return self._begin(wanted, form, request, id_line, streams=streams)

    def _checked(self, request: Request) -> bytes:
        """The body, in which no name is repeated."""
        if not request.is_counted:
            check_json(request.headers, request.body)
        return request.body

    def _deadline(self, timeout_ms: float | None, request: Request) -> float | None:
        return deadline_after(timeout_ms, request.headers.get(b"timeout-ms"), time.monotonic())

    def _begin_openai(
        self, body: ChatBody | CompletionBody, wanted: ScoreRequest, request: Request, id_line: bytes
    ) -> Pending:
        if self._guarded:
            client_of(request).check("score", wanted.model)
        if body.stream_options is not None and not body.stream:
            raise BadRequest("stream_options: only with stream: true", "stream_options")
        has_usage = body.stream_options is not None and body.stream_options.include_usage
        form = Form(isinstance(body, ChatBody), _id_of(id_line), int(time.time()), body.model)
        return self._begin(
            wanted,
            form,
            request,
            id_line,
            streams=bool(body.stream),
            per_prompt=body.n or 1,
            has_usage=has_usage,
        )

    def _begin(
        self,
        wanted: ScoreRequest,
        form: Form,
        request: Request,
        id_line: bytes,
        *,
        streams: bool,
        per_prompt: int = 1,
        has_usage: bool = False,
    ) -> Pending:
        if self._guarded:
            client_of(request).sign(wanted)
        kind = self._service.describe(wanted.model, wanted.version).kind
        if kind != "generative":
            raise BadRequest(
                f"model {wanted.model!r} is not generative, it is a {kind} model; ask at "
                f"/v1/models/{wanted.model}/score"
            )
        if self._traces:
            join_trace(wanted, request.headers.get(b"traceparent"))
        if not streams:
            waiting = Generating(self._app, form, per_prompt, id_line)
            waiting.ticket = self._service.submit(wanted, waiting.deliver)
            return waiting
        assert wanted.columns is not None
        num_rows = len(next(iter(wanted.columns.values())))
        streaming = Streaming(self._app, form, per_prompt, id_line, num_rows, has_usage=has_usage)
        streaming.ticket = self._service.stream(wanted, streaming.deliver, streaming.take)
        return streaming


def _id_of(id_line: bytes) -> str:
    return id_line[14:-2].decode()
