"""Messages of brokers: a request, or a dead letter that says why not."""

from __future__ import annotations

from hopline.brokers.base import REPLY_TO, Message
from hopline.errors import BadRequest, HoplineError
from hopline.types import ScoreResult
from hopline_brokers import queue_answers
from tests.fuzz.fed import SERVICE, check_text, runner

_HEADERS = (queue_answers.REQUEST_ID, "traceparent", REPLY_TO)


def check(data: bytes) -> None:
    """Args: data: three lengths, as many header values, and the payload."""
    if len(data) < 3:
        return
    at, headers = 3, {}
    for name, length in zip(_HEADERS, data[:3], strict=True):
        if length:
            headers[name] = data[at : at + length].decode("utf-8", "surrogateescape")
            at += length
    message = Message(data[at:], "fuzz/0", 1, headers=headers)
    try:
        request = queue_answers.request_of(message, 1 << 20)
    except BadRequest as error:
        letter = queue_answers.dead_letter(message, "dead", str(error))
        assert letter.payload == message.payload
        check_text(queue_answers.refusal(message, "answers", error).payload)
        return

    async def ask() -> ScoreResult | HoplineError:
        try:
            return await SERVICE.score(request)
        except HoplineError as error:
            return error

    outcome = runner.run(ask())
    if isinstance(outcome, HoplineError):
        queue_answers.refusal(message, "answers", outcome)
    else:
        queue_answers.answer(message, "answers", request, outcome)
