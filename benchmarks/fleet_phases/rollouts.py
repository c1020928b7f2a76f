"""Three hosts, one fleet: what callers get while versions, hosts and the store fail.

Under steady open-loop load through haproxy: a bad canary, a fresh host, a rollback while one host is cut
off from the store, a store that stands still and one that loses its data, and the death of the worker
that judges during a bad canary.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fleet_phases.network import Network, haproxy, process, temporary
from benchmarks.fleet_phases.steady_load import loaded
from benchmarks.lifecycle_phases import broken
from benchmarks.lifecycle_phases.server import wait_until
from hopline.client import Admin, Client
from hopline.errors import HoplineError

MODEL = "risk"
_HOSTS, _PORT, _BALANCED, _REDIS = 3, 8700, 8080, 6379
_RATE = 100.0
#: A rolled-back version may answer so long.
_ALLOWED_S = 2.0
_PATIENCE_S = 60.0
#: Gates that leave the decision to this benchmark.
_LOOSE = {
    "min_requests": 10**6,
    "max_disagreement": 1.0,
    "max_psi": 1e6,
    "max_p99_ratio": 1e6,
    "max_p50_ratio": 1e6,
}


def build(repository: Path) -> dict[str, float]:
    """Package version 1 of a small tabular model; a row to ask for."""
    import pandas as pd
    from sklearn.linear_model import LogisticRegression

    from hopline_tabular.packaging.packager import package_tabular

    rng = np.random.default_rng(7)
    names = ["amount", "age", "visits"]
    rows = pd.DataFrame(rng.normal(3.0, 1.0, (400, 3)), columns=names)
    fitted = LogisticRegression().fit(rows, rows.sum(axis=1) + rng.normal(0, 1, 400) > 9)
    package_tabular(fitted, rows[:50], repository, name=MODEL, version="1", progress=False)
    return dict.fromkeys(names, 3.0)


class Fleet:
    """The servers, the store, and what was rolled back when.

    Args:
        network: built.
        folder: of repository and logs.
    """

    def __init__(self, network: Network, folder: Path) -> None:
        self.network = network
        self.folder = folder
        self.repository = folder / "models"
        self.servers: dict[int, subprocess.Popen[bytes]] = {}
        self.rolled_back: dict[str, float] = {}
        self._stack = contextlib.ExitStack()
        self._redis = contextlib.ExitStack()
        self.redis: subprocess.Popen[bytes] | None = None

    def start_store(self) -> None:
        """A Redis that keeps nothing on disk."""
        words = ["redis-server", "--port", str(_REDIS), "--bind", self.network.address("store", 0)]
        words += ["--save", "", "--appendonly", "no", "--protected-mode", "no"]
        self.redis = self._redis.enter_context(process(words, self.folder / "redis.log"))

    def lose_store(self) -> None:
        """Kill it, with all that it has."""
        self._redis.close()

    def start(self, host: int) -> None:
        """Start a server on a host."""
        store = f"redis://{self.network.address('store', 0)}:{_REDIS}/0?prefix=bench:"
        words = [sys.executable, "-m", "hopline.cli", "serve", "--repository", str(self.repository)]
        words += ["--host", self.network.address("clients", host), "--port", str(_PORT)]
        words += ["--grpc-port", "-1"]
        for setting in (f"models.state={store}", "auth.allow_anonymous=true", "log.level=info"):
            words += ["--set", setting]
        log = self.folder / f"host{host}.log"
        running = process(self.network.command(host, words), log)
        self.servers[host] = self._stack.enter_context(running)

    def wait_ready(self) -> None:
        """Wait until every host answers."""
        for host in self.network.hosts:
            wait_until(
                lambda host=host: self.admin(host, lambda it: it.rollout(MODEL)), _PATIENCE_S, "start"
            )

    def admin(self, host: int, ask: Callable[[Admin], Any]) -> Any:
        """Answer of a host to an admin call; None without one."""
        url = f"http://{self.network.address('clients', host)}:{_PORT}"
        try:
            with Client(url, timeout=20, retries=0) as client:
                return ask(Admin(client))
        except (HoplineError, OSError):
            return None

    def publish(self, version: str, fault: broken.Fault) -> None:
        """Put another version into the repository."""
        broken.write(self.repository / MODEL, "1", version, fault)

    def begin(self, host: int, version: str, percent: float, gates: dict[str, float]) -> None:
        """A canary without a pre-flight: callers get the candidate immediately."""
        begun = self.admin(
            host,
            lambda it: it.begin_rollout(
                MODEL, version, steps=[percent, 100], min_step_s=600, preflight=0, gates=gates
            ),
        )
        assert begun is not None, f"the rollout of {version} was not begun"

    def roll_back(self, host: int, version: str) -> None:
        """By hand."""
        assert self.admin(host, lambda it: it.decide(MODEL, "rollback", "asked for")) is not None
        self.rolled_back[version] = time.monotonic()

    def wait_rolled_back(self, host: int, version: str) -> float:
        """By the gates; seconds that it took."""
        began = time.monotonic()

        def is_over() -> bool:
            found = self.admin(host, lambda it: it.rollout(MODEL))
            return found is not None and found["rollout"] is None

        wait_until(is_over, _PATIENCE_S, f"the rollback of {version}")
        self.rolled_back[version] = time.monotonic()
        return self.rolled_back[version] - began

    def serves(self, host: int) -> str:
        """Versions that a host reports."""
        found = self.admin(host, lambda it: it.rollout(MODEL))
        return "" if found is None else str(found["serving"])

    def close(self) -> None:
        """Stop everything."""
        self._stack.close()
        self._redis.close()


def scenario(fleet: Fleet, say: Callable[[str], None]) -> dict[str, float]:
    """Everything that happens, in order; seconds of what was timed."""
    timed: dict[str, float] = {}
    time.sleep(2)
    say("bad canary")
    fleet.publish("2", "shifted")
    fleet.begin(1, "2", 50, {})
    timed["bad_version_rolled_back_s"] = fleet.wait_rolled_back(2, "2")
    say("fresh host; version 2 is the newest in its repository")
    fleet.servers[3].send_signal(signal.SIGTERM)
    fleet.servers[3].wait(60)
    fleet.start(3)
    fleet.wait_ready()
    assert fleet.serves(3) == "1", fleet.serves(3)
    time.sleep(1)
    say("rollback while host 2 is cut off from the store")
    fleet.publish("3", "none")
    fleet.begin(1, "3", 50, _LOOSE)
    time.sleep(1)
    fleet.network.cut_store(2)
    fleet.roll_back(1, "3")
    time.sleep(4)
    fleet.network.mend_store(2)
    wait_until(lambda: fleet.admin(2, lambda it: it.rollout(MODEL))["rollout"] is None, 30, "host 2")
    say("the store stands still, then loses its data")
    fleet.publish("4", "none")
    fleet.begin(2, "4", 50, _LOOSE)
    assert fleet.redis is not None
    fleet.redis.send_signal(signal.SIGSTOP)
    time.sleep(3)
    assert fleet.admin(1, lambda it: it.decide(MODEL, "rollback")) is None, "changed without a store"
    fleet.redis.send_signal(signal.SIGCONT)
    time.sleep(1)
    fleet.lose_store()
    time.sleep(2)
    fleet.start_store()
    wait_until(lambda: fleet.admin(3, lambda it: it.rollout(MODEL))["store"]["up"], 30, "the store")
    time.sleep(1)
    fleet.roll_back(3, "4")
    say("the worker that judges dies during a bad canary")
    fleet.publish("5", "shifted")
    fleet.begin(1, "5", 3, {})
    leader = [""]

    def has_leader() -> bool:
        leader[0] = fleet.admin(1, lambda it: it.rollout(MODEL))["store"]["leader"]
        return bool(leader[0])

    wait_until(has_leader, 10, "a leader")
    judge = next(host for host, server in fleet.servers.items() if f"-{server.pid}-" in leader[0])
    fleet.servers[judge].kill()
    survivor = judge % _HOSTS + 1
    timed["rolled_back_without_judge_s"] = fleet.wait_rolled_back(survivor, "5")
    fleet.start(judge)
    fleet.wait_ready()
    time.sleep(3)
    return timed


def split_decisions(fleet: Fleet) -> int:
    """Rollouts of which hosts report different ends, or of which two ends are reported."""
    ends: dict[str, Counter[str]] = {}
    for host in fleet.network.hosts:
        past = fleet.admin(host, lambda it: it.rollout(MODEL))["past"]
        for rollout in past:
            ends.setdefault(rollout["id"], Counter())[f"{rollout['status']} {rollout['reason']}"] += 1
    assert len(ends) == len(fleet.rolled_back), ends
    return sum(list(found.values()) != [_HOSTS] for found in ends.values())


def measure(quick: bool) -> dict[str, Any]:
    """See the module; `quick` changes nothing: it takes about a minute."""
    network = Network(_HOSTS)
    with temporary() as name, network.built():
        folder = Path(name)
        fleet = Fleet(network, folder)
        row = build(fleet.repository)
        out = folder / "load.txt"
        began = time.monotonic()

        def say(text: str) -> None:
            print(f"    {time.monotonic() - began:5.1f} s  {text}", flush=True)

        try:
            fleet.start_store()
            for host in network.hosts:
                fleet.start(host)
            fleet.wait_ready()
            with haproxy(network, _BALANCED, _PORT, folder):
                time.sleep(1)
                address = network.address("clients", 0), _BALANCED
                with loaded(*address, f"/v1/models/{MODEL}/score", {"rows": [row]}, _RATE, out):
                    timed = scenario(fleet, say)
                splits = split_decisions(fleet)
        except BaseException:
            for log in sorted(folder.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text()[-2000:]}", file=sys.stderr)
            raise
        finally:
            fleet.close()
        lines = [line.split(" ") for line in out.read_text().splitlines()]
    answers = [(float(at), int(status), version) for at, status, version, _ in lines]
    late = sum(
        version in fleet.rolled_back and at > fleet.rolled_back[version] + _ALLOWED_S
        for at, _, version in answers
    )
    return {
        "requests": len(answers),
        "lost": sum(status != 200 for _, status, _ in answers),
        "answered_by_rolled_back_after_2s": late,
        "split_decisions": splits,
        **{name: round(seconds, 2) for name, seconds in timed.items()},
        "versions": dict(Counter(version for _, _, version in answers)),
    }
