"""The routes of drift, which the HTTP server finds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from hopline.errors import BadRequest
from hopline.transports.http_operations import Operation
from hopline.transports.http_routes import Handler
from hopline.transports.http_waiting import Working
from turnserve.http1.messages import Pending, Request, Response


class Drift(msgspec.Struct):
    """Drift of versions against their reference.

    Attributes:
        model: if the request was for one model.
    """

    thresholds: dict[str, float]
    versions: list[dict[str, Any]]
    model: str | UnsetType = UNSET


_OPERATIONS = (
    Operation(
        "drift", "/v1/drift", "A summary of the drift of every version.", "read", Drift, group="drift"
    ),
    Operation(
        "model_drift",
        "/v1/drift/{model}",
        "The drift of each quantity of the model's versions.",
        "read",
        Drift,
        group="drift",
    ),
)


class DriftRoutes:
    """See `hopline.transports.http_operations.Routes`."""

    operations: Mapping[str, Sequence[Operation]] = {"score": _OPERATIONS}

    def handlers(self, app: Any, service: Any, *, guarded: bool, traces: bool) -> dict[str, Handler]:
        """As `Routes.handlers`."""

        def report(model: str | None, request: Request, id_line: bytes) -> Pending:
            if service.drift is None:
                raise BadRequest("this server does not monitor drift; set drift.enabled and drift.path")

            def respond(found: dict[str, Any]) -> Response:
                return Response(msgspec.json.encode(found), headers=id_line)

            task = asyncio.ensure_future(asyncio.to_thread(service.drift.report, model))
            return Working(app, task, respond, id_line, oip=False)

        return {"drift": Handler(partial(report, None)), "model_drift": Handler(report)}


ROUTES = DriftRoutes()
