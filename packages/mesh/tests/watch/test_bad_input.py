"""What comes in bad, up to the real detector's verdicts: never a crash, never a false alarm."""

import asyncio
import dataclasses
import functools

import numpy as np
import pytest

from hopline_mesh.changes import Context
from hopline_mesh.detect import DetectorSettings, MeshDetector
from hopline_mesh.errors import SourceUnavailable
from hopline_mesh.out.board import Board
from hopline_mesh.roster import Roster
from hopline_mesh.simulate import Fault, MeshPlan, simulate
from hopline_mesh.snapshot import Gap
from hopline_mesh.state import StateFolder
from hopline_mesh.state.keeper import Keeper
from hopline_mesh.watch.judge import Judge
from hopline_mesh.watch.loop import Watch
from hopline_mesh.watch.resume import resume
from hopline_mesh.watch.ticks import Tick
from packages.mesh.tests.watch.fakes import FakeAlerts

LEARNED, PLAYED = 240, 60
SETTINGS = DetectorSettings()
FAULT_AT = 20


@pytest.fixture(scope="module")
def calm():
    return list(simulate(MeshPlan(services=8, hours=(LEARNED + PLAYED) * 15 / 3600), 5))


@pytest.fixture(scope="module")
def faulty():
    fault = Fault("slow_service", (LEARNED + FAULT_AT) * 15.0, 1200.0, severity=0.8)
    return list(simulate(MeshPlan(services=8, hours=(LEARNED + PLAYED) * 15 / 3600, faults=(fault,)), 5))


class Watched:
    """A watch that learned from a simulated mesh's beginning, then sees what a test makes of the rest."""

    def __init__(self, played, path, learn=True):
        self.played, self.path = played, path
        self.board, self.alerts = Board(), FakeAlerts()
        folder = StateFolder(path, 2**24, 1e9)
        if learn:
            self.detector = MeshDetector(SETTINGS)
            self.detector.fit(*zip(*played[:LEARNED], strict=True))
        else:
            schema = played[0][0].schema
            fresh = functools.partial(MeshDetector, SETTINGS)
            resumed = resume(folder, fresh, schema=schema, shape={}, board=self.board)
            self.detector, self.roster = resumed.detector, resumed.roster
        self.keeper = Keeper(folder)
        judge = Judge(self.detector, self.keeper, shape={}, checkpoint_s=0.0, shown=self.board.export)
        self.watch = Watch(
            judge, self, lambda now_s: (self.known, ()), self.board, self.alerts, self.keeper, longest_s=5.0
        )
        self.known, self.change = Context(), None

    async def collect(self, now_s):
        return self.change(self.found) if self.change is not None else self.found

    async def play(self, start=0, stop=PLAYED, change=None):
        """The intervals from one to another, changed by a function, as verdicts."""
        self.change = change
        verdicts = []
        for found, known in self.played[LEARNED + start : LEARNED + stop]:
            self.found, self.known = found, known
            time_s = found.time_s
            verdicts.append(await self.watch.interval(Tick(time_s, time_s)))
            await asyncio.to_thread(self.keeper.settle)
        return verdicts

    async def kill(self):
        await asyncio.to_thread(self.keeper.close)
        self.watch._thread.shutdown()


@pytest.fixture
async def watched(calm, tmp_path):
    one = Watched(calm, tmp_path / "state")
    yield one
    await one.watch.close()


def states(verdicts):
    return {verdict.state for verdict in verdicts}


def alarms(one):
    return {id for id, _ in one.alerts.incidents()}


async def test_the_mesh_itself_raises_no_alarm(watched):
    assert states(await watched.play()) == {"normal"}


async def test_prometheus_that_is_down_and_comes_back(watched):
    def down(found):
        raise SourceUnavailable("connection refused")

    await watched.play(0, 5)
    assert states(await watched.play(5, 40, down)) == {"blind"}
    assert states(await watched.play(40, 60)) <= {"normal", "blind"}
    assert not alarms(watched)


@pytest.mark.sample(1)
@pytest.mark.parametrize("share", [0.3, 0.6, 1.0])
async def test_series_that_are_missing_are_no_anomaly(watched, share):
    rng = np.random.default_rng(1)

    def missing(found):
        nodes, edges = found.node_features.copy(), found.edge_features.copy()
        nodes[:, rng.random(nodes.shape[1]) < share] = np.nan
        edges[rng.random(edges.shape) < share] = np.nan
        gaps = (Gap("node.cpu_cores", "no series"),)
        return dataclasses.replace(found, node_features=nodes, edge_features=edges, gaps=gaps)

    await watched.play(0, 5)
    verdicts = await watched.play(5, 40, missing)
    await watched.play(40, 60)
    assert not alarms(watched)
    assert all("node.cpu_cores" in {gap.what for gap in verdict.gaps} for verdict in verdicts)
    assert states(verdicts) == {"blind"} if share == 1.0 else True


async def test_half_the_services_gone_at_once_is_a_gap_of_the_collection(watched):
    """The collector holds such services, as not measured; see its tests."""

    def half(found):
        nodes, edges = found.node_features.copy(), found.edge_features.copy()
        nodes[::2] = np.nan
        edges[::2] = np.nan
        return dataclasses.replace(found, node_features=nodes, edge_features=edges)

    await watched.play(0, 5)
    await watched.play(5, 40, half)
    await watched.play(40, 60)
    assert not alarms(watched)


async def test_ten_thousand_new_services_with_hostile_names_at_once(tmp_path):
    # A mesh of its own: the names stay in its roster.
    played = list(simulate(MeshPlan(services=8, hours=(LEARNED + 45) * 15 / 3600), 5))
    watched = Watched(played, tmp_path / "state")
    hostile = [
        "ns/\ud800", "ns/'; DROP TABLE services; --", "ns/<script>alert(1)</script>", "ns/" + "x" * 10_000,
        "ns/\x00\n\u202e", "/", "ns/../../etc/passwd", "{{ .Values }}",
    ]  # fmt: skip
    names = hostile + [f"new/s{i}" for i in range(10_000 - len(hostile))]
    rng = np.random.default_rng(2)

    def many(found):
        slots = np.array([found.roster.slot(name) for name in names], np.int32)
        width = found.node_features.shape[1]
        features = rng.gamma(2.0, 10.0, (len(slots), width)).astype(np.float32)
        features[:, [i for i, c in enumerate(found.schema.node_features) if c.endswith("_share")]] = 0.01
        return dataclasses.replace(
            found,
            nodes=np.concatenate([found.nodes, slots]),
            node_features=np.concatenate([found.node_features, features]),
        )

    await watched.play(0, 5)
    verdicts = await watched.play(5, 25, many)
    assert states(verdicts) <= {"normal", "blind"}
    await watched.play(25, 45)
    await watched.watch.close()
    assert not alarms(watched)


async def test_a_clock_that_jumps_raises_no_alarm(watched):
    await watched.play(0, 5)
    for jump in (3600.0, -1800.0, 86_400.0):
        for found, known in watched.played[LEARNED + 5 : LEARNED + 15]:
            watched.found, watched.known = found, known
            last = watched.board.verdict.time_s
            time_s = max(last + 7.5, found.time_s + jump)
            await watched.watch.interval(Tick(found.time_s, time_s, jump_s=jump))
    assert not alarms(watched)


async def test_a_fault_is_one_incident_through_a_kill_and_a_gap(faulty, tmp_path):
    one = Watched(faulty, tmp_path / "state")
    before = await one.play(0, FAULT_AT + 15)
    told = alarms(one)
    await one.kill()
    again = Watched(faulty, tmp_path / "state", learn=False)
    assert {each.incident.id for each in again.board.open_incidents()} == told
    # Two minutes were missed.
    after = await again.play(FAULT_AT + 23, PLAYED)
    await again.watch.close()
    assert len(told) == 1
    assert before[-1].state == "anomalous"
    assert alarms(again) == told
    assert after[0].incidents[0].id in told


@pytest.mark.release
async def test_a_kill_while_prometheus_is_down_ends_no_incident(faulty, tmp_path, caplog):
    caplog.set_level("INFO", "hopline_mesh")
    one = Watched(faulty, tmp_path / "state")
    await one.play(0, FAULT_AT + 15)
    told = alarms(one)
    await one.kill()
    again = Watched(faulty, tmp_path / "state", learn=False)

    def nothing(found):
        """A collector that was started again knows no services."""
        rows = {name: getattr(found, name)[:0] for name in (
            "nodes", "node_features", "edge_src", "edge_dst", "edge_features")}  # fmt: skip
        return dataclasses.replace(found, **rows, gaps=(Gap("prometheus", "connection refused"),))

    down = await again.play(FAULT_AT + 15, FAULT_AT + 25, nothing)
    assert states(down) == {"blind"}
    assert all({each.id for each in verdict.incidents} == told for verdict in down)
    assert caplog.text.count("connection refused") == 1  # not every interval
    assert "measurements: works again" not in caplog.text
    await again.play(FAULT_AT + 25, PLAYED)
    await again.watch.close()
    assert alarms(again) == told
    assert caplog.text.count("measurements: works again") == 1


@pytest.mark.release
async def test_a_kill_in_quiet_time_raises_no_alarm(calm, tmp_path):
    one = Watched(calm, tmp_path / "state")
    await one.play(0, 20)
    await one.kill()
    again = Watched(calm, tmp_path / "state", learn=False)
    assert again.detector.steps == one.detector.steps
    verdicts = await again.play(35, 60)  # some minutes later
    await again.watch.close()
    assert states(verdicts) == {"normal"}
    assert isinstance(again.roster, Roster)
