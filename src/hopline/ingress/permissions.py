"""Permissions of a client: three kinds, each for model names by glob.

This file handles names; it does not depend on clients, keys or transports.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

#: `score` sends requests to a model or pipeline, `read` reads descriptions, statistics and metrics, `admin`
#: changes what is served.
Permission: TypeAlias = Literal["score", "read", "admin"]
#: The model name for the whole server, for example for its metrics; only `*` matches it.
SERVER = ""
ALL = ("*",)


@dataclass(frozen=True, slots=True)
class Permissions:
    """Globs of model names (`risk-*`), for each permission; `("*",)` is all, `()` none.

    A name may be a pipeline's. Permission for a pipeline is enough to use its steps through it; no
    permission for their models is needed.
    """

    score: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()

    def allow(self, permission: Permission, model: str) -> bool:
        """Return True if an action on a model, or on the server (`SERVER`), is permitted.

        `admin` and `score` include `read`: clients read a model's inputs before they send requests.
        """
        globs: tuple[str, ...] = getattr(self, permission)
        if permission == "read":
            globs = (*self.read, *self.admin, *(self.score if model != SERVER else ()))
        return any(fnmatchcase(model, glob) for glob in globs)

    def has(self, permission: Permission) -> bool:
        """Return True if the permission may cover any model."""
        return bool(getattr(self, permission)) or (permission == "read" and bool(self.admin or self.score))


def globs_of(value: bool | tuple[str, ...]) -> tuple[str, ...]:
    """Convert the form of files and tokens to globs: true is all, false none, a list has globs."""
    if isinstance(value, bool):
        return ALL if value else ()
    return value
