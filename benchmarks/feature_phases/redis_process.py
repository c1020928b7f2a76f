"""A real redis-server of our own, for the length of a `with` block, and what the phases do to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import redis

from benchmarks.server_process import ServerFailed, free_port
from hopline.features.base import FeatureGroup
from hopline.types import FloatArray, IdArray
from hopline_stores.redis.features import RedisStore
from hopline_stores.redis.url import RedisUrl

GROUP = "node"
_LOAD_ROWS = 50_000


class RedisProcess:
    """A redis-server without persistence on a free loopback port.

    Attributes:
        port: stays the same over `kill` and `start`.
    """

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._client = redis.Redis(port=self.port, socket_timeout=30.0)

    @property
    def url(self) -> str:
        """For `features.store`."""
        return f"redis://127.0.0.1:{self.port}/0"

    def keys(self, ids: IdArray) -> list[bytes]:
        """The rows' keys, as Hopline writes them."""
        prefix = f"{RedisUrl.parse(self.url, 'features.store').prefix}{GROUP}:".encode()
        return [b"%b%d" % (prefix, each) for each in ids.tolist()]

    def start(self, timeout_s: float = 20.0) -> None:
        """Start, with the rows that `save` kept, if it did.

        Raises: ServerFailed: it does not answer.
        """
        self._process = subprocess.Popen(
            [
                *("redis-server", "--port", str(self.port), "--bind", "127.0.0.1"),
                *("--save", "", "--appendonly", "no", "--dir", str(self._folder)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(redis.RedisError):
                # also refused while it reads what `save` wrote
                if self._client.ping():
                    return
            time.sleep(0.005)
        raise ServerFailed(f"redis-server does not answer on port {self.port}")

    def kill(self) -> None:
        """As a machine that loses power."""
        self._signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()
        self._client.close()

    def pause(self) -> None:
        """Accept connections and answer nothing."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """After `pause`."""
        self._signal(signal.SIGCONT)

    def save(self) -> None:
        """Keep the rows for the next start."""
        self._client.save()

    def swap(self, first: int, second: int) -> None:
        """Exchange two databases atomically, for all connections."""
        self._client.swapdb(first, second)

    def num_lookups(self) -> int:
        """Keys that were looked up since it started."""
        told = self._client.info("stats")
        return int(told["keyspace_hits"]) + int(told["keyspace_misses"])

    def end(self) -> None:
        """End the process, whatever state it is in."""
        self._client.close()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()  # nothing is to be kept, and a stopped process takes no other signal
            self._process.wait()

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)


@contextlib.contextmanager
def redis_server() -> Iterator[RedisProcess]:
    """Run a redis-server; its folder goes with it."""
    if shutil.which("redis-server") is None:
        raise SystemExit("redis-server is not installed (Debian, Ubuntu: apt-get install redis-server)")
    with tempfile.TemporaryDirectory(prefix="hopline-redis-") as folder:
        server = RedisProcess(Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.end()


def load(url: str, features: FloatArray) -> float:
    """Write the rows of all nodes as `hopline features load` does; returns seconds."""

    async def write() -> None:
        group = FeatureGroup(GROUP, features.shape[1])
        store = RedisStore(url)
        await store.open()
        try:
            await store.create(group)
            for first in range(0, features.shape[0], _LOAD_ROWS):
                rows = np.ascontiguousarray(features[first : first + _LOAD_ROWS])
                await store.write(group, np.arange(first, first + rows.shape[0]), rows)
        finally:
            await store.close()

    began = time.perf_counter()
    asyncio.run(write())
    return time.perf_counter() - began
