"""Training beside the loop: a process learns from the history; what it learned takes over, or nothing."""

import functools
import io
import json
import time
from dataclasses import replace

import pytest

from hopline_mesh.detect import DetectorSettings, MeshDetector
from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.incident import Incident, Verdict
from hopline_mesh.simulate import MeshPlan, simulate
from hopline_mesh.snapshot import Gap
from hopline_mesh.state import Seen, StateFolder
from hopline_mesh.watch import trainer as module
from hopline_mesh.watch.child import Task, train
from hopline_mesh.watch.trainer import Trainer

SETTINGS = DetectorSettings(train_at=60)
NORMAL = "normal"


@pytest.fixture(scope="module")
def played():
    return [Seen(*each) for each in simulate(MeshPlan(services=6, hours=90 * 15 / 3600), 2)]


@pytest.fixture
def folder(tmp_path, played):
    state = StateFolder(tmp_path / "state", 2**24, 1e9)
    for seen in played[:60]:
        state.append(seen.snapshot, seen.context)
    yield state.folder
    state.close()


def trainer(folder):
    outcomes = []
    one = Trainer(folder, SETTINGS, 15.0, trained=False, outcome=outcomes.append)
    return one, outcomes


def go(one, seen, incidents=()):
    state = "anomalous" if incidents else NORMAL
    one.saw(seen, Verdict(seen.snapshot.time_s, state, 0.0, tuple(incidents)))
    return one.advance(seen.snapshot.roster.names, seen)


def until_done(one, timeout_s=60):
    end = time.monotonic() + timeout_s
    while one._process is not None and one._process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_trained_detector_takes_over_up_to_date_and_not_in_the_middle_of_an_incident(folder, played):
    one, outcomes = trainer(folder)
    assert [go(one, seen) for seen in played[:60]] == [None] * 60  # the last one began a training
    until_done(one)
    trouble = Incident("x", played[60].snapshot.time_s, None, 2.0, ())
    assert all(go(one, seen, [trouble]) is None for seen in played[60:70])
    found = next(filter(None, (go(one, seen) for seen in played[70:])))
    assert outcomes == ["ok"]
    assert one.trained
    # The same as one that learned here and saw all since.
    oracle = MeshDetector(SETTINGS)
    oracle.fit([each.snapshot for each in played[:60]], [each.context for each in played[:60]])
    last = 60
    for seen in played[60:]:
        last += 1
        oracle.step(seen.snapshot, seen.context)
        if oracle.steps == found.steps:
            break
    one_more = played[last]
    verdict = found.step(one_more.snapshot, one_more.context)
    assert verdict.score == pytest.approx(oracle.step(one_more.snapshot, one_more.context).score, abs=1e-5)
    # The folder is as large as its volume: a training puts nothing there.
    assert {path.name.partition("-")[0] for path in folder.iterdir()} == {"history"}


@pytest.mark.release
def test_trouble_that_never_ends_does_not_keep_what_was_learned_away(folder, played, monkeypatch):
    monkeypatch.setattr("hopline_mesh.watch.trainer._MAX_WAIT", 40)  # a quarter of it the first time
    one, outcomes = trainer(folder)
    for seen in played[:60]:
        go(one, seen)
    until_done(one)
    trouble = Incident("x", played[60].snapshot.time_s, None, 2.0, ())
    took = [go(one, seen, [trouble]) is not None for seen in played[60:75]]
    assert took.index(True) >= 9
    assert outcomes == ["ok"]


def test_times_of_trouble_are_not_learned_from(folder, played):
    one, _ = trainer(folder)
    start_s, end_s = played[20].snapshot.time_s, played[25].snapshot.time_s
    for number, seen in enumerate(played[:59]):
        gone = Incident("x", start_s, end_s, 2.0, ())
        go(one, seen, [gone] if number == 26 else [])
    assert one.task([], played[59]).without == [(start_s - 60, end_s + 60)]


def test_an_incident_that_returns_under_its_id_is_left_out_both_times(folder, played):
    one, _ = trainer(folder)
    times = [(played[at].snapshot.time_s, played[at + 3].snapshot.time_s) for at in (10, 40)]
    for number, seen in enumerate(played[:59]):
        ended = [
            Incident("x", *each, 2.0, ()) for each, at in zip(times, (13, 43), strict=True) if at == number
        ]
        go(one, seen, ended)
    assert one.task([], played[59]).without == [(since - 60, until + 60) for since, until in times]


def test_a_restart_does_not_learn_from_the_incidents_before_it(folder, played):
    before, _ = trainer(folder)
    start_s, end_s = played[20].snapshot.time_s, played[25].snapshot.time_s
    for number, seen in enumerate(played[:40]):
        go(before, seen, [Incident("x", start_s, end_s, 2.0, ())] if number == 26 else [])
    note = json.loads(json.dumps(before.export()))
    after = Trainer(folder, replace(SETTINGS, train_at=20), 15.0, trained=False, abnormal=note)
    for seen in played[40:59]:
        go(after, seen)
    assert after.task([], played[59]).without == [(start_s - 60, end_s + 60)]


def test_what_people_say_is_no_incident_is_learned_from(folder, played):
    one = Trainer(folder, SETTINGS, 15.0, trained=False, is_real=lambda id: id != "x")
    start_s, end_s = played[20].snapshot.time_s, played[25].snapshot.time_s
    both = [Incident("x", start_s, end_s, 2.0, ()), Incident("y", end_s + 600, end_s + 660, 2.0, ())]
    for number, seen in enumerate(played[:59]):
        go(one, seen, both if number == 26 else [])
    assert one.task([], played[59]).without == [(end_s + 540, end_s + 720)]


def test_a_training_without_enough_memory_fails_alone_and_says_so(folder, played, monkeypatch, caplog):
    monkeypatch.setattr("hopline_mesh.watch.trainer.Task", functools.partial(Task, most_bytes=2**20))
    one, outcomes = trainer(folder)
    for seen in played[:60]:
        go(one, seen)
    until_done(one)
    assert go(one, played[60]) is None
    assert outcomes == ["failed"]
    assert "not enough memory; raise the container's limit" in caplog.text


@pytest.mark.release
def test_what_it_leaves_out_itself_is_reported_in_the_log(tmp_path, caplog):
    state = StateFolder(tmp_path / "state", 2**24, 1e9)
    plan = MeshPlan(services=6, hours=300 * 15 / 3600, autoscale=False, bursts_per_hour=0.0)
    seen = [failing(Seen(*each)) if 100 <= number < 115 else Seen(*each)
            for number, each in enumerate(simulate(plan, 2))]  # fmt: skip
    for each in seen:
        state.append(each.snapshot, each.context)
    one = Trainer(state.folder, replace(SETTINGS, train_at=300), 15.0, trained=False, outcome=list)
    for each in seen:
        go(one, each)
    until_done(one)
    with caplog.at_level("WARNING"):
        while one._process is not None:
            go(one, seen[-1])
    state.close()
    assert "left out as abnormal: " in caplog.text
    assert "error_share" in caplog.text


def failing(seen):
    """The same, with a service of which most requests fail."""
    snapshot = seen.snapshot
    nodes, edges = snapshot.node_features.copy(), snapshot.edge_features.copy()
    nodes[2, snapshot.schema.node_features.index("error_share")] = 0.6
    called = snapshot.edge_dst == snapshot.nodes[2]
    edges[called, snapshot.schema.edge_features.index("error_share")] = 0.6
    return Seen(replace(snapshot, node_features=nodes, edge_features=edges), seen.context)


def test_a_training_that_fails_or_hangs_changes_nothing(folder, played, monkeypatch, caplog):
    one, outcomes = trainer(folder)
    with monkeypatch.context() as patched:
        patched.setattr(module, "_LONGEST_S", 0.0)
        for seen in played[:62]:
            assert go(one, seen) is None
    assert outcomes == ["failed"]
    assert "took longer" in caplog.text
    for path in folder.glob("history-*"):
        path.write_bytes(b"")
    one, outcomes = trainer(folder)
    for seen in played[:60]:
        go(one, seen)
    until_done(one)
    assert go(one, played[60]) is None
    assert outcomes == ["failed"]
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    one, outcomes = trainer(folder)
    for seen in played[:60]:
        assert go(one, seen) is None
    assert outcomes == ["failed"]


def test_a_training_on_few_normal_intervals_does_not_replace_what_was_learned(folder, played, caplog):
    one, outcomes = trainer(folder)
    one._abnormal = {"crash 0": (played[0].snapshot.time_s, played[50].snapshot.time_s)}
    for seen in played[:60]:
        go(one, seen)
    until_done(one)
    assert go(one, played[60]) is None
    assert outcomes == ["failed"]
    assert "9 normal intervals are usable; at least " in caplog.text


def test_intervals_without_measurements_are_not_waited_for_or_learned(tmp_path, played):
    state = StateFolder(tmp_path / "state", 2**24, 1e9)
    one = Trainer(state.folder, SETTINGS, 15.0, trained=False, outcome=list)
    gap = Gap("prometheus", "down")
    for seen in played[:60]:
        empty = seen.snapshot.unmeasured(seen.snapshot.time_s, gap)
        state.append(empty, seen.context)
        one.saw(Seen(empty, seen.context), Verdict(empty.time_s, "blind", 0.0))
        assert one.advance(empty.roster.names, seen) is None
    assert one._process is None
    state.append(played[60].snapshot, played[60].context)
    task = one.task(played[60].snapshot.roster.names, played[60])
    with pytest.raises(SnapshotInvalid, match="1 normal intervals are usable"):
        train(task, io.BytesIO())
    state.close()


@pytest.mark.release
def test_a_training_that_prints_a_lot_ends(folder, played, monkeypatch):
    monkeypatch.setenv("PYTHONVERBOSE", "1")  # more than a pipe holds
    one, outcomes = trainer(folder)
    for seen in played[:60]:
        go(one, seen)
    until_done(one)
    assert any(go(one, seen) is not None for seen in played[60:])
    assert outcomes == ["ok"]


def test_a_training_ends_with_the_watch(folder, played):
    one, _ = trainer(folder)
    for seen in played[:60]:
        go(one, seen)
    process = one._process
    one.close()
    assert process.returncode is not None
