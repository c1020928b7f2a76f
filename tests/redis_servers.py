"""Real redis-server processes on free ports, alone or as a cluster."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class RedisProcess:
    """A redis-server that keeps nothing on disk.

    Attributes:
        options: of its command line.
    """

    port: int
    folder: Path
    options: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> RedisProcess:
        command = ["redis-server", "--port", str(self.port), "--dir", str(self.folder)]
        command += ["--save", "", "--appendonly", "no", "--daemonize", "no", *self.options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return self
            assert self.process.poll() is None, "redis-server did not start"
            assert time.monotonic() < end, "redis-server does not listen"
            time.sleep(0.005)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def call(self, *words: str | bytes, password: str = "") -> bytes:
        """One command through redis-cli, whose input it is the last word of."""
        login = ("-a", password, "--no-auth-warning") if password else ()
        command = ["redis-cli", "-p", str(self.port), *login, "-x"]
        last = words[-1] if isinstance(words[-1], bytes) else words[-1].encode()
        done = subprocess.run([*command, *words[:-1]], input=last, capture_output=True, check=True)
        assert not done.stdout.startswith((b"ERR", b"WRONGPASS", b"NOAUTH")), done.stdout
        return done.stdout


def free_port() -> int:
    """A port that is free and whose number leaves room for a cluster's bus, 10,000 above it."""
    while True:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = int(listener.getsockname()[1])
        if port < 55_000:
            return port


@contextlib.contextmanager
def redis_process(*options: str, port: int | None = None) -> Iterator[RedisProcess]:
    """A running server; `port` "0" in options (TLS only) is left to the caller."""
    folder = Path(tempfile.mkdtemp())
    server = RedisProcess(port or free_port(), folder, options)
    try:
        yield server.start()
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def redis_cluster(size: int = 3) -> Iterator[list[RedisProcess]]:
    """A cluster of masters that share the slots evenly."""
    with contextlib.ExitStack() as running:
        quick = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000")
        servers = [running.enter_context(redis_process(*quick)) for _ in range(size)]
        addresses = [f"127.0.0.1:{server.port}" for server in servers]
        create = ["redis-cli", "--cluster", "create", *addresses, "--cluster-yes"]
        subprocess.run(create, check=True, stdout=subprocess.DEVNULL)
        end = time.monotonic() + 20
        while not all(b"cluster_state:ok" in server.call("CLUSTER", "INFO") for server in servers):
            assert time.monotonic() < end, "the cluster did not form"
            time.sleep(0.05)
        yield servers


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisProcess]:
    """A Redis that tests share; they leave it running."""
    with redis_process() as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[RedisProcess]:
    """A Redis that a test may stop, kill and start again."""
    with redis_process() as server:
        yield server


@pytest.fixture(scope="session")
def redis_nodes() -> Iterator[list[RedisProcess]]:
    """The three servers of a Redis Cluster that tests share."""
    with redis_cluster() as servers:
        yield servers


@pytest.fixture
def own_redis_nodes() -> Iterator[list[RedisProcess]]:
    """A cluster whose servers a test may kill."""
    with redis_cluster() as servers:
        yield servers
