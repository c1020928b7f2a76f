"""The loop of the watch: every interval collect, judge, tell, keep.

A part that fails costs what it would have given, said as a gap of that interval; never the loop. Knows the
parts as protocols; `hopline_mesh.watch.run` puts real ones together.
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
from hopline_mesh.out.board import Board
from hopline_mesh.snapshot import Gap, Snapshot
from hopline_mesh.state.keeper import Keeper
from hopline_mesh.watch.judge import Judge, Judged
from hopline_mesh.watch.live import Live
from hopline_mesh.watch.stages import Stages
from hopline_mesh.watch.ticks import Tick, Ticks

logger = logging.getLogger("hopline_mesh")


class Source(Protocol):
    """Where snapshots come from."""

    async def collect(self, now_s: float) -> Snapshot:
        """The mesh in the interval that ends now, Unix seconds.

        Raises:
            HoplineError: nothing could be measured; the message says why.
        """


class Watch:
    """One watch.

    Args:
        judge: judges and keeps, on a thread of its own but for what is quick.
        source: gives snapshots.
        context: gives what is known of planned changes at a time (Unix seconds), and what is not.
        board, alerts: are told.
        keeper: writes what is to be kept.
        longest_s: longest that a collection may take; below the interval.

    Attributes:
        live: embeddings between intervals.
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
        self._stages = Stages(board.metrics)
        #: what fails at present, so that the log has its beginning and its end only
        self._failing: dict[str, str] = {}
        self._noted = True
        self._failures = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mesh-step")
        self._at_work = asyncio.Lock()
        self.live = Live(judge, self._thread, self._at_work)

    async def run(self, ticks: Ticks, stop: asyncio.Event) -> None:
        """Go on until `stop` is set."""
        while not stop.is_set():
            try:
                await asyncio.wait_for(stop.wait(), ticks.wait_s())
            except TimeoutError:
                if ticks.wait_s() == 0:
                    await self.interval(ticks.take())

    async def interval(self, tick: Tick) -> Verdict:
        """One interval, from its collection to its telling. Does not fail."""
        with self._stages("total"):
            gaps = [*_lost_time(tick), *self._keeper.gaps]
            snapshot = await self._collect(tick, gaps)
            context = self._known(tick, gaps)
            async with self._at_work:
                judged = None if snapshot is None else await self._judged(snapshot, context, gaps)
            if judged is None:
                verdict = Verdict(tick.time_s, "blind", 0.0, self._going_on())
            else:
                assert snapshot is not None
                verdict = judged.verdict
                if verdict.state == "blind" and not verdict.incidents:
                    verdict = msgspec.structs.replace(verdict, incidents=self._going_on())
                gaps = [*snapshot.gaps, *gaps]
            verdict = msgspec.structs.replace(verdict, gaps=_each_once([*verdict.gaps, *gaps]))
            await self._tell(verdict, snapshot, judged)
            if snapshot is not None and judged is not None:
                async with self._at_work:
                    await self._keep(snapshot, context, verdict)
                    await self._renew()
        return verdict

    async def close(self) -> None:
        """Keep what was learned, and end."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._judge.close)
        except Exception:  # a stop must end, whatever state things are in
            logger.exception("what was learned last could not be kept")
        self._thread.shutdown(wait=False)
        await asyncio.to_thread(self._keeper.close)

    async def _collect(self, tick: Tick, gaps: list[Gap]) -> Snapshot | None:
        try:
            with self._stages("collect"):
                snapshot = await asyncio.wait_for(self._source.collect(tick.wall_s), self._longest_s)
        except TimeoutError:
            gaps.append(self._failed("prometheus", f"no answer within {self._longest_s:g} s"))
        except HoplineError as error:
            gaps.append(self._failed("prometheus", str(error)))
        except Exception as error:  # nothing that comes from outside may end the loop
            logger.exception("collecting a snapshot failed")
            gaps.append(self._failed("prometheus", f"{type(error).__name__}: {error}"))
        else:
            self._works("prometheus")
            return dataclasses.replace(snapshot, time_s=tick.time_s)
        return None

    def _known(self, tick: Tick, gaps: list[Gap]) -> Context:
        try:
            context, missing = self._context(tick.wall_s)
        except Exception as error:  # what is known of changes helps, but the watch can do without
            logger.exception("asking for planned changes failed")
            gaps.append(self._failed("kubernetes", f"{type(error).__name__}: {error}"))
            return Context()
        gaps += missing
        return context

    async def _judged(self, snapshot: Snapshot, context: Context, gaps: list[Gap]) -> Judged | None:
        loop = asyncio.get_running_loop()
        try:
            with self._stages("step"):
                if self._judge.is_quick(snapshot):
                    judged = self._judge.judge(snapshot, context)
                else:
                    self._judge.rouse()
                    judged = await loop.run_in_executor(self._thread, self._judge.judge, snapshot, context)
        except Exception as error:  # one interval that cannot be judged must not be the last
            if "detector" not in self._failing:
                logger.exception("judging a snapshot failed")
            gaps.append(self._failed("detector", f"{type(error).__name__}: {error}"))
            return None
        self._works("detector")
        return judged

    def _going_on(self) -> tuple[Incident, ...]:
        """Where nothing is known of an interval: what went on before."""
        return tuple(each.incident for each in self._board.open_incidents())

    async def _tell(self, verdict: Verdict, snapshot: Snapshot | None, judged: Judged | None) -> None:
        with self._stages("publish"):
            try:
                scores = () if judged is None else judged.scores
                self._board.publish(verdict, snapshot, scores)
            except Exception:  # the page must not decide whether alerts are sent
                logger.exception("the board could not show a verdict")
            try:
                await self._alerts.send(verdict)
            except Exception:  # nor alerts whether the watch goes on
                logger.exception("a verdict could not be told")

    async def _keep(self, snapshot: Snapshot, context: Context, verdict: Verdict) -> None:
        loop = asyncio.get_running_loop()
        try:
            with self._stages("keep"):
                await loop.run_in_executor(self._thread, self._judge.keep, snapshot, context, verdict)
                if verdict.incidents or self._noted:
                    self._keeper.note({"alerts": self._alerts.export()})
                    self._noted = bool(verdict.incidents)
        except Exception as error:  # what cannot be kept costs a restart, not the watch
            if "state" not in self._failing:
                logger.exception("keeping an interval failed")
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
        except Exception:  # embeddings between intervals are nothing that a verdict needs
            logger.exception("embeddings could not be brought to the newest interval")

    def _failed(self, what: str, reason: str) -> Gap:
        if what not in self._failing:
            logger.warning("%s: %s", what, reason)
        self._failing[what] = reason
        return Gap(what, reason)

    def _works(self, what: str) -> None:
        if self._failing.pop(what, None) is not None:
            logger.info("%s: works again", what)


def _lost_time(tick: Tick) -> list[Gap]:
    """What is to be said of the time before a tick."""
    gaps = []
    if tick.skipped:
        gaps.append(Gap("interval", f"{tick.skipped} left out: the one before took too long"))
    if tick.jump_s:
        which = "forward" if tick.jump_s > 0 else "back"
        gaps.append(Gap("clock", f"was set {which} by {abs(tick.jump_s):.0f} s"))
    return gaps


def _each_once(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    return tuple(dict.fromkeys(gaps))
