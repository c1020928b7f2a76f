"""Counts of rollout steps in a Redis: an outbox and an inbox, emptied and filled by the beat's thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from hopline.rollout.store.redis_scripts import Keys

#: Seconds between reads of what other members counted: by the one that judges, and by the others.
_JUDGE_READ_S, _READ_S = 0.2, 1.0
#: Seconds without counts of this member, after which a step is over for it.
_IDLE_S = 5.0
#: Seconds after which a Redis drops the counts of a step that no member forgot.
_KEPT_S = 86_400
#: Orders that wait for a store that is away; the oldest are dropped.
_MAX_ORDERS = 256
_DOUBTED = b"doubted"


@dataclass(slots=True)
class _Step:
    """Known counts of one step.

    Attributes:
    unsent: this member's counts, not sent yet. others: of other members, as last read.
    doubted: latency counts of the first doubt. doubt_unsent: whether this member noted it.
    """

    unsent: bytes | None = None
    others: Sequence[bytes] = ()
    doubted: bytes | None = None
    doubt_unsent: bool = False
    used_at: float = 0.0
    read_at: float = field(default=float("-inf"))


class RedisCounts:
    """See the module. All methods but `exchange` are called on the loop and never block.

    Args:
        keys: of the fleet.
        member: this one.
    """

    def __init__(self, keys: Keys, member: str) -> None:
        self._keys = keys
        self._member = member
        self._steps: dict[str, _Step] = {}
        self._orders: deque[tuple[Any, ...]] = deque(maxlen=_MAX_ORDERS)

    @property
    def in_use(self) -> bool:
        """True if a step is counted now: this member wants to judge it."""
        return bool(self._steps)

    def publish(self, step: str, counts: bytes, now: float) -> None:
        """As `StateStore.publish_counts`."""
        there = self._steps.setdefault(step, _Step())
        there.unsent, there.used_at = counts, now

    def withdraw(self, step: str) -> None:
        """As `StateStore.withdraw_counts`."""
        self._steps.pop(step, None)
        self._orders.append(("HDEL", self._keys.counts(step), self._member))

    def of_others(self, step: str) -> Sequence[bytes]:
        """As `StateStore.counts`."""
        there = self._steps.get(step)
        return () if there is None else there.others

    def doubt(self, step: str, latency: bytes, now: float) -> None:
        """As `StateStore.doubt`."""
        there = self._steps.setdefault(step, _Step(used_at=now))
        if there.doubted is None:
            there.doubted, there.doubt_unsent = latency, True

    def doubted(self, step: str) -> bytes | None:
        """As `StateStore.doubted`."""
        there = self._steps.get(step)
        return None if there is None else there.doubted

    def forget(self, steps: Collection[str]) -> None:
        """As `StateStore.forget_counts`."""
        for step in steps:
            self._steps.pop(step, None)
        self._orders.append(("UNLINK", *(self._keys.counts(step) for step in steps)))

    def exchange(self, client: Any, now: float, *, leads: bool) -> None:
        """Send what waits, and read what is due; on the beat's thread.

        Raises: RedisError, OSError: what was not sent waits for the next time.
        """
        read_s = _JUDGE_READ_S if leads else _READ_S
        pipe = client.pipeline(transaction=False)
        orders = list(self._orders)
        for order in orders:
            pipe.execute_command(*order)
        sent: list[tuple[_Step, bytes | None]] = []
        read: list[_Step] = []
        for step, there in list(self._steps.items()):
            if now - there.used_at > _IDLE_S:
                self._steps.pop(step, None)
                continue
            key, counts = self._keys.counts(step), there.unsent
            if counts is not None:
                pipe.hset(key, self._member, counts)
            if there.doubt_unsent:
                pipe.hsetnx(key, _DOUBTED, there.doubted)
            sent.append((there, counts))
            if now - there.read_at >= read_s:
                pipe.expire(key, _KEPT_S)
                pipe.hgetall(key)
                read.append(there)
        if not pipe.command_stack:
            return
        replies = [reply for reply in pipe.execute() if isinstance(reply, dict)]
        for _ in orders:
            self._orders.popleft()
        for there, counts in sent:
            there.doubt_unsent = False
            if there.unsent is counts:
                there.unsent = None
        mine = self._member.encode()
        for there, found in zip(read, replies, strict=True):
            there.doubted = found.pop(_DOUBTED, there.doubted)
            there.others = [counts for member, counts in found.items() if member != mine]
            there.read_at = now
