"""The conformance suite of graph stores: what every store must do, however it holds edges.

A subclass provides `store`, an opened store of `GraphStoreSuite.graph`:

    class TestMemory(GraphStoreSuite):
        @pytest.fixture
        async def store(self, graph): ...
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from hopline.errors import GraphError
from hopline.graph import Graph
from hopline.graph_store.base import GraphStore
from hopline.types import AnyArray

#: Columns that stores have of an edge type.
COLUMNS = ("indices", "weight", "attr")


def columns_of(graph: Graph, key: str) -> dict[str, AnyArray]:
    """The columns of an edge type that a store must return."""
    part = graph.edges[key]
    arrays: dict[str, Any] = {name: getattr(part, name) for name in COLUMNS}
    return {name: np.asarray(array) for name, array in arrays.items() if array is not None}


class GraphStoreSuite:
    """Tests; `graph` and `store` are fixtures of a subclass or its module."""

    async def test_the_graph_is_the_same_but_for_its_edges(self, graph: Graph, store: GraphStore) -> None:
        """Version, ids and list bounds are those of the graph."""
        assert store.graph.version == graph.version
        assert store.graph.schema == graph.schema
        for key, part in graph.edges.items():
            other = store.graph.edges[key]
            nodes = np.arange(graph.nodes[part.dst].num_nodes)
            assert (other.degree(nodes) == part.degree(nodes)).all()
            assert (other.starts(nodes) == part.starts(nodes)).all()
            assert other.num_edges == part.num_edges

    async def test_every_edge_is_read_as_it_is(self, graph: Graph, store: GraphStore) -> None:
        """All columns of all edge types, in one read."""
        wanted = {key: np.arange(part.num_edges) for key, part in graph.edges.items()}
        found = await store.fetch(wanted, {key: tuple(columns_of(graph, key)) for key in wanted})
        for key in wanted:
            for name, values in columns_of(graph, key).items():
                assert np.array_equal(found[key].columns[name], values), (key, name)

    async def test_any_positions_are_read_in_order(self, graph: Graph, store: GraphStore) -> None:
        """Single edges, neighbours and the last edge."""
        rng = np.random.default_rng(5)
        for count in (1, 2, 7, 40):
            wanted = {
                key: np.unique(np.append(rng.integers(0, part.num_edges, count), part.num_edges - 1))
                for key, part in graph.edges.items()
                if part.num_edges
            }
            found = await store.fetch(wanted, dict.fromkeys(wanted, ("indices",)))
            for key, positions in wanted.items():
                assert np.array_equal(found[key].positions, positions)
                indices = np.asarray(graph.edges[key].indices)
                assert np.array_equal(found[key].columns["indices"], indices[positions])

    async def test_reads_at_the_same_time_do_not_mix(self, graph: Graph, store: GraphStore) -> None:
        """Fifty reads together, some of them cancelled."""
        key = max(graph.edges, key=lambda name: graph.edges[name].num_edges)
        indices = np.asarray(graph.edges[key].indices)
        rng = np.random.default_rng(6)
        wanted = [np.unique(rng.integers(0, len(indices), 9)) for _ in range(50)]
        tasks = [
            asyncio.ensure_future(store.fetch({key: positions}, {key: ("indices",)}))
            for positions in wanted
        ]
        await asyncio.sleep(0)
        for task in tasks[::7]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for positions, result in zip(wanted, results, strict=True):
            if isinstance(result, dict):
                assert np.array_equal(result[key].columns["indices"], indices[positions])
            else:
                assert isinstance(result, asyncio.CancelledError)

    async def test_edges_cannot_be_taken_for_arrays(self, store: GraphStore) -> None:
        """Code that needs whole lists gets an error, never wrong numbers."""
        for part in store.graph.edges.values():
            with pytest.raises(GraphError, match="graph store"):
                np.asarray(part.indices)
