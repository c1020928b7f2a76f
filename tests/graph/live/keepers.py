"""A live folder about a small graph, its keeper, and edges that tell which event they came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hopline.graph import Graph
from hopline.graph.live.changes import Changes, EdgeChanges
from hopline.graph.live.home import LiveHome
from hopline.graph.live.keeper import GraphKeeper
from hopline.graph.live.memory import LiveMemory
from hopline.graph.live.plan import make_plan
from hopline.graph.live.view import LiveView
from hopline.graph.live.writer import LiveWriter

NUM_NODES = 50
EDGE = "node__to__node"
SOURCE = "kafka/edges/0"


def base_graph() -> Graph:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(NUM_NODES, 4)).astype(np.float32)
    return Graph.from_edges(rng.integers(0, NUM_NODES, (2, 100)), features, edge_time=np.full(100, -1))


def numbered(begin: int, end: int) -> Changes:
    """Events begin … end - 1: number i adds an edge of time i."""
    numbers = np.arange(begin, end)
    n = len(numbers)
    ends = numbers * 7919
    edges = EdgeChanges(
        ends % NUM_NODES, ends // NUM_NODES % NUM_NODES, np.zeros(n, np.bool_), np.arange(n), numbers
    )
    return Changes({EDGE: edges}, {}, n, [f"event-{i}" for i in numbers], positions={SOURCE: end})


def numbers_in(graph: Any) -> list[int]:
    """Events whose edges a graph has, ascending; twice where they are there twice."""
    times = np.sort(graph.edges[EDGE].time)
    return [int(time) for time in times if time >= 0]


class Kept:
    """A keeper that has recovered, and the view to look at what it keeps."""

    def __init__(
        self,
        folder: Path,
        graph: Graph,
        *,
        spare: int = 60_000,
        positions: int = 0,
        memory: LiveMemory | None = None,
        follows: bool = False,
        **more: Any,
    ) -> None:
        self.home = LiveHome.open(folder, graph, **more)
        start = self.home.start
        plan = make_plan(
            start.graph,
            lineage=graph.version,
            sequence=start.state.sequence,
            spare_nodes=100,
            spare_edges=spare,
            num_levels=2,
        )
        if positions:
            room = msgspec.structs.replace(plan.edges[EDGE], positions=positions)
            plan = msgspec.structs.replace(plan, edges={EDGE: room})
        self.memory = memory or LiveMemory.create(plan)
        ids = {name: nodes.ids for name, nodes in start.graph.nodes.items()}
        self.keeper = GraphKeeper(
            self.home,
            LiveWriter(self.memory, graph.schema, ids, lambda: 1000),
            lambda: LiveView(self.memory, graph.schema, ids),
            lambda: 1000,
            follows=follows,
        )
        self.num_replayed = self.keeper.recover()
        self.view = LiveView(self.memory, graph.schema, ids)

    def apply(self, *batches: Changes) -> list[tuple[int, int, list[int]]]:
        """(sequence, number of events applied, duplicates) of each; none is rejected."""
        outcomes = self.keeper.apply(batches)
        assert not any(outcome.rejected for outcome in outcomes)
        return [(each.sequence, each.num_applied, list(each.duplicates)) for each in outcomes]

    def send(self, begin: int, end: int) -> tuple[int, int, list[int]]:
        return self.apply(numbered(begin, end))[0]

    def snapshot(self) -> Any:
        draft = self.keeper.begin_snapshot()
        return None if draft is None else self.keeper.write_snapshot(draft)

    @property
    def numbers(self) -> list[int]:
        return numbers_in(self.view.snapshot())

    def close(self) -> None:
        self.keeper.close()
