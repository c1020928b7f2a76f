"""What was acknowledged is in the graph that a new process makes of the folder, once."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import numpy as np
import pytest

from hopline.errors import Conflict, GraphError, LogDamaged, LogFailed, LogFull
from hopline.files import draft_of
from hopline.graph import Graph
from hopline.graph.live import home as home_module
from hopline.graph.live import keeper as keeper_module
from hopline.graph.live.changes import Changes, EdgeChanges
from hopline.graph.live.home import LiveHome
from hopline.graph.live.state import State, read_state
from tests.graph.live.conftest import SmallDisk
from tests.graph.live.keepers import EDGE, SOURCE, Kept, base_graph, numbered


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return base_graph().save(tmp_path_factory.mktemp("base") / "graph")


def log_bytes(kept: Kept) -> int:
    return sum(path.stat().st_size for path in (kept.home.folder / "log").glob("*.wal"))


def test_changes_are_there_after_a_restart(tmp_path: Path, graph: Graph) -> None:
    first = Kept(tmp_path / "live", graph)
    assert first.send(0, 10) == (1, 10, [])
    assert first.apply(numbered(10, 15), numbered(15, 20)) == [(2, 5, []), (3, 5, [])]
    wanted = first.view.snapshot()
    first.close()
    again = Kept(tmp_path / "live", graph)
    assert again.num_replayed == 3
    assert again.view.snapshot().version == wanted.version
    assert again.keeper.positions == {SOURCE: 20}
    with again.view:
        assert again.view.version == f"{graph.version}+3"
    again.close()


def test_a_live_folder_that_is_removed_gets_no_events_and_no_snapshots(
    tmp_path: Path, graph: Graph
) -> None:
    first = Kept(tmp_path / "live", graph)
    first.send(0, 10)
    before = first.view.snapshot().version
    shutil.rmtree(tmp_path / "live")
    with pytest.raises(LogFailed, match="was removed or replaced"):
        first.send(10, 20)
    with pytest.raises(GraphError, match="was removed or replaced"):
        first.snapshot()
    assert first.view.snapshot().version == before
    assert not (tmp_path / "live").exists()


@pytest.mark.parametrize("with_snapshot", [True, False])
@pytest.mark.parametrize("emptied", [True, False])
def test_a_missing_log_beside_the_manifest_is_refused(
    tmp_path: Path, graph: Graph, with_snapshot: bool, emptied: bool
) -> None:
    first = Kept(tmp_path / "live", graph)
    first.send(0, 10)
    if with_snapshot:
        first.snapshot()
        first.send(10, 20)
    first.close()
    shutil.rmtree(tmp_path / "live" / "log")
    if emptied:
        (tmp_path / "live" / "log").mkdir()
    for _ in range(2):  # a refusal makes no log either
        with pytest.raises(LogDamaged, match=r"live/log has no log, but \S*live\.json exists"):
            Kept(tmp_path / "live", graph)


def test_an_event_that_comes_again_changes_nothing(tmp_path: Path, graph: Graph) -> None:
    first = Kept(tmp_path / "live", graph)
    first.send(0, 10)
    assert first.send(5, 12) == (2, 2, [0, 1, 2, 3, 4])
    # in one group, and within one batch
    both = Changes({**numbered(12, 14).edges}, {}, 2, ["same", "same"])
    assert first.apply(numbered(14, 16), numbered(14, 17), both) == [
        (3, 2, []),
        (4, 1, [0, 1]),
        (5, 1, [1]),
    ]
    first.close()
    again = Kept(tmp_path / "live", graph)
    assert again.send(0, 12) == (5, 0, list(range(12)))  # rebuilt from the log
    again.snapshot()
    again.close()
    last = Kept(tmp_path / "live", graph)
    assert last.num_replayed == 0
    assert last.send(10, 18)[2] == [0, 1, 4, 5, 6]  # and from the snapshot
    assert last.numbers == sorted([12, *range(18)])
    last.close()


def test_an_event_that_repeats_a_refused_one_is_no_duplicate(tmp_path: Path, graph: Graph) -> None:
    """A duplicate is in the graph; what is told as one is not sent again."""
    kept = Kept(tmp_path / "live", graph)
    ends, times = np.array([99, 1, 1, 99]), np.arange(4)
    edges = EdgeChanges(ends, np.zeros(4, int), np.zeros(4, np.bool_), np.arange(4), times)
    batch = Changes({EDGE: edges}, {}, 4, ["a", "a", "b", "c"])
    later = Changes({**numbered(10, 12).edges}, {}, 2, ["c", "b"])
    first, second = kept.keeper.apply([batch, later])
    assert (first.num_applied, list(first.duplicates)) == (1, [])
    assert [(each.order, each.code) for each in first.rejected] == [
        (0, "unknown_node"),
        (1, "unknown_node"),
        (3, "unknown_node"),
    ]
    assert "an earlier event with this id was refused" in first.rejected[1].reason
    assert (second.num_applied, list(second.duplicates)) == (0, [1])
    assert [each.order for each in second.rejected] == [0]
    assert kept.apply(later) == [(2, 1, [1])]  # sent again
    assert kept.numbers == [2, 10]
    kept.close()


def test_a_snapshot_takes_the_place_of_the_log(tmp_path: Path, graph: Graph) -> None:
    folder = tmp_path / "live"
    kept = Kept(folder, graph, segment_bytes=2000)
    for i in range(40):
        kept.send(5 * i, 5 * i + 5)
        if i in (9, 19, 29):
            before = log_bytes(kept)
            entry = kept.snapshot()
            assert entry.sequence == i + 1
            assert (log_bytes(kept) < before) == (i > 9)  # the log since the one before is kept
            assert kept.snapshot() is None
    assert [entry.sequence for entry in kept.home.snapshots] == [30, 20]
    assert sorted(path.name for path in (folder / "snapshots").iterdir()) == [
        f"{sequence:020d}" for sequence in (20, 30)
    ]
    assert kept.home.log.first <= 21
    changed_at = {name: nodes.changed_at.copy() for name, nodes in kept.view.nodes.items()}
    kept.close()
    again = Kept(folder, graph)
    assert again.num_replayed == 10
    assert again.numbers == list(range(200))
    assert again.keeper.positions == {SOURCE: 200}
    for name, nodes in again.view.nodes.items():
        np.testing.assert_array_equal(nodes.changed_at[:, :50], changed_at[name][:, :50])
    again.close()


def test_changes_that_come_while_a_snapshot_is_written_are_not_in_it(tmp_path: Path, graph: Graph) -> None:
    kept = Kept(tmp_path / "live", graph)
    kept.send(0, 10)
    draft = kept.keeper.begin_snapshot()
    assert draft is not None
    kept.send(10, 20)
    entry = kept.keeper.write_snapshot(draft)
    assert entry.sequence == 1
    state = read_state(tmp_path / "live" / entry.folder / "state.bin")
    assert (state.positions, len(state.seen)) == ({SOURCE: 10}, 10)
    assert max(array.max() for array in state.changed_at.values()) == 1
    assert Graph.open(tmp_path / "live" / entry.folder / "graph", verify=True).num_edges == 110
    kept.close()
    again = Kept(tmp_path / "live", graph)
    assert (again.num_replayed, again.numbers) == (1, list(range(20)))
    again.close()


def two_snapshots(folder: Path, graph: Graph) -> None:
    kept = Kept(folder, graph, segment_bytes=500)
    for i in range(9):
        kept.send(5 * i, 5 * i + 5)
        if i in (2, 5):
            kept.snapshot()
    kept.close()


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("file", "at"),
    [
        ("state.bin", -9),
        ("graph/graph.json", 30),
        ("graph/nodes/node/features.npy", -9),
        ("graph/edges/*/time.npy", -9),
    ],
)
def test_a_damaged_snapshot_falls_back_to_the_one_before(
    tmp_path: Path, graph: Graph, file: str, at: int
) -> None:
    folder = tmp_path / "live"
    two_snapshots(folder, graph)
    newest, older = f"{6:020d}", f"{3:020d}"
    flip(next((folder / "snapshots" / newest).glob(file)), at)
    kept = Kept(folder, graph)
    assert (kept.num_replayed, kept.numbers) == (6, list(range(45)))
    kept.send(45, 50)
    assert kept.snapshot().sequence == 10
    assert [entry.sequence for entry in kept.home.snapshots] == [10, 3]
    assert sorted(path.name for path in (folder / "snapshots").iterdir()) == [older, f"{10:020d}"]
    kept.close()
    again = Kept(folder, graph)
    assert (again.num_replayed, again.numbers) == (0, list(range(50)))
    again.close()


def test_a_snapshot_of_the_sequence_of_a_damaged_one_replaces_it(tmp_path: Path, graph: Graph) -> None:
    folder = tmp_path / "live"
    kept = Kept(folder, graph)
    kept.send(0, 5)
    kept.snapshot()
    kept.close()
    flip(folder / "snapshots" / f"{1:020d}" / "state.bin", -1)
    kept = Kept(folder, graph)  # from the graph that it all began with
    assert (kept.num_replayed, kept.numbers) == (1, list(range(5)))
    kept.snapshot()
    kept.close()
    assert read_state(folder / "snapshots" / f"{1:020d}" / "state.bin").sequence == 1


def test_damage_everywhere_is_refused_and_says_what_to_do(tmp_path: Path, graph: Graph) -> None:
    folder = tmp_path / "live"
    two_snapshots(folder, graph)
    for sequence in (3, 6):
        flip(folder / "snapshots" / f"{sequence:020d}" / "state.bin", -1)
    with pytest.raises(
        LogDamaged, match=r"state\.bin.*log has changes . to 9, but 1 to .* are needed.*restore"
    ):
        Kept(folder, graph)


def test_a_damaged_snapshot_without_its_log_is_refused(tmp_path: Path, graph: Graph) -> None:
    folder = tmp_path / "live"
    two_snapshots(folder, graph)
    flip(folder / "snapshots" / f"{6:020d}" / "state.bin", -1)
    shutil.rmtree(folder / "log")
    with pytest.raises(LogDamaged, match="has no log"):
        Kept(folder, graph)


def test_a_snapshot_that_was_being_written_is_swept_away(tmp_path: Path, graph: Graph) -> None:
    folder = tmp_path / "live"
    two_snapshots(folder, graph)
    half = draft_of(folder / "snapshots" / f"{9:020d}") / "graph"
    half.mkdir(parents=True)
    manifest = draft_of(folder / "live.json")
    manifest.write_bytes(b"half")
    kept = Kept(folder, graph)
    assert kept.numbers == list(range(45))
    assert len(list((folder / "snapshots").iterdir())) == 2
    assert not manifest.exists()
    kept.close()


def test_a_snapshot_that_was_published_but_not_named_is_no_harm(tmp_path: Path, graph: Graph) -> None:
    """Killed between the rename of the folder and that of the manifest."""
    folder = tmp_path / "live"
    kept = Kept(folder, graph)
    kept.send(0, 5)
    manifest = (folder / "live.json").read_bytes()
    kept.snapshot()
    kept.close()
    (folder / "live.json").write_bytes(manifest)
    kept = Kept(folder, graph)
    assert (kept.num_replayed, kept.numbers) == (1, list(range(5)))
    kept.snapshot()
    kept.close()
    kept = Kept(folder, graph)
    assert kept.num_replayed == 0
    kept.close()


def test_a_damaged_manifest_is_refused_and_a_lost_one_made_anew(tmp_path: Path, graph: Graph) -> None:
    folder = tmp_path / "live"
    two_snapshots(folder, graph)
    flip(folder / "live.json", -20)
    with pytest.raises(LogDamaged, match=r"live\.json: its checksum differs; restore it .* or delete it"):
        Kept(folder, graph)
    (folder / "live.json").unlink()
    kept = Kept(folder, graph)
    assert [entry.sequence for entry in kept.home.snapshots] == [6, 3]
    assert (kept.num_replayed, kept.numbers) == (3, list(range(45)))
    kept.close()


def test_one_process_writes_at_a_time(tmp_path: Path, graph: Graph) -> None:
    first = LiveHome.open(tmp_path / "live", graph)
    with pytest.raises(Conflict, match=r"has a writer: process \d+ on \S+; a live graph allows one"):
        LiveHome.open(tmp_path / "live", graph)
    first.close()
    LiveHome.open(tmp_path / "live", graph).close()


def test_a_folder_of_another_graph_is_refused(tmp_path: Path, graph: Graph) -> None:
    Kept(tmp_path / "live", graph).close()
    other = Graph.from_edges([[0], [1]], np.ones((2, 4)))
    with pytest.raises(GraphError, match=f"belongs to graph {graph.version} .* name another live folder"):
        LiveHome.open(tmp_path / "live", other)
    Kept(tmp_path / "live", graph).close()  # and the lock was given back


def test_on_a_full_disk_nothing_of_a_batch_is_kept_and_it_may_come_again(
    small_disk: SmallDisk, graph: Graph
) -> None:
    kept = Kept(small_disk.folder / "live", graph, segment_bytes=2**23, spare=250_000)
    sent = 0

    def fill() -> None:
        nonlocal sent
        while sent < 200_000:
            kept.keeper.apply([numbered(sent, sent + 200), numbered(sent + 200, sent + 400)])
            sent += 400

    with pytest.raises(LogFull, match="make room on the disk"):
        fill()
    assert 20_000 < sent < 200_000
    assert kept.numbers == list(range(sent))
    assert kept.keeper.positions == {SOURCE: sent}
    with pytest.raises(GraphError, match="cannot be written"):
        kept.snapshot()
    small_disk.grow()
    assert kept.send(sent, sent + 10)[1] == 10
    assert kept.snapshot() is not None
    kept.close()
    again = Kept(small_disk.folder / "live", graph)
    assert again.numbers == list(range(sent + 10))
    again.close()


def test_what_does_not_fit_into_the_memory_is_rejected_and_the_rest_of_the_group_is_not(
    tmp_path: Path, graph: Graph
) -> None:
    kept = Kept(tmp_path / "live", graph, positions=2000)
    room = 9_000  # far more than there is
    found = kept.keeper.apply([numbered(0, 10), numbered(10, room), numbered(room, room + 10)])
    assert [outcome.num_applied for outcome in found] == [10, 0, 10]
    assert {rejected.code for rejected in found[1].rejected} == {"full"}
    assert kept.numbers == [*range(10), *range(room, room + 10)]
    kept.close()
    again = Kept(tmp_path / "live", graph, positions=2000)
    assert again.numbers == kept.numbers
    again.close()


def test_a_writer_that_died_leaves_its_memory_to_the_next(
    tmp_path: Path, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers go on with the memory that they have mapped."""
    first = Kept(tmp_path / "live", graph)
    first.send(0, 10)
    first.snapshot()
    first.send(10, 20)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(first.keeper.writer, "publish", dies)
    with pytest.raises(KeyboardInterrupt):  # durable, and not seen yet
        first.send(20, 30)
    first.home.close()
    assert first.numbers == list(range(20))
    second = Kept(tmp_path / "live", graph, memory=first.memory)
    assert second.num_replayed == 1
    assert first.numbers == second.numbers == list(range(30))
    assert second.send(5, 35) == (4, 5, list(range(25)))
    assert first.numbers == list(range(35))
    second.close()


def test_positions_are_durable_without_events(tmp_path: Path, graph: Graph) -> None:
    folder = tmp_path / "live"
    kept = Kept(folder, graph)
    only = Changes(positions={"other": [1, 2]})
    assert kept.apply(only) == [(0, 0, [])]
    kept.close()
    kept = Kept(folder, graph)
    assert kept.keeper.positions == {"other": [1, 2]}
    kept.send(0, 10)
    assert kept.apply(Changes(positions={SOURCE: 15})) == [(1, 0, [])]
    kept.close()
    kept = Kept(folder, graph)
    assert kept.keeper.positions == {"other": [1, 2], SOURCE: 15}
    assert kept.send(5, 10) == (1, 0, list(range(5)))  # a source that went back
    kept.close()
    kept = Kept(folder, graph)
    assert kept.keeper.positions == {"other": [1, 2], SOURCE: 10}
    kept.send(10, 20)  # later than what was written alone
    kept.snapshot()
    kept.close()
    kept = Kept(folder, graph)
    assert kept.keeper.positions == {"other": [1, 2], SOURCE: 20}
    kept.close()
    flip(folder / "positions.json", -3)
    kept = Kept(folder, graph)
    assert kept.keeper.positions == {"other": [1, 2], SOURCE: 20}
    kept.close()


def test_positions_that_could_not_be_written_are_refused(
    tmp_path: Path, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(tmp_path / "live", graph)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    only = Changes(positions={SOURCE: 15})
    with monkeypatch.context() as broken:
        broken.setattr(keeper_module, "write_positions", full)
        with pytest.raises(LogFull, match="the positions of sources"):
            kept.apply(only)
        assert kept.apply(numbered(0, 5), only) == [(1, 5, []), (1, 0, [])]  # what is applied is told
    kept.close()


def test_nodes_whose_answers_changed_are_reported(tmp_path: Path, graph: Graph) -> None:
    kept = Kept(tmp_path / "live", graph)
    assert kept.keeper.affected(0) == (0, {})
    kept.send(0, 1)
    sequence, found = kept.keeper.affected(0)
    assert sequence == 1
    assert 0 in np.asarray(found["node"])  # event 0 adds an edge to node 0
    assert kept.keeper.affected(1) == (1, {})
    kept.close()


def test_a_state_file_has_marks_and_hashes_as_they_were(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    state = State(
        "abc",
        7,
        123,
        {"a": [1, {"b": "c"}]},
        rng.integers(0, 2**63, (5, 2)).astype(np.uint64),
        {"user": rng.integers(0, 9, (2, 30)), "ü/ö": np.empty((3, 0), np.int64)},
    )
    home_module.write_state(tmp_path / "state.bin", state)
    found = read_state(tmp_path / "state.bin")
    assert (found.lineage, found.sequence, found.through_ms, found.positions) == (
        "abc",
        7,
        123,
        state.positions,
    )
    np.testing.assert_array_equal(found.seen, state.seen)
    for name, changed_at in state.changed_at.items():
        np.testing.assert_array_equal(found.changed_at[name], changed_at)
    size = (tmp_path / "state.bin").stat().st_size
    for at in range(0, size - 1, 5):
        data = bytearray((tmp_path / "state.bin").read_bytes())
        data[at] ^= 1
        (tmp_path / "bad.bin").write_bytes(data)
        try:
            read_state(tmp_path / "bad.bin")
        except LogDamaged:
            continue
        assert at > 100  # padding between arrays says nothing
    (tmp_path / "bad.bin").write_bytes(data[: size // 2])
    with pytest.raises(LogDamaged):
        read_state(tmp_path / "bad.bin")
