"""What workers and the prefetcher say to each other over a Unix socket.

    u32 length, little-endian │ msgpack of one message; arrays of ids are raw little-endian int64

    worker                              prefetcher
      Hello ───────────────────────────►
            ◄─────────────────────────── Welcome, or Refusal and the end
      Ask(1), Ask(2) ──────────────────►
            ◄─────────────────────────── Done(2), Done(1): in the order they are done
      Ping ────────────────────────────►  only where an answer is long in coming
            ◄─────────────────────────── Pong

Both ends are of one Hopline: `PROTOCOL` is compared, not negotiated.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec
import numpy as np

from hopline.types import UNREADABLE, IdArray

PROTOCOL = 1
#: The longest message that is read, in bytes.
MAX_MESSAGE_BYTES = 16 * 2**20
#: Ids in one message, over all its arrays.
MAX_IDS = 2**20


class WireError(Exception):
    """The other end said what no Hopline of this version says."""


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


class Refusal(msgspec.Struct, tag="refusal"):
    """It may not, and why; the connection ends."""

    text: str


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
        num_rows, num_calls: rows that came since the last answer to anybody, and calls to stores (round
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
MessageT = TypeVar("MessageT")

_encoder = msgspec.msgpack.Encoder()
from_worker = msgspec.msgpack.Decoder(FromWorker)
from_prefetcher = msgspec.msgpack.Decoder(FromPrefetcher)


def frame(message: FromWorker | FromPrefetcher) -> bytes:
    """A message as it is sent."""
    data = bytearray(4)
    _encoder.encode_into(message, data, 4)
    data[:4] = (len(data) - 4).to_bytes(4, "little")
    return bytes(data)


async def receive(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[MessageT]) -> MessageT:
    """The next message.

    Raises:
        EOFError: the connection has ended.
        WireError: it is too long, or not a message.
    """
    try:
        length = int.from_bytes(await reader.readexactly(4), "little")
        if length > MAX_MESSAGE_BYTES:
            raise WireError(f"a message of {length} bytes; at most {MAX_MESSAGE_BYTES} are read")
        return decoder.decode(await reader.readexactly(length))
    except UNREADABLE as error:
        raise WireError(str(error)) from None


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
