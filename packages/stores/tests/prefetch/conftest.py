"""A packaged model, its features in a real Redis, and the processes that serve them."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from hopline.features.base import FeatureGroup
from hopline.features.registry import open_store
from tests.engine import zoo
from tests.redis_servers import RedisProcess, redis_process
from tests.warm_start import start

N = zoo.N


@dataclass
class Places:
    graph: Path
    models: Path
    expected: np.ndarray
    redis: RedisProcess
    folder: Path = field(default_factory=Path)

    def settings(self, **more: Any) -> dict[str, Any]:
        """Of server and prefetcher; more wins."""
        own: dict[str, Any] = {
            "graph.path": self.graph,
            "models.repository": self.models,
            "features.store": self.redis.url,
            "features.memory_bytes": 2**22,
            "features.shared_file": self.folder / "rows",
            "features.prefetcher": self.folder / "socket",
            # The machine may be busy: what is tested is not how fast it is.
            "features.fetch_timeout_ms": 400.0,
            "state_cache.memory_bytes": 0,
            "server.http_port": 0,
            "server.grpc_port": -1,
            "server.drain_delay_s": 0.05,
        }
        return {**own, **{name.replace("__", "."): value for name, value in more.items()}}


@dataclass
class Process:
    """A hopline command that said that it is ready."""

    popen: subprocess.Popen[str]
    ready: str = ""
    log: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return next(word for word in self.ready.split() if word.startswith("http"))

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait(10)

    def wait_for(self, text: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not any(text in line for line in self.log):
            assert time.monotonic() < end, f"no {text!r} in {self.log}"
            time.sleep(0.01)

    def metric(self, line: str) -> float:
        for sample in httpx.get(f"{self.url}/metrics").text.splitlines():
            if sample.startswith(line + " "):
                return float(sample.rpartition(" ")[2])
        return 0.0

    def wait_for_metric(self, line: str, value: float, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while self.metric(line) != value:
            assert time.monotonic() < end, f"{line} is {self.metric(line)}, not {value}: {self.log}"
            time.sleep(0.02)


def spawn(command: str, settings: dict[str, Any]) -> subprocess.Popen[str]:
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    return start(["-m", "hopline.cli", command, *words])


@contextlib.contextmanager
def running(command: str, settings: dict[str, Any]) -> Iterator[Process]:
    """A command that is ready; ended by SIGTERM."""
    popen = spawn(command, settings)
    process = Process(popen)
    assert popen.stdout is not None
    assert popen.stderr is not None
    reader = threading.Thread(target=lambda: process.log.extend(popen.stderr))  # type: ignore[arg-type]
    reader.start()
    try:
        process.ready = popen.stdout.readline()
        assert " at " in process.ready, f"{command} did not start: {process.log}"
        yield process
    finally:
        if popen.poll() is None:
            popen.terminate()
        try:
            popen.wait(20)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait()
        reader.join()
        popen.stdout.close()
        popen.stderr.close()


@pytest.fixture(scope="session")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, np.ndarray]:
    from tests.packaged import package

    root = tmp_path_factory.mktemp("prefetch")
    graph = zoo.homogeneous(1).save(root / "graph")
    zoo.torch.manual_seed(0)
    zoo.torch.set_num_threads(1)
    package(zoo.Plain().eval(), graph, root / "models", name="plain", fanouts=[4, 3, 5], task="multiclass")
    return root / "graph", root / "models", np.array(graph.nodes["node"].features)


async def fill(url: str, features: np.ndarray) -> None:
    store = open_store(url)
    await store.open()
    group = FeatureGroup("node", features.shape[1])
    await store.create(group)
    await store.write(group, [f"n{i}" for i in range(N)], features)
    await store.close()


@pytest.fixture(scope="session")
def shared_places(packaged: tuple[Path, Path, np.ndarray]) -> Iterator[Places]:
    """With a Redis that tests leave running, and answers of a server that has the features itself."""
    graph, models, features = packaged
    with redis_process() as redis:
        asyncio.run(fill(redis.url, features))
        places = Places(graph, models, np.empty(0), redis)
        alone = places.settings(features__store="", features__shared_file="", features__prefetcher="")
        with running("serve", alone) as server:
            places.expected = np.array(scores(server, range(N))["outputs"]["logits"])
        yield places


@pytest.fixture
def places(shared_places: Places, tmp_path: Path) -> Places:
    """The same, with a folder of its own for L1 and the socket; no row of it is near."""
    shared_places.redis.call("CONFIG", "RESETSTAT")
    return Places(
        shared_places.graph, shared_places.models, shared_places.expected, shared_places.redis, tmp_path
    )


def scores(server: Process, nodes: Any, client: httpx.Client | None = None) -> dict[str, Any]:
    body = {"nodes": [f"n{i}" for i in nodes], "outputs": ["logits"]}
    url = f"{server.url}/v1/models/plain/score"
    answer = (client or httpx).post(url, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found
