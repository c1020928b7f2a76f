"""Sinks that write Parquet: one file, local or at a URL, or a folder of parts.

Vectors are fixed-size lists of float32, ids int64 or strings, both never null. The schema of every file
describes its content under keys that begin with `hopline.`. A folder's parts end at fixed rows, so that a
resumed run writes the same files. The folder also holds `_table.json`, which readers of Parquet ignore.

A file is written next to its place, synced and renamed. One for a URL is written to a temporary file, then
uploaded as one object, which stores show when it is complete.
"""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from hopline.config.urls import shown
from hopline.errors import ConfigError, SinkError
from hopline.files import publish_file, publish_folder, write_atomically
from hopline.graph.schema import quoted
from hopline.jobs.batch.sink import ID_COLUMN, TableSchema, check_folder, writing
from hopline.remote_address import open_address
from hopline.types import UNREADABLE, AnyArray

_LONGEST_MESSAGE = 300


class RemoteFile:
    """A file at a URL that is written in one step.

    Attributes:
        shown: the URL without possible passwords.

    Raises:
        SinkError: as `open_address`.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.shown = shown(url)
        try:
            files, self._path = open_address(url, "--to")
        except ConfigError as error:
            raise SinkError(str(error)) from None
        self._files = files.driver

    def with_part(self, part: str) -> RemoteFile:
        """The file with a part's name before its ending."""
        stem, dot, ending = self._url.rpartition(".")
        return RemoteFile(f"{stem}-{part}{dot}{ending}")

    def check(self) -> None:
        """Check the place, so that a wrong one is reported before hours of work.

        Raises:
            SinkError: the place cannot be reached, or is a folder.
        """
        if self._call(self._files.isdir, self._path):
            raise SinkError(f"{self.shown} is a folder; name a file")

    def put(self, file: IO[bytes]) -> None:
        """Upload an open file's content, replacing existing content in one step.

        Raises:
            SinkError: the upload failed; existing content is unchanged.
        """
        # The file has no name, so that a kill leaves nothing behind: use the path of the descriptor.
        self._call(self._files.put_file, f"/proc/self/fd/{file.fileno()}", self._path)

    def _call(self, function: Any, *args: Any) -> Any:
        """Call a driver; its library may raise any error."""
        try:
            return function(*args)
        except Exception as error:
            reason = str(error).partition("\n")[0][:_LONGEST_MESSAGE]
            raise SinkError(
                f"{self.shown} cannot be written: {type(error).__name__}: {reason}; computed states are "
                "kept: fix this and start the same command again"
            ) from error


TABLE = "_table.json"
#: Bytes of a row group, which is held in memory; and its largest and smallest number of rows.
_GROUP_BYTES, _GROUP_ROWS, _LEAST_ROWS = 32 << 20, 1 << 16, 256
#: Approximate bytes of a part of a folder.
_PART_BYTES = 256 << 20

Columns = Mapping[str, AnyArray | list[str]]


class _Rows:
    """A buffer of rows for one row group."""

    def __init__(self, schema: TableSchema, num_rows: int) -> None:
        pa = self._pa = _arrow("pyarrow")
        self._columns = schema.all_columns
        self._arrays = {column.name: column.empty(num_rows) for column in self._columns}
        self.room = num_rows
        self.num_rows = 0
        fields = []
        for column in self._columns:
            is_text = column.dtype == "string"
            kind = pa.string() if is_text else pa.from_numpy_dtype(np.dtype(column.dtype))
            if column.width:
                kind = pa.list_(pa.field("item", kind, nullable=False), column.width)
            fields.append(pa.field(column.name, kind, nullable=False))
        self.schema = pa.schema(fields, metadata=_metadata(schema))

    def add(self, columns: Columns, first: int, last: int) -> None:
        """Copy rows [first, last) of the sink's columns; the buffer must have room."""
        a, b = self.num_rows, self.num_rows + last - first
        for name, array in self._arrays.items():
            array[a:b] = columns[name][first:last]
        self.num_rows = b

    def take(self) -> Any:
        """The rows as an Arrow table that shares the buffer; the next `add` starts an empty buffer."""
        pa, n = self._pa, self.num_rows
        columns = []
        for column in self._columns:
            kind, flat = self.schema.field(column.name).type, self._arrays[column.name][:n].reshape(-1)
            try:
                flat = pa.array(flat, kind.value_type if column.width else kind)
            except (UnicodeEncodeError, pa.ArrowInvalid) as error:
                raise SinkError(
                    f"Parquet stores strings as UTF-8, and an id is not valid UTF-8: {error}"
                ) from None
            columns.append(pa.FixedSizeListArray.from_arrays(flat, type=kind) if column.width else flat)
        self.num_rows = 0
        return pa.Table.from_arrays(columns, schema=self.schema)


class _Writer:
    """One Parquet file that is being written."""

    def __init__(self, file: Path | IO[bytes], schema: Any) -> None:
        # Numbers that a model computes are all different: dictionaries and compression only cost time.
        self._writer = _arrow("pyarrow.parquet").ParquetWriter(
            file,
            schema,
            compression={ID_COLUMN: "snappy"},
            use_dictionary=False,
            write_statistics=[ID_COLUMN],
        )

    def write(self, table: Any) -> None:
        """Write one row group."""
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()


class _ParquetSink:
    """The base of sinks of one file and of a folder: the file that is being written, if any."""

    def __init__(self) -> None:
        self._rows: _Rows
        self._writer: _Writer | None = None
        self._file: IO[bytes] | None = None

    def _begin(self, file: IO[bytes]) -> None:
        self._file = file
        self._writer = _Writer(file, self._rows.schema)

    def _put(self) -> None:
        assert self._writer is not None
        self._writer.write(self._rows.take())

    def _finish(self) -> IO[bytes]:
        """Write the rest and the footer; the file is still open."""
        assert self._writer is not None
        assert self._file is not None
        if self._rows.num_rows:
            self._put()
        self._writer.close()
        self._writer = None
        return self._file

    def abort(self) -> None:
        """Close the file."""
        with suppress(OSError):  # no room for the footer
            if self._writer is not None:
                self._writer.close()
        self._writer = None
        if self._file is not None:
            with suppress(OSError):
                self._file.close()


class ParquetFile(_ParquetSink):
    """A sink that writes one file.

    Args:
        path: of the file; None where `remote` is given.
        remote: a URL instead.
    """

    def __init__(self, path: Path | None = None, remote: RemoteFile | None = None) -> None:
        super().__init__()
        self._path = path
        self._remote = remote

    @property
    def _draft(self) -> Path:
        assert self._path is not None
        return self._path.with_name(self._path.name + ".partial")

    @property
    def _shown(self) -> str:
        return self._remote.shown if self._remote is not None else str(self._path)

    def open(self, schema: TableSchema) -> int:
        """Begin the file; the footer comes last, so the output of an earlier attempt cannot be used."""
        self._rows = _Rows(schema, _group_rows(schema))
        if schema.part and self._remote is not None:
            self._remote = self._remote.with_part(quoted(schema.part))
        elif schema.part and self._path is not None:
            self._path = self._path.with_stem(f"{self._path.stem}-{quoted(schema.part)}")
        with writing(self._shown):
            if self._remote is not None:
                self._remote.check()
                self._begin(tempfile.TemporaryFile())  # noqa: SIM115
            elif self._path is not None:
                if self._path.is_dir():
                    raise SinkError(f"{self._path} is a folder; name a file, or use parquet:FOLDER")
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._begin(self._draft.open("wb"))
        return 0

    def write(self, begin: int, columns: Columns) -> None:
        """See `Sink`."""
        at, num_rows = 0, len(columns[ID_COLUMN])
        with writing(self._shown):
            while at < num_rows:
                some = min(num_rows - at, self._rows.room - self._rows.num_rows)
                self._rows.add(columns, at, at + some)
                at += some
                if self._rows.num_rows == self._rows.room:
                    self._put()

    def commit(self) -> None:
        """See `Sink`."""
        with writing(self._shown):
            file = self._finish()
            file.flush()
            if self._remote is not None:
                self._remote.put(file)
            file.close()
            if self._path is not None:
                publish_file(self._draft, self._path, durable=True)

    def abort(self) -> None:
        """Remove what was written."""
        super().abort()
        if self._file is not None and self._path is not None:
            self._draft.unlink(missing_ok=True)


class ParquetFolder(_ParquetSink):
    """A sink that writes a folder of parts, `part-00000.parquet` …

    `abort` keeps complete parts for a later attempt at the same run.

    Args:
        folder: for the parts; one of an earlier run is replaced, anything else is refused.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self._part_rows = 0
        self._at = 0
        self._num_rows = 0

    @property
    def _draft(self) -> Path:
        return self.folder.with_name(self.folder.name + ".partial")

    def open(self, schema: TableSchema) -> int:
        """Begin, or resume after the complete parts that an attempt at the same run left."""
        if schema.part:
            self.folder = self.folder / quoted(schema.part)
        check_folder(self.folder, TABLE)
        group_rows = _group_rows(schema)
        self._rows = _Rows(schema, group_rows)
        groups = max(1, _PART_BYTES // (group_rows * _row_bytes(schema)))
        self._part_rows, self._num_rows = groups * group_rows, schema.num_rows
        metadata = {key.decode(): value.decode() for key, value in _metadata(schema).items()}
        metadata["part_rows"] = str(self._part_rows)
        with writing(self.folder):
            if _read_metadata(self._draft) != metadata:
                shutil.rmtree(self._draft, ignore_errors=True)
                self._draft.mkdir(parents=True)
                body = msgspec.json.format(msgspec.json.encode(metadata), indent=1)
                write_atomically(self._draft / TABLE, body, durable=True)
            while self._at < schema.num_rows and self._part(self._at).is_file():
                self._at = min(self._at + self._part_rows, schema.num_rows)
            if not schema.num_rows:
                self._begin(self._open_part.open("wb"))
        return self._at

    def write(self, begin: int, columns: Columns) -> None:
        """See `Sink`."""
        at, num_rows = 0, len(columns[ID_COLUMN])
        with writing(self.folder):
            while at < num_rows:
                if self._writer is None:
                    self._begin(self._open_part.open("wb"))
                left = self._part_rows - self._at % self._part_rows
                some = min(num_rows - at, self._rows.room - self._rows.num_rows, left)
                self._rows.add(columns, at, at + some)
                at += some
                self._at += some
                if self._rows.num_rows == self._rows.room:
                    self._put()
                if some == left:
                    self._end(self._at - 1)

    def commit(self) -> None:
        """See `Sink`."""
        with writing(self.folder):
            if self._writer is not None:
                self._end(max(0, self._at - 1))
            self._open_part.unlink(missing_ok=True)
            publish_folder(self._draft, self.folder, durable=True)

    @property
    def _open_part(self) -> Path:
        return self._draft / "_part.parquet"

    def _part(self, row: int) -> Path:
        """The part that a row is in."""
        return self._draft / f"part-{row // self._part_rows:05d}.parquet"

    def _end(self, row: int) -> None:
        """Close a part and give it its final name: it is now complete."""
        self._finish().close()
        publish_file(self._open_part, self._part(row), durable=True)


def _metadata(schema: TableSchema) -> dict[bytes, bytes]:
    """The metadata that a file stores about its content."""
    about = {
        "run_id": schema.run_id,
        "model": schema.model,
        "version": schema.version,
        "model_hash": schema.model_hash,
        "graph_version": schema.graph_version,
        "node_type": schema.node_type,
        "num_rows": str(schema.num_rows),
        "exact": "true" if schema.exact else "false",
        "classes": msgspec.json.encode(schema.classes).decode(),
    }
    return {f"hopline.{name}".encode(): value.encode() for name, value in about.items()}


def _read_metadata(draft: Path) -> dict[str, str] | None:
    try:
        return msgspec.json.decode((draft / TABLE).read_bytes(), type=dict[str, str])
    except (OSError, *UNREADABLE):
        return None


def _row_bytes(schema: TableSchema) -> int:
    return sum(column.num_bytes for column in schema.all_columns)


def _group_rows(schema: TableSchema) -> int:
    return max(_LEAST_ROWS, min(_GROUP_ROWS, _GROUP_BYTES // _row_bytes(schema)))


def _arrow(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise SinkError("writing Parquet needs pyarrow: pip install 'hopline[parquet]'") from None


def from_address(address: str) -> ParquetFile | ParquetFolder:
    """The sink of `PATH.parquet`, `parquet:PATH.parquet`, `parquet:FOLDER` or `s3://…/x.parquet`.

    Raises:
        SinkError: the address names nothing, or its URL is not that of a file.
    """
    where = address.removeprefix("parquet:")
    if not where:
        raise SinkError("parquet: names nothing; write parquet:FOLDER or parquet:FILE.parquet")
    _arrow("pyarrow.parquet")
    if "://" in where and not where.startswith("file://"):
        if not where.endswith(".parquet"):
            raise SinkError(f"{where} names no file; at a URL the table is one file: …/NAME.parquet")
        return ParquetFile(remote=RemoteFile(where))
    path = Path(os.path.normpath(where.removeprefix("file://")))
    return (
        ParquetFile(path) if path.suffix == ".parquet" and not where.endswith("/") else ParquetFolder(path)
    )
