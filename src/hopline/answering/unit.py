"""A unit of rollout: a model version with the graph snapshot and the feature groups that it answers on."""

from __future__ import annotations

import hashlib
import re

import msgspec

from hopline.errors import BadRequest, quoted

_NAME = re.compile(r"[^/\x00-\x1f\\]{1,200}")


class Unit(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that can serve under a model's name.

    The same version on a new snapshot is another unit: its answers differ, so it is rolled out as a new
    version is.

    Attributes:
        version: folder in the repository.
        graph: folder of the snapshot; "" is the server's own.
        groups: feature groups as "<node type>=<group>"; empty takes the server's own.
        shadow: it only gets copies of requests, in a separate process.
    """

    version: str
    graph: str = ""
    groups: tuple[str, ...] = ()
    shadow: bool = False

    @property
    def id(self) -> str:
        """Its name in requests, answers and metrics: the version, with a mark where it is not alone."""
        name = self.version
        if self.graph or self.groups:
            mark = hashlib.sha256(repr((self.graph, self.groups)).encode()).hexdigest()[:6]
            name = f"{name}@{mark}"
        return f"{name}+shadow" if self.shadow else name


def checked_name(name: str, what: str) -> str:
    """A model's or version's name that is one folder's name and nothing else.

    Raises: BadRequest.
    """
    if not _NAME.fullmatch(name) or name.startswith("."):
        raise BadRequest(
            f"{what} {quoted(name)} is not a name: no slashes, no leading dot, 1 to 200 characters"
        )
    return name
