"""Servers of a live graph that may never be ready."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.servers import FAKE, spawn


class Started:
    """A server process, ready or not; what it logs is read as it comes."""

    def __init__(self, folder: Path, service: str = FAKE, **settings: Any) -> None:
        small = {"live__spare_nodes": 100, "live__spare_edges": 100_000, "server__grpc_port": -1}
        given = {"live__enabled": True, "graph__path": folder / "graph"} | small | settings
        self.process: subprocess.Popen[str] = spawn(service, **given)
        self.log: list[str] = []
        self.out: list[str] = []
        pipes = ((self.process.stdout, self.out), (self.process.stderr, self.log))
        self._readers = [threading.Thread(target=into.extend, args=(pipe,)) for pipe, into in pipes]
        for reader in self._readers:
            reader.start()

    @property
    def text(self) -> str:
        return "".join(self.log)

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.text
        return bool(self.out)

    def ended(self, seconds: float = 120) -> int:
        """Exit code, once it and all that it started have ended."""
        code = self.process.wait(seconds)
        for reader in self._readers:  # the pipes close when the last one has ended
            reader.join(seconds)
            assert not reader.is_alive(), f"processes are left: {self.text}"
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.ended()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()


async def until(condition: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)
