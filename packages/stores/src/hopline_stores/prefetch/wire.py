"""Messages between workers and the prefetcher over a Unix socket.

    worker                              prefetcher
      Hello ───────────────────────────►
            ◄─────────────────────────── Welcome, or Refusal and the end
      FetchRequest(1), (2) ─────────────►
            ◄─────────────────────────── Done(2), Done(1): in order of completion
      Ping ────────────────────────────►  only if a response is late
            ◄─────────────────────────── Pong

The framing is that of `process/wire.py`; arrays of ids are raw little-endian int64. Both sides compare
`PROTOCOL`.
"""

from __future__ import annotations

import msgspec
import numpy as np

from hopline.process.wire import Refusal, Wire, WireError
from hopline.types import IdArray

PROTOCOL = 1
#: Ids in one message, over all its arrays.
MAX_IDS = 2**20


class Identity(msgspec.Struct, frozen=True):
    """Properties that both sides must share.

    Attributes:
        graph: version of the graph.
        file: device and inode of the L1 feature cache's file.
    """

    graph: str
    file: tuple[int, int]


class Hello(msgspec.Struct, tag="hello"):
    """The first message of a worker."""

    protocol: int
    identity: Identity
    worker: int


class Welcome(msgspec.Struct, tag="welcome"):
    """The worker is accepted."""


class Seeds(msgspec.Struct):
    """Seeds of requests to one model with one `as_of`.

    Attributes:
        ids: node type -> int64 global ids, duplicates allowed.
    """

    model: str
    version: str
    as_of: int
    ids: dict[str, bytes]


class FetchRequest(msgspec.Struct, tag="request"):
    """Fetch the rows that these need into the L1 feature cache.

    Attributes:
        number: number of the message, for its response.
        patience_s: the worker's timeout, seconds.
        seeds: seeds whose sampled neighbourhoods are needed.
        rows: node type -> int64 ids of single rows.
    """

    number: int
    patience_s: float
    seeds: list[Seeds]
    rows: dict[str, bytes]


class Done(msgspec.Struct, tag="done", omit_defaults=True):
    """All available rows are in the L1 feature cache.

    Attributes:
        lacking: node type -> int64 ids of rows that are not available.
        reason: why.
        problem: why nothing was done; "" on success.
        num_rows, num_calls: rows and store calls (round trips) since the last response to any worker. Their
            sums over all responses count nothing twice.
    """

    number: int
    lacking: dict[str, bytes] = {}
    reason: str = ""
    problem: str = ""
    num_rows: int = 0
    num_calls: int = 0


class Ping(msgspec.Struct, tag="ping"):
    """A check whether the prefetcher responds."""


class Pong(msgspec.Struct, tag="pong"):
    """The response to a ping."""


FromWorker = Hello | FetchRequest | Ping
FromPrefetcher = Welcome | Refusal | Done | Pong

WIRE = Wire(PROTOCOL, max_message_bytes=16 * 2**20)
frame, receive = WIRE.frame, WIRE.receive
from_worker = msgspec.msgpack.Decoder(FromWorker)
from_prefetcher = msgspec.msgpack.Decoder(FromPrefetcher)


def pack(ids: IdArray) -> bytes:
    """Encode ids for a message."""
    return ids.astype("<i8", copy=False).tobytes()


def unpack(data: bytes, limit: int) -> IdArray:
    """Decode ids: int64 [n], distinct and sorted.

    Raises:
        WireError: not whole numbers, or not all in [0, limit).
    """
    if len(data) % 8:
        raise WireError(f"{len(data)} bytes are not int64 ids")
    ids: IdArray = np.unique(np.frombuffer(data, "<i8").astype(np.int64, copy=False))
    if ids.shape[0] and not (ids[0] >= 0 and ids[-1] < limit):
        raise WireError(f"ids from {ids[0]} to {ids[-1]}, but the limit is {limit} nodes")
    return ids
