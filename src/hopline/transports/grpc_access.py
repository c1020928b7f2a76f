"""Which permission a gRPC method asks for, and who may call it. The counterpart of `http_access.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from hopline.ingress.client import Client
from hopline.ingress.gatekeeper import Gatekeeper
from hopline.ingress.permissions import SERVER, Permission

#: What a method asks for: "open" needs no client; "list" needs one, and `read` of the model that it names,
#: if it names one.
Asked: TypeAlias = Permission | Literal["open", "list"]
#: Those that are not here ask for `admin`.
_METHODS: dict[str, Asked] = {
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
}


class GrpcGuard:
    """Lets calls in.

    Args:
        gate: identifies callers.
        permission_of: what a method asks for, by its name.
    """

    def __init__(self, gate: Gatekeeper, permission_of: Callable[[str], Asked]) -> None:
        self._gate = gate
        self._permission_of = permission_of

    def enter(self, method: str, authorization: str | None, api_key: str | None) -> Client | None:
        """The caller, before a message has come; None where calls are anonymous. Checks what does not
        depend on the message, and counts the call.

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
        """As `enter`, for a call that carries many requests: each is admitted and counted separately.

        Raises: Unauthenticated, PermissionDenied.
        """
        asked = self._permission_of(method)
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
        asked = self._permission_of(method)
        model = getattr(request, "model_name", "") or getattr(request, "name", "") or SERVER
        if asked not in ("open", "list"):
            client.check(asked, model)  # type: ignore[arg-type]
        elif model != SERVER and asked == "list":
            client.check("read", model)


def permission_of(method: str) -> Asked:
    """What a method of the server asks for, by its name."""
    return _METHODS.get(method, "admin")
