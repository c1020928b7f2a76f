"""Pure decisions about texts that wait and KV blocks. Knows no engine, thread or clock.

A text that starts reserves the blocks that its prompt and its longest answer need, so a running text is
never evicted for another. Texts start in the order of their lanes, and in a lane in the order in which they
came: one that does not fit yet is not overtaken, so that it starts at last. A text that runs alone starts
when nothing runs, and nothing else starts until it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from hopline.errors import Overloaded, RequestTooLarge
from hopline.scheduling.policy import HIGH, LOW, NORMAL
from hopline_generate.engine import EngineInfo

#: Highest priority first.
_ORDER = (HIGH, NORMAL, LOW)


@dataclass(frozen=True, slots=True)
class Need:
    """Needs of a text.

    Attributes:
        tokens: of its prompt and its longest answer.
        deadline: on the clock of `Schedule.expired`.
        alone: no other text may run with it.
    """

    number: int
    tokens: int
    lane: int
    deadline: float
    since: float
    alone: bool = False


class Schedule:
    """See the module.

    Args:
        info: of the engine.
        max_running: texts that run together.
        max_queue_tokens: tokens of the texts that wait beyond which more are refused.

    Attributes:
        used_blocks: reserved for the texts that run.
        queued_tokens: of the texts that wait.
    """

    def __init__(self, info: EngineInfo, max_running: int, max_queue_tokens: int) -> None:
        self.used_blocks = 0
        self.queued_tokens = 0
        self._info = info
        self._max_running = max_running
        self._max_queue_tokens = max_queue_tokens
        self._lanes: dict[int, deque[Need]] = {lane: deque() for lane in _ORDER}
        self._running: dict[int, int] = {}
        self._is_alone = False

    @property
    def num_running(self) -> int:
        """Texts that run."""
        return len(self._running)

    @property
    def num_queued(self) -> int:
        """Texts that wait."""
        return sum(map(len, self._lanes.values()))

    def oldest(self, now: float) -> float:
        """Seconds that the text waits which waits longest; 0 where none does."""
        return max((now - lane[0].since for lane in self._lanes.values() if lane), default=0.0)

    def blocks(self, need: Need) -> int:
        """KV blocks of a text."""
        return -(-need.tokens // self._info.block_tokens)

    def put(self, need: Need) -> None:
        """Queue a text.

        Raises:
            RequestTooLarge: it never fits.
            Overloaded: too much waits.
        """
        if self.blocks(need) > self._info.num_blocks:
            most = self._info.num_blocks * self._info.block_tokens
            raise RequestTooLarge(
                f"prompt and max_tokens together are {need.tokens} tokens; the KV cache has room for "
                f"{most} (generate.kv_tokens)"
            )
        if self.num_queued and self.queued_tokens + need.tokens > self._max_queue_tokens:
            raise Overloaded(
                f"texts of {self.queued_tokens} tokens wait; {need.tokens} more would pass the limit of "
                f"{self._max_queue_tokens} (generate.max_queue_tokens)",
                retry_after_s=1.0,
            )
        self._lanes[need.lane].append(need)
        self.queued_tokens += need.tokens

    def start(self, *, is_quiet: bool = True) -> Iterator[Need]:
        """The texts that start now; their blocks are reserved.

        Args:
            is_quiet: the engine has no cancelled text any more; one that runs alone waits for that.
        """
        self._is_alone = self._is_alone and bool(self._running)
        for lane in _ORDER:
            waiting = self._lanes[lane]
            while waiting:
                blocks, alone = self.blocks(waiting[0]), waiting[0].alone
                if (
                    self._is_alone
                    or (alone and (self._running or not is_quiet))
                    or len(self._running) >= self._max_running
                    or self.used_blocks + blocks > self._info.num_blocks
                ):
                    return  # a lower lane does not overtake
                need = waiting.popleft()
                self.queued_tokens -= need.tokens
                self._running[need.number] = blocks
                self._is_alone = alone
                self.used_blocks += blocks
                yield need

    def expired(self, now: float) -> list[Need]:
        """Take out the waiting texts whose deadline has passed."""
        late = [need for lane in self._lanes.values() for need in lane if need.deadline <= now]
        for need in late:
            self.remove(need.number)
        return late

    def remove(self, number: int) -> bool:
        """Take out a text that ended or was cancelled; whether it ran."""
        blocks = self._running.pop(number, None)
        if blocks is not None:
            self.used_blocks -= blocks
            return True
        for lane in self._lanes.values():
            for need in lane:
                if need.number == number:
                    lane.remove(need)
                    self.queued_tokens -= need.tokens
                    return False
        return False
