"""A Kafka topic, followed from offsets that the reader stores.

All partitions are assigned by hand: a source has the whole topic, so that there is nothing to rebalance.
Offsets are committed to the group as well, for people and lag monitors; they are never read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from hopline.brokers.base import Gap, Position
from hopline.errors import BrokerUnavailable
from hopline_brokers import kafka

log = logging.getLogger("hopline.brokers")

_MOVED = (KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE)


class KafkaSource(kafka.KafkaReader):
    """A topic of a Kafka cluster; see `Source`.

    Args:
        text: kafka://host:port/topic?group=g&start=earliest&partition=0; without a partition, all are read.
        setting, clock: see `KafkaPart`; the clock also for the search for new partitions.
    """

    look_s = 30.0

    def __init__(self, text: str, setting: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(text, setting, clock)
        self._only = kafka.partition_of(self._address)
        #: partition -> offset of the next message.
        self._next: dict[int, int] = {}
        self._wanted: dict[int, int] = {}
        #: Partitions in which offsets are missing between two messages.
        self._holed: set[int] = set()
        self._assigned = False

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
        # The driver must not decide: a deleted offset is a gap, which must be reported.
        self._join({"auto.offset.reset": "error"})

    async def acknowledge(self, positions: Mapping[str, Position]) -> None:
        """As `Source.acknowledge`."""
        if self._assigned:
            self._commit(
                {
                    int(name.removeprefix(self._prefix)): int(position)
                    for name, position in positions.items()
                    if name.startswith(self._prefix)
                }
            )

    def is_first(self, position: Position) -> bool:
        """As `Source.is_first`: offsets begin at 0, and a position is the next offset."""
        return position == 1

    def _takes(self, number: int, offset: int) -> bool:
        following = self._next[number]
        if offset < following:  # in transit when the source changed its position
            return False
        if offset > following and number not in self._holed:
            self._hole(number, offset)
        self._next[number] = offset + 1
        return True

    def _failed(self, number: int, error: KafkaError) -> None:
        if error.code() in _MOVED and number in self._next:
            self._skip(number)
        else:
            self._on_error(error)

    def _offsets(self) -> Mapping[int, int]:
        return self._next

    def _follow(self, partitions: Collection[int]) -> None:
        """Assign partitions that are new."""
        if self._only is not None and self._only not in partitions:
            raise BrokerUnavailable(f"topic {self._topic!r} has no partition {self._only}")
        wanted = sorted(partitions) if self._only is None else [self._only]
        new = [number for number in wanted if number not in self._next]
        for number in new:
            self._next[number] = self._wanted.get(number, self._begin(number))
        if new:
            self._assign()

    def _begin(self, number: int) -> int:
        # A partition that was added later is read from its first message.
        low, high = self._ends(number)
        self._first_ends[number] = high
        return low if self._start == "earliest" or self._assigned else high

    def _ends(self, number: int) -> tuple[int, int]:
        found: tuple[int, int] | None = self._consumer.get_watermark_offsets(
            TopicPartition(self._topic, number), timeout=kafka.CALL_S
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
            low, high = self._ends(number)
        except (KafkaException, BrokerUnavailable):
            low, high = -1, -1
        if 0 <= low <= wanted <= high:
            # The offset exists again: the broker had not caught up.
            self._assign()
            return
        if low < 0:
            # Retry: after assigning, the same error returns once the broker answers.
            self._try_at = self._clock() + self._condition.wait_s()
            self._assign()
            return
        if wanted < low:
            lost, why = low - wanted, "were deleted by the broker before they were read"
        else:
            lost, why = None, f"the topic ends at {high}: it was recreated, or lost messages"
        self._gaps.append(Gap(f"{self._prefix}{number}", wanted, lost, f"offsets {wanted} to {low}: {why}"))
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
            self._gaps.append(Gap(f"{self._prefix}{number}", self._next[number], None, f"{why} {advice}"))
        elif not policy:
            log.warning(
                "%s: %s: by a transaction, or by compaction; the broker does not say cleanup.policy, "
                "which must be delete",
                f"{self._prefix}{number}",
                missing,
            )
