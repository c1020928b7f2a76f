"""gRPC services for inference, health and reflection, on the server's event loop.

This file handles messages and calls. `oip.py` translates tensors and requests, as for HTTP. The trailing
metadata of an error contain its stable code, `hopline-error`, and `retry-after-ms`.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format  # type: ignore[import-untyped]

from hopline.errors import HoplineError, ModelNotFound, Unavailable, public_text, quoted
from hopline.ingress.client import Client
from hopline.ingress.gatekeeper import Gatekeeper
from hopline.observe.metrics import Counter
from hopline.transports import oip
from hopline.transports.body_threads import LoopShare, encode_large, load_kernels
from hopline.transports.failure import as_hopline_error, without_names
from hopline.transports.grpc_access import GrpcGuard, check_name, check_names, permission_of
from hopline.transports.grpc_errors import grpc_code, text_of, trailers_of
from hopline.transports.grpc_reflection import SERVICES as REFLECTIONS
from hopline.transports.grpc_reflection import Reflection
from hopline.transports.grpc_request import (
    RequestReader,
    encode_answer,
    fill_response,
    parameters_of,
    parsed,
)
from hopline.transports.grpc_stream import (
    LARGE_BYTES,
    InferStream,
    Offer,
    Steps,
    TextParts,
    has_parts,
    mark_last,
    wants_parts,
)
from hopline.transports.lifecycle_requests import change_parameters, checked_path
from hopline.transports.proto import message, methods
from hopline.transports.traces import join_trace
from hopline.types import Deliver, ScoreRequest, ScoreResult, Ticket
from turnserve.grpc.call import Call, Method
from turnserve.grpc.status import MAX_QUOTED, CallError, StatusCode

if TYPE_CHECKING:
    from hopline.service import Service

INFERENCE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"
_REFLECT = "ServerReflectionInfo"
#: Limit of messages that contain only names.
_MAX_NAMING_BYTES = 64 * 1024
#: Limit of messages of clients without credentials: one model name and version.
_MAX_OPEN_BYTES = 512
#: Methods of the published interface that are not implemented.
_UNIMPLEMENTED = {
    **{
        f"{kind}SharedMemory{verb}": oip.NO_SHARED_MEMORY
        for kind in ("System", "Cuda")
        for verb in ("Status", "Register", "Unregister")
    },
    "TraceSetting": oip.NO_TRACE_SETTINGS,
    "LogSettings": oip.NO_LOG_SETTINGS,
}


class GrpcApp:
    """The methods of the gRPC services.

    Args:
        service: answers the requests.
        gate: authenticates clients; None without authentication.
        traces: True if requests join the trace of their call's metadata.
        max_nodes: limit of nodes, pairs or rows of one request.
    """

    def __init__(
        self,
        service: Service,
        gate: Gatekeeper | None = None,
        *,
        traces: bool = False,
        max_nodes: int = 4096,
    ) -> None:
        self._max_nodes = max_nodes
        self._draining = False
        self._streams: set[InferStream] = set()
        self._reader = RequestReader()
        self._loop_share = LoopShare()
        load_kernels()
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: dict[StatusCode, Counter] = {}
        self._traces = traces
        self._service = service
        self._guard = None if gate is None else GrpcGuard(gate, permission_of)
        self._id_prefix = secrets.token_hex(6)
        self._ids = itertools.count()

    def methods(self) -> dict[bytes, Method]:
        """Return the methods by path."""
        found = {}
        for service, prefix in ((INFERENCE, ""), (HEALTH, "health_")):
            for method in methods(service):
                found[f"/{service}/{method.name}".encode()] = self._method(method, prefix)
        for service in REFLECTIONS:
            found[f"/{service}/{_REFLECT}".encode()] = self._reflection(service)
        for name, text in _UNIMPLEMENTED.items():
            found[f"/{INFERENCE}/{name}".encode()] = self._unimplemented(name, text)
        return found

    def begin_drain(self) -> None:
        """Report the server as not ready, and end streams in order; calls are still served."""
        self._draining = True
        for stream in list(self._streams):
            stream.cut_off()

    def fail(self, call: Call, error: Exception, request_id: str = "") -> None:
        """End a call with an error for the client, and count the error."""
        if isinstance(error, CallError):
            self._count(error.code)
            call.finish(error.code, public_text(text_of(error)), trailers_of(error))
            return
        known = as_hopline_error(error, request_id[:MAX_QUOTED] or "(none)")
        if self._guard is not None:
            known = without_names(known)
        code = grpc_code(known)
        self._count(code)
        call.finish(code, public_text(str(known)), trailers_of(known))

    def _count(self, code: StatusCode) -> None:
        counter = self._answers.get(code)
        if counter is None:
            counter = self._answers[code] = self._service.metrics.answers("grpc", code.name)
        counter.inc()

    def _method(self, method: Any, prefix: str) -> Method:
        admit = self._entrance(method.name)
        if method.name == "ModelInfer":
            return Method(method.name, self._infer, admit=admit)
        if method.name == "ModelStreamInfer":
            return Method(method.name, self._stream_infer, streams=True, admit=admit)
        behaviour = getattr(self, f"_{prefix}{re.sub('(?<!^)(?=[A-Z])', '_', method.name).lower()}")
        request = message(method.input_type.full_name)
        answer = self._answer_each if method.name == "Watch" else self._answer_once

        def begin(call: Call, data: bytes) -> None:
            self._work(call, answer(behaviour, method.name, request, call, data))

        permission = permission_of(method.name)
        max_bytes = None if permission == "admin" else _MAX_NAMING_BYTES
        if permission == "open" and self._guard is not None:
            max_bytes = _MAX_OPEN_BYTES
        return Method(method.name, begin, admit=admit, max_bytes=max_bytes)

    def _entrance(self, method: str) -> Callable[[Call], None] | None:
        """Return a check of a call's credentials that runs on its head, before a message is read."""
        guard = self._guard
        if guard is None or permission_of(method) == "open":
            return None
        find = guard.recognise if method == "ModelStreamInfer" else guard.enter

        def admit(call: Call) -> None:
            call.client = find(
                method, call.metadata("authorization"), call.metadata("x-api-key"), call.peer
            )

        return admit

    def _reflection(self, service: str) -> Method:
        listed = (INFERENCE, HEALTH, *REFLECTIONS)
        steps = Reflection(service, listed, lambda: self._count(StatusCode.OK)).steps()

        def begin(call: Call, data: bytes) -> None:
            self._stream(call, steps)

        admit = self._entrance(_REFLECT)
        return Method(_REFLECT, begin, streams=True, admit=admit, max_bytes=_MAX_NAMING_BYTES)

    def _unimplemented(self, name: str, text: str) -> Method:
        def refuse(call: Call) -> None:
            raise CallError(StatusCode.UNIMPLEMENTED, f"{name}: {text}", "not_found")

        def begin(call: Call, data: bytes) -> None:
            """Do nothing: no call is admitted."""

        return Method(name, begin, admit=refuse)

    def _work(self, call: Call, work: Coroutine[Any, Any, None]) -> None:
        """Answer a call in a task, which is cancelled if its client cancels the call."""
        task = asyncio.get_running_loop().create_task(work)
        # Tasks without a reference may be collected before they have run.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        call.on_gone = task.cancel

    async def _answer_once(
        self,
        behaviour: Callable[[Any, Call], Awaitable[Any]],
        name: str,
        request: Any,
        call: Call,
        data: bytes,
    ) -> None:
        """Answer a call once; a failure becomes a status, and a cancelled call stays cancelled."""
        try:
            incoming = parsed(request, data)
            check_names(incoming)
            if call.client is not None:
                assert self._guard is not None
                self._guard.check(name, incoming, call.client)
            answer = (await behaviour(incoming, call)).SerializeToString()
        except Exception as error:
            self.fail(call, error)
        else:
            if call.respond(answer):
                self._count(StatusCode.OK)

    async def _answer_each(
        self,
        behaviour: Callable[[Any, Call], AsyncIterator[Any]],
        name: str,
        request: Any,
        call: Call,
        data: bytes,
    ) -> None:
        """Answer a call repeatedly; a failure becomes a status."""
        try:
            incoming = parsed(request, data)
            check_names(incoming)
            async for answer in behaviour(incoming, call):
                call.write(answer.SerializeToString())
        except Exception as error:
            self.fail(call, error)
        else:
            call.finish()

    # Inference

    def _infer(self, call: Call, data: bytes) -> None:
        if len(data) > LARGE_BYTES:
            self._work(call, self._infer_large(call, data))
            return
        request_id = ""
        try:
            request = self._reader.read(data)
            request_id = request.id
            self._permit(request, call.client)
            scoring = self._read(request, call.deadline)
            if self._guard is not None or self._traces:
                scoring = self._signed(scoring, call)
        except Exception as error:
            self.fail(call, error, request_id)
        else:
            self._submit(call, request_id, scoring)

    async def _infer_large(self, call: Call, data: bytes) -> None:
        try:
            request, scoring = await self._read_large(data, call, call.deadline)
            scoring = self._signed(scoring, call)
        except Exception as error:
            self.fail(call, error)
            return
        call.on_gone = None
        if call.is_open:
            self._submit(call, request.id, scoring)

    def _submit(self, call: Call, request_id: str, scoring: ScoreRequest) -> None:
        def deliver(outcome: ScoreResult | HoplineError) -> None:
            call.on_gone = None
            if isinstance(outcome, HoplineError):
                self.fail(call, outcome, request_id)
            elif not self._loop_share.fits(outcome):
                self._work(call, self._respond_large(call, request_id, outcome))
            else:
                self._respond(call, request_id, functools.partial(encode_answer, request_id, outcome))

        try:
            ticket = self._service.submit(scoring, deliver)
        except Exception as error:
            self.fail(call, error, request_id)
        else:
            if call.is_open:
                call.on_gone = ticket.cancel

    def _respond(self, call: Call, request_id: str, encode: Callable[[], bytes]) -> None:
        """Send the answer that a function returns."""
        try:
            answer = encode()
        except Exception as error:  # a failure of this answer; the service has more to deliver
            self.fail(call, error, request_id)
            return
        if call.respond(answer):
            self._count(StatusCode.OK)

    async def _respond_large(self, call: Call, request_id: str, result: ScoreResult) -> None:
        encoding = encode_large(call.budget, result, functools.partial(encode_answer, request_id, result))
        await asyncio.wait([encoding])
        call.on_gone = None
        if call.is_open:
            self._respond(call, request_id, encoding.result)

    def _permit(self, request: Any, client: Client | None) -> None:
        """Check model names and permissions before tensors are read."""
        model, version = request.model_name, request.model_version
        check_name("model_name", model)
        if version:
            check_name("model_version", version)
        if client is not None:
            assert self._guard is not None
            self._guard.check("ModelInfer", request, client)
        if not version:
            self._service.reject_early(model)

    def _signed(self, scoring: ScoreRequest, call: Call) -> ScoreRequest:
        if call.client is not None:
            call.client.sign(scoring)
        if self._traces:
            join_trace(scoring, call.metadata("traceparent"))
        return scoring

    async def _read_large(
        self, data: bytes, call: Call, deadline: float | None
    ) -> tuple[Any, ScoreRequest]:
        """Read a request in a thread, since it would block the loop; permissions are checked in between."""
        request = await asyncio.to_thread(self._reader.read, data)
        self._permit(request, call.client)
        return request, await asyncio.to_thread(self._read, request, deadline)

    def _stream_infer(self, call: Call, data: bytes) -> None:
        """Return one answer for each request, in their order; a failed request does not end the stream."""

        def permit(request: Any) -> None:
            if self._guard is None:
                self._permit(request, None)
                return
            # Check again: the credentials may have expired.
            headers = call.metadata("authorization"), call.metadata("x-api-key")
            call.client = client = self._guard.recognise("ModelInfer", *headers, call.peer)
            self._permit(request, client)
            if client is not None:
                client.admit()

        def submit(request: Any, scoring: ScoreRequest, deliver: Deliver, offer: Offer) -> Ticket:
            signed = self._signed(scoring, call)
            if not has_parts(request, scoring):
                return self._service.submit(signed, deliver)
            parts = TextParts(request, offer)
            service: Any = self._service
            ticket: Ticket = service.stream(signed, parts.before(deliver), parts.take)
            return ticket

        def respond(request: Any, outcome: ScoreResult | HoplineError) -> bytes:
            encoded: bytes = self._stream_response(request, outcome).SerializeToString()
            return encoded

        steps = Steps(self._reader.read, permit, self._read, submit, respond)
        self._stream(call, steps)

    def _stream(self, call: Call, steps: Steps) -> None:
        """Answer the requests of a call in their order."""
        stream = InferStream(call, steps, self._stream_ended)
        call.listener = stream
        self._streams.add(stream)
        if self._draining:
            stream.cut_off()

    def _stream_ended(self, stream: InferStream, error: HoplineError | CallError | None) -> None:
        self._streams.discard(stream)
        if error is not None:
            self.fail(stream.call, error)
        else:
            stream.call.finish()

    def _stream_response(self, request: Any, outcome: ScoreResult | HoplineError) -> Any:
        response = message("inference.ModelStreamInferResponse")()
        answer = response.infer_response
        if isinstance(outcome, HoplineError):
            self._count(grpc_code(outcome))
            shown = outcome if self._guard is None else without_names(outcome)
            response.error_message = public_text(str(shown))
            answer.id = request.id
            answer.model_name = request.model_name
        else:
            self._count(StatusCode.OK)
            fill_response(answer, request.id, outcome)
        if request.parameters and wants_parts(request):
            mark_last(answer)
        return response

    def _read(self, request: Any, deadline: float | None = None) -> ScoreRequest:
        return oip.request_from_tensors(
            request.model_name,
            request.model_version,
            self._reader.tensors(request),
            self._reader.outputs(request),
            parameters_of(request.parameters),
            request.id or f"{self._id_prefix}-{next(self._ids):x}",
            deadline,
            self._max_nodes,
        )

    # Health and description

    async def _server_live(self, request: Any, call: Call) -> Any:
        return message("inference.ServerLiveResponse")(live=self._service.live())

    async def _server_ready(self, request: Any, call: Call) -> Any:
        return message("inference.ServerReadyResponse")(ready=self._is_ready())

    async def _model_ready(self, request: Any, call: Call) -> Any:
        try:
            ready = oip.model_is_ready(self._service, request.name, request.version or None)
        except ModelNotFound:
            ready = False
        return message("inference.ModelReadyResponse")(ready=ready and not self._draining)

    async def _server_metadata(self, request: Any, call: Call) -> Any:
        return message("inference.ServerMetadataResponse")(**oip.server_metadata())

    async def _model_metadata(self, request: Any, call: Call) -> Any:
        info = self._service.describe(request.name, request.version or None)
        return message("inference.ModelMetadataResponse")(**oip.model_metadata(info))

    async def _model_config(self, request: Any, call: Call) -> Any:
        info = self._service.describe(request.name, request.version or None)
        response = message("inference.ModelConfigResponse")()
        return json_format.ParseDict({"config": oip.model_config(info, self._max_nodes)}, response)

    async def _model_statistics(self, request: Any, call: Call) -> Any:
        rows = oip.all_statistics(self._service, request.name or None, request.version or None)
        rows = self._shown(rows, call)
        response = message("inference.ModelStatisticsResponse")()
        # A service may count more than the protocol has fields for.
        return json_format.ParseDict({"model_stats": rows}, response, ignore_unknown_fields=True)

    async def _repository_index(self, request: Any, call: Call) -> Any:
        index = oip.repository_index(self._service, ready_only=request.ready)
        return message("inference.RepositoryIndexResponse")(models=self._shown(index, call))

    def _shown(self, rows: list[dict[str, Any]], call: Call) -> list[dict[str, Any]]:
        """Return the rows of a list whose models the caller may read."""
        client = call.client
        return rows if client is None else [row for row in rows if client.may("read", row["name"])]

    async def _repository_model_load(self, request: Any, call: Call) -> Any:
        parameters = change_parameters("load", parameters_of(request.parameters))
        await self._service.load(checked_path("model", request.model_name), **parameters)
        return message("inference.RepositoryModelLoadResponse")()

    async def _repository_model_unload(self, request: Any, call: Call) -> Any:
        parameters = change_parameters("unload", parameters_of(request.parameters))
        await self._service.unload(checked_path("model", request.model_name), **parameters)
        return message("inference.RepositoryModelUnloadResponse")()

    async def _health_check(self, request: Any, call: Call) -> Any:
        status = self._health_status(request.service)
        if status == _SERVICE_UNKNOWN:
            raise ModelNotFound(f"no service {quoted(request.service)}; this server has {INFERENCE}")
        return message("grpc.health.v1.HealthCheckResponse")(status=status)

    async def _health_watch(self, request: Any, call: Call) -> AsyncIterator[Any]:
        """Yield the status now and at each change; it is polled twice a second."""
        last = None
        while True:
            status = self._health_status(request.service)
            if status != last:
                last = status
                yield message("grpc.health.v1.HealthCheckResponse")(status=status)
            await asyncio.sleep(0.5)
            if self._draining and last != _SERVING:  # otherwise its connection could not end
                raise Unavailable("the server is shutting down")

    def _health_status(self, name: str) -> int:
        if name not in ("", INFERENCE):
            return _SERVICE_UNKNOWN
        return _SERVING if self._is_ready() else _NOT_SERVING

    def _is_ready(self) -> bool:
        return self._service.ready() and not self._draining


_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = 1, 2, 3
