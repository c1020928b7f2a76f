"""The interface of feature stores, independent of how a store keeps its rows.

A *feature group* is the rows of one kind of entity (usually one node type). Rows are requested by the
entities' external ids, since the pipelines that write rows use these ids.
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
    """The schema of a group's rows, which is stored with them.

    Attributes:
        name: name of the group.
        dim: numbers per row.
        dtype: one of DTYPES, little-endian.
        feature_names: one for each number, in order; empty without names.
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
        """16 hex digits of names, order, dim and dtype; the group's own name is not included."""
        schema = msgspec.json.encode([self.dim, self.dtype, self.feature_names])
        return hashlib.sha256(schema).hexdigest()[:16]


class FetchedRows:
    """The rows that a store returns.

    Attributes:
        values: float32 [n, dim], C-contiguous; row i belongs to ids[i]; zeros if it was not found.
        found: bool [n].
        problems: texts about rows that exist but cannot be used (for example a wrong length), with their
            ids; their `found` is false. At most MAX_PROBLEMS texts.
        num_invalid: number of such rows.
        invalid: bool [n], which rows these were; None if the store does not report it.
        age_s: how long before the call these rows may have been replaced; 0 unless the store caches.
    """

    __slots__ = ("age_s", "found", "invalid", "num_invalid", "problems", "values")

    def __init__(
        self,
        values: FloatArray,
        found: NDArray[np.bool_],
        problems: tuple[str, ...] = (),
        num_invalid: int = 0,
        invalid: NDArray[np.bool_] | None = None,
        age_s: float = 0.0,
    ) -> None:
        self.values = values
        self.found = found
        self.problems = problems
        self.num_invalid = num_invalid
        self.invalid = invalid
        self.age_s = age_s


MAX_PROBLEMS = 5


class FeatureStore(ABC):
    """A source of feature rows.

    Used from one event loop. Any number of fetches may run at the same time; cancelling one must leave the
    store usable. Stores do not retry or time out: `features.client` does that for all stores.

    Attributes:
        kind: "redis", "parquet" …: label of its metrics.
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
        """Return the schema stored with a group's rows.

        Raises:
            FeatureGroupNotFound: with the existing groups, if the store can list them.
            FeatureStoreUnavailable: the store does not respond now.
        """

    @abstractmethod
    async def fetch(self, group: FeatureGroup, ids: ExternalIds) -> FetchedRows:
        """Return rows in the order of the ids; duplicates allowed. One round trip if the store supports it.

        Raises:
            FeatureStoreUnavailable: the store does not respond now; a retry may succeed.
            FeatureStoreError: the store refuses; a retry will not help.
        """

    async def create(self, group: FeatureGroup) -> None:
        """Store a group's schema, before its rows; replaces an existing one.

        Raises:
            FeatureStoreError: Hopline cannot write to the store.
        """
        raise self._read_only()

    async def write(self, group: FeatureGroup, ids: ExternalIds, values: FloatArray) -> None:
        """Store rows, float32 [n, dim]; replaces existing ones.

        Raises:
            FeatureStoreError, FeatureStoreUnavailable: not all rows were stored.
        """
        raise self._read_only()

    def _read_only(self) -> Exception:
        from hopline.errors import FeatureStoreError

        return FeatureStoreError(
            f"{self.kind} stores are read-only for Hopline; load rows with the store's own tools"
        )
