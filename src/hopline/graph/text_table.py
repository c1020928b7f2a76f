"""Columns of delimited text (CSV, TSV, SNAP's edge lists) through pyarrow, as strings.

The type of a column is decided from all its cells (`cells.py`), so columns are read as text first.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from hopline.errors import GraphError
from hopline.graph.arrow import arrow
from hopline.graph.text_stream import PlainStream, Text, fields, records

_SAMPLE_RECORDS = 20
# pyarrow refuses longer rows.
_BLOCK_BYTES = 8 << 20
_DELIMITERS = "\t,;|"
#: What rows of several lengths may be.
_OTHER_ROWS = (
    ". If the first line is a size, delete it. If each line is a node and its neighbours (an adjacency "
    "list, METIS), read the file in Python, such as with networkx.read_adjlist, and pass the edges to "
    "Graph.from_edges"
)
#: Of other formats; "#" is handled by `TextFormat.comment`.
_OTHER_COMMENTS = ("%", "//", ";")
_INTEGER = re.compile(r"-?\d+")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class TextFormat:
    """Format of a text file.

    Attributes:
        header: the first line names the columns. If False, columns are named "0", "1" and so on, except
            that a first line with the requested columns is still read as a header.
        delimiter: between cells, " " for any run of blanks and tabs; None detects it from the
            first lines.
        encoding: of the text.
        comment: lines that begin with it are ignored, "" for none. None means "#" before the first
            row, and later on lines whose number of cells differs from the header's.
    """

    header: bool = True
    delimiter: str | None = None
    encoding: str = "utf-8"
    comment: str | None = None


class TextTable:
    """The columns of one text file, all of strings.

    Args:
        path: the file. options: its format.
        wanted: columns that will be requested; they distinguish a header from data.
        progress: called with the share of the file that is read.

    Attributes:
        names: of the columns.
    Raises: GraphError: the file cannot be read as a table.
    """

    is_text = True

    def __init__(
        self, path: Path, options: TextFormat, wanted: Sequence[str], progress: Callable[[float], None]
    ) -> None:
        self.what = str(path)
        self._format = options
        self._text = Text(path, options.encoding, progress)
        self._delimiter = options.delimiter or ""
        first = list(islice(self._records(), _SAMPLE_RECORDS + 1000))
        if first:
            _check_format(path, first[0][1], options.comment)
        mark = "#" if options.comment is None else options.comment
        comments = 0
        while comments < len(first) and mark and first[comments][1].startswith(mark):
            comments += 1
        rows = [text for _, text in first[comments : comments + _SAMPLE_RECORDS]]
        if not rows:
            raise GraphError(f"{path} is empty; a table begins with a line of column names")
        self._delimiter = self._delimiter or _delimiter_of(rows, path)
        if len(self._delimiter) != 1:
            raise GraphError(f"a delimiter is one character; got {self._delimiter!r}")
        cells = fields(rows[0], self._delimiter)
        self.has_header = self._is_header(cells, wanted, has_comments=comments > 0)
        self._skipped = comments + self.has_header
        self._named: dict[str, str] = {}
        if self.has_header:
            self.names = cells
        else:
            self.names = [str(number) for number in range(len(cells))]
            # SNAP names the columns in the last comment.
            column_names = fields(first[comments - 1][1].lstrip(mark), self._delimiter) if comments else []
            if len(column_names) == len(cells):
                self._named = dict(zip(column_names, self.names, strict=True))
            self._named |= dict(zip(("src", "dst"), self.names, strict=False))
        self._columns: dict[str, Any] = {}
        self._first = cells
        #: A cell in quotes begins or ends with a blank.
        self.has_quoted_blanks = False

    def find(self, name: str) -> str | None:
        """The column that a caller's name refers to, None if it does not exist."""
        return name if name in self.names else self._named.get(name)

    def load(self, names: Sequence[str]) -> None:
        """Read columns. Raises: GraphError: a row with too few or too many cells, an open quote."""
        csv = arrow("pyarrow.csv")
        unique = list(dict.fromkeys([self.names[0], *names]))
        blanks = self._delimiter == " "
        stream = PlainStream(self._body(), self._plain)
        try:
            table = csv.read_csv(
                stream,
                csv.ReadOptions(column_names=self.names, block_size=_BLOCK_BYTES),
                csv.ParseOptions(
                    delimiter="\t" if blanks else self._delimiter,
                    quote_char=False if blanks else '"',
                    newlines_in_values=not blanks,
                    invalid_row_handler=self._of_another_width,
                ),
                csv.ConvertOptions(
                    column_types=dict.fromkeys(unique, arrow("pyarrow").string()),
                    include_columns=unique,
                    strings_can_be_null=False,
                ),
            )
        except arrow("pyarrow").ArrowInvalid as error:
            if "Empty CSV file" in str(error):
                empty = arrow("pyarrow").chunked_array([[]], arrow("pyarrow").string())
                self._columns = dict.fromkeys(unique, empty)
                return
            raise GraphError(self._misshapen() or f"{self.what} cannot be read: {error}") from None
        if not blanks and stream.num_quotes % 2:
            raise GraphError(f'{self.what}: a quote (") is opened and not closed: {self._last_place()}')
        self._columns = {name: table.column(name) for name in unique}
        self._check_comments()
        self._check_size()

    def column(self, name: str) -> Any:
        """A column that was loaded, strings."""
        return self._columns[name]

    def place(self, row: int, name: str) -> str:
        """The place of a cell, for error messages."""
        found = next(islice(self._rows(), row, None), None)
        line = f", line {found[0]}" if found else f", row {row}"
        return f"{self.what}{line}, column {name!r}"

    def _is_header(self, cells: list[str], wanted: Sequence[str], *, has_comments: bool) -> bool:
        numbers = all(_NUMBER.fullmatch(cell) for cell in cells)
        if not self._format.header:
            return not numbers and bool(wanted) and set(wanted) <= set(cells)
        if not numbers:
            twice = sorted({cell for cell in cells if cells.count(cell) > 1})
            if twice:
                raise GraphError(f"{self.what}: two columns are named {twice[0]!r}; use distinct names")
            return True
        if has_comments:
            return False  # as in SNAP's files
        raise GraphError(
            f"{self.what}: its first line holds numbers ({', '.join(cells[:4])}) and no column names; pass "
            "--no-header, and name columns by their number, from 0 on"
        )

    def _records(self) -> Iterator[tuple[int, str]]:
        return records(self._text.blocks(), self._quotes)

    @property
    def _quotes(self) -> bool:
        return self._delimiter != " "

    def _rows(self) -> Iterator[tuple[int, str]]:
        """Yield (line, text) of every record that is a row."""
        mark = self._format.comment
        for line, text in islice(self._records(), self._skipped, None):
            other = mark is None and len(fields(text, self._delimiter)) != len(self.names)
            if not (text.startswith("#") and other) and not (mark and text.startswith(mark)):
                yield line, text

    def _body(self) -> Iterator[str]:
        """The text after comments at the top and the header."""
        blocks = self._text.blocks()
        if not self._skipped:
            return blocks
        head = next(blocks)
        lines = list(islice(records(iter([head]), self._quotes), self._skipped + 1))
        if len(lines) <= self._skipped:
            return blocks
        begin = lines[self._skipped][0] - 1
        at = sum(map(len, islice(io.StringIO(head, newline=""), begin)))
        return chain([head[at:]], blocks)

    def _plain(self, block: str) -> str:
        if not self.has_quoted_blanks and self._quotes:
            mark = re.escape(self._delimiter)
            found = re.search(rf'(?m)(?:^|{mark})"[ \t]|[ \t]"(?:$|\r|{mark})', block)
            self.has_quoted_blanks = found is not None
        if self._format.comment:
            block = re.sub(rf"(?m)^{re.escape(self._format.comment)}[^\n]*(\n|\Z)", "", block)
        if self._delimiter == " ":
            block = re.sub(r"(?m)^\t|\t?\r?$", "", re.sub(r"[ \t]+", "\t", block))
        return block

    def _of_another_width(self, row: Any) -> str:
        return "skip" if self._format.comment is None and row.text.startswith("#") else "error"

    def _misshapen(self) -> str | None:
        for line, text in self._rows():
            count = len(fields(text, self._delimiter))
            if count != len(self.names):
                header = "the header" if self.has_header else "the first line"
                hint = "" if self.has_header else _OTHER_ROWS
                return f"{self.what}, line {line}: {count} values; {header} has {len(self.names)}{hint}"
        return None

    def _last_place(self) -> str:
        last = ""
        for line, _ in self._rows():
            last = f"line {line}"
        return f"the record of {last}"

    def _check_size(self) -> None:
        """Refuse a first line that is a size: rows, columns and number of entries, or nodes and edges."""
        first, size = self._columns[self.names[0]], self._first
        if self.has_header or len(size) not in (2, 3) or not all(map(_INTEGER.fullmatch, size)):
            return
        rows, columns, entries = int(size[0]), int(size[-2]), int(size[-1])
        if entries != len(first) - 1 or entries < (2 if len(size) == 3 else 8):
            return
        for _, text in islice(self._rows(), 1, None):
            ends = fields(text, self._delimiter)[:2]
            if not all(map(_INTEGER.fullmatch, ends)) or int(ends[0]) > rows or int(ends[1]) > columns:
                return
        raise GraphError(
            f"{self.place(0, self.names[0])}: {' '.join(size)} is a size, not an edge: {entries} "
            f"lines follow, with numbers up to {rows} and {columns}, as in a Matrix Market file; delete "
            "this line (if it is an edge, move it to the end)"
        )

    def _check_comments(self) -> None:
        """Raise an error for a row that may be a comment."""
        if self._format.comment is not None:
            return
        compute = arrow("pyarrow.compute")
        marked = compute.starts_with(self._columns[self.names[0]], "#")
        at = compute.index(marked, True).as_py()
        if at >= 0:
            raise GraphError(
                f"{self.place(at, self.names[0])}: begins with '#': a comment, or a value? --comment '#' "
                "ignores such lines, --comment '' reads them"
            )


def _check_format(path: Path, line: str, comment: str | None) -> None:
    """Refuse a file whose first line says that it is no table."""
    if line.lstrip("%").startswith("MatrixMarket") and line.startswith("%"):
        raise GraphError(
            f"{path} is a Matrix Market file, whose first numbers are a size, not an edge; read it in "
            "Python with scipy.io.mmread and pass its row and col to Graph.from_edges"
        )
    mark = next((mark for mark in _OTHER_COMMENTS if line.startswith(mark)), "")
    if mark and comment is None:
        raise GraphError(
            f"{path}: its first line begins with {mark!r}: a comment, or a value? --comment {mark!r} "
            "ignores such lines (KONECT's files also need --no-header), --comment '' reads them"
        )


def _delimiter_of(rows: Sequence[str], path: Path) -> str:
    """Detect the delimiter from the first rows."""
    if path.name.lower().removesuffix(".gz").endswith(".tsv"):
        return "\t"
    counts = {mark: [len(fields(row, mark)) for row in rows] for mark in (*_DELIMITERS, " ")}
    in_all = [mark for mark, count in counts.items() if count[0] > 1 and len(set(count)) == 1]
    in_first = [mark for mark in _DELIMITERS if counts[mark][0] > 1]
    if " " in in_all and in_all[0] == " " and set(in_first) <= {"\t"} and '"' not in "".join(rows):
        return " "  # tabs and blanks are mixed; quotes would mean nothing
    # Otherwise blanks also occur inside cells, unless there are only integers.
    other = " " if all(_INTEGER.fullmatch(cell) for row in rows for cell in row.split()) else ","
    return next((mark for mark in (*in_all, *in_first) if mark != " "), other)
