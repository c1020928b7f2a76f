"""What workers and the prefetcher say to each other over a Unix socket.

    worker                              prefetcher
      Hello ───────────────────────────►
            ◄─────────────────────────── Welcome, or Refusal and the end
      Ask(1), Ask(2) ──────────────────►
            ◄─────────────────────────── Done(2), Done(1): in the order they are done
      Ping ────────────────────────────►  only where an answer is long in coming
            ◄─────────────────────────── Pong

The framing is that of `process/wire.py`; arrays of ids are raw little-endian int64. `PROTOCOL` is compared.
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
    """What both ends must share for an answer to mean anything.

    Attributes:
        graph: version of the graph.
        file: device and inode of L1's file.
    """

    graph: str
    file: tuple[int, int]


class Hello(msgspec.Struct, tag="hello"):
    """A worker's first words."""

    protocol: int
    identity: Identity
    worker: int


class Welcome(msgspec.Struct, tag="welcome"):
    """It may ask."""


class Seeds(msgspec.Struct):
    """Seeds of requests to one model about one time.

    Attributes:
        ids: node type -> int64 global ids, duplicates allowed.
    """

    model: str
    version: str
    as_of: int
    ids: dict[str, bytes]


class Ask(msgspec.Struct, tag="ask"):
    """Bring what these need into L1.

    Attributes:
        number: of the message, for its answer.
        patience_s: how long the worker waits for the answer.
        seeds: whose sampled neighbourhoods are needed.
        rows: node type -> int64 ids of single rows.
    """

    number: int
    patience_s: float
    seeds: list[Seeds]
    rows: dict[str, bytes]


class Done(msgspec.Struct, tag="done", omit_defaults=True):
    """What could be had is in L1.

    Attributes:
        lacking: node type -> int64 ids of rows that could not be had.
        reason: why.
        problem: why nothing was done at all; "" where it was.
        num_rows, num_calls: rows that came since the last answer to any worker, and calls to stores (round
            trips); added up over all answers, neither is counted twice.
    """

    number: int
    lacking: dict[str, bytes] = {}
    reason: str = ""
    problem: str = ""
    num_rows: int = 0
    num_calls: int = 0


class Ping(msgspec.Struct, tag="ping"):
    """Are you there?"""


class Pong(msgspec.Struct, tag="pong"):
    """I am."""


FromWorker = Hello | Ask | Ping
FromPrefetcher = Welcome | Refusal | Done | Pong

WIRE = Wire(PROTOCOL, max_message_bytes=16 * 2**20)
frame, receive = WIRE.frame, WIRE.receive
from_worker = msgspec.msgpack.Decoder(FromWorker)
from_prefetcher = msgspec.msgpack.Decoder(FromPrefetcher)


def pack(ids: IdArray) -> bytes:
    """Ids as they are sent."""
    return ids.astype("<i8", copy=False).tobytes()


def unpack(data: bytes, limit: int) -> IdArray:
    """int64 [n] distinct ids, sorted.

    Raises:
        WireError: not whole numbers, or not all in [0, limit).
    """
    if len(data) % 8:
        raise WireError(f"{len(data)} bytes are no int64 ids")
    ids: IdArray = np.unique(np.frombuffer(data, "<i8").astype(np.int64, copy=False))
    if ids.shape[0] and not (ids[0] >= 0 and ids[-1] < limit):
        raise WireError(f"ids from {ids[0]} to {ids[-1]}; there are {limit} nodes")
    return ids
