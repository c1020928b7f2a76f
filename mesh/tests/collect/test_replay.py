"""A recording that is played as if it were live."""

import numpy as np
import pytest

from hopline_mesh.changes import Change, Context
from hopline_mesh.collect.replay import Replay
from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.evaluate import Period, Recording
from hopline_mesh.evaluate.record import write_folder
from hopline_mesh.roster import Roster
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import Snapshot

NOW = 1_800_000_000.0
THEN = 1_700_000_000.0


def recording(num_snapshots=3):
    roster, schema = Roster(["shop/web", "shop/cart"]), Schema()
    snapshots = [
        Snapshot(
            THEN + 15 * step,
            schema,
            roster,
            np.array([0, 1], np.int32),
            np.full((2, len(schema.node_features)), step / 4, np.float32),
            np.array([0], np.int32),
            np.array([1], np.int32),
            np.full((1, len(schema.edge_features)), step / 4, np.float32),
        )
        for step in range(num_snapshots)
    ]
    known = Context(
        (Change("rollout", "shop/cart", THEN + 10, None), Change("scale", "shop/web", THEN - 2, THEN - 1))
    )
    contexts = [Context(), *[known] * (num_snapshots - 1)][:num_snapshots]
    train, test = (Period(THEN + 15 * step, THEN + 15 * (step + 1)) for step in (0, 1))
    return Recording(snapshots, contexts, [], (train,), (test,), 15.0, name="played")


async def test_snapshots_come_in_order_with_the_time_of_now(tmp_path):
    write_folder(recording(), tmp_path / "mesh")
    replay = Replay.of_folder(tmp_path / "mesh")
    for step in range(3):
        assert replay.left == 3 - step
        snapshot = await replay.collect(NOW + 15 * step)
        snapshot.check()
        assert snapshot.time_s == NOW + 15 * step
        assert (snapshot.node_features == step / 4).all()
        assert snapshot.roster is replay.roster
        assert snapshot.schema == replay.schema


async def test_changes_are_those_of_that_time_moved_to_now():
    replay = Replay(recording())
    assert replay.context(NOW) == (Context(), ())
    await replay.collect(NOW)
    assert replay.context(NOW)[0].changes == ()
    await replay.collect(NOW + 15)
    rollout, scale = replay.context(NOW + 15)[0].changes
    assert (rollout.start_s, rollout.end_s) == (NOW + 10, None)
    assert scale.end_s - scale.start_s == 1.0


async def test_behind_its_end_it_is_blind():
    replay = Replay(recording(1))
    await replay.collect(NOW)
    for step in (1, 2):
        snapshot = await replay.collect(NOW + 15 * step)
        snapshot.check()
        assert snapshot.time_s == NOW + 15 * step
        assert np.isnan(snapshot.node_features).all()
        assert np.isnan(snapshot.edge_features).all()
        assert [gap.reason for gap in snapshot.gaps] == ["played is over"]


def test_an_empty_one_cannot_be_played():
    with pytest.raises(SnapshotInvalid, match="played: it has no snapshots"):
        Replay(recording(0))
