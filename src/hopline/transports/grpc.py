"""gRPC: `inference.GRPCInferenceService` and `grpc.health.v1.Health` on the server's event loop.

Knows messages and calls. Tensors and requests are translated by `oip.py`, as they are for HTTP. An error's
stable code travels in the trailing metadata `hopline-error`, and `retry-after-ms` beside it.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf import json_format  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from hopline.errors import (
    BadRequest,
    FeatureStoreUnavailable,
    HoplineError,
    ModelNotFound,
    ModelNotReady,
    Overloaded,
    Unavailable,
)
from hopline.ingress.gatekeeper import Gatekeeper
from hopline.transports import oip
from hopline.transports.failure import as_hopline_error
from hopline.transports.grpc_access import GrpcGuard
from hopline.transports.grpc_errors import grpc_code
from hopline.transports.grpc_request import OUTER, RequestReader, parameters_of
from hopline.transports.grpc_stream import InferStream
from hopline.transports.interface import ScoringService
from hopline.transports.lifecycle import change_parameters
from hopline.transports.proto import message, methods
from hopline.transports.tensors import encode_raw
from hopline.transports.traces import join_trace, traceparent_of
from hopline.types import Deliver, ScoreRequest, ScoreResult, Ticket

INFERENCE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"
#: Methods of the published interface that there is nothing behind.
_UNIMPLEMENTED = {
    **{
        f"{kind}SharedMemory{verb}": "shared memory is not supported; send the data in the request"
        for kind in ("System", "Cuda")
        for verb in ("Status", "Register", "Unregister")
    },
    "TraceSetting": "trace settings are not supported",
    "LogSettings": "log settings cannot be changed at run time; see the log section of the config",
}
#: Methods whose requests are let in one by one, and read by `grpc_request.py`.
_SCORING = ("ModelInfer", "ModelStreamInfer")


class GrpcApp:
    """The methods of both services.

    Args:
        service: what answers.
        gate: knows who asks; None lets everybody in.
        traces: whether requests belong to the trace that their call names.

    """

    def __init__(
        self, service: ScoringService, gate: Gatekeeper | None = None, *, traces: bool = False
    ) -> None:
        self._draining = False
        self._streams: set[InferStream] = set()
        self._reader = RequestReader()
        self._traces = traces
        self._service = service
        self._turn_away: Callable[[str], None] | None = getattr(service, "turn_away", None)
        self._guard = None if gate is None else GrpcGuard(gate)
        self._id_prefix = secrets.token_hex(6)
        self._ids = itertools.count()

    def handlers(self) -> list[Any]:
        """What `grpc.aio.Server.add_generic_rpc_handlers` takes."""
        table = {method.name: self._method_handler(method) for method in methods(INFERENCE)}
        for name, text in _UNIMPLEMENTED.items():
            table[name] = grpc.unary_unary_rpc_method_handler(_unimplemented(text))
        health = {method.name: self._method_handler(method, "health_") for method in methods(HEALTH)}
        return [
            grpc.method_handlers_generic_handler(INFERENCE, table),
            grpc.method_handlers_generic_handler(HEALTH, health),
        ]

    def begin_drain(self) -> None:
        """Say that the server is not ready, and end streams in order; calls are still served."""
        self._draining = True
        for stream in self._streams:
            stream.cut_off()

    def _method_handler(self, method: Any, prefix: str = "") -> Any:
        behaviour = getattr(self, f"_{prefix}{_snake_case(method.name)}")
        requests = OUTER if method.name in _SCORING else method.input_type.full_name
        request = message(requests).FromString
        response = message(method.output_type.full_name).SerializeToString
        if method.name == "ModelStreamInfer":
            return grpc.stream_stream_rpc_method_handler(
                self._guarded(behaviour, method.name), request, response
            )
        if method.name == "Watch":
            return grpc.unary_stream_rpc_method_handler(behaviour, request, response)
        return grpc.unary_unary_rpc_method_handler(self._guarded(behaviour, method.name), request, response)

    def _guarded(
        self, behaviour: Callable[[Any, Any], Awaitable[Any]], method: str
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        """Let in who may; turn every failure into a status; a cancelled call stays cancelled."""

        async def call(request: Any, context: Any) -> Any:
            try:
                if self._guard is not None and method not in _SCORING:
                    self._guard.admit(method, request, context)
                response = await behaviour(request, context)
            except Exception as error:
                known = as_hopline_error(error, getattr(request, "id", "") or "(none)")
                code = grpc_code(known)
                self._count(code.name)
                trailers = [("hopline-error", known.code)]
                if isinstance(known, Overloaded | Unavailable | ModelNotReady | FeatureStoreUnavailable):
                    trailers.append(("retry-after-ms", str(int(known.retry_after_s * 1000))))
                await context.abort(code, str(known), tuple(trailers))
            if method != "ModelStreamInfer":  # whose requests are counted one by one
                self._count("OK")
            return response

        return call

    def _count(self, code: str) -> None:
        self._service.metrics.answers("grpc", code).inc()

    # Inference

    async def _model_infer(self, request: Any, context: Any) -> Any:
        left = context.time_remaining()
        deadline = None if left is None else time.monotonic() + left
        result = await self._service.score(self._admit(request, deadline, context))
        response = message("inference.ModelInferResponse")()
        fill_response(response, request.id, result)
        return response

    def _admit(self, request: Any, deadline: float | None, context: Any) -> ScoreRequest:
        client = None if self._guard is None else self._guard.admit("ModelInfer", request, context)
        if self._turn_away is not None and not request.model_version:
            self._turn_away(request.model_name)
        scoring = self._read(request, deadline)
        if client is not None:
            client.sign(scoring)
        if self._traces:
            join_trace(scoring, traceparent_of(context.invocation_metadata()))
        return scoring

    async def _model_stream_infer(self, requests: object, context: Any) -> None:
        """One answer for each request, in their order; a failed one does not end the stream."""

        def submit(request: Any, deliver: Deliver) -> Ticket:
            return self._service.submit(self._admit(request, None, context), deliver)

        stream = InferStream(context, submit, self._stream_response)
        self._streams.add(stream)
        if self._draining:
            stream.cut_off()
        try:
            await stream.run()
        except DecodeError as error:
            raise BadRequest(f"a message of the stream is no ModelInferRequest: {error}") from None
        finally:
            self._streams.discard(stream)

    def _stream_response(self, request: Any, outcome: ScoreResult | HoplineError) -> Any:
        response = message("inference.ModelStreamInferResponse")()
        answer = response.infer_response
        if isinstance(outcome, HoplineError):
            self._count(grpc_code(outcome).name)
            response.error_message = str(outcome)
            answer.id = request.id
            answer.model_name = request.model_name
        else:
            self._count("OK")
            fill_response(answer, request.id, outcome)
        return response

    def _read(self, request: Any, deadline: float | None) -> ScoreRequest:
        return oip.request_from_tensors(
            request.model_name,
            request.model_version,
            self._reader.tensors(request),
            self._reader.outputs(request),
            parameters_of(request.parameters),
            request.id or f"{self._id_prefix}-{next(self._ids):x}",
            deadline,
        )

    # Health and description

    async def _server_live(self, request: Any, context: Any) -> Any:
        return message("inference.ServerLiveResponse")(live=self._service.live())

    async def _server_ready(self, request: Any, context: Any) -> Any:
        return message("inference.ServerReadyResponse")(ready=self._is_ready())

    async def _model_ready(self, request: Any, context: Any) -> Any:
        ready = oip.model_is_ready(self._service, request.name, request.version or None)
        return message("inference.ModelReadyResponse")(ready=ready and not self._draining)

    async def _server_metadata(self, request: Any, context: Any) -> Any:
        return message("inference.ServerMetadataResponse")(**oip.server_metadata())

    async def _model_metadata(self, request: Any, context: Any) -> Any:
        info = self._service.describe(request.name, request.version or None)
        return message("inference.ModelMetadataResponse")(**oip.model_metadata(info))

    async def _model_config(self, request: Any, context: Any) -> Any:
        info = self._service.describe(request.name, request.version or None)
        response = message("inference.ModelConfigResponse")()
        return json_format.ParseDict({"config": oip.model_config(info)}, response)

    async def _model_statistics(self, request: Any, context: Any) -> Any:
        rows = oip.all_statistics(self._service, request.name or None, request.version or None)
        rows = self._shown(rows, context)
        response = message("inference.ModelStatisticsResponse")()
        # A service may count more than the protocol has fields for.
        return json_format.ParseDict({"model_stats": rows}, response, ignore_unknown_fields=True)

    async def _repository_index(self, request: Any, context: Any) -> Any:
        index = oip.repository_index(self._service, ready_only=request.ready)
        return message("inference.RepositoryIndexResponse")(models=self._shown(index, context))

    def _shown(self, rows: list[dict[str, Any]], context: Any) -> list[dict[str, Any]]:
        """Those rows of a list whose models the caller may read."""
        if self._guard is None:
            return rows
        client = self._guard.caller(context)
        return [row for row in rows if client.may("read", row["name"])]

    async def _repository_model_load(self, request: Any, context: Any) -> Any:
        await self._change("load", request)
        return message("inference.RepositoryModelLoadResponse")()

    async def _repository_model_unload(self, request: Any, context: Any) -> Any:
        await self._change("unload", request)
        return message("inference.RepositoryModelUnloadResponse")()

    async def _change(self, verb: str, request: Any) -> None:
        change: Callable[..., Awaitable[object]] | None = getattr(self._service, verb, None)
        if change is None:
            raise BadRequest(f"this server does not {verb} models on request")
        parameters = parameters_of(request.parameters)
        await change(request.model_name, **change_parameters(verb, parameters))

    async def _health_check(self, request: Any, context: Any) -> Any:
        status = self._health_status(request.service)
        if status == _SERVICE_UNKNOWN:
            raise ModelNotFound(f"no service {request.service!r}; there is {INFERENCE}")
        return message("grpc.health.v1.HealthCheckResponse")(status=status)

    async def _health_watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """The status now and at each change, looked at twice a second."""
        last = None
        while True:
            status = self._health_status(request.service)
            if status != last:
                last = status
                yield message("grpc.health.v1.HealthCheckResponse")(status=status)
            await asyncio.sleep(0.5)
            if self._draining and last != _SERVING:  # its connection could not end otherwise
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")

    def _health_status(self, name: str) -> int:
        if name not in ("", INFERENCE):
            return _SERVICE_UNKNOWN
        return _SERVING if self._is_ready() else _NOT_SERVING

    def _is_ready(self) -> bool:
        return self._service.ready() and not self._draining


_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = 1, 2, 3


def fill_response(response: Any, request_id: str, result: ScoreResult) -> None:
    """Write a result into an empty ModelInferResponse, with raw contents."""
    response.model_name = result.model
    response.model_version = result.version
    response.id = request_id
    for name, value in oip.answer_parameters(result).items():
        response.parameters[name].string_param = value
    for tensor in oip.tensors_from_result(result):
        response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        response.raw_output_contents.append(encode_raw(tensor))


def _unimplemented(text: str) -> Callable[[Any, Any], Awaitable[Any]]:
    async def call(request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, text)

    return call


def _snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
