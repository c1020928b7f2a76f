"""The interface of feature stores, independent of how a store keeps its rows.

A *feature group* is the rows of one kind of entity (usually one node type). Rows are requested by the
entities' external ids, since the pipelines that write rows use these ids.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.errors import FeatureSchemaMismatch, FeatureStoreError
from hopline.types import ExternalIds, FloatArray

#: Names of the dtypes that rows may have in a store; all are served as float32.
DTYPES = ("float32", "float16", "float64")
#: In the place of a dtype: rows are values by name, which the preprocessing of models reads.
COLUMNS = "columns"
#: A row of columns: values by name, as JSON has them, or datetimes. None where a store has no such row; a
#: text says why it cannot be used.
ColumnRow = Mapping[str, Any] | str | None


class FeatureGroup(msgspec.Struct, frozen=True):
    """The schema of a group's rows, which is stored with them.

    Attributes:
        name: name of the group.
        dim: numbers per row.
        dtype: one of DTYPES, little-endian; or COLUMNS.
        feature_names: one for each number or column, in order; empty without names.
        types: of columns, as in `graph.schema.ColumnType`, "codes" or "vector"; empty for numbers.
    """

    name: str
    dim: int
    dtype: str = "float32"
    feature_names: tuple[str, ...] = ()
    types: tuple[str, ...] = ()

    @classmethod
    def of_columns(cls, name: str, types: Mapping[str, str]) -> FeatureGroup:
        """A group of columns; `types` has the type of each."""
        return cls(name, len(types), COLUMNS, tuple(types), tuple(types.values()))

    @property
    def columns(self) -> dict[str, str]:
        """Column -> its type; {} for a group of numbers."""
        return dict(zip(self.feature_names, self.types, strict=True)) if self.types else {}

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as raw little-endian numbers."""
        return self.dim * np.dtype(self.dtype).itemsize

    @property
    def hash(self) -> str:
        """16 hex digits of names, order, dim and dtype; the group's own name is not included."""
        types = [self.types] if self.types else []
        schema = msgspec.json.encode([self.dim, self.dtype, self.feature_names, *types])
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

    async def describe_columns(self, group: str) -> FeatureGroup:
        """Return the columns of a group, named and typed; raises as `describe`."""
        found = await self.describe(group)
        if found.dtype != COLUMNS:
            raise FeatureSchemaMismatch(
                f"{self.kind}: group {group!r} has rows of {found.dim} numbers, and no columns; the "
                "preprocessing of a model reads columns: load them with `hopline features load`"
            )
        return found

    async def fetch_columns(self, group: FeatureGroup, ids: ExternalIds) -> Sequence[ColumnRow]:
        """Return rows of columns in the order of the ids; raises as `fetch`.

        Args:
            group: of COLUMNS, those that are wanted. A row lacks the columns that its store lacks.
        """
        raise FeatureStoreError(f"{self.kind} stores have no columns for Hopline, only numbers")

    async def write_columns(
        self, group: FeatureGroup, ids: ExternalIds, columns: Mapping[str, Sequence[Any]]
    ) -> None:
        """Store rows of columns, a value of each for each id; replaces existing ones; raises as `write`."""
        raise self._read_only()

    async def group_names(self) -> list[str]:
        """Return the names of all groups that Hopline may write; raises as `create`."""
        raise self._read_only()

    async def remove(self, group: FeatureGroup, ids: ExternalIds) -> None:
        """Delete rows of a group; missing rows are not an error; raises as `write`."""
        raise self._read_only()

    def _read_only(self) -> Exception:
        return FeatureStoreError(
            f"{self.kind} stores are read-only for Hopline; load rows with the store's own tools"
        )
