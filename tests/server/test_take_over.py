"""Who writes a live folder when several would: streams, servers, and one killed while it takes over."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from hopline.brokers.base import Outgoing
from hopline.brokers.registry import open_sink
from hopline.config.schema import Config
from hopline.graph.live.lock import read_owner
from hopline_brokers.stream.links import OwnWriter, SocketWriter, writer_listens
from packages.brokers.tests.servers import RedisServer, broker_server
from packages.brokers.tests.stream.test_process import BAD, Process, edges, payload
from tests.graph.live.keepers import numbered
from tests.server.start_rig import Started, until


def written_by(folder: Path, pid: int) -> Callable[[], bool]:
    """Whether a process of `pid` writes, and is to be talked to."""

    def is_so() -> bool:
        owner = read_owner(folder / "graph.live" / "writer.lock")
        return f"(process {pid})" in owner.run_by and writer_listens(folder / "graph.live" / "writer.sock")

    return is_so


class Followed:
    """A stream; what it logs is read as it comes."""

    def __init__(self, process: Any) -> None:
        self.process, self.log = process, ""
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for line in self.process.stderr:
            self.log += line.decode()

    async def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(self._reading, 120)
        return int(await asyncio.wait_for(self.process.wait(), 120))


@contextlib.asynccontextmanager
async def stream(folder: Path, broker: RedisServer) -> AsyncIterator[Followed]:
    followed = Followed((await Process.start(folder, broker, "--max-batch", 7)).process)
    try:
        yield followed
    finally:
        if followed.process.returncode is None:
            followed.process.kill()
            await followed.process.wait()


async def test_a_server_takes_over_from_a_stream_that_then_follows_whoever_writes(
    folder: Path, start: Callable[..., Started]
) -> None:
    """A server is killed in the middle of it, one takes over, one ends, one is there again."""
    sent = 0

    async def produce(producing: asyncio.Event) -> None:
        nonlocal sent
        sink = open_sink(broker.address("edges"), "test")
        await sink.open()
        while producing.is_set():
            await sink.send([Outgoing(payload(i)) for i in range(sent, sent + 5)])
            sent += 5
            await asyncio.sleep(0.02)
        await sink.close()

    producing = asyncio.Event()
    producing.set()
    with broker_server(RedisServer) as broker:
        async with stream(folder, broker) as followed:
            producer = asyncio.ensure_future(produce(producing))
            await until(written_by(folder, followed.process.pid))
            killed = start()
            await until(lambda: "finishing accepted batches" in followed.log)
            killed.process.kill()
            taker = start()
            await until(taker.is_ready)
            assert written_by(folder, taker.process.pid)()
            await until(lambda: "continuing as its client" in followed.log)
            taker.process.terminate()
            assert await asyncio.to_thread(taker.ended) == 0
            last = start()
            await until(last.is_ready)
            producing.clear()
            await producer
            assert await followed.end() == 0, followed.log
            last.process.terminate()
            assert await asyncio.to_thread(last.ended) == 0
            code, log = await (await Process.start(folder, broker, "--once")).end()
            assert code == 0, log
    found, _ = edges(folder)
    assert found == sorted(set(range(sent)) - BAD)


def stream_settings(folder: Path) -> Config:
    return Config().replace(graph__path=folder / "graph", live__spare_edges=100_000)


@pytest.mark.release
async def test_a_stream_whose_successor_never_comes_writes_again(folder: Path) -> None:
    config = stream_settings(folder)
    writer = SocketWriter(folder / "graph.live" / "writer.sock")
    async with OwnWriter(config, alone_s=0.5) as own:
        first = own._child
        assert first is not None
        writer.start()
        await writer.standing()
        await writer.apply([numbered(0, 10)])
        await writer.step_aside()
        await until(lambda: own._child is not first)
        async with asyncio.timeout(120):
            (applied,) = await _again(writer, 12)
        assert applied.num_applied == 2
        await writer.close()


async def _again(writer: SocketWriter, count: int) -> Any:
    from hopline_brokers.stream.writer import ServiceWait

    return await ServiceWait().until_done("writer", lambda: writer.apply([numbered(0, count)]))


async def test_two_streams_have_one_writer(folder: Path) -> None:
    config = stream_settings(folder)
    async with OwnWriter(config), OwnWriter(config) as second:
        assert second._child is not None
        assert await asyncio.wait_for(second._child.wait(), 120) == 4


@pytest.mark.release
async def test_another_servers_writer_stays_and_is_named(
    folder: Path, start: Callable[..., Started]
) -> None:
    first = start()
    await until(first.is_ready)
    second = start(live__stand_by_s=0.3)
    assert await asyncio.to_thread(second.ended) == 1
    owner = read_owner(folder / "graph.live" / "writer.lock")
    assert f"process {owner.pid} on " in second.text
    assert f"run by hopline serve (process {first.process.pid})" in second.text
    assert "did not end within 0.3 s" in second.text
    assert "standing by" in second.text
    assert not second.out
    patient = start(live__stand_by_s=0)
    await until(lambda: "standing by" in patient.text)
    first.process.terminate()
    assert await asyncio.to_thread(first.ended) == 0
    await until(patient.is_ready)
    patient.process.terminate()
    assert await asyncio.to_thread(patient.ended) == 0
    assert "Traceback" not in patient.text
