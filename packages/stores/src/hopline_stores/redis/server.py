"""One Redis server: connects at the first request, and again after the connection was lost."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hopline.errors import FeatureStoreError, FeatureStoreUnavailable
from hopline.types import AnyArray, IdArray
from hopline_stores.redis import resp
from hopline_stores.redis.connection import Connection, Replies, ReplyWaiter
from hopline_stores.redis.resp import Keys
from hopline_stores.redis.url import RedisUrl

#: Keys per MGET: other clients' requests wait during it (about 0.5 ms).
MGET_KEYS = 4096
#: A connection with waiting requests and no received bytes for this time is closed …
STALL_S = 1.0
#: … after this many more checks (1 ms each): if only this process was too slow to read, the reply arrives
#: during them.
_LOOKS = 50
_RECONNECT_S = 1.0


#: Keys, their positions in the request, whether they are being migrated -> bytes to send.
Payload = Callable[[Keys, Any, bool], memoryview]


class Unreachable(FeatureStoreUnavailable):
    """No Redis responds at the address."""


class Backend(ABC):
    """One server, or a cluster: commands for many keys, in one round trip to each server."""

    @abstractmethod
    async def open(self, timeout_s: float) -> None:
        """Connect. Raises: Unreachable, FeatureStoreError: no address can be used."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections."""

    @abstractmethod
    def servers(self) -> list[Server]:
        """Return the servers that have keys."""

    @abstractmethod
    async def call_for(self, key: bytes, *words: bytes | str | int) -> Any:
        """Send one command for one key, which selects the server; repeat it in `words`."""

    @abstractmethod
    async def send(
        self, keys: Keys, row_bytes: int, payload: Payload, kind: type[Replies] = Replies
    ) -> Replies:
        """Send a command for every key, and return the replies: values of at most `row_bytes`.

        Args:
            kind: receives the replies.
        """

    async def read(self, keys: Keys, row_bytes: int) -> Replies:
        """Send GET for every key, or one command for many of them."""
        return await self.send(keys, row_bytes, lambda some, _, asking: resp.get_each(some, asking=asking))

    async def read_ranges(self, keys: Keys, firsts: IdArray, lasts: IdArray, row_bytes: int) -> Replies:
        """Send GETRANGE for every key.

        Args:
            firsts, lasts: int64 [n], first and last byte. row_bytes: of the longest range.
        """

        def payload(some: Keys, where: Any, asking: bool) -> memoryview:
            return resp.get_ranges(some, firsts[where], lasts[where], asking=asking)

        return await self.send(keys, row_bytes, payload)

    async def write(self, keys: Keys, rows: AnyArray, ttl_ms: int | None) -> Replies:
        """Send SET for every key."""

        def payload(some: Keys, where: Any, asking: bool) -> memoryview:
            return resp.set_each(some, rows[where], ttl_ms, asking=asking)

        return await self.send(keys, 0, payload)

    async def unlink(self, keys: Keys) -> Replies:
        """Send UNLINK for every key."""
        return await self.send(keys, 0, lambda some, _, asking: resp.unlink_each(some, asking=asking))


@dataclass(slots=True, eq=False)
class Server(Backend):
    """An address and the connection to it.

    Attributes:
        host, port: the address.
        url: how to connect.
    """

    host: str
    port: int
    url: RedisUrl
    _connection: Connection | None = None
    _connecting: asyncio.Task[Connection] | None = None

    @property
    def where(self) -> str:
        """The address as text."""
        return f"{self.url.kind} at {self.host}:{self.port}"

    async def connect(self, timeout_s: float = _RECONNECT_S) -> Connection:
        """Return the connection, reconnecting if needed; concurrent callers share one attempt.

        A silent connection is checked once more, then closed. Its peer may be gone without notice. If the
        peer has only stopped, it need not process all earlier requests when it continues.

        Raises:
            Unreachable: no Redis responds at the address.
            FeatureStoreError: the server refuses the user, password or database.
        """
        connection = self._connection
        if connection is not None and not connection.closed and connection.silent_s() <= STALL_S:
            return connection
        if self._connecting is None:
            self._connecting = asyncio.ensure_future(self._connect(timeout_s))
            self._connecting.add_done_callback(self._connected)
        return await asyncio.shield(self._connecting)

    async def open(self, timeout_s: float) -> None:
        """See `Backend.open`; refuses a server of a cluster."""
        await self.connect(timeout_s)
        try:
            info = await self.call("CLUSTER", "INFO")
        except FeatureStoreError:
            return  # the usual reply of a server without cluster mode
        if b"cluster_state" in info:
            raise FeatureStoreError(f"{self.where} is part of a cluster; use redis+cluster://…")

    def servers(self) -> list[Server]:
        """See `Backend.servers`."""
        return [self]

    async def call_for(self, key: bytes, *words: bytes | str | int) -> Any:
        """See `Backend.call_for`."""
        return await self.call(*words)

    async def request(self, payload: bytes | memoryview, waiter: ReplyWaiter) -> None:
        """Send a request, and wait until the waiter has all replies."""
        (await self.connect()).send(payload, waiter)
        await waiter.future

    async def call(self, *words: bytes | str | int) -> Any:
        """Send one command; see `Connection.call`."""
        return await (await self.connect()).call(*words)

    async def read(self, keys: Keys, row_bytes: int) -> Replies:
        """Send MGET in one round trip."""
        replies = Replies(asyncio.get_running_loop().create_future(), keys.num, row_bytes, MGET_KEYS)
        await self.request(resp.mget(keys, MGET_KEYS), replies)
        return replies

    async def send(
        self, keys: Keys, row_bytes: int, payload: Payload, kind: type[Replies] = Replies
    ) -> Replies:
        """See `Backend.send`."""
        replies = kind(asyncio.get_running_loop().create_future(), keys.num, row_bytes)
        if keys.num:
            await self.request(payload(keys, slice(None), False), replies)
        return replies

    async def close(self) -> None:
        """Close the connection."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            await asyncio.sleep(0)  # the transport closes its socket in the loop's next turn

    def _connected(self, task: asyncio.Task[Connection]) -> None:
        self._connecting = None
        if not task.cancelled() and task.exception() is None:
            self._connection = task.result()

    async def _connect(self, timeout_s: float) -> Connection:
        silent = self._connection
        if silent is not None and not silent.closed:
            if await silent.speaks(STALL_S, _LOOKS):
                return silent
            silent.close(f"was closed: no reply for {STALL_S:g} s")
        try:
            async with asyncio.timeout(timeout_s):
                return await self._opened()
        except FeatureStoreUnavailable as error:
            # An error reply of the server (LOADING …) is not an error of the address.
            raise (error if " answered: " in str(error) else Unreachable(str(error))) from None
        except TimeoutError:
            raise Unreachable(f"{self.where} did not answer within {timeout_s:g} s") from None
        except (OSError, ssl.SSLError) as error:
            # asyncio replaces the reason by the addresses that it tried.
            reason = error.strerror or str(error)
            if error.errno and not isinstance(error, socket.gaierror | ssl.SSLError):
                reason = os.strerror(error.errno)
            raise Unreachable(f"no connection to {self.where}: {reason}") from None

    async def _opened(self) -> Connection:
        """A new connection, logged in."""
        context = self.url.tls()
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self.where),
            self.host,
            self.port,
            ssl=context,
            server_hostname=self.host if context else None,
        )
        try:
            await self._greet(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _greet(self, connection: Connection) -> None:
        """Log in and select the database."""
        if self.url.password is not None:
            user = () if self.url.username is None else (self.url.username,)
            await connection.call("AUTH", *user, self.url.password)
        if self.url.database:
            await connection.call("SELECT", self.url.database)
        answer = await connection.call("PING")
        if answer != "PONG":
            raise FeatureStoreUnavailable(f"{self.where} did not reply to PING like a Redis")
