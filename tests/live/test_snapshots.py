"""Versions of a live folder, read as graphs: equal to graphs built from the events until then."""

from __future__ import annotations

import os
import re
import shutil

import numpy as np
import pytest

from hopline.config.reader import load_config
from hopline.errors import BadRequest, ConfigError, GraphError, LogDamaged
from hopline.graph import Graph
from hopline.graph.live.history import LiveHistory, is_versions
from hopline.graph.live.version import NO_OFFSET, read_offset
from hopline.live.snapshots import needed_graph, open_graph, open_present
from tests.graph.live.keepers import EDGE, NUM_NODES, Kept, base_graph, numbered, numbers_in
from tests.graph.live.test_version import of_stream

SMALL = 1 << 11


@pytest.fixture
def base(tmp_path):
    return base_graph().save(tmp_path / "graph")


def write(folder, base, *, until, snapshots=(), **more):
    """A live folder of versions of three events each, with snapshots after some, and no writer."""
    kept = Kept(folder, base, **more)
    for number in range(1, until + 1):
        kept.send(3 * number - 3, 3 * number)
        if number in snapshots:
            kept.snapshot()
    kept.close()


def built(base, num_events):
    """The graph that is built again from the original edges and the first events."""
    first, batch = base.edges[EDGE], numbered(0, num_events).edges[EDGE]
    dst = np.repeat(np.arange(NUM_NODES), np.diff(first.indptr))
    edges = np.array([[*first.indices, *batch.src], [*dst, *batch.dst]])
    return Graph.from_edges(
        edges, base.nodes["node"].features, edge_time=np.array([*first.time, *batch.time])
    )


def same_edges(graph, wanted):
    for name in ("indptr", "indices", "time"):
        assert getattr(graph.edges[EDGE], name).tolist() == getattr(wanted.edges[EDGE], name).tolist()


@pytest.mark.parametrize("snapshots", [(), (4,), (3, 7)])
def test_each_version_equals_a_graph_built_from_the_events_until_then(tmp_path, base, snapshots):
    write(tmp_path / "graph.live", base, until=9, snapshots=snapshots)
    for number in range(10):
        for folder in ("graph", "graph.live"):  # of the original graph it is the live folder beside it
            graph = open_graph(tmp_path / f"{folder}@+{number}")
            assert graph.version == base.version + (f"+{number}" if number else "")
            same_edges(graph, built(base, 3 * number))


def test_a_live_folder_is_its_newest_version_without_a_writer(tmp_path, base):
    live = tmp_path / "graph.live"
    write(live, base, until=5, snapshots=(3,))
    for opened in (open_graph, open_present):
        graph = opened(live)
        assert graph.version == f"{base.version}+5"
        same_edges(graph, built(base, 15))


def test_a_version_of_a_snapshot_is_that_snapshots_folder(tmp_path, base):
    live = tmp_path / "graph.live"
    write(live, base, until=5, snapshots=(3, 5))
    assert open_graph(live).path == live / "snapshots" / f"{5:020d}" / "graph"
    assert open_graph(tmp_path / "graph.live@+3").path == live / "snapshots" / f"{3:020d}" / "graph"
    assert open_graph(tmp_path / "graph@+0").path == base.path
    assert open_graph(tmp_path / "graph@+4").path is None


def test_before_any_change_it_is_the_original_graph(tmp_path, base):
    write(tmp_path / "graph.live", base, until=0)
    assert open_graph(tmp_path / "graph.live").version == base.version


def test_a_version_that_does_not_exist_is_refused_with_its_neighbours(tmp_path, base):
    write(tmp_path / "graph.live", base, until=5)
    reason = f"no version {base.version}+6: its log ends with {base.version}+5"
    with pytest.raises(GraphError, match=re.escape(reason)):
        open_graph(tmp_path / "graph@+6")
    with pytest.raises(BadRequest, match="offset 'x' is malformed"):
        open_graph(tmp_path / "graph@+x")
    shutil.rmtree(tmp_path / "graph.live")
    with pytest.raises(GraphError, match=r"not a folder of a live graph: it has no live\.json"):
        open_graph(tmp_path / "graph@+1")


def test_a_version_whose_changes_are_gone_is_named_with_what_is_left(tmp_path, base):
    live = tmp_path / "graph.live"
    write(live, base, until=30, snapshots=(10, 20), segment_bytes=SMALL)
    first = min(int(path.stem) for path in (live / "log").iterdir())
    assert 1 < first <= 11
    for number in (1, 9):
        reason = rf"\+{number} cannot be reached any more: the log begins with change {first}, the oldest "
        with pytest.raises(GraphError, match=reason + "snapshot is 10"):
            open_graph(tmp_path / f"graph@+{number}")
    same_edges(open_graph(tmp_path / "graph@+0"), base)
    for number in (10, 19, 30):
        same_edges(open_graph(tmp_path / f"graph@+{number}"), built(base, 3 * number))


def test_a_damaged_snapshot_is_replaced_by_the_one_before_it(tmp_path, base):
    live = tmp_path / "graph.live"
    write(live, base, until=30, snapshots=(10, 20), segment_bytes=SMALL)
    (live / "snapshots" / f"{20:020d}" / "state.bin").write_bytes(b"")
    same_edges(open_graph(tmp_path / "graph@+25"), built(base, 75))


def test_a_damaged_record_ends_what_can_be_read(tmp_path, base):
    live = tmp_path / "graph.live"
    write(live, base, until=30)
    (file,) = (live / "log").iterdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    same_edges(open_graph(tmp_path / "graph@+5"), built(base, 15))
    with pytest.raises(LogDamaged, match="is damaged"):
        open_graph(tmp_path / "graph@+29")


def test_versions_of_a_stream_have_its_offsets(tmp_path, base):
    kept = Kept(tmp_path / "graph.live", base, follows=True)
    names = [base.version]
    for end in (3, 5, 9):
        kept.apply(of_stream(kept.keeper.writer.offset.minor, end))
        with kept.view:
            names.append(kept.view.version)
    kept.close()
    with LiveHistory(tmp_path / "graph.live", NO_OFFSET) as history:
        for name in names[1:]:
            history.reach(read_offset(name.partition("+")[2]))
            assert history.version == name
    assert open_graph(tmp_path / "graph@+5").version == names[2]
    other = names[2][:-1] + ("0" if names[2][-1] != "0" else "1")
    with pytest.raises(GraphError, match=re.escape(f"no version {other}: ")):
        open_graph(tmp_path / f"graph@+{other.partition('+')[2]}")
    reason = f"no version {base.version}+4: {names[1]} is followed by {names[2]}"
    with pytest.raises(GraphError, match=re.escape(reason)):
        open_graph(tmp_path / "graph@+4")


def test_a_moved_folder_finds_the_graph_that_was_moved_with_it(tmp_path, base):
    write(tmp_path / "graph.live", base, until=3)
    (tmp_path / "there").mkdir()
    os.rename(tmp_path / "graph", tmp_path / "there" / "graph")
    with pytest.raises(GraphError, match=f"began with graph {base.version} at .*, which is missing"):
        open_graph(tmp_path / "graph.live")
    os.rename(tmp_path / "graph.live", tmp_path / "there" / "graph.live")
    assert numbers_in(open_graph(tmp_path / "there" / "graph.live")) == list(range(9))


def test_the_setting_may_name_a_version(tmp_path, base):
    write(tmp_path / "graph.live", base, until=1)
    for name, at_version in (("graph", False), ("graph.live", True), ("graph@+1", True)):
        path = tmp_path / name
        assert needed_graph(load_config(overrides={"graph.path": path})) == path
        assert is_versions(path) == at_version
    with pytest.raises(ConfigError, match="is not a folder"):
        needed_graph(load_config(overrides={"graph.path": tmp_path / "none"}))
