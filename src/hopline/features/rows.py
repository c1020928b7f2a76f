"""Rows in an array in RAM or mapped from a file, found by id."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopline.errors import FeatureSchemaMismatch, FeatureStoreError
from hopline.features.base import COLUMNS, DTYPES, FeatureGroup, FetchedRows
from hopline.features.ids import HashedIds, IdRows
from hopline.float32 import changed, loss
from hopline.types import AnyArray, ExternalIds, FloatArray


class Rows:
    """The fixed rows of a group.

    Args:
        group: their schema.
        ids: finds the row of an id.
        values: [N or more, dim] of the group's dtype.
    """

    def __init__(self, group: FeatureGroup, ids: IdRows, values: AnyArray) -> None:
        self.group = group
        self.ids = ids
        self.values = values

    def fetch(self, group: FeatureGroup, ids: ExternalIds) -> FetchedRows:
        """See `FeatureStore.fetch`. Raises: FeatureSchemaMismatch: the rows do not fit `group`."""
        check_same(group, self.group)
        where = self.ids.find(ids)
        found = where >= 0
        if found.all():
            return FetchedRows(np.ascontiguousarray(self.values[where], np.float32), found)
        values = np.zeros((len(where), group.dim), np.float32)
        values[found] = self.values[where[found]]
        return FetchedRows(values, found)


class GrowingRows(Rows):
    """Rows in RAM that can be written to."""

    def __init__(self, group: FeatureGroup) -> None:
        self._hashed = HashedIds()
        super().__init__(group, self._hashed, np.empty((0, group.dim), group.dtype))

    def write(self, ids: ExternalIds, values: FloatArray) -> None:
        """See `FeatureStore.write`; values must come from `checked_values`."""
        where = self._hashed.add(ids)
        if len(self._hashed) > len(self.values):
            room = max(len(self._hashed), 2 * len(self.values))
            grown = np.empty((room, self.group.dim), self.group.dtype)
            grown[: len(self.values)] = self.values
            self.values = grown
        self.values[where] = values


def checked_values(group: FeatureGroup, ids: ExternalIds, values: FloatArray) -> AnyArray:
    """Return rows in their stored form: C-contiguous, little-endian, with the group's dtype.

    Raises:
        FeatureStoreError: `values` is not [n, dim], or has integers that float32 would change.
    """
    array = np.asarray(values)
    if array.shape != (len(ids), group.dim):
        raise FeatureStoreError(
            f"group {group.name!r}: values of {len(ids)} rows must have shape {(len(ids), group.dim)}; "
            f"not {array.shape}"
        )
    refuse_changed(f"group {group.name!r}", array, group.feature_names)
    # Values beyond float16 become infinite, as in NumPy, without a warning each time.
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, np.dtype(group.dtype).newbyteorder("<"))


def refuse_changed(where: str, values: AnyArray, names: Sequence[str] = ()) -> None:
    """Refuse integers that float32 would change, since all rows are served as float32.

    Args:
        values: [n, d]. Floats are accepted: their writer has accepted rounding.
        names: of the columns, or empty.

    Raises:
        FeatureStoreError: with the column and the number.
    """
    lost = changed(values, values.astype(np.float32)) if values.dtype.kind in "iu" else None
    if lost is not None:
        row, column = np.argwhere(lost)[0].tolist()
        named = repr(names[column]) if column < len(names) else column
        raise FeatureStoreError(
            f"{where}: column {named}: {loss(values[row, column])}. Number codes from 0 on, or write "
            "floats if rounding is harmless"
        )


def not_finite(group: FeatureGroup, ids: ExternalIds, values: FloatArray, row: int) -> str:
    """Place of the first NaN or infinity of a row of `values` [n, dim], for a message."""
    column = int(np.flatnonzero(~np.isfinite(values[row]))[0])
    named = repr(group.feature_names[column]) if group.feature_names else str(column)
    id = ids.item(row) if isinstance(ids, np.ndarray) else ids[row]
    return f"group {group.name!r}: the row of {id!r} has {values[row, column]} in column {named}"


def check_same(requested: FeatureGroup, stored: FeatureGroup) -> None:
    """Check that rows of `stored` can be returned for `requested`.

    Raises:
        FeatureSchemaMismatch: with the differing dim or dtype.
    """
    for what in ("dim", "dtype"):
        if getattr(requested, what) != getattr(stored, what):
            raise FeatureSchemaMismatch(
                f"group {requested.name!r}: the store has {what} {getattr(stored, what)}, but "
                f"{getattr(requested, what)} was requested"
            )


def check_group(group: FeatureGroup) -> None:
    """Check that a store can store the group.

    Raises:
        FeatureStoreError: an invalid name, dim or dtype.
    """
    if not group.name or any(mark in group.name for mark in ":#/\0"):
        raise FeatureStoreError(
            f"group {group.name!r}: a name must have at least one character and none of ':', '#', '/'"
        )
    if group.dim < 1:
        raise FeatureStoreError(f"group {group.name!r}: dim must be at least 1, not {group.dim}")
    if group.dtype not in (*DTYPES, COLUMNS) or (group.dtype == COLUMNS) != bool(group.types):
        raise FeatureStoreError(
            f"group {group.name!r}: dtype must be one of {', '.join(DTYPES)}, not {group.dtype!r}"
        )
    for what, each in (("feature names", group.feature_names), ("types", group.types)):
        if each and len(each) != group.dim:
            raise FeatureStoreError(f"group {group.name!r}: {len(each)} {what} for {group.dim} numbers")


def not_found(kind: str, name: str, known: list[str]) -> str:
    """Return the message of `FeatureGroupNotFound`."""
    there = ", ".join(map(repr, sorted(known))) or "none"
    return f"{kind}: no feature group {name!r}; known groups: {there}"
