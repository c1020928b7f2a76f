#!/usr/bin/env python3
"""Make docs/images/incident.png: the page of a mesh watch during an incident.

A simulated mesh of 24 services runs normally, the watch learns, then the network between two services
becomes slow, while another service is rolled out. What is seen is what `hopline mesh watch` shows. Needs
Chromium. Arguments: the file to write, and --dark for the dark colours.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from hopline_mesh.detect import MeshDetector  # noqa: E402
from hopline_mesh.out.board import Board  # noqa: E402
from hopline_mesh.out.serve import Outputs  # noqa: E402
from hopline_mesh.settings import ServeSettings  # noqa: E402
from hopline_mesh.simulate.plan import Fault, MeshPlan, Operation  # noqa: E402
from hopline_mesh.simulate.simulation import simulate  # noqa: E402
from packages.mesh.tests.chromium import chromium  # noqa: E402

SERVICES, SEED = 24, 5
LEARN_H, FAULT_S = 2.0, 345.0
#: Of the board's clock after the last interval, in seconds.
LATE_S = 4.0


def published() -> Board:
    """The board in the middle of the incident."""
    hours = LEARN_H + 0.4
    start_s = time.time() - hours * 3600.0
    calm = simulate(MeshPlan(services=SERVICES, hours=hours, start_s=start_s), SEED)
    caller, callee = calm.paths[len(calm.paths) // 3]
    rolled_out = next(
        name for name in reversed(calm.services[: SERVICES // 2]) if name not in (caller, callee)
    )
    begin_s = hours * 3600.0 - FAULT_S
    plan = MeshPlan(
        services=SERVICES,
        hours=hours,
        start_s=start_s,
        faults=(Fault("edge_latency", begin_s, FAULT_S, callee, caller, 0.5),),
        operations=(Operation("rollout", begin_s + 240.0, rolled_out),),
    )
    intervals = list(simulate(plan, SEED))
    learned = int(LEARN_H * 3600.0 / plan.interval_s)
    detector = MeshDetector()
    detector.fit(
        [snapshot for snapshot, _ in intervals[:learned]], [each for _, each in intervals[:learned]]
    )
    board = Board(clock=lambda: intervals[-1][0].time_s + LATE_S)
    for snapshot, context in intervals[learned:]:
        board.publish(detector.step(snapshot, context), snapshot, detector.scores(snapshot))
    print(f"{caller} -> {callee} is slow since {FAULT_S:.0f} s")
    for record in board.open_incidents():
        print(
            "incident:",
            [(each.caller, each.service, round(each.score, 1)) for each in record.incident.suspects],
        )
    return board


async def photograph(file: Path, *, dark: bool) -> None:
    """Serve the page and take its picture."""
    outputs = Outputs(published(), ServeSettings(http_port=0, grpc_port=-1))
    await outputs.start()

    def take() -> None:
        with chromium() as tab:
            tab.size(1440, 1010, dark=dark)
            tab.open(outputs.url)
            tab.wait_for("document.querySelectorAll('figure.chart svg').length > 1")
            tab.screenshot(file)

    try:
        await asyncio.to_thread(take)
    finally:
        await outputs.stop()


def main() -> None:
    """Read the arguments, and make it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=ROOT / "docs/images/incident.png")
    parser.add_argument("--dark", action="store_true")
    given = parser.parse_args()
    given.file.parent.mkdir(parents=True, exist_ok=True)
    asyncio.run(photograph(given.file, dark=given.dark))
    print(f"{given.file}: {given.file.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
