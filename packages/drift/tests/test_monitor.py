"""From requests to alerts, on a clock of the test's own."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from hopline.errors import ConfigError, ModelNotFound, NodeNotFound, Overloaded
from hopline.observe.metrics import Metrics
from hopline.types import ScoreRequest
from hopline_drift.monitor import DriftMonitor
from packages.drift.tests.streams import (
    SLICE_S,
    Clock,
    FakeServed,
    Traffic,
    monitor,
    quantities,
    ran,
    settings,
)
from tests.thorough import thorough

#: Requests looked at in a slice of each test below; a window has six slices.
PER_SLICE = 500


def run(watched: DriftMonitor, clock: Clock, traffic: Traffic, served: FakeServed, slices: int) -> None:
    """Let some slices of traffic pass."""
    for _ in range(slices):
        for _ in range(5):
            watched.record(traffic.batch(served, PER_SLICE // 5))
            watched.tick()
            clock.now += SLICE_S / 5
    watched.tick()


@pytest.fixture
def started(tmp_path):
    """A monitor that has its reference, its clock, its traffic and who serves."""
    clock, traffic, served = Clock(), Traffic(), FakeServed()
    watched = monitor(tmp_path, clock, drift__sample_per_s=1000)
    run(watched, clock, traffic, served, 4)
    return watched, clock, traffic, served


def levels(watched: DriftMonitor) -> dict[tuple[str, str], str]:
    return {name: each["level"] for name, each in quantities(watched).items() if each["level"] != "ok"}


def test_nothing_is_raised_over_many_windows_in_which_nothing_changes(started):
    watched, clock, traffic, served = started
    raised = 0
    for _ in range(thorough(8, 50)):
        run(watched, clock, traffic, served, 6)
        raised += len(levels(watched))
    seen = {f"{kind} {name}" for kind, name in quantities(watched)}
    assert seen == {"input amount", "input shop", "output score", "output label", "graph degraded"}
    assert raised == 0


def change_shops(traffic: Traffic) -> None:
    traffic.shops = (0.2, 0.25, 0.25, 0.3)


def change_amounts(traffic: Traffic) -> None:
    traffic.amount = 4.0


def change_scores(traffic: Traffic) -> None:
    traffic.offset = 1.0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (change_shops, {("input", "shop")}),
        (change_amounts, {("input", "amount"), ("output", "score")}),
        (change_scores, {("output", "score")}),
    ],
)
def test_a_shift_raises_an_alert_that_names_what_moved(started, caplog, change, expected):
    watched, clock, traffic, served = started
    run(watched, clock, traffic, served, 6)
    change(traffic)
    with caplog.at_level(logging.WARNING):
        run(watched, clock, traffic, served, 8)  # 4,000 requests looked at
    alerts = {name for name, level in levels(watched).items() if level == "alert"}
    assert expected <= alerts
    assert alerts <= expected | {("output", "label")}
    for kind, name in expected:
        assert f"fraud/1: {kind} {name!r} changed from watch to alert" in caplog.text


def test_an_alert_ends_when_the_values_come_back(started):
    watched, clock, traffic, served = started
    usual = traffic.shops
    change_shops(traffic)
    run(watched, clock, traffic, served, 9)
    assert levels(watched)["input", "shop"] == "alert"
    traffic.shops = usual
    run(watched, clock, traffic, served, 9)
    assert levels(watched) == {}


def test_metrics_say_what_the_report_says(tmp_path):
    clock, traffic, served = Clock(), Traffic(), FakeServed()
    metrics = Metrics()
    watched = DriftMonitor(settings(tmp_path, drift__sample_per_s=1000), metrics, clock, seed=0)
    run(watched, clock, traffic, served, 4)
    change_shops(traffic)
    run(watched, clock, traffic, served, 9)
    text = metrics.render().decode()
    labels = 'model="fraud",version="1",kind="input",name="shop"'
    assert f"hopline_drift_level{{{labels}}} 2" in text
    psi = next(line for line in text.splitlines() if line.startswith(f"hopline_drift_psi{{{labels}}}"))
    assert float(psi.split()[-1]) > 0.25
    assert 'hopline_drift_alerts_total{model="fraud",version="1",kind="input"} 1' in text
    assert 'hopline_drift_sampled_total{model="fraud",version="1"} 6500' in text


def test_whichever_worker_is_scraped_reports_what_one_of_them_judged(tmp_path):
    clock, served = Clock(), FakeServed()
    metrics = [Metrics(tmp_path, slot) for slot in range(2)]
    changes = {"drift__sample_per_s": 1000}
    workers = [
        DriftMonitor(settings(tmp_path / "drift", worker, **changes), metrics[worker], clock, seed=worker)
        for worker in range(2)
    ]
    traffic = [Traffic(worker) for worker in range(2)]
    for number in range(16):
        if number == 8:
            for each in traffic:
                change_shops(each)
        for watched, each in zip(workers, traffic, strict=True):
            watched.record(each.batch(served, 400))
            watched.tick()
        clock.now += SLICE_S
    for each in metrics:
        each.flush()
    labels = 'model="fraud",version="1",kind="input",name="shop"'
    for each in metrics:
        text = each.render().decode()
        assert f"hopline_drift_level{{{labels}}} 2\n" in text
        assert 'hopline_drift_alerts_total{model="fraud",version="1",kind="input"} 1\n' in text


async def test_a_restart_keeps_reference_window_and_alarms(started, tmp_path):
    watched, clock, traffic, served = started
    change_shops(traffic)
    run(watched, clock, traffic, served, 9)
    before = watched.report("fraud")
    await watched.close()
    again = monitor(tmp_path, clock)
    assert again.report("fraud") == before
    again.record(traffic.batch(served, 100))
    again.tick()
    (version,) = again.report("fraud")["versions"]
    assert version["reference"] == before["versions"][0]["reference"]
    assert version["window"]["requests"] == before["versions"][0]["window"]["requests"] + 100
    assert version["level"] == "alert"


def test_windows_of_workers_add_up_to_that_of_one(tmp_path):
    clock, served = Clock(), FakeServed()
    one = monitor(tmp_path / "one", clock, drift__sample_per_s=1000)
    first = Traffic(1).batch(served, 2000)
    for at in range(0, 2000, 100):
        one.record(ran(served, first.requests[at : at + 100], first.outcomes[at : at + 100]))
        one.tick()
        clock.now += 1
    (tmp_path / "two" / "fraud" / "1").mkdir(parents=True)
    reference = (tmp_path / "one" / "fraud" / "1" / "reference.json").read_bytes()
    (tmp_path / "two" / "fraud" / "1" / "reference.json").write_bytes(reference)
    two = [monitor(tmp_path / "two", clock, worker, drift__sample_per_s=1000) for worker in range(2)]
    for number in range(20):
        batch = Traffic(number).batch(served, 100)
        one.record(batch)
        one.tick()
        two[number % 2].record(batch)
        two[number % 2].tick()
        clock.now += 1
    for each in two:
        each.report()
    assert two[1].report("fraud") == two[0].report("fraud")
    together, alone = quantities(two[1]), quantities(one)
    assert {name: each["shares"] for name, each in together.items()} == {
        name: each["shares"] for name, each in alone.items()
    }
    assert {name: each["psi"] for name, each in together.items()} == {
        name: each["psi"] for name, each in alone.items()
    }


def test_whichever_worker_has_enough_first_makes_the_reference_for_all(tmp_path):
    clock, traffic, served = Clock(), Traffic(), FakeServed()
    idle, busy = (monitor(tmp_path, clock, worker, drift__sample_per_s=5000) for worker in range(2))
    for _ in range(2):
        busy.record(traffic.batch(served, 1000))
        idle.record(traffic.batch(served, 10))
        busy.tick()
        clock.now += 10
    idle.record(traffic.batch(served, 10))
    idle.tick()
    assert idle.report("fraud")["versions"][0]["state"] == "watching"
    assert quantities(idle)["input", "amount"]["values"] == 30


def test_a_version_that_collects_says_how_far_it_is(tmp_path):
    clock, served = Clock(), FakeServed()
    watched = monitor(tmp_path, clock)
    watched.record(Traffic().batch(served, 20))
    (version,) = watched.report("fraud")["versions"]
    assert (version["state"], version["collected_rows"], version["quantities"]) == ("collecting", 20, [])
    assert watched.report()["versions"][0]["most"] is None
    with pytest.raises(ModelNotFound, match="there are: fraud"):
        watched.report("froud")


def test_versions_are_watched_apart(tmp_path):
    clock = Clock()
    watched = monitor(tmp_path, clock, drift__sample_per_s=5000)
    for version, size in (("1", 2000), ("2/canary", 500)):
        watched.record(Traffic().batch(FakeServed(version=version), size))
    watched.tick()
    states = {each["version"]: each["state"] for each in watched.report()["versions"]}
    assert states == {"1": "watching", "2/canary": "collecting"}
    watched.forget("fraud", "1")
    assert len(watched.report()["versions"]) == 2


def test_a_damaged_reference_is_put_aside_and_collected_anew(started, tmp_path, caplog):
    watched, clock, traffic, served = started
    path = tmp_path / "fraud" / "1" / "reference.json"
    path.write_bytes(path.read_bytes().replace(b"amount", b"amuont"))
    watched.record(traffic.batch(served, 10))
    watched.tick()
    assert "moved to reference.damaged" in caplog.text
    assert watched.report("fraud")["versions"][0]["state"] == "collecting"
    run(watched, clock, traffic, served, 4)
    assert watched.report("fraud")["versions"][0]["state"] == "watching"


def test_other_people_s_errors_and_large_requests_do_not_speak_for_all(tmp_path):
    clock, served = Clock(), FakeServed()
    watched = monitor(tmp_path, clock, drift__sample_per_s=1000)
    large = Traffic().batch(served, 1)
    outputs = {"probabilities": np.linspace(0, 1, 5000)}
    result = large.outcomes[0]
    watched.record(
        ran(
            served,
            [ScoreRequest("fraud", columns={"amount": np.arange(5000.0)}), *[ScoreRequest("fraud")] * 3],
            [
                type(result)("fraud", "1", "g", outputs),
                Overloaded("full"),
                None,
                NodeNotFound("who", ["a"]),
            ],
        )
    )
    assert watched.report("fraud")["versions"][0]["collected_rows"] == 64


def test_a_sample_is_bounded_and_the_hours_know_how_many_there_were(tmp_path):
    clock, traffic, served = Clock(), Traffic(), FakeServed()
    watched = monitor(tmp_path, clock, drift__sample_per_s=50)
    for _ in range(3):
        watched.record(traffic.batch(served, 4000))
        watched.tick()
        clock.now += 1
    (hour,) = watched.report("fraud")["versions"][0]["hours"]
    assert (hour["requests"], hour["scores"]) == (12_000, 150)
    assert hour["mean"] == pytest.approx(0.17, abs=0.05)


async def test_the_thread_folds_and_ends(tmp_path):
    watched = DriftMonitor(settings(tmp_path, drift__window_s=0.6, drift__sample_per_s=9999), Metrics())
    watched.start()
    watched.record(Traffic().batch(FakeServed(), 30))
    await watched.close()
    assert watched.report("fraud")["versions"][0]["collected_rows"] == 30


def test_a_full_disk_is_reported_once_and_costs_nothing_else(started, tmp_path, caplog, monkeypatch):
    watched, clock, traffic, served = started

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hopline_drift.window.write_sealed", full)
    for _ in range(3):
        watched.record(traffic.batch(served, 10))
        clock.now += 60
        watched._guarded(watched.tick)
    assert caplog.text.count("No space left") == 1
    monkeypatch.undo()
    run(watched, clock, traffic, served, 1)
    assert quantities(watched)["input", "shop"]["values"] >= PER_SLICE


def test_a_folder_is_needed(tmp_path):
    with pytest.raises(ConfigError, match=r"drift\.path: not set"):
        DriftMonitor(settings(None), Metrics())
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"drift\.alert: 0\.05 is below drift\.watch"):
        DriftMonitor(settings(tmp_path, drift__alert=0.05), Metrics())
    with pytest.raises(ConfigError, match="is not writable"):
        DriftMonitor(settings(tmp_path / "file" / "below"), Metrics())
