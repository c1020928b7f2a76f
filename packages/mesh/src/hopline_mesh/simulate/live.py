"""A simulated mesh in real time: the mesh that `hopline mesh simulate` serves.

One thread steps the world; requests hold the same lock for a short time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from hopline.errors import BadRequest
from hopline_mesh.changes import Change, KubernetesTrouble
from hopline_mesh.simulate.cast import Cast
from hopline_mesh.simulate.cluster.log import Log
from hopline_mesh.simulate.cluster.mirror import Mirror
from hopline_mesh.simulate.exposition import render
from hopline_mesh.simulate.plan import Fault, MeshPlan, Operation
from hopline_mesh.simulate.traffic import Traffic
from hopline_mesh.simulate.world import World

#: Maximum step of the world in simulated seconds.
_LONGEST_STEP_S = 5.0
#: Seconds of the clock between steps.
_TICK_S = 0.5


class Live:
    """A world that follows the wall clock.

    Args:
        plan: of the mesh; its faults and operations happen at their simulated seconds after the start.
        speed: simulated seconds per second.
        per_pod: whether requests are counted by pod, as in a real mesh, or by service.
        clock: Unix seconds.

    Attributes:
        log: the objects of the Kubernetes API.
    """

    def __init__(
        self, plan: MeshPlan, seed: int, speed: float = 1.0,
        clock: Callable[[], float] = time.time, per_pod: bool = True,
    ) -> None:  # fmt: skip
        if not 0.01 <= speed <= 1000.0:
            raise BadRequest(f"the speed is {speed}, not within 0.01 to 1000")
        self._clock, self._speed = clock, speed
        self._plan = plan = replace(plan, start_s=clock())
        self._world = world = World(plan, seed)
        self._rng = np.random.default_rng([seed, 4])
        self._traffic = Traffic(world, np.random.default_rng([seed, 3]), per_pod=per_pod)
        self.log = Log()
        self._mirror = Mirror(world, self.log, self.wall)
        self._lock = threading.RLock()
        self._page = b""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        while world.now_s < plan.start_s - 1e-6:
            world.step(min(_LONGEST_STEP_S, plan.start_s - world.now_s))
        world.pods.cpu_s[:] = 0.0
        self._mirror.update()

    def wall(self, simulated_s: float) -> float:
        """Convert a simulated time to wall-clock time."""
        return self._plan.start_s + (simulated_s - self._plan.start_s) / self._speed

    def start(self) -> None:
        """Run on a thread until `close`."""
        self._thread = threading.Thread(target=self._run, name="mesh-simulate", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10.0)
        self.log.close()

    def catch_up(self) -> None:
        """Step until the simulated time is that of the clock; time never goes back and none is skipped."""
        target_s = self._plan.start_s + (self._clock() - self._plan.start_s) * self._speed
        while (left_s := target_s - self._world.now_s) > 1e-6:
            with self._lock:
                step_s = min(_LONGEST_STEP_S, left_s)
                self._world.step(step_s)
                self._traffic.count(step_s)
                self._page = b""
            if self._stop.is_set():
                break
        with self._lock:
            self._mirror.update()

    def metrics(self) -> bytes | None:
        """Return the page for Prometheus; rendered again only after a step.

        Returns: None for a scrape that must fail, for the planned share of scrapes.
        """
        with self._lock:
            if self._plan.missing and self._rng.random() < self._plan.missing:
                return None
            if not self._page:
                self._page = render(self._world, self._traffic)
            return self._page

    def begin(self, fault: Fault) -> tuple[int, Fault]:
        """Begin a fault now; if the service or caller is "", one is chosen.

        Returns: its number, and the fault with its names and Unix time.

        Raises:
            ConfigError: no such service or call path.
        """
        with self._lock:
            found = replace(self._cast().of_fault(fault), start_s=self._world.now_s)
            return self._world.harm.begin(found, self._world.now_s), found

    def end(self, number: int) -> Fault:
        """End a fault now.

        Raises:
            BadRequest: no such fault is active.
        """
        with self._lock:
            harm = self._world.harm
            if number not in harm.active:
                raise BadRequest(f"no fault {number} is active")
            fault = harm.active[number].fault
            harm.end(number, self._world.now_s)
            return fault

    def operate(self, operation: Operation) -> Operation:
        """Begin a planned change now; if the service is "", one is chosen.

        Returns: the change with its names and time.

        Raises:
            ConfigError: no such service.
            BadRequest: the service cannot be changed in that way.
        """
        with self._lock:
            if operation.kind in ("add", "remove") and not operation.service:
                operation = replace(operation, service=self._spare(running=operation.kind == "remove"))
            found = replace(self._cast().of_operation(operation), start_s=self._world.now_s)
            self._world.fleet.operate(found, self._world.now_s)
            self._mirror.update()
            return found

    def state(self) -> dict[str, Any]:
        """Return the state, for people and tests; times are those of the wall clock."""
        with self._lock:
            world, flow, topology = self._world, self._world.flow, self._world.topology
            context = world.journal.context(world.now_s)
            services = [
                {
                    "service": name,
                    "behind": topology.services[at],
                    "reported": topology.reported[at],
                    "running": bool(world.fleet.running[at]),
                    "spare_of": topology.names[topology.spare_of[at]]
                    if topology.spare_of[at] >= 0
                    else None,
                    "pods": int(world.fleet.desired[at]),
                    "ready": int(world.ready[at]),
                    "request_rate": round(float(flow.arrived[at]), 3),
                    "error_share": round(float(flow.errors[at]), 6),
                    "mean_ms": round(float(flow.server.mean_ms[at]), 3),
                    "in_flight": round(float(flow.in_flight[at]), 3),
                    "cpu_cores": round(float(world.cpu_cores[at]), 4),
                }
                for at, name in enumerate(topology.names)
            ]
            paths = [
                {
                    "caller": topology.names[src],
                    "service": topology.names[dst],
                    "measured": bool(topology.sidecar[src]),
                    "request_rate": round(rate, 3),
                }
                for src, dst, rate in zip(
                    topology.src.tolist(), topology.dst.tolist(), flow.sent.tolist(), strict=True
                )
                if rate > 0.0
            ]
            return {
                "time_s": self.wall(world.now_s),
                "simulated_s": world.now_s - self._plan.start_s,
                "speed": self._speed,
                "services": services,
                "paths": paths,
                "faults": [
                    {
                        "id": number,
                        "kind": fault.kind,
                        "service": fault.service,
                        "caller": fault.caller or None,
                        "severity": fault.severity,
                        "start_s": self.wall(fault.start_s),
                        "end_s": self.wall(fault.end_s),
                    }
                    for number, (fault, _, _) in world.harm.active.items()
                ],
                "changes": _under_way(context.changes),
                "troubles": _under_way(context.troubles),
            }

    def _spare(self, *, running: bool) -> str:
        """Return the first spare service that runs, or that does not run; "" for none."""
        world = self._world
        fits = (world.topology.spare_of >= 0) & (world.fleet.running == running)
        return world.topology.names[int(np.argmax(fits))] if fits.any() else ""

    def _cast(self) -> Cast:
        return Cast(self._world.topology, self._plan.rate, self._rng)

    def _run(self) -> None:
        while not self._stop.wait(_TICK_S):
            self.catch_up()


def _under_way(items: tuple[Change, ...] | tuple[KubernetesTrouble, ...]) -> list[dict[str, str]]:
    return [
        {"kind": each.kind, "service": each.service, "detail": each.detail}
        for each in items
        if each.end_s is None
    ]
