"""The trace that a request belongs to, as its caller names it (W3C Trace Context)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import force_setattr

from hopline.types import ScoreRequest


def join_trace(request: ScoreRequest, traceparent: bytes | None) -> None:
    """Let a request that was just made belong to a trace; what is none is found out when spans are made."""
    if traceparent is not None:
        force_setattr(request, "traceparent", traceparent.decode("latin-1"))


def traceparent_of(metadata: Iterable[tuple[str, Any]] | None) -> bytes | None:
    """The trace that a gRPC call's metadata names."""
    for name, value in metadata or ():
        if name == "traceparent":
            return value.encode() if isinstance(value, str) else bytes(value)
    return None
