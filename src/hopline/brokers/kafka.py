"""Shared by Kafka sources, queues and sinks: the driver's settings, and conversion of its messages.

Options with a dot in their name are librdkafka's own ("sasl.mechanism", "compression.type"); Hopline sets
those that delivery depends on.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from hopline.brokers.address import Address
from hopline.brokers.base import Message

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
ASK_S = 2.0

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


def consumer_settings(address: Address, on_error: Callable[[KafkaError], None]) -> dict[str, Any]:
    """As `driver_settings`, for a consumer that commits explicitly."""
    return driver_settings(address, on_error) | {
        "group.id": address.text("group", "hopline"),
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": False,
        "fetch.error.backoff.ms": 100,
    }


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


def words(error: KafkaError, address: Address) -> str:
    """An error in words."""
    return address.hidden(f"{error.str()} ({error.name()})")


def cleanup_policy(address: Address) -> str:
    """The topic's `cleanup.policy`, such as "delete" or "compact,delete"; "" if the broker does not say."""
    resource = ConfigResource(ResourceType.TOPIC, address.path)
    try:
        admin: Any = AdminClient(driver_settings(address, lambda error: None))
        (answer,) = admin.describe_configs([resource], request_timeout=ASK_S).values()
        return str(answer.result(ASK_S + 1)["cleanup.policy"].value)
    except (KafkaException, KeyError, TimeoutError):
        return ""


class Caller:
    """A thread that runs a driver's blocking calls one at a time."""

    def __init__(self, name: str) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=name)
        self._pending: asyncio.Future[Any] | None = None

    async def call(self, work: Callable[..., _Result], *values: Any) -> _Result:
        """The result of `work(*values)`."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *values)

    async def resumed(self, work: Callable[..., _Result], *values: Any) -> _Result:
        """As `call`; if an earlier call was cancelled, its result instead of that of a new call."""
        if self._pending is None:
            self._pending = asyncio.get_running_loop().run_in_executor(self._pool, work, *values)
        result: _Result = await asyncio.shield(self._pending)
        self._pending = None
        return result

    def close(self) -> None:
        """End the thread once it is idle."""
        self._pool.shutdown(wait=False)


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")
