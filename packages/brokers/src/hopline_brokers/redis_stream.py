"""Shared by sources, queues and sinks of Redis Streams: the connection, and entries as messages.

An entry's field `payload` (another by the option `field`) is the payload and `key` the key; every other
field is a header.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import redis.asyncio as driver
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from hopline.brokers.base import Message, Position
from hopline.config.redis_policy import QUESTIONS, check_keeps, policy_in
from hopline.errors import ConfigError
from hopline_brokers.address import Address
from hopline_brokers.condition import Connected, Reader

#: Timeout of an answer in seconds, in addition to the requested wait.
REPLY_S = 2.0
_CONNECT_S = 2.0
#: Fields of an entry that an error names.
_SHOWN = 12


class EvictingServer(RedisError):  # type: ignore[misc]
    """The server may evict streams when its memory is full; nothing is read or written until it may not."""


#: Errors of Redis or its driver that are temporary.
PASSING = (
    EvictingServer,
    RedisConnectionError,
    RedisTimeoutError,
    BusyLoadingError,
    ReadOnlyError,
    OutOfMemoryError,
    TimeoutError,
    OSError,
)
FAILURES = (RedisError, OSError, TimeoutError)

_Result = TypeVar("_Result")


def parse(text: str, setting: str) -> Address:
    """The address of a stream. Raises: ConfigError: see `Address.parse`; no stream, or a bad database."""
    address = Address.parse(text, setting, ["redis"], 6379)
    address.expect(("stream", "field", "claim_after_s", "delete", "max_len"))
    address.required("stream", "redis://host:6379/0?stream=edges")
    if len(address.servers) > 1:
        raise address.wrong(f"{address}: a stream is on one server; name one server")
    if not (address.path or "0").isdecimal():
        raise address.wrong(f"{address}: the database must be a number; got {address.path!r}")
    return address


class Connection:
    """One connection, opened when needed; after a failed call it is opened again.

    The first command, and the first after a lost connection, ask for the server's memory policy.

    Args:
        address: of the stream.
        setting: of the address, for errors.

    Raises: ConfigError: a file cannot be used.
    """

    def __init__(self, address: Address, setting: str) -> None:
        self._address = address
        self._setting = setting
        self._keeps = False
        host, port = address.servers[0]
        options: dict[str, Any] = {}
        if address.encrypted:
            address.tls()  # raises an error for unusable files
            options = {
                "ssl": True,
                "ssl_cert_reqs": "required" if address.flag("verify", True) else "none",
                "ssl_check_hostname": address.flag("verify", True),
                "ssl_ca_certs": address.text("ca_file") or None,
                "ssl_certfile": address.text("cert_file") or None,
                "ssl_keyfile": address.text("key_file") or None,
            }
        self._redis: Any = driver.Redis(
            host=host,
            port=port,
            db=int(address.path or "0"),
            username=address.text("username") or None,
            password=address.text("password") or None,
            socket_connect_timeout=_CONNECT_S,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            **options,
        )

    async def call(self, *words: Any, wait_s: float = 0.0, **options: Any) -> Any:
        """Run one command.

        Raises:
            RedisError, OSError, TimeoutError (no answer in time).
            EvictingServer: the server may evict the stream.
        """
        async with self._checked():
            return await _in_time(self._redis.execute_command(*words, **options), wait_s)

    async def several(self, commands: list[tuple[Any, ...]], *, atomic: bool) -> list[Any]:
        """Run commands in one round trip; errors of single commands are among the results.

        Raises: as `call`.
        """
        async with self._checked(), self._redis.pipeline(transaction=atomic) as pipe:
            for words in commands:
                pipe.execute_command(*words)
            results: list[Any] = await _in_time(pipe.execute(raise_on_error=False), 0.0)
        return results

    async def close(self) -> None:
        """Close the connection."""
        await self._redis.aclose()

    @contextlib.asynccontextmanager
    async def _checked(self) -> AsyncIterator[None]:
        try:
            if not self._keeps:
                await self._check_policy()
                self._keeps = True
            yield
        except PASSING:  # the next connection may be to another server
            self._keeps = False
            raise

    async def _check_policy(self) -> None:
        policy = ""
        for words in QUESTIONS:
            with contextlib.suppress(ResponseError):  # managed servers forbid it
                policy = policy or policy_in(await _in_time(self._redis.execute_command(*words), 0.0))
        try:
            check_keeps(policy, str(self._address), self._setting, expiring=False)
        except ConfigError as error:
            raise EvictingServer(str(error)) from None


class Entries:
    """Converts entries of a stream to messages and back.

    Args:
        address: of the stream.
    """

    def __init__(self, address: Address) -> None:
        self.stream = address.text("stream")
        self.partition = f"redis/{self.stream}"
        self._field = address.text("field", "payload").encode()

    def message(
        self, entry_id: bytes, fields: Mapping[bytes, bytes], position: Position, num_deliveries: int = 0
    ) -> Message:
        """The message of one entry."""
        payload = fields.get(self._field)
        key = fields.get(b"key", b"")
        headers = {
            _text(name): _text(value)
            for name, value in fields.items()
            if name != self._field and name != b"key"
        }
        problem = ""
        if payload is None:
            there = ", ".join(sorted(_text(name)[:40] for name in fields)[:_SHOWN])
            problem = f"the entry has no field {_text(self._field)!r}; its fields are: {there}"
        return Message(
            payload or b"",
            self.partition,
            position,
            _text(key),
            headers,
            int(entry_id.partition(b"-")[0]),
            problem,
            num_deliveries,
        )

    def fields(self, payload: bytes, key: str, headers: Mapping[str, str]) -> list[bytes]:
        """Names and values in turn, for XADD."""
        found = [self._field, payload]
        if key:
            found += [b"key", to_bytes(key)]
        for name, value in headers.items():
            found += [to_bytes(name), to_bytes(value)]
        return found


def pairs(raw: Any) -> list[tuple[bytes, Mapping[bytes, bytes]]]:
    """(id, fields) of entries as the driver returns them; a deleted entry has no fields."""
    return [(entry_id, fields or {}) for entry_id, fields in raw]


def entries_of(reply: Any) -> list[tuple[bytes, Mapping[bytes, bytes]]]:
    """Entries in a reply of XREAD or XREADGROUP for one stream."""
    return pairs(reply[0][1]) if reply else []


def info_of(reply: list[Any]) -> dict[str, Any]:
    """XINFO's names and values in turn, by name."""
    return {name.decode(): value for name, value in zip(reply[::2], reply[1::2], strict=True)}


class RedisPart(Connected):
    """The base of sources, queues and sinks of Redis: a connection, and the entries of a stream.

    Args:
        text: redis://host:port/0?stream=s&…
        setting: name of the setting, for errors.
        clock: seconds, for waits.
    """

    failures = FAILURES

    def __init__(self, text: str, setting: str, clock: Callable[[], float] = time.monotonic) -> None:
        address = parse(text, setting)
        self._entries = Entries(address)
        super().__init__(address, clock, f"{address}?stream={self._entries.stream}")
        self._setting = setting
        self._connection: Any = None

    async def open(self) -> None:
        """As `Sink.open`."""
        self._connection = Connection(self._address, self._setting)

    async def close(self) -> None:
        """As `Sink.close`."""
        if self._connection is not None:
            await self._connection.close()

    def _words(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError | RedisTimeoutError):
            return "no answer in time"
        if isinstance(error, AuthenticationError):
            return "the server refuses the username or password"
        return self._address.hidden(str(error) or type(error).__name__)


class RedisReader(RedisPart, Reader):
    """The base of sources and queues: a group of the stream; see `RedisPart`."""

    def __init__(self, text: str, setting: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(text, setting, clock)
        self._group = self._address.text("group", "hopline")
        self._start = self._address.choice("start", ("earliest", "latest"))
        self._has_group = False

    async def _call(self, *words: Any, wait_s: float = 0.0, **options: Any) -> Any:
        return await self._connection.call(*words, wait_s=wait_s, **options)

    async def _make_group(self, begin: str, *options: str) -> None:
        """Create the group at an entry, unless there is one."""
        try:
            await self._call("XGROUP", "CREATE", self._entries.stream, self._group, begin, *options)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        self._has_group = True


def to_bytes(text: str) -> bytes:
    """UTF-8; surrogate-escaped bytes are restored."""
    return text.encode("utf-8", "surrogateescape")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


async def _in_time(work: Awaitable[_Result], wait_s: float) -> _Result:
    # After a timeout, the driver drops the connection.
    async with asyncio.timeout(REPLY_S + wait_s):
        return await work
