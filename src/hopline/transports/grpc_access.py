"""Which permission a gRPC method asks for, and who may call it. The counterpart of `http_access.py`."""

from __future__ import annotations

from typing import Any, Literal

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
    "ModelStreamInfer": "score",
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

    def enter(self, method: str, authorization: str | None, api_key: str | None) -> Client | None:
        """Who calls, before a message has come; None where nobody has to say. What does not depend on the
        message is checked, and the call is counted.

        Args:
            method: its name.
            authorization, api_key: as the call's metadata have them.

        Raises: Unauthenticated, PermissionDenied, RateLimited.
        """
        client = self.recognise(method, authorization, api_key)
        if client is not None:
            client.admit()
        return client

    def recognise(self, method: str, authorization: str | None, api_key: str | None) -> Client | None:
        """The same of a call that carries many requests: each is admitted and counted by itself.

        Raises: Unauthenticated, PermissionDenied.
        """
        asked = permission_of(method)
        if asked == "open":
            return None
        client = self._gate.identify(authorization, api_key)
        if asked != "list" and not client.permissions.has(asked):
            client.check(asked, SERVER)
        return client

    def check(self, method: str, request: Any, client: Client) -> None:
        """Refuse what a client may not do with the model that a message names.

        Raises: PermissionDenied.
        """
        asked = permission_of(method)
        model = getattr(request, "model_name", "") or getattr(request, "name", "") or SERVER
        if asked not in ("open", "list"):
            client.check(asked, model)  # type: ignore[arg-type]
        elif model != SERVER and asked == "list":
            client.check("read", model)

    def admit(self, method: str, request: Any, context: Any) -> Client | None:
        """All of this at once, of a call whose message has come.

        Args:
            method: its name.
            request: its message, which may name a model.
            context: of the call, as grpc.aio has it.

        Raises: Unauthenticated, PermissionDenied, RateLimited.
        """
        metadata = dict(context.invocation_metadata() or ())
        client = self.recognise(method, metadata.get("authorization"), metadata.get("x-api-key"))
        if client is not None:
            self.check(method, request, client)
            client.admit()
        return client


def permission_of(method: str) -> Permission | Literal["open", "list"]:
    """What a method asks for, by its name."""
    return _METHODS.get(method, "admin")
