"""What Hopline needs of a message broker: a log to follow, a queue to share, somewhere to send.

    Source   one reader follows whole partitions in order, and says itself where it goes on
    Queue    several readers share messages; each message is settled by the one that got it
    Sink     sends, and knows when the broker has it

The three implementations must pass `hopline.testing.brokers`. This file knows no broker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec

#: Where to go on in a partition. Only the source that made it reads it; everybody else keeps it (it is
#: JSON) and hands it back.
Position: TypeAlias = int | str

#: Header that names the topic (stream, subject) to which the answer to a message goes.
REPLY_TO = "reply-to"


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message, as a broker delivered it.

    Attributes:
        payload: bytes, whatever they are.
        partition: source of ordered messages, such as "kafka/edges/0".
        position: where to go on in the partition once this message is done.
        key: "" for none. Bytes that are not UTF-8 are surrogate-escaped, in headers as well.
        headers: names as the sender wrote them; of several with one name the last.
        timestamp_ms: when the broker took it, or the sender made it; ms since 1970, 0 if unknown.
        problem: why there is no payload to read, though there is a message; "" as a rule. Such a message
            is done like any other: it can only be put aside.
        num_deliveries: 1 the first time, more when it was delivered before and not settled; 0 where
            the broker does not count.
    """

    payload: bytes
    partition: str
    position: Position
    key: str = ""
    headers: dict[str, str] = {}
    timestamp_ms: int = 0
    problem: str = ""
    num_deliveries: int = 0

    @property
    def reply_to(self) -> str:
        """Topic for the answer; "" where none is wanted."""
        return self.headers.get(REPLY_TO, "")


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A message to send.

    Attributes:
        topic: Kafka topic, Redis stream or NATS subject; "" for that of the sink's address.
        payload: bytes.
        key: messages of one key keep their order (Kafka: one partition); "" for none.
        headers: names and values; any text.
    """

    payload: bytes
    topic: str = ""
    key: str = ""
    headers: dict[str, str] = {}


class Health(msgspec.Struct, frozen=True):
    """How a connection is.

    Attributes:
        reason: what is wrong, in words; "" while all is well. Never holds a password.
        since_s: time.time() since which it is so.
    """

    reason: str
    since_s: float

    @property
    def ok(self) -> bool:
        """Whether messages can come and go."""
        return not self.reason


class Gap(msgspec.Struct, frozen=True):
    """Messages that are gone before they were delivered: the broker has trimmed or lost them.

    Attributes:
        partition: where.
        position: where the source wanted to go on.
        lost: how many messages; None where the broker cannot tell.
        reason: in words.
    """

    partition: str
    position: Position
    lost: int | None
    reason: str


class Source(Protocol):
    """Follows all partitions of a topic in order, from positions that its reader keeps.

    Every message at or after a position is delivered once per `open`, in order within its partition.
    None of its methods fails because the broker cannot be reached: `poll` returns nothing meanwhile,
    `health` says why, and delivery goes on by itself afterwards where it was, without loss or repetition.
    One task calls `poll`, `acknowledge` and `lag`; there is one source of a group at a time.
    """

    async def open(self, positions: Mapping[str, Position]) -> None:
        """Begin, where the reader's own durable state says.

        Args:
            positions: partition -> where to go on; messages before it are never delivered. Partitions
                of other brokers and topics are left alone. One that is not named begins at the oldest
                message, or at the next new one where the address says `start=latest`.

        Raises:
            ConfigError: a position that this broker cannot have given, or files that cannot be used.
        """
        ...

    async def poll(self, max_messages: int, max_wait_s: float) -> list[Message]:
        """The next messages: at least one if any come in time, without waiting for more.

        May be cancelled; then the messages come with the next call.
        """
        ...

    async def acknowledge(self, positions: Mapping[str, Position]) -> None:
        """Tell the broker that everything before these positions is durable.

        What the broker is told is for people, its retention and its lag figures; the reader's own
        positions are what counts at `open`. Does nothing while the broker cannot be reached: the next
        one includes it.
        """
        ...

    async def lag(self) -> dict[str, int]:
        """Partition -> messages that it has and that were not delivered yet; without those unknown."""
        ...

    def health(self) -> Health:
        """How the connection is."""
        ...

    def take_gaps(self) -> list[Gap]:
        """The gaps that were met since the last call."""
        ...

    async def close(self) -> None:
        """Let go of the connection; nothing is acknowledged."""
        ...


class Queue(Protocol):
    """Shares the messages of a topic with all others of its group; each is delivered at least once.

    What a reader did not settle is delivered again, to it or to another one, after it died or was too
    slow. As for `Source`, a broker that cannot be reached is no failure.
    """

    async def open(self) -> None:
        """Join the group, where the group is.

        Raises: ConfigError: files that cannot be used.
        """
        ...

    async def poll(self, max_messages: int, max_wait_s: float) -> list[Message]:
        """As `Source.poll`; those that nobody settled may come again, in any order."""
        ...

    async def settle(self, messages: Sequence[Message]) -> None:
        """These are done, in whatever order; they do not come again unless the broker forgets."""
        ...

    async def lag(self) -> dict[str, int]:
        """Partition -> messages that nobody of the group has got yet; without those unknown."""
        ...

    def health(self) -> Health:
        """How the connection is."""
        ...

    async def close(self) -> None:
        """Leave the group; what is not settled goes to the others."""
        ...


class Sink(Protocol):
    """Sends messages."""

    async def open(self) -> None:
        """Get ready; does not wait for the broker.

        Raises: ConfigError: files that cannot be used.
        """
        ...

    async def send(self, messages: Sequence[Outgoing]) -> None:
        """Send, and return when the broker has all of them.

        Those of one topic and key keep their order. After an error some may have been sent: sending all
        of them again may make duplicates, never gaps.

        Raises:
            BrokerUnavailable: the broker cannot be reached; worth another try.
            BrokerError: it refuses one (too large, no such topic, not allowed): says which and why.
        """
        ...

    def health(self) -> Health:
        """How the connection is."""
        ...

    async def close(self) -> None:
        """Let go of the connection; call it after the last `send` has returned."""
        ...
