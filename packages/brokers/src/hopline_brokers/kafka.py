"""Shared by Kafka sources, queues and sinks: the driver's settings, its consumers, and its messages.

Options with a dot in their name are librdkafka's own ("sasl.mechanism", "compression.type"); Hopline sets
those that delivery depends on.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import math
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from hopline.brokers.base import Message
from hopline.errors import BrokerUnavailable
from hopline_brokers.address import Address
from hopline_brokers.condition import Connected, Reader, log

#: librdkafka's settings that Hopline sets itself.
_OURS = (
    "acks",
    "auto.offset.reset",
    "bootstrap.servers",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
    "enable.partition.eof",
    "group.id",
)
#: Timeout in seconds for queries of topics and offsets.
CALL_S = 2.0
#: Seconds that the driver has for a call, beyond the time that it was given: in a rebalance it may wait for
#: ever.
GRACE_S = 10.0

_Result = TypeVar("_Result")


def parse(text: str, setting: str) -> Address:
    """A Kafka address. Raises: ConfigError: see `Address.parse`; or no topic is named."""
    address = Address.parse(text, setting, ["kafka"], 9092)
    address.expect(("timeout_s", "partition"), native=True)
    for name in address.options:
        if name in _OURS:
            raise address.wrong(f"{name} is set by Hopline; leave it out")
    if not address.path or "/" in address.path:
        raise address.wrong(f"{address} must name one topic, for example kafka://host:9092/edges")
    return address


def partition_of(address: Address) -> int | None:
    """The only partition that is read or written; None for all. Raises: ConfigError."""
    text = address.text("partition")
    if text and not text.isdecimal():
        raise address.wrong(f"partition must be a number, 0 or more; got {text!r}")
    return int(text) if text else None


def driver_settings(address: Address, on_error: Callable[[KafkaError], None]) -> dict[str, Any]:
    """librdkafka's settings for an address. Raises: ConfigError: a file does not exist."""
    login = "sasl" if address.text("username") else ""
    settings: dict[str, Any] = {
        "bootstrap.servers": ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in address.servers
        ),
        "security.protocol": "_".join(filter(None, (login, "ssl" if address.encrypted else "plaintext"))),
        "client.id": "hopline",
        "error_cb": on_error,
        "log_level": 2,  # relevant errors come through error_cb
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 2000,
        "socket.keepalive.enable": True,
    }
    if login:
        settings["sasl.mechanism"] = "PLAIN"
        settings["sasl.username"] = address.text("username")
        settings["sasl.password"] = address.text("password")
    if address.encrypted:
        names = {"ca_file": "ca", "cert_file": "certificate", "key_file": "key"}
        for name, theirs in names.items():
            file = address.file(name)
            if file is not None:
                settings[f"ssl.{theirs}.location"] = str(file)
        settings["enable.ssl.certificate.verification"] = address.flag("verify", True)
    settings.update({name: value for name, value in address.options.items() if "." in name})
    return settings


def message_of(raw: Any, partition: str, offset: int) -> Message:
    """Convert a message of the driver.

    Args:
        raw: confluent_kafka.Message without an error.
        partition: name of its partition.
        offset: of the message.
    """
    key, headers, stamp = raw.key(), raw.headers(), raw.timestamp()
    return Message(
        raw.value() or b"",
        partition,
        offset + 1,
        _text(key) if key else "",
        {name: _text(value or b"") for name, value in headers} if headers else {},
        stamp[1] if stamp[0] else 0,
    )


def cleanup_policy(address: Address) -> str:
    """The topic's `cleanup.policy`, such as "delete" or "compact,delete"; "" if the broker does not say."""
    resource = ConfigResource(ResourceType.TOPIC, address.path)
    try:
        admin: Any = AdminClient(driver_settings(address, lambda error: None))
        (answer,) = admin.describe_configs([resource], request_timeout=CALL_S).values()
        return str(answer.result(CALL_S + 1)["cleanup.policy"].value)
    except (KafkaException, KeyError, TimeoutError):
        return ""


class Caller:
    """A thread that runs a driver's blocking calls one at a time; the process may end while one hangs."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[concurrent.futures.Future[Any], Callable[[], Any]] | None]
        self._calls = queue.SimpleQueue()
        self._pending: asyncio.Future[Any] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, work: Callable[..., _Result], *values: Any) -> asyncio.Future[_Result]:
        """Begin a call behind those before it."""
        if self._thread.ident is None:
            self._thread.start()
        begun: concurrent.futures.Future[_Result] = concurrent.futures.Future()
        self._calls.put((begun, functools.partial(work, *values)))
        return asyncio.wrap_future(begun)

    async def resumed(self, limit_s: float, work: Callable[..., _Result], *values: Any) -> _Result | None:
        """The result of `work(*values)`, or of an earlier call that was left; None beyond the limit."""
        if self._pending is None:
            self._pending = self.start(work, *values)
        done, _ = await asyncio.wait([self._pending], timeout=limit_s)
        if not done:
            return None
        ended, self._pending = self._pending, None
        result: _Result = ended.result()
        return result

    def close(self) -> None:
        """End the thread once it is idle."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            begun, work = call
            if begun.set_running_or_notify_cancel():
                try:
                    begun.set_result(work())
                except Exception as error:
                    begun.set_exception(error)
            del call, begun, work  # what it refers to


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")


class KafkaPart(Connected):
    """The base of sources, queues and sinks of Kafka.

    Args:
        text: kafka://host:port/topic?…
        setting: name of the setting, for errors.
        clock: seconds, for waits.
    """

    def __init__(self, text: str, setting: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(parse(text, setting), clock)
        self._topic = self._address.path

    def _driver(self, kind: Any, settings: Mapping[str, Any]) -> Any:
        """A consumer or producer of the driver. Raises: ConfigError: it refuses the settings."""
        try:
            return kind({**driver_settings(self._address, self._on_error), **settings})
        except KafkaException as error:
            raise self._address.wrong(self._words(error)) from None

    def _words(self, error: BaseException | KafkaError) -> str:
        if isinstance(error, KafkaException):
            error = error.args[0]
        if isinstance(error, KafkaError):
            return self._address.hidden(f"{error.str()} ({error.name()})")
        return str(error)

    def _on_error(self, error: KafkaError) -> None:
        self._condition.bad(self._words(error))


class KafkaReader(KafkaPart, Reader):
    """A consumer of one topic, whose blocking calls run on a separate thread; see `KafkaPart`."""

    slice_s = 0.1
    #: Seconds between looks at the topic while all is well.
    look_s = math.inf

    def __init__(self, text: str, setting: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(text, setting, clock)
        self._start = self._address.choice("start", ("earliest", "latest"))
        self._prefix = f"kafka/{self._topic}/"
        self._caller = Caller("hopline-kafka")
        self._consumer: Any = None
        self._look_at = self._try_at = 0.0
        #: partition -> its end when it was assigned: until it was fetched, the driver knows no end.
        self._first_ends: dict[int, int] = {}

    def _join(self, settings: Mapping[str, Any]) -> None:
        """Create a consumer that commits explicitly. Raises: ConfigError: see `_driver`."""
        ours = {
            "group.id": self._address.text("group", "hopline"),
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": False,
            "fetch.error.backoff.ms": 100,
        }
        self._consumer = self._driver(Consumer, {**ours, **settings})

    async def lag(self) -> dict[str, int]:
        """As `Source.lag`; as of the last received messages."""
        begun = self._caller.start(self._lag)
        done, _ = await asyncio.wait([begun], timeout=GRACE_S)
        return begun.result() if done else {}

    async def close(self) -> None:
        """As `Source.close`; a member that cannot leave its group in time is gone when its session ends."""
        self._closing = True
        if self._consumer is not None:
            closing = self._caller.start(self._consumer.close)
            _, late = await asyncio.wait([closing], timeout=GRACE_S)
            if late:
                log.warning("%s: the consumer did not leave its group in %g s", self._address, GRACE_S)
            else:
                closing.result()
        self._caller.close()

    async def _read(self, max_messages: int, wait_s: float) -> list[Message]:
        found = await self._caller.resumed(wait_s + GRACE_S, self._consume, max_messages, wait_s)
        if found is None:
            self._condition.bad(f"the driver has not answered for {wait_s + GRACE_S:g} s")
        return found or []

    def _consume(self, max_messages: int, wait_s: float) -> list[Message]:
        now = self._clock()
        if now >= self._try_at and (not self._condition.ok or now > self._look_at):
            self._look(now)
        raws = self._consumer.consume(1, wait_s)
        if raws and max_messages > 1:
            # The driver would wait for the requested number of messages, so it is called without a wait.
            raws += self._consumer.consume(max_messages - 1, 0)
        taken = []
        for raw in raws:
            number, error = raw.partition(), raw.error()
            if error is not None:
                self._failed(number, error)
            elif self._takes(number, raw.offset()):
                taken.append(message_of(raw, f"{self._prefix}{number}", raw.offset()))
        if taken:
            self._condition.good()
        return taken

    def _look(self, now: float) -> None:
        """Check whether the cluster answers: without messages, nothing else shows that."""
        try:
            topic = self._consumer.list_topics(self._topic, timeout=CALL_S).topics[self._topic]
            if topic.error is not None:
                raise BrokerUnavailable(f"topic {self._topic!r}: {topic.error.str()}")
            self._follow(topic.partitions)
        except (KafkaException, BrokerUnavailable) as error:
            self._bad(error)
            self._try_at = now + self._condition.wait_s()
            return
        self._condition.good()
        self._look_at = now + self.look_s

    def _commit(self, offsets: Mapping[int, int]) -> None:
        """Commit the next offset of partitions, if there are any."""
        if not offsets:
            return
        wanted = [TopicPartition(self._topic, number, offset) for number, offset in offsets.items()]
        try:
            self._consumer.commit(offsets=wanted, asynchronous=True)
        except KafkaException as error:
            self._bad(error)

    def _lag(self) -> dict[str, int]:
        found = {}
        for number, offset in self._offsets().items():
            ends = self._consumer.get_watermark_offsets(TopicPartition(self._topic, number), cached=True)
            end = ends[1] if ends is not None and ends[1] >= 0 else self._first_ends.get(number, -1)
            if end >= 0 and offset >= 0:
                found[f"{self._prefix}{number}"] = max(0, end - offset)
        return found

    def _follow(self, partitions: Collection[int]) -> None:
        """Follow the topic's partitions, where the cluster does not assign them."""

    def _failed(self, number: int, error: KafkaError) -> None:
        """An error in place of a message of a partition."""
        self._on_error(error)

    def _takes(self, number: int, offset: int) -> bool:
        """Note a message that arrived; False if it is not to be delivered."""
        raise NotImplementedError

    def _offsets(self) -> Mapping[int, int]:
        """The next offset of each partition; negative if unknown."""
        raise NotImplementedError
