"""A source for a watch that replaces Prometheus and Kubernetes."""

from __future__ import annotations

from typing import Protocol

from hopline_mesh.changes import Context
from hopline_mesh.detect import DetectorSettings, MeshDetector
from hopline_mesh.incident import Verdict
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import Gap, Snapshot


class Feed(Protocol):
    """A simulated or replayed mesh with a separate clock.

    Attributes:
        name: for people.
        schema: of the snapshots.
        speed: seconds of its clock per second.
    """

    name: str
    schema: Schema
    speed: float

    def clock(self) -> float:
        """Return the time of its clock, Unix seconds."""
        ...

    def detector(self, settings: DetectorSettings) -> MeshDetector:
        """Return the detector; it may be fitted already."""
        ...

    async def collect(self, now_s: float) -> Snapshot:
        """Return the mesh in the interval that ends now."""
        ...

    def context(self, now_s: float) -> tuple[Context, tuple[Gap, ...]]:
        """Return planned changes and troubles, and gaps."""
        ...

    def on_verdict(self, verdict: Verdict) -> bool:
        """Receive each verdict; return True to stop the watch."""
        ...
