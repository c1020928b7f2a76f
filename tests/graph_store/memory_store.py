"""A graph store over a graph in memory: the naive implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hopline.graph import Graph
from hopline.graph.store_columns import FetchedEdges
from hopline.graph_store.base import GraphStore, in_store
from hopline.types import IdArray


class MemoryStore(GraphStore):
    """Reads the edges of a graph.

    Args:
        graph: with all of its edges.
    """

    kind = "memory"

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._whole = graph

    async def open(self) -> None:
        """See `GraphStore.open`."""
        whole = self._whole
        edges = {key: in_store(part) for key, part in whole.edges.items()}
        self.graph = Graph(whole.schema, whole.nodes, edges, path=whole.path)
        self.graph.__dict__["version"] = whole.version

    async def close(self) -> None:
        """Nothing to release."""

    async def fetch(
        self, wanted: Mapping[str, IdArray], columns: Mapping[str, Sequence[str]]
    ) -> dict[str, FetchedEdges]:
        """See `GraphStore.fetch`."""
        self.num_round_trips += 1
        found = {}
        for key, positions in wanted.items():
            part = self._whole.edges[key]
            arrays: dict[str, Any] = {"indices": part.indices, "weight": part.weight, "attr": part.attr}
            read = {name: np.asarray(arrays[name][positions]) for name in columns[key]}
            self.num_ranges += len(positions)
            self.num_bytes += sum(values.nbytes for values in read.values())
            found[key] = FetchedEdges(positions, read)
        return found
