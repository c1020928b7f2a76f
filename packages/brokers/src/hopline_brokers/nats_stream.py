"""Shared by sources, queues and sinks of NATS JetStream: the connection, pulls, headers.

Hopline, not the driver, replaces a connection that ended, with all its state. So there is one way to start
a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import nats.errors
import nats.js.errors
from nats.aio.client import Client

from hopline.brokers.base import Message
from hopline_brokers.address import Address
from hopline_brokers.condition import Connected, Reader

_CONNECT_S = 2
#: Seconds between pings; a server that misses two is lost.
_PING_S = 2
#: Seconds for which the server keeps a pull without messages.
_PULL_S = 5.0
#: Bytes that one request for messages may return; a server's longest message has 64 MiB.
_PULL_BYTES = 96 * 2**20
_FULL = ("Message Size Exceeds MaxBytes", "Batch Completed")
_OPTIONS = (
    "subject",
    "durable",
    "token",
    "credentials_file",
    "nkey_seed_file",
    "ack_wait_s",
    "timeout_s",
)
_KEY = "key"
#: Header that marks percent-encoded names and values: NATS allows neither control characters nor bytes.
_QUOTED = "hopline-quoted"
#: Header in place of those that are unreadable.
_UNREADABLE = "hopline-unreadable-headers"
_PLAIN = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]+")
#: Characters that stay unencoded.
_SAFE = " !#$&'()*+,/:;=?@[]~"

FAILURES = (nats.errors.Error, nats.js.errors.Error, OSError, TimeoutError)


def parse(text: str, setting: str) -> Address:
    """The address of a stream. Raises: ConfigError: see `Address.parse`; or no stream is named."""
    address = Address.parse(text, setting, ["nats"], 4222)
    address.expect(_OPTIONS)
    if not re.fullmatch(r"[^\s.*>/\\]+", address.path):
        raise address.wrong(f"{address} must name one stream, for example nats://host:4222/EDGES")
    for name, text in (
        ("the stream's name", address.path),
        ("durable", address.text("durable")),
        ("group", address.text("group")),
    ):
        if "%" in text:
            # It formats the subjects of acknowledgements with the names in the format.
            raise address.wrong(
                f"{name} must not contain %: the server delivers nothing that can be acknowledged; "
                f"got {text!r}"
            )
    for name in ("durable", "group"):
        if re.search(r"[\s.*>/\\]", address.text(name)):
            raise address.wrong(
                f"{name} must not contain spaces or any of . * > / \\; got {address.text(name)!r}"
            )
    return address


class _Client(Client):  # type: ignore[misc]
    """The driver's client, whose connection survives a message with invalid headers.

    The driver raises in the task that reads: the connection ends, the server delivers the message again on
    the next one, and no message behind it ever arrives.
    """

    async def _process_headers(self, headers: bytes) -> Any:
        try:
            return await super()._process_headers(headers)
        except (IndexError, ValueError):
            return {_UNREADABLE: "1"}


class Receipt(NamedTuple):
    """The content of the reply subject of a delivery.

    Attributes:
        delivered: number of deliveries, this one included.
        stream_seq, consumer_seq: numbers in the stream, and among deliveries to the consumer.
        timestamp_ms: when the stream stored it.
        pending: messages that are still to come.
    """

    delivered: int
    stream_seq: int
    consumer_seq: int
    timestamp_ms: int
    pending: int

    @classmethod
    def read(cls, reply: str) -> Receipt:
        """$JS.ACK.[domain.account.]stream.consumer.delivered.stream_seq.consumer_seq.time.pending[.token]"""
        words = reply.split(".")
        first = 4 if len(words) == 9 else 6
        delivered, stream_seq, consumer_seq, time_ns, pending = words[first : first + 5]
        return cls(int(delivered), int(stream_seq), int(consumer_seq), int(time_ns) // 10**6, int(pending))


class Pull:
    """Requests messages of a consumer and holds received ones.

    Args:
        client: connected.
        stream, consumer: names.
        clock: seconds.
    """

    def __init__(self, client: Any, stream: str, consumer: str, clock: Callable[[], float]) -> None:
        self._client = client
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = f"_INBOX.{secrets.token_hex(11)}"
        self._clock = clock
        self._listening: Any = None
        self._arrived = asyncio.Event()
        self._left = 0
        self._until = 0.0
        #: Deliveries in order of arrival.
        self.waiting: deque[tuple[Any, Receipt]] = deque()
        #: Why the consumer must be set up again; "" if it need not.
        self.broken = ""

    async def open(self) -> None:
        """Begin to listen."""
        self._listening = await self._client.subscribe(
            self._inbox, cb=self._take, pending_msgs_limit=2**31, pending_bytes_limit=2**40
        )

    async def close(self) -> None:
        """Stop receiving: the server delivers further messages to other readers."""
        if self._listening is not None:
            await self._listening.unsubscribe()

    async def wait(self, max_messages: int, wait_s: float) -> None:
        """Send a request if none is open, and wait until a message arrives or the time is up."""
        if self.waiting or self.broken:
            return
        now = self._clock()
        if self._left <= 0 or now > self._until:
            self._left, self._until = max_messages, now + _PULL_S + 1
            wanted = {
                "batch": max_messages,
                "max_bytes": _PULL_BYTES,
                "expires": round(_PULL_S * 1e9),
            }
            await self._client.publish(self._subject, json.dumps(wanted).encode(), reply=self._inbox)
        self._arrived.clear()
        try:
            async with asyncio.timeout(wait_s):
                await self._arrived.wait()
        except TimeoutError:
            return

    async def _take(self, raw: Any) -> None:
        status = (raw.headers or {}).get("Status")
        # The server's own messages have no such reply; a message may have a header of any name.
        if raw.reply.startswith("$JS.ACK."):
            with contextlib.suppress(ValueError):  # another client's message to our inbox
                self.waiting.append((raw, Receipt.read(raw.reply)))
                self._left -= 1
        elif status != "100":  # the end of a request
            self._left = 0
            reason = (raw.headers or {}).get("Description") or "the consumer is gone"
            # No message came in time, or no more fit into the bytes.
            if status not in ("404", "408") and not reason.startswith(_FULL):
                self.broken = reason
        self._arrived.set()


class NatsPart(Connected):
    """The base of sources, queues and sinks of NATS: a client, which is replaced when it has closed.

    Args:
        text: nats://host:port/stream?…
        setting: name of the setting, for errors.
        clock: seconds, for waits.
    """

    failures = FAILURES

    def __init__(self, text: str, setting: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(parse(text, setting), clock)
        self._client: Any = None

    @property
    def _is_connected(self) -> bool:
        return self._client is not None and not self._client.is_closed

    async def open(self) -> None:
        """As `Sink.open`."""
        self._address.tls()  # raises an error for unusable files

    async def close(self) -> None:
        """As `Sink.close`."""
        self._condition.leave()
        await _end(self._client)

    async def _new_client(self, on_lost: Callable[[], None] = lambda: None) -> Any:
        """A client, which closes with its connection, and reports that. Raises: FAILURES, ConfigError."""

        async def on_error(error: Exception) -> None:
            errors.append(error)

        async def on_end() -> None:
            on_lost()
            self._condition.bad("the connection ended" + (f": {self._words(errors[-1])}" if errors else ""))

        address = self._address
        errors: deque[Exception] = deque(maxlen=1)
        login: dict[str, Any] = {}
        if address.text("username"):
            login = {"user": address.text("username"), "password": address.text("password")}
        if address.text("token"):
            login["token"] = address.text("token")
        for name, theirs in (("credentials_file", "user_credentials"), ("nkey_seed_file", "nkeys_seed")):
            file = address.file(name)
            if file is not None:
                login[theirs] = str(file)
        scheme = "tls" if address.encrypted else "nats"
        if address.encrypted:
            login["tls"] = address.tls()
        hosts = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in address.servers)
        client = _Client()
        try:
            async with asyncio.timeout(_CONNECT_S * (1 + len(address.servers))):
                await client.connect(
                    [f"{scheme}://{host}" for host in hosts],
                    name="hopline",
                    error_cb=on_error,
                    closed_cb=on_end,
                    disconnected_cb=on_end,
                    allow_reconnect=False,
                    # Each server twice, or the driver would retry for ever.
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=_CONNECT_S,
                    ping_interval=_PING_S,
                    max_outstanding_pings=2,
                    **login,
                )
        except ModuleNotFoundError as error:
            raise address.wrong(f"the credentials need {error.name}: pip install {error.name}") from None
        except FAILURES:
            await _end(client)
            raise
        return client

    def _words(self, error: BaseException) -> str:
        if isinstance(error, nats.js.errors.NotFoundError):
            return f"the stream {self._address.path!r} does not exist"
        if isinstance(error, nats.errors.NoServersError | ConnectionRefusedError):
            return "no server accepts the connection"
        if isinstance(error, TimeoutError):
            return "no answer in time"
        return self._address.hidden(str(error) or type(error).__name__)


class NatsReader(NatsPart, Reader):
    """The base of sources and queues: a consumer at the server, from which they pull; see `NatsPart`."""

    slice_s = 0.5

    def __init__(self, text: str, setting: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(text, setting, clock)
        self._stream = self._address.path
        self._subject = self._address.text("subject") or None
        #: Name of the consumer at the server.
        self._name = self._address.text("durable") or self._address.text("group", "hopline")
        self._start = self._address.choice("start", ("earliest", "latest"))
        self._partition = f"nats/{self._stream}"
        self._pull: Pull | None = None
        #: Messages that are still to come; None before the first connection.
        self._pending: int | None = None

    async def _read(self, max_messages: int, wait_s: float) -> list[Message]:
        if not self._is_connected or self._pull is None or self._pull.broken:
            await self._connect()
        pull = self._pull
        assert pull is not None
        await pull.wait(max_messages, wait_s)
        return self._taken(pull, max_messages)

    async def _connect(self) -> None:
        if not self._is_connected:
            self._client = await self._new_client()
        self._pull = None
        consumer = await self._find_consumer(self._client.jetstream(timeout=2))
        self._pending = consumer.num_pending
        pull = Pull(self._client, self._stream, consumer.name, self._clock)
        await pull.open()
        self._pull = pull
        self._condition.good()

    async def _acknowledge(self, reply: str) -> None:
        await self._client.publish(reply, b"+ACK")

    async def _find_consumer(self, stream: Any) -> Any:
        """The `ConsumerInfo` of the consumer to pull from, which is made if need be. Raises: FAILURES."""
        raise NotImplementedError

    def _taken(self, pull: Pull, max_messages: int) -> list[Message]:
        """Take messages that were received."""
        raise NotImplementedError


async def _end(client: Any) -> None:
    """Close a client in any state."""
    if client is not None and not client.is_closed:
        try:
            async with asyncio.timeout(_CONNECT_S):
                await client.close()
        except FAILURES:
            return  # the client was to be closed anyway


def message_of(raw: Any, receipt: Receipt, partition: str) -> Message:
    """The message of a delivery."""
    headers, key = {}, ""
    if raw.headers:
        headers = {name: value for name, value in raw.headers.items() if name != _QUOTED}
        if _QUOTED in raw.headers:
            headers = {_unquoted(name): _unquoted(value) for name, value in headers.items()}
        # A copy of the message must not repeat orders to the server, such as Nats-Rollup.
        headers = {name: value for name, value in headers.items() if name[:5].lower() != "nats-"}
        key = headers.pop(_KEY, "")
    return Message(
        bytes(raw.data),
        partition,
        receipt.stream_seq + 1,
        key,
        headers,
        receipt.timestamp_ms,
        "the message's headers are not valid NATS headers" if _UNREADABLE in headers else "",
        receipt.delivered,
    )


def headers_of(key: str, headers: dict[str, str]) -> dict[str, str] | None:
    """Encode headers for NATS."""
    found = {**headers, _KEY: key} if key else headers
    if not found:
        return None
    if all(_PLAIN_NAME.fullmatch(name) and _PLAIN.fullmatch(value) for name, value in found.items()):
        return found
    quoted = {_quoted(name, ""): _quoted(value, _SAFE) for name, value in found.items()}
    return {**quoted, _QUOTED: "1"}


def _quoted(text: str, safe: str) -> str:
    found = quote(text, safe=safe, errors="surrogateescape")
    if found.strip() != found:  # NATS strips spaces at both ends
        found = quote(text, safe="", errors="surrogateescape")
    # An empty value would not be a header.
    return found.replace("~", "%7E") if not safe else found or "%"


def _unquoted(text: str) -> str:
    return "" if text == "%" else unquote(text, errors="surrogateescape")
