"""The generate extension of the Open Inference Protocol: one text, whole or as server-sent events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import orjson

from hopline.errors import BadRequest
from hopline.generate.request import read_stop
from hopline.transports.json_body import decode_body
from hopline.transports.openai.answers import Form
from hopline.types import ScoreRequest, ScoreResult

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
