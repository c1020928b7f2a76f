"""Real server processes for tests: the fake service behind the real transports."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.warm_start import start

_MAIN = """
import json, sys
from hopline.config.reader import load_config
from hopline.errors import HoplineError
from hopline.serve import run
from hopline.server import main_error
try:
    config = load_config(overrides=json.loads(sys.argv[1]))
    sys.exit(run(config, service=sys.argv[2]))
except HoplineError as error:
    sys.exit(main_error(error))
"""


@dataclass
class RunningServer:
    process: subprocess.Popen[str]
    url: str
    grpc: str
    log: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        """host:port of HTTP."""
        return self.url.partition("://")[2]

    def metric(self, line: str) -> float:
        """The value of one sample, 0 where it is absent."""
        text = httpx.get(f"{self.url}/metrics", timeout=60).text
        found = re.search(rf"^{re.escape(line)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def wait_until(self, line: str, value: float) -> None:
        """Until a sample has a value."""
        end = time.monotonic() + 60
        while self.metric(line) != value:
            assert time.monotonic() < end, f"{line} is {self.metric(line)}, not {value}"
            time.sleep(0.02)

    def wait_until_logged(self, text: str) -> None:
        """Until a line has a text."""
        end = time.monotonic() + 60
        while not any(text in line for line in list(self.log)):
            assert time.monotonic() < end, f"{text!r} is not in {''.join(self.log)}"
            time.sleep(0.02)

    def wait_for_waiting(self, count: int) -> None:
        """Until so many requests wait in model `slow`."""
        end = time.monotonic() + 60
        while self.metric('hopline_queue_requests{model="slow",version="2"}') < count:
            assert time.monotonic() < end, "the requests did not arrive"
            time.sleep(0.02)


FAKE = "tests.fake_service:FakeService"
#: Workers import the services of tests.
_ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}


def spawn(service: str = FAKE, *, fresh: bool = True, **settings: object) -> subprocess.Popen[str]:
    """A process of a server.

    Args:
        fresh: it imports what it needs, as a server of users does; else it is a fork that has it.
    """
    import json

    overrides = {"server.http_port": 0, "server.grpc_port": 0, "server.drain_delay_s": 0.05}
    overrides["server.grpc_connection_age_s"] = 0.5
    overrides |= {name.replace("__", "."): value for name, value in settings.items()}
    words = ["-c", _MAIN, json.dumps(overrides, default=str), service]
    environment = {**os.environ, **_ENVIRONMENT}
    if not fresh:
        return start(words, environment)
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, *words], stdout=pipe, stderr=pipe, text=True, env=environment)


@contextlib.contextmanager
def running(service: str = FAKE, *, fresh: bool = False, **settings: object) -> Iterator[RunningServer]:
    """A ready server; stopped by SIGTERM at the end. `fresh` is that of `spawn`."""
    process = spawn(service, fresh=fresh, **settings)
    assert process.stdout is not None
    assert process.stderr is not None
    server = RunningServer(process, "", "")
    # A full pipe would block the server.
    reader = threading.Thread(target=lambda: server.log.extend(process.stderr))  # type: ignore[arg-type]
    reader.start()
    try:
        line = process.stdout.readline()
        found = re.search(r"(https?://\S+)(?: grpcs?://(\S+))?", line)
        assert found, f"the server did not start: {''.join(server.log)}"
        server.url, server.grpc = found[1], found[2] or ""
        yield server
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()
        process.stdout.close()
        process.stderr.close()
