"""Messages of the live graph's writer and of the prefetcher, which a foreign process may have sent."""

from __future__ import annotations

import asyncio
from typing import Any

from hopline.errors import HoplineError
from hopline.live import wire as live_wire
from hopline.process.wire import WireError, unpack_error
from hopline_stores.prefetch import wire as prefetch_wire
from tests.fuzz.fed import runner

_WIRES: tuple[tuple[Any, Any], ...] = (
    (live_wire, live_wire.from_client),
    (live_wire, live_wire.from_writer),
    (prefetch_wire, prefetch_wire.from_worker),
    (prefetch_wire, prefetch_wire.from_prefetcher),
)


def check(data: bytes) -> None:
    """Args: data: which end of which wire, and what comes over it."""
    if not data:
        return
    wire, decoder = _WIRES[data[0] % len(_WIRES)]

    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(data[1:])
        reader.feed_eof()
        while True:
            message = await wire.receive(reader, decoder)
            if isinstance(message, live_wire.Failed):
                assert isinstance(unpack_error(message.error), HoplineError)

    try:
        runner.run(read())
    except (EOFError, WireError):
        return
