"""Entries in Parquet: one row each, with scores as native floats for SQL queries.

`outputs` and `tensors` are maps of name to {dtype, shape, floats | ints | texts | bytes}: the field of the
dtype is set, the others are null. Inputs are the JSON of the .jsonl form. Columns with the same value in
most rows (model, version, hashes) are small: Parquet encodes dictionaries. Columns are built from flat
arrays, in less than half of the time that pyarrow needs row by row.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hopline.errors import ConfigError
from hopline.records.entry import Entry
from hopline.records.exact import unpacked
from hopline.records.inputs import Inputs
from hopline.records.lines import Lines
from hopline.types import AnyArray

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


def _record_batch(entries: Sequence[Entry]) -> Any:
    """Entries as a pyarrow RecordBatch of `schema()`."""
    pa = library("pyarrow")
    encode = msgspec.json.encode
    columns = {
        "time": pa.array([round(entry.time * 1e6) for entry in entries], pa.timestamp("us", "UTC")),
        **{name: pa.array([getattr(entry, name) for entry in entries], pa.string()) for name in _TEXTS},
        "is_copy": pa.array([entry.is_copy for entry in entries], pa.bool_()),
        "outputs": _maps(pa, [entry.outputs for entry in entries]),
        "missing": pa.array([entry.missing for entry in entries], pa.list_(pa.int32())),
        "degraded": pa.array([entry.degraded for entry in entries], pa.list_(pa.string())),
        "latency_ms": _latencies(pa, entries),
        "inputs": pa.array(
            [None if entry.inputs is None else encode(entry.inputs).decode() for entry in entries],
            pa.string(),
        ),
        "tensors": _maps(pa, [entry.tensors for entry in entries]),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema())


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


def _latencies(pa: Any, entries: Sequence[Entry]) -> Any:
    offsets = _offsets([len(entry.latency_ms) for entry in entries])
    names = [name for entry in entries for name in entry.latency_ms]
    values = [ms for entry in entries for ms in entry.latency_ms.values()]
    return pa.MapArray.from_arrays(offsets, pa.array(names, pa.string()), pa.array(values, pa.float64()))


def _maps(pa: Any, maps: Sequence[Mapping[str, AnyArray]]) -> Any:
    """Maps of name to array, one for each row."""
    names = [name for each in maps for name in each]
    arrays = [array for each in maps for array in each.values()]
    is_float = [array.dtype == np.float32 for array in arrays]
    is_int = [array.dtype == np.int64 for array in arrays]
    is_text = [array.dtype.kind in "OU" for array in arrays]
    others = [not any(kinds) for kinds in zip(is_float, is_int, is_text, strict=True)]
    dtypes = [
        "text" if text else array.dtype.newbyteorder("<").str
        for array, text in zip(arrays, is_text, strict=True)
    ]
    items = pa.StructArray.from_arrays(
        [
            pa.array(dtypes, pa.string()),
            pa.array([array.shape for array in arrays], pa.list_(pa.int64())),
            _lists(pa, arrays, is_float, lambda flat: pa.array(_joined(flat, np.float32))),
            _lists(pa, arrays, is_int, lambda flat: pa.array(_joined(flat, np.int64))),
            _lists(pa, arrays, is_text, lambda flat: pa.array(_texts(flat), pa.string())),
            pa.array(
                [
                    array.astype(array.dtype.newbyteorder("<")).tobytes() if other else None
                    for array, other in zip(arrays, others, strict=True)
                ],
                pa.binary(),
            ),
        ],
        fields=list(_array_type(pa)),
    )
    return pa.MapArray.from_arrays(
        _offsets([len(each) for each in maps]), pa.array(names, pa.string()), items
    )


def _lists(
    pa: Any, arrays: Sequence[AnyArray], chosen: Sequence[bool], values: Callable[[list[AnyArray]], Any]
) -> Any:
    """The values of the chosen arrays as lists, null for other arrays."""
    flat = [array.ravel() for array, mine in zip(arrays, chosen, strict=True) if mine]
    sizes = [array.size if mine else 0 for array, mine in zip(arrays, chosen, strict=True)]
    absent = pa.array([not mine for mine in chosen], pa.bool_())
    return pa.ListArray.from_arrays(_offsets(sizes), values(flat), mask=absent)


def _joined(flat: list[AnyArray], dtype: Any) -> AnyArray:
    return np.concatenate([np.empty(0, dtype), *flat])


def _texts(flat: list[AnyArray]) -> list[str | None]:
    return [None if text is None else str(text) for array in flat for text in array.tolist()]


def _offsets(sizes: Sequence[int]) -> AnyArray:
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


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
            group.append(_record_batch(batch))
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
