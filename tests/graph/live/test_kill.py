"""kill -9 at random moments: all that was acknowledged is in the graph, once, and the log is readable."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

from hopline.graph import Graph
from tests.graph.live.keepers import SOURCE, Kept, base_graph

KILLS = 25


def write(folder: Path, base: Path, seed: int, told: Connection) -> None:
    """The child: go on where the graph is, without end. Says what is acknowledged."""
    rng = random.Random(seed)
    kept = Kept(folder, Graph.open(base), spare=400_000, segment_bytes=30_000, verify=False)
    at = kept.keeper.positions.get(SOURCE, 0)
    while True:
        begin = max(0, at - rng.randrange(50))  # a broker delivers some of them again
        at = max(at, begin + rng.choice((1, 10, 200)))
        kept.send(begin, at)
        told.send(at)
        if rng.random() < 0.05:
            kept.snapshot()


def test_nothing_acknowledged_is_lost_and_nothing_is_there_twice(tmp_path: Path) -> None:
    base = base_graph().save(tmp_path / "graph")
    folder = tmp_path / "live"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.graph.live.warmed"])
    rng = random.Random(5)
    acknowledged = 0
    snapshots = set()
    for kill in range(KILLS):
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=write, args=(folder, tmp_path / "graph", kill, sender))
        child.start()
        sender.close()
        assert child.pid is not None
        if kill % 5:  # else at any moment of the start, too
            for _ in range(rng.randrange(1, 50)):
                acknowledged = max(acknowledged, receiver.recv())
        time.sleep(rng.random() * (0.02 if kill % 5 else 0.05))
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        with contextlib.suppress(EOFError):
            while True:
                acknowledged = max(acknowledged, receiver.recv())
        receiver.close()
        kept = Kept(folder, base, spare=400_000, segment_bytes=30_000)
        found = kept.numbers
        assert found == list(range(len(found))), f"after kill {kill}"
        assert len(found) >= acknowledged, f"after kill {kill}"
        assert kept.keeper.positions.get(SOURCE, 0) == len(found)
        snapshots |= {entry.sequence for entry in kept.home.snapshots}
        kept.close()
    assert acknowledged > 100
    assert len(snapshots) > 1
