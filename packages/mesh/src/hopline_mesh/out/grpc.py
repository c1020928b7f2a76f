"""gRPC of the watch: `hopline.mesh.v1.Mesh` and `grpc.health.v1.Health`, on TCP and a Unix socket.

Knows messages and calls; the guard authenticates clients, the board has the data.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from hopline.errors import BadRequest, ModelNotFound, Overloaded, Unavailable
from hopline.ingress.gatekeeper import Gatekeeper
from hopline.transports.failure import as_hopline_error
from hopline.transports.grpc_access import GrpcGuard, Required
from hopline.transports.grpc_errors import grpc_code
from hopline_mesh.detect.live import Event
from hopline_mesh.out.between import deviations, take_events
from hopline_mesh.out.board import Board
from hopline_mesh.out.error_tables import GRPC_CODE
from hopline_mesh.out.live_graph import MAX_AT_ONCE, live_graph
from hopline_mesh.out.wire import fields_of, record_fields
from hopline_mesh.proto import message, methods

MESH = "hopline.mesh.v1.Mesh"
HEALTH = "grpc.health.v1.Health"
#: Maximum number of open streams of each method, so that health checks do not keep readers out.
_MAX_STREAMS = 64
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = 1, 2, 3
#: Seconds between checks of readiness for `Watch`.
_HEALTH_S = 0.5
#: Methods that are missing here need `admin`.
_PERMISSIONS: dict[str, Required] = {
    "Check": "open",
    "Watch": "open",
    "GetVerdict": "read",
    "WatchVerdicts": "read",
    "GetIncident": "read",
    "GetIncidents": "read",
    "GetGraph": "read",
    "GetDeviations": "read",
    "ReportEvents": "score",
}


def permission_of(method: str) -> Required:
    """Return the permission that a method of the watch needs, by its name."""
    return _PERMISSIONS.get(method, "admin")


class MeshGrpc:
    """The methods of both services.

    Args:
        board: the data that it serves.
        gate: authenticates clients; None allows anonymous access.
    """

    def __init__(self, board: Board, gate: Gatekeeper | None = None) -> None:
        self._board = board
        self._guard = None if gate is None else GrpcGuard(gate, permission_of)
        self._num_streams: Counter[str] = Counter()

    def handlers(self) -> list[Any]:
        """Return the handlers for `grpc.aio.Server.add_generic_rpc_handlers`."""
        mesh = {
            "GetVerdict": self._get_verdict,
            "GetIncident": self._get_incident,
            "GetIncidents": self._get_incidents,
            "GetGraph": self._get_graph,
            "ReportEvents": self._report_events,
            "GetDeviations": self._get_deviations,
            "WatchVerdicts": self._watch_verdicts,
        }
        health = {"Check": self._check, "Watch": self._watch}
        return [self._service(MESH, mesh), self._service(HEALTH, health)]

    def _service(self, name: str, behaviours: Mapping[str, Callable[[Any], Any]]) -> Any:
        table = {}
        for method in methods(name):
            request = message(method.input_type.full_name)
            response = message(method.output_type.full_name).SerializeToString
            behaviour = behaviours[method.name]
            # Requests stay bytes until `_call`: gRPC answers UNKNOWN if its own reading fails.
            if method.server_streaming:
                table[method.name] = grpc.unary_stream_rpc_method_handler(
                    self._streamed(behaviour, method.name, request), None, response
                )
            else:
                table[method.name] = grpc.unary_unary_rpc_method_handler(
                    self._unary(behaviour, method.name, request), None, response
                )
        return grpc.method_handlers_generic_handler(name, table)

    def _unary(
        self, behaviour: Callable[[Any], Any], method: str, kind: Any
    ) -> Callable[..., Awaitable[Any]]:
        async def call(data: bytes, context: Any) -> Any:
            async with self._call(method, kind, data, context) as request:
                response = behaviour(request)
                return await response if inspect.isawaitable(response) else response

        return call

    def _streamed(
        self, behaviour: Callable[[Any], Any], method: str, kind: Any
    ) -> Callable[..., AsyncIterator[Any]]:
        async def call(data: bytes, context: Any) -> AsyncIterator[Any]:
            self._num_streams[method] += 1
            try:
                async with self._call(method, kind, data, context) as request:
                    if self._num_streams[method] > _MAX_STREAMS:
                        raise Overloaded(f"{_MAX_STREAMS} streams of {method} are open; close some")
                    async for response in behaviour(request):
                        yield response
            finally:
                self._num_streams[method] -= 1

        return call

    @contextlib.asynccontextmanager
    async def _call(self, method: str, kind: Any, data: bytes, context: Any) -> AsyncIterator[Any]:
        """Authenticate and authorise a call, end it with the status of an error, and count it.

        Yields its request, a message of this kind.
        """
        try:
            client = None
            if self._guard is not None:
                sent = dict(context.invocation_metadata() or ())
                client = self._guard.recognise(method, sent.get("authorization"), sent.get("x-api-key"))
            request = _parsed(kind, data)
            if self._guard is not None and client is not None:
                self._guard.check(method, request, client)
                client.admit()
            yield request
        except Exception as error:
            known = as_hopline_error(error, "(none)")
            code = grpc_code(known, GRPC_CODE)
            self._count(code.name)
            await context.abort(grpc.StatusCode[code.name], str(known), (("hopline-error", known.code),))
        self._count("OK")

    def _count(self, code: str) -> None:
        self._board.metrics.answers("grpc", code).inc()

    def _get_verdict(self, request: Any) -> Any:
        if self._board.verdict is None:
            raise Unavailable("there is no verdict yet: nothing was collected since the watch started")
        return message("hopline.mesh.v1.Verdict")(**fields_of(self._board.verdict))

    async def _watch_verdicts(self, request: Any) -> AsyncIterator[Any]:
        update = message("hopline.mesh.v1.VerdictUpdate")
        with contextlib.closing(self._board.subscribe()) as reader:
            if self._board.verdict is not None:
                yield update(verdict=fields_of(self._board.verdict))
            while True:
                verdict, dropped = await reader.get()
                self._board.metrics.verdicts_dropped.inc(dropped)
                yield update(verdict=fields_of(verdict), dropped=dropped)

    def _get_incident(self, request: Any) -> Any:
        record = self._board.incident(request.id)
        return message("hopline.mesh.v1.IncidentRecord")(**record_fields(record))

    def _get_incidents(self, request: Any) -> Any:
        records = self._board.open_incidents() if request.open_only else self._board.incidents()
        return message("hopline.mesh.v1.GetIncidentsResponse")(
            incidents=[fields_of(each.incident) for each in records]
        )

    async def _get_graph(self, request: Any) -> Any:
        def response() -> Any:
            graph = live_graph(self._board, request.limit, request.around)
            if graph is None:
                raise Unavailable(
                    "there is no graph yet: no snapshot was collected since the watch started"
                )
            return message("hopline.mesh.v1.Graph")(**fields_of(graph))

        return response() if 0 < request.limit <= MAX_AT_ONCE else await asyncio.to_thread(response)

    async def _report_events(self, request: Any) -> Any:
        events = [_event(each) for each in request.events]
        return message("hopline.mesh.v1.ReportEventsResponse")(
            **await take_events(self._board.live, events)
        )

    async def _get_deviations(self, request: Any) -> Any:
        found = await deviations(self._board.live, list(request.services))
        services = [
            {
                "service": each["service"],
                "deviations": _spreads(each["deviations"]),
                "calls": [
                    {"callee": callee, "deviations": _spreads(columns)}
                    for callee, columns in each["calls"].items()
                ],
            }
            for each in found["services"]
        ]
        response = message("hopline.mesh.v1.GetDeviationsResponse")
        return response(time_s=found["time_s"], services=services)

    # Health

    def _check(self, request: Any) -> Any:
        if request.service not in ("", MESH):
            raise ModelNotFound(f"no service {request.service!r}; there is {MESH}")
        return message("grpc.health.v1.HealthCheckResponse")(status=self._status())

    async def _watch(self, request: Any) -> AsyncIterator[Any]:
        last = None
        while True:
            status = self._status() if request.service in ("", MESH) else _SERVICE_UNKNOWN
            if status != last:
                last = status
                yield message("grpc.health.v1.HealthCheckResponse")(status=status)
            await asyncio.sleep(_HEALTH_S)

    def _status(self) -> int:
        return _SERVING if self._board.ready and self._board.alive else _NOT_SERVING


def _parsed(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise BadRequest(f"the message ({len(data)} bytes) is not a {kind.DESCRIPTOR.full_name}") from None


def _spreads(columns: dict[str, float | None]) -> dict[str, float]:
    return {column: math.nan if spreads is None else spreads for column, spreads in columns.items()}


def _event(sent: Any) -> Event:
    values = {column: None if math.isnan(value) else value for column, value in sent.values.items()}
    return Event(sent.service, sent.caller, sent.callee, values, sent.gone)
