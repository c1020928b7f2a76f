"""Which permission a gRPC method asks for, and who may call it. The counterpart of `http_access.py`."""

from __future__ import annotations

from typing import Any, Literal

from hopline.errors import Unauthenticated
from hopline.ingress.client import Client
from hopline.ingress.gatekeeper import Gatekeeper
from hopline.ingress.permissions import SERVER, Permission

#: "open" needs no client; "list" needs one, and `read` of the model that it names, if it names one. Those
#: that are not here ask for `admin`.
_METHODS: dict[str, Permission | Literal["open", "list"]] = {
    "ServerLive": "open",
    "ServerReady": "open",
    "ModelReady": "open",
    "Check": "open",
    "Watch": "open",
    "ServerMetadata": "list",
    "RepositoryIndex": "list",
    "ModelStatistics": "list",
    "ModelMetadata": "read",
    "ModelConfig": "read",
    "ModelInfer": "score",
    # of a mesh watch
    "GetVerdict": "read",
    "WatchVerdicts": "read",
    "GetIncident": "read",
    "GetIncidents": "read",
    "GetGraph": "read",
    "GetEmbeddings": "read",
    "TellEvents": "score",
}


class GrpcGuard:
    """Lets calls in.

    Args:
        gate: knows who asks.
    """

    def __init__(self, gate: Gatekeeper) -> None:
        self._gate = gate

    def admit(self, method: str, request: Any, context: Any) -> Client | None:
        """Who calls; None where nobody has to say.

        Args:
            method: its name.
            request: its message, which may name a model.
            context: of the call.

        Raises: Unauthenticated, PermissionDenied, RateLimited.
        """
        asked = _METHODS.get(method, "admin")
        if asked == "open":
            return None
        client = self.caller(context)
        model = getattr(request, "model_name", "") or getattr(request, "name", "") or SERVER
        if asked != "list":
            client.check(asked, model)
        elif model != SERVER:
            client.check("read", model)
        client.admit()
        return client

    def recognised(self, context: Any) -> Client | None:
        """Who calls what is open to all, where they say so; None for a stranger."""
        try:
            return self.caller(context)
        except Unauthenticated:
            return None

    def caller(self, context: Any) -> Client:
        """Who calls.

        Raises: Unauthenticated.
        """
        metadata = dict(context.invocation_metadata() or ())
        return self._gate.identify(metadata.get("authorization"), metadata.get("x-api-key"))
