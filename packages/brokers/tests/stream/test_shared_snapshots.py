"""Snapshots that hosts share: the newest whole one is the start of a new host."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hopline.errors import ConfigError, GraphError
from hopline.graph import Graph
from hopline_brokers.stream.shared_snapshots import SharedSnapshots
from tests.graph.live.keepers import Kept, base_graph
from tests.graph.live.test_version import of_stream


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return base_graph().save(tmp_path_factory.mktemp("base") / "graph")


@pytest.fixture(params=["folder", "url"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "shared") if request.param == "folder" else f"file://{tmp_path}/shared"


def host(folder: Path, graph: Graph, shared: SharedSnapshots, end: int, *, fresh: bool = True) -> str:
    """A host that has read the stream to an end, published its snapshot, and stopped: its version.

    Args:
        fresh: it started from the shared snapshot; otherwise from the original graph.
    """
    if fresh:
        shared.fetch(folder)
    kept = Kept(folder, graph, follows=True)
    kept.apply(of_stream(kept.keeper.writer.offset.minor, end))
    kept.snapshot()
    shared.publish(folder, kept.home.snapshots[0])
    with kept.view:
        version = kept.view.version
    kept.close()
    return version


def test_a_new_host_starts_from_the_newest_snapshot(tmp_path: Path, graph: Graph, address: str) -> None:
    shared = SharedSnapshots(address, graph.version)
    host(tmp_path / "a", graph, shared, 3)
    version = host(tmp_path / "b", graph, shared, 12)
    host(tmp_path / "c", graph, shared, 7, fresh=False)  # behind the others: not published
    assert shared.fetch(tmp_path / "new")
    kept = Kept(tmp_path / "new", graph, follows=True)
    assert kept.num_replayed == 0
    with kept.view:
        assert kept.view.version == version
    assert kept.numbers == list(range(12))
    kept.apply(of_stream(12, 14))
    kept.close()
    again = Kept(tmp_path / "new", graph, follows=True)
    assert again.numbers == list(range(14))
    again.close()


def test_two_snapshots_are_kept(tmp_path: Path, graph: Graph, address: str) -> None:
    shared = SharedSnapshots(address, graph.version)
    for end in (3, 5, 9):
        host(tmp_path / str(end), graph, shared, end)
    names = sorted(path.name.partition(".")[0] for path in (tmp_path / "shared" / graph.version).iterdir())
    assert names == ["5", "9"]


def test_what_hosts_did_not_finish_is_removed_once_it_is_of_no_use(
    tmp_path: Path, graph: Graph, address: str
) -> None:
    shared = SharedSnapshots(address, graph.version)
    place = tmp_path / "shared" / graph.version
    for name in ("2.aaaaaaaa", "9.bbbbbbbb"):  # of hosts that were killed
        (place / name / "graph").mkdir(parents=True)
        (place / name / "state.bin").write_bytes(b"half")
    for number, end in enumerate((3, 6)):
        host(tmp_path / f"host-{number}", graph, shared, end)
    left = {path.name.partition(".")[0] for path in place.iterdir()}
    assert left == {"3", "6", "9"}  # another host may be writing that of 9


def test_a_snapshot_that_another_host_removed_is_removed(
    tmp_path: Path, graph: Graph, address: str
) -> None:
    shared = SharedSnapshots(address, graph.version)
    host(tmp_path / "a", graph, shared, 3)
    (name,) = shared._newest_first()
    for _ in range(2):
        shared._place.remove(name)
    assert shared._newest_first("*") == []


def test_a_folder_with_changes_is_left_alone(tmp_path: Path, graph: Graph, address: str) -> None:
    shared = SharedSnapshots(address, graph.version)
    host(tmp_path / "a", graph, shared, 9)
    kept = Kept(tmp_path / "b", graph, follows=True)
    kept.apply(of_stream(0, 2))
    kept.close()
    assert not shared.fetch(tmp_path / "b")


def test_an_unfinished_or_damaged_snapshot_is_not_used(tmp_path: Path, graph: Graph, address: str) -> None:
    shared = SharedSnapshots(address, graph.version)
    host(tmp_path / "a", graph, shared, 3)
    host(tmp_path / "b", graph, shared, 9)
    place = tmp_path / "shared" / graph.version
    (newest,) = place.glob("9.*")
    (newest / "state.bin").write_bytes(b"not a state")
    shutil.copytree(newest, place / "12.abcdef01")
    (place / "12.abcdef01" / "complete").unlink()
    assert shared.fetch(tmp_path / "new")
    kept = Kept(tmp_path / "new", graph, follows=True)
    assert kept.numbers == [0, 1, 2]
    kept.close()


def test_a_place_that_cannot_be_used_costs_only_time(
    tmp_path: Path, graph: Graph, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    assert not SharedSnapshots("http://user:secret@127.0.0.1:9/x", graph.version).fetch(tmp_path / "new")
    shared = SharedSnapshots(str(tmp_path / "file"), graph.version)
    with pytest.raises(GraphError, match=r"live\.snapshots"):
        host(tmp_path / "a", graph, shared, 3)
    assert "secret" not in caplog.text


def test_an_unknown_scheme_is_refused(graph: Graph) -> None:
    with pytest.raises(ConfigError, match=r"live\.snapshots: nope://x/"):
        SharedSnapshots("nope://x", graph.version)
