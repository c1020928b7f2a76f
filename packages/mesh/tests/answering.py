"""Another project's server, started for a test on a free port of loopback."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@contextlib.contextmanager
def answering(command: Sequence[object], port: int, ready: str, log: Path) -> Iterator[str]:
    """Its URL, from when it says that it is ready; it ends with the block.

    Args:
        ready: path that answers 200 then.
        log: file that what it says is added to.
    """
    url = f"http://127.0.0.1:{port}"
    with log.open("a") as said:
        process = subprocess.Popen([str(word) for word in command], stdout=said, stderr=said)
        try:
            end = time.monotonic() + 30
            while True:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, f"{command[0]} did not get ready"
                with contextlib.suppress(httpx.HTTPError):
                    if httpx.get(f"{url}{ready}").status_code == 200:
                        break
                time.sleep(0.05)
            yield url
        finally:
            process.terminate()
            process.wait(20)
