"""Models that crash and leak in separate processes: real artifacts, spoilt by the code that opens them.

`crashing` ends its process by a segmentation fault at every fiftieth request; `leaking` keeps a mebibyte of
each. Every other model is as usual.
"""

from __future__ import annotations

import ctypes

from hopline.answering.queued import QueuedVersion
from hopline.isolated.main import ModelOrders
from hopline.models.isolated_unit import open_unit
from hopline.types import ScoreRequest

_CRASH_EVERY = 50
_LEAK_BYTES = 2**20


async def open_faulty(orders: ModelOrders) -> QueuedVersion:
    """The factory."""
    version = await open_unit(orders)
    count, kept = version.computer.num_seeds, list[bytes]()

    def spoilt(request: ScoreRequest) -> int:
        """Number of rows, as usual; now and then reads address 0, or keeps memory."""
        kept.append(b"x" * _LEAK_BYTES if orders.name == "leaking" else b"")
        if orders.name == "crashing" and len(kept) % _CRASH_EVERY == 0:
            ctypes.string_at(0)
        return count(request)

    if orders.name in ("crashing", "leaking"):
        version.computer.num_seeds = spoilt  # type: ignore[method-assign]
    return version
