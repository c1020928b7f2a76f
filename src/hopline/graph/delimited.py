"""Columns of CSV files with a header line, through the standard library, a chunk at a time."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hopline.errors import GraphError
from hopline.graph.progress import Progress, silent
from hopline.graph.tables import Encoded
from hopline.types import AnyArray

_CHUNK_ROWS = 100_000
_SAMPLE_ROWS = 100


def numeric_names(path: Path) -> list[str]:
    """Names of the columns that hold numbers in the first rows, in order."""
    header, chunks = _chunks(path, _SAMPLE_ROWS, silent)
    rows = next(chunks, [])
    numeric = [_floats([row[i] for row in rows]) is not None for i in range(len(header))]
    return [name for name, is_numeric in zip(header, numeric, strict=True) if is_numeric]


def read(
    path: Path, names: Sequence[str], *, ids: Collection[str], progress: Progress = silent
) -> dict[str, Any]:
    """Read columns.

    Args:
        ids: those of `names` that hold ids: int64 where every value is an integer as one writes it,
            else `Encoded` strings ("007" and "7" are two ids). The others are int64 or float64.
    Raises: GraphError: a column is absent or no number, a row is too short or long, no UTF-8.
    """
    names = list(dict.fromkeys(names))
    kinds = {name: (_ints, _Coder() if name in ids else _floats) for name in names}
    chosen = dict.fromkeys(names, 0)
    while True:  # again from the start whenever a column turns out not to be integers
        header, chunks = _chunks(path, _CHUNK_ROWS, progress)
        absent = [name for name in names if name not in header]
        if absent:
            raise GraphError(
                f"{path}: no column {', '.join(map(repr, absent))}; there are "
                f"{', '.join(map(repr, header))}"
            )
        parts: dict[str, list[AnyArray]] = {name: [] for name in names}
        wider = False
        for rows in chunks:
            for name in names:
                texts = [row[header.index(name)] for row in rows]
                part = kinds[name][chosen[name]](texts)
                if part is not None:
                    parts[name].append(part)
                elif chosen[name] == 0:
                    chosen[name], wider = 1, True
                else:
                    bad = next(text for text in texts if _floats([text]) is None)
                    raise GraphError(f"{path}: column {name!r} must hold numbers; it holds {bad!r}")
            if wider:
                break
        if not wider:
            return {name: _joined(parts[name], kinds[name][chosen[name]]) for name in names}


class _Coder:
    """Numbers strings as they first occur."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}

    def __call__(self, texts: list[str]) -> AnyArray:
        codes = self.codes
        return np.array([codes.setdefault(text, len(codes)) for text in texts], np.int32)


def _joined(parts: list[AnyArray], kind: Any) -> Any:
    if isinstance(kind, _Coder):
        return Encoded(list(kind.codes), np.concatenate([*parts, np.empty(0, np.int32)]))
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _ints(texts: list[str]) -> AnyArray | None:
    try:
        values = [int(text) for text in texts]
        # int() also takes "007", "1_0" and " 1", which are other ids than 7, 10 and 1.
        return np.array(values, np.int64) if list(map(str, values)) == texts else None
    except (ValueError, OverflowError):
        return None


def _floats(texts: list[str]) -> AnyArray | None:
    try:
        return np.array([float(text) if text else np.nan for text in texts], np.float64)
    except ValueError:
        return None


def _chunks(path: Path, rows: int, progress: Progress) -> tuple[list[str], Iterator[list[list[str]]]]:
    """The header, and the rows in lists of at most `rows`."""
    lines = _lines(path, progress)
    header = next(lines, None)
    if not header:
        raise GraphError(f"{path} is empty; a CSV file begins with a line of column names")
    return header, iter(lambda: list(islice(lines, rows)), [])


def _lines(path: Path, progress: Progress) -> Iterator[list[str]]:
    try:
        with path.open("rb") as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text:
            size = max(1, path.stat().st_size)
            reader = csv.reader(text)
            width = None
            for row in reader:
                if not row:
                    continue
                width = len(row) if width is None else width
                if len(row) != width:
                    raise GraphError(
                        f"{path}, line {reader.line_num}: {len(row)} values; the header has {width}"
                    )
                if reader.line_num % _CHUNK_ROWS == 0:
                    progress(f"reading {path}", raw.tell() / size)
                yield row
    except (UnicodeDecodeError, csv.Error) as error:
        raise GraphError(f"{path} cannot be read as CSV: {error}") from None
