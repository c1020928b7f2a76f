"""A Kafka topic, followed from offsets that the reader stores.

All partitions are assigned by hand: a source has the whole topic, so that there is nothing to rebalance.
Offsets are committed to the group as well, for people and lag monitors; they are never read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from hopline.brokers import kafka
from hopline.brokers.base import Gap, Health, Message, Position
from hopline.brokers.condition import Condition
from hopline.errors import BrokerUnavailable
from hopline.retry import Backoff

log = logging.getLogger(__name__)

#: A wait is cut into pieces of this length, so that `close` need not wait long.
_SLICE_S = 0.1
#: Seconds between checks for added partitions.
_LOOK_S = 30.0
_MOVED = (KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE)


class KafkaSource:
    """A topic of a Kafka cluster; see `Source`.

    Args:
        text: kafka://host:port/topic?group=g&start=earliest&partition=0; without a partition, all are read.
        setting: name of the setting, for errors.
        clock: seconds, for waits and the search for new partitions.
    """

    def __init__(self, text: str, setting: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = kafka.parse(text, setting)
        self._topic = self._address.path
        self._start = self._address.choice("start", ("earliest", "latest"))
        self._only = kafka.partition_of(self._address)
        self._prefix = f"kafka/{self._topic}/"
        self._condition = Condition(str(self._address))
        self._backoff = Backoff()
        self._clock = clock
        self._caller = kafka.Caller("hopline-kafka-source")
        self._consumer: Any = None
        #: partition -> offset of the next message.
        self._next: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._wanted: dict[int, int] = {}
        self._gaps: list[Gap] = []
        #: Partitions in which offsets are missing between two messages.
        self._holed: set[int] = set()
        self._assigned = self._closing = False
        self._look_at = self._try_at = 0.0

    async def open(self, positions: Mapping[str, Position]) -> None:
        """As `Source.open`."""
        for name, position in positions.items():
            if not name.startswith(self._prefix):
                continue
            number = name.removeprefix(self._prefix)
            if not number.isdecimal() or not isinstance(position, int) or position < 0:
                raise self._address.wrong(
                    f"position {position!r} of {name!r} is not one of Kafka: expected an offset, 0 or more"
                )
            self._wanted[int(number)] = position
        settings = kafka.consumer_settings(self._address, self._on_error)
        # The driver must not decide: a deleted offset is a gap, which must be reported.
        settings["auto.offset.reset"] = "error"
        try:
            self._consumer = Consumer(settings)
        except KafkaException as error:
            raise self._address.wrong(kafka.words(error.args[0], self._address)) from None

    async def poll(self, max_messages: int, max_wait_s: float) -> list[Message]:
        """As `Source.poll`."""
        return await self._caller.resumed(self._poll, max_messages, max_wait_s)

    async def acknowledge(self, positions: Mapping[str, Position]) -> None:
        """As `Source.acknowledge`."""
        offsets = [
            TopicPartition(self._topic, int(name.removeprefix(self._prefix)), int(position))
            for name, position in positions.items()
            if name.startswith(self._prefix)
        ]
        if not offsets or not self._assigned:
            return
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._condition.bad(kafka.words(error.args[0], self._address))

    async def lag(self) -> dict[str, int]:
        """As `Source.lag`; as of the last received messages."""
        return await self._caller.call(self._lag)

    def health(self) -> Health:
        """As `Source.health`."""
        return self._condition.health()

    def take_gaps(self) -> list[Gap]:
        """As `Source.take_gaps`."""
        gaps, self._gaps = self._gaps, []
        return gaps

    async def close(self) -> None:
        """As `Source.close`."""
        self._closing = True
        if self._consumer is not None:
            await self._caller.call(self._consumer.close)
        self._caller.close()

    def _on_error(self, error: KafkaError) -> None:
        self._condition.bad(kafka.words(error, self._address))

    def _poll(self, max_messages: int, max_wait_s: float) -> list[Message]:
        end = self._clock() + max_wait_s
        while not self._closing:
            now = self._clock()
            if now >= self._try_at and (
                not self._assigned or not self._condition.ok or now > self._look_at
            ):
                self._connect(now)
            wait_s = max(0.0, min(_SLICE_S, end - self._clock()))
            raws = self._consumer.consume(1, wait_s)
            if raws:
                # The driver would wait for the requested number of messages, so it is called without a
                # wait.
                raws += self._consumer.consume(max_messages - 1, 0) if max_messages > 1 else []
                messages = self._taken(raws)
                if messages:
                    return messages
            if self._clock() >= end:
                break
        return []

    def _taken(self, raws: list[Any]) -> list[Message]:
        following, names, taken = self._next, self._names, []
        for raw in raws:
            error = raw.error()
            if error is not None:
                self._failed(raw, error)
                continue
            number, offset = raw.partition(), raw.offset()
            # Messages that were in transit when the source changed its position.
            if offset < following[number]:
                continue
            if offset > following[number] and number not in self._holed:
                self._hole(number, offset)
            taken.append(kafka.message_of(raw, names[number], offset))
            following[number] = offset + 1
        if taken:
            self._condition.good()
        return taken

    def _failed(self, raw: Any, error: KafkaError) -> None:
        if error.code() in _MOVED and raw.partition() in self._next:
            self._skip(raw.partition())
        else:
            self._on_error(error)

    def _connect(self, now: float) -> None:
        """Read the topic's partitions, and assign new ones."""
        try:
            numbers = self._partitions()
            new = [number for number in numbers if number not in self._next]
            for number in new:
                self._names[number] = f"{self._prefix}{number}"
                self._next[number] = self._wanted.get(number, self._begin(number))
            if new:
                self._assign()
        except (KafkaException, BrokerUnavailable) as error:
            known = isinstance(error, KafkaException)
            self._condition.bad(kafka.words(error.args[0], self._address) if known else str(error))
            self._try_at = now + self._backoff.next()
            return
        self._condition.good()
        self._backoff.reset()
        self._look_at = now + _LOOK_S

    def _partitions(self) -> list[int]:
        topic = self._consumer.list_topics(self._topic, timeout=kafka.ASK_S).topics[self._topic]
        if topic.error is not None:
            raise BrokerUnavailable(f"topic {self._topic!r}: {topic.error.str()}")
        if self._only is None:
            return sorted(topic.partitions)
        if self._only not in topic.partitions:
            raise BrokerUnavailable(f"topic {self._topic!r} has no partition {self._only}")
        return [self._only]

    def _begin(self, number: int) -> int:
        # A partition that was added later is read from its first message.
        low, high = self._offsets(number)
        return low if self._start == "earliest" or self._assigned else high

    def _offsets(self, number: int) -> tuple[int, int]:
        found: tuple[int, int] | None = self._consumer.get_watermark_offsets(
            TopicPartition(self._topic, number), timeout=kafka.ASK_S
        )
        if found is None:
            raise BrokerUnavailable("the offsets of the topic did not come in time")
        return found

    def _assign(self) -> None:
        self._consumer.assign(
            [TopicPartition(self._topic, number, offset) for number, offset in self._next.items()]
        )
        self._assigned = True

    def _skip(self, number: int) -> None:
        """Continue at the oldest offset after a deleted one, and report the gap."""
        wanted = self._next[number]
        try:
            low, high = self._offsets(number)
        except (KafkaException, BrokerUnavailable):
            low, high = -1, -1
        if 0 <= low <= wanted <= high:
            # The offset exists again: the broker had not caught up.
            self._assign()
            return
        if low < 0:
            # Retry: after assigning, the same error returns once the broker answers.
            self._try_at = self._clock() + self._backoff.next()
            self._assign()
            return
        if wanted < low:
            lost, why = low - wanted, "were deleted by the broker before they were read"
        else:
            lost, why = None, f"the topic ends at {high}: it was recreated, or lost messages"
        self._gaps.append(Gap(self._names[number], wanted, lost, f"offsets {wanted} to {low}: {why}"))
        self._next[number] = low
        self._assign()

    def _hole(self, number: int, offset: int) -> None:
        """Report the first missing offsets of a partition, if they may have been messages."""
        self._holed.add(number)
        missing = f"offsets {self._next[number]} to {offset - 1} are missing"
        policy = kafka.cleanup_policy(self._address)
        if "compact" in policy:
            why = (
                f"{missing}: the topic has cleanup.policy={policy}, so that a message replaces those before"
            )
            advice = "with its key; set it to delete (later ones are not reported)"
            self._gaps.append(Gap(self._names[number], self._next[number], None, f"{why} {advice}"))
        elif not policy:
            log.warning(
                "%s: %s: by a transaction, or by compaction; the broker does not say cleanup.policy, "
                "which must be delete",
                self._names[number],
                missing,
            )

    def _lag(self) -> dict[str, int]:
        found = {}
        for number, offset in self._next.items():
            ends = self._consumer.get_watermark_offsets(TopicPartition(self._topic, number), cached=True)
            if ends is not None and ends[1] >= 0:
                found[self._names[number]] = max(0, ends[1] - offset)
        return found
