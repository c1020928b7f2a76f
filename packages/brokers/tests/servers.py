"""The brokers of tests: librdkafka's mock cluster, a redis-server and a nats-server."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from hopline_brokers.testing.servers import BrokerServer


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
        return [
            sys.executable,
            "-m",
            "hopline.testing.kafka_mock",
            "--port",
            str(self.port),
        ]

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
