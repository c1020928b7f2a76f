"""The payment service: asks the pipeline `fraud` over gRPC and keeps what came back."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
import pandas as pd
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from examples.fraud.trees import MODEL, PIPELINE
from hopline.types import FloatArray

_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one call.

    Attributes:
        scores: float32 [n]. decisions: of each row.
        version: of the trees that answered.
        seconds: as the caller saw it.
    """

    scores: FloatArray
    decisions: list[str]
    version: str
    seconds: float


class PaymentService:
    """A client with the payment service's key; not to be shared between threads."""

    def __init__(self, address: str, key: str) -> None:
        self._client = triton.InferenceServerClient(address)
        self._headers = {"x-api-key": key}

    def ask(self, frame: pd.DataFrame) -> Answer:
        """Score transactions.

        Raises: InferenceServerException: the server refused.
        """
        inputs = _inputs(frame)
        began = time.perf_counter()
        answer = self._client.infer(PIPELINE, inputs, headers=self._headers, client_timeout=_TIMEOUT_S)
        seconds = time.perf_counter() - began
        parts = answer.get_response().parameters["parts"].string_param
        version = parts.partition(f"{MODEL}/")[2].partition(",")[0]
        decisions = [text.decode() for text in answer.as_numpy("decision")]
        return Answer(answer.as_numpy("score"), decisions, version, seconds)

    def may_score(self, model: str, node: int) -> bool:
        """Check that the key may call a model of nodes."""
        tensor = triton.InferInput("node_ids", [1], "INT64")
        tensor.set_data_from_numpy(np.array([node], np.int64))
        try:
            self._client.infer(model, [tensor], headers=self._headers, client_timeout=_TIMEOUT_S)
        except InferenceServerException as error:
            if error.status() != "StatusCode.PERMISSION_DENIED":
                raise
            return False
        return True

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _inputs(frame: pd.DataFrame) -> list[Any]:
    """A tensor for each column."""
    found = []
    for name in frame.columns:
        values = frame[name].to_numpy()
        datatype = {"O": "BYTES", "i": "INT64", "f": "FP64"}[values.dtype.kind]
        tensor = triton.InferInput(name, [len(values)], datatype)
        tensor.set_data_from_numpy(values)
        found.append(tensor)
    return found


@dataclass
class Traffic:
    """Checkouts that continue while the administrator works: a thread that asks one at a time.

    Args:
        address, key: of the server, of the payment service.
        frame: transactions, asked in turn.

    Attributes:
        answers: in the order of the questions.
        errors: what was answered in place of scores.
    """

    address: str
    key: str
    frame: pd.DataFrame
    answers: list[Answer] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        service = PaymentService(self.address, self.key)
        rows = [self.frame.iloc[at : at + 1] for at in range(len(self.frame))]
        asked = 0
        while not self._over.is_set():
            try:
                self.answers.append(service.ask(rows[asked % len(rows)]))
            except InferenceServerException as error:
                self.errors.append(str(error))
            asked += 1
        service.close()

    def answered_by(self, version: str) -> int:
        """Number of answers by a version of the trees."""
        return sum(answer.version == version for answer in self.answers)
