"""Edge arrays that lie in a graph store: on a disk, or in a Redis Cluster.

Where each list begins (`indptr`) is in memory, so keyed sampling knows the positions that it wants before
it reads one edge. Only those positions are read: first those that are available without waiting
(`StoreIds.read`), then the others, all of one hop together (`hopline.graph_store`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import numpy as np

from hopline.errors import GraphError
from hopline.types import AnyArray, FloatArray, IdArray

#: Rows that the mean is taken of, evenly spread.
_MEAN_ROWS = 2_000


class EdgeReader(Protocol):
    """Edges of one type that can be read without waiting."""

    def read(self, positions: IdArray, out: Mapping[str, AnyArray]) -> IdArray:
        """Copy edges.

        Args:
            positions: int64 [n] positions in the edge arrays.
            out: column name ("indices", "weight", "attr") -> array [n, …]; row i is filled where
                positions[i] is available.

        Returns: int64 [m] rows that are not available.
        """
        ...


class _Placeholder:
    """The shape of an array whose values cannot be read as those of an array."""

    __slots__ = ("shape",)
    nbytes = 0
    shape: tuple[int, ...]
    _refusal: ClassVar[str]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, item: Any) -> Any:
        raise GraphError(self._refusal)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> AnyArray:
        raise GraphError(self._refusal)


class StoreColumn(_Placeholder):
    """A column of an edge type that lies in a graph store: only its shape and dtype are known.

    Args:
        shape: (E,) or (E, d). dtype: of its values.
    """

    __slots__ = ("dtype",)
    _refusal = (
        "the edges of this graph lie in a graph store and are read by position, not as arrays; use the "
        "folder of the graph"
    )

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.shape = shape
        self.dtype = np.dtype(dtype)


class StoreIds(StoreColumn):
    """The in-neighbours of an edge type whose edges lie in a graph store.

    Args:
        num_edges: E.
        reader: of edges that are available without waiting; None where every edge has to be fetched.

    Attributes:
        kernel: the form that kernels read, see `edge_data.py`.
    """

    __slots__ = ("_reader",)
    kernel = (0,)

    def __init__(self, num_edges: int, reader: EdgeReader | None = None) -> None:
        super().__init__((num_edges,), "int32")
        self._reader = reader

    def read(self, positions: IdArray, out: Mapping[str, AnyArray]) -> IdArray:
        """See `EdgeReader.read`."""
        if self._reader is None:
            return np.arange(positions.shape[0])
        return self._reader.read(positions, out)


class StoreFeatures(_Placeholder):
    """A feature matrix of which only the shape and the mean row are known.

    Attributes:
        shape: (N, d). mean: float32 [d], which replaces a row that the feature store lacks.
    """

    __slots__ = ("mean",)
    dtype = np.dtype(np.float32)
    _refusal = "this graph was pushed without features: set features.store, or push it with features"

    def __init__(self, shape: tuple[int, int], mean: FloatArray) -> None:
        self.shape = shape
        self.mean = mean


class FetchedEdges:
    """Edges of one type that were fetched for a batch.

    Args:
        positions: int64 [n], ascending.
        columns: column name -> [n, …]. Neither may be changed afterwards.
    """

    __slots__ = ("columns", "positions")

    def __init__(self, positions: IdArray, columns: Mapping[str, AnyArray]) -> None:
        self.positions = positions
        self.columns = columns

    def take(self, positions: IdArray, rows: IdArray, out: Mapping[str, AnyArray]) -> IdArray:
        """Fill the rows of `out` whose positions were fetched; returns the other rows.

        Args:
            positions: int64 [m] wanted. rows: int64, those of them that are still absent.
            out: as in `EdgeReader.read`.
        """
        if not rows.shape[0] or not self.positions.shape[0]:
            return rows
        wanted = positions[rows]
        at = np.minimum(np.searchsorted(self.positions, wanted), self.positions.shape[0] - 1)
        here = self.positions[at] == wanted
        at, filled = at[here], rows[here]
        for name, column in out.items():
            column[filled] = self.columns[name][at]
        left: IdArray = rows[~here]
        return left


def is_in_store(adjacency: Any) -> bool:
    """True if the edges of a type lie in a graph store."""
    return isinstance(adjacency.indices, StoreIds)


def mean_row(features: Any) -> FloatArray:
    """float32 [d] of features [N, d]; of evenly spread rows where there are many."""
    if isinstance(features, StoreFeatures):
        return features.mean
    count = features.shape[0]
    rows = np.arange(0, count, max(1, math.ceil(count / _MEAN_ROWS)))  # a live graph's rows have no slices
    mean: FloatArray = np.asarray(features[rows], np.float32).mean(axis=0)
    return mean
