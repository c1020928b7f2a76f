"""L1 under a Zipf stream of 32 callers: hit rates by size, throughput, the prefetcher, and two workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from benchmarks.feature_phases.oracle import Oracle
from benchmarks.feature_phases.redis_process import RedisProcess
from benchmarks.feature_phases.requester import Requester
from benchmarks.feature_phases.scrape import Scrape
from benchmarks.feature_phases.server import command, hopline, l1_bytes
from benchmarks.feature_phases.stream import ZipfStream
from benchmarks.load import Load, WrkFailed
from benchmarks.server_process import ServerFailed
from hopline.config.reader import config_table

CALLERS = 32
SHARES = (0.01, 0.05, 0.1)
_ORACLE_SEEDS = 3000
#: Requests whose answers were degraded are sent again, in so many passes.
_MAX_PASSES = 8
_NO_TABLE: dict[str, object] = {"state_cache.memory_bytes": 0}
_FOUND = ("hopline_feature_rows_total", 'tier="origin"', 'result="found"')


class NearCache:
    """Measures loads with the L1 feature cache of several sizes.

    Args:
        store: holds all rows.
        serve_dir: graph and model.
        shape: of the features.
        seconds: of each load; as long before it, for the cache to fill.
    """

    def __init__(
        self, store: RedisProcess, serve_dir: Path, shape: tuple[int, int], seconds: float
    ) -> None:
        self._store = store
        self._serve_dir = serve_dir
        self._num_nodes, self._dim = shape
        self._seconds = seconds
        self._oracle = Oracle(serve_dir)

    def hit_rate(self, share: float) -> float:
        """Of the rows that requests read, those that did not cross the network, in steady state.

        Without state caches, which would answer for the most popular rows before L1 is asked. Rows
        read are counted by the oracle, not by the server.
        """
        stream = ZipfStream(self._num_nodes)
        per_request = self._oracle.rows_per_request(stream.draw(_ORACLE_SEEDS))
        with hopline(self._serve_dir, self._settings(share) | _NO_TABLE) as server:
            stream.run(server.port, connections=CALLERS, seconds=self._seconds)
            before = Scrape(server.port).total(*_FOUND)
            load = _sound(stream.run(server.port, connections=CALLERS, seconds=self._seconds))
            fetched = Scrape(server.port).total(*_FOUND) - before
        return 1.0 - fetched / (per_request * load.num_requests)

    def load(self, share: float, num_writers: int = 1, more: Mapping[str, object] | None = None) -> Load:
        """Throughput and latency in steady state, with state caches of the usual size."""
        stream = ZipfStream(self._num_nodes)
        settings = self._settings(share, num_writers) | dict(more or {})
        with hopline(self._serve_dir, settings) as server:
            stream.run(server.port, connections=CALLERS, seconds=self._seconds)
            return _sound(stream.run(server.port, connections=CALLERS, seconds=self._seconds))

    def load_with_prefetcher(self, share: float) -> Load | str:
        """As above, with `hopline prefetch`; or why that is not possible."""
        missing = {"features.shared_file", "features.prefetcher"} - {row.path for row in config_table()}
        if missing:
            return f"no setting {', '.join(sorted(missing))}"
        memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
        with tempfile.TemporaryDirectory(prefix="hopline-rows-", dir=memory) as folder:
            shared: dict[str, object] = {
                "features.shared_file": Path(folder) / "rows",
                "features.prefetcher": Path(folder) / "prefetcher.sock",
            }
            try:
                with prefetcher(self._serve_dir, self._settings(share, 2) | shared):
                    return self.load(share, 2, shared)
            except ServerFailed as error:
                return str(error)

    def fetches_per_row(self, num_requests: int) -> float:
        """Rows that two workers asked Redis for ÷ distinct rows that they needed; L1 holds all."""
        seeds = ZipfStream(self._num_nodes).draw(num_requests)
        seeds[0] = 0  # what the harness asks for to see whether the server is ready
        before = self._store.num_lookups()
        settings = self._settings(1.0, 2) | {"server.workers": 2} | _NO_TABLE
        with hopline(self._serve_dir, settings) as server:

            async def send() -> int:
                requester = Requester(server.port, CALLERS)
                await requester.open()
                nodes, num_poor = seeds, 0
                for again in range(_MAX_PASSES):
                    requester.answers.clear()
                    await requester.at_once(nodes)
                    # what was answered without some of its rows needs them still
                    poor = [a.node for a in requester.answers if a.status != 200 or a.degraded]
                    num_poor += 0 if again else len(poor)
                    nodes = np.array(poor, np.int64)
                await requester.close()
                if nodes.shape[0]:
                    raise ServerFailed(f"{nodes.shape[0]} requests were never answered at full quality")
                return num_poor

            num_poor = asyncio.run(send())
            asked = self._store.num_lookups() - before
        if num_poor:
            print(f"    {num_poor} of {num_requests} answers were degraded at first", file=sys.stderr)
        return asked / self._oracle.rows(seeds).shape[0]

    def _settings(self, share: float, num_writers: int = 1) -> dict[str, object]:
        # Each writer has its part: so that all rows fit whichever worker reads them, multiply by the
        # writers.
        num_rows = int(share * self._num_nodes) * (num_writers if share == 1.0 else 1)
        return {
            "features.store": self._store.url,
            "features.memory_bytes": l1_bytes(self._num_nodes, self._dim, num_rows, num_writers),
        }


@contextlib.contextmanager
def prefetcher(serve_dir: Path, settings: Mapping[str, object]) -> Iterator[None]:
    """`hopline prefetch` for the length of a `with` block.

    Raises: ServerFailed: there is no such command, or it ended.
    """
    socket = Path(str(settings["features.prefetcher"]))
    with tempfile.TemporaryFile() as log:

        def tail() -> str:
            log.seek(0)
            return log.read().decode(errors="replace").strip()[-500:]

        process = subprocess.Popen(
            command("prefetch", serve_dir, settings),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + 60.0
            while not socket.exists():
                if process.poll() is not None:
                    raise ServerFailed(f"hopline prefetch exited with {process.returncode}: {tail()}")
                if time.monotonic() > deadline:
                    raise ServerFailed(f"hopline prefetch made no {socket.name}: {tail()}")
                time.sleep(0.05)
            yield
            if process.poll() is not None:
                raise ServerFailed(f"hopline prefetch ended under load: {tail()}")
        finally:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10.0)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _sound(load: Load) -> Load:
    if load.failed:
        raise WrkFailed(f"requests failed: {load.errors}")
    return load
