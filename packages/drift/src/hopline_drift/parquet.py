"""Entries in Parquet: one row each, with scores as native floats for SQL queries.

`outputs` and `tensors` are maps of name to {dtype, shape, floats | ints | texts | bytes}: the field of the
dtype is set, the others are null. Inputs are the JSON of the .jsonl form. Columns with the same value in
most rows (model, version, hashes) are small: Parquet encodes dictionaries.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hopline.errors import ConfigError
from hopline.records.entry import Entry
from hopline.records.exact import unpacked
from hopline.records.inputs import Inputs
from hopline.types import AnyArray
from hopline_drift.lines import Lines

_TEXTS = ("request_id", "model", "version", "graph_version", "outcome", "input_hash", "artifact_hash",
         "preprocessing_hash", "feature_schema_hash", "runtime", "client", "key")  # fmt: skip


def library(name: str) -> Any:
    """Import a module of pyarrow. Raises: ConfigError: it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise ConfigError(
            "Parquet needs pyarrow; install it with: pip install 'hopline[parquet]'"
        ) from None


def schema() -> Any:
    """The columns, as a pyarrow schema."""
    pa = library("pyarrow")
    return pa.schema(
        [
            ("time", pa.timestamp("us", "UTC")),
            *((name, pa.string()) for name in _TEXTS),
            ("is_copy", pa.bool_()),
            ("outputs", pa.map_(pa.string(), _array_type(pa))),
            ("missing", pa.list_(pa.int32())),
            ("degraded", pa.list_(pa.string())),
            ("latency_ms", pa.map_(pa.string(), pa.float64())),
            ("inputs", pa.string()),
            ("tensors", pa.map_(pa.string(), _array_type(pa))),
        ]
    )


def _row(entry: Entry) -> dict[str, Any]:
    """An entry as a row of `schema()`."""
    return {
        **{name: getattr(entry, name) for name in _TEXTS},
        "time": round(entry.time * 1e6),
        "is_copy": entry.is_copy,
        "outputs": [(name, _described(array)) for name, array in entry.outputs.items()],
        "missing": entry.missing,
        "degraded": entry.degraded,
        "latency_ms": list(entry.latency_ms.items()),
        "inputs": None if entry.inputs is None else msgspec.json.encode(entry.inputs).decode(),
        "tensors": [(name, _described(array)) for name, array in entry.tensors.items()],
    }


def _array_type(pa: Any) -> Any:
    return pa.struct(
        [
            ("dtype", pa.string()),
            ("shape", pa.list_(pa.int64())),
            ("floats", pa.list_(pa.float32())),
            ("ints", pa.list_(pa.int64())),
            ("texts", pa.list_(pa.string())),
            ("bytes", pa.binary()),
        ]
    )


def _described(array: AnyArray) -> dict[str, Any]:
    """An array with its dtype and shape; its values are in the field of the dtype."""
    little = array.dtype.newbyteorder("<")
    found: dict[str, Any] = {"dtype": little.str, "shape": array.shape}
    if array.dtype == np.float32:
        found["floats"] = array.ravel()
    elif array.dtype == np.int64:
        found["ints"] = array.ravel()
    elif array.dtype.kind in "OU":
        found["dtype"] = "text"
        found["texts"] = [None if text is None else str(text) for text in array.ravel().tolist()]
    else:
        found["bytes"] = array.astype(little).tobytes()
    return found


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
            group.append(pa.RecordBatch.from_pylist(list(map(_row, batch)), schema()))
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
        **{name: row[name] for name in _TEXTS},
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
