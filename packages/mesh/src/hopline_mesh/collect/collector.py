"""Collects one interval: sends all queries in parallel, and builds a snapshot from timely responses."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from hopline.errors import ConfigError
from hopline_mesh.collect.answer import Answer, read_answer
from hopline_mesh.collect.builder import Built, Failure, Reading, SnapshotBuilder
from hopline_mesh.collect.names import safe_text
from hopline_mesh.collect.options import CollectOptions
from hopline_mesh.collect.prometheus import Prometheus
from hopline_mesh.collect.query import CollectReport, Outcome, Query, QueryReport, QuerySet
from hopline_mesh.errors import QueryFailed, SourceUnavailable
from hopline_mesh.roster import Roster
from hopline_mesh.snapshot import Gap, Snapshot

#: Queries in parallel; Prometheus allows 20 by default.
_PARALLEL = 8

#: Maximum number of characters of the reasons in the report of a query.
_MAX_REASON = 400

#: Differences of clocks below this are ignored, because a `Date` header has whole seconds and a delay.
TOLERANCE_S = 2.0


@dataclass(slots=True)
class _Asked:
    """One query and its result."""

    promql: str
    query: Query | None
    answer: Reading | Answer | Failure
    duration_s: float = 0.0
    date_s: float | None = None
    at_s: float = 0.0


class Collector:
    """Collects a mesh from Prometheus.

    `collect` does not fail for any response of Prometheus: missing data is NaN in the snapshot, with a gap
    that gives the reason. All snapshots share the same `Roster`.

    Args:
        client: of Prometheus; the caller closes it.
        queries: to send.
        roster: None: a new one.
        options: limits.
        matchers: for the queries for owners of pods; the other queries contain theirs.
        steady: a clock that never jumps, seconds.
        on_report: called with the report of each interval.

    Raises:
        ConfigError: invalid matchers, or an invalid regular expression of a namespace.

    Attributes:
        report: of the last interval; None before the first.
    """

    def __init__(
        self,
        client: Prometheus,
        queries: QuerySet,
        roster: Roster | None = None,
        options: CollectOptions | None = None,
        *,
        matchers: str = "",
        steady: Callable[[], float] = time.monotonic,
        on_report: Callable[[CollectReport], None] = lambda report: None,
    ) -> None:
        self._on_report = on_report
        self._client = client
        self._queries = queries
        self._options = options or CollectOptions()
        self.roster = Roster() if roster is None else roster
        self.report: CollectReport | None = None
        self._builder = SnapshotBuilder(queries, self.roster, self._options, matchers)
        self._steady = steady
        #: how far Prometheus' clock is ahead of ours; 0.0 within the tolerance
        self._ahead_s = 0.0
        #: our clock, and the steady one, at the start of the last interval
        self._began: tuple[float, float] | None = None
        # A separate thread, because those of the loop may wait for Kubernetes' credentials. Only one,
        # because reading needs three times the memory of the response.
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="mesh-read")

    async def collect(self, now_s: float) -> Snapshot:
        """Collect the interval that ends now.

        Args:
            now_s: our clock, Unix seconds.

        Returns: a snapshot of that time.
        """
        begin_s = self._steady()
        if self._began is not None:
            # A jump of our clock changes the difference, so that this query has the right time already.
            jump_s = now_s - self._began[0] - (begin_s - self._began[1])
            if abs(jump_s) > TOLERANCE_S:
                self._ahead_s = _beyond_tolerance(self._ahead_s - jump_s)
        self._began = now_s, begin_s
        asked_s = now_s + self._ahead_s - self._options.delay_s
        owners = self._builder.owner_queries if self._builder.needs_owners else ()
        asked, of_owners = await self._ask(owners, asked_s)
        every = (*asked, *of_owners)
        differences = [one.date_s - (now_s + one.at_s - begin_s) for one in every if one.date_s is not None]
        if differences:
            # Dates are cut to whole seconds, which is half a second too early on average.
            self._ahead_s = _beyond_tolerance(statistics.median(differences) + 0.5)
        self._builder.learn_owners([one.answer for one in of_owners if isinstance(one.answer, Answer)])
        answers = [one.answer for one in asked if not isinstance(one.answer, Answer)]
        built = self._builder.build(now_s, asked_s, answers)
        snapshot = replace(built.snapshot, gaps=(*self._clock_gaps(), *built.snapshot.gaps))
        self.report = self._report(built, snapshot, asked)
        self._on_report(self.report)
        return snapshot

    async def _ask(self, owners: Sequence[str], asked_s: float) -> tuple[list[_Asked], list[_Asked]]:
        """Send all queries and those for owners, in parallel, within the deadline."""
        deadline_s = self._options.deadline_s
        late = Failure("late", f"Prometheus did not respond within {deadline_s:g} s")
        asked = [_Asked(query.promql, query, late) for query in self._queries.queries]
        of_owners = [_Asked(text, None, late) for text in owners]
        free = asyncio.Semaphore(_PARALLEL)
        is_complete = False
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(deadline_s), asyncio.TaskGroup() as group:
                    for one in (*asked, *of_owners):
                        group.create_task(self._ask_one(one, asked_s, free))
                is_complete = True
        finally:  # also if the whole collection is cancelled
            if not is_complete:
                await self._client.renew()
        return asked, of_owners

    async def _ask_one(self, one: _Asked, asked_s: float, free: asyncio.Semaphore) -> None:
        async with free:
            begin_s = self._steady()
            try:
                reply = await self._client.query(one.promql, asked_s, self._options.deadline_s)
                one.at_s, one.date_s = self._steady(), reply.date_s
                loop = asyncio.get_running_loop()
                answer = await loop.run_in_executor(self._reader, read_answer, reply.body)
                one.answer = answer if one.query is None else self._builder.read(one.query, answer)
            except SourceUnavailable as error:
                one.answer = Failure("unavailable", str(error))
            except (QueryFailed, ConfigError) as error:
                one.answer = Failure("refused", str(error))
            one.duration_s = self._steady() - begin_s

    def _clock_gaps(self) -> list[Gap]:
        if not self._ahead_s:
            return []
        side = "ahead of" if self._ahead_s > 0 else "behind"
        text = f"Prometheus' clock is {abs(self._ahead_s):.0f} s {side} ours; queries use its time"
        return [Gap("clock", text)]

    def _report(self, built: Built, snapshot: Snapshot, asked: Sequence[_Asked]) -> CollectReport:
        reports = []
        for query, one, matched in zip(self._queries.queries, asked, built.matched, strict=True):
            found = one.answer
            if isinstance(found, Failure):
                reports.append(QueryReport(query.name, found.outcome, found.reason, one.duration_s))
                continue
            own = (gap.reason for gap in snapshot.gaps if gap.what == query.name)
            reason = safe_text("; ".join(own), _MAX_REASON)
            count = len(found) if isinstance(found, Answer) else len(found.answer)
            outcome: Outcome = "ok" if count else "empty"
            reports.append(QueryReport(query.name, outcome, reason, one.duration_s, count, matched))
        return CollectReport(tuple(reports), built.left_out, self._ahead_s)


def _beyond_tolerance(ahead_s: float) -> float:
    return ahead_s if abs(ahead_s) > TOLERANCE_S else 0.0
