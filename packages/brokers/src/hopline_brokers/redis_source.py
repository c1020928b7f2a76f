"""A Redis stream, followed from an entry id that the reader stores.

A position is "<id>@<n>": the last completed entry, and the number of entries that were added to the stream
up to and including it. The number serves to detect and count entries that were trimmed unread (MAXLEN); a
position without it is accepted as well. Durable entries are acknowledged to the group, which makes its lag
right in XINFO GROUPS; the group's state is never read.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from redis.exceptions import ResponseError

from hopline.brokers.base import Gap, Message, Position
from hopline_brokers import redis_stream

_FIRST = "0-0"
_ANEW = "it was recreated, or lost messages"


class RedisSource(redis_stream.RedisReader):
    """A stream; see `Source`.

    Args:
        text: redis://host:port/0?stream=s&group=g&start=earliest
        setting, clock: see `RedisPart`.
    """

    def __init__(self, text: str, setting: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(text, setting, clock)
        self._last = ""
        #: Number of entries ever added, up to and including `_last`; None if unknown.
        self._count: int | None = None
        #: The newest entry that was deleted singly (XDEL), as of the last read.
        self._deleted = (0, 0)

    async def open(self, positions: Mapping[str, Position]) -> None:  # type: ignore[override]
        """As `Source.open`."""
        position = positions.get(self._entries.partition)
        if position is not None:
            match = re.fullmatch(r"(\d+-\d+)(?:@(\d+))?", str(position))
            if match is None:
                raise self._address.wrong(
                    f"position {position!r} of {self._entries.partition!r} is not one of Redis Streams: "
                    'expected for example "1700000000000-0@1"'
                )
            self._last, self._count = match[1], None if match[2] is None else int(match[2])
        await super().open()

    async def acknowledge(self, positions: Mapping[str, Position]) -> None:
        """As `Source.acknowledge`."""
        position = positions.get(self._entries.partition)
        if position is None or not self._condition.ok:
            return
        last, _, count = str(position).partition("@")
        command = ["XGROUP", "SETID", self._entries.stream, self._group, last]
        try:
            if not self._has_group:
                await self._make_group("0")
            await self._call(*command, *(["ENTRIESREAD", count] if count else []))
        except ResponseError:
            self._has_group = False  # the stream was deleted; the next call creates the group again
        except redis_stream.FAILURES as error:
            self._bad(error)

    async def lag(self) -> dict[str, int]:
        """As `Source.lag`."""
        if self._count is None:
            return {}
        try:
            info = redis_stream.info_of(await self._call("XINFO", "STREAM", self._entries.stream))
        except redis_stream.FAILURES:
            return {}
        added = info.get("entries-added")
        return {} if added is None else {self._entries.partition: max(0, added - self._count)}

    def is_first(self, position: Position) -> bool:
        """As `Source.is_first`; a position without a count may be the first."""
        return str(position).partition("@")[2] in ("", "1")

    async def _read(self, max_messages: int, wait_s: float) -> list[Message]:
        messages = await self._new(max_messages)
        self._condition.good()
        if not messages and wait_s > 0:
            # Only to be woken: entries are read together with the stream's counts.
            await self._call(
                *("XREAD", "COUNT", 1, "BLOCK", max(1, round(1000 * wait_s))),
                *("STREAMS", self._entries.stream, self._last),
                wait_s=wait_s,
            )
            messages = await self._new(max_messages)
        return messages

    async def _new(self, max_messages: int) -> list[Message]:
        stream = self._entries.stream
        if not self._last:
            await self._begin()
        reply, answer = await self._connection.several(
            [
                ("XREAD", "COUNT", max_messages, "STREAMS", stream, self._last),
                ("XINFO", "STREAM", stream),
            ],
            atomic=True,
        )
        if isinstance(reply, Exception):
            raise reply
        if isinstance(answer, Exception):
            if not _is_missing(answer):
                raise answer
            self._miss()
            return []
        info = redis_stream.info_of(answer)
        entries = redis_stream.entries_of(reply)
        lost = self._check(info, len(entries) if len(entries) < max_messages else None)
        messages = []
        for entry_id, fields in entries:
            self._last = entry_id.decode()
            if self._count is not None:
                if lost and _number(self._last) > self._deleted:
                    self._count, lost = self._count + lost, 0
                self._count += 1
            messages.append(self._entries.message(entry_id, fields, self._position()))
        # All entries were read, unless the stream ends before the source's position.
        if len(entries) < max_messages and _number(info["last-generated-id"].decode()) >= _number(
            self._last
        ):
            self._count = info.get("entries-added")
        return messages

    def _position(self) -> str:
        return self._last if self._count is None else f"{self._last}@{self._count}"

    async def _begin(self) -> None:
        """Set the start of a reader without a position."""
        self._last, self._count = _FIRST, None
        if self._start == "earliest":
            return
        try:
            info = redis_stream.info_of(await self._call("XINFO", "STREAM", self._entries.stream))
        except redis_stream.FAILURES as error:
            if _is_missing(error):  # all later entries are new
                return
            self._last = ""
            raise
        self._last, self._count = info["last-generated-id"].decode(), info.get("entries-added")

    def _miss(self) -> None:
        """There is no stream: whatever it will have is new."""
        if self._last != _FIRST:
            self._gap(
                None, "the stream does not exist any more: it was deleted, or the server lost its data"
            )
        self._last, self._count = _FIRST, 0

    def _check(self, info: dict[str, Any], num_unread: int | None) -> int:
        """Check whether entries after `_last` were lost; reports at most one gap.

        Args:
            num_unread: entries after `_last`; None if unknown.
        Returns: the number of lost entries that `_count` does not have yet.
        """
        num_gaps = len(self._gaps)
        self._check_range(info)
        known = self._deleted
        self._deleted = _number(info.get("max-deleted-entry-id", _FIRST.encode()).decode())
        if len(self._gaps) > num_gaps or self._last == _FIRST:
            return 0
        if self._deleted <= max(known, _number(self._last)):
            return 0
        if self._count is None or num_unread is None:
            self._gap(None, "entries after it were deleted before they were read")
            return 0
        lost = max(0, info["entries-added"] - self._count - num_unread)
        if lost:
            self._gap(lost, f"{lost} entries after it were deleted before they were read")
        return int(lost)

    def _check_range(self, info: dict[str, Any]) -> None:
        """Check whether `_last` is in the stream's range, with the entries that were counted."""
        added, length = info.get("entries-added"), info["length"]
        first_entry, end = info["first-entry"], info["last-generated-id"].decode()
        removed = None if added is None else added - length
        last = _number(self._last)
        if self._last == _FIRST and self._count is None:
            self._count = removed
        elif _number(end) < last:
            self._gap(None, f"the stream ends at {end}: {_ANEW}; the {length} entries it has are not read")
            self._last, self._count = end, added
        elif first_entry and _number(first_entry[0].decode()) <= last and self._last != _FIRST:
            if self._count is not None and added is not None and added < self._count:
                self._gap(None, f"the stream had {self._count} entries, and has had only {added}: {_ANEW}")
                self._count = None
        elif removed is None:  # before Redis 7, which added counts
            if first_entry and self._last != _FIRST and not self._gaps:
                self._gap(None, "the entry was deleted; later ones may have been trimmed as well")
        elif self._count is None:
            if removed and first_entry:
                self._gap(None, "the entry was deleted; later ones may have been trimmed as well")
            self._count = removed
        elif removed < self._count:
            # Entries up to `_last` are missing, and were not removed either.
            self._gap(None, f"the entries before it are missing, and were not deleted: {_ANEW}")
            self._count = removed
        elif removed > self._count:
            lost = removed - self._count
            self._gap(lost, f"{lost} entries after it were trimmed or deleted before they were read")
            self._count = removed

    def _gap(self, lost: int | None, why: str) -> None:
        self._gaps.append(
            Gap(self._entries.partition, self._position(), lost, f"after {self._last}: {why}")
        )


def _is_missing(error: BaseException) -> bool:
    """True if there is no such stream."""
    return isinstance(error, ResponseError) and "no such key" in str(error)


def _number(entry_id: str) -> tuple[int, int]:
    head, _, tail = entry_id.partition("-")
    return int(head), int(tail)
