"""The interface of message brokers: a log to follow, a queue to share, a sink to send to.

        Source   one reader follows whole partitions in order, and stores its own positions
        Queue    several readers share messages; each message is settled by the reader that received it
        Sink     sends, and knows when the broker has the messages

The three implementations must pass `hopline_brokers.testing.suite`. This file depends on no broker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from hopline.errors import BrokerError

#: Where to resume in a partition. Only the source that created it reads it; other code stores it (it is
#: JSON) and passes it back.
Position: TypeAlias = int | str

#: Header that names the topic (stream, subject) to which the answer to a message goes.
REPLY_TO = "reply-to"


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message, as a broker delivered it.

    Attributes:
        payload: any bytes.
        partition: source of ordered messages, for example "kafka/edges/0".
        position: where to resume in the partition once this message is done.
        key: "" for none. Bytes that are not UTF-8 are surrogate-escaped, in headers as well.
        headers: names as the sender wrote them; the last one of equal names.
        timestamp_ms: when the broker received it, or the sender created it; ms since 1970, 0 if unknown.
        problem: why a message has no readable payload; usually "". Such a message is completed like any
            other, but can only become a dead letter.
        num_deliveries: 1 the first time, more if it was delivered before and not settled; 0 if
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
        """Topic for the answer; "" if no answer is expected."""
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


class Placed(NamedTuple):
    """Position of a sent message.

    Attributes:
        partition, position: with which a source of the topic delivers it; of Redis without the count.
    """

    partition: str
    position: Position


class Health(msgspec.Struct, frozen=True):
    """The health of a connection.

    Attributes:
        reason: what is wrong, in words; "" if nothing is. Never contains a password.
        since_s: time.time() of the last change.
    """

    reason: str
    since_s: float

    @property
    def ok(self) -> bool:
        """True if the connection works."""
        return not self.reason


class Gap(msgspec.Struct, frozen=True):
    """Messages that were lost before delivery: the broker has trimmed or lost them.

    Attributes:
        partition: of the messages.
        position: where the source tried to resume.
        lost: how many messages; None if the broker does not know.
        reason: in words.
    """

    partition: str
    position: Position
    lost: int | None
    reason: str


class Source(Protocol):
    """Follows all partitions of a topic in order, from positions that its reader stores.

    Every message at or after a position is delivered once per `open`, in order within its partition.
    No method fails because the broker cannot be reached: `poll` returns nothing meanwhile, `health` gives
    the reason, and delivery resumes automatically afterwards, without loss or repetition.
    One task calls `poll`, `acknowledge` and `lag`; there is one source of a group at a time.
    """

    async def open(self, positions: Mapping[str, Position]) -> None:
        """Begin at the reader's own durable positions.

        Args:
            positions: partition -> where to resume; messages before it are never delivered. Partitions
                of other brokers and topics are ignored. A partition that is not named begins at the oldest
                message, or at the next new one if the address has `start=latest`.

        Raises:
            ConfigError: a position that is not one of this broker, or files that cannot be used.
        """
        ...

    async def poll(self, max_messages: int, max_wait_s: float) -> list[Message]:
        """The next messages: at least one if any come in time, without waiting for more.

        A gap is known, at the latest, after the call that returns the message behind it: ask `take_gaps`
        before that message is used. May be cancelled; then the next call returns the messages.

        Raises:
            ConfigError: the broker's topic is of a kind that the address's setting cannot use.
        """
        ...

    async def acknowledge(self, positions: Mapping[str, Position]) -> None:
        """Tell the broker that everything before these positions is durable.

        Acknowledged positions serve people, the broker's retention and its lag figures; `open` uses the
        reader's own positions. Does nothing while the broker cannot be reached: the next call includes
        these positions.
        """
        ...

    async def lag(self) -> dict[str, int]:
        """Partition -> messages that were not delivered yet; unknown ones are left out."""
        ...

    def health(self) -> Health:
        """The health of the connection."""
        ...

    def take_gaps(self) -> list[Gap]:
        """The gaps that were found since the last call."""
        ...

    def is_first(self, position: Position) -> bool:
        """True if this may be the position after the first message of a partition."""
        ...

    async def close(self) -> None:
        """Close the connection; nothing is acknowledged."""
        ...


class Queue(Protocol):
    """Shares the messages of a topic with all readers of its group; each is delivered at least once.

    Messages that a reader neither settled nor kept are delivered again, to it or to another reader: it
    died, or was stopped for long. As for `Source`, an unreachable broker is not a failure.
    """

    async def open(self) -> None:
        """Join the group at its present positions.

        Raises: ConfigError: files that cannot be used.
        """
        ...

    async def poll(self, max_messages: int, max_wait_s: float) -> list[Message]:
        """As `Source.poll`; unsettled messages may be repeated, in any order."""
        ...

    async def settle(self, messages: Sequence[Message]) -> None:
        """Mark messages as done, in any order; they are not delivered again, unless the broker forgets."""
        ...

    async def keep(self) -> float:
        """Tell the broker that unsettled messages are in work; seconds until the next call is due."""
        ...

    async def lag(self) -> dict[str, int]:
        """Partition -> messages that no reader of the group has received yet; unknown ones are left out."""
        ...

    def health(self) -> Health:
        """The health of the connection."""
        ...

    async def close(self) -> None:
        """Leave the group; unsettled messages go to other readers."""
        ...


class Sink(Protocol):
    """Sends messages."""

    async def open(self) -> None:
        """Prepare for sending; does not wait for the broker.

        Raises: ConfigError: files that cannot be used.
        """
        ...

    async def send_each(self, messages: Sequence[Outgoing]) -> list[Placed | BrokerError]:
        """Send, and return when the outcome of each message is known. No message affects another one.

        Messages of one topic and key keep their order.

        Returns: for each message its place, or why it has none. BrokerUnavailable: it was not acknowledged,
            though the broker may have it; try again. Another BrokerError: it is refused (too large, no such
            topic, not allowed); the text says why.
        """
        ...

    async def send(self, messages: Sequence[Outgoing]) -> list[Placed]:
        """Send, and return when the broker has all of them: the place of each.

        After an error some may have been sent: sending all of them again may create duplicates, never gaps.

        Raises:
            BrokerUnavailable, BrokerError: the first error of `send_each`.
        """
        placed = []
        for outcome in await self.send_each(messages):
            if isinstance(outcome, BrokerError):
                raise outcome
            placed.append(outcome)
        return placed

    def health(self) -> Health:
        """The health of the connection."""
        ...

    async def close(self) -> None:
        """Close the connection; call it after the last `send` has returned."""
        ...
