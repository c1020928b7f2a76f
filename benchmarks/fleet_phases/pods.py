"""Pods of the phase `autoscale`: servers with a part of a CPU each, and the load on them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import hopline_server
from benchmarks.fleet_phases.steady_load import Sender
from benchmarks.image import control_groups
from benchmarks.server_process import free_port, stop

#: CPUs of a pod; the manifest's pod has one. A request waits less than 8 ms for the next short period.
QUOTA, _PERIOD_US = 0.25, 10_000
#: Nodes of a request: some 10 ms of processor time.
_NODES = 512
#: Requests of which the processor time is measured.
_COSTED = 40


@dataclass
class Pod:
    """A server, and where it is."""

    name: str
    process: subprocess.Popen[bytes]
    port: int
    groups: list[Path]
    sender: Sender
    is_ready: bool = False


@dataclass
class Fleet:
    """Starts pods, and tells Prometheus of them.

    Args:
        folder: of logs and targets. serve_dir: graph and repository.
    """

    folder: Path
    serve_dir: Path
    pods: list[Pod] = field(default_factory=list)
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def start(self) -> Pod:
        """Start a pod; it is ready later."""
        name, port = f"pod{len(self.pods)}", free_port()
        groups = self.stack.enter_context(control_groups(QUOTA, None, _PERIOD_US))
        enter = "".join(f"echo $$ > {file}; " for file in groups)
        words = [*hopline_server.command(self.serve_dir, port), "--set", "state_cache.memory_bytes=0"]
        log = self.stack.enter_context((self.folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            ["sh", "-c", f'{enter}exec "$@"', "sh", *words], stdout=log, stderr=log, start_new_session=True
        )
        self.stack.callback(stop, process)
        pod = Pod(name, process, port, groups, Sender("127.0.0.1", port, _request(0)))
        self.pods.append(pod)
        return pod

    def look(self) -> None:
        """Notice pods that became ready."""
        for pod in self.pods:
            if not pod.is_ready and is_up(f"http://127.0.0.1:{pod.port}/readyz"):
                pod.is_ready = True
                self._write_targets()
            if pod.process.poll() is not None:
                log = (self.folder / f"{pod.name}.log").read_text()[-1000:]
                raise RuntimeError(f"{pod.name} ended with {pod.process.returncode}: {log}")

    def wait_ready(self, timeout_s: float = 180.0) -> None:
        """Wait until all are ready."""
        deadline = time.monotonic() + timeout_s
        while not all(pod.is_ready for pod in self.pods):
            if time.monotonic() > deadline:
                raise RuntimeError("pods are not ready")
            time.sleep(0.2)
            self.look()

    @property
    def ready(self) -> list[Pod]:
        """Pods that get requests."""
        return [pod for pod in self.pods if pod.is_ready]

    def _write_targets(self) -> None:
        targets = [
            {"targets": [f"127.0.0.1:{pod.port}"], "labels": {"namespace": "hopline", "pod": pod.name}}
            for pod in self.ready
        ]
        temporary_file = self.folder / "targets.new"
        temporary_file.write_text(json.dumps(targets))
        temporary_file.rename(self.folder / "targets.json")


class Load(threading.Thread):
    """Open-loop requests, until `stop`.

    Args:
        fleet: whose ready pods get them in turn.

    Attributes:
        rate: requests a second, now. answers: (sent at, seconds, status) of each request.
    """

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(daemon=True)
        self.fleet = fleet
        self.rate = 1.0
        self.answers: list[tuple[float, float, int]] = []
        self.stop = threading.Event()

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        tasks: set[asyncio.Task[None]] = set()
        due, number = time.monotonic(), 0
        while not self.stop.is_set():
            due += 1 / self.rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            ready = self.fleet.ready
            number += 1
            pod = ready[number % len(ready)]
            task = asyncio.ensure_future(self._one(pod.sender))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)

    async def _one(self, sender: Sender) -> None:
        began = time.monotonic()
        status, _ = await sender.ask()
        self.answers.append((began, time.monotonic() - began, status))

    def p99_ms(self, first: float, last: float) -> float:
        """Of the requests that were sent between these times."""
        times = sorted(1e3 * took for at, took, _ in list(self.answers) if first <= at < last)
        return times[min(len(times) - 1, int(0.99 * len(times)))] if times else 0.0


def cost_s(pod: Pod) -> float:
    """Processor time of a request, as the server's process has it."""
    before = used_s(pod)
    for number in range(_COSTED):
        _post(pod.port, number)
    return (used_s(pod) - before) / _COSTED


def used_s(pod: Pod) -> float:
    """Processor time that a pod has used so far."""
    fields = Path(f"/proc/{pod.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _body(number: int) -> bytes:
    return json.dumps({"nodes": [(number + 97 * each) % 50_000 for each in range(_NODES)]}).encode()


def _request(number: int) -> bytes:
    body = _body(number)
    head = (
        f"POST {hopline_server.REQUEST.path} HTTP/1.1\r\nHost: fleet\r\nContent-Type: application/json\r\n"
    )
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _post(port: int, number: int) -> None:
    url = f"http://127.0.0.1:{port}{hopline_server.REQUEST.path}"
    with urllib.request.urlopen(urllib.request.Request(url, _body(number)), timeout=30) as answer:
        answer.read()


def is_up(url: str) -> bool:
    """True if a URL answers with success."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
