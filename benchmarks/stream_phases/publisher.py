"""Publishes edge updates to a broker at a steady rate, one event a message, each with its id and time.

A separate process: SIGUSR1 makes it begin, pause and resume; SIGTERM stops it.

    python -m benchmarks.stream_phases.publisher < orders.json

prints one JSON object. What cannot be sent in time is sent late, never left out.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.stream_phases import worker
from benchmarks.stream_phases.place import EDGE, PLACES
from benchmarks.stream_phases.served import FAR_NICE
from benchmarks.stream_phases.updates import Updates
from hopline.brokers.base import Outgoing
from hopline.brokers.registry import open_sink
from hopline.graph import Graph

#: Seconds between two sends.
_EVERY_S = 0.01
_DRAWN = 10_000
#: Events that are drawn before the first one is sent: drawing them must not slow the sender.
_AHEAD = 400_000
_READY = "ready\n"


def start(place: str, address: str, rate: int, seed: int) -> subprocess.Popen[str]:
    """A publisher that pauses."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.stream_phases.publisher"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps({"place": place, "address": address, "rate": rate, "seed": seed}))
    process.stdin.close()
    process.stdin = None
    assert process.stdout is not None
    if process.stdout.readline() != _READY:
        raise RuntimeError(f"the publisher ended with {process.wait()}")
    return process


def toggle(process: subprocess.Popen[str]) -> None:
    """Begin, pause or resume."""
    process.send_signal(signal.SIGUSR1)


def stop(process: subprocess.Popen[str]) -> dict[str, Any]:
    """sent, updates_per_s, late_ms (the longest that an update was sent late)."""
    process.terminate()
    told, _ = process.communicate(timeout=30)
    if process.returncode:
        raise RuntimeError(f"the publisher ended with {process.returncode}")
    found: dict[str, Any] = json.loads(told.splitlines()[-1])
    return found


def events(place: str, seed: int) -> Iterator[str]:
    """Texts of events, but for the time, which comes first."""
    known = PLACES[place]
    updates = Updates(known, Graph.open(known.graph), seed)
    while True:
        edges = updates.edges(_DRAWN).edges[EDGE]
        columns = (edges.remove.tolist(), np.asarray(edges.src).tolist(), np.asarray(edges.dst).tolist())
        for remove, src, dst in zip(*columns, strict=True):
            op = "remove_edge" if remove else "add_edge"
            yield f',"op":"{op}","src":{src},"dst":{dst}}}'


async def publish(orders: dict[str, Any]) -> dict[str, Any]:
    """Publish until SIGTERM."""
    stopping, going = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        stopping.set()
        going.set()

    def go_or_pause() -> None:
        if going.is_set():
            going.clear()
        else:
            going.set()

    loop.add_signal_handler(signal.SIGTERM, end)
    loop.add_signal_handler(signal.SIGUSR1, go_or_pause)
    drawn = events(orders["place"], orders["seed"])
    texts = itertools.chain(list(itertools.islice(drawn, _AHEAD)), drawn)
    sink = open_sink(orders["address"], "publisher")
    await sink.open()
    prefix, rate = f"p{orders['seed']}", orders["rate"]
    sent, late_s, seconds = 0, 0.0, 0.0
    print(_READY, end="", flush=True)
    while True:
        await going.wait()
        if stopping.is_set():
            break
        began, before = time.monotonic(), sent
        while going.is_set() and not stopping.is_set():
            due = int((time.monotonic() - began) * rate) - (sent - before)
            if due > 0:
                late_s = max(late_s, due / rate)
                await sink.send(_messages(prefix, sent, due, texts))
                sent += due
            await asyncio.sleep(max(0.0, began + (sent - before) / rate + _EVERY_S - time.monotonic()))
        seconds += time.monotonic() - began
    await sink.close()
    return {
        "sent": sent,
        "updates_per_s": round(sent / seconds) if seconds else 0,
        "late_ms": round(1e3 * max(0.0, late_s - _EVERY_S), 1),
    }


def _messages(prefix: str, first: int, count: int, texts: Iterator[str]) -> list[Outgoing]:
    now_ms = time.time_ns() // 1_000_000
    heads = (f'{{"id":"{prefix}-{number}","at":{now_ms}' for number in range(first, first + count))
    return [Outgoing((head + text).encode()) for head, text in zip(heads, texts, strict=False)]


def main() -> None:
    """Entry of the process."""
    import uvloop

    os.nice(FAR_NICE)
    gc.disable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        worker.tell(runner.run(publish(worker.orders())))


if __name__ == "__main__":
    main()
