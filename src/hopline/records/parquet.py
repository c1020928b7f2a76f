"""Entries in Parquet: one row each, with scores as native floats for SQL queries.

The columns are those of `columns.py`. Columns with the same value in most rows (model, version, hashes) are
small: Parquet encodes dictionaries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hopline.records.columns import TEXTS, library, record_batch, schema
from hopline.records.entry import Entry
from hopline.records.exact import unpacked
from hopline.records.inputs import Inputs
from hopline.records.lines import Lines
from hopline.types import AnyArray

#: Rows that are converted together, and rows of a row group.
_BATCH_ROWS, _GROUP_ROWS = 4096, 65_536


def write_parquet(source: Path, target: Path) -> int:
    """Write the entries of a .jsonl file; return their number.

    Raises: OSError: writing failed. ConfigError: pyarrow is missing.
    """
    pa, pq = library("pyarrow"), library("pyarrow.parquet")
    count = 0
    with pq.ParquetWriter(target, schema(), compression="zstd") as writer:
        entries = iter(Lines(source))
        group: list[Any] = []
        while batch := list(islice(entries, _BATCH_ROWS)):
            count += len(batch)
            group.append(record_batch(batch))
            if sum(part.num_rows for part in group) >= _GROUP_ROWS:
                writer.write_table(pa.Table.from_batches(group))
                group = []
        if group:
            writer.write_table(pa.Table.from_batches(group))
    return count


class ParquetRows:
    """The entries of a file, in the order of writing.

    Attributes:
        num_torn: 1 if it is not a complete Parquet file.
        num_bad: always 0.
        num_bytes: bytes of the file that were read, estimated by rows.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.num_torn = self.num_bad = self.num_bytes = 0

    def __iter__(self) -> Iterator[Entry]:
        """Read the entries. Raises: OSError: the file cannot be read. ConfigError: pyarrow is missing."""
        pa, pq = library("pyarrow"), library("pyarrow.parquet")
        size = self._path.stat().st_size
        try:
            file = pq.ParquetFile(self._path)
        except pa.ArrowInvalid:
            self.num_torn = 1
            return
        with file:
            done = 0
            for batch in file.iter_batches(_BATCH_ROWS):
                for row in batch.to_pylist():
                    yield _entry(row)
                done += batch.num_rows
                self.num_bytes = size * done // max(1, file.metadata.num_rows)


def _entry(row: dict[str, Any]) -> Entry:
    inputs = row["inputs"]
    return Entry(
        **{name: row[name] for name in TEXTS},
        time=row["time"].timestamp(),
        is_copy=row["is_copy"],
        outputs=_read(row["outputs"]),
        missing=tuple(row["missing"]),
        degraded=tuple(row["degraded"]),
        latency_ms=dict(row["latency_ms"]),
        inputs=None if inputs is None else msgspec.json.decode(inputs, type=Inputs),
        tensors=_read(row["tensors"]),
    )


def _read(arrays: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, AnyArray]:
    return {name: _array(described) for name, described in arrays}


def _array(described: dict[str, Any]) -> AnyArray:
    shape = described["shape"]
    if described["floats"] is not None:
        return np.array(described["floats"], np.float32).reshape(shape)
    if described["ints"] is not None:
        return np.array(described["ints"], np.int64).reshape(shape)
    if described["texts"] is not None:
        return unpacked({"dtype": "text", "shape": shape, "values": described["texts"]})
    dtype = np.dtype(described["dtype"])
    return np.frombuffer(described["bytes"], dtype).astype(dtype.newbyteorder("=")).reshape(shape)
