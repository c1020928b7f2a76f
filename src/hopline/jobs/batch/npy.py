"""A sink that is a folder of `.npy` files: `id.npy` and one for each output, with `table.json` beside.

Written as `<folder>.partial`, synced, then renamed. String ids are stored as two arrays, `id_blob.npy`
(UTF-8) and `id_offsets.npy` (n + 1).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hopline.errors import SinkError
from hopline.jobs.batch.publish import publish_folder, sync_file
from hopline.jobs.batch.sink import ID_COLUMN, TableSchema
from hopline.types import AnyArray

TABLE = "table.json"


class NpyFolder:
    """Args:
    folder: where the table shall be; a table that is there is replaced, anything else is refused.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._draft = folder.with_name(folder.name + ".partial")
        self._schema: TableSchema | None = None
        self._arrays: dict[str, Any] = {}
        self._ids: list[bytes] = []

    def open(self, schema: TableSchema) -> int:
        """Make the files in their full size, so that a full disk shows early on most file systems."""
        if schema.part:
            self.folder = self.folder / schema.part
            self._draft = self.folder.with_name(self.folder.name + ".partial")
        if self.folder.exists() and not (self.folder / TABLE).is_file():
            raise SinkError(f"{self.folder} exists and is no table of a batch run; choose another folder")
        self._schema = schema
        try:
            shutil.rmtree(self._draft, ignore_errors=True)
            self._draft.mkdir(parents=True)
            for column in schema.columns:
                shape = (schema.num_rows, column.width) if column.width else (schema.num_rows,)
                self._make(column.name, column.dtype, shape)
            if schema.id_kind != "string":
                self._make(ID_COLUMN, "int64", (schema.num_rows,))
        except OSError as error:
            raise SinkError(f"{self._draft} cannot be written: {error.strerror or error}") from error
        return 0

    def write(self, begin: int, columns: Mapping[str, AnyArray | list[str]]) -> None:
        """Copy rows into the files."""
        assert self._schema is not None
        for name, values in columns.items():
            if name == ID_COLUMN and isinstance(values, list):
                self._ids += [text.encode("utf-8", "surrogatepass") for text in values]
            else:
                self._arrays[name][begin : begin + len(values)] = values

    def commit(self) -> None:
        """Sync the files and rename the folder."""
        assert self._schema is not None
        for array in self._arrays.values():
            if isinstance(array, np.memmap):
                array.flush()
        self._arrays.clear()
        if self._schema.id_kind == "string":
            offsets = np.zeros(len(self._ids) + 1, np.int64)
            np.cumsum([len(text) for text in self._ids], out=offsets[1:])
            np.save(self._draft / "id_offsets.npy", offsets)
            np.save(self._draft / "id_blob.npy", np.frombuffer(b"".join(self._ids), np.uint8))
        described = {
            name: getattr(self._schema, name)
            for name in (
                "model",
                "version",
                "model_hash",
                "graph_version",
                "node_type",
                "num_rows",
                "exact",
            )
        } | {"columns": [column.name for column in self._schema.columns], "classes": self._schema.classes}
        (self._draft / TABLE).write_bytes(msgspec.json.format(msgspec.json.encode(described), indent=1))
        for path in self._draft.iterdir():
            sync_file(path)
        publish_folder(self._draft, self.folder)

    def abort(self) -> None:
        """Remove what was written."""
        self._arrays.clear()
        shutil.rmtree(self._draft, ignore_errors=True)

    def _make(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        path = self._draft / f"{name}.npy"
        if 0 in shape:
            np.save(path, np.empty(shape, dtype))
            self._arrays[name] = np.empty(shape, dtype)
            return
        self._arrays[name] = array = np.lib.format.open_memmap(path, "w+", dtype, shape)
        with path.open("r+b") as file:
            # A page of a mapped file that the disk has no room for ends the process: ask for room first.
            os.posix_fallocate(file.fileno(), 0, array.offset + array.nbytes)


def from_address(address: str) -> NpyFolder:
    """The sink of `npy:FOLDER`.

    Raises:
        SinkError: no folder is named.
    """
    path = address.removeprefix("npy:")
    if not path:
        raise SinkError("npy: names no folder; npy:FOLDER is right")
    return NpyFolder(Path(path))
