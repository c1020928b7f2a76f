"""A Redis Cluster: which server has which slots, and one round trip to each server with requested rows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from hopline.errors import ConfigError, FeatureStoreError, FeatureStoreUnavailable
from hopline.types import IdArray
from hopline_stores.redis import resp
from hopline_stores.redis.connection import Replies
from hopline_stores.redis.resp import Keys
from hopline_stores.redis.server import Backend, Payload, Server, Unreachable
from hopline_stores.redis.url import RedisUrl

_NUM_SLOTS = 16384

_LEARN_S = 1.0


class Cluster(Backend):
    """The servers of a cluster.

    Args:
        url: with at least one of its servers.
    """

    def __init__(self, url: RedisUrl) -> None:
        self._url = url
        self._servers = {address: Server(*address, url) for address in url.addresses}
        self._masters: list[Server] = []
        self._master_of: IdArray = np.full(_NUM_SLOTS, -1, np.int64)
        self._learning: asyncio.Task[None] | None = None

    async def open(self, timeout_s: float) -> None:
        """See `Backend.open`; finds the servers of the cluster."""
        failed: list[FeatureStoreError] = []
        for seed in list(self._servers.values()):
            try:
                await seed.connect(timeout_s)
                break
            except FeatureStoreError as error:
                failed.append(error)
        else:
            raise failed[0]
        await self._learn()

    async def close(self) -> None:
        """Close all connections."""
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.gather(self._learning, return_exceptions=True)
        await asyncio.gather(*(server.close() for server in self._servers.values()))

    def servers(self) -> list[Server]:
        """See `Backend.servers`."""
        return list(self._masters)

    async def call_for(self, key: bytes, *words: bytes | str | int) -> Any:
        """See `Backend.call_for`."""
        slot = int(resp.slots(resp.keys_from([key]))[0])
        try:
            return await self._master(slot).call(*words)
        except FeatureStoreUnavailable as error:
            if " answered: MOVED " not in str(error):
                self._learn_soon()
                raise
        await self._learn()
        return await self._master(slot).call(*words)

    async def send(
        self, keys: Keys, row_bytes: int, payload: Payload, kind: type[Replies] = Replies
    ) -> Replies:
        """See `Backend.send`; keys that are on another server by now are requested there, once."""
        answer = kind(asyncio.get_running_loop().create_future(), keys.num, row_bytes)
        slots = resp.slots(keys)
        await self._round(keys, slots, np.arange(keys.num), payload, answer)
        if answer.errors:
            moved = [row for row, text in answer.errors.items() if text.startswith("MOVED ")]
            if moved:
                await self._learn()
                await self._round(keys, slots, np.array(moved), payload, answer)
            for where, rows in _redirected(answer.errors).items():
                server = self._server(*where)
                await self._request(server, keys, np.array(rows), payload, answer, True)
        return answer

    async def _round(
        self, keys: Keys, slots: IdArray, rows: IdArray, payload: Payload, answer: Replies
    ) -> None:
        masters = self._master_of[slots[rows]]
        requests = []
        for master in np.unique(masters).tolist():
            mine = rows[masters == master]
            server = self._master(int(slots[mine[0]]))
            requests.append(self._request(server, keys, mine, payload, answer, False))
        try:
            await asyncio.gather(*requests)
        except FeatureStoreUnavailable:
            self._learn_soon()  # a replica may take over
            raise

    async def _request(
        self, server: Server, keys: Keys, rows: IdArray, payload: Payload, answer: Replies, asking: bool
    ) -> None:
        """Send some of the keys to one server, and store its replies in `answer`."""
        each = 2 if asking else 1  # ASKING has its own reply
        future = asyncio.get_running_loop().create_future()
        replies = type(answer)(future, each * len(rows), answer.rows.shape[1])
        await server.request(payload(keys.pick(rows), rows, asking), replies)
        answer.place(rows, replies, each)

    def _master(self, slot: int) -> Server:
        master = int(self._master_of[slot])
        if master < 0:
            self._learn_soon()
            raise FeatureStoreUnavailable(f"{self._url.kind}: no server has slot {slot}")
        return self._masters[master]

    def _server(self, host: str, port: int) -> Server:
        return self._servers.setdefault((host, port), Server(host, port, self._url))

    def _learn_soon(self) -> None:
        """Read the slots again in the background; concurrent calls share one read."""
        if self._learning is None:
            self._learning = asyncio.ensure_future(self._read_slots())
            self._learning.add_done_callback(self._learned)

    async def _learn(self) -> None:
        self._learn_soon()
        assert self._learning is not None
        await asyncio.shield(self._learning)

    def _learned(self, task: asyncio.Task[None]) -> None:
        self._learning = None
        if not task.cancelled():
            task.exception()  # waiting callers get it; otherwise the next request reports it

    async def _read_slots(self) -> None:
        failed: FeatureStoreError | None = None
        for server in list(self._servers.values()):
            try:
                async with asyncio.timeout(_LEARN_S):
                    self._take(await server.call("CLUSTER", "SLOTS"), server)
                return
            except TimeoutError:
                failed = FeatureStoreUnavailable(f"{server.where} does not return its slots")
            except FeatureStoreError as error:
                failed = error
        assert failed is not None
        raise failed

    def _take(self, table: Any, source: Server) -> None:
        """Apply the reply of CLUSTER SLOTS: [first, last, [host, port, …], replicas …] per range."""
        masters: dict[Server, int] = {}
        master_of: IdArray = np.full(_NUM_SLOTS, -1, np.int64)
        for first, last, (host, port, *_), *_ in table:
            # A server that does not know its own name sends "": it is the server that replied.
            name = (host or b"").decode()
            server = self._server(name if name not in ("", "?") else source.host, port)
            master_of[first : last + 1] = masters.setdefault(server, len(masters))
        self._masters, self._master_of = list(masters), master_of


def _redirected(errors: dict[int, str]) -> dict[tuple[str, int], list[int]]:
    """Parse "ASK slot host:port" errors: (host, port) -> rows that are being migrated there."""
    found: dict[tuple[str, int], list[int]] = {}
    for row, text in errors.items():
        if text.startswith("ASK "):
            host, _, port = text.split()[2].rpartition(":")
            found.setdefault((host.strip("[]"), int(port)), []).append(row)
    return found


def backend_of(url: RedisUrl) -> Backend:
    """The server or the cluster of a URL, not connected yet."""
    return Cluster(url) if url.is_cluster else Server(*url.addresses[0], url)


@contextlib.contextmanager
def errors_of_opening(setting: str) -> Iterator[None]:
    """Errors of a first connection as those of the setting with the URL, but for transient ones."""
    try:
        yield
    except FeatureStoreError as error:
        if type(error) not in (Unreachable, FeatureStoreError):
            raise
        raise ConfigError(f"{setting}: {error}") from None
