"""HTTP of a live simulation: `/metrics`, its state, and control requests such as `POST /faults`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, get_args

import msgspec

from hopline.errors import BadRequest, ConfigError
from hopline_mesh.simulate.exposition import CONTENT_TYPE
from hopline_mesh.simulate.http_server import Handler
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


def handler(live: Live) -> Callable[..., Handler]:
    """Return what creates the handlers that serve a live simulation."""
    return functools.partial(_Control, live)


class _Control(Handler):
    def __init__(self, live: Live, *connection: Any) -> None:
        self.live = live
        super().__init__(*connection)

    def do_GET(self) -> None:
        """Serve metrics and state."""
        path, _ = self.target
        if path == "/metrics":
            page = self.live.metrics()
            if page is None:
                self._refuse(503, "this scrape fails, as planned")
            else:
                self.answer(200, page, CONTENT_TYPE)
        elif path == "/state":
            self.answer(200, self.live.state())
        elif path == "/faults":
            self.answer(200, {"faults": self.live.state()["faults"]})
        elif path in ("/", "/healthz"):
            self.answer(200, {"status": "ok", "paths": ["/metrics", "/state", "/faults", *_OPERATIONS]})
        else:
            self._refuse(404, f"unknown path {path}")

    def do_POST(self) -> None:
        """Begin a fault or a planned change."""
        path, _ = self.target
        try:
            content = self.body()
            if path == "/faults":
                order = _read(content, FaultOrder)
                number, fault = self.live.begin(
                    Fault(order.kind, 0.0, order.duration_s, order.service, order.caller, order.severity)
                )
                found = {"id": number, "kind": fault.kind, "service": fault.service}
                self.answer(201, {**found, "caller": fault.caller or None})
            elif path in _OPERATIONS:
                wish = _read(content, OperationOrder)
                done = self.live.operate(Operation(_OPERATIONS[path], 0.0, wish.service, wish.replicas))
                self.answer(200, {"kind": done.kind, "service": done.service, "replicas": done.replicas})
            elif path == "/kubernetes/compact":
                self.live.log.compact()
                self.answer(200, {"resource_version": self.live.log.version})
            else:
                self._refuse(404, f"unknown path {path}")
        except (BadRequest, ConfigError) as error:
            self._refuse(400, str(error))

    def do_DELETE(self) -> None:
        """End one fault (`/faults/1`), or all (`/faults`)."""
        path, _ = self.target
        head, _, number = path.rpartition("/")
        try:
            if path == "/faults":
                ended = [self.live.end(fault["id"]).kind for fault in self.live.state()["faults"]]
                self.answer(200, {"ended": ended})
            elif head == "/faults" and number.isdecimal():
                self.answer(200, {"ended": [self.live.end(int(number)).kind]})
            else:
                self._refuse(404, f"unknown path {path}")
        except BadRequest as error:
            self._refuse(404, str(error))

    def _refuse(self, status: int, message: str) -> None:
        self.answer(status, {"error": message})


def _read(content: dict[str, Any], of: type[Any]) -> Any:
    try:
        return msgspec.convert(content, of)
    except msgspec.ValidationError as error:
        raise BadRequest(str(error)) from error
