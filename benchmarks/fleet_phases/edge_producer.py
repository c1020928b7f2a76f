"""Adds edges at a steady rate until SIGTERM: `python -m benchmarks.fleet_phases.edge_producer`.

One edge a message. Prints how many were sent, and the seconds that it took.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import time

import numpy as np

from hopline.brokers.base import Outgoing
from hopline.brokers.registry import open_sink

_TICK_S = 0.01


async def _run(address: str, rate: float, num_nodes: int) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    sink = open_sink(address, "address")
    await sink.open()
    rng = np.random.default_rng(11)
    began, sent = time.monotonic(), 0
    print("ready", flush=True)
    while not stop.is_set():
        due = int(rate * (time.monotonic() - began)) - sent
        if due > 0:
            ends = rng.integers(0, num_nodes, (due, 2)).tolist()
            await sink.send([Outgoing(b'{"op":"add_edge","src":%d,"dst":%d}' % (s, d)) for s, d in ends])
            sent += due
        await asyncio.sleep(_TICK_S)
    await sink.close()
    print(sent, time.monotonic() - began, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("address", "rate", "num_nodes"):
        parser.add_argument(name)
    asked = parser.parse_args()
    asyncio.run(_run(asked.address, float(asked.rate), int(asked.num_nodes)))


if __name__ == "__main__":
    main()
