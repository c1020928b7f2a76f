"""What a watch may be given in place of Prometheus and Kubernetes."""

from __future__ import annotations

from typing import Protocol

from hopline_mesh.changes import Context
from hopline_mesh.incident import Verdict
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import Gap, Snapshot
from hopline_mesh.tagae import Tagae, TagaeSettings
from hopline_mesh.watch.ticks import Ticks


class Feed(Protocol):
    """A mesh that is played, by a clock of its own.

    Attributes:
        name: for people.
        schema: of the snapshots.
        speed: its clock's seconds in one second.
    """

    name: str
    schema: Schema
    speed: float

    def clock(self) -> float:
        """The time there, Unix seconds."""
        ...

    def detector(self, settings: TagaeSettings) -> Tagae:
        """What judges; it may know the mesh already."""
        ...

    async def collect(self, now_s: float) -> Snapshot:
        """The mesh in the interval that ends now."""
        ...

    def context(self, now_s: float) -> tuple[Context, tuple[Gap, ...]]:
        """What is known of planned changes, and what is not."""
        ...

    def told(self, verdict: Verdict) -> bool:
        """Hear each verdict; True ends the watch."""
        ...


class FeedTicks(Ticks):
    """Ticks by the clock of a feed.

    Args:
        feed: whose clock.
        interval_s: from one tick to the next, by that clock.
    """

    def __init__(self, feed: Feed, interval_s: float) -> None:
        super().__init__(interval_s, wall=feed.clock, monotonic=feed.clock)
        self._speed = feed.speed

    def wait_s(self) -> float:
        """Seconds of ours until the next tick is due; 0.0 where it is."""
        return super().wait_s() / self._speed
