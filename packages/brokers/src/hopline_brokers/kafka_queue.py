"""A Kafka topic whose partitions the members of a group share."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import TopicPartition

from hopline.brokers.base import Message
from hopline_brokers import kafka


class KafkaQueue(kafka.KafkaReader):
    """A member of a consumer group; see `Queue`.

    Partitions are reassigned when members join or leave. Messages that were not settled when their
    partition was reassigned are delivered again, to its next owner.

    Args:
        text: kafka://host:port/topic?group=g&start=earliest
        setting, clock: see `KafkaPart`.
    """

    def __init__(self, text: str, setting: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(text, setting, clock)
        if kafka.partition_of(self._address) is not None:
            raise self._address.wrong("a queue shares all partitions of its topic; leave partition out")
        #: partition assigned to this member -> state of its messages.
        self._owned: dict[int, Settled] = {}

    async def open(self) -> None:
        """As `Queue.open`."""
        self._join(
            {
                "auto.offset.reset": self._start,
                "partition.assignment.strategy": "cooperative-sticky",
                "topic.metadata.refresh.interval.ms": 10_000,
                # No poll while all places are taken; a member that died or was stopped ends its session.
                "max.poll.interval.ms": self._address.options.get("max.poll.interval.ms", 86_400_000),
            }
        )
        self._consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )

    async def settle(self, messages: Sequence[Message]) -> None:
        """As `Queue.settle`."""
        touched: dict[int, Settled] = {}
        for message in messages:
            number = int(message.partition.removeprefix(self._prefix))
            owned = self._owned.get(number)
            if owned is not None:
                owned.settle(int(message.position) - 1)
                touched[number] = owned
        self._commit(
            {number: offset for number, owned in touched.items() if (offset := owned.take()) is not None}
        )

    async def keep(self) -> float:
        """As `Queue.keep`: partitions belong to members, which a thread of the driver keeps."""
        return math.inf

    def _takes(self, number: int, offset: int) -> bool:
        owned = self._owned.get(number)
        if owned is None:  # revoked since it was fetched
            return False
        owned.delivered(offset)
        return True

    def _offsets(self) -> Mapping[int, int]:
        here = self._consumer.position([TopicPartition(self._topic, number) for number in self._owned])
        return {each.partition: each.offset for each in here}

    # Called by the driver from within `consume` and `close`.

    def _assigned(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._owned[partition.partition] = Settled()

    def _revoked(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._owned.pop(partition.partition, None)


class Settled:
    """Offsets of one partition, delivered in ascending order and settled in any order.

    A commit means that everything before an offset is done; so one unsettled message blocks the commit of
    later ones.
    """

    __slots__ = ("_delivered", "_done")

    def __init__(self) -> None:
        self._delivered: deque[int] = deque()
        self._done: set[int] = set()

    def delivered(self, offset: int) -> None:
        """Record a delivered message; one that was delivered before changes nothing."""
        if not self._delivered or offset > self._delivered[-1]:
            self._delivered.append(offset)

    def settle(self, offset: int) -> None:
        """Record a settled message; one that was never delivered here changes nothing."""
        if self._delivered and offset >= self._delivered[0]:
            self._done.add(offset)

    def take(self) -> int | None:
        """The offset to commit, None if nothing is new."""
        last = None
        while self._delivered and self._delivered[0] in self._done:
            last = self._delivered.popleft()
            self._done.remove(last)
        return None if last is None else last + 1
