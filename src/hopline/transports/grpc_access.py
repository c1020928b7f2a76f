"""Permissions of gRPC methods and the check of calls. The counterpart of `http_access.py`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from hopline.errors import BadRequest
from hopline.ingress.client import Client
from hopline.ingress.gatekeeper import Gatekeeper
from hopline.ingress.permissions import SERVER, Permission
from turnserve.peers import Peer

#: Characters of a name; file systems allow few more, and error texts quote it.
MAX_NAME_LENGTH = 200
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")


def check_name(field: str, name: str) -> None:
    """Refuse an invalid name.

    Raises: BadRequest: too long, or with NUL or another control character.
    """
    if len(name) > MAX_NAME_LENGTH:
        raise BadRequest(
            f"{field} has {len(name)} characters; at most {MAX_NAME_LENGTH} are allowed: "
            f"{name[:MAX_NAME_LENGTH]!r}…"
        )
    if not name.isprintable() and _CONTROLS.search(name):  # isprintable is fast
        raise BadRequest(f"{field} has a control character: {name!r}")


def check_names(request: Any) -> None:
    """Refuse a message with an invalid name in a text field.

    Raises: BadRequest.
    """
    for field, value in request.ListFields():
        if isinstance(value, str):
            check_name(field.name, value)


#: What a method requires: "open" needs no client; "list" needs a client, and `read` permission for the
#: model that the message names, if any.
Required: TypeAlias = Permission | Literal["open", "list"]
#: Other methods require `admin`.
_METHODS: dict[str, Required] = {
    "ServerLive": "open",
    "ServerReady": "open",
    "ModelReady": "open",
    "Check": "open",
    "Watch": "open",
    "ServerMetadata": "list",
    "ServerReflectionInfo": "list",
    "RepositoryIndex": "list",
    "ModelStatistics": "list",
    "ModelMetadata": "read",
    "ModelConfig": "read",
    "ModelInfer": "score",
    "ModelStreamInfer": "score",
}


class GrpcGuard:
    """Authenticates calls and checks their permissions."""

    def __init__(self, gate: Gatekeeper, permission_of: Callable[[str], Required]) -> None:
        self._gate = gate
        self._permission_of = permission_of

    def enter(
        self, method: str, authorization: str | None, api_key: str | None, peer: Peer | None = None
    ) -> Client | None:
        """Admit a call before a message has arrived; return its client, None for an open method.

        Checks what does not depend on the message, and counts the call if it is to be scored.

        Raises: Unauthenticated, PermissionDenied, RateLimited.
        """
        client = self.recognise(method, authorization, api_key, peer)
        if client is not None and self._permission_of(method) == "score":
            client.admit()
        return client

    def recognise(
        self, method: str, authorization: str | None, api_key: str | None, peer: Peer | None = None
    ) -> Client | None:
        """Return the client of a call with many requests, each of which is admitted and counted alone.

        Raises: Unauthenticated, PermissionDenied.
        """
        needed = self._permission_of(method)
        if needed == "open":
            return None
        client = self._gate.identify(authorization, api_key, peer)
        if needed != "list" and not client.permissions.has(needed):
            client.check(needed, SERVER)
        return client

    def check(self, method: str, request: Any, client: Client) -> None:
        """Refuse a message if its client has no permission for the model that it names.

        Raises: PermissionDenied.
        """
        needed = self._permission_of(method)
        model = getattr(request, "model_name", "") or getattr(request, "name", "") or SERVER
        if needed not in ("open", "list"):
            client.check(needed, model)  # type: ignore[arg-type]
        elif model != SERVER and needed == "list":
            client.check("read", model)


def permission_of(method: str) -> Required:
    """Return what a method of the server requires, by its name."""
    return _METHODS.get(method, "admin")
