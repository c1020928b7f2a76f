"""Keeps children alive: one for each slot, started again when it ends or hangs, replaced one at a time.

ended ─ before any was ready ─► all are stopped: a second try would only hide the reason
      ─ else ─────────────────► started again after a pause, which doubles (`retry.py`)
no heartbeat for `hang_s` ─► killed ─► ended
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from hopline.process.child import Child, exit_reason
from hopline.process.silence import Silence
from hopline.retry import Backoff

log = logging.getLogger(__name__)

#: Longest time between two heartbeats, in seconds; shorter for a short limit.
_BEAT_S, _BEATS = 1.0, 10
#: From a second `stop` to SIGKILL, in seconds; a child that got a second SIGTERM ends itself in less.
_CUT_S = 2.0


def beat_s(hang_s: float) -> float:
    """Seconds between two heartbeats for a limit; 0 for none."""
    return min(_BEAT_S, hang_s / _BEATS)


@dataclass(frozen=True, slots=True)
class Slot:
    """A process that a supervisor keeps alive.

    Attributes:
        name: for logs.
        start: starts its child.
        is_replaced: by `Supervisor.replace_all`. The others work for those of later slots; they end last.
    """

    name: str
    start: Callable[[], Awaitable[Child]]
    is_replaced: bool = True


class Supervisor:
    """See the module. Used from one event loop.

    Args:
        slots: in the order in which they are started and replaced.
        grace_s: from SIGTERM to SIGKILL.
        hang_s: a child whose event loop has not turned for this time is killed; 0 for no limit. It concerns
            children that send heartbeats. Time in which this process did not run does not count, such as
            that of a machine that was suspended.
        on_ready: called once, when the child of every slot is ready for the first time, with what each said
            then, by the name of its slot.
    """

    def __init__(
        self,
        slots: Iterable[Slot],
        grace_s: float,
        on_ready: Callable[[Mapping[str, str]], object],
        hang_s: float = 0.0,
    ) -> None:
        self._slots = list(slots)
        self._grace_s = grace_s
        self._on_ready = on_ready
        self._hang_s = hang_s
        self._children: dict[Slot, Child] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._ready: set[Slot] = set()
        self._replacing: set[Slot] = set()
        self._was_ready = False
        self._failed = False
        self._stopping = asyncio.Event()
        #: Set while the child of every slot is ready.
        self._all_ready = asyncio.Event()
        self._rolling: asyncio.Task[None] | None = None

    async def run(self) -> bool:
        """Until `stop`, and until all children have ended; returns True if they could be started."""
        self._keepers = [asyncio.ensure_future(self._keep(slot)) for slot in self._slots]
        await asyncio.gather(*self._keepers)
        return not self._failed

    def stop(self) -> None:
        """Ask all children to end; none is started any more. A second call gives them no further time."""
        if self._stopping.is_set():
            for child in self._children.values():
                child.stop()
                asyncio.get_running_loop().call_later(_CUT_S, child.kill)
        self._stopping.set()

    def replace_all(self) -> None:
        """Replace the children, each once the one before is ready, unless that is under way."""
        if self._rolling is None or self._rolling.done():
            self._rolling = asyncio.ensure_future(self._replace_all())

    async def _replace_all(self) -> None:
        replaced = [slot for slot in self._slots if slot.is_replaced]
        for slot in replaced:
            await self._all_ready.wait()
            if self._stopping.is_set():
                return
            self._replacing.add(slot)
            self._ready.discard(slot)
            self._all_ready.clear()
            await self._children[slot].end(self._grace_s)
        await self._all_ready.wait()
        log.info("replaced %d workers", len(replaced))

    async def _keep(self, slot: Slot) -> None:
        """Run the child of a slot, again and again."""
        backoff = Backoff(0.1, 10.0, spread=0.0)
        while not self._stopping.is_set():
            started = time.monotonic()
            reason = await self._run_one(slot)
            was_ready = slot in self._ready
            self._ready.discard(slot)
            self._all_ready.clear()
            if self._stopping.is_set():
                return
            if slot in self._replacing:
                self._replacing.discard(slot)
                continue
            if not self._was_ready and not was_ready:
                log.error("%s could not start (%s)", slot.name, reason)
                self._failed = True
                self._stopping.set()
                return
            pause_s = backoff.next(time.monotonic() - started)
            log.error("%s ended (%s), restarting in %.1f s", slot.name, reason, pause_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)

    async def _run_one(self, slot: Slot) -> str:
        """One life of a child; returns how it ended."""
        try:
            child = self._children[slot] = await slot.start()
        except OSError as error:
            return f"no process: {error}"
        ended = asyncio.ensure_future(child.wait())
        ready = asyncio.ensure_future(child.ready.wait())
        stopping = asyncio.ensure_future(self._stopping.wait())
        watching = asyncio.ensure_future(self._watch(slot, child))
        try:
            await asyncio.wait({ended, ready, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                self._note_ready(slot)
                await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return exit_reason(await ended)
            if not slot.is_replaced and (users := self._keepers[self._slots.index(slot) + 1 :]):
                await asyncio.wait(users)
            return exit_reason(await child.end(self._grace_s))
        finally:
            for task in (ended, ready, stopping, watching):
                task.cancel()

    async def _watch(self, slot: Slot, child: Child) -> None:
        """Kill a child that hangs."""
        if not self._hang_s:
            return
        silence, num_beats = Silence(child.pid, self._hang_s), 0
        while True:
            await asyncio.sleep(silence.period_s)
            if child.num_beats != num_beats or not num_beats:  # none: not ready yet, or without heartbeats
                silence.reset()
            # The next heartbeat is overdue: an event loop that does not turn hangs, also while it computes.
            elif silence.look((-math.inf,), time.monotonic()):
                break
            num_beats = child.num_beats
        log.error(
            "%s (process %d) hangs: its event loop has not turned for %g s; killing it",
            slot.name, child.pid, self._hang_s,
        )  # fmt: skip
        child.kill()

    def _note_ready(self, slot: Slot) -> None:
        self._ready.add(slot)
        if len(self._ready) < len(self._slots):
            return
        self._all_ready.set()
        if not self._was_ready:
            self._was_ready = True
            self._on_ready({slot.name: child.said for slot, child in self._children.items()})
