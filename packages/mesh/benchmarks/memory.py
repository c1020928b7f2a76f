"""A week of snapshots through the whole pipeline in one process: whether its memory stays constant.

40,320 intervals of 15 s of a simulated mesh with a daily load pattern, rollouts, scalings and services that
come and go: step, board, and state (checkpoints and history on disk). There are no faults; incidents are
false alarms. Memory is the process's resident set, read after each simulated half day;
`growth_per_day_bytes` is the slope after the first day. Six hours of the mesh are simulated in advance and
replayed repeatedly with new times, so that the simulator's memory is not counted. Quick: a week of 12
services; otherwise of 60. The first day, in which tables grow to their size, counts as the start.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from hopline_mesh.changes import Context
from hopline_mesh.detect import DetectorSettings, MeshDetector
from hopline_mesh.out.alerts import Alerts
from hopline_mesh.out.board import Board
from hopline_mesh.schema import Schema
from hopline_mesh.simulate import MeshPlan, Operation, simulate
from hopline_mesh.snapshot import Gap, Snapshot
from hopline_mesh.state import StateFolder
from hopline_mesh.state.keeper import Keeper
from hopline_mesh.watch.judge import Judge
from hopline_mesh.watch.loop import Watch
from hopline_mesh.watch.ticks import Tick

INTERVAL_S = 15.0
DAY = int(86_400 / INTERVAL_S)
DAYS = 7


class Player:
    """Replays a recorded mesh in a loop, without a visible jump, as start and end are both normal times."""

    def __init__(self, services: int, hours: float = 6.0) -> None:
        operations = (
            Operation("rollout", 3600.0),
            Operation("scale", 7200.0),
            Operation("drain", 10_800.0),
            Operation("add", 14_400.0),
            Operation("remove", 18_000.0),
        )
        plan = MeshPlan(services=services, hours=hours, daily=0.0, operations=operations)
        self._recorded = list(simulate(plan, 1))
        self._began_s = self._recorded[0][0].time_s
        self.number = 0

    @property
    def recorded(self) -> list[tuple[Snapshot, Context]]:
        """The replayed mesh."""
        return self._recorded

    @property
    def schema(self) -> Schema:
        """Its columns."""
        return self._recorded[0][0].schema

    async def collect(self, now_s: float) -> Snapshot:
        """The next interval, with separate arrays as from a collector."""
        found, _ = self._recorded[self.number % len(self._recorded)]
        self.number += 1
        return dataclasses.replace(
            found,
            time_s=now_s,
            node_features=found.node_features.copy(),
            edge_features=found.edge_features.copy(),
        )

    def context(self, now_s: float) -> tuple[Context, tuple[Gap, ...]]:
        """The planned changes of that time, moved to the current time."""
        snapshot, context = self._recorded[(self.number - 1) % len(self._recorded)]
        by = now_s - snapshot.time_s
        moved = tuple(
            _moved(each, by)
            for each in context.changes
            if each.end_s is None or now_s - by - each.end_s < 600
        )
        return Context(changes=moved), ()


def measure(quick: bool) -> dict[str, Any]:
    """The results by name."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # as in a pod: a disk would be too slow
    with tempfile.TemporaryDirectory(prefix="hopline-mesh-", dir=memory) as folder:
        return {"memory": asyncio.run(_week(Path(folder), 12 if quick else 60))}


async def _week(folder: Path, services: int) -> dict[str, Any]:
    player = Player(services)
    settings = DetectorSettings()
    detector = MeshDetector(settings)
    first = player.recorded[: DAY // 8]
    detector.fit([snapshot for snapshot, _ in first], [context for _, context in first])
    board = Board(interval_s=INTERVAL_S)
    alerts = Alerts([], interval_s=INTERVAL_S)
    keeper = Keeper(StateFolder(folder / "state", 64 * 2**20, 6 * 3600.0))
    judge = Judge(
        detector, keeper, shape={}, checkpoint_s=0.5, shown=board.export
    )  # a week takes minutes: checkpoints are written at the highest rate that the clock allows
    watch = Watch(judge, player, player.context, board, alerts, keeper, longest_s=60.0)
    start_s = first[-1][0].time_s
    seen: list[tuple[float, int]] = []
    for number in range(1, DAYS * DAY + 1):
        time_s = start_s + number * INTERVAL_S
        await watch.interval(Tick(time_s, time_s))
        if number % 8 == 0:
            await asyncio.to_thread(keeper.settle, 60.0)
        if number % (DAY // 2) == 0:
            gc.collect()
            seen.append((number / DAY, _resident()))
            print(f"  day {number / DAY:.1f}: {seen[-1][1] / 2**20:.1f} MiB", file=sys.stderr, flush=True)
    await watch.close()
    later = np.array([each for each in seen if each[0] >= 1.0])
    slope = float(np.polyfit(later[:, 0], later[:, 1], 1)[0])
    return {
        "snapshots": DAYS * DAY,
        "services": services,
        "rss_start_bytes": int(later[0, 1]),
        "rss_end_bytes": int(later[-1, 1]),
        "growth_per_day_bytes": round(slope),
        "state_bytes": sum(file.stat().st_size for file in (folder / "state").iterdir()),
    }


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _moved(change: Any, by: float) -> Any:
    end_s = None if change.end_s is None else change.end_s + by
    return type(change)(change.kind, change.service, change.start_s + by, end_s, change.detail)
