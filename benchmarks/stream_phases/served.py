"""A live server, the consumer of a stream and their processes, as the phases start, find and end them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from benchmarks.lifecycle_phases.server import Hopline, hopline, wait_until
from benchmarks.server_process import free_port
from hopline_brokers.testing.servers import BrokerServer
from packages.brokers.tests.servers import NatsServer, RedisServer

#: Of who brings the updates: producers and broker are on other machines where there is more than a test.
FAR_NICE = 10


class FarRedis(RedisServer):
    """A Redis server with a lower priority than the processes under test."""

    def command(self) -> list[str]:
        """As above."""
        return ["nice", "-n", str(FAR_NICE), *super().command()]


BROKERS: dict[str, type[BrokerServer]] = {"nats": NatsServer, "redis": RedisServer}
TOPIC = "updates"
_CLOCK = os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def live_server(repository: Path, graph: Path, folder: Path, **settings: str | int) -> Iterator[Hopline]:
    """Two workers and a writer, the changes kept in a folder."""
    told: dict[str, Any] = {
        "live__enabled": "true",
        "live__folder": folder,
        "server__workers": 2,
        **settings,
    }
    with hopline(repository, graph, **told) as server:
        wait_until(lambda: server.listeners() == 2, 60, "both workers")
        yield server


def writer_of(server: Hopline) -> int:
    """Process id of the server's writer."""
    return next(pid for pid in server.workers() if is_writer(pid))


def workers_of(server: Hopline) -> list[int]:
    """Process ids of those that answer."""
    return [pid for pid in server.workers() if not is_writer(pid)]


def is_writer(pid: int) -> bool:
    """True if a process writes a live graph."""
    return b"hopline.live.process" in Path(f"/proc/{pid}/cmdline").read_bytes()


def cpu_s(pid: int) -> float:
    """Processor time of a process until now."""
    words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / _CLOCK


class Process:
    """A command that is run, killed and run again; its log is one file.

    Args:
        words: after `hopline`. log: file.
    """

    def __init__(self, words: list[str], log: Path) -> None:
        self._words = [sys.executable, "-m", "hopline.cli", *words]
        self.log = log
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        """Run it, as the leader of a new process group."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._words, stdout=log, stderr=log, start_new_session=True)

    def children(self) -> list[int]:
        """Process ids; none once it has ended."""
        pid = self.process.pid
        try:
            return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            return []

    def kill(self) -> None:
        """kill -9, with all its children."""
        for pid in (*self.children(), self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def end(self, seconds: float = 40.0) -> None:
        """Let it finish what it took."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def destroy(self) -> None:
        """Leave nothing of it, whatever state it is in."""
        if hasattr(self, "process") and self.process.poll() is None:
            self.kill()

    @property
    def said(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-1500:]


def consumer_words(graph: Path, folder: Path, source: str) -> list[str]:
    """Of `hopline stream`."""
    words = ["stream", "--quiet", "--graph", str(graph), "--from", source, "--dead-letters", "discard"]
    return [*words, "--set", f"live.folder={folder}", "--set", "log.level=warning"]


@contextlib.contextmanager
def consumer(graph: Path, folder: Path, source: str) -> Iterator[tuple[Process, str]]:
    """A consumer that follows, and the address of its metrics."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/metrics"
    with tempfile.TemporaryDirectory() as scratch:
        words = [*consumer_words(graph, folder, source), "--metrics-port", str(port)]
        follows = Process(words, Path(scratch) / "log")
        follows.start()
        try:
            wait_until(lambda: httpx.get(url, timeout=2).status_code == 200, 60, "the consumer")
            yield follows, url
        finally:
            follows.end()


def samples(url: str) -> dict[str, float]:
    """All samples of a metrics page."""
    page = httpx.get(url, timeout=10).text
    lines = (line.rsplit(" ", 1) for line in page.splitlines() if line and line[0] != "#")
    return {name: float(value) for name, value in lines}
