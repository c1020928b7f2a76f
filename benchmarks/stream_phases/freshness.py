"""Delay from an event to answers, seen from outside: publish it, then query every worker until it shows.

An event sets the features of a node that no edge comes to, so that nothing else changes that node's answer.
The time runs from before the event is published until the first answer that shows it has come. In addition,
both workers are asked for the same node at the same time: where they name the same version of the graph,
the rows must be the same bits.

    python -m benchmarks.stream_phases.freshness < orders.json
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lifecycle_phases.open_loop import percentile
from benchmarks.stream_phases import worker
from benchmarks.workload import NUM_FEATURES
from hopline.brokers.base import Outgoing
from hopline.brokers.registry import open_sink

#: Seconds between two looks: so much later than it was does a change seem to show.
_LOOK_S = 0.004
_LOST_S = 10.0


class Caller:
    """A connection to one worker.

    Args:
        model: to ask.
    """

    def __init__(self, model: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._model = model
        self._reader, self._writer = reader, writer

    async def ask(self, node: int) -> tuple[str, str]:
        """The graph's version, and the row as text: the same text is the same bits."""
        body = f'{{"nodes":[{node}],"outputs":["embedding"]}}'
        head = f"POST /v1/models/{self._model}/score HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}"
        self._writer.write(f"{head}\r\n\r\n{body}".encode())
        found = await self._reader.readuntil(b"\r\n\r\n")
        length = int(found.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        answer = json.loads(await self._reader.readexactly(length))
        if b" 200 " not in found[:16]:
            raise RuntimeError(f"node {node}: {answer}")
        return answer["graph_version"], json.dumps(answer["outputs"]["embedding"][0])

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


async def callers(port: int, model: str, workers: Sequence[int]) -> list[Caller]:
    """One connection to each worker: the kernel chooses who accepts, so open some and look who has them."""
    found: dict[int, Caller] = {}
    for _ in range(200):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        caller = Caller(model, reader, writer)
        own = writer.get_extra_info("sockname")[1]
        await caller.ask(0)  # accepted by then
        pid = _owner(port, own, workers)
        if pid in found:
            caller.close()
        else:
            found[pid] = caller
        if len(found) == len(workers):
            return [found[pid] for pid in workers]
    raise RuntimeError(f"of the workers {workers} only {sorted(found)} accepted connections")


def _owner(port: int, peer: int, pids: Sequence[int]) -> int:
    """Process that has the server's end of a loopback connection, from /proc."""
    local, remote = (f"{socket.htonl(0x7F000001):08X}:{number:04X}" for number in (port, peer))
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    (inode,) = (row[9] for row in rows if (row[1], row[2]) == (local, remote))
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if descriptor.readlink().name == f"socket:[{inode}]":
                    return pid
            except OSError:
                continue  # closed meanwhile
    raise RuntimeError(f"no worker has socket {inode}")


async def follow(orders: dict[str, Any]) -> dict[str, Any]:
    """As many events as there is time for, one at a time."""
    asked = await callers(orders["port"], orders["model"], orders["workers"])
    sink = open_sink(orders["address"], "freshness")
    await sink.open()
    rng = np.random.default_rng(orders["seed"])
    quiet: list[int] = orders["isolated"]
    rows = {(at, node): (await caller.ask(node))[1] for at, caller in enumerate(asked) for node in quiet}
    seconds: list[float] = []
    compared = differing = number = 0
    end = time.monotonic() + orders["seconds"]
    while time.monotonic() < end:
        due = time.monotonic() + 1 / orders["rate"]
        node, number = quiet[number % len(quiet)], number + 1
        event = {
            "op": "set_features",
            "id": f"f{orders['seed']}-{number}",
            "at": time.time_ns() // 1_000_000,
            "node": node,
            "features": rng.standard_normal(NUM_FEATURES, np.float32).round(4).tolist(),
        }
        began = time.perf_counter()
        await sink.send([Outgoing(json.dumps(event).encode())])

        async def shown(at: int, node: int = node, began: float = began) -> float:
            while time.perf_counter() - began < _LOST_S:
                _, row = await asked[at].ask(node)
                if row != rows[at, node]:
                    rows[at, node] = row
                    return time.perf_counter() - began
                await asyncio.sleep(_LOOK_S)
            raise RuntimeError(f"a change of node {node} does not show after {_LOST_S:.0f} s")

        seconds += await asyncio.gather(*(shown(at) for at in range(len(asked))))
        for other in rng.integers(0, orders["num_nodes"], 4).tolist():
            (first, mine), *others = await asyncio.gather(*(caller.ask(other) for caller in asked))
            for version, row in others:
                if version == first:
                    compared, differing = compared + 1, differing + (row != mine)
        await asyncio.sleep(max(0.0, due - time.monotonic()))
    await sink.close()
    for caller in asked:
        caller.close()
    seconds.sort()
    return {
        "events": number,
        "p50_ms": percentile(seconds, 0.5),
        "p99_ms": percentile(seconds, 0.99),
        "max_ms": percentile(seconds, 1.0),
        "seconds": seconds,
        "compared": compared,
        "differing": differing,
    }


async def agree(orders: dict[str, Any]) -> dict[str, Any]:
    """Ask both workers for many nodes of a graph that does not change any more."""
    asked = await callers(orders["port"], orders["model"], orders["workers"])
    nodes = np.random.default_rng(9).integers(0, orders["num_nodes"], orders["nodes"]).tolist()
    found = [await asyncio.gather(*(caller.ask(node) for caller in asked)) for node in nodes]
    for caller in asked:
        caller.close()
    return {"compared": len(found), "differing": sum(len(set(answers)) > 1 for answers in found)}


def main() -> None:
    """Entry of the process."""
    wanted = worker.orders()
    worker.tell(asyncio.run(follow(wanted) if "address" in wanted else agree(wanted)))


if __name__ == "__main__":
    main()
