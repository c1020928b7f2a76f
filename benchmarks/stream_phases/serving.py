"""A server of two workers while a broker brings updates: latency compared with an idle one, freshness.

Windows take turns: requests at random moments alone; the same while updates arrive; the same again while
`freshness.py` looks from outside as well. Publisher and broker, which are elsewhere in earnest, are nice to
the others; the generator of requests is not.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.lifecycle_phases import open_loop
from benchmarks.lifecycle_phases.open_loop import Figures, Target, percentile
from benchmarks.lifecycle_phases.server import Hopline, wait_until
from benchmarks.stream_phases import publisher, worker
from benchmarks.stream_phases.place import Place
from benchmarks.stream_phases.served import (
    TOPIC,
    FarRedis,
    consumer,
    cpu_s,
    live_server,
    samples,
    workers_of,
    writer_of,
)
from benchmarks.workload import draw_ends
from packages.brokers.tests.servers import broker_server

UPDATES, REQUESTS = 10_000, 300.0
MODEL = "sampled"
_BODIES, _CONNECTIONS = 20_000, 16
_MARKERS_A_SECOND = 20
_FRESH = "hopline_stream_freshness_seconds_bucket"


def measure(place: Place, scratch: Path, window_s: float, rounds: int) -> dict[str, Any]:
    """serving_p99_ratio, freshness_p99_ms, workers_agree and what belongs to them."""
    with broker_server(FarRedis) as kept:
        asyncio.run(kept.make(TOPIC))
        address = kept.address(TOPIC)
        folder = scratch / "live"
        with (
            live_server(place.repository, place.graph, folder) as server,
            consumer(place.graph, folder, address) as (follows, url),
        ):
            windows = _Windows(place, server, address, window_s)
            windows.ask()  # tables as warm as they are in the middle of a day
            idle, busy, seen = list[Figures](), list[Figures](), list[dict[str, Any]]()
            used, fresh = dict[str, float](), dict[float, float]()
            pids = {"consumer": follows.process.pid, "writer": writer_of(server)}
            pids |= {f"worker {number}": pid for number, pid in enumerate(workers_of(server))}
            publishing = publisher.start(place.name, address, UPDATES, 100)
            try:
                for number in range(rounds):
                    idle.append(windows.ask())
                    publisher.toggle(publishing)
                    _until_flowing(url)
                    began, before = {name: cpu_s(pid) for name, pid in pids.items()}, _freshness(url)
                    busy.append(windows.ask())
                    for bound, count in _freshness(url).items():
                        fresh[bound] = fresh.get(bound, 0.0) + count - before.get(bound, 0.0)
                    for name, pid in pids.items():
                        used[name] = used.get(name, 0.0) + cpu_s(pid) - began[name]
                    seen.append(windows.look(number))
                    publisher.toggle(publishing)
                    _until_quiet(url)
            finally:
                sent = publisher.stop(publishing)
            told = samples(url)
            final = windows.agree()
            said = follows.said
    seconds = sorted(second for each in seen for second in each["seconds"])
    compared = sum(each["compared"] for each in (*seen, final))
    differing = sum(each["differing"] for each in (*seen, final))
    idle_ms, busy_ms = (median(each.p99_ms for each in those) for those in (idle, busy))
    return {
        "serving_p99_ratio": round(busy_ms / idle_ms, 2),
        "freshness_p99_ms": percentile(seconds, 0.99),
        "workers_agree": differing == 0 and compared > 0,
        "serving": {
            "broker": "redis, every write on the disk",
            "requests_per_s": REQUESTS,
            "updates_per_s": sent["updates_per_s"],
            "published_late_ms": sent["late_ms"],
            "idle_p99_ms": [each.p99_ms for each in idle],
            "busy_p99_ms": [each.p99_ms for each in busy],
            "idle_p50_ms": median(each.p50_ms for each in idle),
            "busy_p50_ms": median(each.p50_ms for each in busy),
            "errors": sum(each.errors for each in (*idle, *busy)),
            "generator_late_p99_ms": max(each.late_p99_ms for each in (*idle, *busy)),
            "freshness_p50_ms": percentile(seconds, 0.5),
            "freshness_max_ms": percentile(seconds, 1.0),
            "freshness_events": sum(each["events"] for each in seen),
            "stream_freshness_p99_ms": _p99_ms(fresh),
            "events": {
                name.split('"')[1]: round(told[name])
                for name in told
                if name.startswith("hopline_stream_events_total")
            },
            "sent": sent["sent"] + sum(each["events"] for each in seen),
            "answers_compared": compared,
            "answers_differing": differing,
            "cpu_share": {name: round(s / (rounds * window_s), 3) for name, s in used.items()},
            "log": said,
        },
    }


class _Windows:
    """Work of one window."""

    def __init__(self, place: Place, server: Hopline, address: str, window_s: float) -> None:
        self._place, self._server, self._address, self._window_s = place, server, address, window_s
        destinations = place.ranks()[1]
        # Popular nodes are asked for more often.
        nodes = draw_ends(np.random.default_rng(5), destinations[destinations >= 0], _BODIES)
        bodies = [f'{{"nodes":[{node}]}}' for node in nodes.tolist()]
        self._targets = [Target(f"/v1/models/{MODEL}/score", bodies)]
        self._number = 0

    def _orders(self) -> dict[str, Any]:
        self._number += 1
        seconds = self._window_s
        return {"rate": REQUESTS, "seconds": seconds, "connections": _CONNECTIONS, "seed": self._number}

    def ask(self) -> Figures:
        """Requests."""
        return open_loop.measure(self._server.port, self._targets, **self._orders())

    def look(self, number: int) -> dict[str, Any]:
        """Requests, and how soon events show."""
        load = open_loop.start(self._server.port, self._targets, **self._orders())
        try:
            found: dict[str, Any] = worker.run(
                "freshness",
                **self._whom(),
                address=self._address,
                isolated=self._place.isolated().tolist(),
                seconds=self._window_s,
                rate=_MARKERS_A_SECOND,
                seed=number,
            )
        finally:
            open_loop.stop(load)
        return found

    def agree(self) -> dict[str, Any]:
        """Results of the workers when all is quiet."""
        found: dict[str, Any] = worker.run("freshness", **self._whom(), nodes=1_000)
        return found

    def _whom(self) -> dict[str, Any]:
        return {
            "port": self._server.port,
            "model": MODEL,
            "workers": workers_of(self._server),
            "num_nodes": self._place.num_nodes,
        }


def _until_flowing(url: str) -> None:
    """Updates have come for a second."""
    applied = 'hopline_stream_events_total{outcome="applied"}'
    before = samples(url)[applied]
    wait_until(lambda: samples(url)[applied] > before + UPDATES, 60, "updates")


def _until_quiet(url: str) -> None:
    """All that was published is done."""
    last = -1.0

    def same() -> bool:
        nonlocal last
        time.sleep(0.5)
        before, last = last, sum(value for name, value in samples(url).items() if "events_total" in name)
        return before == last

    wait_until(same, 60, "the end of the updates")


def _freshness(url: str) -> dict[float, float]:
    """The consumer's own histogram: bound in seconds -> events up to it."""
    found = samples(url).items()
    return {float(name.split('"')[1]): count for name, count in found if name.startswith(_FRESH)}


def _p99_ms(counts: dict[float, float]) -> float:
    """The bound of the bucket that has it."""
    total = counts.get(float("inf"), 0.0)
    return 1e3 * next(bound for bound, count in sorted(counts.items()) if count >= 0.99 * total)
