"""One Redis server: connects at the first request, and again after the connection was lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Sequence
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


class Unreachable(FeatureStoreUnavailable):
    """No Redis responds at the address."""


@dataclass(slots=True, eq=False)
class Server:
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

    def ready(self) -> Connection | None:
        """Return the connection if it is open and responsive."""
        connection = self._connection
        if connection is None or connection.closed or connection.silent_s() > STALL_S:
            return None
        return connection

    async def connect(self, timeout_s: float = _RECONNECT_S) -> Connection:
        """Return the connection, reconnecting if needed; concurrent callers share one attempt.

        A silent connection is checked once more, then closed. Its peer may be gone without notice. If the
        peer has only stopped, it need not process all earlier requests when it continues.

        Raises:
            Unreachable: no Redis responds at the address.
            FeatureStoreError: the server refuses the user, password or database.
        """
        connection = self.ready()
        if connection is not None:
            return connection
        if self._connecting is None:
            self._connecting = asyncio.ensure_future(self._connect(timeout_s))
            self._connecting.add_done_callback(self._connected)
        return await asyncio.shield(self._connecting)

    async def open(self, timeout_s: float) -> None:
        """Connect for the first time.

        Raises:
            Unreachable, FeatureStoreError: see `connect`; or the server is part of a cluster.
        """
        await self.connect(timeout_s)
        try:
            info = await self.call("CLUSTER", "INFO")
        except FeatureStoreError:
            return  # the usual reply of a server without cluster mode
        if b"cluster_state" in info:
            raise FeatureStoreError(f"{self.where} is part of a cluster; use redis+cluster://…")

    def servers(self) -> list[Server]:
        """Return all servers."""
        return [self]

    async def call_for(self, key: bytes, *words: bytes | str | int) -> Any:
        """Send one command for one key."""
        return await self.call(*words)

    async def request(self, payload: bytes | memoryview, waiter: ReplyWaiter) -> None:
        """Send a request, and wait until the waiter has all replies."""
        connection = self.ready() or await self.connect()
        connection.send(payload, waiter)
        await waiter.future

    async def call(self, *words: bytes | str | int) -> Any:
        """Send one command; see `Connection.call`."""
        connection = self.ready() or await self.connect()
        return await connection.call(*words)

    async def read(self, keys: Keys, row_bytes: int) -> Replies:
        """Send MGET in one round trip."""
        replies = Replies(asyncio.get_running_loop().create_future(), keys.num, row_bytes, MGET_KEYS)
        await self.request(resp.mget(keys, MGET_KEYS), replies)
        return replies

    async def read_ranges(self, keys: Keys, firsts: IdArray, lasts: IdArray, row_bytes: int) -> Replies:
        """Send GETRANGE for every key in one round trip; see `Cluster.read_ranges`."""
        replies = Replies(asyncio.get_running_loop().create_future(), keys.num, row_bytes)
        await self.request(resp.get_ranges(keys, firsts, lasts), replies)
        return replies

    async def write(self, keys: Keys, rows: AnyArray, ttl_ms: int | None) -> Replies:
        """Send SET for every key in one round trip."""
        replies = Replies(asyncio.get_running_loop().create_future(), keys.num, 0)
        await self.request(resp.set_each(keys, rows, ttl_ms), replies)
        return replies

    async def unlink(self, keys: Keys) -> Replies:
        """Send UNLINK for every key in one round trip."""
        replies = Replies(asyncio.get_running_loop().create_future(), keys.num, 0)
        await self.request(resp.unlink_each(keys), replies)
        return replies

    async def delete(self, keys: Sequence[bytes]) -> None:
        """Delete keys in one round trip."""
        replies = Replies(asyncio.get_running_loop().create_future(), len(keys), 0)
        if keys:
            await self.request(b"".join([resp.command("UNLINK", key) for key in keys]), replies)

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
        connection: Connection | None = None
        try:
            async with asyncio.timeout(timeout_s):
                context = self.url.tls()
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(self.where),
                    self.host,
                    self.port,
                    ssl=context,
                    server_hostname=self.host if context else None,
                )
                await self._greet(connection)
                return connection
        except FeatureStoreUnavailable as error:
            self._end(connection)
            # An error reply of the server (LOADING …) is not an error of the address.
            raise (error if " answered: " in str(error) else Unreachable(str(error))) from None
        except FeatureStoreError:
            self._end(connection)
            raise
        except TimeoutError:
            self._end(connection)
            raise Unreachable(f"{self.where} did not answer within {timeout_s:g} s") from None
        except (OSError, ssl.SSLError) as error:
            # asyncio replaces the reason by the addresses that it tried.
            reason = error.strerror or str(error)
            if error.errno and not isinstance(error, socket.gaierror | ssl.SSLError):
                reason = os.strerror(error.errno)
            raise Unreachable(f"no connection to {self.where}: {reason}") from None
        except BaseException:
            self._end(connection)
            raise

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

    @staticmethod
    def _end(connection: Connection | None) -> None:
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()
