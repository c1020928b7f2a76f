"""An authenticated client: its permissions, rate and priority.

This file handles requests; it does not depend on keys, tokens or transports.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import force_setattr

from hopline.errors import PermissionDenied, RateLimited
from hopline.ingress.permissions import SERVER, Permission, Permissions
from hopline.types import Priority, ScoreRequest

if TYPE_CHECKING:
    from hopline.scheduling.shared_limiter import Bucket

#: Limit of cached results of `check`; clients may invent model names.
_MAX_REMEMBERED = 1024
_RANK: dict[str, int] = {"low": 0, "normal": 1, "high": 2}


class Client:
    """One client of the server.

    Args:
        name: for records and messages.
        permissions: what the client may do.
        priority: the highest priority of its requests.
        bucket: its rate limit; None for no limit.
        clock: nanoseconds, monotonic, the same for all workers of a host.
    """

    __slots__ = ("_allowed", "_bucket", "_clock", "_rank", "name", "permissions", "priority")

    def __init__(
        self,
        name: str,
        permissions: Permissions,
        priority: Priority = "normal",
        bucket: Bucket | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.name = name
        self.permissions = permissions
        self.priority: Priority = priority
        self._rank = _RANK[priority]
        self._bucket = bucket
        self._clock = clock
        self._allowed: dict[tuple[Permission, str], bool] = {}

    def may(self, permission: Permission, model: str) -> bool:
        """Return True if the client has this permission for a model, or for the server (`SERVER`)."""
        key = (permission, model)
        known = self._allowed.get(key)
        if known is None:
            if len(self._allowed) >= _MAX_REMEMBERED:
                self._allowed.clear()
            known = self._allowed[key] = self.permissions.allow(permission, model)
        return known

    def check(self, permission: Permission, model: str) -> None:
        """Refuse an action without permission.

        Raises: PermissionDenied: with the permission and what it is granted for.
        """
        if self._allowed.get((permission, model)) or self.may(permission, model):
            return  # the lookup here avoids a call per request
        what = f"{permission} model {model!r}" if model != SERVER else _OF_SERVER[permission]
        given = ", ".join(getattr(self.permissions, permission)) or "nothing"
        raise PermissionDenied(
            f"client {self.name!r} may not {what}: its permission {permission!r} covers {given}"
        )

    def admit(self) -> None:
        """Count one request.

        Raises: RateLimited: the rate limit is reached; has the time until the next request.
        """
        if self._bucket is None:
            return
        wait_ns = self._bucket.take(self._clock())
        if wait_ns:
            per_s, burst = self._bucket.rate
            raise RateLimited(
                f"client {self.name!r} may send {per_s:g} requests per second, bursts of {burst}",
                wait_ns / 1e9,
            )

    def sign(self, request: ScoreRequest) -> None:
        """Set the client of a request, and lower its priority to the client's own.

        The request is new and not shared yet. A changed copy of a frozen struct would cost ten times as
        much.

        Raises: PermissionDenied: it changes the graph, and the client may not.
        """
        if request.keep:
            self.check("admin", SERVER)
        force_setattr(request, "client", self.name)
        if _RANK[request.priority] > self._rank:
            force_setattr(request, "priority", self.priority)


_OF_SERVER: dict[str, str] = {
    "score": "score",
    "read": "read the whole server",
    "admin": "change the server",
}
