"""Requests at random moments, whatever the answers do: Poisson arrivals over keep-alive HTTP connections.

A separate process, so that the harness takes nothing from it:

    python -m benchmarks.lifecycle_phases.open_loop < orders.json

prints one JSON object. A request's time runs from its arrival to the last byte of its answer; one that
finds no connection free waits for one, and that counts. The generator's own share is measured too: how late
it was in handling arrivals.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from hopline.process.time_slice import SHORT_S, want_slices

#: An answer that has not come so long after the last arrival never will.
_LOST_S = 10.0


@dataclass(frozen=True)
class Target:
    """Requests: `bodies` in turn, at a path."""

    path: str
    bodies: Sequence[str]
    headers: str = ""

    def payloads(self) -> list[bytes]:
        """Whole requests."""
        return [
            (
                f"POST {self.path} HTTP/1.1\r\nHost: a\r\n{self.headers}Content-Type: application/json\r\n"
                f"Content-Length: {len(body.encode())}\r\n\r\n{body}"
            ).encode()
            for body in self.bodies
        ]


@dataclass
class Figures:
    """Results of one run; times in ms.

    Attributes:
        sent, answered: requests; `lost` got no answer, `twice` more than one.
        statuses: status -> answers.
        late_p99_ms: how late the generator handled arrivals.
        versions: version named in the answer -> answers.
        events: [seconds since the start, ms, status, version] of each answer, where asked for.
    """

    sent: int = 0
    answered: int = 0
    lost: int = 0
    twice: int = 0
    rps: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    late_p99_ms: float = 0.0
    statuses: dict[str, int] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    by_target: list[float] = field(default_factory=list)
    events: list[list[Any]] = field(default_factory=list)

    @property
    def errors(self) -> int:
        """Requests without a good answer."""
        return self.sent - self.statuses.get("200", 0)


class Connection(asyncio.Protocol):
    """One request at a time; opens itself again when the server closes it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._received = b""
        self._length = -1
        self.begun = 0.0
        self.target = -1
        self.transport: asyncio.Transport | None = None
        self._last = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._run.freed(self)

    def send(self, payload: bytes, begun: float, target: int) -> None:
        assert self.transport is not None
        self._received, self._length, self.begun, self.target = b"", -1, begun, target
        self.transport.write(payload)

    def data_received(self, data: bytes) -> None:
        received = self._received = self._received + data if self._received else data
        if self.target < 0:
            self._run.twice += 1
            return
        if self._length < 0:
            head = received.find(b"\r\n\r\n")
            if head < 0:
                return
            lines = received[:head].lower()
            self._length = head + 4 + int(lines.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
            self._last = b"connection: close" in lines
        if len(received) < self._length:
            return
        if len(received) > self._length:
            self._run.twice += 1
        target, self.target = self.target, -1
        self._run.ended(self.begun, int(received[9:12]), target, received)
        if not self._last:
            self._run.freed(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self.target >= 0:
            self._run.ended(self.begun, 0, self.target, b"")
            self.target = -1
        self._run.closed(self)


class Run:
    """One run; see the module."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self._orders = orders
        targets = [Target(**target) for target in orders["targets"]]
        self._payloads = [target.payloads() for target in targets]
        self._weights = orders.get("weights") or [1.0] * len(targets)
        self._free: deque[Connection] = deque()
        self._waiting: deque[tuple[bytes, float, int]] = deque()
        self._done: list[tuple[float, float, int, int, str]] = []
        self._late: list[float] = []
        self._rng = random.Random(orders.get("seed", 0))
        self._versioned = bool(orders.get("versions"))
        self.twice = self._sent = 0
        self.stopped = False
        self._loop = asyncio.get_running_loop()
        self._opening = 0

    async def run(self) -> Figures:
        orders = self._orders
        for _ in range(orders["connections"]):
            await self._open()
        rate, seconds = orders["rate"], orders["seconds"]
        rng, loop = self._rng, self._loop
        numbers = range(len(self._payloads))
        counters = [0] * len(self._payloads)
        began = loop.time() + 0.05
        due = began
        while True:
            due += rng.expovariate(rate)
            if due > began + seconds or self.stopped:
                seconds = min(seconds, loop.time() - began)
                break
            pause = due - loop.time()
            if pause > 0:
                await asyncio.sleep(pause)
            (target,) = rng.choices(numbers, self._weights) if len(numbers) > 1 else (0,)
            payloads = self._payloads[target]
            payload = payloads[counters[target] % len(payloads)]
            counters[target] += 1
            self._sent += 1
            now = time.perf_counter()
            self._late.append(loop.time() - due)
            if self._free:
                self._free.popleft().send(payload, now, target)
            else:
                self._waiting.append((payload, now, target))
        end = loop.time() + _LOST_S
        while len(self._done) < self._sent and loop.time() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return self._figures(time.perf_counter() - loop.time() + began, seconds)

    async def _open(self) -> None:
        await self._loop.create_connection(lambda: Connection(self), "127.0.0.1", self._orders["port"])

    def freed(self, connection: Connection) -> None:
        if self._waiting:
            connection.send(*self._waiting.popleft())
        else:
            # The one that was free longest: every connection is in use, as those of many callers are.
            self._free.append(connection)

    def closed(self, connection: Connection) -> None:
        """The server closed it: a caller opens another."""
        if connection in self._free:
            self._free.remove(connection)
        self._opening += 1
        task = self._loop.create_task(self._reopen())
        task.add_done_callback(lambda done: done.exception())

    async def _reopen(self) -> None:
        for _ in range(200):
            try:
                await self._open()
                return
            except OSError:
                await asyncio.sleep(0.02)

    def ended(self, begun: float, status: int, target: int, answer: bytes) -> None:
        version = ""
        if self._versioned and status == 200:
            at = answer.find(b'"version":"') + 11
            version = answer[at : answer.find(b'"', at)].decode()
        self._done.append((begun, time.perf_counter() - begun, status, target, version))

    def _figures(self, began: float, seconds: float) -> Figures:
        good = sorted(ms for _, ms, status, *_ in self._done if status == 200)
        late = sorted(self._late)
        figures = Figures(
            sent=self._sent, answered=sum(1 for done in self._done if done[2]), twice=self.twice
        )
        figures.lost = figures.sent - figures.answered
        figures.rps = round(len(good) / seconds, 1)
        figures.statuses = {str(k): n for k, n in Counter(done[2] for done in self._done).items()}
        figures.versions = dict(Counter(done[4] for done in self._done if done[4]))
        if good:
            figures.p50_ms, figures.p99_ms = percentile(good, 0.5), percentile(good, 0.99)
            figures.max_ms = good[-1] * 1e3
        figures.late_p99_ms = percentile(late, 0.99)
        for target in range(len(self._payloads)):
            mine = sorted(done[1] for done in self._done if done[3] == target and done[2] == 200)
            figures.by_target.append(percentile(mine, 0.99) if mine else -1.0)
        if self._orders.get("events"):
            figures.events = [
                [round(at - began, 4), round(took * 1e3, 3), status, version]
                for at, took, status, _, version in self._done
            ]
        return figures


def percentile(ordered: Sequence[float], share: float) -> float:
    """In ms, of sorted seconds."""
    return round(1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 4) if ordered else 0.0


def start(port: int, targets: Sequence[Target], **orders: Any) -> subprocess.Popen[str]:
    """Begin a run: `rate`, `seconds`, `connections`; maybe `seed`, `versions`, `events`, `weights`.

    `behind` has the generator take only what all other processes leave of the processors: for callers that
    are not measured and, in production, run on other machines.
    """
    text = json.dumps({"port": port, "targets": [asdict(target) for target in targets], **orders})
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.lifecycle_phases.open_loop"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.close()
    process.stdin = None
    return process


def step_behind() -> None:
    """Run this process only while no other process needs the processor."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def stop(process: subprocess.Popen[str]) -> Figures:
    """End a run early: nothing more is sent, what is under way is waited for."""
    process.terminate()
    return result(process)


def result(process: subprocess.Popen[str]) -> Figures:
    """Wait for a run's end."""
    told, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"the load generator ended with {process.returncode}")
    return Figures(**json.loads(told))


def measure(port: int, targets: Sequence[Target], **orders: Any) -> Figures:
    """A whole run."""
    return result(start(port, targets, **orders))


def main() -> None:
    """Entry of the process."""
    import gc

    import uvloop

    orders = json.loads(sys.stdin.read())

    async def run() -> Figures:
        going = Run(orders)
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGTERM, lambda: setattr(going, "stopped", True)
        )
        return await going.run()

    gc.disable()
    if orders.get("behind"):
        step_behind()
    else:
        want_slices(SHORT_S)  # what it measures must be the server's waiting, not its own
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(asdict(runner.run(run()))))


if __name__ == "__main__":
    main()
