"""A Kafka topic whose partitions the members of a group share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from hopline.brokers import kafka
from hopline.brokers.base import Health, Message
from hopline.brokers.condition import Condition
from hopline.brokers.settled import Settled
from hopline.retry import Backoff

_SLICE_S = 0.1


class KafkaQueue:
    """A member of a consumer group; see `Queue`.

    Partitions are reassigned when members join or leave. Messages that were not settled when their
    partition was reassigned are delivered again, to its next owner.

    Args:
        text: kafka://host:port/topic?group=g&start=earliest
        setting: name of the setting, for errors.
    """

    def __init__(self, text: str, setting: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = kafka.parse(text, setting)
        if kafka.partition_of(self._address) is not None:
            raise self._address.wrong("a queue shares all partitions of its topic; leave partition out")
        self._topic = self._address.path
        self._start = self._address.choice("start", ("earliest", "latest"))
        self._prefix = f"kafka/{self._topic}/"
        self._condition = Condition(str(self._address))
        self._backoff = Backoff()
        self._clock = clock
        self._caller = kafka.Caller("hopline-kafka-queue")
        self._consumer: Any = None
        #: partition assigned to this member -> state of its messages.
        self._owned: dict[int, Settled] = {}
        self._closing = False
        self._try_at = 0.0

    async def open(self) -> None:
        """As `Queue.open`."""
        settings = kafka.consumer_settings(self._address, self._on_error)
        settings["auto.offset.reset"] = self._start
        settings["partition.assignment.strategy"] = "cooperative-sticky"
        settings["topic.metadata.refresh.interval.ms"] = 10_000
        try:
            self._consumer = Consumer(settings)
        except KafkaException as error:
            raise self._address.wrong(kafka.words(error.args[0], self._address)) from None
        self._consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )

    async def poll(self, max_messages: int, max_wait_s: float) -> list[Message]:
        """As `Queue.poll`."""
        return await self._caller.resumed(self._poll, max_messages, max_wait_s)

    async def settle(self, messages: Sequence[Message]) -> None:
        """As `Queue.settle`."""
        touched: dict[int, Settled] = {}
        for message in messages:
            number = int(message.partition.removeprefix(self._prefix))
            owned = self._owned.get(number)
            if owned is not None:
                owned.settle(int(message.position) - 1)
                touched[number] = owned
        offsets = [
            TopicPartition(self._topic, number, offset)
            for number, owned in touched.items()
            if (offset := owned.take()) is not None
        ]
        if not offsets:
            return
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._condition.bad(kafka.words(error.args[0], self._address))

    async def lag(self) -> dict[str, int]:
        """As `Queue.lag`: of the partitions of this member."""
        return await self._caller.call(self._lag)

    def health(self) -> Health:
        """As `Queue.health`."""
        return self._condition.health()

    async def close(self) -> None:
        """As `Queue.close`."""
        self._closing = True
        if self._consumer is not None:
            await self._caller.call(self._consumer.close)
        self._caller.close()

    def _poll(self, max_messages: int, max_wait_s: float) -> list[Message]:
        end = self._clock() + max_wait_s
        while not self._closing:
            if not self._condition.ok and self._clock() >= self._try_at:
                self._ask()
            raws = self._consumer.consume(1, max(0.0, min(_SLICE_S, end - self._clock())))
            if raws:
                raws += self._consumer.consume(max_messages - 1, 0) if max_messages > 1 else []
                messages = self._taken(raws)
                if messages:
                    return messages
            if self._clock() >= end:
                break
        return []

    def _taken(self, raws: list[Any]) -> list[Message]:
        taken = []
        for raw in raws:
            error = raw.error()
            if error is not None:
                self._on_error(error)
                continue
            owned = self._owned.get(raw.partition())
            if owned is None:  # revoked since it was fetched
                continue
            owned.delivered(raw.offset())
            taken.append(kafka.message_of(raw, f"{self._prefix}{raw.partition()}", raw.offset()))
        if taken:
            self._condition.good()
        return taken

    def _ask(self) -> None:
        """Check whether the cluster answers again: without messages, nothing else shows that."""
        try:
            topic = self._consumer.list_topics(self._topic, timeout=kafka.ASK_S).topics[self._topic]
        except KafkaException as error:
            self._condition.bad(kafka.words(error.args[0], self._address))
        else:
            if topic.error is None:
                self._condition.good()
                self._backoff.reset()
                return
            self._condition.bad(f"topic {self._topic!r}: {topic.error.str()}")
        self._try_at = self._clock() + self._backoff.next()

    def _on_error(self, error: KafkaError) -> None:
        self._condition.bad(kafka.words(error, self._address))

    # Called by the driver from within `consume` and `close`.

    def _assigned(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._owned[partition.partition] = Settled()

    def _revoked(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._owned.pop(partition.partition, None)

    _lost = _revoked

    def _lag(self) -> dict[str, int]:
        here = self._consumer.position([TopicPartition(self._topic, number) for number in self._owned])
        found = {}
        for partition in here:
            ends = self._consumer.get_watermark_offsets(partition, cached=True)
            if ends is not None and ends[1] >= 0 and partition.offset >= 0:
                found[f"{self._prefix}{partition.partition}"] = max(0, ends[1] - partition.offset)
        return found
