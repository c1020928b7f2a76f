"""HTTP of a live simulation: `/metrics`, its state, and control requests such as `POST /faults`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, get_args

import msgspec

from hopline.errors import BadRequest, ConfigError
from hopline_mesh.simulate.exposition import CONTENT_TYPE
from hopline_mesh.simulate.http_server import Handler, number
from hopline_mesh.simulate.live import Live
from hopline_mesh.simulate.plan import Fault, FaultKind, Operation, OperationKind


class FaultOrder(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /faults`. `duration_s` is in simulated seconds."""

    kind: FaultKind
    service: str = ""
    caller: str = ""
    severity: float = 0.6
    duration_s: float = 86_400.0


class OperationOrder(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /scale`, `/rollout`, `/drain`, `/shift`, `/add` and `/remove`."""

    service: str = ""
    replicas: int = 0


_OPERATIONS = {f"/{kind}": kind for kind in get_args(OperationKind)}
_ORDERS: dict[str, type] = {"/faults": FaultOrder, **dict.fromkeys(_OPERATIONS, OperationOrder)}


def handler(live: Live) -> Callable[..., Handler]:
    """Return what creates the handlers that serve a live simulation."""
    return functools.partial(_Control, live)


class _Control(Handler):
    def __init__(self, live: Live, *connection: Any) -> None:
        self.live = live
        super().__init__(*connection)

    def do_GET(self) -> None:
        """Serve metrics and state; begin or end a fault; begin a planned change."""
        path, _ = self.target
        try:
            order: Any = self.body(_ORDERS.get(path, dict) if self.command == "POST" else dict)
            self.answer(*self._reply(path, order))
        except (BadRequest, ConfigError) as error:
            self.answer(404 if self.command == "DELETE" else 400, {"error": str(error)})

    do_POST = do_DELETE = do_GET

    def _reply(self, path: str, order: Any) -> tuple[Any, ...]:
        """Return status and content, and the type of a content that is not JSON."""
        live = self.live
        match self.command, path:
            case "GET", "/metrics":
                page = live.metrics()
                if page is None:
                    return 503, {"error": "this scrape fails, as planned"}
                return 200, page, CONTENT_TYPE
            case "GET", "/state":
                return 200, live.state()
            case "GET", "/faults":
                return 200, {"faults": live.state()["faults"]}
            case "GET", "/" | "/healthz":
                return 200, {"status": "ok", "paths": ["/metrics", "/state", "/faults", *_OPERATIONS]}
            case "POST", "/faults":
                at, fault = live.begin(
                    Fault(order.kind, 0.0, order.duration_s, order.service, order.caller, order.severity)
                )
                found = {"id": at, "kind": fault.kind, "service": fault.service}
                return 201, {**found, "caller": fault.caller or None}
            case "POST", "/kubernetes/compact":
                live.log.compact()
                return 200, {"resource_version": live.log.version}
            case "POST", _ if path in _OPERATIONS:
                done = live.operate(Operation(_OPERATIONS[path], 0.0, order.service, order.replicas))
                return 200, {"kind": done.kind, "service": done.service, "replicas": done.replicas}
            case "DELETE", "/faults":
                return 200, {"ended": [live.end(fault["id"]).kind for fault in live.state()["faults"]]}
            case "DELETE", _ if (ends := number(path.removeprefix("/faults/"))) is not None:
                return 200, {"ended": [live.end(ends).kind]}
        return 404, {"error": f"unknown path {path}"}
