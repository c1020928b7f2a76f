"""The progress of a stream in one line: events a second, lag, freshness."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from itertools import pairwise

from rich.console import Console
from rich.live import Live
from rich.text import Text

from hopline.jobs.stream.meters import StreamMetrics

#: Seconds between two lines: on a terminal the line is replaced, else each is a line of the log.
_SCREEN_S, _LOG_S = 0.5, 10.0


class Pace:
    """Computes the progress since the last line from the counters."""

    def __init__(
        self,
        metrics: StreamMetrics,
        lag: Callable[[], Mapping[str, int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics = metrics
        self._lag = lag
        self._clock = clock
        self._at = clock()
        self._events = metrics.num_events
        self._counts = list(metrics.freshness.counts)

    def line(self) -> str:
        """Events a second, lag, freshness p99 and dead letters since the last line."""
        metrics, now = self._metrics, self._clock()
        rate = (metrics.num_events - self._events) / max(now - self._at, 1e-9)
        recent = [new - old for new, old in zip(metrics.freshness.counts, self._counts, strict=True)]
        self._at, self._events, self._counts = now, metrics.num_events, list(metrics.freshness.counts)
        lag = self._lag()
        applied, again = metrics.outcome("applied"), metrics.outcome("duplicate")
        num_letters = metrics.num_events - applied - again
        return (
            f"{rate:,.0f} events/s · lag {f'{sum(lag.values()):,}' if lag else '?'} · "
            f"freshness p99 {_p99(metrics.freshness.bounds, recent)} · {applied:,} applied, "
            f"{again:,} duplicates, {num_letters:,} dead letters"
        )


async def show(pace: Pace, quiet: bool = False) -> None:
    """Update the line until cancelled."""
    console = Console(stderr=True)
    if quiet:
        return
    if not console.is_terminal:
        while True:
            await asyncio.sleep(_LOG_S)
            print(pace.line(), file=sys.stderr, flush=True)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            live.update(Text(pace.line()), refresh=True)
            await asyncio.sleep(_SCREEN_S)


def _p99(bounds: tuple[float, ...], counts: list[int]) -> str:
    total = sum(counts)
    if not total:
        return "–"
    rank, before = 0.99 * total, 0
    edges = list(pairwise((0.0, *bounds)))
    for (low, high), count in zip(edges, counts, strict=False):
        if before + count >= rank:
            return f"{1e3 * (low + (high - low) * (rank - before) / count):,.0f} ms"
        before += count
    return f"> {bounds[-1]:g} s"
