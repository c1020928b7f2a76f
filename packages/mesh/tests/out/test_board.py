"""The board: what it keeps, for how long, and what it makes of clocks and restarts."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.errors import BadRequest
from hopline_mesh.changes import Change, Context
from hopline_mesh.detect.calls import COLUMN
from hopline_mesh.errors import IncidentNotFound, StateDamaged
from hopline_mesh.out.board import KEEP_S, MAX_INCIDENTS, Board
from hopline_mesh.out.live_graph import live_graph
from hopline_mesh.out.record import MAX_POINTS, MAX_SERIES, Point, Series, seen_in
from hopline_mesh.roster import Roster
from packages.mesh.tests.out.drawn import CALLS, SERVICES, incident, snapshot, verdict
from tests.thorough import thorough


def test_evidence_is_followed_from_before_the_incident_to_after_its_end() -> None:
    board = Board()
    for number in range(30):
        time_s = 15.0 * number
        going = (
            [incident(start_s=150.0, end_s=300.0 if number == 20 else None)] if 10 <= number <= 20 else []
        )
        seen = 800.0 if going else 40.0
        board.publish(verdict(time_s, *going), snapshot(time_s, p99_ms=seen))
    record = board.incident("i-1")
    points = record.series[0].points
    assert [point.time_s for point in points] == [15.0 * number for number in range(30)]
    assert [point.seen for point in points] == [40.0] * 10 + [800.0] * 11 + [40.0] * 9
    assert [point.expected for point in points] == [None] * 10 + [40.0] * 10 + [None] * 10
    assert record.incident.end_s == 300.0


def test_charts_of_a_large_mesh_begin_later(monkeypatch: pytest.MonkeyPatch) -> None:
    board, shown = Board(), snapshot(0.0)
    size = shown.node_features.nbytes + shown.edge_features.nbytes
    monkeypatch.setattr("hopline_mesh.out.board._LEAD_BYTES", 3 * size)
    for number in range(10):
        board.publish(verdict(15.0 * number), snapshot(15.0 * number))
    board.publish(verdict(150.0, incident(start_s=150.0)), snapshot(150.0))
    points = board.incident("i-1").series[0].points
    assert [point.time_s for point in points] == [105.0, 120.0, 135.0, 150.0]


def test_incident_that_a_verdict_no_longer_names_is_over_unless_it_is_blind() -> None:
    board = Board()
    board.publish(verdict(1000.0, incident()), snapshot(1000.0))
    board.publish(verdict(1015.0, state="blind"))
    assert len(board.open_incidents()) == 1
    board.publish(verdict(1030.0), snapshot(1030.0))
    assert board.open_incidents() == []
    assert board.incidents()[0].incident.end_s == 1030.0


def test_service_or_call_path_that_is_gone_is_reported_as_such() -> None:
    board, roster = Board(), Roster()
    board.publish(verdict(1000.0, incident()), snapshot(1000.0, roster=roster))
    board.publish(verdict(1015.0, incident(seen=None)), snapshot(1015.0, SERVICES[:1], (), roster=roster))
    record = board.incident("i-1")
    assert [series.points[-1].seen for series in record.series] == [None, None]
    assert [series.points[0].seen for series in record.series] == [40.0, 41.0]


def test_interval_in_which_nothing_was_collected_leaves_the_last_graph_up() -> None:
    board = Board()
    board.publish(verdict(985.0, state="blind"), snapshot(985.0, (), ()))
    assert not board.ready
    board.publish(verdict(1000.0), snapshot(1000.0))
    board.publish(verdict(1015.0, state="blind"), snapshot(1015.0, (), ()))
    graph = live_graph(board)
    assert graph is not None
    assert (graph["time_s"], len(graph["nodes"])) == (1000.0, 4)
    assert board.metrics.snapshots.value == 1
    board.publish(verdict(1030.0), snapshot(1030.0, (), ()))  # a mesh may be empty
    graph = live_graph(board)
    assert graph is not None
    assert graph["nodes"] == []


@settings(deadline=None, max_examples=thorough(12, 50))
@given(st.lists(st.floats(0, 1e6, allow_nan=False), max_size=3 * MAX_POINTS))
def test_series_stays_bounded_and_in_order_whatever_the_clock_does(times: list[float]) -> None:
    series = Series("p99_ms", "shop/cart", None)
    for time_s in times:
        series.add(Point(time_s, None, 1.0))
    kept = [point.time_s for point in series.points]
    assert len(kept) <= MAX_POINTS
    assert kept == sorted(set(kept))
    assert not times or kept[-1] == times[-1]


def test_what_is_kept_is_bounded() -> None:
    board = Board()
    shown = snapshot(0.0)
    for number in range(MAX_INCIDENTS + 20):
        board.publish(verdict(float(number), incident(f"i-{number}", start_s=float(number))), shown)
    assert len(board.incidents()) <= MAX_INCIDENTS
    assert all(len(record.series) <= MAX_SERIES for record in board.incidents())
    board.publish(verdict(300.0), shown)
    board.publish(verdict(KEEP_S + 10_000.0), shown)
    assert board.incidents() == []
    many = [incident(f"m-{number}", start_s=KEEP_S + 10_000.0) for number in range(4 * MAX_INCIDENTS)]
    board.publish(verdict(KEEP_S + 10_015.0, *many), shown)
    assert len(board.incidents()) <= 2 * MAX_INCIDENTS


def test_restart_keeps_incidents_and_their_evidence() -> None:
    before = Board()
    before.publish(verdict(1000.0, incident()), snapshot(1000.0))
    after = Board()
    assert not after.ready
    after.restore(json.loads(json.dumps(before.export())))
    assert after.ready
    after.publish(verdict(1015.0, incident()), snapshot(1015.0))
    record = after.incident("i-1")
    assert [point.time_s for point in record.series[0].points] == [1000.0, 1015.0]
    assert after.metrics.incidents.value == 0, "it did not begin here"


@pytest.mark.parametrize("state", [{}, {"records": 1}, {"records": [{"incident": {}}]}])
def test_state_that_is_something_else_is_reported(state: dict[str, object]) -> None:
    with pytest.raises(StateDamaged, match="saved incidents"):
        Board().restore(state)


def test_planned_changes_leave_a_trace_over_a_restart() -> None:
    board = Board()
    rollout = Change("rollout", "shop/cart", 900.0, detail="new version")
    board.publish(verdict(1000.0), snapshot(1000.0), context=Context((rollout,)))
    over = msgspec.structs.replace(rollout, end_s=1010.0)
    board.publish(verdict(1015.0), snapshot(1015.0), context=Context((over,)))
    board.publish(verdict(5000.0), snapshot(5000.0), context=Context())
    assert board.changes() == [over]
    again = Board()
    again.restore(json.loads(json.dumps(board.export())))
    assert again.changes() == [over]
    again.publish(verdict(1010.0 + KEEP_S + 1), snapshot(40_000.0), context=Context())
    assert again.changes() == []


def test_marks_mute_and_unmute_and_survive_a_restart() -> None:
    board = Board(clock=lambda: 7.0)
    board.publish(verdict(1000.0, incident()), snapshot(1000.0))
    assert (board.is_muted("i-1"), board.is_real("i-1")) == (False, True)
    board.mark("i-1", "acknowledged", "ada")
    assert (board.is_muted("i-1"), board.is_real("i-1")) == (False, True)
    board.mark("i-1", "muted")
    assert (board.is_muted("i-1"), board.is_real("i-1")) == (True, True)
    board.mark("i-1", "not_an_incident", "ada")
    assert (board.is_muted("i-1"), board.is_real("i-1")) == (True, False)
    # From a checkpoint, and from the note, which is newer.
    restored, noted = Board(), Board()
    restored.restore(json.loads(json.dumps(board.export())))
    noted.publish(verdict(1000.0, incident()), snapshot(1000.0))
    noted.restore_marks(json.loads(json.dumps(msgspec.to_builtins(board.marks()))))
    assert not restored.is_real("i-1")
    assert not noted.is_real("i-1")
    board.mark("i-1", None)
    assert (board.is_muted("i-1"), board.is_real("i-1")) == (False, True)
    noted.restore_marks("something else")
    with pytest.raises(IncidentNotFound):
        board.mark("absent", "muted")


def test_marks_of_a_restart_are_the_newest_whether_in_the_checkpoint_or_the_note() -> None:
    now = [0.0]
    board = Board(clock=lambda: now[0])
    board.publish(verdict(1000.0, incident()), snapshot(1000.0))
    empty = msgspec.to_builtins(board.marks())
    now[0] = 7.0
    board.mark("i-1", "not_an_incident")  # after its end: no note is written any more
    with_mark = board.export()
    after = Board()
    after.restore(with_mark)
    after.restore_marks(empty)
    assert not after.is_real("i-1")
    now[0] = 9.0
    board.mark("i-1", None)
    after.restore(with_mark)
    after.restore_marks(msgspec.to_builtins(board.marks()))
    assert after.is_real("i-1")
    assert after.incident("i-1").mark is None


def test_the_name_of_an_incident_stays_where_another_service_is_suspected_later() -> None:
    board = Board()
    board.publish(verdict(1000.0, incident()), snapshot(1000.0))
    board.publish(verdict(1015.0, incident(service="shop/db")), snapshot(1015.0))
    record = board.incident("i-1")
    assert (record.name, record.incident.suspects[0].service) == ("shop/cart", "shop/db")


def test_scores_come_in_the_order_of_services() -> None:
    board, shown = Board(), snapshot()
    board.publish(verdict(), shown)
    assert np.isnan(board.shown[1]).all()
    board.publish(verdict(), shown, np.array([0.1, 0.2, 0.3, 0.4], np.float32))
    graph = live_graph(board)
    assert graph is not None
    assert [node["score"] for node in graph["nodes"]] == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_seen_in_reads_the_same_as_one_by_one() -> None:
    shown = snapshot(roster=Roster(["other", *reversed(SERVICES)]))
    shown.edge_features[:, 2] = np.arange(len(CALLS))
    keys = {("p99_ms", name, None) for name in SERVICES}
    keys |= {("client_ms", callee, caller) for caller, callee in CALLS}
    keys |= {
        ("cpu_cores", "shop/web", None),
        ("client_ms", "shop/web", "shop/db"),
        ("p99_ms", "other", None),
    }
    keys |= {("oom_kill", "shop/web", None), ("p99_ms", "never seen", None)}
    found = seen_in(shown, keys)
    assert {key: found[key] for key in found if found[key] is not None} == {
        **{("p99_ms", name, None): 40.0 for name in SERVICES},
        **{("client_ms", callee, caller): float(row) for row, (caller, callee) in enumerate(CALLS)},
    }
    assert ("oom_kill", "shop/web", None) not in found, "no column of a snapshot"
    assert found["client_ms", "shop/web", "shop/db"] is None


def test_seen_in_counts_calls_per_request() -> None:
    shown = snapshot()
    caller, callee = CALLS[0]
    row = shown.roster.find(caller)
    shown.node_features[shown.nodes == row, shown.schema.node_features.index("request_rate")] = 4.0
    shown.edge_features[0, shown.schema.edge_features.index("request_rate")] = 10.0
    key = (COLUMN, callee, caller)
    assert seen_in(shown, {key}) == {key: 2.5}
    assert seen_in(shown, {(COLUMN, callee, None), (COLUMN, caller, callee)}) == {
        (COLUMN, caller, callee): None
    }


def test_part_of_a_large_mesh_is_the_suspects_the_worst_and_what_is_around_them() -> None:
    names = tuple(f"shop/s{number}" for number in range(1000))
    calls = tuple((names[number], names[number + 1]) for number in range(999))
    board = Board()
    scores = np.linspace(0.0, 0.5, 1000, dtype=np.float32)
    scores[500] = 2.0
    suspected = incident(service="shop/s3", caller="shop/s2")
    board.publish(verdict(1000.0, suspected), snapshot(1000.0, names, calls), scores)
    graph = live_graph(board, limit=20)
    assert graph is not None
    assert (graph["total_services"], graph["total_edges"], len(graph["nodes"])) == (1000, 999, 20)
    shown = [node["service"] for node in graph["nodes"]]
    assert {"shop/s2", "shop/s3", "shop/s500", "shop/s499", "shop/s501", "shop/s999", "shop/s4"} <= set(
        shown
    )
    by_name = {(shown[edge["caller"]], shown[edge["callee"]]): edge for edge in graph["edges"]}
    assert by_name["shop/s2", "shop/s3"]["blamed"]
    assert by_name["shop/s2", "shop/s3"]["share"] == 1.0
    around = live_graph(board, limit=5, around="shop/s700")
    assert around is not None
    assert {node["service"] for node in around["nodes"]} == {
        f"shop/s{number}" for number in range(698, 703)
    }
    with pytest.raises(BadRequest, match="service 'absent' was not in the last interval"):
        live_graph(board, limit=5, around="absent")
