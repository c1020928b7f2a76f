"""The seam to where feature rows live: what a store promises, and nothing of how it keeps it.

A *feature group* is the rows of one kind of entity (one node type, usually). Rows are asked for by the
entities' external ids, since that is what the pipelines that write them know.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.types import ExternalIds, FloatArray

#: Names of the dtypes that rows may have in a store; all are served as float32.
DTYPES = ("float32", "float16", "float64")


class FeatureGroup(msgspec.Struct, frozen=True):
    """What the rows of a group hold: the schema that is stored with them.

    Attributes:
        name: of the group.
        dim: numbers of a row.
        dtype: one of DTYPES, little-endian.
        feature_names: one for each number, in order; empty where they have none.
    """

    name: str
    dim: int
    dtype: str = "float32"
    feature_names: tuple[str, ...] = ()

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as raw little-endian numbers."""
        return self.dim * np.dtype(self.dtype).itemsize

    @property
    def hash(self) -> str:
        """16 hex digits of names, order, dim and dtype; the group's own name is not part of it."""
        told = msgspec.json.encode([self.dim, self.dtype, self.feature_names])
        return hashlib.sha256(told).hexdigest()[:16]


class FetchedRows:
    """The answer of a store.

    Attributes:
        values: float32 [n, dim], C-contiguous; row i belongs to ids[i]; zeros where it was not found.
        found: bool [n].
        problems: rows that were there but cannot be used (a wrong length, say), in words that name the
            id; their `found` is false. At most MAX_PROBLEMS are spelt out.
        num_invalid: how many such rows there were.
        invalid: bool [n], which rows these were, where the store tells; else None.
    """

    __slots__ = ("found", "invalid", "num_invalid", "problems", "values")

    def __init__(
        self,
        values: FloatArray,
        found: NDArray[np.bool_],
        problems: tuple[str, ...] = (),
        num_invalid: int = 0,
        invalid: NDArray[np.bool_] | None = None,
    ) -> None:
        self.values = values
        self.found = found
        self.problems = problems
        self.num_invalid = num_invalid
        self.invalid = invalid


MAX_PROBLEMS = 5


class FeatureStore(ABC):
    """A place where feature rows live.

    Used from one event loop. Any number of fetches may run at the same time; cancelling one must leave
    the store usable. Nothing here retries or times out: `features.client` does that, for all stores
    alike.

    Attributes:
        kind: "redis", "parquet" …: the label of metrics.
    """

    kind: ClassVar[str]

    async def open(self) -> None:  # noqa: B027
        """Connect and check that the store can be used.

        Raises:
            ConfigError: the address, password or path is wrong; the text starts with the setting's name.
        """

    async def close(self) -> None:  # noqa: B027
        """Close connections; the store is not used afterwards."""

    @abstractmethod
    async def describe(self, group: str) -> FeatureGroup:
        """The schema stored with a group's rows.

        Raises:
            FeatureGroupNotFound: naming the groups there are, where the store can tell.
            FeatureStoreUnavailable: it cannot be asked now.
        """

    @abstractmethod
    async def fetch(self, group: FeatureGroup, ids: ExternalIds) -> FetchedRows:
        """Rows in the order asked for; duplicates allowed. One round trip where the store has it.

        Raises:
            FeatureStoreUnavailable: it cannot be asked now; worth another try.
            FeatureStoreError: it refuses; asking again will not help.
        """

    async def create(self, group: FeatureGroup) -> None:
        """Store a group's schema, before its rows; replaces an existing one.

        Raises:
            FeatureStoreError: the store cannot be written through Hopline.
        """
        raise self._read_only()

    async def write(self, group: FeatureGroup, ids: ExternalIds, values: FloatArray) -> None:
        """Store rows, float32 [n, dim]; replaces existing rows.

        Raises:
            FeatureStoreError, FeatureStoreUnavailable: it did not take (all of) them.
        """
        raise self._read_only()

    def _read_only(self) -> Exception:
        from hopline.errors import FeatureStoreError

        return FeatureStoreError(
            f"{self.kind} stores are read only here; load rows with the store's own tools"
        )
