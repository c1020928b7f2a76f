"""The JSON bodies of HTTP answers, as types: the schemas of `/openapi.json`.

The answers of hot routes are written by hand (`score_json`, `oip_json`). A test compares all answers with
these types.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from hopline.types import ModelInfo, RefusedEvent

_Id: TypeAlias = int | str


class ErrorDetails(msgspec.Struct):
    """The failure.

    Attributes:
        code: the stable name of the error, also in the header `hopline-error`.
        message: what is wrong, and what would be right.
        missing: unknown node ids.
        differences: how a schema differs from the expected one.
        retry_after_s: when a retry may succeed, seconds.
    """

    code: str
    message: str
    missing: list[_Id] | UnsetType = UNSET
    differences: list[str] | UnsetType = UNSET
    retry_after_s: float | UnsetType = UNSET


class Error(msgspec.Struct):
    """An error of `/v1`."""

    error: ErrorDetails


class InferenceError(msgspec.Struct):
    """An error of `/v2`, in the form of the Open Inference Protocol.

    Attributes:
        error: what is wrong, and what would be right.
    """

    error: str


class Live(msgspec.Struct):
    """The state of the process."""

    live: bool


class Ready(msgspec.Struct):
    """The readiness of the server.

    Attributes:
        reasons: why not, and what is wrong with single models, also if requests are accepted; absent for
            clients that are not authenticated.
        models: model -> state; only models that the client may read.
    """

    ready: bool
    reasons: list[str] | UnsetType = UNSET
    models: dict[str, str] | UnsetType = UNSET


class ModelReady(msgspec.Struct):
    """The readiness of a model."""

    ready: bool


class Model(msgspec.Struct):
    """A generative model in the form of OpenAI's API."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class Models(msgspec.Struct):
    """The models that the client may read.

    Attributes:
        object, data: the generative ones, as OpenAI's clients read them.
    """

    models: list[ModelInfo]
    object: Literal["list"]
    data: list[Model]


def listed(infos: Iterable[ModelInfo]) -> dict[str, Any]:
    """The generative models in the form of OpenAI's list."""
    return {"object": "list", "data": [_listed(info) for info in infos if info.kind == "generative"]}


def described(info: ModelInfo) -> ModelInfo | dict[str, Any]:
    """One model; a generative one in Hopline's and in OpenAI's form."""
    return {**msgspec.to_builtins(info), **_listed(info)} if info.kind == "generative" else info


def _listed(info: ModelInfo) -> dict[str, Any]:
    return {"id": info.name, "object": "model", "created": 0, "owned_by": "hopline"}


class Scores(msgspec.Struct):
    """Scores, one row for each requested item.

    Attributes:
        outputs: output name -> rows in request order; null for an unknown id.
        degraded: fallbacks that were used.
        missing: ids that became null.
        graph_age_ms: time since the live graph last contained all events.
        parts: step of a pipeline -> model/version that answered it.
    """

    model: str
    version: str
    graph_version: str
    outputs: dict[str, list[Any]]
    degraded: list[str]
    missing: list[_Id | list[_Id]] | UnsetType = UNSET
    graph_age_ms: int | UnsetType = UNSET
    parts: dict[str, str] | UnsetType = UNSET


class Predictions(msgspec.Struct):
    """Predictions, one for each instance, and the fallbacks that were used, if any."""

    predictions: list[dict[str, Any]]
    degraded: list[str] | UnsetType = UNSET


class OutputTensor(msgspec.Struct):
    """An output tensor; its values are in `data`, or binary after the JSON."""

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Any] | UnsetType = UNSET
    data: list[Any] | UnsetType = UNSET


class Inference(msgspec.Struct):
    """The answer of an inference request.

    Attributes:
        parameters: `graph_version` and others.
    """

    model_name: str
    model_version: str
    parameters: dict[str, str]
    outputs: list[OutputTensor]
    id: str | UnsetType = UNSET


class ServerMetadata(msgspec.Struct):
    """The server.

    Attributes:
        prediction_log: id of the prediction log.
    """

    name: str
    version: str
    extensions: list[str]
    prediction_log: str | UnsetType = UNSET


class TensorMetadata(msgspec.Struct):
    """A tensor; -1 is a variable dimension."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(msgspec.Struct):
    """A model in the terms of the Open Inference Protocol."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelConfig(msgspec.Struct):
    """A model configuration in Triton's form, with the fields that clients read."""

    name: str
    platform: str
    backend: str
    version_policy: dict[str, Any]
    max_batch_size: int
    input: list[dict[str, Any]]
    output: list[dict[str, Any]]
    dynamic_batching: dict[str, Any]
    parameters: dict[str, dict[str, str]]
    model_transaction_policy: dict[str, bool]


class Duration(msgspec.Struct):
    """A number of requests and their total time."""

    count: int
    ns: int


class ModelStatistics(msgspec.Struct):
    """Counters of a version.

    Attributes:
        last_inference: time of the last request, ms since 1970.
    """

    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: dict[str, Duration]


class Statistics(msgspec.Struct):
    """Counters of versions."""

    model_stats: list[ModelStatistics]


class IndexEntry(msgspec.Struct):
    """A version in the repository index."""

    name: str
    version: str
    state: str
    reason: str


class Empty(msgspec.Struct, forbid_unknown_fields=True):
    """Done."""


class RolloutState(msgspec.Struct):
    """Versions and rollouts of a model.

    Attributes:
        serving: the unit that answers requests that select no version.
        previous: the unit that served before.
        units: versions that can serve.
        rollout: the running rollout, with the results of both versions in the current step.
        past: ended rollouts, newest first.
        store: condition of the store that the hosts of a fleet share.
    """

    model: str
    serving: str | None
    previous: str | None
    units: list[dict[str, Any]]
    rollout: dict[str, Any] | None
    past: list[dict[str, Any]]
    store: dict[str, Any] | UnsetType = UNSET


class Rollouts(msgspec.Struct):
    """Versions and rollouts of the models that the client may read."""

    rollouts: list[RolloutState]


class Applied(msgspec.Struct):
    """The changes are durable, and visible to all workers; with a stream, durable in it.

    Attributes:
        applied, duplicates: number of changes; places of events that were applied before.
        accepted: number of events that the stream took; in place of `sequence`, `applied`, `duplicates`.
        num_refused: number of refused events if not all are listed.
    """

    graph_version: str
    refused: list[RefusedEvent]
    sequence: int | UnsetType = UNSET
    applied: int | UnsetType = UNSET
    duplicates: list[int] | UnsetType = UNSET
    accepted: int | UnsetType = UNSET
    num_refused: int | UnsetType = UNSET
