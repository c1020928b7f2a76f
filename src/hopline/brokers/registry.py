"""The brokers' classes by the scheme of an address, and what reads topics, from installed packages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from hopline.brokers.base import Queue, Sink, Source
from hopline.config.urls import find_by_scheme
from hopline.doors import Door, imported
from hopline.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker's classes, each "module:attr"; called with the address and the name of its setting.

    Attributes:
        extra: extra of `pip install 'hopline[…]'`; "" for none.
    """

    source: str
    queue: str
    sink: str
    extra: str = ""


#: scheme -> a `Broker`. All come from packages.
DOOR = Door(
    "hopline.brokers",
    packages={
        **dict.fromkeys(("kafka", "kafkas"), "'hopline[kafka]'"),
        **dict.fromkeys(("redis", "rediss"), "'hopline[redis-streams]'"),
        **dict.fromkeys(("nats", "natss"), "'hopline[nats]'"),
        **dict.fromkeys(("debezium+kafka", "debezium+kafkas"), "'hopline[sql]'"),
    },
)

#: Readers of a topic. "requests": a class that answers requests for a server, made of its service and its
#: settings, with `start`, `drain` and `close`. "stream": the entry of a process that follows a live graph's
#: stream. "snapshots": a class for those that the hosts of a stream share, made of their address and the
#: original graph's version, with `fetch` and `publish`.
READERS = Door("hopline.broker_readers")


def reader(name: str, address: str, setting: str) -> EntryPoint:
    """The reader of a name, for the topic at an address. Raises: ConfigError: it is not installed."""
    if (point := READERS.installed().get(name)) is not None:
        return point
    scheme = scheme_of(address)
    install = DOOR.how_to_install(scheme) or "pip install hopline-brokers"
    raise ConfigError(f"{setting}: {scheme}:// needs a package; install it with: {install}")


def scheme_of(address: str) -> str:
    """The scheme before ://, in lower case; "" if there is none."""
    head, found, _ = address.partition("://")
    return head.lower() if found else ""


def open_source(address: str, setting: str) -> Source:
    """The source at an address. `open()` connects it.

    Args:
        address: "kafka://host:9092/edges?group=g" …; see the guide to queues.
        setting: name of the setting with the address, for errors.

    Raises:
        ConfigError: an unknown scheme, an address that the broker cannot use, or a package that is
            not installed.
    """
    return cast(Source, _make("source", address, setting))


def open_queue(address: str, setting: str) -> Queue:
    """The queue at an address; as `open_source`."""
    return cast(Queue, _make("queue", address, setting))


def open_sink(address: str, setting: str) -> Sink:
    """The sink at an address; as `open_source`."""
    return cast(Sink, _make("sink", address, setting))


def _make(what: str, address: str, setting: str) -> Any:
    broker = find_by_scheme(DOOR, address, setting, "the address of a broker")
    try:
        made = imported(getattr(broker, what))
    except ModuleNotFoundError as error:
        if not broker.extra or (error.name or "").startswith("hopline"):
            raise
        raise ConfigError(
            f"{setting}: {scheme_of(address)}:// needs {error.name}; install it with: "
            f"pip install 'hopline[{broker.extra}]'"
        ) from None
    return made(address, setting)
