"""Cost of the store's failures: one fault at a time under load, each with its own server.

    normal ──── fault ──── the store is back
    calm_s      fault_s    calm_s

Requests go out at a fixed rate and ask for nodes drawn uniformly, with a small L1 and no state cache:
nearly every one needs rows of the store. An error is an answer other than 200, none at all, or one that
claims full quality and differs from the true one.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import redis

from benchmarks.feature_phases.fetch import uvloop_runner
from benchmarks.feature_phases.redis_process import RedisProcess
from benchmarks.feature_phases.requester import Answer, Requester, p99_ms
from benchmarks.feature_phases.scrape import Scrape
from benchmarks.feature_phases.server import hopline, l1_bytes
from benchmarks.feature_phases.slow_proxy import SlowProxy, slow_proxy
from hopline.types import FloatArray

TIMEOUT_MS = 20.0
PER_SECOND = 300.0
#: Of the rows, those that L1 holds.
L1_SHARE = 0.02
#: Answers are float32 computed in batches of any size.
TOLERANCE = 1e-4
_CONNECTIONS = 64
_HALF, _GARBAGE = 1, 2
#: Between two outages.
_BETWEEN_S = 0.5


@dataclass(frozen=True)
class Figures:
    """Of one fault.

    Attributes:
        errors: of all answers, before, during and after.
        p99_over_timeout_ms: during the fault: latency less the fetch timeout.
        recovery_s: from the store's return until a second begins in which no answer is degraded; None
            where none began.
        store_request_ratio: calls to the store per second, during the fault ÷ before.
        degraded_share: of the answers during the fault.
        degraded_before: answers before it, as a sign of a machine too busy to measure on.
        p99_before_ms: latency before it.
        return_request_ratio: calls to the store in the second after its return ÷ before.
    """

    errors: int
    p99_over_timeout_ms: float
    recovery_s: float | None
    store_request_ratio: float
    degraded_share: float
    degraded_before: int
    p99_before_ms: float
    return_request_ratio: float


class Faults:
    """Runs the store's faults under load and measures what they cost.

    Args:
        store: its database 0 holds all rows; it gets others with half of them and with garbage.
        serve_dir: graph and model.
        features: the rows.
        answers: the true ones, float32 [num_nodes, d].
        calm_s, fault_s: see the module.
    """

    def __init__(
        self,
        store: RedisProcess,
        serve_dir: Path,
        features: FloatArray,
        answers: FloatArray,
        calm_s: float,
        fault_s: float,
    ) -> None:
        self._store = store
        self._serve_dir = serve_dir
        self._shape = features.shape
        self._true = answers
        self._calm_s, self._fault_s = calm_s, fault_s
        self._rng = np.random.default_rng(5)
        _make_databases(store, features)
        store.save()

    def run(self, report: Callable[[str, Figures], None]) -> dict[str, dict[str, float | None]]:
        """All faults; each is also passed to `report`."""
        faults = {
            "killed": self._killed,
            "stopped": self._stopped,
            "slow": self._slow,
            "half_missing": self._half_missing,
            "garbage": self._garbage,
            "back_again": self._flapping,
        }
        found = {}
        for name, fault in faults.items():
            figures = self._measure(fault)
            report(name, figures)
            found[name] = asdict(figures)
        return found

    def _measure(self, fault: Callable[[SlowProxy], Awaitable[None]]) -> Figures:
        num_nodes, dim = self._shape
        with slow_proxy(self._store.port) as proxy:
            url = self._store.url
            if fault == self._slow:
                url = url.replace(str(self._store.port), str(proxy.port))
            settings = {
                "features.store": url,
                "features.fetch_timeout_ms": TIMEOUT_MS,
                "features.memory_bytes": l1_bytes(num_nodes, dim, int(L1_SHARE * num_nodes)),
                "state_cache.memory_bytes": 0,
            }
            num_outputs = self._true.shape[1]
            with hopline(self._serve_dir, settings, num_outputs) as server, uvloop_runner() as runner:
                gc.collect()
                gc.disable()  # its pauses here would count as the server's
                try:
                    return runner.run(self._under_load(server.port, fault, proxy))
                finally:
                    gc.enable()

    async def _under_load(
        self, port: int, fault: Callable[[SlowProxy], Awaitable[None]], proxy: SlowProxy
    ) -> Figures:
        requester = Requester(port, _CONNECTIONS)
        await requester.open()
        await requester.at_rate(self._nodes(1.0), PER_SECOND)  # the first ones, not to be counted
        requester.answers.clear()
        sending = asyncio.ensure_future(
            requester.at_rate(self._nodes(2 * self._calm_s + 2 * self._fault_s + 20.0), PER_SECOND)
        )
        try:
            first = await _calls(port)
            await asyncio.sleep(self._calm_s)
            began, before = perf_counter(), await _calls(port)
            await fault(proxy)
            ended, during = perf_counter(), await _calls(port)
            await asyncio.sleep(1.0)
            after = await _calls(port)
            await asyncio.sleep(max(0.0, self._calm_s - 1.0))
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        await requester.settle()
        await requester.close()
        answers = sorted(requester.answers, key=lambda answer: answer.sent)
        calm = [a for a in answers if a.sent < began]
        faulty = [a for a in answers if began <= a.sent < ended]
        normal = (before - first) / self._calm_s
        return Figures(
            errors=sum(map(self._is_error, answers)),
            p99_over_timeout_ms=round(p99_ms(faulty) - TIMEOUT_MS, 2),
            recovery_s=_recovery_s([a for a in answers if a.sent + a.seconds >= ended], ended),
            store_request_ratio=round((during - before) / (ended - began) / normal, 3),
            degraded_share=round(sum(bool(a.degraded) for a in faulty) / len(faulty), 3),
            degraded_before=sum(bool(a.degraded) for a in calm),
            p99_before_ms=round(p99_ms(calm), 2),
            return_request_ratio=round((after - during) / normal, 3),
        )

    def _is_error(self, answer: Answer) -> bool:
        if answer.status != 200:
            return True
        if answer.degraded:
            return False
        return bool(np.abs(np.asarray(answer.values()) - self._true[answer.node]).max() > TOLERANCE)

    def _nodes(self, seconds: float) -> np.ndarray:
        return self._rng.integers(0, self._shape[0], round(PER_SECOND * seconds))

    async def _killed(self, proxy: SlowProxy) -> None:
        self._store.kill()
        await asyncio.sleep(self._fault_s)
        await asyncio.get_running_loop().run_in_executor(None, self._store.start)

    async def _stopped(self, proxy: SlowProxy) -> None:
        self._store.pause()
        try:
            await asyncio.sleep(self._fault_s)
        finally:
            self._store.go_on()

    async def _slow(self, proxy: SlowProxy) -> None:
        proxy.delay_s = 0.05
        await asyncio.sleep(self._fault_s)
        proxy.delay_s = 0.0

    async def _half_missing(self, proxy: SlowProxy) -> None:
        await self._with_database(_HALF)

    async def _garbage(self, proxy: SlowProxy) -> None:
        await self._with_database(_GARBAGE)

    async def _flapping(self, proxy: SlowProxy) -> None:
        """Gone and back again in different ways, the last time for good."""
        await self._stopped(proxy)
        await asyncio.sleep(_BETWEEN_S)
        await self._killed(proxy)

    async def _with_database(self, number: int) -> None:
        self._store.swap(0, number)
        try:
            await asyncio.sleep(self._fault_s)
        finally:
            self._store.swap(0, number)


def _make_databases(store: RedisProcess, features: FloatArray) -> None:
    """Database 1 has every other row, database 2 rows of all wrong lengths; schemas as in 0."""
    num_nodes, row_bytes = features.shape[0], features.shape[1] * 4
    keys = store.keys(np.arange(num_nodes))
    with redis.Redis(port=store.port) as rows:
        others = [key for key in rows.scan_iter(count=10_000) if not key.rsplit(b":", 1)[1].isdigit()]
        for database in (_HALF, _GARBAGE):
            for key in others:
                rows.copy(key, key, destination_db=database)
    lengths = (0, 1, row_bytes - 4, row_bytes - 1, row_bytes + 1, row_bytes + 4, 2 * row_bytes)
    for database in (_HALF, _GARBAGE):
        with redis.Redis(port=store.port, db=database) as target:
            for first in range(0, num_nodes, 10_000):
                with target.pipeline(transaction=False) as pipe:
                    for i in range(first, min(first + 10_000, num_nodes)):
                        if database == _GARBAGE:
                            pipe.set(keys[i], b"\x7f" * lengths[i % len(lengths)])
                        elif i % 2:
                            pipe.set(keys[i], features[i].tobytes())
                    pipe.execute()


def _recovery_s(answers: list[Answer], returned: float) -> float | None:
    """Seconds from `returned` to the first second without degraded answers."""
    if not answers:
        return None
    bad = sorted(a.sent + a.seconds for a in answers if a.status != 200 or a.degraded)
    end = max(a.sent + a.seconds for a in answers)
    since = returned
    for at in [*bad, end]:
        if at - since >= 1.0:
            return round(since - returned, 3)
        since = at
    return None


async def _calls(port: int) -> float:
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, lambda: Scrape(port).total("hopline_feature_calls_total"))
