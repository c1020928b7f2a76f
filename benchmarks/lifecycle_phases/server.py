"""Start of Hopline for the phases, and their requests."""

from __future__ import annotations

import contextlib
import http.client
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from hopline.client import Admin, Client

_READY_S = 120.0


@dataclass(frozen=True)
class Hopline:
    """A server that takes requests.

    Attributes:
        port, grpc_port: on loopback.
        process: its own, or the supervisor of its workers.
    """

    port: int
    grpc_port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """Of HTTP."""
        return f"http://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def admin(self) -> Iterator[Admin]:
        """A connection for changes."""
        with Client(self.url, timeout=120, retries=3) as client:
            yield Admin(client)

    def workers(self) -> list[int]:
        """Process ids of the workers, or of the one process."""
        pid = self.process.pid
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(child) for child in text.split()] or [pid]

    def listeners(self) -> int:
        """Workers that accept connections, over HTTP and over gRPC if that is on: the smaller number."""
        return min(_listeners(port) for port in (self.port, self.grpc_port) if port)

    def metric(self, start: str) -> float:
        """The sum of all samples whose line starts so."""
        text = httpx.get(f"{self.url}/metrics", timeout=10).text
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(start))


def _listeners(port: int) -> int:
    """Sockets in state LISTEN (0A) on a port, from /proc/net."""
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return sum(1 for line in lines if line[3] == "0A" and int(line[1].rsplit(":", 1)[1], 16) == port)


@contextlib.contextmanager
def hopline(
    repository: Path, graph: Path | None = None, *, grpc: bool = False, **settings: str | int | float | Path
) -> Iterator[Hopline]:
    """A server for the length of a `with` block; settings as section__key."""
    words = [sys.executable, "-m", "hopline.cli", "serve", "--repository", str(repository), "--port", "0"]
    words += ["--grpc-port", "0" if grpc else "-1"]
    if graph is not None:
        words += ["--graph", str(graph)]
    told: Mapping[str, str | int | float | Path] = {"log__level": "warning", **settings}
    for name, value in told.items():
        words += ["--set", f"{name.replace('__', '.', 1)}={value}"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline().decode()
            found = re.search(r"http://127.0.0.1:(\d+)(?: grpc://127.0.0.1:(\d+))?", line)
            if found is None:
                process.wait(_READY_S)
                log.seek(0)
                raise RuntimeError(f"Hopline did not start: {log.read().decode()[-2000:]}")
            yield Hopline(int(found[1]), int(found[2] or 0), process)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def wait_until(condition: object, seconds: float, what: str) -> None:
    """Look every 10 ms.

    Raises: TimeoutError: it never came to be.
    """
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(http.client.HTTPException, httpx.TransportError):
            if condition():  # type: ignore[operator]
                return
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.01)
