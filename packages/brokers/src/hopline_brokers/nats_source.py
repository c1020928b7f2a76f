"""A JetStream stream, followed from sequence numbers that the reader stores.

Every `open`, and every new connection, creates a new consumer at the reader's present number, so that
messages of an earlier connection cannot be repeated or reordered. Its sequence numbers have no holes: a
number that does not follow means that a delivery was lost in transit.

The numbers of the stream have holes where the reader's filter leaves out messages, and in a work queue, of
which other readers take some. In any other stream a hole is a gap: the server deleted these messages.

A consumer is of one reader alone: the hosts of a fleet follow a stream under equal settings, and with equal
names each would delete that of the others.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from nats.js import api
from nats.js.errors import NotFoundError

from hopline.brokers.base import Gap, Message, Position
from hopline_brokers import nats_stream
from hopline_brokers.nats_stream import Pull

_ACK_WAIT_S = 300.0
#: Seconds after which the server deletes the consumer of a reader that is gone.
_UNUSED_S = 300.0


class NatsSource(nats_stream.NatsReader):
    """A stream; see `Source`.

    Args:
        text: nats://host:port/stream?subject=edges.>&durable=d&start=earliest
        setting, clock: see `NatsPart`.
    """

    def __init__(self, text: str, setting: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(text, setting, clock)
        #: Name of the consumer; "" if there is none.
        self._consumer = ""
        #: Number of the next message; 0 if unknown.
        self._next = 0
        self._expected = 1
        #: (number, reply) of deliveries that are not acknowledged.
        self._open: deque[tuple[int, str]] = deque()
        self._each = False
        #: Whether the consumer gets every message of the stream.
        self._whole = False
        #: When the stream was made, as the server says; None before the first connection.
        self._made: Any = None

    async def open(self, positions: Mapping[str, Position]) -> None:  # type: ignore[override]
        """As `Source.open`."""
        position = positions.get(self._partition, 0)
        if not isinstance(position, int) or position < 0:
            raise self._address.wrong(
                f"position {position!r} of {self._partition!r} is not one of NATS: "
                "expected a sequence number, 1 or more"
            )
        self._next = position
        await super().open()

    async def acknowledge(self, positions: Mapping[str, Position]) -> None:
        """As `Source.acknowledge`."""
        position = positions.get(self._partition)
        if position is None or self._client is None:
            return
        replies = []
        while self._open and self._open[0][0] < int(position):
            replies.append(self._open.popleft()[1])
        try:
            # One acknowledges all before it, except in a work queue.
            for reply in replies if self._each else replies[-1:]:
                await self._acknowledge(reply)
        except nats_stream.FAILURES as error:
            self._bad(error)

    async def lag(self) -> dict[str, int]:
        """As `Source.lag`; as of the last received message."""
        if self._pending is None:
            return {}
        waiting = len(self._pull.waiting) if self._pull is not None else 0
        return {self._partition: self._pending + waiting}

    def is_first(self, position: Position) -> bool:
        """As `Source.is_first`: sequence numbers begin at 1, and a position is the next number."""
        return position == 2

    async def close(self) -> None:
        """As `Source.close`."""
        if self._is_connected:
            with contextlib.suppress(*nats_stream.FAILURES):
                await self._delete(self._client.jetstream(timeout=2))
        await super().close()

    async def _find_consumer(self, stream: Any) -> Any:
        self._open.clear()
        info = await stream.stream_info(self._stream)
        self._look(info.config)
        self._find(info.state.first_seq, info.state.last_seq, info.created)
        if self._each:  # has one reader, and admits no second consumer
            self._consumer = self._name
        await self._delete(stream)
        self._consumer = self._name if self._each else f"{self._name}-{secrets.token_hex(4)}"
        config = api.ConsumerConfig(
            durable_name=self._consumer,
            inactive_threshold=_UNUSED_S,
            # A work queue holds only unacknowledged messages.
            deliver_policy=api.DeliverPolicy.ALL if self._each else api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=None if self._each else self._next,
            ack_policy=api.AckPolicy.EXPLICIT if self._each else api.AckPolicy.ALL,
            ack_wait=_ACK_WAIT_S,
            filter_subject=self._subject,
            max_ack_pending=-1,
        )
        self._expected = 1
        return await stream.add_consumer(self._stream, config)

    async def _delete(self, stream: Any) -> None:
        """Delete the consumer at the server, if there is one."""
        if self._consumer:
            with contextlib.suppress(NotFoundError):
                await stream.delete_consumer(self._stream, self._consumer)
        self._consumer = ""

    def _look(self, config: api.StreamConfig) -> None:
        """Note what the consumer gets. Raises: ConfigError: not all, though a fleet needs all."""
        self._each = config.retention == api.RetentionPolicy.WORK_QUEUE
        subjects = config.subjects or []
        is_all = self._subject in (None, ">") or (subjects == [self._subject] and not config.sources)
        self._whole = is_all and not self._each
        if self._whole or not self._address.is_of_fleet:
            return
        if self._each:
            raise self._address.wrong(
                f"the stream {self._stream!r} is a work queue, which gives each message to one reader; "
                "all hosts must get all messages: give the stream the retention 'limits'"
            )
        raise self._address.wrong(
            f"the subject {self._subject!r} is only a part of the stream: {self._stream!r} has "
            f"{', '.join(subjects) or 'no subjects of its own'}; a message that is missing could not be "
            "noticed: make a stream that has only this subject"
        )

    def _find(self, first: int, last: int, made: Any) -> None:
        """Check the next number against the stream's range and age."""
        first = max(1, first)
        known, self._made = self._made, made
        if not self._next:
            self._next = first if self._start == "earliest" else last + 1
        elif known is not None and made != known:
            self._gap(None, f"the stream was recreated at {made}", first)
        elif self._next > last + 1:
            self._gap(None, f"the stream ends at {last}: it was recreated, or lost messages", first)
        elif self._next < first:
            self._deleted(first)

    def _deleted(self, first: int) -> None:
        which = f"messages {self._next} to {first - 1} were deleted before they were read"
        if self._whole or self._subject is None:
            self._gap(first - self._next, which, first)
        else:
            self._gap(None, f"{which}; some may have had the subject {self._subject!r}", first)

    def _gap(self, lost: int | None, why: str, first: int) -> None:
        self._gaps.append(Gap(self._partition, self._next, lost, why))
        self._next = first

    def _taken(self, pull: Pull, max_messages: int) -> list[Message]:
        taken: list[Message] = []
        while pull.waiting and len(taken) < max_messages:
            raw, receipt = pull.waiting.popleft()
            if receipt.consumer_seq != self._expected:
                pull.broken = "a delivery was lost in transit"
                pull.waiting.clear()
                break
            if self._whole and receipt.stream_seq > self._next:
                if taken:  # the gap is reported after them, and before the message that follows it
                    pull.waiting.appendleft((raw, receipt))
                    break
                self._deleted(receipt.stream_seq)
            self._expected += 1
            self._pending = receipt.pending
            if receipt.stream_seq < self._next:
                if self._each:  # durable already, but not acknowledged yet
                    self._open.append((receipt.stream_seq, raw.reply))
                continue
            self._next = receipt.stream_seq + 1
            self._open.append((receipt.stream_seq, raw.reply))
            taken.append(nats_stream.message_of(raw, receipt, self._partition))
        return taken
