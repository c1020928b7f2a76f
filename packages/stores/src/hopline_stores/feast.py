"""Feature rows in a Feast online store of any kind.

`feast:///path/of/the/repository`, the folder of its feature_store.yaml. A group is a feature view or a
feature service. Its row is all numeric features in order (for an array all its numbers, if its `Field` has
`vector_length`); as columns, its numbers, texts, booleans, times and lists by name. The view has one join
key; the ids are its values.

Read-only: Feast's own materialization writes rows. Feast handles values one at a time, in Python: 421 rows
of 128 features need 0.7 s, of one array of 128 numbers 35 ms. So use it behind the L1 feature cache and L2
with a matching timeout, and preferably in the prefetcher, not in a worker that shares its GIL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from hopline.errors import ConfigError, FeatureGroupNotFound, FeatureSchemaMismatch, FeatureStoreError
from hopline.features.base import ColumnRow, FeatureGroup, FetchedRows
from hopline.features.ids import listed
from hopline.features.rows import check_same, not_found
from hopline.float32 import loss
from hopline.types import ExternalId, ExternalIds, IdArray
from hopline_stores.columns import rows_of
from hopline_stores.foreign import ClientStore, RowsById

_THREADS = 4
#: SQLite, Feast's default, allows 32,766 keys in a query.
_IDS_OF_A_READ = 30_000

#: Types of features -> types of columns.
_COLUMN_TYPES = {
    "INT32": "integer",
    "INT64": "integer",
    "FLOAT32": "float",
    "FLOAT64": "float",
    "STRING": "text",
    "BOOL": "boolean",
    "UNIX_TIMESTAMP": "timestamp",
}
_NUMBERS = ("INT32", "INT64", "FLOAT32", "FLOAT64")
_SCALARS = frozenset({"int32_val", "int64_val", "float_val", "double_val"})
_LISTS = frozenset({"int32_list_val", "int64_list_val", "float_list_val", "double_list_val"})
#: A missing time, as Feast writes it.
_NO_TIME, _EPOCH = -(2**63), datetime(1970, 1, 1, tzinfo=UTC)
#: Before the names of groups whose views are of columns.
_AS_COLUMNS = "columns of "
#: FieldStatus of Feast's responses. Values that are too old for their view are missing, as in Feast.
_PRESENT, _NOT_FOUND, _OUTSIDE_MAX_AGE = 1, 3, 4


@dataclass(frozen=True)
class _Column:
    """A feature as part of a row.

    Attributes:
        name: name in the group.
        answer: name in Feast's response.
        first, width: position and number of its values in the row.
        is_list: the feature is an array.
    """

    name: str
    answer: str
    first: int
    width: int
    is_list: bool


@dataclass(frozen=True)
class _View:
    """The request to Feast for a group.

    Attributes:
        features: references, or a feature service.
        join_key: the key whose values are the ids.
        id_range: range of integer ids; None for string ids.
        columns: of a row of numbers.
        answers: of columns: name -> name in Feast's response.
    """

    group: FeatureGroup
    features: Any
    join_key: str
    id_range: range | None
    columns: tuple[_Column, ...]
    answers: dict[str, str] = field(default_factory=dict)


class FeastStore(ClientStore):
    """The online store of a Feast repository.

    Args:
        url: feast://<folder>
        setting: setting of the URL, for errors.

    Raises:
        ConfigError: the URL has no folder.
    """

    kind = "feast"

    def __init__(self, url: str, setting: str = "features.store") -> None:
        parts = urlsplit(url)
        self._folder = unquote(parts.netloc + parts.path)
        if not self._folder:
            raise ConfigError(f"{setting}: {url!r} must be feast://<folder of feature_store.yaml>")
        super().__init__(f"Feast repository {self._folder!r}", setting, _THREADS)
        self._feast: Any = None
        self._views: dict[str, _View] = {}

    async def close(self) -> None:
        """See `FeatureStore.close`."""
        self._threads.close()
        feast, self._feast = self._feast, None
        if feast is not None:
            await feast.close()

    async def describe(self, group: str) -> FeatureGroup:
        """See `FeatureStore.describe`; dtype is float32 for all types of features."""
        self._views[group] = view = await self._run(f"looking up {group!r}", self._view, group)
        return view.group

    async def describe_columns(self, group: str) -> FeatureGroup:
        """See `FeatureStore.describe_columns`; other types are left out."""
        view = await self._run(f"looking up {group!r}", self._view, group, True)
        self._views[_AS_COLUMNS + group] = view
        return view.group

    async def fetch_columns(self, group: FeatureGroup, ids: ExternalIds) -> Sequence[ColumnRow]:
        """See `FeatureStore.fetch_columns`; raises as `fetch`."""
        if _AS_COLUMNS + group.name not in self._views:
            await self.describe_columns(group.name)
        view = self._views[_AS_COLUMNS + group.name]
        rows = await self._run(f"reading {group.name!r}", self._fetch_columns, view, listed(ids))
        return rows_of(group, rows)

    async def fetch(self, group: FeatureGroup, ids: ExternalIds) -> FetchedRows:
        """See `FeatureStore.fetch`. Ids of a different type than the join key are not found.

        Raises:
            FeatureSchemaMismatch: the features of the view differ from `group`.
        """
        if group.name not in self._views:
            await self.describe(group.name)
        view = self._views[group.name]
        check_same(group, view.group)
        if group.feature_names and group.feature_names != view.group.feature_names:
            raise FeatureSchemaMismatch(
                f"group {group.name!r}: Feast has the features {', '.join(view.group.feature_names)}; "
                f"expected {', '.join(group.feature_names)}"
            )
        return await self._run(f"reading {group.name!r}", self._fetch, view, listed(ids))

    def _connect(self) -> None:
        try:
            import feast
        except ImportError as error:
            raise ConfigError(f"{self._setting}: feast:// needs Feast; install hopline[feast]") from error
        self._feast = feast.FeatureStore(repo_path=self._folder)

    def _probe(self) -> None:
        names = [view.name for view in self._feast.list_all_feature_views()]
        if not names:
            raise ConfigError(f"{self._setting}: {self._name} has no feature views; has it been applied?")
        for name in names:
            try:
                view = self._view(name)
            except FeatureStoreError:
                continue  # not usable here; other views may be
            self._read(view, ["" if view.id_range is None else 0])
            return

    def _view(self, name: str, as_columns: bool = False) -> _View:
        from feast import FeatureView

        views = {
            view.name: view
            for view in self._feast.list_all_feature_views()
            if isinstance(view, FeatureView)
        }
        service = None
        if name in views:
            parts: list[tuple[str, str, dict[str, str], list[Any]]] = [
                (name, name, {}, views[name].features)
            ]
        else:
            services = {service.name: service for service in self._feast.list_feature_services()}
            service = services.get(name)
            if service is None:
                raise FeatureGroupNotFound(not_found(self.kind, name, [*views, *services]))
            parts = [
                (part.name, part.name_to_use(), part.join_key_map, part.features)
                for part in service.feature_view_projections
            ]
        keys: dict[tuple[str, str], None] = {}
        columns: list[_Column] = []
        types: dict[str, str] = {}
        answers: dict[str, str] = {}
        references: list[str] = []
        for view_name, answer_name, join_key_map, fields in parts:
            if view_name not in views:
                raise FeatureStoreError(
                    f"{self._name}: {name!r} has features of {view_name!r}, an unsupported on-demand view"
                )
            for column in views[view_name].entity_columns:
                keys[join_key_map.get(column.name, column.name), column.dtype.name] = None
            for each in fields:
                answer = f"{answer_name}__{each.name}"
                if as_columns:
                    if kind := _column_type(each.dtype):
                        references.append(f"{view_name}:{each.name}")
                        shown = each.name if service is None else answer
                        types[shown], answers[shown] = kind, answer
                    continue
                width = self._width(each, name)
                first = columns[-1].first + columns[-1].width if columns else 0
                if width:
                    references.append(f"{view_name}:{each.name}")
                    shown = each.name if service is None else answer
                    columns.append(_Column(shown, answer, first, width, _is_array(each.dtype)))
        if not columns and not types:
            wanted = "features that are columns" if as_columns else "numeric features"
            raise FeatureStoreError(f"{self._name}: {name!r} has no {wanted}")
        join_key, id_range = self._key(name, list(keys))
        if as_columns:
            group = FeatureGroup.of_columns(name, types)
            return _View(group, service or references, join_key, id_range, (), answers)
        feature_names = tuple(part for column in columns for part in _part_names(column))
        group = FeatureGroup(name, len(feature_names), "float32", feature_names)
        # Aliases and renamed join keys are only resolved in a request for the service itself.
        return _View(group, service or references, join_key, id_range, tuple(columns))

    def _width(self, field: Any, group: str) -> int:
        """Return the numbers of a feature in a row; 0 if it is not numeric."""
        if not _is_array(field.dtype):
            return int(getattr(field.dtype, "name", "") in _NUMBERS)
        if getattr(field.dtype.base_type, "name", "") not in _NUMBERS:
            return 0
        if not field.vector_length:
            raise FeatureStoreError(
                f"{self._name}: {group!r}: the length of array {field.name!r} is unknown; set "
                "vector_length in its Field"
            )
        return int(field.vector_length)

    def _key(self, group: str, keys: list[tuple[str, str]]) -> tuple[str, range | None]:
        # A view without entities has the same row for all ids, under a dummy key of Feast.
        keys = [key for key in keys if key[0] != "__dummy_id"]
        if len(keys) != 1:
            shown = ", ".join(repr(key) for key, _ in keys) or "none"
            raise FeatureStoreError(f"{self._name}: {group!r} must have one join key, but has {shown}")
        name, dtype = keys[0]
        if dtype == "STRING":
            return name, None
        if dtype not in ("INT32", "INT64"):
            raise FeatureStoreError(
                f"{self._name}: {group!r}: join key {name!r} is {dtype}; it must be INT32, INT64 or STRING"
            )
        limit = 2**31 if dtype == "INT32" else 2**63
        return name, range(-limit, limit)

    def _fetch(self, view: _View, ids: Sequence[int] | Sequence[str]) -> FetchedRows:
        place: dict[ExternalId, int] = {}
        for id in ids:
            if _is_possible(id, view.id_range):
                place.setdefault(id, len(place))
        distinct = list(place)
        read = _Rows(view, len(distinct))
        for first in range(0, len(distinct), _IDS_OF_A_READ):
            part = distinct[first : first + _IDS_OF_A_READ]
            read.take(first, len(part), self._read(view, part))
        where = np.array([place.get(id, -1) for id in ids], np.int64)
        return read.answer(where, ids)

    def _fetch_columns(self, view: _View, ids: Sequence[int] | Sequence[str]) -> Sequence[ColumnRow]:
        keys: dict[ExternalId, None] = dict.fromkeys(ids)
        distinct = [id for id in keys if _is_possible(id, view.id_range)]
        rows: dict[ExternalId, ColumnRow] = {}
        for first in range(0, len(distinct), _IDS_OF_A_READ):
            part = distinct[first : first + _IDS_OF_A_READ]
            vectors = self._read(view, part)
            found: list[dict[str, Any]] = [{} for _ in part]
            for name, answer in view.answers.items():
                vector = vectors.get(answer)
                if vector is None or not len(vector.values) == len(vector.statuses) == len(part):
                    raise FeatureStoreError(f"Feast did not return the {len(part)} values of {answer!r}")
                for row, value, status in zip(found, vector.values, vector.statuses, strict=True):
                    if status not in (_NOT_FOUND, _OUTSIDE_MAX_AGE):
                        row[name] = _column_value(value)
            rows.update(zip(part, (row or None for row in found), strict=True))
        return [rows.get(id) for id in ids]

    def _read(self, view: _View, ids: list[Any]) -> dict[str, Any]:
        """Return the vectors by Feast's feature name: Feast does not keep the order of the request."""
        answer = self._feast.get_online_features(
            features=view.features, entity_rows={view.join_key: ids}, full_feature_names=True
        ).proto
        return dict(zip(answer.metadata.feature_names.val, answer.results, strict=True))


class _Rows(RowsById):
    """Rows of distinct ids that are assembled from Feast's columns."""

    def __init__(self, view: _View, num_rows: int) -> None:
        super().__init__(view.group, num_rows)
        self._columns = view.columns
        self._num_present = np.zeros(num_rows, np.int64)

    def take(self, first: int, num_rows: int, vectors: dict[str, Any]) -> None:
        """Store the values of rows first … first + num_rows - 1.

        Raises:
            FeatureStoreError: the response has a different number of rows.
        """
        for column in self._columns:
            vector = vectors.get(column.answer)
            if vector is None or not len(vector.values) == len(vector.statuses) == num_rows:
                raise FeatureStoreError(
                    f"Feast did not return the {num_rows} requested values of {column.answer!r}"
                )
            for row, (value, status) in enumerate(zip(vector.values, vector.statuses, strict=True), first):
                self._take(row, column, value, status)

    def _take(self, row: int, column: _Column, value: Any, status: int) -> None:
        if status in (_NOT_FOUND, _OUTSIDE_MAX_AGE):
            return
        self._num_present[row] += 1
        kind = value.WhichOneof("val") if status == _PRESENT else None
        if kind is None:
            self.problems.setdefault(row, f"feature {column.name!r} has no value")
            return
        if kind not in (_LISTS if column.is_list else _SCALARS):
            self.problems.setdefault(row, f"feature {column.name!r} is a {kind.removesuffix('_val')}")
            return
        numbers = getattr(value, kind).val if column.is_list else [getattr(value, kind)]
        if len(numbers) != column.width:
            problem = f"feature {column.name!r} has {len(numbers)} numbers, not {column.width}"
            self.problems.setdefault(row, problem)
            return
        stored = self.values[row, column.first : column.first + column.width]
        stored[:] = numbers
        if kind.startswith("int"):
            inexact = [
                number for number, kept in zip(numbers, stored.tolist(), strict=True) if number != kept
            ]
            if inexact:
                self.problems.setdefault(row, f"feature {column.name!r}: {loss(inexact[0])}")

    def answer(self, where: IdArray, ids: ExternalIds) -> FetchedRows:
        """See `RowsById.answer`; a row without some of the features cannot be used."""
        num_columns = len(self._columns)
        for row in np.flatnonzero((self._num_present > 0) & (self._num_present < num_columns)).tolist():
            lacking = num_columns - int(self._num_present[row])
            self.problems.setdefault(row, f"{lacking} of {num_columns} features are missing")
        self.found = self._num_present == num_columns
        return super().answer(where, ids)


def _column_value(value: Any) -> Any:
    """A value of Feast's as one of a column; None if it has none."""
    kind = value.WhichOneof("val")
    if kind is None or kind == "null_val":
        return None
    found = getattr(value, kind)
    if kind != "unix_timestamp_val":
        return [*found.val] if kind.endswith(("_list_val", "_set_val")) else found
    try:
        return None if found == _NO_TIME else _EPOCH + timedelta(seconds=found)
    except OverflowError:
        return found


def _column_type(dtype: Any) -> str:
    """The type of a column of a feature; "" if it has none."""
    if not hasattr(dtype, "base_type"):
        return _COLUMN_TYPES.get(getattr(dtype, "name", ""), "")
    item = getattr(dtype.base_type, "name", "")
    return "codes" if item == "STRING" else "vector" if _is_array(dtype) and item in _NUMBERS else ""


def _is_array(dtype: Any) -> bool:
    # Not by its base type: a Set has one too, but no order.
    return type(dtype).__name__ == "Array"


def _part_names(column: _Column) -> list[str]:
    return [f"{column.name}[{i}]" for i in range(column.width)] if column.is_list else [column.name]


def _is_possible(id: ExternalId, id_range: range | None) -> bool:
    """Return True if a join key can have the value; Feast refuses a whole read for an impossible one."""
    if id_range is not None:
        return isinstance(id, int | np.integer) and id in id_range
    try:
        return isinstance(id, str) and id.encode() is not None
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
