"""A Redis stream whose entries the consumers of a group share.

An entry belongs to a consumer until it acknowledges the entry. Other consumers claim entries that
were neither acknowledged nor kept for `claim_after_s`: those of consumers that died.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from hopline.brokers.base import Message
from hopline_brokers import redis_stream


class RedisQueue(redis_stream.RedisReader):
    """A consumer of a group; see `Queue`.

    Args:
        text: redis://host:port/0?stream=s&group=g&claim_after_s=60; with `delete=true` entries are
            deleted once they are settled, for streams with one group.
        setting, clock: see `RedisPart`.
    """

    def __init__(self, text: str, setting: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(text, setting, clock)
        self._from = "0" if self._start == "earliest" else "$"
        self._claim_after_s = self._address.number("claim_after_s", 60.0, 0.05)
        self._delete = self._address.flag("delete", False)
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        #: Delivered entries that are not settled.
        self._mine: set[str] = set()
        #: Settled entries that are not acknowledged to the server yet.
        self._settled: list[str] = []
        #: Whether an answer may have been lost, with entries that are assigned to this consumer.
        self._look_back = False
        self._claim_at = 0.0

    async def settle(self, messages: Sequence[Message]) -> None:
        """As `Queue.settle`."""
        for message in messages:
            entry_id = str(message.position)
            self._mine.discard(entry_id)
            self._settled.append(entry_id)
        try:
            await self._acknowledge_settled()
        except redis_stream.FAILURES as error:
            self._bad(error)

    async def keep(self) -> float:
        """As `Queue.keep`: the entries are claimed again, which is not counted as a delivery."""
        if self._mine:
            try:
                await self._call(
                    *("XCLAIM", self._entries.stream, self._group, self._name, 0, *self._mine, "JUSTID"),
                    parse_justid=True,
                )
            except redis_stream.FAILURES as error:
                self._bad(error)
        return self._claim_after_s / 4

    async def lag(self) -> dict[str, int]:
        """As `Queue.lag`."""
        try:
            groups = await self._call("XINFO", "GROUPS", self._entries.stream)
        except redis_stream.FAILURES:
            return {}
        for group in map(redis_stream.info_of, groups):
            if group["name"].decode() == self._group and group.get("lag") is not None:
                return {self._entries.partition: group["lag"]}
        return {}

    async def close(self) -> None:
        """As `Queue.close`."""
        if self._connection is None:
            return
        try:
            await self._acknowledge_settled()
            if not self._mine and not self._look_back and self._has_group:
                # Deleting a consumer would delete its entries as well.
                stream, group = self._entries.stream, self._group
                await self._call("XGROUP", "DELCONSUMER", stream, group, self._name)
        except redis_stream.FAILURES as error:
            self._bad(error)
        await super().close()

    async def _read(self, max_messages: int, wait_s: float) -> list[Message]:
        if not self._has_group:
            await self._make_group(self._from, "MKSTREAM")
            self._from = "0"  # a recreated group must not skip entries that came meanwhile
        await self._acknowledge_settled()
        messages = await self._again(max_messages) if self._look_back else []
        if not messages and self._clock() >= self._claim_at:
            messages = await self._claim(max_messages)
        if not messages:
            messages = await self._new(max_messages, wait_s)
        self._condition.good()
        return messages

    def _bad(self, error: BaseException) -> None:
        self._has_group = self._has_group and "NOGROUP" not in str(error)
        super()._bad(error)

    async def _new(self, max_messages: int, wait_s: float) -> list[Message]:
        self._look_back = True  # until the answer arrives
        block = ("BLOCK", round(1000 * wait_s)) if wait_s >= 0.001 else ()
        reply = await self._call(
            *("XREADGROUP", "GROUP", self._group, self._name, "COUNT", max_messages, *block),
            *("STREAMS", self._entries.stream, ">"),
            wait_s=wait_s,
        )
        self._look_back = False
        return self._taken(redis_stream.entries_of(reply), 1)

    async def _again(self, max_messages: int) -> list[Message]:
        """Entries of this consumer that were in a lost answer."""
        start, mine = "0", self._mine.copy()  # without those that are settled meanwhile
        while True:
            reply = await self._call(
                *("XREADGROUP", "GROUP", self._group, self._name, "COUNT", max_messages),
                *("STREAMS", self._entries.stream, start),
            )
            entries = redis_stream.entries_of(reply)
            if not entries:
                self._look_back = False
                return []
            missed = [entry for entry in entries if entry[0].decode() not in mine]
            if missed:
                return self._taken(missed, 1)
            start = entries[-1][0].decode()

    async def _claim(self, max_messages: int) -> list[Message]:
        """Claim entries of other consumers, and own ones that took too long."""
        self._look_back = True
        mine = self._mine.copy()  # an entry that is settled meanwhile is still in the reply
        reply = await self._call(
            *("XAUTOCLAIM", self._entries.stream, self._group, self._name),
            *(round(1000 * self._claim_after_s), "0-0", "COUNT", max_messages),
        )
        entries = [entry for entry in redis_stream.pairs(reply[1]) if entry[0].decode() not in mine]
        if len(reply[1]) < max_messages:
            self._claim_at = self._clock() + self._claim_after_s / 4
        counts = await self._deliveries(entries)
        self._look_back = False
        return [message for entry in entries for message in self._taken([entry], counts.get(entry[0], 2))]

    async def _deliveries(self, entries: list[tuple[bytes, Any]]) -> dict[bytes, int]:
        """Number of deliveries of entries of this consumer."""
        if not entries:
            return {}
        found = await self._call(
            *("XPENDING", self._entries.stream, self._group, entries[0][0], entries[-1][0]),
            *(len(entries) + len(self._mine), self._name),
            parse_detail=True,
        )
        return {one["message_id"]: one["times_delivered"] for one in found}

    def _taken(self, entries: list[tuple[bytes, Any]], num_deliveries: int) -> list[Message]:
        taken = []
        for entry_id, fields in entries:
            name = entry_id.decode()
            if not fields:  # deleted after its first delivery
                self._settled.append(name)
                continue
            self._mine.add(name)
            taken.append(self._entries.message(entry_id, fields, name, num_deliveries))
        return taken

    async def _acknowledge_settled(self) -> None:
        if not self._settled or self._connection is None:
            return
        settled = self._settled[:]
        commands: list[tuple[Any, ...]] = [("XACK", self._entries.stream, self._group, *settled)]
        if self._delete:
            commands.append(("XDEL", self._entries.stream, *settled))
        for result in await self._connection.several(commands, atomic=False):
            if isinstance(result, Exception):
                raise result
        del self._settled[: len(settled)]
