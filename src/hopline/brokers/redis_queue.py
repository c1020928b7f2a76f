"""A Redis stream whose entries the consumers of a group share.

An entry belongs to a consumer until it acknowledges the entry. Other consumers claim entries of consumers
that died or were too slow after `claim_after_s`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import ResponseError

from hopline.brokers import redis_stream
from hopline.brokers.base import Health, Message
from hopline.brokers.condition import Condition
from hopline.retry import Backoff

_BLOCK_S = 1.0


class RedisQueue:
    """A consumer of a group; see `Queue`.

    Args:
        text: redis://host:port/0?stream=s&group=g&claim_after_s=60; with `delete=true` entries are
            deleted once they are settled, for streams with one group.
        setting: name of the setting, for errors.
        clock: seconds, for waits.
    """

    def __init__(self, text: str, setting: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = redis_stream.parse(text, setting)
        self._setting = setting
        self._entries = redis_stream.Entries(self._address)
        self._group = self._address.text("group", "hopline")
        self._from = "0" if self._address.choice("start", ("earliest", "latest")) == "earliest" else "$"
        self._claim_after_s = self._address.number("claim_after_s", 60.0, 0.05)
        self._delete = self._address.flag("delete", False)
        self._condition = Condition(f"{self._address}?stream={self._entries.stream}")
        self._backoff = Backoff()
        self._clock = clock
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._connection: redis_stream.Connection | None = None
        #: Delivered entries that are not settled.
        self._mine: set[str] = set()
        #: Settled entries that are not acknowledged to the server yet.
        self._settled: list[str] = []
        self._has_group = False
        #: Whether an answer may have been lost, with entries that are assigned to this consumer.
        self._look_back = False
        self._claim_at = 0.0

    async def open(self) -> None:
        """As `Queue.open`."""
        self._connection = redis_stream.Connection(self._address, self._setting)

    async def poll(self, max_messages: int, max_wait_s: float) -> list[Message]:
        """As `Queue.poll`."""
        end = self._clock() + max_wait_s
        while True:
            try:
                messages = await self._read(max_messages, max(0.0, min(_BLOCK_S, end - self._clock())))
                self._condition.good()
                self._backoff.reset()
                if messages or self._clock() >= end:
                    return messages
            except redis_stream.FAILURES as error:
                if "NOGROUP" in str(error):
                    self._has_group = False
                self._condition.bad(redis_stream.words(error, self._address))
                wait_s = min(self._backoff.next(), max(0.0, end - self._clock()))
                await asyncio.sleep(wait_s)
                if self._clock() >= end:
                    return []

    async def settle(self, messages: Sequence[Message]) -> None:
        """As `Queue.settle`."""
        for message in messages:
            entry_id = str(message.position)
            self._mine.discard(entry_id)
            self._settled.append(entry_id)
        try:
            await self._acknowledge_settled()
        except redis_stream.FAILURES as error:
            self._condition.bad(redis_stream.words(error, self._address))

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

    def health(self) -> Health:
        """As `Queue.health`."""
        return self._condition.health()

    async def close(self) -> None:
        """As `Queue.close`."""
        if self._connection is None:
            return
        try:
            await self._acknowledge_settled()
            if not self._mine and not self._look_back and self._has_group:
                # Deleting a consumer would delete its entries as well.
                await self._call(*self._group_command("DELCONSUMER"), self._name)
        except redis_stream.FAILURES as error:
            self._condition.bad(redis_stream.words(error, self._address))
        await self._connection.close()

    async def _call(self, *words: Any, wait_s: float = 0.0, **options: Any) -> Any:
        assert self._connection is not None
        return await self._connection.call(*words, wait_s=wait_s, **options)

    def _group_command(self, verb: str) -> tuple[str, ...]:
        return "XGROUP", verb, self._entries.stream, self._group

    async def _read(self, max_messages: int, wait_s: float) -> list[Message]:
        if not self._has_group:
            await self._make_group()
        await self._acknowledge_settled()
        if self._look_back:
            messages = await self._again(max_messages)
            if messages:
                return messages
        if self._clock() >= self._claim_at:
            messages = await self._claim(max_messages)
            if messages:
                return messages
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

    async def _make_group(self) -> None:
        try:
            await self._call(*self._group_command("CREATE"), self._from, "MKSTREAM")
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        self._from = "0"  # a recreated group must not skip entries that came meanwhile
        self._has_group = True
