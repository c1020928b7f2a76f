"""Brokers as separate processes, which tests can stop, kill and restart at the same address."""

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
from typing import Any, ClassVar

_START_S = 20.0


class BrokerServer:
    """One broker server and its folder.

    Attributes:
        scheme: URL scheme of its addresses.
        keeps: whether acknowledged messages survive a kill.
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


class KafkaServer(BrokerServer):
    """librdkafka's mock cluster."""

    scheme = "kafka"
    keeps = False
    max_bytes = 1_000_000
    quick: ClassVar[dict[str, object]] = {
        "session.timeout.ms": 3000,
        "heartbeat.interval.ms": 200,
        "max.poll.interval.ms": 4000,
    }

    def command(self) -> list[str]:
        """See `BrokerServer.command`."""
        return [sys.executable, "-m", "hopline_brokers.testing.kafka_mock", "--port", str(self.port)]

    async def make(self, topic: str) -> None:
        """Nothing: the mock creates topics for producers."""
        from confluent_kafka import Producer

        producer: Any = Producer({"bootstrap.servers": f"127.0.0.1:{self.port}", "log_level": 2})
        producer.list_topics(topic, timeout=10)


class RedisServer(BrokerServer):
    """A redis-server that writes every command to its disk before it answers."""

    scheme = "redis"
    quick: ClassVar[dict[str, object]] = {"claim_after_s": 0.5}

    def command(self) -> list[str]:
        """See `BrokerServer.command`."""
        words = ["redis-server", "--port", str(self.port), "--dir", str(self.folder), "--save", ""]
        return [*words, "--appendonly", "yes", "--appendfsync", "always"]

    def answers(self, talk: socket.socket) -> bool:
        """See `BrokerServer.answers`; False while it loads its data."""
        talk.sendall(b"PING\r\n")
        return talk.recv(64).startswith(b"+PONG")

    def address(self, topic: str, **options: object) -> str:
        """See `BrokerServer.address`."""
        return super().address("0", stream=topic, **options)


class NatsServer(BrokerServer):
    """A nats-server with JetStream in files."""

    scheme = "nats"
    max_bytes = 2**20
    quick: ClassVar[dict[str, object]] = {"ack_wait_s": 1}

    def command(self) -> list[str]:
        """See `BrokerServer.command`."""
        config = self.folder / "nats.conf"
        store = json.dumps(str(self.folder))
        config.write_text(f"port: {self.port}\nhost: 127.0.0.1\njetstream {{ store_dir: {store} }}\n")
        return ["nats-server", "-c", str(config)]

    async def make(self, topic: str) -> None:
        """Create a stream, and a subject of that name."""
        import nats

        client = await nats.connect(f"nats://127.0.0.1:{self.port}")
        await client.jetstream().add_stream(name=topic, subjects=[topic])
        await client.close()


@contextlib.contextmanager
def broker_server(kind: type[BrokerServer]) -> Iterator[BrokerServer]:
    """A running server, closed at the end."""
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
