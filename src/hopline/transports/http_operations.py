"""The HTTP API as data: one `Operation` for each route.

Dispatch (`http_routes`), the access check (`http_access`), `/openapi.json` and `/docs` (`openapi`) and the
check of the documentation derive from these declarations. `http.HttpApp` has a handler for each id.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias

from hopline.config.schema import ServerConfig
from hopline.doors import Door
from hopline.errors import ConfigError
from hopline.events import wire as events
from hopline.ingress.permissions import Permission
from hopline.rollout.rollout import Rollout, RolloutRequest
from hopline.transports import http_answers as answers
from hopline.transports.lifecycle_requests import DECISIONS, DecisionBody, IndexBody, LoadBody
from hopline.transports.oip_json import InferBody
from hopline.transports.path_table import PathTable, split_path
from hopline.transports.platform_routes import InstancesBody, own_paths
from hopline.transports.score_json import ScoreBody
from hopline.types import GraphState, ModelInfo

#: What a route requires: nothing, any authenticated client, or a permission.
Required: TypeAlias = Literal["open", "any"] | Permission

JSON = "application/json"
HTML = "text/html"
METRICS, OPEN_METRICS = "text/plain", "application/openmetrics-text"
BINARY = "application/octet-stream"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path.

    Attributes:
        id: unique; the name of its handler.
        path: with parameters in braces; `{model}` is the model that the request is about.
        summary: one sentence.
        required: permission, for the path's model or for the whole server.
        answer: type of the JSON body of 200; a tuple has alternatives; None if it is not JSON.
        body: type of the request's JSON body, as `answer`; None for GET, which has none.
        answer_types: media types of 200.
        body_types: media types of the request's body.
        body_required: an empty body is refused.
        example: a JSON body.
        statuses: errors of this route; `openapi` adds those that follow from other fields.
        negative: 503 may be a negative answer, with the body of 200.
        versioned: `/versions/{version}` may follow `{model}`.
        timed: the header `timeout-ms` limits it.
        names_model: the body names the model that the permission is required for.
        deletes: the method is DELETE, which has no body.
        group: in the documentation; "" takes that of the path.
    """

    id: str
    path: str
    summary: str
    required: Required
    answer: Any = None
    body: Any = None
    _: KW_ONLY
    answer_types: tuple[str, ...] = (JSON,)
    body_types: tuple[str, ...] = (JSON,)
    body_required: bool = False
    example: Any = None
    statuses: tuple[int, ...] = ()
    versioned: bool = False
    negative: bool = False
    timed: bool = False
    names_model: bool = False
    deletes: bool = False
    group: str = ""

    @property
    def method(self) -> Literal["GET", "POST", "DELETE"]:
        """The method: POST with a body."""
        return "DELETE" if self.deletes else "GET" if self.body is None else "POST"

    @property
    def tag(self) -> str:
        """Group in the documentation."""
        if self.group:
            return self.group
        other = "models" if self.required == "score" else "server"  # at a platform's path
        return next((tag for start, tag in _TAGS.items() if self.path.startswith(start)), other)

    @property
    def is_oip(self) -> bool:
        """True if errors have the form of the Open Inference Protocol."""
        return self.path == "/v2" or self.path.startswith("/v2/")

    @property
    def paths(self) -> tuple[str, ...]:
        """The path, and the one with a version."""
        if not self.versioned:
            return (self.path,)
        return self.path, self.path.replace("{model}", "{model}/versions/{version}")


#: Begin of a path -> group of its routes in the documentation.
_TAGS = {
    "/v1/models": "models",
    "/v1/graph": "live graph",
    "/v1/rollouts": "rollouts",
    "/v2/repository": "repository",
    "/v2": "inference protocol",
}
#: Errors of changes of models.
_CHANGE = (409, 422, 504)


def scoring(
    id: str, path: str, summary: str, answer: Any, body: Any, example: Any, **more: Any
) -> Operation:
    """A route that requests something of a model."""
    required = {"body_required": True, "timed": True, "example": example}
    return Operation(id, path, summary, "score", answer, body, **required, **more)


def _metadata(id: str, path: str, summary: str, answer: Any, **more: Any) -> Operation:
    """A route that describes a model or its version."""
    return Operation(id, path, summary, "read", answer, versioned=True, **more)


_SCORE = scoring(
    "score", "/v1/models/{model}/score", "Score nodes, pairs or rows.", answers.Scores, ScoreBody,
    {"nodes": [42, 7], "outputs": ["label"]}, versioned=True,
)  # fmt: skip
_TENSORS = {
    "inputs": [{"name": "node_ids", "datatype": "INT64", "shape": [2], "data": [42, 7]}],
    "outputs": [{"name": "probabilities"}],
}
_EVENTS = [{"id": "e-4", "op": "add_edge", "src": 3, "dst": 42}]
_CANARY = {"model": "risk", "version": "2", "kind": "canary", "steps": [5, 50, 100]}

# fmt: off
#: Those of Hopline's own package. Literal paths precede paths with a parameter at the same place.
OPERATIONS: tuple[Operation, ...] = (
    Operation("index", "/", "An HTML page with the models.", "read", answer_types=(HTML,)),
    Operation("openapi", "/openapi.json", "This description, in the form of OpenAPI 3.1.", "any",
              dict[str, Any]),
    Operation("docs", "/docs", "An HTML page with this description.", "any", answer_types=(HTML,)),
    Operation("healthz", "/healthz", "Whether the process works.", "open", answers.Live, negative=True),
    Operation("readyz", "/readyz", "Whether requests are accepted.", "open", answers.Ready, negative=True),
    Operation("metrics", "/metrics",
              "Metrics in Prometheus' text format, or in OpenMetrics by the header Accept.", "read",
              answer_types=(METRICS, OPEN_METRICS)),
    Operation("models", "/v1/models", "All models.", "any", answers.Models),
    _metadata("model", "/v1/models/{model}", "One model: inputs, outputs, versions and properties.",
              ModelInfo),
    _SCORE,
    Operation("graph", "/v1/graph", "The state of the live graph.", "read", GraphState),
    Operation("graph_events", "/v1/graph/events",
              "Change the live graph. Answers when the changes are durable and visible.", "admin",
              answers.Applied, events.BODY, example=_EVENTS, body_types=(JSON, NDJSON, ARROW),
              body_required=True, timed=True),
    Operation("remove_node", "/v1/graph/nodes/{node_type}/{node}",
              "Remove a node of the live graph, with all its edges.", "admin", answers.Applied,
              statuses=(404, 409), timed=True, deletes=True),
    Operation("rollouts", "/v1/rollouts", "Versions and rollouts of every model.", "any", answers.Rollouts),
    Operation("begin_rollout", "/v1/rollouts", "Begin a rollout.", "admin", Rollout, RolloutRequest,
              example=_CANARY, body_required=True, statuses=_CHANGE, names_model=True),
    Operation("rollout", "/v1/rollouts/{model}", "Versions and rollout of one model.", "read",
              answers.RolloutState),
    *(Operation(f"rollout_{verb}", f"/v1/rollouts/{{model}}/{verb}", summary, "admin", answers.RolloutState,
                DecisionBody, statuses=_CHANGE)
      for verb, summary in DECISIONS.items()),
    Operation("server_metadata", "/v2", "Server metadata.", "any", answers.ServerMetadata),
    Operation("server_live", "/v2/health/live", "Whether the process works.", "open", answers.Live,
              negative=True),
    Operation("server_ready", "/v2/health/ready", "Whether requests are accepted.", "open", answers.Ready,
              negative=True),
    Operation("statistics", "/v2/models/stats", "Statistics of all models.", "any", answers.Statistics),
    _metadata("model_metadata", "/v2/models/{model}", "Model metadata.", answers.ModelMetadata),
    Operation("model_ready", "/v2/models/{model}/ready", "Whether a model accepts requests.", "open",
              answers.ModelReady, negative=True, versioned=True),
    _metadata("model_config", "/v2/models/{model}/config", "Model configuration in Triton's form.",
              answers.ModelConfig),
    _metadata("model_statistics", "/v2/models/{model}/stats", "Statistics of a model's versions.",
              answers.Statistics),
    scoring("infer", "/v2/models/{model}/infer", "Inference with tensors, as JSON or binary.",
             answers.Inference, InferBody, _TENSORS, answer_types=(JSON, BINARY), body_types=(JSON, BINARY),
             versioned=True),
    Operation("repository_index", "/v2/repository/index", "All versions with their states.", "any",
              list[answers.IndexEntry], IndexBody, example={"ready": True}),
    Operation("load", "/v2/repository/models/{model}/load", "Load a version and make it current.", "admin",
              answers.Empty, LoadBody, example={"parameters": {"version": "2"}}, statuses=_CHANGE),
    Operation("unload", "/v2/repository/models/{model}/unload",
              "Unload a version, or all versions of a model.", "admin", answers.Empty, LoadBody,
              statuses=_CHANGE),
)
# fmt: on


class Routes(Protocol):
    """Routes that a package adds, as an entry point of the group `hopline.http_routes`.

    Attributes:
        operations: id of an operation of Hopline's own -> those that follow it in the description.
    """

    operations: Mapping[str, Sequence[Operation]]

    def handlers(self, app: Any, service: Any, *, guarded: bool, traces: bool) -> Mapping[str, Any]:
        """The handler (`http_routes.Handler`) of each operation by id.

        Args:
            app: the `HttpApp`, which makes responses of errors, and counts.
            service: answers.
            guarded: true if clients are authenticated.
            traces: true if requests join the caller's trace.
        """


_ROUTES = Door("hopline.http_routes")


@functools.cache
def added_routes() -> tuple[Routes, ...]:
    """Routes of installed packages."""
    return tuple(_ROUTES.find(name) for name in _ROUTES.names())


@functools.cache
def all_operations() -> tuple[Operation, ...]:
    """Hopline's own operations, and those of installed packages at their places.

    Raises: ConfigError: a package adds an operation that exists.
    """
    found = []
    for each in OPERATIONS:
        found.append(each)
        for routes in added_routes():
            found += routes.operations.get(each.id, ())
    names = [name for each in found for name in (each.id, *((each.method, path) for path in each.paths))]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"an installed package adds HTTP routes that exist: {sorted(map(str, repeated))}")
    return tuple(found)


def table_of(operations: Iterable[Operation]) -> PathTable[Operation]:
    """Return a table of the operations by path."""
    return PathTable((path, each) for each in operations for path in each.paths)


def operations_of(server: ServerConfig) -> tuple[Operation, ...]:
    """Return the operations, with those at the paths that settings name first.

    Raises: ConfigError: such a path is invalid, or a route of Hopline.
    """
    known = table_of(all_operations())
    found = []
    for kind, path in own_paths(server).items():
        if known.find(split_path(path)) is not None:
            raise ConfigError(f"server.{kind}_route: {path} is a route of Hopline's own")
        found.append(_PLATFORM[kind](path))
    return (*found, *all_operations())


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
        statuses=(404,),
        versioned=False,
    )


_PLATFORM = {"health": _health_at, "predict": _prediction_at}
