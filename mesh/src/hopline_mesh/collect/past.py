"""Collects the past of a mesh: the snapshots that a collector would have taken, many with each query.

Prometheus answers a range query at each time as it would have answered then. So the snapshots are the same,
except for samples that arrived late. Knows no detectors.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.collect.answer import Answer, Matrix, read_answer, read_matrix
from hopline_mesh.collect.builder import Failure, SnapshotBuilder
from hopline_mesh.collect.collector import TOLERANCE_S
from hopline_mesh.collect.options import CollectOptions
from hopline_mesh.collect.prometheus import Prometheus
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
            answers = await self._round(at, count)
            if answers is None:
                most = max(1, count // 2)
                continue
            yield self._built(at, count, answers)
            at += count
            series = sum(len(answer.labels) for answer in answers if isinstance(answer, Matrix))
            most = max(1, min(_MAX_TIMES, _MAX_VALUES // max(1, series), 4 * count))

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
            elif each.present.any():
                firsts.append(float(times[np.flatnonzero(each.present.any(axis=0))[0]]))
        if len(refusals) == len(found):
            raise refusals[0]
        return min(firsts, default=None)

    async def _round(self, first: int, count: int) -> list[Matrix | Failure] | None:
        """Return the responses to all queries for these times; None if that is too much in one round."""
        times = self._interval_s * np.arange(first, first + count, dtype=np.float64)
        pause_s = self._pause_s
        for left in reversed(range(_TRIES)):
            found = await asyncio.gather(
                *(self._answer(query, times) for query in self._queries), return_exceptions=True
            )
            late, self._gave_up = self._gave_up, False
            if late:
                await self._client.renew()
            away = [each for each in found if isinstance(each, SourceUnavailable)]
            others = [each for each in found if isinstance(each, BaseException) and each not in away]
            if others:
                raise others[0]
            if not away:
                break
            if count > 1 and (late or len(away) < len(found)):
                return None  # the server is up, so the round was too large
            if not left:
                raise away[0]
            await asyncio.sleep(pause_s)
            pause_s *= 2
        answers = [each for each in found if not isinstance(each, BaseException)]
        if any(each is None for each in answers):
            return None
        if len(self.refused) == len(self._queries):
            raise QueryFailed(next(iter(self.refused.values())))
        await self._learn_owners(times)
        return [each for each in answers if each is not None]

    async def _answer(self, query: Query, times: NDArray[np.float64]) -> Matrix | Failure | None:
        """Return a response or its failure; None if fewer times may succeed."""
        if query.name not in self.refused:
            try:
                return await self._ask(query.promql, times)
            except QueryFailed as error:
                refusal = str(error)
            try:  # find out whether it has too many samples, or is invalid
                single = await self._ask(query.promql, times[:1])
                return None if len(times) > 1 else single
            except QueryFailed:
                self.refused[query.name] = refusal
        return Failure("refused", self.refused[query.name])

    async def _ask(self, promql: str, times: NDArray[np.float64]) -> Matrix:
        step_s = float(times[1] - times[0]) if len(times) > 1 else 1.0
        moved_s = (self._ahead_s or 0.0) - self._delay_s
        start_s, end_s = float(times[0]) + moved_s, float(times[-1]) + moved_s
        async with self._free:
            try:
                async with asyncio.timeout(_LONGEST_S):
                    reply = await self._client.query_range(promql, start_s, end_s, step_s, _LONGEST_S)
            except TimeoutError:
                self._gave_up = True
                raise SourceUnavailable(
                    f"Prometheus at {self._client.url} did not respond within {_LONGEST_S:g} s"
                ) from None
        if self._ahead_s is None and reply.date_s is not None:
            ahead_s = reply.date_s + 0.5 - time.time()
            self._ahead_s = ahead_s if abs(ahead_s) > TOLERANCE_S else 0.0
        return read_matrix(reply.body, times + moved_s)

    async def _learn_owners(self, times: NDArray[np.float64]) -> None:
        """Query the owners of pods at the first and last time; without them, names of pods are used."""
        known: list[Answer] = []
        for promql in self._builder.owner_queries:
            for moment in {float(times[0]), float(times[-1])}:
                with suppress(QueryFailed, SourceUnavailable, TimeoutError):
                    async with asyncio.timeout(_LONGEST_S):
                        reply = await self._client.query(promql, moment, _LONGEST_S)
                    known.append(read_answer(reply.body))
        self._builder.learn_owners(known)

    def _built(self, first: int, count: int, answers: Sequence[Matrix | Failure]) -> list[Snapshot]:
        snapshots = []
        for number in range(count):
            readings = [
                answer if isinstance(answer, Failure) else self._builder.read(query, answer.at(number))
                for query, answer in zip(self._queries, answers, strict=True)
            ]
            time_s = (first + number) * self._interval_s
            asked_s = next((float(a.times[number]) for a in answers if isinstance(a, Matrix)), time_s)
            snapshots.append(self._builder.build(time_s, asked_s, readings).snapshot)
        return snapshots
