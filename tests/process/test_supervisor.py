"""Children of all slots are kept alive, replaced one after another, and ended in order."""

import asyncio
import fcntl
import os
import signal
import struct
import termios
import time
from functools import partial
from pathlib import Path

import pytest

from hopline.process import supervisor as supervisor_module
from hopline.process.child import Child
from hopline.process.supervisor import Slot, Supervisor, beat_s
from hopline.retry import Backoff

ENTRIES = "tests.process.child_entries"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    monkeypatch.setattr(supervisor_module, "Backoff", lambda *_, **__: Backoff(0.01, 0.02, spread=0.0))


class Rig:
    """A supervisor of so many slots, whose children are recorded."""

    def __init__(self, num_slots, *, writer=False, hang_s=0.0):
        self.hang_s = hang_s
        self.started: dict[str, list[Child]] = {}
        self.ready = asyncio.Event()
        names = [f"worker {number}" for number in range(num_slots)]
        slots = [Slot(name, partial(self.start, name)) for name in names]
        if writer:
            slots.insert(0, Slot("the writer", partial(self.start, "the writer"), is_replaced=False))
        self.entry = "served"
        self.said: dict[str, str] = {}
        self.supervisor = Supervisor(slots, 20.0, self.on_ready, hang_s)

    def on_ready(self, said):
        self.said.update(said)
        self.ready.set()

    async def start(self, name):
        orders = {"beat_s": beat_s(self.hang_s)} if name != "the writer" else {}
        child = await Child.start(f"{ENTRIES}:{self.entry}", orders, name=name)
        self.started.setdefault(name, []).append(child)
        return child

    async def until(self, holds):
        async with asyncio.timeout(30):
            while not holds():  # noqa: ASYNC110 - other processes set no events
                await asyncio.sleep(0.005)


async def test_a_child_that_dies_is_started_again_and_all_end_in_order(caplog):
    rig = Rig(2)
    running = asyncio.ensure_future(rig.supervisor.run())
    await asyncio.wait_for(rig.ready.wait(), 30)
    assert rig.said == {"worker 0": "ready", "worker 1": "ready"}
    first = rig.started["worker 1"][0]
    os.kill(first.pid, signal.SIGKILL)
    await rig.until(lambda: len(rig.started["worker 1"]) == 2)
    again = rig.started["worker 1"][1]
    assert await again.wait_ready() is None
    rig.supervisor.stop()
    assert await asyncio.wait_for(running, 30) is True
    assert "worker 1 ended (signal 9, SIGKILL), restarting in 0.0 s" in caplog.text
    assert [child.code for child in (first, again, *rig.started["worker 0"])] == [-9, 0, 0]


async def test_where_nothing_ever_worked_the_first_failure_ends_all(caplog):
    rig = Rig(2)
    rig.entry = "refused"
    assert await asyncio.wait_for(rig.supervisor.run(), 30) is False
    assert "could not start (exit code 7)" in caplog.text
    assert not rig.ready.is_set()


async def test_a_process_that_cannot_be_started_is_reported(caplog):
    async def start():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    slots = [Slot("worker 0", start)]
    assert await Supervisor(slots, 1.0, lambda said: None).run() is False
    assert (
        "worker 0 could not start (no process: [Errno 11] Resource temporarily unavailable)" in caplog.text
    )


async def test_a_child_that_others_use_ends_after_them(monkeypatch):
    rig = Rig(2, writer=True)
    running = asyncio.ensure_future(rig.supervisor.run())
    await asyncio.wait_for(rig.ready.wait(), 30)
    (writer,) = rig.started["the writer"]
    workers = [rig.started[f"worker {number}"][0] for number in range(2)]
    codes, stop = [], Child.stop

    def recorded(child):
        codes.append((child is writer, [worker.code for worker in workers]))
        stop(child)

    monkeypatch.setattr(Child, "stop", recorded)
    rig.supervisor.stop()
    assert await asyncio.wait_for(running, 30) is True
    assert [code for is_writer, code in codes if is_writer] == [[0, 0]]
    assert writer.code == 0


async def test_a_second_stop_ends_also_a_child_that_waits_for_others():
    rig = Rig(1, writer=True)
    rig.entry = "deaf"
    running = asyncio.ensure_future(rig.supervisor.run())
    await asyncio.wait_for(rig.ready.wait(), 30)
    rig.supervisor.stop()
    await asyncio.sleep(0)
    rig.supervisor.stop()
    assert await asyncio.wait_for(running, 15) is True
    assert {name: children[0].code for name, children in rig.started.items()} == {
        "worker 0": -9,
        "the writer": -9,
    }


async def test_children_are_replaced_one_after_another_but_for_those_that_stay(caplog):
    caplog.set_level("INFO")
    rig = Rig(2, writer=True)
    running = asyncio.ensure_future(rig.supervisor.run())
    await asyncio.wait_for(rig.ready.wait(), 30)
    rig.supervisor.replace_all()
    await rig.until(lambda: "replaced 2 workers" in caplog.text)
    assert {name: len(children) for name, children in rig.started.items()} == {
        "worker 0": 2,
        "worker 1": 2,
        "the writer": 1,
    }
    assert "restarting" not in caplog.text
    rig.supervisor.stop()
    assert await asyncio.wait_for(running, 30) is True
    assert all(child.code == 0 for children in rig.started.values() for child in children)


async def test_stopped_before_any_is_ready_all_end():
    rig = Rig(2)
    running = asyncio.ensure_future(rig.supervisor.run())
    await rig.until(lambda: len(rig.started) == 2)
    rig.supervisor.stop()
    assert await asyncio.wait_for(running, 30) is True


async def test_a_second_stop_gives_children_no_further_time(monkeypatch):
    monkeypatch.setattr(supervisor_module, "_CUT_S", 0.05)
    rig = Rig(2)
    rig.entry = "deaf"
    running = asyncio.ensure_future(rig.supervisor.run())
    await asyncio.wait_for(rig.ready.wait(), 30)
    rig.supervisor.stop()
    rig.supervisor.stop()
    assert await asyncio.wait_for(running, 15) is True  # without it, the grace is 20 s
    assert {child.code for children in rig.started.values() for child in children} == {-signal.SIGKILL}


async def test_a_child_that_hangs_is_killed_and_started_again(caplog):
    """Not one that has no heartbeats, nor the one that turns."""
    rig = Rig(2, writer=True, hang_s=2.0)
    running = asyncio.ensure_future(rig.supervisor.run())
    await asyncio.wait_for(rig.ready.wait(), 30)
    first = rig.started["worker 1"][0]
    await rig.until(lambda: first.num_beats)
    os.kill(first.pid, signal.SIGSTOP)
    await rig.until(lambda: len(rig.started["worker 1"]) == 2)
    assert first.code == -signal.SIGKILL
    assert f"worker 1 (process {first.pid}) hangs: its event loop has not turned for 2 s" in caplog.text
    assert await rig.started["worker 1"][1].wait_ready() is None
    assert len(rig.started["worker 0"]) == len(rig.started["the writer"]) == 1
    rig.supervisor.stop()
    assert await asyncio.wait_for(running, 30) is True


async def test_children_that_were_stopped_together_with_their_supervisor_live_on(caplog):
    """As on a machine that was suspended."""
    rig = Rig(1, hang_s=1.0)
    running = asyncio.ensure_future(rig.supervisor.run())
    await asyncio.wait_for(rig.ready.wait(), 30)
    child = rig.started["worker 0"][0]
    for _ in range(3):
        await rig.until(lambda: child.num_beats)
        os.kill(child.pid, signal.SIGSTOP)
        time.sleep(1.5)  # noqa: ASYNC251 - nothing of the supervisor runs
        os.kill(child.pid, signal.SIGCONT)
        seen = child.num_beats
        await rig.until(lambda seen=seen: child.num_beats > seen + 2)
    assert child.code is None
    assert "hangs" not in caplog.text
    rig.supervisor.stop()
    assert await asyncio.wait_for(running, 30) is True


async def test_heartbeats_that_nobody_reads_stop_nothing():
    """The pipe of a supervisor that is stopped for long is full."""
    rig = Rig(1, hang_s=0.01)
    child = await rig.start("worker 0")
    assert await child.wait_ready() is None
    asyncio.get_running_loop().remove_reader(child._ready_end)
    size = fcntl.fcntl(child._ready_end, fcntl.F_SETPIPE_SZ, 4096)
    await rig.until(lambda: _num_unread(child._ready_end) == size)
    assert await child.end(20) == 0


def _num_unread(descriptor):
    return struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))[0]
