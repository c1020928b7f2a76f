"""kill -9 at random moments while numbered events flow through a broker and over HTTP: lost? applied twice?

What is killed is started again immediately, as its supervisor would: the consumer, the server with all its
processes, its writer, a worker, the broker. At the end the log is read by a process that knows nothing, and
the edges that are in the graph are counted against what was acknowledged to the producers.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.lifecycle_phases.server import wait_until
from benchmarks.server_process import free_port
from benchmarks.stream_phases.place import Live, Place
from benchmarks.stream_phases.producers import Producer, ToBroker, ToServer, times_there
from benchmarks.stream_phases.served import BROKERS, TOPIC, Process, consumer_words, is_writer
from hopline_brokers.stream.links import writer_listens
from hopline_brokers.testing.servers import BrokerServer
from packages.brokers.tests.servers import broker_server

KINDS = ("consumer", "server", "writer", "worker", "broker")
#: Between two kills, seconds at random.
_PAUSE_S = (0.3, 2.0)
_BACK_S = 90.0
_SNAPSHOT_BYTES = 500_000


def measure(place: Place, scratch: Path, broker: str, kills: int, seed: int = 11) -> dict[str, Any]:
    """crash: kills, lost, duplicated, and what happened."""
    dice = random.Random(seed)
    folder = scratch / f"{broker}.live"
    with broker_server(BROKERS[broker]) as kept:
        asyncio.run(kept.make(TOPIC))
        victims = Victims(place, scratch, folder, kept)
        producers: list[Producer] = [
            ToBroker(kept.address(TOPIC), place.num_nodes),
            ToServer(victims.port, place.num_nodes),
        ]
        try:
            victims.start()
            for producer in producers:
                producer.start()
            order = [
                kind for _ in range(-(-kills // len(KINDS))) for kind in dice.sample(KINDS, len(KINDS))
            ]
            for kind in order[:kills]:
                if dice.random() < 0.5:  # the others meet what is still being started
                    victims.until_back()
                end = time.monotonic() + dice.uniform(*_PAUSE_S)
                while (left_s := end - time.monotonic()) > 0:
                    time.sleep(min(left_s, 0.1))
                    victims.tend()
                victims.kill(kind)
            victims.until_back()
            for producer in producers:
                producer.stop()
            victims.finish()
        finally:
            victims.end()
    numbers = np.concatenate([producer.numbers for producer in producers])
    live = Live(place, folder)  # reads the log
    with live.view() as view:
        after = view.snapshot()
    there = times_there(live.graph, after, numbers)
    extra = after.num_edges - live.graph.num_edges - len(numbers)
    live.close()
    return {
        "kills": len(victims.killed),
        "lost": int((there == 0).sum()),
        "duplicated": int((there - 1)[there > 1].sum()),
        # Edges that were never reported: with none lost and none twice there are none.
        "unknown": int(extra - (there - 1).sum()),
        "acknowledged": len(numbers),
        "acknowledged_by": {type(producer).__name__: producer.acknowledged for producer in producers},
        "tries_again": {type(producer).__name__: producer.tries for producer in producers},
        "killed": victims.killed,
        "log_readable": True,
        "versions": live.keeper.sequence,
        "problems": [producer.problem for producer in producers if producer.problem],
    }


class Victims:
    """The processes."""

    def __init__(self, place: Place, scratch: Path, folder: Path, broker: BrokerServer) -> None:
        self.port = free_port()
        self.killed: list[str] = []
        self._broker = broker
        served = ["serve", "--repository", str(place.repository), "--graph", str(place.graph), "--live"]
        served += ["--port", str(self.port), "--grpc-port", "-1"]
        settings = {
            "live.folder": folder,
            "live.spare_edges": 1_000_000,
            "live.snapshot_bytes": _SNAPSHOT_BYTES,  # so that some kills meet one
            "server.workers": 2,
            "log.level": "warning",
        }
        served += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        self.server = Process(served, scratch / "server.log")
        words = consumer_words(place.graph, folder, broker.address(TOPIC))
        self._socket = folder / "writer.sock"
        self.consumer = Process(words, scratch / "consumer.log")
        self._once = Process([*words, "--once"], scratch / "once.log")

    def start(self) -> None:
        """All of them."""
        self.server.start()
        self.until_back()

    def kill(self, kind: str) -> None:
        """kill -9, and start again immediately what must be started."""
        victims = {"consumer": self.consumer, "server": self.server}
        if kind == "broker":
            self._broker.kill()
            self._broker.start()
        elif kind in victims:
            victims[kind].kill()
        elif (pid := self._child(writer=kind == "writer")) is not None:
            os.kill(pid, signal.SIGKILL)
        else:  # the server is being started, and has none yet
            kind = f"no {kind}"
        self.killed.append(kind)
        self.tend()

    def tend(self) -> None:
        """Start what has ended: the server immediately, the consumer once it can reach a writer.

        A server that loses its writer before it was ever ready ends, and is started by its supervisor.
        """
        if self.server.process.poll() is not None:
            self.server.start()
        gone = not hasattr(self.consumer, "process") or self.consumer.process.poll() is not None
        if gone and writer_listens(self._socket):
            self.consumer.start()

    def until_back(self) -> None:
        """The server answers, its writer can be asked, the consumer runs."""

        def is_back() -> bool:
            self.tend()
            told = httpx.get(f"http://127.0.0.1:{self.port}/v1/graph", timeout=5).json()
            return told.get("writer") == "up" and self.consumer.process.poll() is None

        try:
            wait_until(is_back, _BACK_S, "the server after a kill")
        except TimeoutError as error:
            raise RuntimeError(f"{error}: {self.server.said}") from None

    def finish(self) -> None:
        """Have the consumer end in order, and another one take the rest."""
        self.consumer.end()
        self._once.start()
        if code := self._once.process.wait(_BACK_S):
            raise RuntimeError(f"the last consumer ended with {code}: {self._once.said}")
        self.server.end()

    def end(self) -> None:
        """Whatever is still there."""
        for process in (self._once, self.consumer, self.server):
            process.destroy()

    def _child(self, *, writer: bool) -> int | None:
        found = [pid for pid in self.server.children() if is_writer(pid) == writer]
        return found[0] if found else None
