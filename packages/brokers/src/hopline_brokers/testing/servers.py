"""A broker as a separate process, which tests can stop, kill and restart at the same address."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import ClassVar

_START_S = 20.0


class BrokerServer:
    """One broker server and its folder.

    Attributes:
        scheme: URL scheme of its addresses.
        keeps: True if acknowledged messages survive a kill.
        max_bytes: largest message that it accepts in this configuration; None without a limit.
        quick: options with which a queue soon redelivers messages of a dead reader.
        port: port on 127.0.0.1.
    """

    scheme = ""
    keeps = True
    max_bytes: int | None = None
    quick: ClassVar[dict[str, object]] = {}

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """The command line of the process."""
        raise NotImplementedError

    async def make(self, topic: str) -> None:
        """Create a topic, if the server needs that."""

    def address(self, topic: str, **options: object) -> str:
        """The address of a topic."""
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"{self.scheme}://127.0.0.1:{self.port}/{topic}?{query}".rstrip("?")

    def start(self) -> None:
        """Start the server, and wait until it listens."""
        self._process = subprocess.Popen(
            self.command(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + _START_S
        while True:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), 1) as talk,
            ):
                if self.answers(talk):
                    return
            assert self._process.poll() is None, f"{self.command()[0]} did not start"
            assert time.monotonic() < end, f"{self.command()[0]} does not listen"
            time.sleep(0.01)

    def answers(self, talk: socket.socket) -> bool:
        """True if the server is ready, over a new connection."""
        return True

    def kill(self) -> None:
        """Kill the server (kill -9), and wait for its end."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)
        assert self._process.stdin is not None
        self._process.stdin.close()

    def pause(self) -> None:
        """Stop the process; its connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a paused process."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
