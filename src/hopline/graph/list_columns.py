"""Lists in columns: a vector is a column of floats for each place, codes are a column for each code.

What is behind this file has scalar columns. Their names say which are a list: `emb_0` and `emb_1` are the
vector `emb`. `tags=a`, `tags=b` and `tags#` are the codes `tags`: true in rows with the code, and the
number of a row's distinct codes. Codes without a column are in that number alone, so it means the same in
graphs that know other codes. Where the number is named `tags!`, there are none: other codes are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from itertools import count, takewhile
from typing import Any, TypeAlias, get_args

import numpy as np

from hopline.graph.arrow import arrow
from hopline.graph.cell_text import read_text, shown
from hopline.graph.schema import ColumnType

#: The type of a column in tables: of `ColumnType`, "vector", "vector=8", "codes", "codes=a|b",
#: "codes-only=a|b", which refuses other codes, or "" to detect it. Or the columns that a list has.
Kind: TypeAlias = str | tuple[str, ...]
#: Name of a list -> its columns.
Lists: TypeAlias = Mapping[str, tuple[str, ...]]
KIND = f"{'|'.join(get_args(ColumnType))}|vector(?:=[1-9][0-9]{{0,4}})?|codes(?:-only)?(?:=.+)?"
#: Codes of a list that are taken from the data; each has a cell in each row.
MOST_CODES = 256
#: Ends of the names of numbers of codes.
_NUMBER = {"codes": "#", "codes-only": "!"}
#: The end of a list's name in the columns of codes.
_END = re.compile("=|[#!]$")


def lists_of(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Name -> columns, of the lists among columns."""
    known, vectors, codes = dict.fromkeys(names), dict[str, tuple[str, ...]](), dict[str, tuple[str, ...]]()
    for column in known:
        if end := _END.search(column):
            name = column[: end.start()]
            codes[name] = (*codes.get(name, ()), column)
        elif column.endswith("_0"):
            places = takewhile(known.__contains__, (f"{column[:-1]}{at}" for at in count()))
            vectors[column[:-2]] = tuple(places)
    return {name: columns for name, columns in (codes | vectors).items() if name not in known}


def with_places(row: Mapping[str, Any], lists: Lists) -> Mapping[str, Any]:
    """A row with the columns of its lists, which `lists_of` names; None is a missing list.

    Raises: ValueError: no list, a vector of another length, or an item that is not a code.
    """
    given = [name for name, columns in lists.items() if name in row and columns[0] not in row]
    if not given:
        return row
    found = {name: value for name, value in row.items() if name not in given}
    for name in given:
        value, columns = row[name], lists[name]
        is_vector = columns[0] == f"{name}_0"
        if value is None:
            found |= dict.fromkeys(columns)
        elif isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
            wanted = f"{len(columns)} numbers" if is_vector else "codes"
            raise ValueError(f"{name!r}: {shown(value)} instead of a list of {wanted}")
        elif not is_vector:
            found |= _codes(name, columns, value)
        elif len(value) == len(columns):
            found |= zip(columns, value, strict=True)
        else:
            raise ValueError(f"{name!r}: {len(value)} values instead of a list of {len(columns)} numbers")
    return found


def _codes(name: str, columns: tuple[str, ...], items: Collection[Any]) -> dict[str, Any]:
    """The cells of a list of codes. A missing item, also a text of blanks, is no code."""
    for item in items:
        if item is not None and not isinstance(item, str):
            raise ValueError(f"{name!r}: {shown(item)} instead of a code, which is a string")
    codes = {item.strip() for item in items if item} - {""}
    if refused := _refused(name, columns, codes):
        raise ValueError(f"{name!r}: {refused}")
    start = len(name) + 1
    return {each: each[start:] in codes if each[start - 1] == "=" else len(codes) for each in columns}


def _refused(name: str, columns: Collection[str], codes: Iterable[str]) -> str:
    """The first of the codes that a list with no others does not have, in words; "" if there is none."""
    known = [each[len(name) + 1 :] for each in columns if each != f"{name}!"]
    others = sorted({*codes}.difference(known)) if f"{name}!" in columns else []
    return f"{shown(others[0])}, not one of its codes {shown(known)}" if others else ""


def list_of(text: str) -> list[Any] | None:
    """The list of a text: JSON such as '["a", "b"]', or codes such as "a|b"; None for blanks only.

    Raises: ValueError: it begins as a list of JSON, and is none.
    """
    if not text.lstrip().startswith("["):
        return text.split("|") if text.strip() else None
    try:
        found: list[Any] = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f'{shown(text)} is no list: write JSON (["a", "b"]) or codes (a|b)') from None
    return found


def columns_of(name: str, column: Any, kind: Kind = "") -> dict[str, Any]:
    """The columns of Arrow's lists, or of texts such as "a|b" that are codes; {} for another column.

    Args:
        kind: "" makes vectors of lists of floats of one length, and codes of lists of texts.

    Raises: ValueError: the lists are not of the kind; says how they differ.
    """
    form, wanted = _wanted(name, kind)
    form = form or ("" if kind else form_of(column.type))
    if form in _NUMBER:
        return _code_columns(name, column, wanted, name + _NUMBER[form])
    found = _place_columns(name, column, wanted) if form else {}
    if form and kind and not found:
        length = f"{len(wanted)} numbers" if wanted else "one length, which may be named (vector=8)"
        raise ValueError(f"lists that do not all have {length}")
    return found


def form_of(kind: Any) -> str:
    """The form of columns of Arrow's type if none is named: "codes", "vector", or "" for other types."""
    is_list, item = _items(kind)
    return "" if not is_list else {"text": "codes", "float": "vector"}.get(item, "")


def _items(kind: Any) -> tuple[bool, str]:
    """True for a type of lists; and what is in them: "text", "float", "integer", or "" for all else."""
    types = arrow("pyarrow.types")
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    item = kind.value_type if is_list else kind
    item = item.value_type if types.is_dictionary(item) else item
    if types.is_string(item) or types.is_large_string(item) or types.is_string_view(item):
        return is_list, "text"
    if types.is_floating(item) or types.is_decimal(item):
        return is_list, "float"
    return is_list, "integer" if types.is_integer(item) or types.is_null(item) else ""


def _wanted(name: str, kind: Kind) -> tuple[str, tuple[str, ...]]:
    """The form of a list, "" for none, and its columns, () for those of its values."""
    if isinstance(kind, tuple):
        codes = "codes-only" if f"{name}!" in kind else "codes"
        return "vector" if kind[0] == f"{name}_0" else codes, kind
    form, _, given = kind.partition("=")
    if form in _NUMBER:
        named = sorted({read_text("text", each) for each in given.split("|")} - {None})
        return form, (*(f"{name}={each}" for each in named), name + _NUMBER[form]) if named else ()
    is_vector = form == "vector"
    return form * is_vector, tuple(f"{name}_{at}" for at in range(int(given or 0) * is_vector))


def _place_columns(name: str, column: Any, wanted: tuple[str, ...]) -> dict[str, Any]:
    """A column for each place; {} unless all lists are of one length, which is that of `wanted`."""
    pa, pc = arrow("pyarrow"), arrow("pyarrow.compute")
    is_list, item = _items(column.type)
    if not is_list or item not in ("float", "integer"):
        raise ValueError(f"{column.type} instead of lists of numbers")
    least, most = pc.min_max(pc.list_value_length(column)).as_py().values()
    size = len(wanted) or most or 0
    if least != most or most not in (size, None):
        return {}
    numbers, missing = column.cast(pa.list_(pa.float64())), pa.scalar(None, pa.float64())
    places = [pc.list_element(numbers, at) for at in range(size)]
    return {f"{name}_{at}": pc.if_else(pc.is_nan(each), missing, each) for at, each in enumerate(places)}


def _code_columns(name: str, column: Any, wanted: tuple[str, ...], number: str) -> dict[str, Any]:
    """A column for each code, and one for their number, which is named `number`."""
    pa, pc, types = arrow("pyarrow"), arrow("pyarrow.compute"), arrow("pyarrow.types")
    is_list, item = _items(column.type)
    if item != "text" and (not is_list or item != "integer"):
        raise ValueError(f"{column.type} instead of lists of codes, which are texts or integers")
    if not is_list and pc.any(pc.starts_with(column, "[")).as_py():
        try:
            texts = [list_of(each or "") for each in column.to_pylist()]
            column = pa.chunked_array([texts], pa.list_(pa.string()))
        except pa.ArrowTypeError:
            raise ValueError("lists of JSON whose items are not all strings") from None
    elif not is_list:
        column = pc.split_pattern(column, "|")
    elif types.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    items = pc.list_flatten(column)
    if types.is_dictionary(items.type):
        items = items.cast(items.type.value_type)
    items = pc.utf8_trim_whitespace(items.cast(pa.string()))
    codes = sorted({*pc.unique(items).to_pylist()} - {None, ""})
    if not wanted and not 0 < len(codes) <= MOST_CODES:
        which = f"name those that are columns (codes=a|b), at most {MOST_CODES:,} otherwise"
        raise ValueError(f"lists of {len(codes):,} distinct codes: {which}; or leave it out")
    absent, num_rows = column.is_null().to_numpy(), len(column)
    if refused := _refused(name, wanted, codes):
        raise ValueError(refused)
    places = pc.index_in(items, value_set=pa.array(codes, pa.string())).fill_null(-1).to_numpy()
    rows = np.repeat(np.arange(num_rows), pc.fill_null(pc.list_value_length(column), 0).to_numpy())
    pairs = np.unique((places.astype(np.int64) * num_rows + rows)[places >= 0])
    places, rows = np.divmod(pairs, max(1, num_rows))
    ends = np.searchsorted(places, np.arange(len(codes) + 1))
    having = {f"{name}={code}": rows[ends[at] : ends[at + 1]] for at, code in enumerate(codes)}
    found = dict[str, Any]()
    for each in wanted or (*having, number):
        counts = np.bincount(rows if each == number else having.get(each, rows[:0]), minlength=num_rows)
        found[each] = pa.array(counts if each == number else counts > 0, mask=absent)
    return found
