"""A sink that is a folder of `.npy` files: `id.npy` and one for each output, and `table.json`.

Written as `<folder>.partial`, synced, then renamed. Strings are stored as two arrays, `id_blob.npy`
(UTF-8) and `id_offsets.npy` (n + 1).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from hopline.errors import SinkError
from hopline.files import publish_folder
from hopline.graph.schema import quoted
from hopline.jobs.batch.sink import TableSchema, check_folder, writing
from hopline.types import AnyArray, IdArray

TABLE = "table.json"
#: Rows between two requests to start writing to disk.
_FLUSH_ROWS = 1 << 16
_DESCRIBED = ("model", "version", "model_hash", "graph_version", "node_type", "num_rows", "exact",
              "classes")  # fmt: skip


class NpyFolder:
    """A sink that writes a folder of `.npy` files.

    Args:
        folder: for the table; an existing table is replaced, anything else is refused.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._schema: TableSchema | None = None
        self._files: dict[str, BinaryIO] = {}
        self._offsets: dict[str, list[IdArray]] = {}
        self._flushed = 0

    @property
    def _draft(self) -> Path:
        return self.folder.with_name(self.folder.name + ".partial")

    def open(self, schema: TableSchema) -> int:
        """Begin the files; those of an earlier attempt are replaced."""
        if schema.part:
            self.folder = self.folder / quoted(schema.part)
        check_folder(self.folder, TABLE)
        self._schema = schema
        with writing(self.folder):
            shutil.rmtree(self._draft, ignore_errors=True)
            self._draft.mkdir(parents=True)
            for column in schema.all_columns:
                if column.dtype == "string":
                    self._offsets[column.name] = [np.zeros(1, np.int64)]
                    self._files[column.name] = (self._draft / f"{column.name}_blob").open("wb")
                    continue
                tail = (column.width,) if column.width else ()
                self._begin(column.name, column.dtype, (schema.num_rows, *tail))
        return 0

    def write(self, begin: int, columns: Mapping[str, AnyArray | list[str]]) -> None:
        """Append rows."""
        with writing(self.folder):
            for name, values in columns.items():
                if isinstance(values, list):
                    encoded = [text.encode("utf-8", "surrogatepass") for text in values]
                    self._files[name].write(b"".join(encoded))
                    ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
                    self._offsets[name].append(ends + self._offsets[name][-1][-1])
                elif values.size:
                    self._files[name].write(np.ascontiguousarray(values).data)
            self._flush(begin)

    def commit(self) -> None:
        """Sync the files and rename the folder."""
        assert self._schema is not None
        with writing(self.folder):
            self._close()
            for name, offsets in self._offsets.items():
                blob = self._draft / f"{name}_blob"
                np.save(self._draft / f"{name}_offsets.npy", np.concatenate(offsets))
                np.save(self._draft / f"{name}_blob.npy", np.fromfile(blob, np.uint8))
                blob.unlink()
            described = {name: getattr(self._schema, name) for name in _DESCRIBED}
            described["columns"] = [column.name for column in self._schema.columns]
            (self._draft / TABLE).write_bytes(msgspec.json.format(msgspec.json.encode(described), indent=1))
            publish_folder(self._draft, self.folder, durable=True)

    def abort(self) -> None:
        """Remove what was written."""
        self._close()
        shutil.rmtree(self._draft, ignore_errors=True)

    def _flush(self, begin: int) -> None:
        """Start writing to disk at intervals, so that `commit` waits less."""
        if begin - self._flushed >= _FLUSH_ROWS:
            for file in self._files.values():
                # For dirty pages this only starts the writing; it does not wait.
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            self._flushed = begin

    def _begin(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        self._files[name] = file = (self._draft / f"{name}.npy").open("wb")
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)

    def _close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


def from_address(address: str) -> NpyFolder:
    """The sink of `npy:FOLDER`.

    Raises:
        SinkError: the address names no folder.
    """
    path = address.removeprefix("npy:")
    if not path:
        raise SinkError("npy: names no folder; write npy:FOLDER")
    return NpyFolder(Path(path))
