"""The trace of a request, as its caller sends it (W3C Trace Context)."""

from __future__ import annotations

from msgspec.structs import force_setattr

from hopline.types import ScoreRequest


def join_trace(request: ScoreRequest, traceparent: bytes | str | None) -> None:
    """Add a new request to a trace; an invalid traceparent is detected when spans are created."""
    if traceparent is not None:
        named = traceparent if isinstance(traceparent, str) else traceparent.decode("latin-1")
        force_setattr(request, "traceparent", named)
