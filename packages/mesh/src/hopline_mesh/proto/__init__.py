"""Message classes of mesh.proto and the health protocol; scripts/protos writes `descriptors.binpb`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hopline.transports import proto

DESCRIPTORS = Path(__file__).with_name("descriptors.binpb")


def message(name: str) -> Any:
    """The class of a message, by its full name ("hopline.mesh.v1.Verdict").

    Raises: KeyError: no such message.
    """
    return proto.message(name, DESCRIPTORS)


def methods(service: str) -> list[Any]:
    """Method descriptors of a service, by its full name."""
    found: list[Any] = proto.methods(service, DESCRIPTORS)
    return found
