"""Rows in an array, in RAM or mapped from a file, that are found by id."""

from __future__ import annotations

import numpy as np

from hopline.errors import FeatureSchemaMismatch, FeatureStoreError
from hopline.features.base import DTYPES, FeatureGroup, FetchedRows
from hopline.features.ids import HashedIds, IdRows
from hopline.types import AnyArray, ExternalIds, FloatArray


class Rows:
    """The rows of a group; they do not change.

    Args:
        group: their schema.
        ids: where the row of an id is.
        values: [N or more, dim] of the group's dtype.
    """

    def __init__(self, group: FeatureGroup, ids: IdRows, values: AnyArray) -> None:
        self.group = group
        self.ids = ids
        self.values = values

    def fetch(self, group: FeatureGroup, ids: ExternalIds) -> FetchedRows:
        """As `FeatureStore.fetch`. Raises: FeatureSchemaMismatch: `group` is not what the rows are."""
        check_same(group, self.group)
        where = self.ids.find(ids)
        found = where >= 0
        if found.all():
            return FetchedRows(np.ascontiguousarray(self.values[where], np.float32), found)
        values = np.zeros((len(where), group.dim), np.float32)
        values[found] = self.values[where[found]]
        return FetchedRows(values, found)


class GrowingRows(Rows):
    """Rows in RAM that can be written."""

    def __init__(self, group: FeatureGroup) -> None:
        self._hashed = HashedIds()
        super().__init__(group, self._hashed, np.empty((0, group.dim), group.dtype))

    def write(self, ids: ExternalIds, values: FloatArray) -> None:
        """As `FeatureStore.write`, with values that `checked_values` passed."""
        where = self._hashed.add(ids)
        if len(self._hashed) > len(self.values):
            room = max(len(self._hashed), 2 * len(self.values))
            grown = np.empty((room, self.group.dim), self.group.dtype)
            grown[: len(self.values)] = self.values
            self.values = grown
        self.values[where] = values


def checked_values(group: FeatureGroup, ids: ExternalIds, values: FloatArray) -> AnyArray:
    """Rows as they are stored: C-contiguous, little-endian, of the group's dtype.

    Raises:
        FeatureStoreError: `values` is not [n, dim].
    """
    array = np.asarray(values)
    if array.shape != (len(ids), group.dim):
        raise FeatureStoreError(
            f"group {group.name!r}: values of {len(ids)} rows must have shape {(len(ids), group.dim)}; "
            f"got {array.shape}"
        )
    # What float16 cannot hold becomes infinite, as in NumPy; it is no reason for a warning each time.
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, np.dtype(group.dtype).newbyteorder("<"))


def check_same(asked: FeatureGroup, stored: FeatureGroup) -> None:
    """Fail unless rows of `stored` can be given for `asked`.

    Raises:
        FeatureSchemaMismatch: naming dim or dtype.
    """
    for what in ("dim", "dtype"):
        if getattr(asked, what) != getattr(stored, what):
            raise FeatureSchemaMismatch(
                f"group {asked.name!r}: {what} {getattr(stored, what)} is stored, "
                f"{getattr(asked, what)} was asked for"
            )


def check_group(group: FeatureGroup) -> None:
    """Fail unless a store can keep the group.

    Raises:
        FeatureStoreError: a name, dim or dtype that cannot be.
    """
    if not group.name or any(mark in group.name for mark in ":#/\0"):
        raise FeatureStoreError(
            f"group {group.name!r}: a name has at least one character and none of ':', '#', '/'"
        )
    if group.dim < 1:
        raise FeatureStoreError(f"group {group.name!r}: dim is at least 1; got {group.dim}")
    if group.dtype not in DTYPES:
        raise FeatureStoreError(
            f"group {group.name!r}: dtype is one of {', '.join(DTYPES)}; got {group.dtype!r}"
        )
    if group.feature_names and len(group.feature_names) != group.dim:
        raise FeatureStoreError(
            f"group {group.name!r}: {len(group.feature_names)} feature names for {group.dim} numbers"
        )


def not_found(kind: str, name: str, known: list[str]) -> str:
    """What `FeatureGroupNotFound` says."""
    there = ", ".join(map(repr, sorted(known))) or "none"
    return f"{kind}: no feature group {name!r}; there are: {there}"
