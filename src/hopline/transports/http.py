"""The HTTP application: paths to service calls, errors to statuses.

This file handles paths, headers and bodies; `turnserve` handles sockets, and the service scores.
The score route answers in the same loop iteration if the service can.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import itertools
import re
import secrets
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import msgspec

from hopline.config.schema import Config
from hopline.errors import BadRequest, HoplineError, ModelNotFound
from hopline.ingress.gatekeeper import Gatekeeper
from hopline.observe.exposition import CONTENT_TYPE, OPEN_METRICS_TYPE, wants_open_metrics
from hopline.observe.metrics import Counter
from hopline.transports import oip
from hopline.transports.body_threads import LoopShare, load_kernels
from hopline.transports.failure import as_hopline_error, without_frames, without_names
from hopline.transports.http_access import BrowserRules, Guard, client_of, named_model
from hopline.transports.http_answers import described, listed
from hopline.transports.http_bodies import Reading, check_change, check_json, check_score, is_small, read
from hopline.transports.http_errors import encode_json, error_response, limit_error, plain_error
from hopline.transports.http_operations import added_routes, operations_of, table_of
from hopline.transports.http_routes import (
    Handler,
    Route,
    missing_route,
    route_of,
    unsupported,
    without_fields,
)
from hopline.transports.http_waiting import Inferring, Scoring, Working
from hopline.transports.json_body import check_charset, decode_body, refuse_repeated
from hopline.transports.lifecycle_requests import DECISIONS, IndexBody, LifecycleRequests, graph_updates
from hopline.transports.oip_json import check_names, decode_infer, logged_id
from hopline.transports.openapi import Description
from hopline.transports.pages import index_page
from hopline.transports.path_table import ONE_SPELLING, parts_of
from hopline.transports.platform_routes import Predicting, only_model, score_body
from hopline.transports.score_json import deadline_after, decode_score, may_name_version, score_request
from hopline.transports.traces import join_trace
from turnserve.budget import Budget
from turnserve.compression import PIECE_BYTES
from turnserve.http1.messages import Pending, Request, Response

if TYPE_CHECKING:
    from hopline.service import Service

_HTML = b"text/html; charset=utf-8"
#: Limit of cached routes; a full cache is cleared, so that invented names cannot fill memory.
_MAX_ROUTES = 1024
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")
_decode_index = msgspec.json.Decoder(IndexBody).decode


class HttpApp:
    """The application: a `Handler` for connections.

    Attributes:
        budget: memory for answers while they are encoded; the listener's, if there is one.
        loop_share: what the loop encodes in one turn.
        draining: the server reports that it is not ready, but still serves requests.
        opening: the same until the other transports of the server are open.
    """

    def __init__(self, service: Service, config: Config, gate: Gatekeeper | None = None) -> None:
        self.budget = Budget.for_bodies(config.server.max_body_bytes)
        self.loop_share = LoopShare()
        self.draining = self.opening = False
        self._service = service
        rules = BrowserRules(config.server.hosts, config.server.host)
        self._guard = None if gate is None else Guard(gate, rules)
        self._admission = self._guard or rules
        self._open_metrics = config.auth.open_metrics
        self._max_body_bytes = config.server.max_body_bytes
        self._max_nodes = config.limits.max_nodes_per_request
        load_kernels()
        self._submit = service.submit
        self._reject_early = service.reject_early
        self._traces = bool(config.tracing.endpoint)
        self._lifecycle = LifecycleRequests(service)
        self._routes: dict[bytes, Route] = {}
        operations = operations_of(config.server)
        self._table = table_of(operations)
        self._description = Description(operations, config)
        self._handlers = self._make_handlers(self._max_nodes)
        self._id_prefix = secrets.token_hex(6).encode()
        self._ids = itertools.count()
        self._answers: dict[int, Counter] = {}
        self._ok = self._counter(200)

    def __call__(self, request: Request) -> Response | Pending:
        """Answer a request; never raises."""
        headers = request.headers
        request_id = headers.get(b"x-request-id")
        if request_id is None or not _REQUEST_ID.fullmatch(request_id):
            request_id = b"%b-%x" % (self._id_prefix, next(self._ids))
        id_line = b"x-request-id: %b\r\n" % request_id
        route = self._routes.get(request.target) or self._resolve(request.target)
        try:
            if request.method not in route.methods and route.methods:
                return self._method_not_allowed(request, route, id_line)
            self._admission.admit(request, route.access)
            is_large = len(request.body) > PIECE_BYTES or b"content-encoding" in headers
            if is_large and not is_small(request):
                reading = read(request, route.check, self._max_body_bytes)
                return Reading(reading, functools.partial(self._handle_read, route, request, id_line))
            # The same as `_handle_read`, without a call, since most requests are small.
            if b";" in headers.get(b"content-type", b""):  # it has parameters
                check_charset(headers[b"content-type"], request.body)
            answer = route.handle(request, id_line)
        except Exception as error:
            return self.failed(error, id_line, oip=route.oip)
        if type(answer) is Response:
            self._count(answer.status)
        return answer

    def _handle_read(
        self, route: Route, request: Request, id_line: bytes, reading: asyncio.Future[None]
    ) -> Response | Pending:
        """Answer a request after its body was read on a thread, or that failed; never raises."""
        try:
            reading.result()
            if b";" in request.headers.get(b"content-type", b""):
                check_charset(request.headers[b"content-type"], request.body)
            answer = route.handle(request, id_line)
        except Exception as error:
            response = self.failed(error, id_line, oip=route.oip)
            # The future refers to the error, whose frames refer to the body and the future.
            without_frames(error)
            return response
        finally:
            request.body, request.decoded = b"", None  # large and no longer needed
        if type(answer) is Response:
            self._count(answer.status)
        return answer

    def refuse(self, status: int, text: str) -> Response:
        """Return the response to a request that was refused while it was read."""
        self._count(status)
        return limit_error(status, text)

    def screen(self, request: Request) -> Response | None:
        """Return a refusal of a large request before its body has arrived; None allows the body."""
        route = self._routes.get(request.target) or self._resolve(request.target)
        try:
            self._admission.screen(request, route.access)
        except HoplineError as error:
            id_line = b"x-request-id: %b-%x\r\n" % (self._id_prefix, next(self._ids))
            return self.failed(error, id_line, oip=route.oip)
        return None

    # Scoring

    def _predict(self, request: Request, id_line: bytes) -> Response | Pending:
        model = only_model(self._service.model_names())
        body = score_body(request.body)
        if body is None:
            return self._score(model, None, request, id_line)
        request.body, request.is_counted = body, True
        return self._score(model, None, request, id_line, Predicting)

    def _score(
        self,
        model: str,
        version: str | None,
        request: Request,
        id_line: bytes,
        kind: type[Scoring] = Scoring,
    ) -> Response | Pending:
        if version is None and not may_name_version(request.body):
            self._reject_early(model)
        body: Any = request.decoded or decode_score(request.body, is_counted=request.is_counted)
        if len(request.body) > self._max_nodes:  # each node needs at least a byte
            oip.check_count(len(body.nodes or ()) + len(body.inline or ()), "nodes", self._max_nodes)
        header = request.headers.get(b"timeout-ms")
        deadline = None
        if header is not None or body.timeout_ms is not None:
            deadline = deadline_after(body.timeout_ms, header, time.monotonic())
        scoring = score_request(model, version, body, deadline, id_line[14:-2].decode())
        if self._guard is not None:
            client_of(request).sign(scoring)
        if self._traces:
            join_trace(scoring, request.headers.get(b"traceparent"))
        waiting = kind(self, scoring, id_line)
        waiting.ticket = self._submit(scoring, waiting.deliver)
        return waiting

    def _infer(
        self, model: str, version: str | None, request: Request, id_line: bytes
    ) -> Response | Pending:
        headers = request.headers
        if version is None:
            self._reject_early(model)
        length = headers.get(b"inference-header-content-length")
        infer, tensors = decode_infer(request.body, length, is_counted=request.is_counted)
        deadline = deadline_after(None, headers.get(b"timeout-ms"), time.monotonic())
        scoring = oip.request_from_tensors(
            model,
            check_names(infer, model, version) or "",
            tensors,
            [output.name for output in infer.outputs or ()],
            infer.parameters or {},
            logged_id(infer, headers, id_line),
            deadline,
            self._max_nodes,
        )
        if self._guard is not None:
            client_of(request).sign(scoring)
        if self._traces:
            join_trace(scoring, headers.get(b"traceparent"))
        waiting = Inferring(self, scoring, id_line)
        waiting.infer = infer
        waiting.ticket = self._submit(scoring, waiting.deliver)
        return waiting

    # Health and description

    def _live(self, request: Request, id_line: bytes) -> Response:
        live = self._service.live()
        body = encode_json({"live": live})
        return Response(body, 200 if live else 503, headers=id_line)

    def _ready(self, request: Request, id_line: bytes) -> Response:
        service = self._service
        ready = service.ready() and not self.draining and not self.opening
        if self._guard is not None:
            client = self._guard.recognised(request)
            if client is None:  # a probe, or an unknown client: do not show names and failures of models
                return Response(encode_json({"ready": ready}), 200 if ready else 503, headers=id_line)
            request.client = client
        models = {
            name: service.describe(name) for name in service.model_names() if self._shows(request, name)
        }
        reasons = ["the server is draining"] if self.draining else []
        reasons += ["the server is starting: its ports are not all open"] if self.opening else []
        if not service.ready() and not self.draining:
            reasons.append("no requests are accepted: no model is ready, or the live graph is not")
        reasons += [
            f"model {name}: {info.state}: {info.reason}"
            for name, info in models.items()
            if info.state != "READY"
        ]
        states = {name: info.state for name, info in models.items()}
        # A model that cannot be loaded does not make the server unready for the others.
        for name, why in service.unavailable().items():
            if self._shows(request, name):
                reasons.append(f"model {name}: UNAVAILABLE: {why}")
                states[name] = "UNAVAILABLE"
        for named, what in service.differing().items():
            if self._shows(request, named.rpartition("/")[0]):
                reasons.append(f"model {named}: not the same in all workers: {what}")
        body = encode_json({"ready": ready, "reasons": reasons, "models": states})
        return Response(body, 200 if ready else 503, headers=id_line)

    def _metrics(self, request: Request, id_line: bytes) -> Response:
        is_open = wants_open_metrics(request.headers.get(b"accept"))
        body = self._service.metrics.render(open_metrics=is_open)
        kind = OPEN_METRICS_TYPE if is_open else CONTENT_TYPE
        return Response(body, 200, kind, b"%bvary: accept\r\n" % id_line)

    def _options(self, request: Request, id_line: bytes) -> Response:
        return Response(b"", headers=id_line + b"allow: GET, HEAD, POST, DELETE, OPTIONS\r\n")

    def _index(self, request: Request, id_line: bytes) -> Response:
        return Response(index_page(self._service), 200, _HTML, id_line)

    def _openapi(self, request: Request, id_line: bytes) -> Response:
        return Response(self._description.json, headers=id_line)

    def _docs(self, request: Request, id_line: bytes) -> Response:
        return Response(self._description.page, 200, _HTML, id_line)

    def _list_models(self, request: Request, id_line: bytes) -> Response:
        service = self._service
        infos = [service.describe(name) for name in service.model_names() if self._shows(request, name)]
        # OpenAI's clients read their own names at the same path, and Hopline's theirs.
        return Response(msgspec.json.encode({"models": infos, **listed(infos)}), headers=id_line)

    def _describe(self, model: str, version: str | None, request: Request, id_line: bytes) -> Response:
        return Response(
            msgspec.json.encode(described(self._service.describe(model, version))), headers=id_line
        )

    def _server_metadata(self, request: Request, id_line: bytes) -> Response:
        metadata = oip.server_metadata()
        if log_id := self._service.log_id:
            metadata["prediction_log"] = log_id
        return Response(encode_json(metadata), headers=id_line)

    def _metadata(self, model: str, version: str | None, request: Request, id_line: bytes) -> Response:
        metadata = oip.model_metadata(self._service.describe(model, version))
        return Response(encode_json(metadata), headers=id_line)

    def _model_ready(self, model: str, version: str | None, request: Request, id_line: bytes) -> Response:
        client = None if self._guard is None else self._guard.recognised(request)
        try:
            ready = oip.model_is_ready(self._service, model, version) and not self.draining
        except ModelNotFound:  # its message lists the models
            if self._guard is None or (client is not None and client.may("read", model)):
                raise
            ready = False
        return Response(encode_json({"ready": ready}), 200 if ready else 503, headers=id_line)

    def _config(self, model: str, version: str | None, request: Request, id_line: bytes) -> Response:
        info = self._service.describe(model, version)
        return Response(encode_json(oip.model_config(info, self._max_nodes)), headers=id_line)

    def _statistics(
        self, model: str | None, version: str | None, request: Request, id_line: bytes
    ) -> Response:
        rows = oip.all_statistics(self._service, model, version)
        rows = [row for row in rows if self._shows(request, row["name"])]
        return Response(encode_json({"model_stats": rows}), headers=id_line)

    # Repository

    def _repository_index(self, request: Request, id_line: bytes) -> Response:
        wanted = decode_body(request.body or b"{}", _decode_index, IndexBody, example='{"ready": true}')
        refuse_repeated(request.body)
        rows = oip.repository_index(self._service, ready_only=wanted.ready)
        return Response(encode_json([x for x in rows if self._shows(request, x["name"])]), headers=id_line)

    def _repository_change(self, verb: str, model: str, request: Request, id_line: bytes) -> Pending:
        task = asyncio.ensure_future(self._lifecycle.change(verb, model, request.body))
        return Working(self, task, lambda _: Response(b"{}", headers=id_line), id_line, oip=True)

    # Rollouts

    def _graph(self, request: Request, id_line: bytes) -> Response:
        return Response(encode_json(graph_updates(self._service).describe()), headers=id_line)

    def _events(self, request: Request, id_line: bytes) -> Pending:
        deadline = deadline_after(None, request.headers.get(b"timeout-ms"), time.monotonic())
        return self._work(graph_updates(self._service).apply(request.body, deadline), id_line)

    def _remove_node(self, node_type: str, node: str, request: Request, id_line: bytes) -> Pending:
        if request.body or b"?" in request.target:
            raise BadRequest("DELETE takes no body and no query string; /v1/graph/events takes event ids")
        deadline = deadline_after(None, request.headers.get(b"timeout-ms"), time.monotonic())
        return self._work(graph_updates(self._service).remove_node(node_type, node, deadline), id_line)

    def _begin_rollout(self, request: Request, id_line: bytes) -> Pending:
        if self._guard is not None:
            client_of(request).check("admin", named_model(request.body))
        return self._work(self._lifecycle.begin(request.body), id_line)

    def _rollouts(self, request: Request, id_line: bytes) -> Response:
        names = [name for name in self._service.model_names() if self._shows(request, name)]
        return Response(
            encode_json({"rollouts": list(map(self._lifecycle.describe, names))}), headers=id_line
        )

    def _rollout(self, model: str, request: Request, id_line: bytes) -> Response:
        return Response(encode_json(self._lifecycle.describe(model)), headers=id_line)

    def _decide(self, verb: str, model: str, request: Request, id_line: bytes) -> Pending:
        return self._work(self._lifecycle.decide(verb, model, request.body), id_line)

    def _work(self, work: Awaitable[Any], id_line: bytes) -> Pending:
        def respond(result: Any) -> Response:
            return Response(msgspec.json.encode(result), headers=id_line)

        return Working(self, asyncio.ensure_future(work), respond, id_line, oip=False)

    def _shows(self, request: Request, model: str) -> bool:
        """Return True if a list shows this model to the client of the request."""
        return self._guard is None or client_of(request).may("read", model)

    # Routing

    def _resolve(self, target: bytes) -> Route:
        """Return the route of a target, from the cache if possible."""
        if target == b"*":  # the server as a whole (RFC 9110, 9.3.7)
            return Route(self._options, (b"OPTIONS",), oip=False)
        path, _, query = target.partition(b"?")
        parts = parts_of(path) or []
        found = self._table.find(parts)
        if found is None:
            route = unsupported(parts)
        else:
            route = route_of(found, self._handlers, open_metrics=self._open_metrics)
        if route is None:
            text = f"unknown path {path.decode('latin-1')}; "
            text += "see / for an overview" if parts else ONE_SPELLING
            return missing_route(text, is_oip=path.lstrip(b"/").startswith(b"v2/"))
        if query and b"POST" in route.methods:
            route = without_fields(route, query)
        if found is not None and found.entries[0].id == "predict":
            # Not cached: another model may be the only one by the next request.
            model = next(iter(self._service.model_names()), "")
            return dataclasses.replace(route, access=route.access._replace(model=model))
        if len(self._routes) >= _MAX_ROUTES:
            self._routes.clear()
        self._routes[target] = route
        return route

    def _make_handlers(self, max_nodes: int) -> dict[str, Handler]:
        """Return the handler of each operation."""
        score_check = check_score(max_nodes)
        guarded, added = self._guard is not None, dict[str, Handler]()
        for routes in added_routes():
            added.update(routes.handlers(self, self._service, guarded=guarded, traces=self._traces))
        return {
            **added,
            "index": Handler(self._index),
            "openapi": Handler(self._openapi),
            "docs": Handler(self._docs),
            "healthz": Handler(self._live),
            "readyz": Handler(self._ready),
            "platform_ready": Handler(self._ready),
            "metrics": Handler(self._metrics),
            "models": Handler(self._list_models),
            "model": Handler(self._describe),
            "score": Handler(self._score, score_check),
            "predict": Handler(self._predict, check_json),
            "graph": Handler(self._graph),
            "graph_events": Handler(self._events),  # limits its own bodies
            "remove_node": Handler(self._remove_node),
            "rollouts": Handler(self._rollouts),
            "begin_rollout": Handler(self._begin_rollout, check_change),
            "rollout": Handler(self._rollout),
            **{
                f"rollout_{verb}": Handler(functools.partial(self._decide, verb), check_change)
                for verb in DECISIONS
            },
            "server_metadata": Handler(self._server_metadata),
            "server_live": Handler(self._live),
            "server_ready": Handler(self._ready),
            "statistics": Handler(functools.partial(self._statistics, None, None)),
            "model_metadata": Handler(self._metadata),
            "model_ready": Handler(self._model_ready),
            "model_config": Handler(self._config),
            "model_statistics": Handler(self._statistics),
            "infer": Handler(self._infer, check_json),
            "repository_index": Handler(self._repository_index, check_change),
            "load": Handler(functools.partial(self._repository_change, "load"), check_change),
            "unload": Handler(functools.partial(self._repository_change, "unload"), check_change),
        }

    # Outcomes

    def _method_not_allowed(self, request: Request, route: Route, id_line: bytes) -> Response:
        allowed = b", ".join(route.methods)
        text = f"{request.method.decode('latin-1')} is not allowed for this path; use {allowed.decode()}"
        self._count(405)
        return plain_error(405, text, b"%ballow: %b\r\n" % (id_line, allowed), oip=route.oip)

    def failed(self, error: BaseException, id_line: bytes, *, oip: bool) -> Response:
        """Return the response of a request that failed."""
        known: HoplineError = as_hopline_error(error, id_line[14:-2].decode())
        if self._guard is not None:
            known = without_names(known)
        response = error_response(known, id_line, oip=oip)
        self._count(response.status)
        return response

    def count_ok(self) -> None:
        """Count an answer with status 200."""
        self._ok.value += 1

    def _count(self, status: int) -> None:
        if status == 200:
            self._ok.value += 1
        else:
            self._counter(status).inc()

    def _counter(self, status: int) -> Counter:
        found = self._answers.get(status)
        if found is None:
            found = self._answers[status] = self._service.metrics.answers("http", str(status))
        return found
