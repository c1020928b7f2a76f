"""Converts columns of tables to ids, numbers and times. The type of a column is decided from all its cells.

Blanks around a cell are removed in text files. A number is written as in Python or C, without thousands
separators. A cell that is not a number is an error that names its place, unless the whole column is text
and is omitted. The file is long because one set of rules decides the types of all columns.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopline.errors import GraphError
from hopline.graph.arrow import arrow
from hopline.graph.cell_text import FORMS, LARGEST, read_text
from hopline.graph.tables import Encoded
from hopline.graph.text_table import TextTable
from hopline.graph.typed_table import TypedTable
from hopline.types import AnyArray, IdArray

_LOG = logging.getLogger("hopline.graph")
FileTable = TextTable | TypedTable

_INTEGER, _DECIMAL, _BOOLEAN, _DATE = (
    f"^({FORMS[kind]})$" for kind in ("integer", "float", "boolean", "timestamp")
)
_WHOLE = r"^-?(0|[1-9][0-9]*)(\.0*)?$"
#: Numbers with separators, and usual markers of missing values: a column of these is not text.
NEAR_NUMBER = (
    r"^([+-]?[0-9]{1,3}([,_' ][0-9]{3})+(\.[0-9]+)?|[+-]?[0-9]+,[0-9]+|[0-9]+(_[0-9]+)+|[+-]?(?i:nan|inf|"
    r"infinity)|(?i:n/?a|null|none|nil|missing|unknown|\?|-|\.))$|"
) + _DECIMAL
# A number without leading zeros, which are part of an id: 007 is not 7.
_WRITTEN = r"^-?(0|[1-9][0-9]*)(\.[0-9]*)?([eE][+-]?[0-9]+)?$"


@dataclass(frozen=True, slots=True)
class Missing:
    """Rules for missing values, and what replaces them.

    Attributes:
        na: cells that are missing values in addition to empty ones, in columns of ids, numbers and times.
            A number means all cells of its value: -999 also -999.0, and -999 in a Parquet file.
        fill: the number for all columns, or column -> number; missing cells without a number are an error.
    """

    na: Sequence[str] = ()
    fill: float | Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.na, str):  # one cell, not its letters
            object.__setattr__(self, "na", (self.na,))

    def fill_of(self, name: str) -> float | None:
        """The number for a column."""
        return self.fill.get(name) if isinstance(self.fill, Mapping) else self.fill


def ids(table: FileTable, name: str, missing: Missing) -> IdArray | Encoded:
    """Convert a column of ids: int64 where every cell is an integer, else strings.

    In text "007" and "7" are two ids, and a column with the first holds strings. 30.0 is read as 30 if all
    cells of the column are such numbers.
    Raises: GraphError: a cell is missing, or is not an id.
    """
    types, pc = arrow("pyarrow.types"), arrow("pyarrow.compute")
    column = table.column(name)
    kind = column.type
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        column = _text_of_bytes(table, name, column)
        kind = column.type
    column = _given(table, name, column, missing, "give every node an id, or omit such rows", ids=True)
    if types.is_integer(kind):
        if types.is_uint64(kind):
            beyond = pc.greater_equal(column, arrow("pyarrow").scalar(2**63, kind))
            at = pc.index(beyond, True).as_py()
            if at >= 0:
                raise GraphError(
                    f"{table.place(at, name)}: {column[at].as_py()} does not fit into a signed 64-bit "
                    "integer; write such ids as strings"
                )
        return _numpy(column)
    if types.is_floating(kind) or types.is_decimal(kind):
        return _whole(table, name, column, "an id is an integer or a string")
    if not is_string(kind):
        raise GraphError(
            f"{table.what}: column {name!r} holds ids and must hold integers or strings; it holds {kind}"
        )
    _check_brackets(table, name, column)
    if table.is_text and (ints := _integers(column)) is not None:
        return ints
    if table.is_text and all_match(column, _WHOLE):  # 30.0 is 30 here too
        column = pc.replace_substring_regex(column, r"\.0*$", "")
        why = "are kept as strings, since some do not fit into a signed 64-bit integer"
        _LOG.warning("%s: ids in column %r %s: requests write each in quotes", table.what, name, why)
    try:
        encoded = _encoded(column)
    except UnicodeDecodeError:  # a writer that does not check its text, or a lone surrogate
        raise _not_text(table, name) from None
    return dataclasses.replace(encoded, place=lambda row: table.place(row, name))


def _check_brackets(table: FileTable, name: str, column: Any) -> None:
    """Refuse ids that were cut at a delimiter inside brackets: (0, 1) is one id, and has a comma."""
    pc = arrow("pyarrow.compute")
    if not table.is_text or not len(column):
        return
    for opening, closing in ("()", "[]", "{}"):
        begun, ended = (pc.count_substring(column, bracket) for bracket in (opening, closing))
        if pc.all(pc.not_equal(begun, ended)).as_py():
            raise GraphError(
                f"{table.place(0, name)}: {column[0].as_py()!r} has one bracket of two, as all ids of this "
                "column: they hold delimiters; put them in quotes, or set another delimiter (--delimiter)"
            )


def numbers(table: FileTable, name: str, missing: Missing, *, named: bool) -> AnyArray | str:
    """Convert a column of numbers: int64, uint64, float64 or the column's own type; booleans are 0 and 1.

    Args:
        named: the caller names this column, so that it must hold numbers.
    Returns: [n], [n, d] (a column of equally long lists), or a description of what the column holds
    instead. Raises: GraphError: a cell is missing and has no fill value; a cell is not a number though
    others are.
    """
    types, pa, pc = arrow("pyarrow.types"), arrow("pyarrow"), arrow("pyarrow.compute")
    column = table.column(name)
    kind = column.type
    if is_string(kind) and not table.is_text and not named:
        return str(kind)
    if is_string(kind):
        return _numbers_of_text(table, name, missing, named=named)
    if _is_list(kind):
        return _lists(table, name, column)
    if types.is_decimal(kind):
        column = column.cast(pa.int64() if kind.scale <= 0 and kind.precision < 19 else pa.float64())
    elif types.is_boolean(kind):
        column = column.cast(pa.uint8())
    elif types.is_null(kind):
        column = column.cast(pa.float64())
    elif not (types.is_integer(kind) or types.is_floating(kind)):
        if named:
            raise GraphError(f"{table.what}: column {name!r} must hold numbers; it holds {kind}")
        return str(kind)
    absent = absent_cells(table, column, missing)
    if pc.any(absent).as_py():
        column = column.cast(pa.float64()) if types.is_floating(column.type) else column
        column = _filled(table, name, column, absent, missing)
    return _numpy(column)


def times(table: FileTable, name: str, missing: Missing) -> AnyArray:
    """Convert a column of times: integers, or datetime64 where it holds dates (ISO 8601 in text, UTC).

    Raises: GraphError: a cell is missing, or neither an integer nor a date.
    """
    types, pa = arrow("pyarrow.types"), arrow("pyarrow")
    column = _given(table, name, table.column(name), missing, "give every edge a time, or omit such rows")
    kind = column.type
    if types.is_integer(kind):
        return _numpy(column)
    if types.is_timestamp(kind):
        return _numpy(column.cast(pa.timestamp(kind.unit)))
    if types.is_date(kind):
        return _numpy(column.cast(pa.timestamp("s")))
    if not (is_string(kind) or types.is_floating(kind) or types.is_decimal(kind)):
        raise GraphError(f"{table.what}: column {name!r} must hold integers or dates; it holds {kind}")
    if not len(column):
        return np.empty(0, np.int64)
    if is_string(kind):
        if (ints := _integers(column)) is not None:
            return ints
        if not all_match(column, _DECIMAL):
            return dates(table, name, column)
        column = column.cast(pa.float64())
    return _whole(table, name, column, "times must be integers or dates: multiply and round them")


def _numbers_of_text(table: FileTable, name: str, missing: Missing, *, named: bool) -> AnyArray | str:
    pa, pc = arrow("pyarrow"), arrow("pyarrow.compute")
    column = trimmed(table, name, table.column(name))
    absent = absent_cells(table, column, missing)
    column = parsed_text(table, name, column, absent, named=named)
    if isinstance(column, str):
        return column
    column = column.cast(pa.uint8()) if arrow("pyarrow.types").is_boolean(column.type) else column
    if pc.any(absent).as_py():
        column = _filled(table, name, column, absent, missing)
    return _numpy(column)


def parsed_text(
    table: FileTable, name: str, column: Any, absent: Any, *, named: bool, kept: str | None = None
) -> Any:
    """Text as booleans, integers or float64, null where `absent`; or a description of what it holds.

    `kept` is the type of a column that is kept, "" to detect it; None for a feature.
    """
    pc = arrow("pyarrow.compute")
    given = column.filter(pc.invert(absent))
    form, every, one = _DECIMAL, "numbers", "a number"
    if kept == "integer":
        form, every, one = _INTEGER, "integers", "an integer"
    booleans, numbers, near = (
        pc.sum(pc.match_substring_regex(given, each)).as_py() or 0 for each in (_BOOLEAN, form, NEAR_NUMBER)
    )
    booleans = 0 if kept in ("float", "integer") else booleans
    if booleans == len(given) > 0:
        return pc.if_else(absent, None, pc.equal(pc.utf8_lower(column), "true"))
    if numbers == len(given) and kept != "boolean":
        column = pc.if_else(absent, None, column)
        return _parsed(table, name, column, kept, whole=all_match(given, _INTEGER))
    if not named and 2 * max(numbers, booleans * (kept is not None)) < len(given) and near < len(given):
        return f'text, such as "{given.filter(pc.invert(pc.match_substring_regex(given, _DECIMAL)))[0]}"'
    if are_flags := kept == "boolean" or 2 * booleans > len(given):
        form, every, one = _BOOLEAN, *["true or false"] * 2
    good = pc.or_(absent, pc.match_substring_regex(pc.fill_null(column, ""), form))
    at, *others = np.flatnonzero(~_numpy(good))[:3].tolist()
    places = [table.place(each, name).removeprefix(f"{table.what}, ").partition(",")[0] for each in others]
    more = "".join(
        f", {column[each].as_py()!r:.40} in {line}" for each, line in zip(others, places, strict=True)
    )
    cell = column[at].as_py()
    count = len(given) - (booleans if are_flags else numbers)
    raise GraphError(
        f"{table.place(at, name)} must hold {every}; it holds {cell!r} ({count} of "
        f"{len(column)} cells do not hold {one}{more}); "
        f"{_advice(cell, name, named=named, kept=kept is not None)}"
    )


def check_cells(table: FileTable, name: str, column: Any, kind: str, chosen: Any) -> None:
    """Raise GraphError for the first of some texts, where `chosen` is true, that `read_text` refuses."""
    for at in np.flatnonzero(_numpy(arrow("pyarrow.compute").fill_null(chosen, False))).tolist():
        try:
            read_text(kind, column[at].as_py())
        except ValueError as error:
            raise GraphError(
                f"{table.place(at, name)}: {error}; a column may be kept as text ({name}:text)"
            ) from None


def _parsed(table: FileTable, name: str, column: Any, kept: str | None, *, whole: bool) -> Any:
    pa, pc = arrow("pyarrow"), arrow("pyarrow.compute")
    for kind in (pa.int64(), pa.uint64()) if whole else (pa.float64(),):
        if (found := cast(column, kind)) is not None:
            if kept is not None:
                large = pc.greater_equal(pc.abs(found.cast(pa.float64(), safe=False)), LARGEST)
                check_cells(table, name, column, "integer" if whole and kept != "float" else "float", large)
            return found
    at = max(0, pc.index(pc.greater(pc.abs(column.cast(pa.float64())), 9.2e18), True).as_py())
    raise GraphError(f"{table.place(at, name)}: {column[at].as_py()} does not fit into a 64-bit integer")


def _advice(cell: str, name: str, *, named: bool, kept: bool) -> str:
    out = "do not use this column" if named else f"leave the column out with --exclude {name}"
    out = f"keep it as text (--column {name}:text)" if kept else out
    if "," in cell or "_" in cell or "'" in cell:
        return f"write numbers without separators and with a decimal point, or {out}"
    return f"pass --na {cell!r}{'' if kept else ' --fill 0'} if it marks a missing value, or {out}"


def _filled(table: FileTable, name: str, column: Any, absent: Any, missing: Missing) -> Any:
    pa, pc = arrow("pyarrow"), arrow("pyarrow.compute")
    fill = missing.fill_of(name)
    if fill is None:
        raise _missing(
            table,
            name,
            absent,
            f"set a value for such cells (--fill 0), leave the column out (--exclude {name}), or keep it "
            f"for preprocessing, with missing cells (--column {name})",
        )
    # The column's own type if the number fits; -1, for example, does not fit bytes or booleans.
    integers = [column.type, pa.int64()] if float(fill).is_integer() else []
    for kind in (*integers, pa.float64()):
        number, others = (cast(each, kind) for each in (pa.array([float(fill)]), column))
        if number is not None and others is not None:
            return pc.if_else(absent, number[0], others)
    at = pc.index(absent, True).as_py()
    raise GraphError(
        f"{table.place(at, name)}: {fill} cannot be mixed with the other values of the column, which are "
        "integers that float64 cannot hold"
    )


def absent_cells(table: FileTable, column: Any, missing: Missing) -> Any:
    """Booleans: cells that are null, NaN, empty text or a marker in `missing.na`."""
    types, pa, pc = arrow("pyarrow.types"), arrow("pyarrow"), arrow("pyarrow.compute")
    kind = column.type
    absent = pc.is_null(column, nan_is_null=types.is_floating(kind))
    if is_string(kind):
        cells = pc.fill_null(column, "")
        absent = pc.or_(
            absent, pc.is_in(cells, pa.array([*([""] if table.is_text else []), *missing.na], kind))
        )
    elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)):
        return absent
    numbers = [float(text) for text in map(str.strip, missing.na) if re.match(_DECIMAL, text)]
    if not numbers:
        return absent
    if is_string(kind):
        cells = pc.if_else(pc.match_substring_regex(cells, _WRITTEN), cells, None)
    found = pc.is_in(
        cells.cast(pa.float64()) if is_string(kind) else column.cast(pa.float64(), safe=False),
        pa.array(numbers),
    )
    return pc.or_(absent, found)


def _given(
    table: FileTable, name: str, column: Any, missing: Missing, advice: str, *, ids: bool = False
) -> Any:
    """A column of ids or times, trimmed, in which no cell may be missing."""
    if is_string(column.type):
        column = trimmed(table, name, column, ids=ids)
    absent = absent_cells(table, column, missing)
    if arrow("pyarrow.compute").any(absent).as_py():
        raise _missing(table, name, absent, advice)
    return column


def _missing(table: FileTable, name: str, absent: Any, advice: str) -> GraphError:
    pc = arrow("pyarrow.compute")
    at = pc.index(absent, True).as_py()
    count = pc.sum(absent).as_py()
    return GraphError(
        f"{table.place(at, name)}: a value is missing ({count} of {len(absent)} rows have none); {advice}"
    )


def _whole(table: FileTable, name: str, column: Any, what: str) -> IdArray:
    """Floats or decimals that are integers, as int64."""
    pa, pc, kind = arrow("pyarrow"), arrow("pyarrow.compute"), column.type
    is_decimal = arrow("pyarrow.types").is_decimal(kind)
    # From here on a float represents more than one integer: it may have been rounded earlier.
    limit = 2**63 if is_decimal else {16: 2**11, 32: 2**24, 64: 2**53}[kind.bit_width]
    if is_decimal:
        good = pa.chunked_array([[v == int(v) and abs(v) < limit for v in column.to_pylist()]], pa.bool_())
    else:
        column = column.cast(pa.float64())
        good = pc.and_(pc.equal(pc.floor(column), column), pc.less(pc.abs(column), float(limit)))
    bad = pc.invert(pc.fill_null(good, False))
    at = pc.index(bad, True).as_py()
    if at >= 0:
        count, cell = pc.sum(bad).as_py(), column[at].as_py()
        if abs(cell) >= limit:
            raise GraphError(
                f"{table.place(at, name)}: {cell} is too large to identify one integer as {kind}; "
                "write such numbers as integers of 64 bits, or ids as strings"
            )
        raise GraphError(
            f"{table.place(at, name)}: {cell} is not an integer (nor are {count} of {len(column)} cells); "
            f"{what}"
        )
    if is_decimal:
        return np.array([int(v) for v in column.to_pylist()], np.int64)
    return _numpy(column).astype(np.int64)


def dates(table: FileTable, name: str, column: Any, finest: int = 9) -> AnyArray:
    """Convert text to datetime64, UTC; after `finest` digits of a fraction, zeros are left out.

    Raises: GraphError: a cell is not an ISO 8601 date or time.
    """
    pa, pc = arrow("pyarrow"), arrow("pyarrow.compute")
    texts = pc.replace_substring_regex(pc.ascii_upper(column), rf"([.][0-9]{{{finest}}})0+", r"\1")
    texts = pc.if_else(pc.match_substring_regex(column, _DATE), texts, "")
    digits = pc.max(
        pc.binary_length(pc.replace_substring_regex(texts, r"^[^.]*\.?([0-9]*).*$", r"\1"))
    ).as_py()
    unit = ("s", "ms", "us", "ns")[-(-min(digits or 0, 9) // 3)]  # pyarrow reads no finer fraction
    # pyarrow reads ISO 8601: with a zone in all cells, or in none.
    kinds = [pa.timestamp(unit, zone) for zone in (None, "UTC")]
    for kind in kinds:
        if (read := cast(texts, kind)) is not None:
            return _numpy(read.cast(pa.timestamp(unit)))
    at = max(bisect(range(1, len(column) + 1), False, key=lambda n: not cast(texts[:n], k)) for k in kinds)
    whole = pc.match_substring_regex(column, _WHOLE)
    odd = pc.index(whole, False).as_py() if whole[at].as_py() else at
    if odd < 0:
        raise GraphError(
            f"{table.what}: column {name!r} holds integers, not dates: its type is integer; as times of "
            "edges they have the unit time_unit"
        )
    if not any(cast(texts[odd : odd + 1], kind) for kind in kinds):
        raise GraphError(
            f"{table.place(odd, name)}: {column[odd].as_py()!r} is neither an integer nor an ISO 8601 date "
            "and time (2024-01-31T13:45:00Z), or too fine or too far from 1970; keep it as text, NAME:text"
        )
    mixed = "integers and dates" if odd != at else "times with and without a zone"
    raise GraphError(
        f"{table.place(at, name)}: {mixed} are mixed; write all in one form (without a zone, times are UTC)"
    )


def cast(column: Any, kind: Any) -> Any:
    """The column in another type; None where a cell cannot be."""
    try:
        return column.cast(kind)
    except arrow("pyarrow").ArrowInvalid:
        return None


def _lists(table: FileTable, name: str, column: Any) -> AnyArray:
    pc = arrow("pyarrow.compute")
    if column.null_count:
        raise _missing(table, name, column.is_null(), "fill or drop such rows")
    lengths = set(pc.list_value_length(column).unique().to_pylist())
    if len(lengths) > 1:
        raise GraphError(
            f"{table.what}: column {name!r} holds lists of different lengths: {sorted(lengths)[:5]}"
        )
    fixed = arrow("pyarrow.types").is_fixed_size_list(column.type)
    width = column.type.list_size if fixed else max(lengths, default=0)
    flat = pc.list_flatten(column)
    if flat.null_count:
        at = flat.is_null().index(True).as_py() // max(1, width)
        raise GraphError(f"{table.place(at, name)}: a value of the list is missing; fill or drop such rows")
    return _numpy(flat).reshape(len(column), width)


def _text_of_bytes(table: FileTable, name: str, column: Any) -> Any:
    pa = arrow("pyarrow")
    text = cast(column.cast(pa.large_binary()), pa.large_string())
    if text is None:
        raise _not_text(table, name)
    return text


def _not_text(table: FileTable, name: str) -> GraphError:
    return GraphError(
        f"{table.what}: column {name!r} holds bytes that are not UTF-8 text; write ids as integers or "
        "as text, such as their hexadecimal digits"
    )


def trimmed(table: FileTable, name: str, column: Any, *, ids: bool = False) -> Any:
    """Remove blanks around the cells of a text file. Raises: GraphError: a quote or id after a blank."""
    if not isinstance(table, TextTable):
        return column
    pc = arrow("pyarrow.compute")
    at = pc.index(pc.match_substring_regex(column, r'^\s+".*"\s*$'), True).as_py()
    if at >= 0:
        raise GraphError(
            f"{table.place(at, name)}: a quote after a blank; remove the blanks that follow the delimiter"
        )
    bare = pc.utf8_trim_whitespace(column)
    if ids and table.has_quoted_blanks:
        at = pc.index(pc.not_equal(bare, column), True).as_py()
        if at >= 0:
            raise GraphError(
                f"{table.place(at, name)}: {column[at].as_py()!r} begins or ends with a blank, and "
                "blanks in quotes may be part of an id; remove them from the file"
            )
    return bare


def _encoded(column: Any) -> Encoded:
    encoded = column.dictionary_encode().unify_dictionaries().combine_chunks()
    if hasattr(encoded, "chunks"):  # a column without rows has no chunk
        return Encoded([], np.empty(0, np.int32))
    return Encoded(encoded.dictionary.to_pylist(), encoded.indices.to_numpy())


def _integers(column: Any) -> IdArray | None:
    """Text in which every cell is an integer of 64 bits, also 30.0, as int64; None for another column."""
    if not all_match(column, _WHOLE):
        return None
    pa, pc = arrow("pyarrow"), arrow("pyarrow.compute")
    ints = cast(pc.replace_substring_regex(column, r"\.0*$", ""), pa.int64())
    return None if ints is None else _numpy(ints)


def all_match(column: Any, pattern: str) -> bool:
    """True if there are cells, and each matches the pattern."""
    pc = arrow("pyarrow.compute")
    return len(column) > 0 and bool(pc.all(pc.match_substring_regex(column, pattern)).as_py())


def _numpy(column: Any) -> AnyArray:
    result: AnyArray = column.to_numpy()
    return result


def is_string(kind: Any) -> bool:
    """True for the types of text."""
    types = arrow("pyarrow.types")
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_list(kind: Any) -> bool:
    types = arrow("pyarrow.types")
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    value = kind.value_type if is_list else None
    return is_list and bool(types.is_integer(value) or types.is_floating(value) or types.is_boolean(value))
