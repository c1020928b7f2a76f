"""The text of a generative model as several responses of a `ModelStreamInfer` call.

A client asks for them as it asks Triton's decoupled models: with the request parameter
`triton_enable_empty_final_response`. Each response has the new text. The last one has the parameter
`triton_final_response`, the rest of the text and the other outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import numpy as np

from hopline.errors import HoplineError
from hopline.generate.wire import Part
from hopline.transports.proto import message
from hopline.types import Deliver, ScoreRequest, ScoreResult

_WANTED, _FINAL = "triton_enable_empty_final_response", "triton_final_response"
_TEXT = "text"
#: Takes what makes the next message. It is called at most once, when the client can take the message.
Offer: TypeAlias = Callable[[Callable[[], bytes]], object]


def wants_parts(request: Any) -> bool:
    """True if a request (an OuterInferRequest) asks for a last response that is marked."""
    return _WANTED in request.parameters and request.parameters[_WANTED].bool_param


def has_parts(request: Any, scoring: ScoreRequest) -> bool:
    """True if its answer comes in parts: of one text, since a response does not tell rows apart."""
    columns = scoring.columns or {}
    is_one = all(len(values) == 1 for values in columns.values())
    return bool(columns) and is_one and wants_parts(request) and _TEXT in (scoring.outputs or (_TEXT,))


def mark_last(response: Any) -> None:
    """Mark the last response of a request."""
    response.parameters[_FINAL].bool_param = True


class TextParts:
    """The text of one request that is not sent yet.

    Args:
        request: an OuterInferRequest.
        offer: see `Offer`.
    """

    def __init__(self, request: Any, offer: Offer) -> None:
        self._id = request.id
        self._model, self._version = request.model_name, request.model_version
        self._offer = offer
        self._unsent: list[str] = []
        self._has_sent = False

    def take(self, row: int, part: Part) -> None:
        """Add a part."""
        if part.text:
            self._unsent.append(part.text)
            self._offer(self._message)

    def before(self, deliver: Deliver) -> Deliver:
        """A callback for the outcome, which leaves out the text that was sent."""

        def ended(outcome: ScoreResult | HoplineError) -> None:
            if isinstance(outcome, ScoreResult) and self._has_sent:
                rest = np.array(["".join(self._unsent)], object)
                outcome = msgspec.structs.replace(outcome, outputs={**outcome.outputs, _TEXT: rest})
            deliver(outcome)

        return ended

    def _message(self) -> bytes:
        text, self._unsent = "".join(self._unsent).encode(), []
        self._has_sent = True
        response = message("inference.ModelStreamInferResponse")()
        answer = response.infer_response
        answer.id, answer.model_name, answer.model_version = self._id, self._model, self._version
        answer.parameters[_FINAL].bool_param = False
        answer.outputs.add(name=_TEXT, datatype="BYTES", shape=[1])
        answer.raw_output_contents.append(len(text).to_bytes(4, "little") + text)
        encoded: bytes = response.SerializeToString()
        return encoded
