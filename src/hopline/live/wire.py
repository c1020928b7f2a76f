"""Messages between the writer of a live graph and its clients, over a Unix socket.

    client                              writer
      Hello ───────────────────────────►
            ◄─────────────────────────── Welcome, or Refusal and the end
      Apply(1), Apply(2) ──────────────►
            ◄─────────────────────────── Outcomes(1), Outcomes(2): durable and visible
      Call(3, "status") ────────────────►
            ◄─────────────────────────── Status(3)
      Call(4, "step_aside") ────────────►
            ◄─────────────────────────── Status(4): it ends, and releases the folder; or Failed(4)
            ◄─────────────────────────── Failed(n): an error of hopline.errors

The framing is that of `process/wire.py`; batches and outcomes are encoded as in graph/live/codec.py. Both
ends must have the same `PROTOCOL`.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
import numpy as np

from hopline.errors import RequestTooLarge
from hopline.graph.live.changes import Ids
from hopline.graph.schema import GraphSchema
from hopline.process.wire import PackedError, Refusal, Wire, WireError

PROTOCOL = 6


class Hello(msgspec.Struct, tag="hello"):
    """A client's first message.

    Attributes:
        name: of the client, for logs.
    """

    protocol: int
    name: str


class Welcome(msgspec.Struct, tag="welcome"):
    """The writer's answer to Hello: the client may send requests.

    Attributes:
        lineage: snapshot id of the graph that the live graph began with.
        graph_schema: of the graph.
    """

    lineage: str
    graph_schema: GraphSchema


class Apply(msgspec.Struct, tag="apply"):
    """Make batches durable and visible.

    Attributes:
        number: of the message, for its answer.
        batches: of `encode_changes`.
    """

    number: int
    batches: list[bytes]


What: TypeAlias = Literal["status", "snapshot", "affected", "step_aside", "caught_up", "drop_history"]


class Call(msgspec.Struct, tag="call", omit_defaults=True):
    """Other requests: status, an immediate snapshot, changed nodes, to stop, and a note of the stream that
    the graph has everything that the broker has.

    Attributes:
        since: a version, for "affected".
    """

    number: int
    what: What
    since: int = 0


class Outcomes(msgspec.Struct, tag="applied"):
    """Outcomes, each from `encode_applied`, one for each batch."""

    number: int
    outcomes: list[bytes]


class Status(msgspec.Struct, tag="status", omit_defaults=True):
    """The state of the graph.

    Attributes:
        sequence: the newest version.
        snapshot: version of the newest snapshot; log_bytes: of changes after it.
        filled: share of the graph's memory that is in use, 0 to 1.
        positions: source -> the position that follows its last event.
        problem: why the last snapshot could not be written; "" if it could.
        steps, events: of the writer since it started; seconds: that they took.
    """

    number: int
    sequence: int = 0
    snapshot: int = 0
    log_bytes: int = 0
    filled: float = 0.0
    positions: dict[str, Any] = {}
    problem: str = ""
    steps: int = 0
    events: int = 0
    seconds: float = 0.0


class Affected(msgspec.Struct, tag="affected"):
    """Node type -> external ids: int64 little-endian as bytes, or strings."""

    number: int
    sequence: int
    nodes: dict[str, bytes | list[str]]


class Failed(msgspec.Struct, tag="failed"):
    """An error, as from `pack_error`: the request was not carried out."""

    number: int
    error: PackedError


FromClient = Hello | Apply | Call
FromWriter = Welcome | Refusal | Outcomes | Status | Affected | Failed
MessageT = TypeVar("MessageT")

WIRE = Wire(PROTOCOL, max_message_bytes=256 * 2**20)
receive = WIRE.receive
from_client = msgspec.msgpack.Decoder(FromClient)
from_writer = msgspec.msgpack.Decoder(FromWriter)


def frame(message: FromClient | FromWriter) -> bytes:
    """Encode a message for sending.

    Raises: RequestTooLarge: the other end would reject it.
    """
    try:
        return WIRE.frame(message)
    except OverflowError as error:
        raise RequestTooLarge(f"{error} by the writer: send less in one message") from None


def pack_ids(ids: Ids) -> bytes | list[str]:
    """Encode external ids for sending."""
    return ids.astype("<i8").tobytes() if isinstance(ids, np.ndarray) else list(ids)


def unpack_ids(data: bytes | list[str]) -> Ids:
    """Decode the result of `pack_ids`. Raises: WireError: it is invalid."""
    if not isinstance(data, bytes):
        return data
    if len(data) % 8:
        raise WireError(f"{len(data)} bytes are not int64 ids")
    return np.frombuffer(data, "<i8").astype(np.int64, copy=False)
