"""The demo plays a mesh, says what goes wrong in it, and judges the watch by that."""

from __future__ import annotations

import socket
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from hopline.cli import build_app
from hopline.errors import ConfigError
from hopline_mesh import demo
from hopline_mesh.detect import DetectorSettings
from hopline_mesh.incident import Incident, Suspect, Verdict
from hopline_mesh.simulate import Fault
from hopline_mesh.watch.ticks import Ticks

START_S = 1_800_000_000.0


class Played:
    """A feed, and what it said."""

    def __init__(self, enough: int = 0) -> None:
        self.said: list[str] = []
        self.feed = demo.SimulatedFeed(6, 0, 30.0, self.said.append, enough)
        self.now_s = START_S

    async def until(self, fragment: str) -> None:
        """Go on until it says that."""
        for _ in range(400):
            await self.feed.collect(self.now_s)
            self.now_s += 15.0
            if self.said and fragment in self.said[-1]:
                return
        raise AssertionError(f"it never said {fragment!r}: {self.said}")

    @property
    def fault(self) -> Fault:
        """The newest."""
        return list(self.feed.found)[-1]

    def tell(self, incident_id: str, *services: str, over: bool = False) -> bool:
        """A verdict with one incident."""
        suspects = tuple(Suspect(service, 1.0, None, ()) for service in services)
        end_s = self.now_s if over else None
        incident = Incident(incident_id, self.now_s, end_s, 2.0, suspects)
        return self.feed.on_verdict(Verdict(self.now_s, "anomalous", 2.0, (incident,)))


async def test_a_fault_counts_as_found_where_one_of_the_first_two_suspects_is_its_root() -> None:
    played = Played()
    await played.until("begins")
    fault = played.fault
    assert not played.feed.found[fault]
    assert not played.tell("a", "somebody", fault.service)
    assert played.feed.found[fault]
    assert "incident after" in played.said[-1]
    said = len(played.said)
    played.tell("a", "somebody", fault.service)  # it goes on, which is no news
    assert len(played.said) == said
    played.tell("a", fault.service, over=True)
    assert "incident ended" in played.said[-1]
    assert played.feed.false == 0


async def test_the_third_suspect_is_not_enough_and_an_incident_of_calm_time_is_false() -> None:
    played = Played()
    await played.until("begins")
    played.tell("a", "somebody", "somebody else", played.fault.service)
    assert not played.feed.found[played.fault]
    await played.until("ends")
    for _ in range(8):
        await played.feed.collect(played.now_s)
        played.now_s += 15.0
    played.tell("b", "somebody")
    assert played.feed.false == 1
    assert "false incident" in played.said[-1]


async def test_it_ends_after_enough_incidents_or_when_more_faults_began() -> None:
    played = Played(enough=1)
    await played.until("begins")
    assert not played.tell("a", played.fault.service)
    assert played.tell("a", played.fault.service, over=True)
    missed = Played(enough=1)
    await missed.until("begins")
    assert not missed.feed.on_verdict(Verdict(missed.now_s, "normal", 0.0, ()))
    await missed.until("ends")
    await missed.until("begins")
    assert missed.feed.on_verdict(Verdict(missed.now_s, "normal", 0.0, ()))


async def test_planned_changes_are_reported_with_times_of_now() -> None:
    played = Played()
    await played.until("planned")
    for _ in range(8):
        await played.feed.collect(played.now_s)
        played.now_s += 15.0
    context, gaps = played.feed.context(played.now_s)
    assert not gaps
    assert context.changes
    assert all(abs(change.start_s - played.now_s) < 600 for change in context.changes)


async def test_behind_the_end_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_HOURS", 0.1)
    played = Played()
    for _ in range(len(played.feed._run)):
        assert not (await played.feed.collect(played.now_s)).gaps
        played.now_s += 15.0
    blind = await played.feed.collect(played.now_s)
    assert blind.time_s == played.now_s
    assert np.isnan(blind.node_features).all()
    assert np.isnan(blind.edge_features).all()
    assert [gap.reason for gap in blind.gaps] == ["the simulated day is over"]


@pytest.mark.release
async def test_its_detector_has_learned_and_finds_the_first_fault() -> None:
    said: list[str] = []
    feed = demo.SimulatedFeed(12, 0, 30.0, said.append)
    detector = feed.detector(DetectorSettings())
    now_s = START_S
    for _ in range(120):
        snapshot = await feed.collect(now_s)
        feed.on_verdict(detector.step(snapshot, feed.context(now_s)[0]))
        now_s += 15.0
    assert list(feed.found.values()) == [True], said
    assert feed.false == 0


def test_its_clock_and_ticks_run_faster() -> None:
    feed = demo.SimulatedFeed(6, 0, 50.0, lambda line: None)
    before, began = feed.clock(), time.monotonic()
    time.sleep(0.05)
    assert feed.clock() - before == pytest.approx(50.0 * (time.monotonic() - began), rel=0.2)
    ticks = Ticks(15.0, wall=feed.clock, monotonic=feed.clock, speed=feed.speed)
    assert ticks.wait_s() <= 15.0 / 50.0
    time.sleep(ticks.wait_s() + 0.01)
    assert ticks.wait_s() == 0.0
    assert ticks.take().time_s % 15.0 == pytest.approx(0.0)


def test_a_port_that_is_taken_is_reported_before_the_demo_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo.SimulatedFeed, "detector", lambda *_: pytest.fail("it learned first"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        arguments = ["mesh", "demo", "--port", str(taken.getsockname()[1])]
        result = CliRunner().invoke(build_app(arguments), arguments)
    assert isinstance(result.exception, ConfigError)
    assert "--port" in str(result.exception)
    assert result.output.startswith("starting")


def test_too_few_services_are_refused() -> None:
    with pytest.raises(ConfigError, match="services"):
        demo.SimulatedFeed(2, 0, 30.0, lambda line: None)
