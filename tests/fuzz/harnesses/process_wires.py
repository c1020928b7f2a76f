"""Messages between processes of one host, which a damaged or foreign process may have sent."""

from __future__ import annotations

import asyncio
from typing import Any

from hopline.errors import HoplineError
from hopline.live import wire as live_wire
from hopline.prefetch import wire as prefetch_wire
from hopline.rollout import process_wire
from hopline.types import UNREADABLE
from tests.fuzz.fed import pieces, runner


def check(data: bytes) -> None:
    """Args: data: which wire, a seed, and what comes over it."""
    if len(data) < 2:
        return
    kind, seed, sent = data[0] % 6, data[1], data[2:]
    if kind < 2:
        _check_model(sent, seed, process_wire.from_model if kind else process_wire.from_server)
    elif kind < 4:
        _receive(live_wire, sent, live_wire.from_client if kind == 2 else live_wire.from_writer)
    else:
        _receive(
            prefetch_wire, sent, prefetch_wire.from_worker if kind == 4 else prefetch_wire.from_prefetcher
        )


def _check_model(sent: bytes, seed: int, decoder: Any) -> None:
    whole = [bytes(view) for view in process_wire.Frames().feed(sent)]
    frames = process_wire.Frames()
    split = [bytes(view) for part in pieces(sent, seed) for view in frames.feed(part)]
    assert whole == split, "pieces are read otherwise"
    for data in whole:
        try:
            decoder.decode(data)
        except UNREADABLE:  # the server ends the process for it
            continue


def _receive(wire: Any, sent: bytes, decoder: Any) -> None:
    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(sent)
        reader.feed_eof()
        while True:
            message = await wire.receive(reader, decoder)
            if isinstance(message, live_wire.Failed):
                assert isinstance(live_wire.raised(message), HoplineError)

    try:
        runner.run(read())
    except (EOFError, wire.WireError):
        return
