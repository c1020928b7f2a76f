"""The loop: one part that fails costs its own contribution; a restart goes on where it was."""

import asyncio
import contextlib
import dataclasses
import signal
import threading
import time

import pytest

from hopline_mesh.changes import Change, Context
from hopline_mesh.out.board import Board
from hopline_mesh.state import StateFolder
from hopline_mesh.state.keeper import Keeper
from hopline_mesh.watch.judge import Judge
from hopline_mesh.watch.loop import Watch
from hopline_mesh.watch.resume import resume
from hopline_mesh.watch.ticks import Tick, Ticks
from packages.mesh.tests.meshes import SCHEMA
from packages.mesh.tests.watch.fakes import DOWN, FakeAlerts, FakeDetector, FakeSource, calm

SHAPE = {"window_size": 120}


class Bench:
    """A watch of fakes over a real state folder, which can be killed and started again."""

    def __init__(self, path, shape=SHAPE, context=calm, checkpoint_s=0.0):
        self.path, self.stopped = path, False
        self.board = Board()
        self.folder = StateFolder(path, 2**20, 1e9)
        self.resumed = resume(
            self.folder, FakeDetector, FakeDetector.restore, schema=SCHEMA, shape=shape, board=self.board
        )
        self.detector = self.resumed.detector
        self.source = FakeSource(self.resumed.roster)
        self.alerts = FakeAlerts()
        self.keeper = Keeper(self.folder)
        judge = Judge(self.detector, self.keeper, shape=shape, checkpoint_s=checkpoint_s)
        self.watch = Watch(judge, self.source, context, self.board, self.alerts, self.keeper, longest_s=0.2)

    async def intervals(self, start_s, count):
        found = []
        for i in range(count):
            found.append(await self.watch.interval(Tick(start_s + 15.0 * i, start_s + 15.0 * i)))
            await asyncio.to_thread(self.keeper.settle)
        return found

    async def stop(self):
        if not self.stopped:
            self.stopped = True
            await self.watch.close()

    async def kill(self):
        """What is left by a kill: nothing is told to anybody, but what was being written may be whole."""
        self.stopped = True
        await asyncio.to_thread(self.keeper.close)
        self.watch._thread.shutdown()


@pytest.fixture
async def bench(tmp_path):
    one = Bench(tmp_path / "state")
    yield one
    await one.stop()


def gaps(verdict):
    return {gap.what: gap.reason for gap in verdict.gaps}


async def test_deviations_between_intervals_follow_the_loop_and_cannot_stop_it(bench):
    made = []

    def live(snapshot):
        if len(made) == 2:
            raise ZeroDivisionError("a bug")
        made.append(snapshot.time_s)
        return dataclasses.make_dataclass("State", ["time_s"])(snapshot.time_s)

    bench.detector.live = live
    await bench.intervals(0.0, 2)
    assert (made, bench.watch.live.now) == ([], None)
    assert (await bench.watch.live.state()).time_s == 15.0
    await bench.intervals(30.0, 1)
    assert bench.watch.live.now.time_s == 30.0
    verdicts = await bench.intervals(45.0, 2)
    assert len(verdicts) == len(bench.alerts.sent) - 3 == 2
    assert bench.watch.live.now.time_s == 30.0  # the last there is


async def test_each_interval_is_judged_shown_reported_and_kept(bench):
    verdicts = await bench.intervals(0.0, 5)
    assert [verdict.state for verdict in verdicts] == ["learning"] * 3 + ["normal"] * 2
    assert bench.board.verdict == verdicts[-1]
    assert bench.board.shown[0].time_s == 60.0
    assert len(bench.alerts.sent) == 5
    await bench.stop()
    state = StateFolder(bench.path, 2**20, 1e9)
    assert next(iter(state.checkpoints())).time_s == 60.0
    assert len(list(state.history(bench.source.roster))) == 5


async def test_a_muted_incident_raises_no_alert_and_stays_on_the_board(bench):
    await bench.intervals(0.0, 5)
    bench.source.fault = True
    await bench.intervals(75.0, 2)
    assert bench.alerts.incidents() == [("fault-75", False)]
    bench.board.mark("fault-75", "muted")
    bench.alerts.sent.clear()
    (verdict,) = await bench.intervals(105.0, 1)
    assert verdict.state == "anomalous"
    assert bench.alerts.incidents() == []
    assert [each.incident.id for each in bench.board.open_incidents()] == ["fault-75"]
    assert bench.folder.note()["marks"][1]["fault-75"]["kind"] == "muted"


async def test_a_mark_on_an_incident_that_has_ended_is_kept_before_the_next_checkpoint(tmp_path):
    bench = Bench(tmp_path / "state", checkpoint_s=1e9)
    await bench.intervals(0.0, 5)
    bench.source.fault = True
    await bench.intervals(75.0, 2)
    bench.source.fault = False
    await bench.intervals(105.0, 4)
    assert bench.board.open_incidents() == []
    bench.board.mark("fault-75", "not_an_incident")
    await bench.intervals(165.0, 1)
    await bench.kill()
    assert bench.folder.note()["marks"][1]["fault-75"]["kind"] == "not_an_incident"


async def test_planned_changes_are_on_the_board(tmp_path):
    rollout = Change("rollout", "ns/s0", 0.0)
    one = Bench(tmp_path / "state", context=lambda now_s: (Context((rollout,)), ()))
    await one.intervals(0.0, 2)
    assert one.board.changes() == [rollout]
    await one.stop()


async def test_prometheus_that_is_down_makes_the_watch_blind_not_the_services_guilty(bench, caplog):
    caplog.set_level("INFO", "hopline_mesh")
    await bench.intervals(0.0, 5)
    bench.source.down = DOWN
    blind = await bench.intervals(75.0, 4)
    bench.source.down = None
    after = await bench.intervals(135.0, 2)
    assert {verdict.state for verdict in blind} == {"blind"}
    assert "connection refused" in gaps(blind[0])["prometheus"]
    assert {verdict.state for verdict in after} == {"normal"}
    assert not any(verdict.incidents for verdict in bench.alerts.sent)
    assert bench.detector.steps == 7
    assert caplog.text.count("connection refused") == 1  # not every interval
    assert "prometheus: works again" in caplog.text


async def test_an_incident_goes_on_while_nothing_can_be_seen(bench):
    await bench.intervals(0.0, 5)
    bench.source.fault = True
    (before,) = await bench.intervals(75.0, 1)
    bench.source.down = DOWN
    blind = await bench.intervals(90.0, 3)
    assert [incident.id for verdict in blind for incident in verdict.incidents] == ["fault-75"] * 3
    assert all(verdict.incidents == before.incidents for verdict in blind)


async def test_a_source_that_hangs_is_left_behind(bench):
    async def hang(now_s):
        await asyncio.sleep(60)

    bench.source.collect = hang
    (verdict,) = await bench.intervals(0.0, 1)
    assert verdict.state == "blind"
    assert "no response within 0.2 s" in gaps(verdict)["prometheus"]


async def test_no_part_ends_the_loop(bench, monkeypatch):
    await bench.intervals(0.0, 4)
    bench.detector.broken = True
    (verdict,) = await bench.intervals(60.0, 1)
    assert verdict.state == "blind"
    assert "a bug" in gaps(verdict)["detector"]
    bench.detector.broken, bench.alerts.broken = False, True
    (verdict,) = await bench.intervals(75.0, 1)
    assert verdict.state == "normal"
    bench.alerts.broken = False
    bench.source.down = KeyError("what nobody thought of")
    (verdict,) = await bench.intervals(90.0, 1)
    assert "what nobody thought of" in gaps(verdict)["prometheus"]
    bench.source.down = None
    monkeypatch.setattr(bench.board, "publish", lambda *given: 1 / 0)
    (verdict,) = await bench.intervals(105.0, 1)
    assert verdict in bench.alerts.sent
    monkeypatch.undo()
    monkeypatch.setattr(bench.detector, "export", lambda: 1 / 0)
    (verdict,) = await bench.intervals(120.0, 1)
    monkeypatch.undo()
    assert verdict.state == "normal"


async def test_kubernetes_that_fails_costs_what_is_known_of_changes(tmp_path):
    def context(now_s):
        if now_s < 30:
            raise RuntimeError("no such thing")
        return Context(), ()

    bench = Bench(tmp_path / "state", context=context)
    verdicts = await bench.intervals(0.0, 4)
    await bench.stop()
    assert "no such thing" in gaps(verdicts[1])["kubernetes"]
    assert "kubernetes" not in gaps(verdicts[3])
    assert verdicts[3].state == "normal"


async def test_lost_time_is_said(bench):
    verdict = await bench.watch.interval(Tick(100.0, 100.0, skipped=3, jump_s=-40.0))
    assert gaps(verdict) == {
        "interval": "3 left out: the previous interval took too long",
        "clock": "the clock was set back by 40 s",
    }


async def test_killed_in_the_middle_of_an_incident_it_goes_on_with_it(tmp_path):
    bench = Bench(tmp_path / "state", checkpoint_s=1e9)  # all but the first interval is judged again
    await bench.intervals(0.0, 6)
    bench.source.fault = True
    before = (await bench.intervals(90.0, 4))[-1]
    await bench.kill()
    again = Bench(tmp_path / "state")
    assert again.resumed.summary == "restored"
    assert again.resumed.last_s == 135.0
    assert [each.incident.id for each in again.board.open_incidents()] == ["fault-90"]
    assert again.resumed.note.pop("marks")[1] == {}
    assert again.resumed.note == {"alerts": {"sent": 10}, "abnormal": {}}
    again.source.fault = True
    after = await again.intervals(150.0, 2)
    again.source.fault = False
    await again.intervals(180.0, 2)
    await again.stop()
    assert after[0].incidents[0].id == before.incidents[0].id
    assert again.alerts.incidents() == [("fault-90", False), ("fault-90", True)]
    assert again.detector.steps == 14


async def test_state_of_other_settings_is_learned_anew_from_what_was_seen(tmp_path, caplog):
    bench = Bench(tmp_path / "state")
    await bench.intervals(0.0, 6)
    await bench.stop()
    again = Bench(tmp_path / "state", shape={"window_size": 60})
    assert "other settings (window_size)" in again.resumed.summary
    assert "from 6 saved intervals" in again.resumed.summary
    (verdict,) = await again.intervals(90.0, 1)
    await again.stop()
    assert verdict.state == "normal"


@pytest.mark.parametrize("damage", ["newest", "all", "unfit", "everything"])
async def test_damaged_state_costs_learning_at_most(tmp_path, damage, caplog):
    path = tmp_path / "state"
    bench = Bench(path)
    await bench.intervals(0.0, 6)
    await bench.stop()
    checkpoints = sorted(path.glob("checkpoint-*"))
    for file in checkpoints[-1:] if damage == "newest" else checkpoints:
        if damage == "unfit":  # whole, but nothing that a detector knows
            from hopline_mesh.state.checkpoint import read_checkpoint, write_checkpoint

            header, arrays = read_checkpoint(file)
            write_checkpoint(file, {**header, "meta": {"detector": {}, "shown": {}}}, arrays)
        else:
            file.write_bytes(file.read_bytes()[:-9])
    if damage == "everything":
        for file in path.iterdir():
            file.write_bytes(b"\0" * 100)
    again = Bench(path)
    verdicts = await again.intervals(90.0, 4)
    await again.stop()
    assert not any(verdict.incidents for verdict in verdicts)
    assert again.detector.steps == (4 if damage == "everything" else 10)
    assert "ignored" in caplog.text


async def test_the_loop_ends_on_request(bench):
    stop = asyncio.Event()
    with contextlib.suppress(ValueError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, stop.set)
    running = asyncio.create_task(bench.watch.run(Ticks(0.05), stop))
    for _ in range(3):
        await bench.alerts.next.acquire()
    signal.raise_signal(signal.SIGUSR1)
    await asyncio.wait_for(running, 5)
    asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)
    times = [verdict.time_s for verdict in bench.alerts.sent]
    assert times == sorted(set(times))


async def test_a_slow_step_does_not_stop_the_loop(bench, monkeypatch):
    threads = []
    step = bench.detector.step

    def slow(snapshot, context):
        threads.append(threading.get_ident())
        time.sleep(0.3)
        return step(snapshot, context)

    monkeypatch.setattr(bench.detector, "step", slow)
    beats = []

    async def beat():
        while True:
            await asyncio.sleep(0.001)
            beats.append(len(threads))

    beating = asyncio.create_task(beat())
    await bench.intervals(0.0, 1)
    beating.cancel()
    assert threads[0] != threading.get_ident()
    assert beats.count(1) > 10  # while the step ran
