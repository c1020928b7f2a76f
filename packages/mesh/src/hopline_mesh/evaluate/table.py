"""A table in a CSV or Parquet file, cells by column with the line of each row; and the errors of a folder.

Knows the kind of number of columns, and no other meaning.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hopline.config.setting import read_number
from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.evaluate.times import parse, unit_hint
from hopline_mesh.schema import kind_of

#: Maximum number of reported errors, or of kinds of errors.
_REPORTED = 20
#: What differs between errors of one kind: names and numbers.
_VALUES = re.compile(r"""'[^']*'|"[^"]*"|[-+]?\d[\d.,:e]*|; did you mean.*""")
#: Tolerance of a share, for rounding.
_ROUNDING = 1e-6


class Problems(list[str]):
    """A list of errors, one line each; `check` raises them."""

    def add(self, where: str, what: str) -> None:
        """Add an error; `where` is such as "nodes.csv, line 3, p99_ms"."""
        self.append(f"{where}: {what}")

    def check(self) -> None:
        """Raise if there are errors.

        Raises:
            SnapshotInvalid: there are errors, one per line. Of more than twenty, the message has the first
                of each kind, with their number.
        """
        if not self:
            return
        lines: list[str] = [*self]
        if len(self) > _REPORTED:
            kinds: dict[str, list[str]] = {}
            for each in self:
                kinds.setdefault(_VALUES.sub("", each), []).append(each)
            lines = [
                same[0] + (f" (and {len(same) - 1} more of this kind)" if len(same) > 1 else "")
                for same in kinds.values()
            ]
        more = [f"and {len(lines) - _REPORTED} more kinds"] if len(lines) > _REPORTED else []
        raise SnapshotInvalid("\n".join(lines[:_REPORTED] + more))


class Table:
    """A table in memory.

    Args:
        problems: gets the errors of its cells.

    Attributes:
        name: of the file.
        columns: header -> cells as text, "" for empty ones.
        lines: line number of each row, as in editors; for a Parquet file, rows from 1.
    """

    def __init__(
        self, name: str, columns: dict[str, list[str]], lines: Sequence[int], problems: Problems
    ) -> None:
        self.name = name
        self.columns = columns
        self.lines = lines
        self._problems = problems

    def __len__(self) -> int:
        return len(self.lines)

    def line(self, row: int) -> str:
        """Return the place of a row in the file, such as "line 3"."""
        return f"{'row' if self.name.endswith('.parquet') else 'line'} {self.lines[row]}"

    def wrong(self, row: int, column: str, what: str) -> None:
        """Add a problem with a cell."""
        self._problems.add(f"{self.name}, {self.line(row)}, {column}", what)

    def cells(self, column: str) -> list[str]:
        """Return the cells of a column; if it is missing, empty ones."""
        return self.columns.get(column) or [""] * len(self)

    def names(self, column: str) -> list[str]:
        """Return the column as names; a problem for each empty one."""
        for row, text in enumerate(self.columns[column]):
            if not text:
                self.wrong(row, column, "is empty; each row needs a name")
        return self.columns[column]

    def times(self, column: str, *, optional: bool = False) -> NDArray[np.float64]:
        """Return Unix seconds of each row; NaN and a problem for a cell that is not a time.

        Args:
            optional: an empty cell is NaN without a problem.
        """
        found = np.full(len(self), np.nan)
        for row, text in enumerate(self.cells(column)):
            seconds = parse(text)
            if seconds is not None:
                found[row] = seconds
            elif text or not optional:
                self.wrong(
                    row,
                    column,
                    f"{text!r} is not a time; it must be Unix seconds such as 1661140279, or ISO-8601 such "
                    f"as 2022-08-22T03:51:19Z{unit_hint(text)}",
                )
        return found

    def numbers(self, column: str) -> NDArray[np.float32]:
        """Return the column as measured values; NaN for empty cells or `NaN`; a problem for others."""
        cells, kind = self.columns[column], kind_of(column)
        found = np.full(len(self), np.nan)
        for row, text in enumerate(cells):
            number = read_number(text or "nan")
            if number is not None:
                found[row] = number
            else:
                self.wrong(row, column, f"{text!r} is not a number; leave the cell empty if it is missing")
        with np.errstate(over="ignore"):
            narrow = found.astype(np.float32)
        for is_wrong, what in (
            (np.isinf(found), "is not finite; leave the cell empty"),
            (np.isinf(narrow) & np.isfinite(found), "is too large; a value may be up to 3.4e38"),
            (
                (found < 0) & (kind != "real"),
                "is less than 0; only columns that end in _delta may be negative",
            ),
            (
                (found > 1 + _ROUNDING) & np.isfinite(found) & (kind == "share"),
                "is more than 1; a column that ends in _share is within 0 to 1",
            ),
        ):
            for row in np.flatnonzero(is_wrong).tolist():
                self.wrong(row, column, f"{cells[row]} {what}")
        return narrow


def read(
    folder: Path,
    stem: str,
    problems: Problems,
    needed: Sequence[str],
    *,
    known: Sequence[str] = (),
    missing: str = "",
    synonyms: Mapping[str, str] | None = None,
) -> Table | None:
    """Read the table of this name, CSV or Parquet; None and a problem if it is unusable.

    Args:
        needed: columns that it must have.
        known: all allowed columns; empty: any.
        missing: the content of the table, for the problem if it is missing; empty: it may be.
        synonyms: another name of a column -> its name.

    Raises:
        ModuleNotFoundError: it is a Parquet file, and pyarrow is not installed.
    """
    both = (folder / f"{stem}.csv", folder / f"{stem}.parquet")
    existing = [path for path in both if path.is_file()]
    if len(existing) > 1:
        problems.add(str(folder), f"has both {both[0].name} and {both[1].name}; keep one")
        return None
    if not existing:
        if missing:
            problems.add(str(folder), f"no {both[0].name} or {both[1].name}; {missing}")
        return None
    path = existing[0]
    table = _read_parquet(path, problems) if path.suffix == ".parquet" else _read_csv(path, problems)
    if table is None:
        return None
    columns = table.columns
    if "" in columns:
        problems.add(f"{path.name}, line 1", "a column has no name")
    for other, column in (synonyms or {}).items():
        if other in columns and column not in columns:
            columns[column] = columns.pop(other)
    lacking = [column for column in needed if column not in columns]
    for column in lacking:
        problems.add(path.name, f"no column {column!r}; it has {', '.join(columns) or 'none'}")
    if lacking:
        return None
    for column in columns:
        if known and column not in known:
            problems.add(f"{path.name}, {column}", f"unknown column; allowed are {', '.join(known)}")
    return table


def _read_csv(path: Path, problems: Problems) -> Table | None:
    line = 1
    rows, lines = [], []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = next(reader, None)
            if header is None:
                problems.add(path.name, "is empty; its first line must have the names of the columns")
                return None
            other = next((mark for mark in ";\t|" if len(header) == 1 and mark in header[0]), None)
            if other is not None:
                problems.add(
                    f"{path.name}, line 1", f"cells are separated by {other!r}; separate them by commas"
                )
                return None
            twice = sorted({column for column in header if header.count(column) > 1})
            if twice:
                problems.add(f"{path.name}, line 1", f"column {', '.join(twice)} is repeated")
                return None
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
    return Table(path.name, dict(zip(header, cells, strict=True)), lines, problems)


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
        name: ["" if value is None else str(value) for value in cells]
        for name, cells in found.to_pydict().items()
    }
    return Table(path.name, columns, range(1, found.num_rows + 1), problems)
