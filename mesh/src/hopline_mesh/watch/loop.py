"""The loop of the watch: collect, judge, publish and save every interval.

A part that fails becomes a gap of that interval; the loop continues. Knows the parts as protocols;
`hopline_mesh.watch.run` connects real ones.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import msgspec

from hopline.errors import HoplineError
from hopline_mesh.changes import Context
from hopline_mesh.incident import Incident, Verdict
from hopline_mesh.out.alerts import Alerts
from hopline_mesh.out.between import Between
from hopline_mesh.out.board import Board
from hopline_mesh.snapshot import FloatArray, Gap, Snapshot
from hopline_mesh.state.keeper import Keeper
from hopline_mesh.watch.judge import Judge
from hopline_mesh.watch.ticks import Tick, Ticks

logger = logging.getLogger("hopline_mesh")


class Source(Protocol):
    """A source of snapshots."""

    async def collect(self, now_s: float) -> Snapshot:
        """Return the mesh in the interval that ends now, Unix seconds.

        Raises:
            HoplineError: nothing could be measured; the message gives the reason.
        """


class Watch:
    """One watch.

    Args:
        judge: judges and saves intervals, on a separate thread.
        source: of snapshots.
        context: returns planned changes and troubles at a time (Unix seconds), and gaps.
        board, alerts: get each verdict.
        keeper: writes the state.
        longest_s: maximum time of a collection; below the interval.

    Attributes:
        live: deviations between intervals.
    """

    def __init__(
        self,
        judge: Judge,
        source: Source,
        context: Callable[[float], tuple[Context, tuple[Gap, ...]]],
        board: Board,
        alerts: Alerts,
        keeper: Keeper,
        *,
        longest_s: float = 10.0,
    ) -> None:
        self._judge = judge
        self._source = source
        self._context = context
        self._board = board
        self._alerts = alerts
        self._keeper = keeper
        self._longest_s = longest_s
        self._timed = board.metrics.timed
        #: present failures, so that the log has one line for the start and one for the end
        self._failing: dict[str, str] = {}
        self._noted = True
        self._failures = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mesh-step")
        self._at_work = asyncio.Lock()
        self.live = Between(judge.live, self._thread, self._at_work)

    async def run(self, ticks: Ticks, stop: asyncio.Event) -> None:
        """Run until `stop` is set."""
        while not stop.is_set():
            try:
                await asyncio.wait_for(stop.wait(), ticks.wait_s())
            except TimeoutError:
                if ticks.wait_s() == 0:
                    await self.interval(ticks.take())

    async def interval(self, tick: Tick) -> Verdict:
        """Run one interval, from the collection to the alerts. Never raises."""
        with self._timed("total"):
            gaps = [*_lost_time(tick), *self._keeper.gaps]
            snapshot = await self._collect(tick, gaps)
            context = self._known(tick, gaps)
            async with self._at_work:
                judged = None if snapshot is None else await self._judged(snapshot, context, gaps)
            if judged is None:
                verdict = Verdict(tick.time_s, "blind", 0.0, self._open_incidents())
            else:
                assert snapshot is not None
                verdict = judged[0]
                if verdict.state == "blind" and not verdict.incidents:
                    verdict = msgspec.structs.replace(verdict, incidents=self._open_incidents())
                gaps = [*snapshot.gaps, *gaps]
            verdict = msgspec.structs.replace(verdict, gaps=_distinct([*verdict.gaps, *gaps]))
            await self._publish(verdict, snapshot, judged and judged[1], context)
            if snapshot is not None and judged is not None:
                async with self._at_work:
                    await self._keep(snapshot, context, verdict)
                    await self._renew()
        return verdict

    async def close(self) -> None:
        """Save the state, and stop."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._judge.close)
        except Exception:  # a stop must end in any state
            logger.exception("saving the last state failed")
        self._thread.shutdown(wait=False)
        await asyncio.to_thread(self._keeper.close)

    async def _collect(self, tick: Tick, gaps: list[Gap]) -> Snapshot | None:
        try:
            with self._timed("collect"):
                snapshot = await asyncio.wait_for(self._source.collect(tick.wall_s), self._longest_s)
        except TimeoutError:
            gaps.append(self._failed("prometheus", f"no response within {self._longest_s:g} s"))
        except HoplineError as error:
            gaps.append(self._failed("prometheus", str(error)))
        except Exception as error:  # no input may stop the loop
            logger.exception("collecting a snapshot failed")
            gaps.append(self._failed("prometheus", f"{type(error).__name__}: {error}"))
        else:
            self._works("prometheus")
            return dataclasses.replace(snapshot, time_s=tick.time_s)
        return None

    def _known(self, tick: Tick, gaps: list[Gap]) -> Context:
        try:
            context, missing = self._context(tick.wall_s)
        except Exception as error:  # the watch also works without planned changes
            logger.exception("reading planned changes failed")
            gaps.append(self._failed("kubernetes", f"{type(error).__name__}: {error}"))
            return Context()
        gaps += missing
        return context

    async def _judged(
        self, snapshot: Snapshot, context: Context, gaps: list[Gap]
    ) -> tuple[Verdict, FloatArray] | None:
        loop = asyncio.get_running_loop()
        try:
            with self._timed("step"):
                judged = await loop.run_in_executor(self._thread, self._judge.judge, snapshot, context)
        except Exception as error:  # the loop must survive an interval that cannot be judged
            if "detector" not in self._failing:
                logger.exception("judging a snapshot failed")
            gaps.append(self._failed("detector", f"{type(error).__name__}: {error}"))
            return None
        self._works("detector")
        return judged

    def _open_incidents(self) -> tuple[Incident, ...]:
        """Return the open incidents, for an interval without measurements."""
        return tuple(each.incident for each in self._board.open_incidents())

    async def _publish(
        self, verdict: Verdict, snapshot: Snapshot | None, scores: FloatArray | None, context: Context
    ) -> None:
        with self._timed("publish"):
            try:
                self._board.publish(verdict, snapshot, scores, context)
            except Exception:  # a failure of the page must not stop alerts
                logger.exception("publishing a verdict on the board failed")
            try:
                loud = tuple(each for each in verdict.incidents if not self._board.is_muted(each.id))
                await self._alerts.send(msgspec.structs.replace(verdict, incidents=loud))
            except Exception:  # a failure of alerts must not stop the watch
                logger.exception("queueing alerts failed")

    async def _keep(self, snapshot: Snapshot, context: Context, verdict: Verdict) -> None:
        loop = asyncio.get_running_loop()
        try:
            with self._timed("keep"):
                await loop.run_in_executor(self._thread, self._judge.keep, snapshot, context, verdict)
                if verdict.incidents or self._noted:
                    note = {
                        "alerts": self._alerts.export(),
                        "abnormal": self._judge.abnormal(),
                        "marks": msgspec.to_builtins(self._board.marks()),
                    }
                    self._keeper.note(note)
                    self._noted = bool(verdict.incidents)
        except Exception as error:  # missing state affects a restart, not the watch
            if "state" not in self._failing:
                logger.exception("saving an interval failed")
            self._failed("state", f"{type(error).__name__}: {error}")
        else:
            self._works("state")
        metrics = self._board.metrics
        metrics.state_bytes.set(self._keeper.size_bytes)
        metrics.state_writes_failed.inc(self._keeper.failures - self._failures)
        self._failures = self._keeper.failures

    async def _renew(self) -> None:
        try:
            await self.live.renew()
        except Exception:  # verdicts do not need deviations between intervals
            logger.exception("updating deviations to the newest interval failed")

    def _failed(self, what: str, reason: str) -> Gap:
        if what not in self._failing:
            logger.warning("%s: %s", what, reason)
        self._failing[what] = reason
        return Gap(what, reason)

    def _works(self, what: str) -> None:
        if self._failing.pop(what, None) is not None:
            logger.info("%s: works again", what)


def _lost_time(tick: Tick) -> list[Gap]:
    """Return gaps for lost time before a tick."""
    gaps = []
    if tick.skipped:
        gaps.append(Gap("interval", f"{tick.skipped} left out: the previous interval took too long"))
    if tick.jump_s:
        which = "forward" if tick.jump_s > 0 else "back"
        gaps.append(Gap("clock", f"the clock was set {which} by {abs(tick.jump_s):.0f} s"))
    return gaps


def _distinct(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    return tuple(dict.fromkeys(gaps))
