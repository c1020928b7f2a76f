"""The interface of graph stores.

What every request reads lies in the memory of the host: ids, where each list begins, and features (unless a
feature store has them). The edges lie in the store. Keyed sampling chooses positions from list lengths
alone, so a store reads only the sampled positions, all those of one hop together.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from hopline.errors import GraphStoreError
from hopline.graph import Adjacency, Graph
from hopline.graph.store_columns import EdgeReader, FetchedEdges, StoreColumn, StoreIds
from hopline.types import AnyArray, IdArray


class GraphStore(ABC):
    """A source of edges.

    Used from one event loop. Any number of fetches may run at the same time; cancelling one must leave the
    store usable.

    Attributes:
        kind: label of its metrics.
        graph: the graph, whose edges are placeholders; set by `open`.
        num_round_trips, num_ranges, num_bytes: what was read from the store so far.
    """

    kind: ClassVar[str]
    graph: Graph

    def __init__(self) -> None:
        self.num_round_trips = self.num_ranges = self.num_bytes = 0

    @abstractmethod
    async def open(self) -> None:
        """Connect and set `graph`.

        Raises:
            ConfigError: the address is wrong. GraphStoreError: it does not have the graph.
            GraphStoreUnavailable: it does not respond now.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release connections and threads; the store is not used afterwards."""

    @abstractmethod
    async def fetch(
        self, wanted: Mapping[str, IdArray], columns: Mapping[str, Sequence[str]]
    ) -> dict[str, FetchedEdges]:
        """Read edges.

        Args:
            wanted: edge type -> int64 [n] distinct positions, ascending.
            columns: edge type -> columns to read: "indices", "weight", "attr".

        Raises:
            GraphStoreUnavailable: not all could be read now; a retry may succeed.
            GraphStoreError: what the store has is damaged; a retry will not help.
        """


def with_edges_in_store(graph: Graph, readers: Mapping[str, EdgeReader] | None = None) -> Graph:
    """The same graph, version included, with placeholders for its edges.

    Args:
        readers: edge type -> reads what is available without waiting.
    """
    edges = {key: in_store(part, (readers or {}).get(key)) for key, part in graph.edges.items()}
    found = Graph(graph.schema, graph.nodes, edges, path=graph.path)
    found.__dict__["version"] = graph.version
    return found


def in_store(part: Adjacency, reader: EdgeReader | None = None) -> Adjacency:
    """An adjacency with placeholders in place of all arrays but `indptr`."""
    num_edges = part.num_edges
    sums = None if part.cumweight is None else StoreColumn((num_edges,), "float64")
    columns: Any = {
        "indices": StoreIds(num_edges, reader),
        "time": None if part.time is None else StoreColumn((num_edges,), "int64"),
        "attr": None if part.attr is None else StoreColumn((num_edges, part.attr.shape[1]), "float32"),
        "weight": None if part.weight is None else StoreColumn((num_edges,), "float32"),
        "cumweight": sums,
        "stored_time_range": part.time_range,
    }
    return dataclasses.replace(part, **columns)


def checked_ids(ids: AnyArray, num_sources: int, where: str) -> AnyArray:
    """Neighbour ids that a store returned.

    Raises: GraphStoreError: one is not a node of the source type.
    """
    if ids.shape[0] and not 0 <= int(ids.min()) <= int(ids.max()) < num_sources:
        wrong = ids[(ids < 0) | (ids >= num_sources)][0]
        raise GraphStoreError(
            f"{where}: neighbour {int(wrong)} is not one of {num_sources} nodes: the stored edges "
            "are damaged; push the graph again"
        )
    return ids


def empty_columns(part: Adjacency, names: Sequence[str], count: int) -> dict[str, AnyArray]:
    """Arrays for `count` edges by column name."""
    shaped: dict[str, Any] = {"indices": part.indices, "weight": part.weight, "attr": part.attr}
    return {name: np.empty((count, *shaped[name].shape[1:]), shaped[name].dtype) for name in names}
