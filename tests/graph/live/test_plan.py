"""How much room a live graph has, and what is too large for one."""

from types import SimpleNamespace

import pytest

from hopline.errors import GraphError
from hopline.graph.live import plan as plans
from hopline.graph.live.plan import make_plan

EDGES = "user_rates_item"


def graph(num_nodes, num_edges):
    """As much of a graph as a plan reads: nothing is allocated."""
    nodes = {
        name: SimpleNamespace(
            num_nodes=num_nodes,
            features=SimpleNamespace(shape=(num_nodes, 4)),
            columns=None,
            history=None,
        )
        for name in ("user", "item")
    }
    lists = SimpleNamespace(
        src="user", dst="item", num_edges=num_edges, attr=None, time=None, weight=None, columns=None
    )
    schema = SimpleNamespace(
        node_types={name: SimpleNamespace(id_kind="int", columns=()) for name in nodes},
        edge_types={EDGES: SimpleNamespace(reverse_of="", columns=(), id_column="")},
    )
    return SimpleNamespace(nodes=nodes, edges={EDGES: lists}, schema=schema)


def planned(num_nodes, num_edges, spare_nodes=1_000, spare_edges=1_000_000):
    return make_plan(
        graph(num_nodes, num_edges),
        lineage="g",
        sequence=0,
        spare_nodes=spare_nodes,
        spare_edges=spare_edges,
        num_levels=3,
    )


@pytest.mark.parametrize("num_edges", [540_000_000, 2_000_000_000, 3_000_000_000])
def test_too_many_edges_are_refused_by_type_before_anything_is_laid_out(num_edges):
    with pytest.raises(GraphError, match=rf"{EDGES}' has {num_edges} edges.*live\.spare_edges.*snapshot"):
        planned(10, num_edges)


def test_what_the_refusal_says_fits_does_fit():
    with pytest.raises(GraphError) as refused:
        planned(10, 2_000_000_000)
    most = int(str(refused.value).partition("holds at most ")[2].partition(" ")[0])
    assert most > 500_000_000
    room = planned(10, most).edges[EDGES]
    assert room.base == most
    assert room.positions < 2**31  # int32 names each place
    with pytest.raises(GraphError):
        planned(10, most + 1)


def test_too_many_rows_of_a_history_are_refused_by_type():
    with_past = graph(10, 5)
    with_past.nodes["user"].history = SimpleNamespace(times=range(600_000_000), columns=None)
    with pytest.raises(GraphError, match=r"node type 'user' has 600000000 rows; with live\.spare_nodes"):
        make_plan(with_past, lineage="g", sequence=0, spare_nodes=10, spare_edges=10, num_levels=3)


def test_room_for_too_many_nodes_is_refused_by_type():
    with pytest.raises(GraphError, match=r"node type 'user'.*2200000010 nodes.*live\.spare_nodes"):
        planned(10, 5, spare_nodes=2_200_000_000)
    assert plans.MAX_POSITIONS < 2**31
