"""The interface of graph stores.

What every request reads lies in the memory of the host: ids, where each list begins, and features (unless a
feature store has them). The edges lie in the store. Keyed sampling chooses positions from list lengths
alone, so a store reads only the sampled positions, all those of one hop together.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hopline.config.urls import find_by_scheme
from hopline.doors import Door
from hopline.errors import GraphStoreError
from hopline.features.registry import REDIS
from hopline.graph import Adjacency, Graph
from hopline.graph.store_columns import EdgeReader, FetchedEdges, StoreColumn, StoreIds
from hopline.types import AnyArray, IdArray, Progress


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


@dataclass(frozen=True, slots=True)
class Pushed:
    """Result of a push.

    Attributes:
        version: of the graph.
        num_chunks: of all parts. num_written: those that this push wrote. num_repaired: those of them that
            the store had lost or changed.
        num_bytes: of all parts.
    """

    version: str
    num_chunks: int
    num_written: int
    num_repaired: int
    num_bytes: int


class RemoteGraphStore(GraphStore):
    """A graph store at a URL.

    Args:
        url: of the store.
        cache: folder for the parts that a host reads whole.
        version: of the graph; "" for the one that was pushed last.
    """

    @abstractmethod
    def __init__(self, url: str, cache: Path, version: str = "") -> None:
        super().__init__()

    @staticmethod
    @abstractmethod
    async def push(
        graph: Graph, url: str, *, features: bool, make_current: bool, progress: Progress
    ) -> Pushed:
        """Copy a saved graph into the store.

        Args:
            graph: opened from its folder.
            features: also copy features; else a feature store has them.
            make_current: servers that name no version read this one from now on.

        Raises:
            ConfigError: the URL is wrong. GraphError: the graph is only in memory.
            GraphStoreUnavailable: the store does not respond; call it again to continue.
        """


#: Scheme -> a `RemoteGraphStore`.
DOOR = Door("hopline.graph_stores", packages=REDIS)


def store_class(url: str, setting: str) -> type[RemoteGraphStore]:
    """The class of stores for a URL. Raises: ConfigError: there is none, or its package is missing."""
    found: type[RemoteGraphStore] = find_by_scheme(DOOR, url, setting, "the URL of a graph store")
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
