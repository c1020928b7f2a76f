"""Columns of Parquet and Arrow files and of data frames, through pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hopline.errors import GraphError
from hopline.graph.arrow import arrow

#: Endings of files with typed columns.
TYPED = (".parquet", ".feather", ".arrow")


class TypedTable:
    """A table whose columns have types.

    Args:
        source: a Parquet or Arrow (Feather) file, or a frame: a `pyarrow.Table`, or an object that pyarrow
            can convert to one (pandas, polars).
        progress: called with the share that is read.

    Attributes:
        names: of the columns.
    Raises: GraphError: it cannot be read.
    """

    is_text = False
    has_header = True

    def __init__(self, source: Any, progress: Callable[[float], None]) -> None:
        self.what = str(source) if isinstance(source, Path) else f"the {type(source).__name__}"
        self._progress = progress
        self._columns: dict[str, Any] = {}
        self._read: Callable[[Sequence[str]], Any]
        if not isinstance(source, Path):
            table = _of_frame(source, self.what)
            self.what = (table.schema.metadata or {}).get(b"hopline.source", self.what.encode()).decode()
            self.names, self._read = list(table.column_names), table.select
            return
        try:
            if source.suffix.lower() == ".parquet":
                file = arrow("pyarrow.parquet").ParquetFile(source, memory_map=True)
                self.names = list(file.schema_arrow.names)
                self._read = lambda names: file.read(columns=list(names))
            else:
                table = arrow("pyarrow.feather").read_table(source)
                self.names, self._read = list(table.column_names), table.select
        except (OSError, ValueError) as error:
            kind = "Parquet" if source.suffix.lower() == ".parquet" else "an Arrow file"
            raise GraphError(f"{source} cannot be read as {kind}: {error}") from None

    def find(self, name: str) -> str | None:
        """The column with this name, None if it does not exist."""
        return name if name in self.names else None

    def load(self, names: Sequence[str]) -> None:
        """Read columns. Raises: GraphError: the file is damaged, or two columns have one name."""
        unique = list(dict.fromkeys(names))
        twice = [name for name in unique if self.names.count(name) > 1]
        if twice:
            raise GraphError(f"{self.what}: two columns are named {twice[0]!r}; use distinct names")
        self._progress(0.0)
        try:
            table = self._read(unique)
        except (OSError, ValueError) as error:
            raise GraphError(f"{self.what} cannot be read completely: {error}") from None
        self._columns = {name: _plain(table.column(name)) for name in unique}
        self._progress(1.0)

    def column(self, name: str) -> Any:
        """A column that was loaded, with its type; dictionaries are decoded."""
        return self._columns[name]

    def place(self, row: int, name: str) -> str:
        """The place of a cell, for error messages."""
        return f"{self.what}, row {row}, column {name!r}"


def _of_frame(frame: Any, what: str) -> Any:
    pa = arrow("pyarrow")
    try:
        if isinstance(frame, pa.Table):
            return frame
        if type(frame).__module__.partition(".")[0] == "pandas":
            return pa.Table.from_pandas(frame, preserve_index=False)
        return pa.table(frame)
    except (pa.ArrowException, AttributeError, OverflowError, TypeError, ValueError) as error:
        names = list(getattr(frame, "columns", ()))
        for name in names if len(names) > 1 else ():
            _of_frame(frame[[name]], f"{what}, column {name!r},")
        raise GraphError(
            f"{what} cannot be read as a table: {error}; pass a path, a pandas or polars DataFrame or a "
            "pyarrow.Table in which each column has one type"
        ) from None


def _plain(column: Any) -> Any:
    """Convert dictionaries, extension types and views to plain types.

    Extension types of pandas are kept: a period is stored as an integer, which is not the caller's number.
    """
    pa, types = arrow("pyarrow"), arrow("pyarrow.types")
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType) and not kind.extension_name.startswith("pandas."):
        column = column.cast(column.type.storage_type)
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_run_end_encoded(column.type):
        column = pa.chunked_array([arrow("pyarrow.compute").run_end_decode(c) for c in column.chunks])
    if types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    if types.is_binary_view(column.type):
        column = column.cast(pa.large_binary())
    return column
