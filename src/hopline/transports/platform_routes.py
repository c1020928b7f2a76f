"""Routes of serving platforms: a path for their health checks, and one that scores the only model.

Amazon SageMaker asks GET /ping and POST /invocations, Vertex AI the paths that its variables name. The body
of a prediction is that of the score route, or Vertex AI's:

    {"instances": [42, 7], "parameters": {"outputs": ["label"]}}
    {"predictions": [{"label": 1}, {"label": 0}]}
"""

from __future__ import annotations

from typing import Any

import msgspec

from hopline.config.schema import ServerConfig
from hopline.errors import BadRequest, ConfigError
from hopline.transports.http_waiting import Scoring
from hopline.transports.json_body import decode_body, refuse_repeated
from hopline.transports.path_table import ONE_SPELLING, parts_of
from hopline.transports.score_json import RowsBody, encode_predictions
from hopline.types import ScoreResult
from turnserve.http1.messages import JSON, Response


class InstancesBody(msgspec.Struct, forbid_unknown_fields=True):
    """A body of Vertex AI's prediction route.

    Attributes:
        instances: node ids.
        parameters: further fields of the score route's body, except those that name rows.
    """

    instances: list[int | str]
    parameters: dict[str, Any] | None = None


#: Characters that a path does not have.
_OTHER = frozenset("?{}")
_decode = msgspec.json.Decoder(InstancesBody).decode
_decode_names = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Predicting(Scoring):
    """A request with instances that waits."""

    __slots__ = ()

    def respond(self, result: ScoreResult) -> Response:
        """One prediction for each instance, with the outputs by their names."""
        return Response(encode_predictions(result), 200, JSON, self._id_line)


def own_paths(server: ServerConfig) -> dict[str, str]:
    """Purpose ("health", "predict") -> path, of those that are set.

    Raises: ConfigError: one is not a path, or both are the same.
    """
    named = {"health": server.health_route, "predict": server.predict_route}
    found = {kind: _path(route, f"server.{kind}_route") for kind, route in named.items() if route}
    if len(set(found.values())) < len(found):
        raise ConfigError(f"server.predict_route: {server.predict_route!r} is server.health_route as well")
    return found


def _path(route: str, setting: str) -> str:
    if not route.strip("/") or not _OTHER.isdisjoint(route) or parts_of(route.encode()) is None:
        raise ConfigError(f"{setting}: {route!r} is not a path such as /ping; {ONE_SPELLING}")
    return route


def only_model(names: tuple[str, ...]) -> str:
    """The model that the prediction route scores.

    Raises: BadRequest: there are several, or none.
    """
    if len(names) != 1:
        raise BadRequest(
            f"server.predict_route scores the only model of a server, and this one has {len(names)}; set "
            "models.names, or send the request to /v1/models/<model>/score"
        )
    return names[0]


def _has_instances(body: bytes) -> bool:
    """True if it is the name of a field: it may also be a tag, or an id."""
    try:
        return "instances" in _decode_names(body)
    except (msgspec.DecodeError, RecursionError, ValueError):  # reported by the decoder of either body
        return True


def score_body(body: bytes) -> bytes | None:
    """The score route's body for one with instances; None where it has none.

    Raises: BadRequest: instances that are not node ids, or parameters that contradict them.
    """
    if b'"instances"' not in body or not _has_instances(body):
        return None
    found = decode_body(body, _decode, InstancesBody, example='{"instances": [42]}')
    refuse_repeated(body)
    parameters = found.parameters or {}
    for name in (*RowsBody.__struct_fields__, "edges"):
        if parameters.get(name) is not None:
            raise BadRequest(
                f"parameters: {name!r} names what is scored, and so do the instances, which get one "
                f"prediction each; remove {name!r}, or send the score route's body without instances"
            )
    return msgspec.json.encode({**parameters, "nodes": found.instances})
