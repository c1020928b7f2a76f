"""What a client may do: three permissions, each for model names by glob.

Knows names, nothing of clients, keys or transports.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

#: `score` asks a model or pipeline, `read` looks at descriptions, statistics and metrics, `admin` changes
#: what is served.
Permission: TypeAlias = Literal["score", "read", "admin"]
#: The model name for the whole server, such as its metrics: only `*` matches it.
SERVER = ""
ALL = ("*",)


@dataclass(frozen=True, slots=True)
class Permissions:
    """Globs of model names (`risk-*`), for each permission; `("*",)` is everything, `()` nothing.

    A name may be a pipeline's: who may ask a pipeline asks its steps through it, and needs no permission
    for their models.
    """

    score: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()

    def allow(self, permission: Permission, model: str) -> bool:
        """Whether this may be done to a model, or to the server (`SERVER`).

        Who may change a model may read it, and so may who scores it: clients look at what a model takes
        before they ask it.
        """
        globs: tuple[str, ...] = getattr(self, permission)
        if permission == "read":
            globs = (*self.read, *self.admin, *(self.score if model != SERVER else ()))
        return any(fnmatchcase(model, glob) for glob in globs)

    def has(self, permission: Permission) -> bool:
        """Whether there may be a model that this may be done to."""
        return bool(getattr(self, permission)) or (permission == "read" and bool(self.admin or self.score))


def globs_of(value: bool | tuple[str, ...]) -> tuple[str, ...]:
    """How files and tokens write it: true is everything, false nothing, a list names globs."""
    if isinstance(value, bool):
        return ALL if value else ()
    return value
