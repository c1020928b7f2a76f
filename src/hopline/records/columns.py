"""Entries as Arrow columns, built from flat arrays: several times faster than row by row.

`outputs` and `tensors` are maps of name to {dtype, shape, floats | ints | texts | bytes}: the field of the
dtype is set, the others are null. Inputs are the JSON of the .jsonl form.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from hopline.errors import ConfigError
from hopline.records.entry import Entry
from hopline.types import AnyArray

TEXTS = ("request_id", "model", "version", "graph_version", "outcome", "input_hash", "artifact_hash",
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
            *((name, pa.string()) for name in TEXTS),
            ("is_copy", pa.bool_()),
            ("outputs", pa.map_(pa.string(), _array_type(pa))),
            ("missing", pa.list_(pa.int32())),
            ("degraded", pa.list_(pa.string())),
            ("latency_ms", pa.map_(pa.string(), pa.float64())),
            ("inputs", pa.string()),
            ("tensors", pa.map_(pa.string(), _array_type(pa))),
        ]
    )


def record_batch(entries: Sequence[Entry]) -> Any:
    """Entries as a pyarrow RecordBatch of `schema()`."""
    pa = library("pyarrow")
    encode = msgspec.json.encode
    columns = {
        "time": pa.array([round(entry.time * 1e6) for entry in entries], pa.timestamp("us", "UTC")),
        **{name: pa.array([getattr(entry, name) for entry in entries], pa.string()) for name in TEXTS},
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
