"""Takes messages from a source while earlier ones are applied. The only task that polls the source.

If messages are few it does not poll for each: it pauses, and polls again when a batch begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping

from hopline.brokers.base import Gap, Message, Position, Source
from hopline_brokers.stream.meters import StreamMetrics

logger = logging.getLogger("hopline.stream")

#: Seconds that one poll may wait; acknowledgements and lag wait for it.
_POLL_S = 0.25
_LAG_EVERY_S = 1.0
#: Seconds without an answer of the broker before that is logged; connecting takes time.
_PATIENCE_S = 1.0
#: Payloads of one batch, unless one message has more: the writer reads messages of 256 MiB.
_MAX_BYTES = 32 << 20
#: Seconds between two acknowledgements: after a crash the graph, not the broker, knows where to resume.
_ACKNOWLEDGE_EVERY_S = 0.1
#: Empty polls in a row, of a broker that answers, after which it has no more messages.
_DRY_POLLS = 4


class Intake:
    """Holds up to `max_messages` messages for the next batch.

    Args:
        pause_s: seconds without polling after the source had less than what fits.
        on_gap: what `take` raises after messages that are lost; None only reports them.

    Attributes:
        lag: partition -> messages that the broker has and that were not delivered, about a second old.
    """

    def __init__(
        self,
        source: Source,
        max_messages: int,
        metrics: StreamMetrics,
        pause_s: float = 0.0,
        on_gap: Callable[[Gap], Exception] | None = None,
    ) -> None:
        self._on_gap = on_gap
        self._source = source
        self._max = max_messages
        self._pause_s = pause_s
        self._metrics = metrics
        self._waiting: list[Message] = []
        self._some = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._to_acknowledge: dict[str, Position] = {}
        self._failure: BaseException | None = None
        self._task: asyncio.Task[None] | None = None
        self._acknowledged_at = self._lag_at = 0.0
        self._polled, self._hurry = asyncio.Event(), asyncio.Event()
        self._ending = False
        self.lag: Mapping[str, int] = {}
        self._dry_polls = 0
        self._was_ok = True
        #: Messages that were taken, and how many are to be until the end of the stream at the start.
        self._num_taken = 0
        self._end: int | None = None

    @property
    def is_dry(self) -> bool:
        """True if the broker answers and has no more."""
        if self._waiting or self._dry_polls <= _DRY_POLLS or not self._source.health().ok:
            return False
        return not any(self.lag.values())

    def has_taken_backlog(self, num_held: int) -> bool:
        """True if all that the broker had at the start was taken. On a busy stream `is_dry` is never true.

        Args:
            num_held: messages that were taken and are not applied yet.
        """
        return self._end is not None and self._num_taken - num_held >= self._end

    async def open(self, positions: Mapping[str, Position]) -> None:
        """Begin to read at these positions."""
        await self._source.open(positions)
        self._task = asyncio.create_task(self._run())

    async def take(self, wait_s: float, linger_s: float = 0.0) -> list[Message]:
        """Return the messages that have come after `linger_s`, or sooner if no more fit. If there are none,
        wait up to `wait_s` for some.

        Raises: what the source raised.
        """
        if linger_s > 0.0 and self._has_room():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._until_full(), linger_s)
        if self._pause_s and self._has_room() and wait_s > 0.0:
            # Messages that came during the pause are included.
            self._polled.clear()
            self._hurry.set()
            if self._waiting:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._polled.wait(), self._pause_s)
        if not self._waiting and self._failure is None:
            self._some.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._some.wait(), wait_s)
        if not self._waiting and self._failure is not None:
            raise self._failure
        count = _within(self._waiting, _MAX_BYTES)
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        self._num_taken += count
        self._room.set()
        return taken

    def acknowledge(self, positions: Mapping[str, Position]) -> None:
        """Acknowledge to the broker, soon."""
        self._to_acknowledge.update(positions)

    async def stop(self) -> None:
        """Stop polling the source; messages that it holds can still be taken."""
        self._ending = True  # a cancellation at the moment of an arrival may be lost
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def close(self) -> None:
        """Send outstanding acknowledgements, and close the source."""
        await self.stop()
        with contextlib.suppress(asyncio.CancelledError):
            self._acknowledged_at = 0.0
            await self._report()
        await self._source.close()

    async def _until_full(self) -> None:
        while self._has_room():
            self._some.clear()
            self._room.set()
            await self._some.wait()

    async def _run(self) -> None:
        try:
            while not self._ending:
                await self._report()
                if len(self._waiting) >= self._max:
                    self._room.clear()
                    await self._room.wait()
                    continue
                room = self._max - len(self._waiting)
                messages = await self._source.poll(
                    room, 0.0 if self._waiting and self._pause_s else _POLL_S
                )
                self._polled.set()
                is_dry = not messages and self._source.health().ok
                self._dry_polls = self._dry_polls + 1 if is_dry else 0
                if self._on_gap is not None:
                    self._take_gaps()  # before what comes after a gap is applied
                if messages:
                    self._waiting += messages
                    self._metrics.messages.inc(len(messages))
                    self._some.set()
                if self._waiting and len(messages) < room:
                    await self._pause()
        except Exception as error:  # raised by the next `take`
            self._failure = error
            self._some.set()

    async def _pause(self) -> None:
        self._hurry.clear()
        if self._pause_s:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), self._pause_s)

    def _has_room(self) -> bool:
        return len(self._waiting) < self._max and self._failure is None

    async def _report(self) -> None:
        now = time.monotonic()
        if self._to_acknowledge and now - self._acknowledged_at >= _ACKNOWLEDGE_EVERY_S:
            self._acknowledged_at = now
            positions, self._to_acknowledge = self._to_acknowledge, {}
            await self._source.acknowledge(positions)
        self._take_gaps()
        health = self._source.health()
        is_ok = health.ok or time.time() - health.since_s < _PATIENCE_S
        if is_ok != self._was_ok:
            self._was_ok = is_ok
            self._metrics.waiting("broker", not is_ok)
            if is_ok:
                logger.info("the broker answers again")
            else:
                logger.warning("waiting for the broker: %s", health.reason)
        if now - self._lag_at >= _LAG_EVERY_S or self._dry_polls == _DRY_POLLS:
            self._lag_at = now
            self.lag = await self._source.lag()
            self._metrics.lag(self.lag)
            if self._end is None and self.lag:
                self._end = self._num_taken + len(self._waiting) + sum(self.lag.values())

    def _take_gaps(self) -> None:
        for gap in self._source.take_gaps():
            logger.error(
                "%s: messages from %s on were lost (%s): %s",
                gap.partition,
                gap.position,
                "?" if gap.lost is None else gap.lost,
                gap.reason,
            )
            self._metrics.gap(gap.partition, gap.lost)
            if self._on_gap is not None:
                raise self._on_gap(gap)


def _within(messages: list[Message], num_bytes: int) -> int:
    """The number of first messages that fit in a number of bytes; at least one."""
    for count, message in enumerate(messages):
        num_bytes -= len(message.payload)
        if num_bytes < 0 and count:
            return count
    return len(messages)
