"""A table in a CSV or Parquet file, cells by column with the line of each row; and the errors of a folder.

Knows the kind of number of columns, and no other meaning.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.evaluate.times import parse, unit_of
from hopline_mesh.schema import kind_of

#: Maximum number of reported errors; further ones are only counted.
_REPORTED = 20
_ENDINGS = (".csv", ".parquet")
#: Tolerance of a share, for rounding.
_ROUNDING = 1e-6


class Problems:
    """A list of errors; `check` raises them."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def __len__(self) -> int:
        return len(self._found)

    def add(self, where: str, what: str) -> None:
        """Add an error; `where` is such as "nodes.csv, line 3, p99_ms"."""
        self._found.append(f"{where}: {what}")

    def check(self) -> None:
        """Raise if there are errors.

        Raises:
            SnapshotInvalid: there are errors; the message has the first twenty, one per line.
        """
        if not self._found:
            return
        lines = self._found[:_REPORTED]
        if len(self._found) > _REPORTED:
            lines.append(f"and {len(self._found) - _REPORTED} more")
        raise SnapshotInvalid("\n".join(lines))


def _unit_of(text: str) -> str:
    """Return a hint for a time that would be valid in another unit; else ""."""
    unit = unit_of(text)
    return f"; this looks like {unit[0]}: divide it by {unit[1]:,}" if unit else ""


class Table:
    """A table in memory.

    Attributes:
        name: of the file.
        columns: header -> cells as text, "" for empty ones.
        lines: line number of each row, as in editors; for a Parquet file, rows from 1.
    """

    def __init__(self, name: str, columns: dict[str, list[str]], lines: Sequence[int]) -> None:
        self.name = name
        self.columns = columns
        self.lines = lines
        self._line = "row" if name.endswith(".parquet") else "line"

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, row: int, column: str = "") -> str:
        """Return the location of a cell, such as "nodes.csv, line 3, p99_ms"."""
        place = f"{self.name}, {self._line} {self.lines[row]}"
        return f"{place}, {column}" if column else place

    def times(self, column: str, problems: Problems) -> NDArray[np.float64]:
        """Return Unix seconds of each row; NaN and a problem for a cell that is not a time."""
        known: dict[str, float | None] = {}
        found = np.full(len(self), np.nan)
        for row, text in enumerate(self.columns[column]):
            seconds = known[text] if text in known else known.setdefault(text, parse(text))
            if seconds is None:
                problems.add(
                    self.where(row, column),
                    f"{text!r} is not a time; it must be Unix seconds such as 1661140279, or ISO-8601 such "
                    f"as 2022-08-22T03:51:19Z{_unit_of(text)}",
                )
            else:
                found[row] = seconds
        return found

    def numbers(self, column: str, problems: Problems) -> NDArray[np.float32]:
        """Return the column as measured values; NaN for empty cells or `NaN`."""
        cells = self.columns[column]
        try:
            found = np.array([float(text or "nan") for text in cells])
        except ValueError:
            found = np.array([self._number(row, column, problems) for row in range(len(self))])
        kind = kind_of(column)
        with np.errstate(over="ignore"):
            narrow = found.astype(np.float32)
        for row in np.flatnonzero(np.isinf(narrow)):
            problems.add(self.where(int(row), column), f"{cells[row]} is not finite; leave the cell empty")
        if kind != "real":
            for row in np.flatnonzero(found < 0):
                problems.add(
                    self.where(int(row), column),
                    f"{cells[row]} is less than 0; only columns that end in _delta may be negative",
                )
        if kind == "share":
            for row in np.flatnonzero((found > 1 + _ROUNDING) & np.isfinite(found)):
                problems.add(
                    self.where(int(row), column),
                    f"{cells[row]} is more than 1; a column that ends in _share is within 0 to 1",
                )
        return narrow

    def names(self, column: str, problems: Problems) -> list[str]:
        """Return the column as names; a problem for each empty one."""
        for row, text in enumerate(self.columns[column]):
            if not text:
                problems.add(self.where(row, column), "is empty; each row needs a name")
        return self.columns[column]

    def _number(self, row: int, column: str, problems: Problems) -> float:
        text = self.columns[column][row]
        try:
            return float(text or "nan")
        except ValueError:
            problems.add(
                self.where(row, column), f"{text!r} is not a number; leave the cell empty if it is missing"
            )
            return float("nan")


def find(folder: Path, stem: str, problems: Problems, *, needed: bool, of: str) -> Path | None:
    """Find the table of this name, as CSV or Parquet.

    Args:
        needed: whether a missing table is a problem.
        of: its content, for people.
    """
    paths = [folder / f"{stem}{ending}" for ending in _ENDINGS]
    existing = [path for path in paths if path.is_file()]
    if len(existing) > 1:
        problems.add(str(folder), f"has both {existing[0].name} and {existing[1].name}; keep one")
        return None
    if not existing:
        if needed:
            problems.add(str(folder), f"no {stem}.csv or {stem}.parquet; {of}")
        return None
    return existing[0]


def read(path: Path, problems: Problems) -> Table | None:
    """Read a table; None and a problem if it cannot be read."""
    table = _read_parquet(path, problems) if path.suffix == ".parquet" else _read_csv(path, problems)
    if table is not None and "" in table.columns:
        problems.add(f"{path.name}, line 1", "a column has no name")
    return table


def has_columns(table: Table, needed: Sequence[str], problems: Problems) -> bool:
    """Whether the table has all of these columns; adds a problem for each missing one."""
    missing = [column for column in needed if column not in table.columns]
    for column in missing:
        problems.add(table.name, f"no column {column!r}; it has {', '.join(table.columns) or 'none'}")
    return not missing


def _read_csv(path: Path, problems: Problems) -> Table | None:
    line = 1
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = next(reader, None)
            if header is None:
                problems.add(path.name, "is empty; its first line must have the names of the columns")
                return None
            twice = sorted({column for column in header if header.count(column) > 1})
            if twice:
                problems.add(f"{path.name}, line 1", f"column {', '.join(twice)} is repeated")
                return None
            rows, lines = [], []
            line = reader.line_num + 1
            for row in reader:
                if row and len(row) != len(header):
                    problems.add(
                        f"{path.name}, line {line}",
                        f"has {len(row)} cells; the first line has {len(header)}",
                    )
                elif row:
                    rows.append(row)
                    lines.append(line)
                line = reader.line_num + 1
    except UnicodeDecodeError as error:
        problems.add(path.name, f"is not UTF-8 at byte {error.start}")
        return None
    except OSError as error:
        problems.add(path.name, f"cannot be read: {error.strerror}")
        return None
    except csv.Error as error:
        problems.add(f"{path.name}, line {line}", f"is not CSV: {error}")
        return None
    cells = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in header]
    return Table(path.name, dict(zip(header, cells, strict=True)), lines)


def _read_parquet(path: Path, problems: Problems) -> Table | None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{path.name} needs pyarrow; install it with: pip install 'hopline-mesh[evaluate]'",
            name=error.name,
        ) from None
    try:
        found = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        problems.add(path.name, f"is not a Parquet file: {error}")
        return None
    columns = {
        name: [_text(value) for value in found.column(name).to_pylist()] for name in found.column_names
    }
    return Table(path.name, columns, range(1, found.num_rows + 1))


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat()
    return repr(value) if isinstance(value, float) else str(value)
