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
from typing import Any, ClassVar

_START_S = 20.0


class BrokerServer:
    """One server and its folder.

    Attributes:
        scheme: of its addresses.
        keeps: whether what it has acknowledged is there after a kill.
        max_bytes: of a message that it takes as it is set up here; None if it takes any.
        quick: options with which a queue soon hands out what a dead reader had.
        port: at 127.0.0.1.
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
        """Of its process."""
        raise NotImplementedError

    async def make(self, topic: str) -> None:
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
        """Whether it is ready, over a fresh connection."""
        return True

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
    max_bytes = 1_000_000
    quick: ClassVar[dict[str, object]] = {
        "session.timeout.ms": 3000,
        "heartbeat.interval.ms": 200,
        "max.poll.interval.ms": 4000,
    }

    def command(self) -> list[str]:
        """As above."""
        return [sys.executable, "-m", "hopline.testing.kafka_mock", "--port", str(self.port)]

    async def make(self, topic: str) -> None:
        """The mock makes what a producer asks for."""
        from confluent_kafka import Producer

        producer: Any = Producer({"bootstrap.servers": f"127.0.0.1:{self.port}", "log_level": 2})
        producer.list_topics(topic, timeout=10)


class RedisServer(BrokerServer):
    """A redis-server that writes every command to its disk before it answers."""

    scheme = "redis"
    quick: ClassVar[dict[str, object]] = {"claim_after_s": 0.5}

    def command(self) -> list[str]:
        """As above."""
        words = ["redis-server", "--port", str(self.port), "--dir", str(self.folder), "--save", ""]
        return [*words, "--appendonly", "yes", "--appendfsync", "always"]

    def answers(self, talk: socket.socket) -> bool:
        """Not while it loads what it has on its disk."""
        talk.sendall(b"PING\r\n")
        return talk.recv(64).startswith(b"+PONG")

    def address(self, topic: str, **options: object) -> str:
        """As above."""
        return super().address("0", stream=topic, **options)


class NatsServer(BrokerServer):
    """A nats-server with JetStream in files."""

    scheme = "nats"
    max_bytes = 2**20
    quick: ClassVar[dict[str, object]] = {"ack_wait_s": 1}

    def command(self) -> list[str]:
        """As above."""
        config = self.folder / "nats.conf"
        store = json.dumps(str(self.folder))
        config.write_text(f"port: {self.port}\nhost: 127.0.0.1\njetstream {{ store_dir: {store} }}\n")
        return ["nats-server", "-c", str(config)]

    async def make(self, topic: str) -> None:
        """A stream, and a subject of that name."""
        import nats

        client = await nats.connect(f"nats://127.0.0.1:{self.port}")
        await client.jetstream().add_stream(name=topic, subjects=[topic])
        await client.close()


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
