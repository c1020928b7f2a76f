"""Real writer processes: killed, relieved, told to end."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from hopline.errors import WriterUnavailable
from hopline.graph import Graph
from hopline.graph.live.changes import Changes
from hopline.graph.live.memory import LiveMemory
from hopline.graph.live.view import LiveView
from hopline.live.link import WriterLink
from hopline.live.process import ENTRY, READY, WriterOrders
from hopline.process.child import command
from tests.graph.live.keepers import SOURCE, Kept, base_graph, numbered, numbers_in


class Writer:
    """A writer process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, orders: WriterOrders) -> Writer:
        pass_fds = (orders.memory_fd,) if orders.memory_fd >= 0 else ()
        process = await asyncio.create_subprocess_exec(
            *command(ENTRY),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=pass_fds,
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(orders) + b"\n")
        return cls(process)

    async def ready(self) -> str:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), 30)
        assert READY.encode() in line, await self.end()
        return line.decode()

    async def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Exit code and log."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        _, log = await asyncio.wait_for(self.process.communicate(), 30)
        assert self.process.returncode is not None
        return self.process.returncode, log.decode()


@pytest.fixture
def orders(tmp_path: Path) -> WriterOrders:
    base_graph().save(tmp_path / "graph")
    return WriterOrders(
        str(tmp_path / "graph"),
        str(tmp_path / "live"),
        str(tmp_path / "socket"),
        segment_bytes=50_000,
        snapshot_bytes=20_000,
        spare_edges=400_000,
        verify=False,
    )


@pytest.fixture
async def link(orders: WriterOrders) -> AsyncIterator[WriterLink]:
    made = WriterLink(Path(orders.socket), "test", patience_s=30.0)
    made.start()
    yield made
    await made.close()


def kept_numbers(orders: WriterOrders) -> list[int]:
    kept = Kept(Path(orders.folder), Graph.open(orders.graph), spare=400_000)
    found = kept.numbers
    kept.close()
    return found


async def test_a_writer_serves_until_its_stop_and_the_next_continues(
    orders: WriterOrders, link: WriterLink
) -> None:
    writer = await Writer.start(orders)
    assert "(version 0)" in await writer.ready()
    (applied,) = await link.apply([numbered(0, 10)])
    assert (applied.sequence, applied.num_applied) == (1, 10)
    assert (await link.snapshot()).snapshot == 1
    assert (await writer.end())[0] == 0
    assert not Path(orders.socket).exists()
    writer = await Writer.start(orders)
    assert "(version 1)" in await writer.ready()
    (applied,) = await link.apply([numbered(5, 15)])
    assert (applied.num_applied, list(applied.duplicates)) == (5, list(range(5)))
    assert (await link.status()).positions == {SOURCE: 15}
    assert (await writer.end())[0] == 0
    assert kept_numbers(orders) == list(range(15))


async def test_readers_see_through_shared_memory_what_was_acknowledged(
    orders: WriterOrders, link: WriterLink
) -> None:
    fd = os.memfd_create("live-test")
    try:
        orders = msgspec.structs.replace(orders, memory_fd=fd)
        writer = await Writer.start(orders)
        await writer.ready()
        memory = LiveMemory.attach(fd)
        assert memory is not None
        base = Graph.open(orders.graph)
        view = LiveView(memory, base.schema, {name: nodes.ids for name, nodes in base.nodes.items()})
        await link.apply([numbered(0, 10)])
        assert numbers_in(view.snapshot()) == list(range(10))
        await writer.end(signal.SIGKILL)
        assert numbers_in(view.snapshot()) == list(range(10))  # while there is no writer, too
        writer = await Writer.start(orders)
        assert "(version 1)" in await writer.ready()
        await link.apply([numbered(10, 20)])
        assert numbers_in(view.snapshot()) == list(range(20))
        assert (await writer.end())[0] == 0
    finally:
        os.close(fd)


async def test_a_second_writer_stands_by_and_takes_over(orders: WriterOrders, link: WriterLink) -> None:
    first = await Writer.start(orders)
    await first.ready()
    second = await Writer.start(orders)
    assert second.process.stderr is not None
    async for line in second.process.stderr:
        if b"standing by" in line:
            assert f"process {first.process.pid} on".encode() in line
            break
    await link.apply([numbered(0, 10)])
    await first.end(signal.SIGKILL)
    assert "(version 1)" in await second.ready()
    (applied,) = await link.apply([numbered(0, 12)])
    assert applied.num_applied == 2
    assert (await second.end())[0] == 0


async def test_one_that_stands_by_ends_on_request(orders: WriterOrders) -> None:
    first = await Writer.start(orders)
    await first.ready()
    second = await Writer.start(orders)
    assert second.process.stderr is not None
    assert b"standing by" in await second.process.stderr.readline()
    assert (await second.end())[0] == 0
    assert (await first.end())[0] == 0


async def test_a_writer_does_not_outlive_who_started_it(orders: WriterOrders) -> None:
    writer = await Writer.start(orders)
    await writer.ready()
    assert writer.process.stdin is not None
    writer.process.stdin.close()
    assert await asyncio.wait_for(writer.process.wait(), 30) == 0
    await writer.end()


async def test_what_keeps_a_writer_from_starting_is_said(orders: WriterOrders) -> None:
    writer = await Writer.start(msgspec.structs.replace(orders, graph="/nowhere"))
    code = await asyncio.wait_for(writer.process.wait(), 30)
    _, log = await writer.end()
    assert code == 1
    assert "is this the folder of a graph?" in log
    assert "Traceback" not in log


@pytest.mark.release
async def test_kills_while_clients_send_lose_nothing_and_double_nothing(
    orders: WriterOrders, link: WriterLink
) -> None:
    """Two clients, each with a source of its own, send again what was not answered."""
    rng = random.Random(3)
    acknowledged = {0: 0, 1: 0}
    running = True

    async def send(client: int) -> None:
        at = 0
        while running:
            end = at + rng.choice((1, 20))
            numbers = np.arange(at, end) * 2 + client  # even ones, odd ones
            while True:
                try:
                    await link.apply([told_by(f"source/{client}", numbers, end)])
                    break
                except WriterUnavailable:
                    continue  # the same again, until it is answered
            at = acknowledged[client] = end

    senders = [asyncio.ensure_future(send(client)) for client in acknowledged]
    for _ in range(5):
        writer = await Writer.start(orders)
        await writer.ready()
        before = sum(acknowledged.values())
        for _ in range(400):
            await asyncio.sleep(0.005)
            if sum(acknowledged.values()) > before + rng.randrange(50, 500):
                break
        await writer.end(signal.SIGKILL)
    running = False
    writer = await Writer.start(orders)
    await writer.ready()
    await asyncio.gather(*senders)
    assert (await link.status()).positions == {f"source/{c}": at for c, at in acknowledged.items()}
    assert (await writer.end())[0] == 0
    wanted = [2 * i + client for client, at in acknowledged.items() for i in range(at)]
    assert kept_numbers(orders) == sorted(wanted)
    assert min(acknowledged.values()) > 50


def told_by(source: str, numbers: np.ndarray, position: int) -> Changes:
    """Events of these numbers, from a source that goes on at a position."""
    batch = numbered(0, len(numbers))
    edges = {key: dataclasses.replace(each, time=numbers) for key, each in batch.edges.items()}
    ids = [f"event-{i}" for i in numbers]
    return dataclasses.replace(batch, edges=edges, event_ids=ids, positions={source: position})
