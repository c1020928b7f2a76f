"""A daily snapshot from an S3 address (graph, features, answers), swapped on three hosts under load.

The hosts follow the pointer of `s3://daily/risk` (moto's server, on the store's network). Under steady load
through haproxy the next day's snapshot is published; then a pointer to a snapshot that does not exist.
Figures: requests lost, seconds from the pointer's move until every host answers on the new snapshot alone,
and the most disk and memory that a host took.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.fleet_phases.network import Network, haproxy, process, temporary
from benchmarks.fleet_phases.steady_load import loaded
from benchmarks.lifecycle_phases.server import wait_until
from hopline.client import Admin, Client
from hopline.errors import HoplineError
from hopline.graph import Graph

_MODEL, _BUCKET = "risk", "daily"
_ADDRESS = f"s3://{_BUCKET}/{_MODEL}"
_HOSTS, _PORT, _BALANCED, _REDIS, _S3 = 3, 8700, 8080, 6379, 5000
_NUM_FEATURES = 64
_FULL, _QUICK = (1_000_000, 20_000_000), (100_000, 2_000_000)
_RATE = 100.0
_PATIENCE_S = 900.0
_LOOK_S = 0.2
#: Another day's graph gives other answers: only failures and latency decide.
_GATES = "min_requests=50,max_disagreement=1,max_psi=1000000,max_p99_ratio=1000,max_p50_ratio=1000"


def graph_of(day: int, num_nodes: int, num_edges: int, folder: Path) -> Path:
    """The graph of a day: other edges and other features."""
    rng = np.random.default_rng(day)
    edges = np.stack([(rng.random(num_edges) ** 2 * num_nodes).astype(np.int64) for _ in range(2)])
    features = rng.standard_normal((num_nodes, _NUM_FEATURES), np.float32)
    path = folder / f"day{day}"
    Graph.from_edges(edges, features).save(path)
    return path


def package(graph: Path, repository: Path) -> None:
    """Two SAGE layers."""
    import torch
    from torch import nn
    from torch_geometric.nn import SAGEConv

    import hopline

    class Risk(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = SAGEConv(_NUM_FEATURES, 32), SAGEConv(32, 2)

        def forward(self, x: Any, edge_index: Any) -> Any:
            return self.second(self.first(x, edge_index).relu(), edge_index)

    torch.manual_seed(1)
    hopline.package(
        Risk().eval(),
        Graph.open(graph),
        repository,
        name=_MODEL,
        fanouts=[10, 5],
        task="multiclass",
        check_nodes=32,
    )


def answers(graph: Path, repository: Path, folder: Path) -> Path:
    """Precomputed answers of all nodes."""
    file = folder / f"{graph.name}.answers"
    words = [sys.executable, "-m", "hopline.cli", "batch", "--model", _MODEL, "--graph", str(graph)]
    words += ["--repository", str(repository), "--to", f"precomputed:{file}"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return file


class Hosts:
    """Three servers that follow the address."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network = network
        self.folder = folder
        self.servers: dict[int, subprocess.Popen[bytes]] = {}
        self._stack = contextlib.ExitStack()

    def start(self, repository: Path) -> None:
        """Start all, and wait until each answers."""
        state = f"redis://{self.network.address('store', 0)}:{_REDIS}/0?prefix=bench:"
        for host in self.network.hosts:
            words = [sys.executable, "-m", "hopline.cli", "serve", "--graph", _ADDRESS]
            words += ["--repository", str(repository), "--host", self.network.address("clients", host)]
            words += ["--port", str(_PORT), "--grpc-port", "-1"]
            settings = {
                "models.state": state,
                "auth.allow_anonymous": "true",
                "snapshots.cache": self.cache(host),
                "snapshots.poll_s": "0.5",
                "snapshots.rollout": "blue_green",
                "snapshots.min_step_s": "0",
                "snapshots.preflight": "50",
                "snapshots.gates": _GATES,
            }
            for name, value in settings.items():
                words += ["--set", f"{name}={value}"]
            running = process(self.network.command(host, words), self.folder / f"host{host}.log")
            self.servers[host] = self._stack.enter_context(running)
        for host in self.network.hosts:
            wait_until(lambda host=host: self.found(host), _PATIENCE_S, "start")

    def cache(self, host: int) -> Path:
        """Folder of a host's copies."""
        return self.folder / f"cache{host}"

    def found(self, host: int) -> dict[str, Any] | None:
        """Description of the model by a host; None without an answer."""
        try:
            with Client(self.url(host), timeout=20, retries=0) as client:
                return Admin(client).rollout(_MODEL)
        except (HoplineError, OSError):
            return None

    def url(self, host: int) -> str:
        """Of its HTTP."""
        return f"http://{self.network.address('clients', host)}:{_PORT}"

    def serve(self, snapshot: str) -> bool:
        """True if every host serves a snapshot, and no rollout is under way."""
        for host in self.network.hosts:
            found = self.found(host)
            if found is None or found["rollout"] is not None:
                return False
            graphs = {unit["id"]: unit.get("graph", "") for unit in found["units"]}
            if graphs.get(found["serving"]) != f"{_ADDRESS}#{snapshot}":
                return False
        return True

    def failures(self) -> float:
        """Snapshots and pointers that any host could not use."""
        lines = [
            line
            for host in self.network.hosts
            for line in httpx.get(f"{self.url(host)}/metrics", timeout=20).text.splitlines()
            if line.startswith("hopline_snapshot_failures_total{")
        ]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def close(self) -> None:
        """Stop all."""
        self._stack.close()


class Peaks:
    """The most disk and memory of a host, watched on a thread."""

    def __init__(self, hosts: Hosts) -> None:
        self.disk_bytes = self.memory_bytes = 0
        self._hosts = hosts
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(_LOOK_S):
            for host, server in self._hosts.servers.items():
                self.disk_bytes = max(self.disk_bytes, disk_bytes(self._hosts.cache(host)))
                self.memory_bytes = max(self.memory_bytes, memory_bytes(server.pid))


def disk_bytes(folder: Path) -> int:
    """Bytes of the files below a folder; each content once."""
    sizes = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found = os.stat(os.path.join(parent, name))
                sizes[found.st_ino] = found.st_blocks * 512
    return sum(sizes.values())


def memory_bytes(pid: int) -> int:
    """Resident memory of a process and its children, pages that it shares counted in part (PSS)."""
    total = 0
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            total += memory_bytes(int(child))
    return total


@contextlib.contextmanager
def stores(network: Network, folder: Path) -> Iterator[None]:
    """Redis and S3 in the hub; the environment names the latter."""
    hub = network.address("store", 0)
    redis = ["redis-server", "--port", str(_REDIS), "--bind", hub, "--protected-mode", "no"]
    redis += ["--save", "", "--appendonly", "no"]
    s3 = [sys.executable, "-m", "moto.server", "-H", hub, "-p", str(_S3)]
    named = {
        "AWS_ENDPOINT_URL": f"http://{hub}:{_S3}",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = dict(os.environ)
    with process(redis, folder / "redis.log"), process(s3, folder / "s3.log"):
        os.environ.update(named)
        try:
            wait_until(lambda: httpx.get(named["AWS_ENDPOINT_URL"]).status_code, 60, "moto")
            import boto3

            client = boto3.client("s3")
            client.create_bucket(Bucket=_BUCKET)
            client.close()
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def measure(quick: bool) -> dict[str, Any]:
    """See the module; `quick`: 2 M edges instead of 20 M."""
    from hopline.snapshots.manifest import Pointer
    from hopline.snapshots.store import SnapshotStore
    from hopline_stores.snapshots.publish import publish

    network = Network(_HOSTS)
    num_nodes, num_edges = _QUICK if quick else _FULL
    with temporary() as name:
        folder = Path(name)
        repository = folder / "models"
        days = [graph_of(day, num_nodes, num_edges, folder) for day in (1, 2)]
        package(graph_of(3, 2_000, 20_000, folder), repository)
        files = [answers(day, repository, folder) for day in days]
        out = folder / "load.txt"
        with network.built(), stores(network, folder):
            store = SnapshotStore(_ADDRESS)
            first = publish(store, days[0], precomputed=files[:1], name="day 1")
            hosts = Hosts(network, folder)
            try:
                hosts.start(repository)
                with haproxy(network, _BALANCED, _PORT, folder):
                    time.sleep(2)
                    body = {"nodes": list(range(16))}
                    path = f"/v1/models/{_MODEL}/score"
                    address = network.address("clients", 0), _BALANCED
                    before = max(memory_bytes(server.pid) for server in hosts.servers.values())
                    with Peaks(hosts) as peaks, loaded(*address, path, body, _RATE, out):
                        time.sleep(8)
                        began = time.monotonic()
                        second = publish(store, days[1], precomputed=files[1:], name="day 2")
                        moved = time.monotonic()
                        wait_until(lambda: hosts.serve(second.id), _PATIENCE_S, "the swap")
                        swapped = time.monotonic()
                        time.sleep(2)
                        store.put_pointer(Pointer("0" * 32, time.time()))
                        wait_until(lambda: hosts.failures() > 0, 60, "the bad pointer")
                        assert hosts.serve(second.id)
                        time.sleep(2)
            except BaseException:
                for log in sorted(folder.glob("*.log")):
                    print(f"--- {log.name}\n{log.read_text()[-3000:]}", file=sys.stderr)
                raise
            finally:
                hosts.close()
        lines = [line.split(" ") for line in out.read_text().splitlines()]
        fetched = [
            float(found[1])
            for log in folder.glob("host*.log")
            for found in re.finditer(rf"{second.id} is on this host: .*, (\S+) s\n", log.read_text())
        ]
    done = [(float(at), int(status), version) for at, status, version, _ in lines]
    ms = np.array([(float(at), float(took)) for at, _, _, took in lines])
    calm, busy = ms[ms[:, 0] < began, 1], ms[(ms[:, 0] >= moved) & (ms[:, 0] < swapped), 1]
    versions = Counter(version for _, _, version in done)
    last = done[-1][2]
    return {
        "snapshot_edges": num_edges,
        "snapshot_mib": _mib(first.num_bytes),
        "snapshot_requests": len(done),
        "snapshot_lost": sum(status != 200 for _, status, _ in done),
        "snapshot_publish_s": round(moved - began, 1),
        "snapshot_swap_s": round(swapped - moved, 1),
        "snapshot_fetch_s": max(fetched),
        "snapshot_p99_before_ms": round(float(np.percentile(calm, 99)), 1),
        "snapshot_p99_during_ms": round(float(np.percentile(busy, 99)), 1),
        "snapshot_p50_before_ms": round(float(np.percentile(calm, 50)), 1),
        "snapshot_p50_during_ms": round(float(np.percentile(busy, 50)), 1),
        "snapshot_old_answers_after_swap": sum(at > swapped and version != last for at, _, version in done),
        "snapshot_disk_peak_mib": _mib(peaks.disk_bytes),
        "snapshot_memory_before_mib": _mib(before),
        "snapshot_memory_peak_mib": _mib(peaks.memory_bytes),
        "snapshot_versions": dict(versions),
    }


def _mib(num_bytes: int) -> int:
    return round(num_bytes / 2**20)
