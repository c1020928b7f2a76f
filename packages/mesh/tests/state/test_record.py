"""Records of the history are the snapshots that were written, whatever came between."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline_mesh.changes import Change, Context
from hopline_mesh.errors import StateDamaged
from hopline_mesh.roster import Roster
from hopline_mesh.snapshot import Gap
from hopline_mesh.state.record import RecordReader, RecordWriter
from packages.mesh.tests.meshes import same, snapshot
from tests.thorough import thorough

CONTEXT = Context(changes=(Change("scale", "ns/s1", 3.0, detail="3 to 7 pods"),))


@settings(max_examples=thorough(7, 30), deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 3))
def test_snapshots_come_back_under_any_roster(sizes, known):
    writer, roster = RecordWriter(), Roster()
    written = [snapshot(15.0 * i, roster, services=n) for i, n in enumerate(sizes)]
    other = Roster([f"ns/s{i}" for i in reversed(range(known))])
    reader = RecordReader(other)
    for each in written:
        seen = reader.decode(writer.encode(each, CONTEXT))
        assert same(seen.snapshot, each)
        assert seen.context == CONTEXT


def test_a_topology_that_stays_is_written_once():
    writer, roster = RecordWriter(), Roster()
    first = writer.encode(snapshot(0, roster, services=50, edges=200), Context())
    second = writer.encode(snapshot(15, roster, services=50, edges=200), Context())
    features = 50 * 7 * 4 + 200 * 4 * 4
    assert len(second) < features + 100 < len(first)


def test_a_snapshot_that_is_changed_after_it_was_written_is_written_anew():
    writer, roster = RecordWriter(), Roster()
    first = snapshot(0, roster)
    reader = RecordReader(Roster())
    reader.decode(writer.encode(first, Context()))
    first.nodes[:2] = first.nodes[:2][::-1].copy()
    assert same(reader.decode(writer.encode(first, Context())).snapshot, first)


def test_missing_values_and_hostile_names_survive():
    roster = Roster(["ns/\ud800'); DROP TABLE", "ns/" + "x" * 5000, "ns/\x00\u202e"])
    each = snapshot(0, roster, gaps=(Gap("prometheus", "down"),))
    each.node_features[0, :] = np.nan
    each = type(each)(**{**_fields(each), "nodes": np.arange(5, dtype=np.int32)})
    seen = RecordReader(Roster()).decode(RecordWriter().encode(each, Context()))
    assert same(seen.snapshot, each)


def test_a_text_that_is_no_unicode_costs_the_text_only():
    each = snapshot(0, gaps=(Gap("prometheus", "\ud800"),))
    seen = RecordReader(Roster()).decode(RecordWriter().encode(each, CONTEXT))
    assert seen.snapshot.gaps == ()
    assert seen.snapshot.node_features.tobytes() == each.node_features.tobytes()


def test_a_record_without_those_before_it_is_refused():
    writer, roster = RecordWriter(), Roster()
    writer.encode(snapshot(0, roster), Context())
    second = writer.encode(snapshot(15, roster), Context())
    with pytest.raises(StateDamaged):
        RecordReader(Roster()).decode(second)
    with pytest.raises(StateDamaged):
        RecordReader(Roster()).decode(b"\x93\x01")


def _fields(each):
    return {name: getattr(each, name) for name in type(each).__dataclass_fields__}
