"""Collects the past of a mesh: the snapshots that a collector would have taken, many with each query.

Prometheus answers a range query at each time as it would have answered then. So the snapshots are the same,
except for samples that arrived late. Knows no detectors.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.collect.answer import Answer, read_answer, read_matrix
from hopline_mesh.collect.builder import Failure, SnapshotBuilder
from hopline_mesh.collect.collector import TOLERANCE_S
from hopline_mesh.collect.options import CollectOptions
from hopline_mesh.collect.prometheus import Prometheus, Reply
from hopline_mesh.collect.query import Query, QuerySet
from hopline_mesh.errors import QueryFailed, SourceUnavailable
from hopline_mesh.roster import Roster
from hopline_mesh.snapshot import Snapshot

#: Number of times in the first queries, and the maximum in later ones (Prometheus allows 11,000).
_FIRST_TIMES, _MAX_TIMES = 20, 500
#: Maximum number of values in the responses to one round of queries.
_MAX_VALUES = 500_000
#: Queries in parallel, in addition to those of a watch and of dashboards.
_PARALLEL = 4
#: Number of times at which each of two passes looks for the start of the data.
_LOOKS = 200
#: Number of tries if Prometheus is unavailable, and seconds before the second one; doubled each time.
_TRIES, _PAUSE_S = 4, 1.0
#: Timeout of one query, seconds.
_LONGEST_S = 60.0


class _TooMuch(Exception):
    """One round of queries for fewer times may succeed."""


class Past:
    """Queries Prometheus about past intervals.

    Args:
        client: of Prometheus; the caller closes it.
        queries: to send.
        interval_s: from one snapshot to the next; they end at multiples of it, as in a watch.
        roster: of the snapshots.
        options: limits; `deadline_s` is ignored.
        matchers: for the queries for owners of pods.

    Raises:
        ConfigError: invalid matchers.

    Attributes:
        refused: name of a query that always failed -> reason.
    """

    def __init__(
        self,
        client: Prometheus,
        queries: QuerySet,
        interval_s: float,
        roster: Roster,
        options: CollectOptions,
        *,
        matchers: str = "",
        pause_s: float = _PAUSE_S,
    ) -> None:
        self.refused: dict[str, str] = {}
        self._client = client
        self._queries = queries.queries
        self._interval_s = interval_s
        self._delay_s = options.delay_s
        self._pause_s = pause_s
        self._ahead_s: float | None = None
        self._builder = SnapshotBuilder(queries, roster, options, matchers)
        self._free = asyncio.Semaphore(_PARALLEL)
        self._gave_up = False

    def moments(self, since_s: float, until_s: float) -> int:
        """Return the number of snapshots between two times."""
        first, last = self._numbers(since_s, until_s)
        return max(0, last - first + 1)

    async def begins(self, since_s: float, until_s: float) -> float | None:
        """Return the start of the data.

        Returns: Unix seconds, at most two intervals early; None if there is no data.

        Raises:
            SourceUnavailable: Prometheus is unavailable.
            QueryFailed: it refuses all of these queries.
        """
        low, high = since_s, until_s
        for _ in range(2):
            step_s = max((high - low) / _LOOKS, 0.001)
            times = low + step_s * np.arange(_LOOKS + 1, dtype=np.float64)
            found = await self._first(times)
            if found is None:
                return None
            low, high = max(low, found - step_s), found
            if high <= since_s + step_s:
                break
        return high

    async def snapshots(self, since_s: float, until_s: float) -> AsyncIterator[list[Snapshot]]:
        """Yield the snapshots between two times, oldest first, in lists from one round of queries each.

        Raises:
            SourceUnavailable: Prometheus is unavailable, or too slow.
            QueryFailed: it refuses every query.
        """
        at, last = self._numbers(since_s, until_s)
        most = _FIRST_TIMES
        while at <= last:
            count = min(most, last - at + 1)
            try:
                answers = await self._round(at, count)
            except _TooMuch:
                most = count // 2
                continue
            yield self._built(at, count, answers)
            at += count
            values = sum(
                len(each) for answer in answers if not isinstance(answer, Failure) for each in answer
            )
            most = max(1, min(_MAX_TIMES, _MAX_VALUES * count // max(1, values), 4 * count))

    @property
    def _moved_s(self) -> float:
        """From our clock to the time of the queries, by the server's clock, seconds."""
        return (self._ahead_s or 0.0) - self._delay_s

    def _numbers(self, since_s: float, until_s: float) -> tuple[int, int]:
        return math.ceil(since_s / self._interval_s), math.floor(until_s / self._interval_s)

    async def _first(self, times: NDArray[np.float64]) -> float | None:
        """Return the first of these times at which any query that reveals services has a result."""
        asked = [query for query in self._queries if query.reveals]
        found = await asyncio.gather(
            *(self._ask(f"count({query.promql})", times) for query in asked), return_exceptions=True
        )
        firsts, refusals = [], []
        for each in found:
            if isinstance(each, QueryFailed):
                refusals.append(each)
            elif isinstance(each, BaseException):
                raise each
            else:
                firsts += [
                    time_s for time_s, answer in zip(times.tolist(), each, strict=True) if len(answer)
                ]
        if len(refusals) == len(found):
            raise refusals[0]
        return min(firsts, default=None)

    async def _round(self, first: int, count: int) -> list[list[Answer] | Failure]:
        """Return the responses to all queries for these times."""
        times = self._interval_s * np.arange(first, first + count, dtype=np.float64)
        for left in reversed(range(_TRIES)):
            self._gave_up = False
            found = await asyncio.gather(
                *(self._answer(query, times) for query in self._queries), return_exceptions=True
            )
            if self._gave_up:
                await self._client.renew()
            errors = [each for each in found if isinstance(each, BaseException)]
            for error in errors:
                if not isinstance(error, SourceUnavailable):
                    raise error
            if not errors:
                break
            if count > 1 and (self._gave_up or len(errors) < len(found)):
                raise _TooMuch  # the server is up
            if not left:
                raise errors[0]
            await asyncio.sleep(self._pause_s * 2 ** (_TRIES - 1 - left))
        if len(self.refused) == len(self._queries):
            raise QueryFailed(next(iter(self.refused.values())))
        await self._learn_owners(times)
        return [each for each in found if not isinstance(each, BaseException)]

    async def _answer(self, query: Query, times: NDArray[np.float64]) -> list[Answer] | Failure:
        """Return a response, or its failure."""
        if query.name not in self.refused:
            try:
                return await self._ask(query.promql, times)
            except QueryFailed as error:
                refusal = str(error)
            try:  # find out whether it has too many samples, or is invalid
                single = await self._ask(query.promql, times[:1])
            except QueryFailed:
                self.refused[query.name] = refusal
            else:
                if len(times) > 1:
                    raise _TooMuch
                return single
        return Failure("refused", self.refused[query.name])

    async def _ask(self, promql: str, times: NDArray[np.float64]) -> list[Answer]:
        step_s = float(times[1] - times[0]) if len(times) > 1 else 1.0
        moved_s = self._moved_s
        start_s, end_s = float(times[0]) + moved_s, float(times[-1]) + moved_s
        async with self._free:
            reply = await self._within_limit(
                self._client.query_range(promql, start_s, end_s, step_s, _LONGEST_S)
            )
        if self._ahead_s is None and reply.date_s is not None:
            ahead_s = reply.date_s + 0.5 - time.time()
            self._ahead_s = ahead_s if abs(ahead_s) > TOLERANCE_S else 0.0
        return read_matrix(reply.body, times + moved_s)

    async def _learn_owners(self, times: NDArray[np.float64]) -> None:
        """Query the owners of pods at the first and last time; without them, names of pods are used."""
        known: list[Answer] = []
        for promql in self._builder.owner_queries:
            for moment in {float(times[0]), float(times[-1])}:
                with suppress(QueryFailed, SourceUnavailable):
                    reply = await self._within_limit(self._client.query(promql, moment, _LONGEST_S))
                    known.append(read_answer(reply.body))
        self._builder.learn_owners(known)

    async def _within_limit(self, reply: Awaitable[Reply]) -> Reply:
        try:
            async with asyncio.timeout(_LONGEST_S):
                return await reply
        except TimeoutError:
            self._gave_up = True
            raise SourceUnavailable(
                f"Prometheus at {self._client.url} did not respond within {_LONGEST_S:g} s"
            ) from None

    def _built(self, first: int, count: int, answers: Sequence[list[Answer] | Failure]) -> list[Snapshot]:
        snapshots = []
        for number in range(count):
            readings = [
                answer if isinstance(answer, Failure) else self._builder.read(query, answer[number])
                for query, answer in zip(self._queries, answers, strict=True)
            ]
            time_s = (first + number) * self._interval_s
            snapshots.append(self._builder.build(time_s, time_s + self._moved_s, readings).snapshot)
        return snapshots
