"""Open-loop requests at a steady rate until SIGTERM: `python -m benchmarks.fleet_phases.steady_load`.

Writes a line for each request that ended: monotonic seconds, status (0: no answer), version, milliseconds
since it was due.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.fleet_phases.network import process

_VERSION = re.compile(rb'"version": ?"([^"]*)"')
_PATIENCE_S = 15.0


@contextlib.contextmanager
def loaded(host: str, port: int, path: str, body: Any, rate: float, out: Path) -> Iterator[None]:
    """Requests meanwhile, from a separate process; all have ended at the end."""
    words = [sys.executable, "-m", "benchmarks.fleet_phases.steady_load", host, str(port), path]
    words += [json.dumps(body), str(rate), str(out)]
    with process(words, out.with_suffix(".log")) as running:
        yield
        running.send_signal(signal.SIGTERM)
        running.wait(30)


class Sender:
    """Connections that are used one request at a time."""

    def __init__(self, host: str, port: int, request: bytes) -> None:
        self._address = host, port
        self._request = request
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self) -> tuple[int, str]:
        """Status and version of one answer; status 0 without one."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                pair = self._free.pop() if self._free else await asyncio.open_connection(*self._address)
                reader, writer = pair
                writer.write(self._request)
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: *(\d+)", head)
                body = await reader.readexactly(int(length[1]) if length else 0)
        except (OSError, EOFError, asyncio.IncompleteReadError, TimeoutError):
            return 0, ""
        self._free.append(pair)
        version = _VERSION.search(body)
        return int(head[9:12]), version[1].decode() if version else ""


async def _run(sender: Sender, rate: float, out: Path) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    tasks: set[asyncio.Task[None]] = set()
    with out.open("w") as file:

        async def one(due: float) -> None:
            status, version = await sender.ask()
            ms = (loop.time() - due) * 1e3
            print(f"{time.monotonic():.6f} {status} {version} {ms:.2f}", file=file, flush=True)

        began, number = loop.time(), 0
        while not stop.is_set():
            number += 1
            due = began + number / rate
            await asyncio.sleep(max(0.0, due - loop.time()))
            task = asyncio.ensure_future(one(due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("host", "port", "path", "body", "rate", "out"):
        parser.add_argument(name)
    asked = parser.parse_args()
    body = asked.body.encode()
    head = f"POST {asked.path} HTTP/1.1\r\nHost: fleet\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    asyncio.run(_run(Sender(asked.host, int(asked.port), request), float(asked.rate), Path(asked.out)))


if __name__ == "__main__":
    main()
