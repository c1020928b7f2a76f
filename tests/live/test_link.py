"""Both ends of the socket in one loop: what is said, and what happens when one end misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopline import errors
from hopline.errors import BadRequest, ConfigError, GraphError, LogDamaged, LogFull, WriterUnavailable
from hopline.graph.live import codec
from hopline.graph.live.changes import Applied, Changes
from hopline.graph.schema import GraphSchema, NodeTypeSchema
from hopline.live import wire
from hopline.live.link import WriterLink
from hopline.live.server import WriterServer
from hopline.process.wire import Refusal, pack_error, unpack_error
from tests.live.fake import FakeKeeper

SCHEMA = GraphSchema({"node": NodeTypeSchema(4)}, {})


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Pair:
    """A server and one link to it."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.path = path
        self.keeper = FakeKeeper()
        self.clock = Clock()
        self.settings = {"snapshot_bytes": 0, "snapshot_s": 0.0} | settings
        self.server = self.make()
        self.link = WriterLink(path, "test", patience_s=0.3, timeout_s=5.0)

    def make(self) -> WriterServer:
        return WriterServer(self.keeper, "abc", SCHEMA, clock=self.clock, **self.settings)


@contextlib.asynccontextmanager
async def talking(path: Path, **settings: Any) -> AsyncIterator[Pair]:
    pair = Pair(path, **settings)
    await pair.server.listen(path)
    pair.link.start()
    try:
        yield pair
    finally:
        await pair.link.close()
        pair.keeper.gate.set()
        await pair.server.drain(2.0)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with talking(tmp_path / "socket") as made:
        yield made


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1_000_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come to that")


def batch(n: int, name: str = "", **positions: Any) -> Changes:
    return Changes({}, {}, n, [f"{name}{i}" for i in range(n)] if name else (), positions=positions)


async def test_a_batch_is_answered_when_it_is_applied(pair: Pair) -> None:
    assert await pair.link.apply([batch(3, "a", src=3)]) == [Applied(1, 3)]
    assert await pair.link.apply([batch(4, "a"), batch(2)]) == [Applied(2, 1, (0, 1, 2)), Applied(3, 2)]
    status = await pair.link.status()
    assert (status.sequence, status.positions, status.filled) == (3, {"src": 3}, 0.25)
    welcome = await pair.link.welcome()
    assert (welcome.lineage, welcome.graph_schema) == ("abc", SCHEMA)


async def test_batches_that_come_while_one_is_made_durable_are_one_step(pair: Pair) -> None:
    pair.keeper.gate.clear()
    calls = [asyncio.ensure_future(pair.link.apply([batch(1, "first")]))]
    await pair.link.welcome()
    await until(pair.keeper._own.locked)
    calls += [asyncio.ensure_future(pair.link.apply([batch(n)])) for n in range(2, 30)]
    await until(lambda: len(pair.server._waiting) == 28)
    pair.keeper.gate.set()
    found = await asyncio.gather(*calls)
    assert [each[0].num_applied for each in found] == list(range(1, 30))
    assert pair.keeper.steps == [[1], list(range(2, 30))]


async def test_what_is_refused_is_refused_as_the_same_error(pair: Pair) -> None:
    pair.keeper.refuse = LogFull("no room", retry_after_s=7.0)
    with pytest.raises(LogFull, match="no room") as info:
        await pair.link.apply([batch(1)])
    assert info.value.retry_after_s == 7.0
    pair.keeper.refuse = None
    assert await pair.link.apply([batch(1)]) == [Applied(1, 1)]


def test_every_error_crosses_the_socket() -> None:
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    for cls in classes:
        if issubclass(cls, errors.HoplineError):
            found = unpack_error(pack_error(cls("what was wrong")))
            assert type(found) is cls
            assert str(found) == "what was wrong"


async def test_one_bad_batch_does_not_hurt_those_of_the_same_step(pair: Pair) -> None:
    pair.keeper.refuse, pair.keeper.refuse_above = BadRequest("too long"), 50
    pair.keeper.gate.clear()
    calls = [asyncio.ensure_future(pair.link.apply([batch(1)]))]
    await until(pair.keeper._own.locked)
    calls += [asyncio.ensure_future(pair.link.apply([batch(n)])) for n in (2, 99, 3)]
    await until(lambda: len(pair.server._waiting) == 3)
    pair.keeper.gate.set()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(found.pop(2), BadRequest)
    assert [each[0].num_applied for each in found] == [1, 2, 3]  # type: ignore[index]


async def test_malformed_batches_are_refused_and_the_connection_goes_on(pair: Pair) -> None:
    await pair.link.welcome()
    message = wire.frame(wire.Apply(77, [b"HLch junk", codec.encode_changes(batch(1))]))
    with pytest.raises(BadRequest, match="truncated"):
        await pair.link._send(77, message, wire.Outcomes, 1.0)
    assert pair.keeper.steps == []
    assert await pair.link.apply([batch(1)]) == [Applied(1, 1)]


@pytest.mark.parametrize(
    "junk",
    [
        b"\xff\xff\xff\xff",
        b"\x05\x00\x00\x00hello",
        wire.frame(wire.Hello(wire.PROTOCOL, "x")) * 2,
        wire.frame(wire.Call(1, "status")),
        b"\x10\x00\x00\x00",
        b"\xa0\x86\x01\x00" + b"\x91" * 100_000,
    ],
)
async def test_a_client_that_talks_nonsense_is_cut_off_alone(pair: Pair, junk: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(pair.path)
    writer.write(junk)
    writer.write_eof()
    await asyncio.wait_for(reader.read(), 5)
    writer.close()
    assert await pair.link.apply([batch(1)]) == [Applied(1, 1)]


async def test_another_protocol_is_refused_with_advice(pair: Pair) -> None:
    reader, writer = await asyncio.open_unix_connection(pair.path)
    writer.write(wire.frame(wire.Hello(wire.PROTOCOL + 1, "newer")))
    answer = await wire.receive(reader, wire.from_writer)
    assert isinstance(answer, Refusal)
    assert "upgrade both" in answer.text
    writer.close()


async def test_without_a_writer_nothing_is_sent(tmp_path: Path) -> None:
    link = WriterLink(tmp_path / "nobody", "test", patience_s=0.05)
    link.start()
    with pytest.raises(WriterUnavailable, match="nothing was sent"):
        await link.apply([batch(1)])
    await link.close()


async def test_a_lost_answer_is_reported_and_the_link_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with talking(path) as pair:
        pair.keeper.gate.clear()
        call = asyncio.ensure_future(pair.link.apply([batch(2, "a")]))
        await until(pair.keeper._own.locked)
        for writer in pair.server._talks.values():  # as a kill would
            writer.transport.abort()
        with pytest.raises(WriterUnavailable, match="applied: send it again with the same event ids"):
            await call
        pair.keeper.gate.set()
        assert await pair.link.apply([batch(3, "a")]) == [Applied(2, 1, (0, 1))]


async def test_an_answer_that_does_not_come_in_time_is_reported(pair: Pair) -> None:
    pair.link._timeout_s = 0.05
    pair.keeper.gate.clear()
    with pytest.raises(WriterUnavailable, match=r"within 0\.05 s.*may or may not have been applied"):
        await pair.link.apply([batch(1)])


async def test_a_drain_answers_what_was_taken(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with talking(path) as pair:
        pair.keeper.gate.clear()
        calls = [asyncio.ensure_future(pair.link.apply([batch(1)])) for _ in range(3)]
        await pair.link.welcome()
        await until(pair.keeper._own.locked)
        drained = asyncio.ensure_future(pair.server.drain(5.0))
        await asyncio.sleep(0)
        pair.keeper.gate.set()
        found = await asyncio.gather(*calls, return_exceptions=True)
        await drained
        assert any(isinstance(each, list) for each in found)
        assert all(isinstance(each, list | WriterUnavailable) for each in found)
        assert not path.exists()


async def test_a_failure_that_nobody_foresaw_ends_the_writer(pair: Pair) -> None:
    pair.keeper.refuse = ZeroDivisionError("a bug")
    with pytest.raises(errors.Unavailable, match="the writer failed: ZeroDivisionError: a bug"):
        await pair.link.apply([batch(1)])
    assert pair.server.broken.is_set()


async def test_a_damaged_log_ends_the_writer(pair: Pair) -> None:
    pair.keeper.refuse = LogDamaged("gone")
    with pytest.raises(LogDamaged):
        await pair.link.apply([batch(1)])
    assert pair.server.broken.is_set()


async def test_a_snapshot_is_written_on_demand_by_size_and_by_age(tmp_path: Path) -> None:
    async with talking(tmp_path / "socket", snapshot_bytes=1000, snapshot_s=60.0) as pair:
        await pair.link.apply([batch(5)])
        assert (await pair.link.snapshot()).snapshot == 1
        await pair.link.apply([batch(5)])
        await pair.server.tick()
        assert pair.server._snapshot is not None
        await pair.server._snapshot
        assert pair.keeper.snapshot_sequence == 1
        pair.clock.now = 61.0
        await pair.server.tick()
        await pair.server._snapshot
        assert pair.keeper.snapshot_sequence == 2
        await pair.link.apply([batch(100)])
        await pair.server.tick()
        await pair.server._snapshot
        assert pair.keeper.snapshot_sequence == 3


async def test_a_snapshot_that_fails_is_reported_and_tried_again_later(tmp_path: Path) -> None:
    async with talking(tmp_path / "socket", snapshot_bytes=1000) as pair:
        pair.keeper.snapshot_problem = GraphError("disk is full")
        await pair.link.apply([batch(200)])
        with pytest.raises(GraphError, match="disk is full"):
            await pair.link.snapshot()
        assert (await pair.link.status()).problem == "disk is full"
        failed = pair.server._snapshot
        await pair.server.tick()
        assert pair.server._snapshot is failed  # not at once
        pair.keeper.snapshot_problem = None
        pair.clock.now = 11.0
        await pair.server.tick()
        assert pair.server._snapshot is not None
        await pair.server._snapshot
        assert pair.keeper.snapshot_sequence == 1
        assert (await pair.link.status()).problem == ""


@pytest.mark.parametrize("follows", [False, True])
async def test_a_graph_that_follows_a_stream_is_confirmed_by_its_reader_alone(
    tmp_path: Path, follows: bool
) -> None:
    """Also while no reader is connected: it may have stopped for good."""
    async with talking(tmp_path / "s") as pair:
        pair.keeper.follows = follows
        await pair.server.tick()
        assert pair.keeper.confirmed == (not follows)


async def test_affected_nodes_are_reported(pair: Pair) -> None:
    await pair.link.apply([batch(1), batch(1)])
    sequence, nodes = await pair.link.affected(0)
    assert (sequence, nodes["user"]) == (2, ["a", "ü"])
    np.testing.assert_array_equal(np.asarray(nodes["item"]), [0, 1])


async def test_the_socket_of_a_dead_writer_is_taken_and_that_of_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with talking(path) as pair:
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(ConfigError, match="another writer listens"):
            await pair.make().listen(path)
        assert await pair.link.apply([batch(1)]) == [Applied(1, 1)]
    path.write_text("a file")
    with pytest.raises(ConfigError, match="is no socket; name another path"):
        await pair.make().listen(path)


async def test_a_streams_own_writer_steps_aside_and_a_servers_does_not(tmp_path: Path) -> None:
    async with talking(tmp_path / "own", yields=True) as pair:
        await pair.link.step_aside()
        assert pair.server.relieved.is_set()
    async with talking(tmp_path / "servers") as pair:
        with pytest.raises(errors.Conflict, match="stops only with that server"):
            await pair.link.step_aside()
        assert not pair.server.relieved.is_set()
