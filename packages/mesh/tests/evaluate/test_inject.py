"""Injected faults: labelled, drawn from a seed, and only where they say."""

from dataclasses import replace

import numpy as np
import pytest

from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.evaluate import Period, Recording
from hopline_mesh.evaluate.inject import DURATION_S, KINDS, SEVERITIES, inject
from hopline_mesh.simulate import MeshPlan, simulate


@pytest.fixture(scope="module")
def normal():
    plan = MeshPlan(services=8, hours=14.0)
    snapshots, contexts = zip(*simulate(plan, 3), strict=True)
    begin, cut = snapshots[0].time_s, snapshots[0].time_s + 3600
    end = snapshots[-1].time_s + 15.0
    return Recording(snapshots, contexts, (), (Period(begin, cut),), (Period(cut, end),), 15.0)


def test_every_kind_and_severity_comes_with_its_label(normal):
    found = inject(normal, 1)
    kinds = [event.kind for event in found.events]
    assert {*kinds} >= {f"{kind} {severity}" for kind in KINDS for severity in SEVERITIES}
    assert all(event.end_s - event.start_s == DURATION_S - 15.0 for event in found.events)
    assert all((event.caller is not None) == (event.kind.split()[0] in ("delay", "dropped"))
               for event in found.events)  # fmt: skip


def test_only_what_a_label_names_and_its_neighbours_change(normal):
    found = inject(normal, 1)
    for before, after in zip(normal.snapshots, found.snapshots, strict=True):
        event = next((each for each in found.events if each.start_s <= after.time_s <= each.end_s), None)
        nodes = np.flatnonzero(~_same(before.node_features, after.node_features).all(axis=1))
        edges = np.flatnonzero(~_same(before.edge_features, after.edge_features).all(axis=1))
        if event is None:
            assert not len(nodes)
            assert not len(edges)
            continue
        names = {after.roster.name(slot) for slot in after.nodes[nodes].tolist()}
        assert names <= {event.service, event.caller}
        assert {after.roster.name(slot) for slot in after.edge_dst[edges].tolist()} <= {event.service}
        after.check()


def _same(one, other):
    return (one == other) | (np.isnan(one) & np.isnan(other))


def test_the_same_seed_gives_the_same_and_another_gives_others(normal):
    one, again, other = (inject(normal, seed).events for seed in (1, 1, 2))
    assert one == again
    assert one != other


def test_what_fails_fails_as_much_as_it_says(normal):
    found = inject(normal, 1)
    event = next(each for each in found.events if each.kind == "errors high")
    column = normal.snapshots[0].schema.node_features.index("error_share")
    for before, after in zip(normal.snapshots, found.snapshots, strict=True):
        if event.start_s <= after.time_s <= event.end_s:
            slot = after.roster.find(event.service)
            row = int(np.flatnonzero(after.nodes == slot)[0])
            more = after.node_features[row, column] - before.node_features[row, column]
            assert more == pytest.approx(0.2, abs=1e-5)


def test_time_with_events_and_a_short_test_are_refused(normal):
    with pytest.raises(SnapshotInvalid, match="has events"):
        inject(inject(normal, 1), 1)
    start = normal.test[0].start_s
    with pytest.raises(SnapshotInvalid, match="too short"):
        inject(replace(normal, test=(Period(start, start + 1200),)), 1)
