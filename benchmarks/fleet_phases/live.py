"""Three hosts follow one stream of 5,000 edges a second: are equal versions equal answers, and writes read?

Meanwhile 10,000 requests go to random hosts. Answers of one version to one request must have the same
outputs, byte for byte, whichever host gave them. Every 20th request first writes an edge through a random
host, and asks another host for what was written, by the version that the write returned. One host starts
only when the others have run for some time: from a snapshot that they share.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.fleet_phases.graph_world import MODEL, NUM_NODES, World
from benchmarks.fleet_phases.network import Network, process, temporary
from benchmarks.lifecycle_phases.server import wait_until

_HOSTS, _PORT, _REDIS = 3, 8700, 6379
_RATE, _REQUESTS = 5_000.0, 10_000
#: Different requests, so that several hosts answer the same one at one version.
_DIFFERENT = 4
_WRITE_EVERY = 20
_PATIENCE_S = 90.0
_OUTPUTS = re.compile(rb'"outputs":(\{.*?\}),"degraded":(\[.*?\])', re.DOTALL)
_VERSION = re.compile(rb'"graph_version":"([^"]*)"')
_AGE = re.compile(rb'"graph_age_ms":(\d+)')


class Hosts:
    """The servers of the fleet, their stream and their snapshots.

    Args:
        network: built.
        folder: of logs, live folders and snapshots.
        world: what they serve.
    """

    def __init__(self, network: Network, folder: Path, world: World) -> None:
        self.network, self.folder, self.world = network, folder, world
        self.address = f"redis://{network.address('store', 0)}:{_REDIS}/0?stream=edges"
        self._stack = contextlib.ExitStack()
        self.clients: dict[int, httpx.Client] = {}

    def start_stream(self) -> None:
        """A Redis that keeps nothing on disk."""
        words = ["redis-server", "--port", str(_REDIS), "--bind", self.network.address("store", 0)]
        words += ["--save", "", "--appendonly", "no", "--protected-mode", "no"]
        self._stack.enter_context(process(words, self.folder / "redis.log"))

    def start(self, host: int) -> None:
        """Start a server, and wait until it is ready."""
        words = [sys.executable, "-m", "hopline.cli", "serve", "--live"]
        words += ["--repository", str(self.world.repository), "--graph", str(self.world.graph)]
        words += ["--host", self.network.address("clients", host), "--port", str(_PORT)]
        words += ["--grpc-port", "-1"]
        settings = {
            "live.stream": self.address,
            "live.folder": self.folder / f"host{host}.live",
            "live.snapshots": self.folder / "snapshots",
            "live.snapshot_bytes": 2_000_000,
            "live.spare_edges": 2_000_000,
            "state_cache.memory_bytes": "64 MiB",
            "auth.allow_anonymous": "true",
        }
        words += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        log = self.folder / f"host{host}.log"
        self._stack.enter_context(process(self.network.command(host, words), log))
        url = f"http://{self.network.address('clients', host)}:{_PORT}"
        client = self.clients[host] = httpx.Client(base_url=url, timeout=20)

        def is_ready() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return client.get("/v2/health/ready").status_code == 200
            return False

        wait_until(is_ready, _PATIENCE_S, f"host {host}")

    @contextlib.contextmanager
    def edges(self) -> Iterator[list[float]]:
        """Edges come at the rate meanwhile. Afterwards the list has their number, and seconds."""
        sent: list[float] = []
        words = [sys.executable, "-m", "benchmarks.fleet_phases.edge_producer"]
        words += [self.address, str(_RATE), str(NUM_NODES)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as producer:
            assert producer.stdout is not None
            producer.stdout.readline()
            try:
                yield sent
            finally:
                producer.send_signal(signal.SIGTERM)
                sent += map(float, producer.stdout.read().split())

    def close(self) -> None:
        """Stop everything."""
        for client in self.clients.values():
            client.close()
        self._stack.close()


class Reader:
    """Sends requests to random hosts, and compares what they answer.

    Args:
        hosts: started.
    """

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._rng = np.random.default_rng(3)
        self._nodes = self._rng.integers(0, NUM_NODES, (_DIFFERENT, 8)).tolist()
        #: (request, version) -> outputs, and the hosts that gave them.
        self._seen: dict[tuple[int, bytes], tuple[bytes, set[int]]] = {}
        self.counts: Counter[str] = Counter()
        self.ages_ms: list[int] = []
        self.write_read_ms: list[float] = []

    def host(self) -> int:
        """A random host that runs."""
        return int(self._rng.choice(list(self._hosts.clients)))

    def read(self, min_version: str = "", node: int | None = None) -> None:
        """One request to a random host; goes elsewhere if that is behind."""
        number = int(self._rng.integers(_DIFFERENT))
        body: dict[str, Any] = {"nodes": self._nodes[number] if node is None else [node]}
        if min_version:
            body["min_version"] = min_version
        for _ in range(10):
            host = self.host()
            answer = self._hosts.clients[host].post(f"/v1/models/{MODEL}/score", json=body)
            if answer.status_code != 503:
                break
            self.counts["elsewhere"] += 1
        self.counts["requests"] += 1
        if answer.status_code != 200:
            self.counts["lost"] += 1
            return
        found, version = _OUTPUTS.search(answer.content), _VERSION.search(answer.content)
        assert found is not None
        assert version is not None
        if min_version and not _reaches(version[1].decode(), min_version):
            self.counts["written_and_not_read"] += 1
        if (age := _AGE.search(answer.content)) is not None:
            self.ages_ms.append(int(age[1]))
        if node is not None:
            return
        outputs, given_by = self._seen.setdefault((number, version[1]), (found[0], set()))
        self.counts["differ"] += outputs != found[0]
        if given_by and host not in given_by:
            self.counts["compared"] += 1
        given_by.add(host)

    def write_and_read(self) -> None:
        """Write an edge through one host, and ask any host for its version."""
        src, dst = self._rng.integers(0, NUM_NODES, 2).tolist()
        began = time.perf_counter()
        events = [{"op": "add_edge", "src": src, "dst": dst}]
        written = self._hosts.clients[self.host()].post("/v1/graph/events", json=events)
        assert written.status_code == 200, written.text
        self.read(written.json()["graph_version"], dst)
        self.counts["writes"] += 1
        self.write_read_ms.append(1e3 * (time.perf_counter() - began))


def _reaches(found: str, wanted: str) -> bool:
    """True if a version of a Redis stream is not before another one."""

    def place(version: str) -> tuple[int, ...]:
        return tuple(map(int, version.partition("+")[2].partition(".")[0].split("-")))

    return place(found) >= place(wanted)


def _p99(values: list[float] | list[int]) -> float:
    return round(float(np.percentile(values, 99)), 1) if values else 0.0


def measure(quick: bool) -> dict[str, Any]:
    """See the module; `quick` changes nothing: it takes about two minutes."""
    network = Network(_HOSTS)
    with temporary() as name, network.built():
        folder = Path(name)
        world = World(folder)
        hosts = Hosts(network, folder, world)
        try:
            hosts.start_stream()
            for host in list(network.hosts)[:-1]:
                hosts.start(host)
            with hosts.edges() as sent:
                wait_until(lambda: list(folder.glob("snapshots/*/*/complete")), _PATIENCE_S, "a snapshot")
                began = time.monotonic()
                hosts.start(network.hosts[-1])
                fresh_s = time.monotonic() - began
                reader = Reader(hosts)
                began = time.monotonic()
                for number in range(_REQUESTS):
                    if number % _WRITE_EVERY:
                        reader.read()
                    else:
                        reader.write_and_read()
                took_s = time.monotonic() - began
        except BaseException:
            for log in sorted(folder.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text()[-2000:]}", file=sys.stderr)
            raise
        finally:
            hosts.close()
    counts = reader.counts
    return {
        "live_requests": counts["requests"],
        "live_lost": counts["lost"],
        "live_compared_across_hosts": counts["compared"],
        "live_equal_version_other_bytes": counts["differ"],
        "live_writes": counts["writes"],
        "live_written_and_not_read": counts["written_and_not_read"],
        "live_went_elsewhere": counts["elsewhere"],
        "live_write_read_p99_ms": _p99(reader.write_read_ms),
        "live_graph_age_p99_ms": _p99(reader.ages_ms),
        "live_edges_per_s": round(sent[0] / sent[1]),
        "live_requests_per_s": round(_REQUESTS / took_s),
        "live_fresh_host_ready_s": round(fresh_s, 1),
    }
