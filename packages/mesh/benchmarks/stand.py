"""All processes of a watch: simulated mesh, Prometheus, watch, Alertmanager, and the receiver of its
webhook.

Time is compressed: `speed` simulated seconds pass in one second, and all settings in seconds are shortened
accordingly. Everything listens on loopback at free ports. Used by the phase `end_to_end` and by the tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from hopline_mesh.settings import settings_table

_ALERTMANAGER = """
route:
  receiver: hook
  group_by: [alertname, incident]
  group_wait: 100ms
  group_interval: 300ms
  repeat_interval: 1h
receivers:
  - name: hook
    webhook_configs:
      - url: {url}
        send_resolved: true
"""
_READY_S = 60.0


@dataclass(frozen=True, slots=True)
class StandPlan:
    """Size and speed of a run.

    Attributes:
        services: number of services of the simulated mesh.
        seed: seed of the simulated mesh.
        speed: simulated seconds in one second.
        interval_s: seconds (of the clock) between snapshots and between scrapes.
        unkind: whether the mesh has what makes a real mesh harder to watch; see `hopline_mesh.simulate`.
        train_at: snapshots after which the watch is trained.
        settings: further settings of the watch, by key.
    """

    services: int = 12
    seed: int = 3
    speed: float = 15.0
    interval_s: float = 1.0
    unkind: bool = True
    train_at: int = 240
    settings: tuple[tuple[str, object], ...] = ()

    def watch_settings(self) -> dict[str, object]:
        """Settings in seconds, shortened from those at real speed."""
        return {
            "interval_s": self.interval_s,
            "rate_window_s": 60 / self.speed,
            "timeout_s": 0.8 * self.interval_s,
            "min_duration_s": 80 / self.speed,
            "clean_s": 90 / self.speed,
            "trouble_calm_s": 300 / self.speed,
            "train_at": self.train_at,
            "fine_tune_interval_s": 0,
            "state_interval_s": 300 / self.speed,
            **dict(self.settings),
        }


class Stand:
    """The processes after their start.

    Attributes:
        control: URL of the simulation, for commands.
        prometheus, alertmanager, page: URLs.
        notified: bodies that Alertmanager sent to the webhook.
        watch: the process of the watch.
    """

    def __init__(self, folder: Path, plan: StandPlan) -> None:
        self.folder, self.plan = folder, plan
        self.control = self.prometheus = self.alertmanager = self.page = self.kubernetes = ""
        self.notified: list[dict[str, Any]] = []
        self.watch: subprocess.Popen[bytes] | None = None
        self.client = httpx.Client(timeout=10)
        self._http_port = free_port()

    def order(self, path: str, **body: object) -> dict[str, Any]:
        """Request a fault or an operation from the simulation."""
        answer = self.client.post(f"{self.control}{path}", json=body)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def end_faults(self) -> None:
        """End all faults."""
        self.client.delete(f"{self.control}/faults").raise_for_status()

    def state(self) -> dict[str, Any]:
        """The current state of the simulation."""
        found: dict[str, Any] = self.client.get(f"{self.control}/state").json()
        return found

    def ask(self, path: str) -> dict[str, Any]:
        """An answer of the watch."""
        answer = self.client.get(f"{self.page}{path}")
        found: dict[str, Any] = answer.json()
        return found

    def incidents(self) -> list[dict[str, Any]]:
        """All incidents that the watch knows, oldest first."""
        return sorted(self.ask("/v1/mesh/incidents")["incidents"], key=lambda each: each["start_s"])

    def wait(self, what: str, done: Callable[[], object], timeout_s: float) -> None:
        """Wait until a condition is true.

        Raises:
            TimeoutError: it is not true within this time.
        """
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            with contextlib.suppress(httpx.HTTPError, KeyError, TypeError):
                if done():
                    return
            time.sleep(0.1)
        raise TimeoutError(f"{what}: did not happen within {timeout_s:.0f} s\n{self.log('watch')[-3000:]}")

    def answers(self, url: str) -> bool:
        """True if a server answers with success."""
        return self.client.get(url).status_code == 200

    def simulated(self, seconds: float) -> None:
        """Wait for simulated time to pass."""
        time.sleep(seconds / self.plan.speed)

    def log(self, name: str) -> str:
        """The output of a process."""
        return (self.folder / f"{name}.log").read_text()

    def start_watch(self) -> None:
        """Start the watch with the existing state."""
        settings = {
            "prometheus_url": self.prometheus,
            "alertmanager_urls": self.alertmanager,
            "kubernetes_url": self.kubernetes,
            "state_dir": self.folder / "state",
            "http_port": self._http_port,
            "grpc_port": -1,
            **self.plan.watch_settings(),
        }
        names = {row.path.partition(".")[2]: row.env for row in settings_table()}
        environment = {names[key]: str(value) for key, value in settings.items()}
        self.watch = self._popen(
            "watch", [sys.executable, "-m", "hopline.cli", "mesh", "watch"], environment
        )
        self.page = f"http://127.0.0.1:{self._http_port}"
        self.wait("the watch", lambda: self.answers(f"{self.page}/healthz"), _READY_S)

    def kill_watch(self) -> None:
        """Kill the watch without warning, as a machine failure does."""
        assert self.watch is not None
        self.watch.send_signal(signal.SIGKILL)
        self.watch.wait()

    def _popen(
        self, name: str, command: Sequence[object], extra: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [str(word) for word in command], stdout=log, stderr=log, env={**os.environ, **extra}
            )


@contextlib.contextmanager
def stand(folder: Path, plan: StandPlan) -> Iterator[Stand]:
    """All processes, started in order; they end with the block."""
    one = Stand(folder, plan)
    with one.client, contextlib.ExitStack() as stack:
        hook = stack.enter_context(_webhook(one.notified))
        ports = [free_port() for _ in range(4)]

        def start(name: str, *command: object) -> None:
            process = one._popen(name, command, {})
            stack.callback(_end, process)

        start(
            "simulate", sys.executable, "-m", "hopline.cli", "mesh", "simulate",
            "--services", plan.services, "--seed", plan.seed, "--speed", plan.speed,
            *(["--unkind"] if plan.unkind else []),
            "--no-autoscale", "--port", ports[0], "--kubernetes-port", ports[1],
            "--prometheus-config", folder / "prometheus.yml", "--scrape-interval", plan.interval_s,
        )  # fmt: skip
        one.control = f"http://127.0.0.1:{ports[0]}"
        one.kubernetes = f"http://127.0.0.1:{ports[1]}"
        one.wait("the mesh", lambda: one.answers(f"{one.control}/healthz"), _READY_S)
        start(
            "prometheus", "prometheus", f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address=127.0.0.1:{ports[2]}",
        )  # fmt: skip
        (folder / "alertmanager.yml").write_text(_ALERTMANAGER.format(url=hook))
        start(
            "alertmanager", "prometheus-alertmanager", f"--config.file={folder / 'alertmanager.yml'}",
            f"--storage.path={folder / 'alerts'}", f"--web.listen-address=127.0.0.1:{ports[3]}",
            "--cluster.listen-address=",
        )  # fmt: skip
        one.prometheus = f"http://127.0.0.1:{ports[2]}"
        one.alertmanager = f"http://127.0.0.1:{ports[3]}"
        one.wait("Prometheus", lambda: one.answers(f"{one.prometheus}/-/ready"), _READY_S)
        one.wait("Alertmanager", lambda: one.answers(f"{one.alertmanager}/-/ready"), _READY_S)
        one.start_watch()
        try:
            yield one
        finally:
            assert one.watch is not None
            _end(one.watch)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _webhook(bodies: list[dict[str, Any]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def free_port() -> int:
    """A loopback port that is currently free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
