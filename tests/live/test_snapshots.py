"""A live folder, read as a snapshot: with the live graph's own version, fresh where a writer runs."""

from __future__ import annotations

import numpy as np
import pytest

from hopline.errors import GraphError
from hopline.graph import Graph
from hopline.graph.live.changes import Changes, EdgeChanges
from hopline.graph.live.home import LiveHome
from hopline.graph.live.keeper import GraphKeeper
from hopline.graph.live.memory import LiveMemory
from hopline.graph.live.plan import make_plan
from hopline.graph.live.view import LiveView
from hopline.graph.live.writer import LiveWriter
from hopline.live.snapshots import open_graph, open_snapshot

EDGES = "node__to__node"


@pytest.fixture
def keeper(tmp_path):
    base = Graph.from_edges(([0, 1, 2], [1, 2, 3]), np.eye(4, dtype=np.float32)).save(tmp_path / "graph")
    home = LiveHome.open(tmp_path / "live", base)
    plan = make_plan(base, lineage=base.version, sequence=0, spare_nodes=9, spare_edges=99, num_levels=3)
    memory = LiveMemory.create(plan)
    ids = {name: nodes.ids for name, nodes in base.nodes.items()}
    writer = LiveWriter(memory, base.schema, ids, lambda: 0)
    made = GraphKeeper(home, writer, lambda: LiveView(memory, base.schema, ids), lambda: 0)
    made.recover()
    yield made
    made.close()


def add(keeper, src, dst):
    edges = EdgeChanges(np.array([src]), np.array([dst]), np.array([False]), np.array([0]))
    keeper.apply([Changes({EDGES: edges}, {}, 1)])


def test_before_any_change_it_is_the_first_graph(keeper, tmp_path):
    assert open_graph(tmp_path / "live").version == open_graph(tmp_path / "graph").version


def test_a_snapshot_has_the_version_of_the_live_graph(keeper, tmp_path):
    lineage = open_graph(tmp_path / "graph").version
    add(keeper, 3, 1)
    add(keeper, 3, 2)
    keeper.write_snapshot(keeper.begin_snapshot())
    add(keeper, 3, 0)
    graph = open_snapshot(tmp_path / "live")
    assert graph.version == f"{lineage}+2"
    assert graph.edges[EDGES].neighbors(2).tolist() == [1, 3]
    assert graph.edges[EDGES].neighbors(0).tolist() == []


def test_another_folder_is_refused(tmp_path):
    with pytest.raises(GraphError, match=r"not a folder of a live graph: it has no live\.json"):
        open_snapshot(tmp_path)
