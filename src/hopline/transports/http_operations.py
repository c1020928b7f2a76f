"""The HTTP API as data: one `Operation` for each route.

Dispatch (`http_routes`), the access check (`http_access`), `/openapi.json` and `/docs` (`openapi`) and the
check of the documentation derive from these declarations. `http.HttpApp` has a handler for each id.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from hopline.config.schema import ServerConfig
from hopline.errors import ConfigError
from hopline.events import wire as events
from hopline.ingress.permissions import Permission
from hopline.rollout.rollout import Rollout, RolloutRequest
from hopline.transports import http_answers as answers
from hopline.transports.lifecycle_requests import DECISIONS, DecisionBody, IndexBody, LoadBody
from hopline.transports.oip_json import InferBody
from hopline.transports.openai.answers import ChatCompletion, Completion
from hopline.transports.openai.bodies import ChatBody, CompletionBody
from hopline.transports.openai.oip_generate import GenerateBody, Generated
from hopline.transports.path_table import PathTable, split_path
from hopline.transports.platform_routes import InstancesBody, own_paths
from hopline.transports.score_json import ScoreBody
from hopline.types import ModelInfo

#: What a route requires: nothing, any authenticated client, or a permission.
Required: TypeAlias = Literal["open", "any"] | Permission

JSON = "application/json"
HTML = "text/html"
METRICS, OPEN_METRICS = "text/plain", "application/openmetrics-text"
BINARY = "application/octet-stream"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path.

    Attributes:
        id: unique; the name of its handler.
        path: with parameters in braces; `{model}` is the model that the request is about.
        summary: one sentence.
        required: permission, for the path's model or for the whole server.
        answer: type of the JSON body of 200; a tuple has alternatives; None if it is not JSON.
        answer_types: media types of 200.
        body: type of the request's JSON body, as `answer`; None without one.
        body_types: media types of the request's body.
        body_required: an empty body is refused.
        example: a JSON body.
        statuses: errors of this route; `openapi` adds those of all routes.
        negative: 503 may be a negative answer, with the body of 200.
        versioned: `/versions/{version}` may follow `{model}`.
        timed: the header `timeout-ms` limits it.
        names_model: the body names the model that the permission is required for.
        tag: group in the documentation.
    """

    id: str
    method: Literal["GET", "POST"] = "GET"
    path: str
    summary: str
    required: Required
    answer: Any = None
    answer_types: tuple[str, ...] = (JSON,)
    body: Any = None
    body_types: tuple[str, ...] = (JSON,)
    body_required: bool = False
    example: Any = None
    statuses: tuple[int, ...] = ()
    versioned: bool = False
    negative: bool = False
    timed: bool = False
    names_model: bool = False
    tag: str = "server"

    @property
    def is_oip(self) -> bool:
        """True if errors have the form of the Open Inference Protocol."""
        return self.path == "/v2" or self.path.startswith("/v2/")

    @property
    def takes_body(self) -> bool:
        """True if requests have a body."""
        return self.method == "POST"

    @property
    def paths(self) -> tuple[str, ...]:
        """The path, and the one with a version."""
        if not self.versioned:
            return (self.path,)
        return self.path, self.path.replace("{model}", "{model}/versions/{version}")


def _decision(verb: str, summary: str) -> Operation:
    return Operation(
        id=f"rollout_{verb}",
        method="POST",
        path=f"/v1/rollouts/{{model}}/{verb}",
        summary=summary,
        required="admin",
        answer=answers.RolloutState,
        body=DecisionBody,
        statuses=(404, 409, 422, 504),
        tag="rollouts",
    )


_SCORE = Operation(
    id="score",
    method="POST",
    path="/v1/models/{model}/score",
    summary="Score nodes, pairs or rows.",
    required="score",
    answer=answers.Scores,
    example={"nodes": [42, 7], "outputs": ["label"]},
    body=ScoreBody,
    body_required=True,
    statuses=(404, 504),
    versioned=True,
    timed=True,
    tag="models",
)

#: Literal paths precede paths with a parameter at the same place.
OPERATIONS: tuple[Operation, ...] = (
    Operation(
        id="index",
        path="/",
        summary="An HTML page with the models.",
        required="read",
        answer_types=(HTML,),
    ),
    Operation(
        id="openapi",
        path="/openapi.json",
        summary="This description, in the form of OpenAPI 3.1.",
        required="any",
        answer=dict[str, Any],
    ),
    Operation(
        id="docs",
        path="/docs",
        summary="An HTML page with this description.",
        required="any",
        answer_types=(HTML,),
    ),
    Operation(
        id="healthz",
        path="/healthz",
        summary="Whether the process works.",
        required="open",
        answer=answers.Live,
        negative=True,
    ),
    Operation(
        id="readyz",
        path="/readyz",
        summary="Whether requests are accepted.",
        required="open",
        answer=answers.Ready,
        negative=True,
    ),
    Operation(
        id="metrics",
        path="/metrics",
        summary="Metrics in Prometheus' text format, or in OpenMetrics by the header Accept.",
        required="read",
        answer_types=(METRICS, OPEN_METRICS),
    ),
    Operation(
        id="models",
        path="/v1/models",
        summary="All models.",
        required="any",
        answer=answers.Models,
        tag="models",
    ),
    Operation(
        id="model",
        path="/v1/models/{model}",
        summary="One model: inputs, outputs, versions and properties.",
        required="read",
        answer=ModelInfo,
        statuses=(404,),
        versioned=True,
        tag="models",
    ),
    _SCORE,
    Operation(
        id="chat_completions",
        method="POST",
        path="/v1/chat/completions",
        summary="Generate the next turn of a conversation, as OpenAI's API does.",
        required="score",
        answer=ChatCompletion,
        answer_types=(JSON, EVENTS),
        body=ChatBody,
        body_required=True,
        example={"model": "slm", "messages": [{"role": "user", "content": "Hello"}]},
        statuses=(404, 504),
        timed=True,
        names_model=True,
        tag="generative models",
    ),
    Operation(
        id="completions",
        method="POST",
        path="/v1/completions",
        summary="Generate text after a prompt, as OpenAI's API does.",
        required="score",
        answer=Completion,
        answer_types=(JSON, EVENTS),
        body=CompletionBody,
        body_required=True,
        example={"model": "slm", "prompt": "Once upon a time"},
        statuses=(404, 504),
        timed=True,
        names_model=True,
        tag="generative models",
    ),
    Operation(
        id="drift",
        path="/v1/drift",
        summary="A summary of the drift of every version.",
        required="read",
        answer=answers.Drift,
        tag="drift",
    ),
    Operation(
        id="model_drift",
        path="/v1/drift/{model}",
        summary="The drift of each quantity of the model's versions.",
        required="read",
        answer=answers.Drift,
        statuses=(404,),
        tag="drift",
    ),
    Operation(
        id="graph",
        path="/v1/graph",
        summary="The state of the live graph.",
        required="read",
        answer=answers.GraphState,
        tag="live graph",
    ),
    Operation(
        id="graph_events",
        method="POST",
        path="/v1/graph/events",
        summary="Change the live graph. Answers when the changes are durable and visible.",
        required="admin",
        answer=answers.Applied,
        example=[{"id": "e-4", "op": "add_edge", "src": 3, "dst": 42}],
        body=events.BODY,
        body_types=(JSON, NDJSON, ARROW),
        body_required=True,
        statuses=(504,),
        timed=True,
        tag="live graph",
    ),
    Operation(
        id="rollouts",
        path="/v1/rollouts",
        summary="Versions and rollouts of every model.",
        required="any",
        answer=answers.Rollouts,
        tag="rollouts",
    ),
    Operation(
        id="begin_rollout",
        method="POST",
        path="/v1/rollouts",
        summary="Begin a rollout.",
        required="admin",
        answer=Rollout,
        example={"model": "risk", "version": "2", "kind": "canary", "steps": [5, 50, 100]},
        body=RolloutRequest,
        body_required=True,
        statuses=(404, 409, 422, 504),
        names_model=True,
        tag="rollouts",
    ),
    Operation(
        id="rollout",
        path="/v1/rollouts/{model}",
        summary="Versions and rollout of one model.",
        required="read",
        answer=answers.RolloutState,
        statuses=(404,),
        tag="rollouts",
    ),
    *(_decision(verb, summary) for verb, summary in DECISIONS.items()),
    Operation(
        id="server_metadata",
        path="/v2",
        summary="Server metadata.",
        required="any",
        answer=answers.ServerMetadata,
        tag="inference protocol",
    ),
    Operation(
        id="server_live",
        path="/v2/health/live",
        summary="Whether the process works.",
        required="open",
        answer=answers.Live,
        negative=True,
        tag="inference protocol",
    ),
    Operation(
        id="server_ready",
        path="/v2/health/ready",
        summary="Whether requests are accepted.",
        required="open",
        answer=answers.Ready,
        negative=True,
        tag="inference protocol",
    ),
    Operation(
        id="statistics",
        path="/v2/models/stats",
        summary="Statistics of all models.",
        required="any",
        answer=answers.Statistics,
        tag="inference protocol",
    ),
    Operation(
        id="model_metadata",
        path="/v2/models/{model}",
        summary="Model metadata.",
        required="read",
        answer=answers.ModelMetadata,
        statuses=(404,),
        versioned=True,
        tag="inference protocol",
    ),
    Operation(
        id="model_ready",
        path="/v2/models/{model}/ready",
        summary="Whether a model accepts requests.",
        required="open",
        answer=answers.ModelReady,
        negative=True,
        statuses=(404,),
        versioned=True,
        tag="inference protocol",
    ),
    Operation(
        id="model_config",
        path="/v2/models/{model}/config",
        summary="Model configuration in Triton's form.",
        required="read",
        answer=answers.ModelConfig,
        statuses=(404,),
        versioned=True,
        tag="inference protocol",
    ),
    Operation(
        id="model_statistics",
        path="/v2/models/{model}/stats",
        summary="Statistics of a model's versions.",
        required="read",
        answer=answers.Statistics,
        statuses=(404,),
        versioned=True,
        tag="inference protocol",
    ),
    Operation(
        id="infer",
        method="POST",
        path="/v2/models/{model}/infer",
        summary="Inference with tensors, as JSON or binary.",
        required="score",
        answer=answers.Inference,
        answer_types=(JSON, BINARY),
        example={
            "inputs": [{"name": "node_ids", "datatype": "INT64", "shape": [2], "data": [42, 7]}],
            "outputs": [{"name": "probabilities"}],
        },
        body=InferBody,
        body_types=(JSON, BINARY),
        body_required=True,
        statuses=(404, 504),
        versioned=True,
        timed=True,
        tag="inference protocol",
    ),
    Operation(
        id="generate",
        method="POST",
        path="/v2/models/{model}/generate",
        summary="Generate a text.",
        required="score",
        answer=Generated,
        body=GenerateBody,
        body_required=True,
        example={"text_input": "Once upon a time", "parameters": {"max_tokens": 20}},
        statuses=(404, 504),
        versioned=True,
        timed=True,
        tag="inference protocol",
    ),
    Operation(
        id="generate_stream",
        method="POST",
        path="/v2/models/{model}/generate_stream",
        summary="Generate a text, as server-sent events.",
        required="score",
        answer_types=(EVENTS,),
        body=GenerateBody,
        body_required=True,
        example={"text_input": "Once upon a time", "parameters": {"max_tokens": 20}},
        statuses=(404, 504),
        versioned=True,
        timed=True,
        tag="inference protocol",
    ),
    Operation(
        id="repository_index",
        method="POST",
        path="/v2/repository/index",
        summary="All versions with their states.",
        required="any",
        answer=list[answers.IndexEntry],
        example={"ready": True},
        body=IndexBody,
        tag="repository",
    ),
    Operation(
        id="load",
        method="POST",
        path="/v2/repository/models/{model}/load",
        summary="Load a version and make it current.",
        required="admin",
        answer=answers.Empty,
        example={"parameters": {"version": "2"}},
        body=LoadBody,
        statuses=(404, 409, 422, 504),
        tag="repository",
    ),
    Operation(
        id="unload",
        method="POST",
        path="/v2/repository/models/{model}/unload",
        summary="Unload a version, or all versions of a model.",
        required="admin",
        answer=answers.Empty,
        body=LoadBody,
        statuses=(404, 409, 422, 504),
        tag="repository",
    ),
)


def table_of(operations: Iterable[Operation]) -> PathTable[Operation]:
    """Return a table of the operations by path."""
    return PathTable((path, each) for each in operations for path in each.paths)


def operations_of(server: ServerConfig) -> tuple[Operation, ...]:
    """Return the operations, with those at the paths that settings name first.

    Raises: ConfigError: such a path is invalid, or a route of Hopline.
    """
    known = table_of(OPERATIONS)
    found = []
    for kind, path in own_paths(server).items():
        if known.find(split_path(path)) is not None:
            raise ConfigError(f"server.{kind}_route: {path} is a route of Hopline's own")
        found.append(_PLATFORM[kind](path))
    return (*found, *OPERATIONS)


def _health_at(path: str) -> Operation:
    (readyz,) = (each for each in OPERATIONS if each.id == "readyz")
    return replace(readyz, id="platform_ready", path=path)


def _prediction_at(path: str) -> Operation:
    return replace(
        _SCORE,
        id="predict",
        path=path,
        summary="Score with the server's only model.",
        answer=(answers.Scores, answers.Predictions),
        example={"instances": [42, 7]},
        body=(ScoreBody, InstancesBody),
        versioned=False,
    )


_PLATFORM = {"health": _health_at, "predict": _prediction_at}
