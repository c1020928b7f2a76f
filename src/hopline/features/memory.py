"""Rows in the memory of this process, or mapped from .npy files: for tests, and for few rows.

`memory:` is empty at first and can be written. `memory:///folder` maps the files of a folder, read-only:

    <group>.npy        [N, dim], float32, float16 or float64
    <group>.ids.npy    [N] integers or strings; without it the ids are the row numbers
    <group>.json       a `FeatureGroup`; without it dim and dtype are those of the array
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import numpy as np

from hopline.errors import ConfigError, FeatureGroupNotFound
from hopline.features.base import COLUMNS, DTYPES, ColumnRow, FeatureGroup, FeatureStore, FetchedRows
from hopline.features.ids import IdRows, RowNumbers, index, listed
from hopline.features.rows import GrowingRows, Rows, check_group, check_same, checked_values, not_found
from hopline.files import check_regular
from hopline.types import UNREADABLE, AnyArray, ExternalId, ExternalIds, FloatArray


class MemoryStore(FeatureStore):
    """Groups in a dict."""

    kind = "memory"

    def __init__(self, url: str = "memory:", setting: str = "features.store") -> None:
        parts = urlsplit(url)
        self._setting = setting
        self._folder = Path(unquote(parts.netloc + parts.path)) if parts.netloc or parts.path else None
        self._groups: dict[str, Rows] = {}
        #: Rows of groups of columns, by id.
        self._columns: dict[str, dict[ExternalId, Mapping[str, Any]]] = {}

    async def open(self) -> None:
        """Map the folder's files, if there is a folder."""
        if self._folder is not None:
            self._groups.update(await asyncio.to_thread(_mapped, self._folder, self._setting))

    async def describe(self, group: str) -> FeatureGroup:
        """See `FeatureStore.describe`."""
        return self._rows(group).group

    async def fetch(self, group: FeatureGroup, ids: ExternalIds) -> FetchedRows:
        """See `FeatureStore.fetch`; mapped rows are read in a thread, since they may be on disk."""
        rows = self._rows(group.name)
        if self._folder is None:
            return rows.fetch(group, ids)
        return await asyncio.to_thread(rows.fetch, group, ids)

    async def create(self, group: FeatureGroup) -> None:
        """See `FeatureStore.create`; rows with another schema are dropped."""
        if self._folder is not None:
            raise self._read_only()
        check_group(group)
        rows = self._groups.get(group.name)
        if rows is None or rows.group.hash != group.hash:
            nothing = np.empty((0, group.dim), np.float32)
            has_columns = group.dtype == COLUMNS
            self._groups[group.name] = (
                Rows(group, RowNumbers(0), nothing) if has_columns else GrowingRows(group)
            )
            self._columns[group.name] = {}

    async def write(self, group: FeatureGroup, ids: ExternalIds, values: FloatArray) -> None:
        """See `FeatureStore.write`."""
        rows = self._rows(group.name)
        if not isinstance(rows, GrowingRows):
            raise self._read_only()
        check_same(group, rows.group)
        rows.write(ids, checked_values(group, ids, values))

    async def fetch_columns(self, group: FeatureGroup, ids: ExternalIds) -> Sequence[ColumnRow]:
        """See `FeatureStore.fetch_columns`."""
        rows = self._columns.get(self._rows(group.name).group.name, {})
        return [rows.get(id) for id in listed(ids)]

    async def write_columns(
        self, group: FeatureGroup, ids: ExternalIds, columns: Mapping[str, Sequence[Any]]
    ) -> None:
        """See `FeatureStore.write_columns`."""
        rows = self._columns[group.name]
        names: Sequence[ExternalId] = listed(ids)
        for at, id in enumerate(names):
            rows[id] = {name: values[at] for name, values in columns.items()}

    def _rows(self, group: str) -> Rows:
        rows = self._groups.get(group)
        if rows is None:
            raise FeatureGroupNotFound(not_found(self.kind, group, list(self._groups)))
        return rows


def _mapped(folder: Path, setting: str) -> dict[str, Rows]:
    if not folder.is_dir():
        raise ConfigError(f"{setting}: {str(folder)!r} is not a folder")
    names = sorted(
        file.name.removesuffix(".npy")
        for file in folder.glob("*.npy")
        if not file.name.endswith(".ids.npy")
    )
    if not names:
        raise ConfigError(f"{setting}: {str(folder)!r} has no <group>.npy")
    try:
        check_regular(folder)
    except OSError as error:
        raise ConfigError(f"{setting}: {error}") from None
    return {name: _mapped_rows(folder, name, setting) for name in names}


def _mapped_rows(folder: Path, name: str, setting: str) -> Rows:
    file, ids_file, schema_file = (folder / f"{name}{suffix}" for suffix in (".npy", ".ids.npy", ".json"))
    values = _load(file, setting)
    if values.ndim != 2 or values.dtype.name not in DTYPES or not values.shape[1]:
        raise ConfigError(
            f"{setting}: {file} must be [N, dim] of {', '.join(DTYPES)}; "
            f"it is {values.dtype.name} {list(values.shape)}"
        )
    group = FeatureGroup(name, values.shape[1], values.dtype.name)
    if schema_file.exists():
        try:
            schema = msgspec.json.decode(schema_file.read_bytes(), type=FeatureGroup)
        except UNREADABLE as error:
            raise ConfigError(f"{setting}: {schema_file} is not a feature group: {error}") from None
        if (schema.name, schema.dim, schema.dtype) != (group.name, group.dim, group.dtype):
            raise ConfigError(f"{setting}: {schema_file} describes {schema}, but {file} has {group}")
        group = schema
    ids: IdRows = RowNumbers(len(values))
    if ids_file.exists():
        listed = _load(ids_file, setting)
        if listed.shape != (len(values),) or listed.dtype.kind not in "iuU":
            raise ConfigError(
                f"{setting}: {ids_file} must have {len(values)} integers or strings; "
                f"it has {listed.dtype.name} {list(listed.shape)}"
            )
        ids = index(listed)
    return Rows(group, ids, values)


def _load(file: Path, setting: str) -> AnyArray:
    try:
        array: AnyArray = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{setting}: {file} cannot be read as .npy: {error}") from None
    return array
