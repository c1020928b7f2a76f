"""A folder of snapshots: what is written is read again."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopline.errors import ConfigError
from hopline_mesh.changes import Change, Context, KubernetesTrouble
from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.evaluate import Event, Period, Recording
from hopline_mesh.evaluate.folder import read_folder
from hopline_mesh.evaluate.known import contexts_at
from hopline_mesh.evaluate.record import Recorder
from hopline_mesh.evaluate.times import parse
from hopline_mesh.roster import Roster
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import Snapshot
from packages.mesh.tests.evaluate.files import NODES, T0, files, write_folder
from tests.thorough import thorough


@pytest.fixture
def folder(tmp_path):
    return files(tmp_path)


def test_it_is_read_as_it_stands(folder):
    one = read_folder(folder)
    assert [snapshot.time_s for snapshot in one.snapshots] == [T0, T0 + 60, T0 + 120, T0 + 180]
    assert one.interval_s == 60.0
    assert one.snapshots[0].schema == Schema(("p99_ms", "error_share"), ("client_ms",))
    for snapshot in one.snapshots:
        snapshot.check()
    first, second, third, _ = one.snapshots
    np.testing.assert_array_equal(first.node_features, np.float32([[12.5, 0], [30, math.nan]]))
    np.testing.assert_array_equal(second.node_features[1], np.float32([math.nan, 0]))
    assert [second.roster.name(slot) for slot in (*second.edge_src, *second.edge_dst)] == ["shop", "cart"]
    assert np.isnan(second.edge_features).all()
    assert len(third.edge_src) == 0
    assert one.events == [Event(T0 + 120, T0 + 180, "cart", None, "cpu")]
    assert one.contexts == [Context()] * 4
    assert one.train == (Period(T0, T0 + 60),)
    assert one.test == (Period(T0 + 60, T0 + 240),)


def test_a_mesh_without_known_call_paths_has_a_header_for_them(tmp_path):
    one = read_folder(files(tmp_path, edges="time,source,destination\n"))
    assert [len(snapshot.edge_src) for snapshot in one.snapshots] == [0] * 4
    for snapshot in one.snapshots:
        snapshot.check()


@pytest.mark.parametrize(
    "text",
    [
        "1767225600",
        "1767225600.0",
        "2026-01-01T00:00:00Z",
        "2026-01-01 01:00:00+01:00",
        "2026-01-01T00:00:00",
    ],
)
def test_times_are_unix_seconds_or_iso(text):
    assert parse(text) == T0


@pytest.mark.parametrize("text", ["", "noon", "nan", "inf", "1767225600000", "-5", "2026-13-01", "12:00"])
def test_what_is_no_time_is_none(text):
    assert parse(text) is None


def test_parquet_says_the_same(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("parquet")
    moments = [T0 + 60 * (row // 2) for row in range(8)]
    rows = [line.split(",") for line in NODES.splitlines()[1:]]

    def number(text):
        return float(text) if text not in ("", "NaN") else None

    table = pa.table(
        {
            "time": pa.array([int(moment * 1e6) for moment in moments], pa.timestamp("us", "UTC")),
            "service": [row[1] for row in rows],
            "p99_ms": pa.array([number(row[2]) for row in rows], pa.float64()),
            "error_share": pa.array([number(row[3]) for row in rows], pa.float32()),
        }
    )
    pq.write_table(table, other / "nodes.parquet")
    read = read_folder(files(other, nodes=None))
    for one, same in zip(read_folder(folder).snapshots, read.snapshots, strict=True):
        assert one.time_s == same.time_s
        np.testing.assert_array_equal(one.node_features, same.node_features)


def test_labels_of_call_paths_name_the_end_to_blame(tmp_path):
    rows = "start,end,service,source,destination,kind\n"
    span = "2026-01-01T00:02:00Z,2026-01-01T00:03:00Z"
    rows += f"{span},,shop,cart,slow\n{span},shop,shop,cart,storm\n{span},cart,shop,cart,slow\n"
    events = read_folder(files(tmp_path, labels=rows)).events
    assert [(event.service, event.path) for event in events] == [
        ("cart", ("shop", "cart")),
        ("shop", ("shop", "cart")),
        ("cart", ("shop", "cart")),
    ]


def test_what_is_known_of_a_time_has_nothing_of_the_future(tmp_path):
    changes = "time,end,service,kind,detail\n2026-01-01T00:01:00Z,2026-01-01T00:03:00Z,cart,rollout,v2\n"
    troubles = "start,service,kind\n2026-01-01T00:02:30Z,cart,crash_loop\n"
    contexts = read_folder(files(tmp_path, changes=changes, troubles=troubles)).contexts
    going, over = (Change("rollout", "cart", T0 + 60, end, "v2") for end in (None, T0 + 180))
    assert [context.changes for context in contexts] == [(), (going,), (going,), (over,)]
    trouble = KubernetesTrouble("crash_loop", "cart", T0 + 150)
    assert [context.troubles for context in contexts] == [(), (), (), (trouble,)]


def test_pods_of_a_scaling_are_written_and_read(tmp_path, folder):
    one = read_folder(folder)
    changes = (Change("scale", "cart", T0, None, "more", 3, 7), Change("scale", "shop", T0 + 1))
    with Recorder(tmp_path / "new", one.snapshots[0].schema) as recorder:
        for snapshot in one.snapshots:
            recorder.add(snapshot, Context(changes))
        recorder.label(one.events[0])
    assert read_folder(tmp_path / "new").contexts[-1].changes == changes


def test_what_ended_long_ago_is_forgotten():
    change = Change("scale", "cart", 0.0, 100.0)
    known = contexts_at([50.0, 100.0, 700.0, 701.0], [change], [])
    assert [len(context.changes) for context in known] == [1, 1, 1, 0]


def test_a_folder_may_name_itself_its_interval_and_its_periods(tmp_path):
    told = (
        'name = "shop"\ninterval_s = 60\ntrain = [[2026-01-01T00:00:00Z, 2026-01-01T00:01:00Z]]\n'
        'test = [["2026-01-01T00:02:00Z", 1767225900]]\n[cpu_limits]\ncart = 0.5\n'
    )
    one = read_folder(files(tmp_path, mesh=told))
    assert (one.name, one.interval_s, one.cpu_limits) == ("shop", 60.0, {"cart": 0.5})
    assert one.train == (Period(T0, T0 + 60),)
    assert one.test == (Period(T0 + 120, T0 + 300),)


def test_a_date_in_a_period_is_its_first_moment(tmp_path):
    one = read_folder(files(tmp_path, mesh="train = [[2026-01-01, 2026-01-01T00:01:00Z]]\n"))
    assert one.train == (Period(T0, T0 + 60),)


names = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=6)
values = st.one_of(
    st.just(math.nan), st.floats(0, 2.0**100, width=32), st.sampled_from([0.0, 1e-40, 3.4e38, 1 / 3])
)


@st.composite
def recordings(draw):
    services = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    schema = Schema(("p99_ms", "load"), draw(st.sampled_from([(), ("client_ms",)])))
    roster = Roster(services)
    snapshots = []
    for at in range(draw(st.integers(2, 4))):
        there = (
            draw(st.lists(st.sampled_from(range(len(services))), min_size=1, unique=True))
            if at
            else range(len(services))
        )
        nodes = np.array(sorted(there), dtype=np.int32)
        pairs = draw(st.lists(st.tuples(*[st.sampled_from(sorted(there))] * 2), max_size=4, unique=True))
        ends = np.array(pairs, dtype=np.int32).reshape(-1, 2)

        def array(rows, width):
            return np.array(
                draw(st.lists(values, min_size=rows * width, max_size=rows * width)), dtype=np.float32
            ).reshape(rows, width)

        snapshots.append(
            Snapshot(
                T0 + 15.25 * at,
                schema,
                roster,
                nodes,
                array(len(nodes), 2),
                ends[:, 0],
                ends[:, 1],
                array(len(ends), len(schema.edge_features)),
            )
        )
    events = [
        Event(T0 + start, T0 + start + 5, draw(st.sampled_from(services)), None, draw(names))
        for start in draw(st.lists(st.integers(0, 60), max_size=3, unique=True))
    ]
    change = Change("scale", draw(names), T0 + 10, draw(st.sampled_from([None, T0 + 20])), draw(names))
    return Recording(
        snapshots=snapshots,
        contexts=contexts_at([snapshot.time_s for snapshot in snapshots], [change], []),
        events=sorted(events, key=lambda event: event.start_s),
        train=(Period(T0, T0 + 10),),
        test=(Period(T0 + 10, T0 + 100),),
        interval_s=15.25,
        cpu_limits=dict.fromkeys(services, 0.1),
        name=draw(names),
    )


@settings(max_examples=thorough(10, 40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(recordings())
def test_what_is_written_is_read_again(tmp_path_factory, one):
    folder = tmp_path_factory.mktemp("round")
    write_folder(one, folder)
    read = read_folder(folder)
    for was, now in zip(one.snapshots, read.snapshots, strict=True):
        assert was.time_s == now.time_s
        assert was.schema == now.schema
        for ends in ("nodes", "edge_src", "edge_dst"):
            named = [[s.roster.name(slot) for slot in getattr(s, ends)] for s in (was, now)]
            assert named[0] == named[1]
        assert np.array_equal(was.node_features, now.node_features, equal_nan=True)
        assert np.array_equal(was.edge_features, now.edge_features, equal_nan=True)
    for what in ("contexts", "events", "train", "test", "interval_s", "cpu_limits", "name"):
        assert getattr(one, what) == getattr(read, what), what


def test_a_recorder_writes_as_it_goes_and_notes_the_newest_of_a_change(tmp_path, folder):
    one = read_folder(folder)
    with Recorder(tmp_path / "new", one.snapshots[0].schema) as recorder:
        for number, snapshot in enumerate(one.snapshots):
            ended = None if number < 3 else snapshot.time_s
            recorder.add(snapshot, Context((Change("drain", "cart", T0, ended),)))
        recorder.label(one.events[0])
    read = read_folder(tmp_path / "new")
    assert read.events == one.events
    assert [context.changes[0].end_s for context in read.contexts] == [None, None, None, T0 + 180]


def test_a_recording_is_not_written_over(folder):
    with pytest.raises(ConfigError, match=r"has a recording \(.*csv\); choose a new folder"):
        Recorder(folder, Schema())


def test_a_recorder_refuses_other_columns(tmp_path, folder):
    one = read_folder(folder).snapshots[0]
    with (
        Recorder(tmp_path / "new", Schema()) as recorder,
        pytest.raises(SnapshotInvalid, match="other columns than the recording's"),
    ):
        recorder.add(one)
