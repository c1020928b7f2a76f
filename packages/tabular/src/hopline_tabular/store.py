"""Rows of columns in a feature store as the features that a model's preprocessing makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from hopline.errors import FeatureSchemaMismatch
from hopline.features.base import MAX_PROBLEMS, ColumnRow, FeatureGroup, FeatureStore, FetchedRows
from hopline.features.ids import listed
from hopline.features.skew import column_differences
from hopline.graph.list_columns import lists_of
from hopline.graph.stored_columns import cells_of
from hopline.types import ExternalIds, FloatArray
from hopline_tabular.encoder import ColumnEncoder

#: Rows that are encoded on the event loop: a call of the preprocessing takes some 100 microseconds.
_FEW = 8


class EncodedStore(FeatureStore):
    """A store whose rows are encoded when they are fetched; everything above it reads numbers.

    A row with a missing column, or with a value of another type, is invalid: its problem names
    both. A null is what the preprocessing makes of it.

    Args:
        store: opened; has rows of columns.
        columns: name of the group in the store, and the columns that the preprocessing reads.
        features: the group as it is served.
        encoder: the preprocessing.
    """

    def __init__(
        self, store: FeatureStore, columns: FeatureGroup, features: FeatureGroup, encoder: ColumnEncoder
    ) -> None:
        self._store = store
        self._columns = columns
        self._features = features
        self._encoder = encoder
        self._busy = asyncio.Lock()

    @property
    def kind(self) -> str:  # type: ignore[override]
        """That of the store."""
        return self._store.kind

    async def describe(self, group: str) -> FeatureGroup:
        """The features.

        Raises: FeatureSchemaMismatch: the store has other columns than the preprocessing reads; names them.
        """
        stored = await self._store.describe_columns(self._columns.name)
        if lines := column_differences(self._columns, stored, lists_of(self._columns.columns)):
            raise FeatureSchemaMismatch(f"{self.kind}: group {self._columns.name!r}: {'; '.join(lines)}")
        return self._features

    async def fetch(self, group: FeatureGroup, ids: ExternalIds) -> FetchedRows:
        """See `FeatureStore.fetch`."""
        rows = await self._store.fetch_columns(self._columns, ids)
        async with self._busy:
            if len(rows) <= _FEW:
                return self._encoded(ids, rows)
            return await asyncio.to_thread(self._encoded, ids, rows)

    def _encoded(self, ids: ExternalIds, rows: Sequence[ColumnRow]) -> FetchedRows:
        problems = {at: row for at, row in enumerate(rows) if isinstance(row, str)}
        there = [at for at, row in enumerate(rows) if row is not None and at not in problems]
        given = cast("list[Mapping[str, Any]]", [rows[at] for at in there])
        columns: dict[str, Any] = {}
        for name, kind in self._columns.columns.items():
            cells, wrong = cells_of(kind, [row.get(name) for row in given])  # type: ignore[arg-type]
            for at, row in zip(there, given, strict=True):
                if name not in row:
                    problems.setdefault(at, f"column {name!r} is missing")
            for at, why in wrong.items():
                problems.setdefault(there[at], f"column {name!r}: {why}")
            columns[name] = cells / 1e6 if kind == "timestamp" else cells
        good = np.array([at for at, row in enumerate(there) if row not in problems], np.int64)
        chosen = {
            name: cells[good].tolist() if cells.dtype == object else cells[good]
            for name, cells in columns.items()
        }
        where = np.array(there, np.int64)[good]
        values: FloatArray = np.zeros((len(rows), self._features.dim), np.float32)
        values[where], refused = self._encoder.encode_each(chosen, len(where), len(where))
        problems |= {int(where[at]): why for at, why in refused.items()}
        found = np.zeros(len(rows), np.bool_)
        found[where] = True
        invalid = np.zeros(len(rows), np.bool_)
        invalid[list(problems)] = True
        found &= ~invalid
        values[~found] = 0
        names = listed(ids)
        texts = tuple(
            f"group {self._columns.name!r}: the row of {names[at]!r}: {problems[at]}"
            for at in sorted(problems)[:MAX_PROBLEMS]
        )
        return FetchedRows(values, found, texts, len(problems), invalid)
