"""Messages between a server and the process of a model, which a damaged process may have sent."""

from __future__ import annotations

from typing import Any

from hopline.isolated import wire as process_wire
from hopline.types import UNREADABLE
from tests.fuzz.fed import pieces


def check(data: bytes) -> None:
    """Args: data: which end, a seed, and what comes over the socket."""
    if len(data) < 2:
        return
    decoder: Any = process_wire.from_model if data[0] % 2 else process_wire.from_server
    sent = data[2:]
    whole = [bytes(view) for view in process_wire.frames().feed(sent)]
    frames = process_wire.frames()
    split = [bytes(view) for part in pieces(sent, data[1]) for view in frames.feed(part)]
    assert whole == split, "pieces are read otherwise"
    for message in whole:
        try:
            decoder.decode(message)
        except UNREADABLE:  # the process is ended for it
            continue
