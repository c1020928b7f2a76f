"""A live graph as models see it."""

from hopline.graph.live.memory import LiveMemory
from hopline.graph.live.plan import make_plan
from hopline.graph.live.view import LiveView
from hopline.graph.live.writer import LiveWriter


def live_view(graph):
    """A view of a graph that can change."""
    plan = make_plan(graph, lineage=graph.version, sequence=0, spare_nodes=9, spare_edges=9, num_levels=2)
    ids = {name: nodes.ids for name, nodes in graph.nodes.items()}
    memory = LiveMemory.create(plan)
    LiveWriter(memory, graph.schema, ids, lambda: 0).fill(graph)
    return LiveView(memory, graph.schema, ids)
