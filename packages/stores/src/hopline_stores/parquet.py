"""Rows in Parquet files, read from the files of a batch pipeline.

`parquet:///folder` has a group in `<group>.parquet`, or in the parts of a folder `<group>/`; for a repeated
id the last row is used, in the order of the parts' names. `parquet:///file.parquet` is one group. A file
has a column of ids (named by `?id=name`, default "id") and either a column of lists or a column for each
feature; for models with preprocessing, columns of all types that nodes have. In files written by Hopline
the schema is in the file's metadata; otherwise it is derived from the columns.

Parquet compresses columns, so reading single rows would decompress most of the file each time. So a group
is decompressed once, when it is first requested, into a temporary file that is mapped into memory.
"""

from __future__ import annotations

import asyncio
import importlib
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
import numpy as np

from hopline.errors import ConfigError, FeatureGroupNotFound, FeatureSchemaMismatch, FeatureStoreError
from hopline.features.base import COLUMNS, ColumnRow, FeatureGroup, FeatureStore, FetchedRows
from hopline.features.ids import IdRows, index, listed
from hopline.features.rows import Rows, check_group, check_same, checked_values, not_found, refuse_changed
from hopline.files import draft_of, publish_file, temporary_root
from hopline.graph.list_columns import columns_of, form_of
from hopline.graph.stored_columns import type_of
from hopline.types import UNREADABLE, AnyArray, ExternalIds, FloatArray
from hopline_stores.columns import kinds_of, rows_of

#: The key of the schema in the files' metadata, and the column of rows in files that Hopline writes.
_METADATA, _COLUMN = b"hopline", "features"
_BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of a group.

    Attributes:
        paths: in order; later rows replace earlier ones.
        columns: the columns with its numbers.
        refusal: why it has no rows of numbers.
    """

    group: FeatureGroup
    paths: tuple[Path, ...]
    columns: tuple[str, ...]
    refusal: str = ""


class ParquetStore(FeatureStore):
    """Groups in the files of a folder.

    Writing adds a part to the group's folder, so write many rows at a time.
    """

    kind = "parquet"

    def __init__(self, url: str, setting: str = "features.store") -> None:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        if unknown := options.keys() - {"id"}:
            raise ConfigError(
                f"{setting}: unknown option {min(unknown)!r} in the URL; the only option is id"
            )
        self._path = Path(unquote(parts.netloc + parts.path))
        self._setting = setting
        self._id = options.get("id", "id")
        self._files: dict[str, _Files] = {}
        self._rows: dict[str, asyncio.Task[Rows]] = {}
        self._tables: dict[str, asyncio.Task[_Table]] = {}

    async def open(self) -> None:
        """Read the schemas. Raises: ConfigError: no such path, no pyarrow, a file that cannot be used."""
        try:
            self._files = await asyncio.to_thread(self._find)
        except FeatureStoreError as error:
            raise ConfigError(f"{self._setting}: {error}") from None

    async def close(self) -> None:
        """Release the mapped files."""
        tasks: list[asyncio.Task[Any]] = [*self._rows.values(), *self._tables.values()]
        self._rows.clear()
        self._tables.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def describe(self, group: str) -> FeatureGroup:
        """See `FeatureStore.describe`; also decompresses the group, so that the first fetch is fast."""
        files = self._files.get(group)
        if files is not None and files.group.dtype == COLUMNS:
            return files.group
        return (await self._unpacked(group)).group

    async def describe_columns(self, group: str) -> FeatureGroup:
        """See `FeatureStore.describe_columns`; also decompresses the group."""
        return (await self._read(group)).group

    async def fetch_columns(self, group: FeatureGroup, ids: ExternalIds) -> Sequence[ColumnRow]:
        """See `FeatureStore.fetch_columns`; in a thread, since the rows may be on disk."""
        table = await self._read(group.name)
        return await asyncio.to_thread(table.fetch, group, ids)

    async def write_columns(
        self, group: FeatureGroup, ids: ExternalIds, columns: Mapping[str, Sequence[Any]]
    ) -> None:
        """See `FeatureStore.write_columns`: adds a part."""
        if len(ids):
            arrow = _arrow("pyarrow")
            kinds = {"float": arrow.float64(), "integer": arrow.int64(), "boolean": arrow.bool_()}
            kinds |= {"text": arrow.string(), "timestamp": arrow.timestamp("us", "UTC")}
            values = {
                name: arrow.array(columns[name], kinds[kind], from_pandas=True)
                for name, kind in group.columns.items()
            }
            await asyncio.to_thread(self._add_part, group, listed(ids), values)
            self._tables.pop(group.name, None)

    async def fetch(self, group: FeatureGroup, ids: ExternalIds) -> FetchedRows:
        """See `FeatureStore.fetch`; in a thread, since the rows may be on disk."""
        rows = await self._unpacked(group.name)
        return await asyncio.to_thread(rows.fetch, group, ids)

    async def create(self, group: FeatureGroup) -> None:
        """See `FeatureStore.create`; parts with another schema are deleted."""
        check_group(group)
        folder = self._folder(group.name)
        stored = self._files.get(group.name)
        self._rows.pop(group.name, None)
        self._tables.pop(group.name, None)
        if stored is not None and stored.group.hash != group.hash:
            shutil.rmtree(folder)
            stored = None
        if stored is None:
            folder.mkdir(exist_ok=True)
            self._files[group.name] = _Files(group, (), (_COLUMN,))
            if group.dtype != COLUMNS:
                empty = np.empty((0, group.dim), group.dtype)
                await asyncio.to_thread(self._add_part, group, [], _lists(group, empty))

    async def write(self, group: FeatureGroup, ids: ExternalIds, values: FloatArray) -> None:
        """See `FeatureStore.write`: adds a part."""
        files = self._files.get(group.name)
        if files is None:
            raise FeatureGroupNotFound(not_found(self.kind, group.name, list(self._files)))
        check_same(group, files.group)
        rows = checked_values(group, ids, values)
        self._folder(group.name)
        if len(rows):
            await asyncio.to_thread(self._add_part, files.group, listed(ids), _lists(group, rows))
            self._rows.pop(group.name, None)

    async def group_names(self) -> list[str]:
        """See `FeatureStore.group_names`."""
        return list(self._files)

    async def remove(self, group: FeatureGroup, ids: ExternalIds) -> None:
        """See `FeatureStore.remove`: writes each part that has one of the ids again."""
        if len(ids):
            await asyncio.to_thread(self._remove, group.name, listed(ids))
            self._rows.pop(group.name, None)
            self._tables.pop(group.name, None)

    @staticmethod
    def read_columns(path: Path, id_column: str) -> tuple[FeatureGroup, Any, Any]:
        """Read a single file as columns, without a store.

        Returns: its group; ids (int64 [n] or n str); and a `pyarrow.Table` of the columns, whole.
        Raises: FeatureStoreError: the file cannot be used.
        """
        files = _Files(FeatureGroup(path.stem, 0), (path,), ())
        read = _table_of(files, id_column)
        ids = _ids(path, id_column, _opened(path).read([id_column]).column(0).combine_chunks())
        kinds = {name: kind for name, kind in read.group.columns.items() if kind != "codes"}
        return FeatureGroup.of_columns(read.group.name, kinds), ids, read.table.select([*kinds])

    @staticmethod
    def read_file(path: Path, id_column: str) -> tuple[FeatureGroup, int, Iterator[tuple[Any, AnyArray]]]:
        """Read a single file without a store.

        Returns: its group; its number of rows; ids (int64 [m] or m str) and rows [m, dim], some at a time.
        Raises: FeatureStoreError: the file cannot be used; also while it is read.
        """
        files = _files_of(path.stem, (path,), id_column)
        parquet = _opened(path)
        if files.refusal:
            raise FeatureStoreError(files.refusal)
        return files.group, parquet.metadata.num_rows, _batches(path, parquet, id_column, files)

    async def _unpacked(self, group: str) -> Rows:
        task = self._rows.get(group)
        if task is None:
            files = self._files.get(group)
            if files is None:
                raise FeatureGroupNotFound(not_found(self.kind, group, list(self._files)))
            if files.refusal:
                raise FeatureStoreError(files.refusal)
            task = asyncio.ensure_future(asyncio.to_thread(_unpack, files, self._id))
            self._rows[group] = task
        try:
            return await asyncio.shield(task)
        except FeatureStoreError:
            if self._rows.get(group) is task:  # the file may be repaired
                del self._rows[group]
            raise

    async def _read(self, group: str) -> _Table:
        task = self._tables.get(group)
        if task is None:
            files = self._files.get(group)
            if files is None:
                raise FeatureGroupNotFound(not_found(self.kind, group, list(self._files)))
            task = asyncio.ensure_future(asyncio.to_thread(_table_of, files, self._id))
            self._tables[group] = task
        try:
            return await asyncio.shield(task)
        except FeatureStoreError:
            if self._tables.get(group) is task:
                del self._tables[group]
            raise

    def _find(self) -> dict[str, _Files]:
        _arrow("pyarrow")
        if self._path.is_file():
            found = _files_of(self._path.stem, (self._path,), self._id)
            return {found.group.name: found}
        if not self._path.is_dir():
            raise FeatureStoreError(f"{str(self._path)!r} does not exist; create the folder first")
        paths = sorted(self._path.iterdir())
        groups: dict[str, tuple[Path, ...]]
        groups = {path.stem: (path,) for path in paths if path.suffix == ".parquet" and path.is_file()}
        groups |= {path.name: parts for path in paths if path.is_dir() and (parts := _parts(path))}
        return {name: _files_of(name, files, self._id) for name, files in groups.items()}

    def _folder(self, group: str) -> Path:
        """Return the folder of a group's parts. Raises: FeatureStoreError: the group is a single file."""
        folder = self._path / group
        if not self._path.is_dir() or (self._path / f"{group}.parquet").exists():
            raise FeatureStoreError(
                f"parquet: group {group!r} is a single file, which Hopline does not change; "
                f"delete it, or write to another folder"
            )
        return folder

    def _add_part(
        self, group: FeatureGroup, ids: Sequence[int] | Sequence[str], columns: Mapping[str, Any]
    ) -> None:
        arrow = _arrow("pyarrow")
        folder = self._folder(group.name)
        numbers = [int(path.stem.rpartition("-")[2]) for path in folder.glob("part-*.parquet")]
        path = folder / f"part-{max(numbers, default=-1) + 1:06d}.parquet"
        metadata = {_METADATA: msgspec.json.encode(group)}
        try:
            table = arrow.table({self._id: ids, **columns}).replace_schema_metadata(metadata)
            draft = draft_of(path)
            _arrow("pyarrow.parquet").write_table(table, draft)
            publish_file(draft, path, durable=False)
        except (OSError, arrow.ArrowException) as error:
            raise FeatureStoreError(f"{path} cannot be written: {error}") from None
        self._files[group.name] = _Files(group, _parts(folder), (_COLUMN,))

    def _remove(self, group: str, ids: Sequence[int] | Sequence[str]) -> None:
        arrow, compute = _arrow("pyarrow"), _arrow("pyarrow.compute")
        self._folder(group)
        for path in self._files[group].paths:
            try:
                table = _opened(path).read()
                if not table.num_rows:  # its ids have no type
                    continue
                named = table.column(self._id)
                gone = compute.is_in(named, value_set=arrow.array(ids, named.type))
                if compute.any(gone).as_py():
                    draft = draft_of(path)
                    _arrow("pyarrow.parquet").write_table(table.filter(compute.invert(gone)), draft)
                    publish_file(draft, path, durable=True)
            except (OSError, arrow.ArrowException) as error:
                raise FeatureStoreError(f"{path} cannot be written: {error}") from None


def _lists(group: FeatureGroup, rows: AnyArray) -> dict[str, Any]:
    """Rows of numbers as the column of a file."""
    arrow = _arrow("pyarrow")
    return {_COLUMN: arrow.FixedSizeListArray.from_arrays(arrow.array(rows.reshape(-1)), group.dim)}


@dataclass(frozen=True, slots=True)
class _Table:
    """Rows of columns.

    Attributes:
        table: a `pyarrow.Table` of them, whose pages are on a disk. ids: find rows.
    """

    group: FeatureGroup
    ids: IdRows
    table: Any

    def fetch(self, group: FeatureGroup, ids: ExternalIds) -> Sequence[ColumnRow]:
        """See `FeatureStore.fetch_columns`."""
        where, known = self.ids.find(ids), self.table.column_names
        names = [name for name in kinds_of(group) if name in known]
        rows = self.table.select(names).take(np.maximum(where, 0)).to_pylist() if len(self.table) else []
        given = [row if at >= 0 else None for row, at in zip(rows, where.tolist(), strict=bool(rows))]
        return rows_of(group, given) or [None] * len(where)


def _table_of(files: _Files, id_column: str) -> _Table:
    """Read a group as columns."""
    arrow, types = _arrow("pyarrow"), _arrow("pyarrow.types")
    ids: list[Any] = []
    tables = []
    for path in files.paths:
        try:
            table = _opened(path).read()
        except (OSError, arrow.ArrowException) as error:
            raise FeatureStoreError(f"{path} cannot be read as Parquet: {error}") from None
        ids.append(_ids(path, id_column, table.column(id_column).combine_chunks()))
        columns = {name: table.column(name) for name in table.column_names if name != id_column}
        for name, column in list(columns.items()):
            if form_of(column.type) == "codes":  # which of them are columns, a request for rows says
                columns[name] = column.cast(arrow.list_(arrow.string()))
            elif not type_of(column.type):
                columns |= columns_of(name, columns.pop(name))  # other lists are no columns
            elif types.is_date(column.type):
                columns[name] = column.cast(arrow.timestamp("s"))
            elif types.is_decimal(column.type) or types.is_null(column.type):
                columns[name] = column.cast(arrow.float64())
        tables.append(arrow.table(columns))
    if any(table.schema != tables[0].schema for table in tables):
        raise FeatureStoreError(f"group {files.group.name!r}: its parts have different columns")
    group = files.group
    if group.dtype != COLUMNS:
        found = {field.name: type_of(field.type) or "codes" for field in tables[0].schema}
        group = FeatureGroup.of_columns(group.name, found)
    if not tables:
        return _Table(group, index(np.empty(0, np.int64)), arrow.table({}))
    with tempfile.TemporaryFile(prefix="hopline-", dir=temporary_root()) as file:
        with arrow.ipc.new_file(file, tables[0].schema) as writer:
            writer.write_table(arrow.concat_tables(tables).combine_chunks())
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    table = arrow.ipc.open_file(arrow.py_buffer(mapped)).read_all()
    return _Table(group, _indexed(files, ids), table)


def _indexed(files: _Files, ids: Sequence[Any]) -> IdRows:
    """The index of the ids of all parts."""
    if all(isinstance(some, np.ndarray) for some in ids):
        return index(np.concatenate(ids))
    if any(isinstance(some, np.ndarray) for some in ids):
        raise FeatureStoreError(
            f"group {files.group.name!r}: some parts have integer ids and others strings"
        )
    return index([id for some in ids for id in some])


def _ids(path: Path, id_column: str, ids: Any) -> Any:
    """Ids of a file: an int64 array, or a list of str."""
    types = _arrow("pyarrow.types")
    if ids.null_count:
        raise FeatureStoreError(f"{path}: column {id_column!r} has {ids.null_count} nulls")
    if types.is_integer(ids.type):
        return ids.to_numpy(zero_copy_only=False).astype(np.int64)
    if types.is_string(ids.type) or types.is_large_string(ids.type) or types.is_dictionary(ids.type):
        return ids.to_pylist()
    raise FeatureStoreError(f"{path}: column {id_column!r} must have integers or strings")


def _parts(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(path for path in folder.glob("*.parquet") if not path.name.startswith(".")))


def _files_of(name: str, paths: tuple[Path, ...], id_column: str) -> _Files:
    """Return the files and the group that the first file describes."""
    schema = _opened(paths[0]).schema_arrow
    if id_column not in schema.names:
        raise FeatureStoreError(
            f"{paths[0]}: no column {id_column!r} for the ids; its columns: {', '.join(schema.names)}"
        )
    columns = tuple(field.name for field in schema if field.name != id_column and _width(field.type))
    stored = (schema.metadata or {}).get(_METADATA)
    if stored is not None:
        try:
            group = msgspec.json.decode(stored, type=FeatureGroup)
        except UNREADABLE as error:
            raise FeatureStoreError(f"{paths[0]}: the schema in its metadata: {error}") from None
        return _Files(group, paths, columns)
    types = [schema.field(column).type for column in columns]
    lists = [kind for kind in types if _is_list(kind)]
    if not columns or (lists and len(columns) > 1):
        refusal = (
            f"{paths[0]}: features must be one column of lists of equal length, or columns of numbers; "
            f"its columns: {', '.join(f'{field.name} ({field.type})' for field in schema)}"
        )
        if len(schema) < 2:
            raise FeatureStoreError(refusal)
        return _Files(FeatureGroup(name, 0), paths, (), refusal)
    dim = sum(map(_width, types))
    if dim < 0:
        dim = _first_length(paths, columns[0])
    numbers = {str(kind.value_type if _is_list(kind) else kind) for kind in types}
    dtype = {"halffloat": "float16", "double": "float64"}.get("".join(numbers), "float32")
    dtype = "float64" if "double" in numbers else dtype
    group = FeatureGroup(name, dim, dtype, () if lists else columns)
    check_group(group)
    return _Files(group, paths, columns)


def _unpack(files: _Files, id_column: str) -> Rows:
    """Decompress a group into a mapped file, and index it."""
    group = files.group
    opened = [(path, file) for path in files.paths if (file := _opened(path)).metadata.num_rows]
    num_rows = sum(file.metadata.num_rows for _, file in opened)
    if not num_rows:
        return Rows(group, index(np.empty(0, np.int64)), np.empty((0, group.dim), group.dtype))
    ids: list[Any] = []
    with tempfile.TemporaryFile(prefix="hopline-", dir=temporary_root()) as file:
        num_bytes = num_rows * group.dim * np.dtype(group.dtype).itemsize
        try:
            # A page without its place on a disk that is full kills the process that writes to it.
            os.posix_fallocate(file.fileno(), 0, num_bytes)
        except OSError as error:
            raise FeatureStoreError(
                f"group {group.name!r}: {temporary_root()} has no room for its {num_bytes >> 20} MiB: "
                f"{error.strerror}; set TMPDIR to another folder"
            ) from None
        rows = np.memmap(file, group.dtype, "r+", shape=(num_rows, group.dim))
    at = 0
    for path, parquet in opened:
        for some_ids, values in _batches(path, parquet, id_column, files):
            ids.append(some_ids)
            rows[at : at + len(values)] = values
            at += len(values)
    return Rows(group, _indexed(files, ids), rows)


def _batches(path: Path, parquet: Any, id_column: str, files: _Files) -> Iterator[tuple[Any, AnyArray]]:
    """Yield ids (int64 array or list of str) and rows [m, dim] of a file, some at a time."""
    names = parquet.schema_arrow.names
    absent = [name for name in (id_column, *files.columns) if name not in names]
    if absent:
        raise FeatureStoreError(f"{path}: no column {', '.join(map(repr, absent))}")
    for batch in parquet.iter_batches(_BATCH_ROWS, columns=[id_column, *files.columns]):
        some_ids = _ids(path, id_column, batch.column(id_column))
        values = [_numbers(path, name, batch.column(name)) for name in files.columns]
        found = values[0] if len(values) == 1 else np.concatenate(values, axis=1)
        if found.shape[1] != files.group.dim:
            raise FeatureSchemaMismatch(
                f"{path}: rows of {found.shape[1]} numbers; group {files.group.name!r} has "
                f"{files.group.dim}"
            )
        yield some_ids, found


def _numbers(path: Path, name: str, column: Any) -> AnyArray:
    """Return a column as [m, d]."""
    compute = _arrow("pyarrow.compute")
    flat, width = column, 1
    if _is_list(column.type):
        flat = compute.list_flatten(column)
        lengths = set(compute.list_value_length(column).unique().to_pylist())
        if len(lengths) > 1:
            raise FeatureSchemaMismatch(f"{path}: column {name!r} has lists of different lengths")
        width = lengths.pop() or 0
    if column.null_count or flat.null_count:
        raise FeatureStoreError(f"{path}: column {name!r} has nulls; fill or drop them")
    values: AnyArray = np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(len(column), width)
    refuse_changed(str(path), values, [name] * width)
    return values


def _first_length(paths: Sequence[Path], column: str) -> int:
    """Return the length of the first list of a column whose type has no length."""
    for path in paths:
        for batch in _opened(path).iter_batches(1, columns=[column]):
            return len(batch.column(column)[0])
    return 0


def _width(kind: Any) -> int:
    """Return a column's numbers per row: 0 if it is not numeric, -1 if its type has no length."""
    types = _arrow("pyarrow.types")
    if _is_list(kind):
        return kind.list_size if types.is_fixed_size_list(kind) else -1
    return int(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _is_list(kind: Any) -> bool:
    types = _arrow("pyarrow.types")
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return is_list and bool(types.is_integer(kind.value_type) or types.is_floating(kind.value_type))


def _opened(path: Path) -> Any:
    parquet, errors = _arrow("pyarrow.parquet"), _arrow("pyarrow").ArrowException
    try:
        return parquet.ParquetFile(path, memory_map=True)
    except (OSError, errors) as error:
        raise FeatureStoreError(f"{path} cannot be read as Parquet: {error}") from None


def _arrow(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConfigError("reading Parquet needs pyarrow: pip install 'hopline[parquet]'") from None
