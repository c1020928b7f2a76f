"""A cold host, with and without the rows of the state cache that the fleet shares (`state_cache.l2`).

Twice: a wide model of three layers and requests of 64 nodes, and a narrower one with requests of one node.
Host 1 computes and writes rows until it is warm: its rate is the warm rate. Then host 2 starts cold
without L2. When it has ended, host 3 starts cold with L2. Each has the same closed-loop load.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.fleet_phases.graph_world import MODEL, World
from benchmarks.fleet_phases.network import Network, process, temporary
from benchmarks.lifecycle_phases.server import wait_until

_PORT, _REDIS = 8700, 6379
_SIZES, _FANOUTS = (50_000, 500_000), (15, 10, 5)
#: Name of figures -> width of the model, nodes of a request.
_CASES = {"cold": (256, 64), "cold_light": (128, 1)}
_CONNECTIONS = 16
_PATIENCE_S = 120.0
_FIRST = 10_000
#: Length of the windows in which rates are measured, in seconds.
_WINDOW_S = 0.5


class _Fleet:
    """Servers of one model, and the store of L2.

    Args:
        network: built. folder: of logs. world: what is served. at_once: nodes of a request.
    """

    def __init__(self, network: Network, folder: Path, world: World, at_once: int) -> None:
        self._network, self._folder, self._world = network, folder, world
        self._at_once = at_once
        self._store = f"redis://{network.address('store', 0)}:{_REDIS}/0"

    def store(self) -> contextlib.AbstractContextManager[object]:
        """A Redis that keeps nothing on disk."""
        words = ["redis-server", "--port", str(_REDIS), "--bind", self._network.address("store", 0)]
        words += ["--save", "", "--appendonly", "no", "--protected-mode", "no"]
        return process(words, self._folder / "redis.log")

    @contextlib.contextmanager
    def server(self, host: int, *, l2: bool) -> Any:
        """A ready server."""
        words = [sys.executable, "-m", "hopline.cli", "serve", "--repository", str(self._world.repository)]
        words += ["--graph", str(self._world.graph), "--port", str(_PORT), "--grpc-port", "-1"]
        words += ["--host", self._network.address("clients", host)]
        settings = {"auth.allow_anonymous": "true", "state_cache.memory_bytes": "512 MiB"}
        if l2:
            settings["state_cache.l2"] = self._store
            settings["state_cache.l2_timeout_ms"] = "20"
        words += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        url = f"http://{self._network.address('clients', host)}:{_PORT}"
        with (
            process(self._network.command(host, words), self._folder / f"host{host}.log"),
            httpx.Client(base_url=url, timeout=60) as client,
        ):

            def is_ready() -> bool:
                with contextlib.suppress(httpx.TransportError):
                    return client.get("/v2/health/ready").status_code == 200
                return False

            wait_until(is_ready, _PATIENCE_S, f"host {host}")
            yield client

    def load(self, host: int, seconds: float) -> np.ndarray:
        """Closed-loop load; float64 [answers, 2]: when each came, and the milliseconds that it took."""
        out = self._folder / f"load{host}.txt"
        words = [sys.executable, "-m", "benchmarks.fleet_phases.closed_load"]
        words += [self._network.address("clients", host), str(_PORT), f"/v1/models/{MODEL}/score"]
        words += [str(self._world.num_nodes), str(self._at_once), str(seconds), str(_CONNECTIONS), "5"]
        words += [str(out)]
        subprocess.run(words, check=True)
        return np.loadtxt(out)


def _rates(answers: np.ndarray, seconds: float) -> np.ndarray:
    counts, _ = np.histogram(answers[:, 0], np.arange(0.0, seconds + 1e-9, _WINDOW_S))
    return counts / _WINDOW_S


def _figures(answers: np.ndarray, seconds: float, warm: float) -> dict[str, Any]:
    rates = _rates(answers, seconds)
    # from then on: the mean of three windows, so that one good window does not count
    smooth = np.convolve(rates, np.ones(3) / 3, "valid")
    reached = np.flatnonzero(smooth >= 0.9 * warm)
    first = answers[np.argsort(answers[:, 0])][:_FIRST, 1]
    return {
        "seconds_to_90_percent": round(float(reached[0]) * _WINDOW_S, 1) if len(reached) else None,
        "p99_first_10000_ms": round(float(np.percentile(first, 99)), 2),
        "first_10000_s": round(float(np.sort(answers[:, 0])[: _FIRST + 1][-1]), 2),
    }


def _shared(client: httpx.Client) -> dict[str, float]:
    """What the server says about L2, by level."""
    found = {}
    for line in client.get("/metrics").text.splitlines():
        if line.startswith("hopline_state_l2_"):
            name, _, value = line.rpartition(" ")
            found[name.removeprefix("hopline_state_l2_")] = float(value)
    return found


def _case(network: Network, folder: Path, hidden: int, at_once: int, seconds: float) -> dict[str, Any]:
    """Figures of one model and kind of request."""
    folder.mkdir()
    world = World(folder, _SIZES, hidden, _FANOUTS)
    fleet = _Fleet(network, folder, world, at_once)
    try:
        with fleet.store():
            with fleet.server(1, l2=True) as client:
                time.sleep(1.0)  # a round trip is measured
                for begin in range(0, world.num_nodes, 500):
                    nodes = list(range(begin, begin + 500))
                    client.post(f"/v1/models/{MODEL}/score", json={"nodes": nodes}).raise_for_status()
                fleet.load(1, 5.0)
                warm = float(np.median(_rates(fleet.load(1, 10.0), 10.0)))
                time.sleep(1.0)  # what waits is written
            with fleet.server(2, l2=False):
                without = _figures(fleet.load(2, seconds), seconds, warm)
            with fleet.server(3, l2=True) as client:
                time.sleep(1.0)
                with_l2 = _figures(fleet.load(3, seconds), seconds, warm)
                for line, value in _shared(client).items():
                    print(f"    {line} {value:g}", flush=True)
    except BaseException:
        for log in sorted(folder.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text()[-2000:]}", file=sys.stderr)
        raise
    return {
        "warm_requests_per_s": round(warm),
        **{f"without_{name}": value for name, value in without.items()},
        **{f"with_l2_{name}": value for name, value in with_l2.items()},
    }


def measure(quick: bool) -> dict[str, Any]:
    """See the module."""
    seconds = 20.0 if quick else 60.0
    network = Network(3)
    found: dict[str, Any] = {}
    with temporary() as name, network.built():
        for case, (hidden, at_once) in _CASES.items():
            figures = _case(network, Path(name) / case, hidden, at_once, seconds)
            found |= {f"{case}_{each}": value for each, value in figures.items()}
    return found
