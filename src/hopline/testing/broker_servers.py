"""Brokers as processes of their own, which tests may stop, kill and start again at the same address."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_START_S = 20.0


class BrokerServer:
    """One server and its folder.

    Attributes:
        scheme: of its addresses.
        keeps: whether what it has acknowledged is there after a kill.
        port: at 127.0.0.1.
    """

    scheme = ""
    keeps = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """Of its process."""
        raise NotImplementedError

    def make(self, topic: str) -> None:
        """Make a topic, if it takes that."""

    def address(self, topic: str, **options: object) -> str:
        """Of a topic at it."""
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"{self.scheme}://127.0.0.1:{self.port}/{topic}?{query}".rstrip("?")

    def start(self) -> None:
        """Start, and wait until it listens."""
        self._process = subprocess.Popen(
            self.command(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + _START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            assert self._process.poll() is None, f"{self.command()[0]} did not start"
            assert time.monotonic() < end, f"{self.command()[0]} does not listen"
            time.sleep(0.01)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)
        assert self._process.stdin is not None
        self._process.stdin.close()

    def pause(self) -> None:
        """It says nothing more, and its connections stay."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


class KafkaServer(BrokerServer):
    """librdkafka's mock cluster."""

    scheme = "kafka"
    keeps = False

    def command(self) -> list[str]:
        """As above."""
        return [sys.executable, "-m", "hopline.testing.kafka_mock", "--port", str(self.port)]


class RedisServer(BrokerServer):
    """A redis-server that writes every command to its disk before it answers."""

    scheme = "redis"

    def command(self) -> list[str]:
        """As above."""
        words = ["redis-server", "--port", str(self.port), "--dir", str(self.folder), "--save", ""]
        return [*words, "--appendonly", "yes", "--appendfsync", "always"]

    def address(self, topic: str, **options: object) -> str:
        """As above."""
        return super().address("0", stream=topic, **options)


class NatsServer(BrokerServer):
    """A nats-server with JetStream in files."""

    scheme = "nats"

    def command(self) -> list[str]:
        """As above."""
        # Sync every write: Debian's nats-server waits two minutes else.
        config = self.folder / "nats.conf"
        store = json.dumps(str(self.folder))
        config.write_text(f"port: {self.port}\nhost: 127.0.0.1\njetstream {{ store_dir: {store} }}\n")
        return ["nats-server", "-c", str(config)]

    def make(self, topic: str) -> None:
        """A stream and a subject of that name."""
        import asyncio

        import nats

        async def make() -> None:
            client = await nats.connect(f"nats://127.0.0.1:{self.port}")
            await client.jetstream().add_stream(name=topic, subjects=[topic])
            await client.close()

        asyncio.run(make())


@contextlib.contextmanager
def broker_server(kind: type[BrokerServer]) -> Iterator[BrokerServer]:
    """A running one."""
    folder = Path(tempfile.mkdtemp())
    server = kind(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
