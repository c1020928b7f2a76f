"""Servers that end before they were ready: told to, or since their graph's writer cannot start."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from hopline.config.schema import Config
from hopline_brokers.stream.links import OwnWriter
from tests.server.start_rig import Started, until
from tests.servers import running

#: Its workers wait for the graph.
_WAITS = "tests.server.waiting:Waits"


async def test_a_server_that_waits_for_its_graph_ends_on_request(
    folder: Path, start: Callable[..., Started]
) -> None:
    async with OwnWriter(Config().replace(graph__path=folder / "graph", live__spare_edges=100)) as own:
        assert own._child is not None
        os.kill(own._child.pid, signal.SIGSTOP)  # it holds the folder and answers nobody
        try:
            server = start(_WAITS, server__workers=2)
            await until(lambda: "standing by" in server.text)
            began = time.monotonic()
            server.process.terminate()
            assert await asyncio.to_thread(server.ended, 60) == 0
            assert time.monotonic() - began < 60  # less than two, where nothing else runs
        finally:
            os.kill(own._child.pid, signal.SIGCONT)


@pytest.mark.release
def test_a_server_says_that_it_is_ready_when_its_graph_is() -> None:
    with running("tests.server.late_graph:LateGraph") as server:
        assert httpx.get(f"{server.url}/readyz").status_code == 200


async def test_a_writer_that_fails_ends_a_server_whose_workers_wait_for_it(
    folder: Path, start: Callable[..., Started]
) -> None:
    (folder / "graph.live").mkdir()
    (folder / "graph.live" / "live.json").write_text("no manifest")
    server = start(_WAITS, server__workers=2)
    assert await asyncio.to_thread(server.ended, 60) == 1
    assert "live.json" in server.text
    assert "the writer of the live graph could not start" in server.text


async def test_a_wrong_stream_is_refused_by_its_name_before_anything_starts(
    start: Callable[..., Started],
) -> None:
    server = start(_WAITS, server__workers=2, live__stream="amqp://broker/edges")
    assert await asyncio.to_thread(server.ended, 60) == 1
    assert "live.stream: 'amqp://broker/edges' is not the address of a broker" in server.text
    assert "standing by" not in server.text
