"""Writes the description of tables: what is found in their values, for a person to read and edit.

A foreign key is found by its name and the share of its values that are keys of another table; by its values
alone only where they are texts. Each guess has a comment.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hopline.errors import GraphError
from hopline.graph.cells import Missing, cast, is_string
from hopline.graph.edge_times import likely_unit
from hopline.graph.files import open_table
from hopline.graph.list_columns import columns_of
from hopline.graph.stored_columns import is_label, type_of
from hopline.graph.text_table import TextFormat
from hopline.graph.typed_columns import typed
from hopline.types import silent
from hopline_sql.database import opened, query

#: Texts of which more than this share are distinct, in at least so many rows, are names, not categories. A
#: first column whose name is that of other rows' ids is a key if so many are distinct.
_FREE_SHARE, _FREE_ROWS = 0.5, 20
#: Smallest share of the values that are keys to be named in a comment.
_NEAR = 0.5
#: Codes of lists that are written; more would hide the other columns.
_CODES = 100
#: Distinct texts of which all must be keys of a table before a column without its name is a foreign key.
_TEXTS = 10
_ID = re.compile(r"(?i)(^|_)(id|key|uuid|no|number)$|(?-i:[a-z](Id|ID|Key))$")
_ID_OF = re.compile(r"[A-Za-z0-9]_(id|key)$|[a-z](Id|ID|Key)$")
_END = re.compile(r"(?i)(^|_)(src|dst|source|target|from|to|sender|receiver|payer|payee|parent)(_|$)")
#: A day in any form; texts that usually mark a missing cell.
_DAY = r"^[0-9]{1,4}[-./][0-9]{1,2}[-./][0-9]{1,4}($|[ T])"
_MARK = r"^(?i:n/?a|nan|null|none|nil|missing|unknown|\?|-|\.)$"
_FROM = re.compile(r"(?i)(^|_)(from|since|start|begin|valid)(_|$)")
_TIME = re.compile(r"(?i)(^|_)(time|timestamp|ts|at|date|datetime|when)$|[a-z](At|Time|Date)$")


@dataclass(slots=True)
class _Found:
    """A table, and what was found in it.

    Attributes:
        columns: name -> typed column. notes: name -> why its type is none, or not what it seems to be.
        lists: column of lists -> its type as the file has it.
        foreign: column -> (table, comment).
        history: column of the times of rows, of which a key has several; "" for none.
    """

    name: str
    source: str
    columns: dict[str, Any]
    notes: dict[str, str]
    lists: dict[str, str]
    key: str = ""
    foreign: dict[str, tuple[str, str]] = field(default_factory=dict)
    history: str = ""


def described(tables: Sequence[str], database: str = "", folder: Path = Path()) -> str:
    """The text of a description.

    Args:
        tables: FILE, NAME=FILE or NAME=sql:QUERY each; with a database also NAME for all of its columns,
            and () for all tables.
        folder: of the description, to which paths of files are relative.
    Raises: GraphError: a table cannot be read, or two have one name.
    """
    shown = database if "://" in database else os.path.relpath(database or ".", folder)
    if database and not tables:
        named = {name: name.replace('"', '""') for name in opened(database).names()}
        tables = [f'{name}=sql:select * from "{quoted}"' for name, quoted in named.items()]
    found = [_read(text, database, folder) for text in tables]
    for name in {each.name for each in found}:
        if sum(each.name == name for each in found) > 1:
            raise GraphError(f"two tables are named {name!r}; name them: NAME=FILE")
    for each in found:
        each.key = next(_keys(each, found), "")
        if not each.key:
            each.key, each.history = next(_histories(each), ("", ""))
    for each in found:
        each.foreign = {} if each.history else dict(_foreign(each, found))
    lines = [
        "# The tables of a graph, as `hopline graph describe` found them. Edit this file, then:",
        "#   hopline graph build FILE.toml --out graph",
        "# Rows of a table with a key are nodes; without one, edges between two foreign keys. A role is",
        '# "feature", "label" (for training only), "time", "weight" or "id" (of edges), "history" (times',
        '# of rows, of which a key has several), or "left out".',
        *(["", f"database = {_text(shown)}"] if database else []),
    ]
    for each in found:
        lines += ["", *_section(each)]
    return "\n".join(lines) + "\n"


def _read(text: str, database: str, folder: Path) -> _Found:
    name, equals, source = text.partition("=")
    if not equals or Path(text).exists():
        name, source = "", text
    if source.startswith("sql:") or (database and not name):
        sql = source[4:] if source.startswith("sql:") else f"select * from {source}"
        if not name and source.startswith("sql:"):
            raise GraphError(f"{text}: name the table of a query: NAME='sql:SELECT ...'")
        name, given = name or source.rpartition(".")[2], query(sql, database)
        where = f"query = {_text(sql)}"
    else:
        path = Path(source)
        name = name or path.name.partition(".")[0]
        given, where = path, f"file = {_text(os.path.relpath(path, folder))}"
    table = open_table(given, TextFormat(), (), silent)
    table.load(table.names)
    columns, notes, lists = dict[str, Any](), dict[str, str](), dict[str, str]()
    for column in table.names:
        cells = table.column(column)
        try:
            found = columns_of(column, cells, _kind_of_texts(cells))
        except ValueError as error:
            notes[column] = str(error)
            continue
        if found:
            lists[column], what = _list_type(column, [*found])
            absent = min(each.null_count for each in found.values())
            notes[column] = f"{what}, {absent / len(cells):.1%} missing"
            continue
        days = is_string(cells.type) and pc.mean(pc.match_substring_regex(pc.unique(cells), _DAY)).as_py()
        for kind in ("timestamp" if (days or 0) > 0.5 else "", "text"):
            try:
                columns[column] = typed(table, column, Missing(), kind)
                break
            except GraphError as error:
                notes.setdefault(column, _note(str(error).removeprefix(table.what).lstrip(":, ")))
    return _Found(name, where, columns, notes, lists)


def _kind_of_texts(cells: Any) -> str:
    """Codes if all texts of a column are in brackets, as lists are in CSV files; else "", to detect it."""
    if not is_string(cells.type):
        return ""
    texts = pc.unique(cells).drop_null()
    texts = texts.filter(pc.not_equal(texts, ""))
    in_brackets = pc.all(pc.and_(pc.starts_with(texts, "["), pc.ends_with(texts, "]"))).as_py()
    return "codes" if len(texts) and in_brackets else ""


def _list_type(name: str, columns: Sequence[str]) -> tuple[str, str]:
    """The type of a column of lists as the file has it, and in words."""
    if columns[0] == f"{name}_0":
        return f'type = "vector", size = {len(columns)}', f"a vector of {len(columns)} numbers"
    codes = [column.removeprefix(f"{name}=") for column in columns[:-1]]
    texts = ", ".join(map(_text, codes))
    given = f", values = [{texts}]" if len(codes) <= _CODES and "|" not in texts else ""
    return f'type = "codes"{given}', f"lists of {len(codes):,} codes"


def _note(error: str) -> str:
    """An error of a column as a comment, whose advice is of a description, not of a command line."""
    text = re.sub(r" \(--column .*?:text\)|, NAME:text", "", error.replace("\n", " "))
    return re.sub(r"pass --na (.*?) if", r"write na = [\1] in its table if", text)


def _keys(table: _Found, every: Sequence[_Found]) -> Iterator[str]:
    """Columns whose cells are all given and distinct, the likeliest first."""
    own = {"id", "key", "uuid", *(name + end for name in _forms(table.name) for end in ("id", "key", ""))}
    first, rows = next(iter(table.columns.items()), ("", ()))
    of_other = any(_names(first, other) for other in every if other is not table)
    of_other = of_other or bool(_ID_OF.search(first) and len(rows) < _FREE_ROWS)  # few may differ by chance
    likely = [name for name in table.columns if _plain(name) in own] + ([] if of_other else [first])
    for name in likely:
        column = table.columns.get(name)
        if column is None or type_of(column.type) not in ("integer", "text") or column.null_count:
            continue
        if 0 < len(column) == len(pc.unique(column)):
            yield name


def _histories(table: _Found) -> Iterator[tuple[str, str]]:
    """Keys by their names, and times of rows, which are distinct together."""
    own = {"id", "key", "uuid", *(name + end for name in _forms(table.name) for end in ("id", "key", ""))}
    for name in [each for each in table.columns if _plain(each) in own]:
        for time, column in table.columns.items():
            is_date = type_of(column.type) == "timestamp"
            if time == name or column.null_count or table.columns[name].null_count:
                continue
            if is_date or (
                type_of(column.type) == "integer" and (_TIME.search(time) or _FROM.search(time))
            ):
                pairs = pa.table({"key": table.columns[name], "time": column}).group_by(["key", "time"])
                if pairs.aggregate([]).num_rows == len(column):
                    yield name, time


def _foreign(table: _Found, every: Sequence[_Found]) -> Iterator[tuple[str, tuple[str, str]]]:
    for name, column in table.columns.items():
        values = pc.unique(column).drop_null()
        if type_of(column.type) == "float" and len(values):  # pandas writes 1.0 where a cell is missing
            values = values if (whole := cast(values, pa.int64())) is None else whole
        kind = type_of(values.type)
        if name == table.key or kind not in ("integer", "text") or is_label(name):
            continue
        best: tuple[float, bool, _Found] | None = None
        near = ""
        for other in every:
            if not other.key or type_of(other.columns[other.key].type) != kind or not len(values):
                continue
            share = (pc.sum(pc.is_in(values, other.columns[other.key])).as_py() or 0) / len(values)
            by_name = _names(name, other) or (other is table and bool(_END.search(name)))
            likely = bool(_ID.search(name) or _END.search(name)) or (
                kind == "text" and len(values) >= _TEXTS
            )
            if likely and share >= _NEAR and other is not table:
                near = f"{share:.1%} of its values are in {other.name}.{other.key}"
            if (by_name and share > 0) or (likely and share == 1.0 and other is not table):
                best = max(best or (0.0, False, other), (share, by_name, other), key=lambda each: each[:2])
        if best:
            share, by_name, other = best
            why = f"{share:.1%} of its values are in {other.name}.{other.key}"
            why += "" if by_name else ", by its values alone"
            why += "" if share == 1.0 else ": rows with others are refused"
            yield name, (other.name, why)
        elif _ID_OF.search(name) and (base := _base(name)):
            yield name, (base, f"no table has these ids: the nodes are the values{near and f'; {near}'}")
        elif near:
            table.notes[name] = near


def _section(table: _Found) -> Iterator[str]:
    yield f"[tables.{_name(table.name)}]"
    yield table.source
    rows = len(next(iter(table.columns.values()), ()))
    is_edges = not table.key and len(table.foreign) == 2
    if table.history:
        count = len(pc.unique(table.columns[table.key]))
        yield f"key = {_text(table.key)}  # {rows:,} rows of {count:,} nodes, each valid from its time on"
    elif table.key:
        yield f"key = {_text(table.key)}  # {rows:,} rows, all distinct: rows are nodes"
    elif is_edges:
        yield f"relation = {_text(table.name)}  # {rows:,} rows without a key: rows are edges"
        yield f"reverse = {_text(f'rev_{table.name}')}  # the same edges in the other direction"
    else:
        yield '# key = "?"  # none was found; rows without one are edges between two foreign keys'
    times = _times(table)
    time = next((each for each in times if table.foreign and not table.columns[each].null_count), "")
    if unit := times.get(time := table.history or time, ""):
        yield f"time_unit = {_text(unit)}  # by the size of the numbers in {time}"
    elif time and table.source.startswith("query"):
        yield 'time_unit = "us"  # of the times of edges; a change feed needs it'
    names = [each for each in table.columns | table.notes if each not in (table.key, *table.foreign)]
    others = {name: _column(table, name, is_edges=is_edges or bool(table.history)) for name in names}
    for name in times | dict.fromkeys([table.history] * bool(table.history), ""):
        role, kind, known = others[name]
        if name == table.history:
            role, why = "history", "the time from which a row holds"
        elif name == time:
            role, why = "time", "the time of its edges" + (f", of {len(times)}" if len(times) > 1 else "")
        elif table.foreign and not time:
            why = "not the time of its edges: cells are missing"
        else:
            why = f"{time} is the time" if time else 'role = "time" makes it the time of the rows'
        others[name] = role, kind, f"{known}; {why}"
    features = {name: kind for name, (role, kind, _) in others.items() if role == "feature"}
    are_numbers = {*features.values()} <= {"integer", "float", "boolean"}
    if is_edges and features and are_numbers and not any(table.columns[n].null_count for n in features):
        yield "numbers = true  # attributes of edges in float32; else they are columns for preprocessing"
    if table.foreign:
        yield f"[tables.{_name(table.name)}.foreign_keys]"
    for name, (other, comment) in table.foreign.items():
        one = _relation(name)
        one = name if [*map(_relation, table.foreign)].count(one) > 1 else one
        both = "" if is_edges else f", relation = {_text(one)}, reverse = {_text(f'rev_{one}')}"
        yield f"{_name(name)} = {{ table = {_text(other)}{both} }}  # {comment}"
    if others:
        yield f"[tables.{_name(table.name)}.columns]"
    for name, (role, kind, comment) in others.items():
        parts = [f"role = {_text(role)}"] if role != "feature" else []
        kind = table.lists.get(name) or (f"type = {_text(kind)}" if kind else "")
        parts += [kind] if kind and role != "left out" else []
        yield f"{_name(name)} = {{ {', '.join(parts)} }}  # {comment}"


def _column(table: _Found, name: str, *, is_edges: bool) -> tuple[str, str, str]:
    """Role, type and comment of a column."""
    if name not in table.columns:
        if is_label(name):
            return "left out", "", f"{table.notes[name]}; a label by its name"
        return "feature" if name in table.lists else "left out", "", table.notes[name]
    column = table.columns[name]
    kind, rows = type_of(column.type), len(column)
    known = f"{kind}, {column.null_count / max(1, rows):.1%} missing, "
    distinct = pc.unique(column).drop_null()
    note = f"; {table.notes[name]}" if name in table.notes else ""
    if kind == "text":
        known += f"{len(distinct):,} distinct"
        marks = distinct.filter(pc.match_substring_regex(distinct, _MARK)).to_pylist()
        if pc.any(pc.match_substring(distinct, "|")).as_py():
            note += '; type = "codes" if | separates codes'
        if marks and " na = " not in note:
            note += f"; na = {json.dumps(marks)} in its table makes such cells missing"
    else:
        ends = pc.min_max(column).as_py()
        low, high = (each.isoformat() if kind == "timestamp" and each else each for each in ends.values())
        known += f"{low} to {high}"
    if column.null_count == rows:
        return "left out", kind, f"{kind}, every cell is missing"
    if is_label(name):
        role = "left out" if is_edges else "label"
        return role, kind, f"{known}; a label by its name{note}"
    if kind == "text" and rows >= _FREE_ROWS and len(distinct) > _FREE_SHARE * rows:
        known += ': rather a name than a category; role = "feature" keeps it'
        return "left out", kind, f"{known}{note}"
    return "feature", kind, f"{known}{note}"


def _times(table: _Found) -> dict[str, str]:
    """Columns that may be the time, the likeliest first -> the unit of integers, "" of dates."""
    free = [name for name in table.columns if name not in (table.key, *table.foreign)]
    dates = [name for name in free if type_of(table.columns[name].type) == "timestamp"]
    named = [name for name in free if _TIME.search(name)]
    found = dict.fromkeys([each for each in named if each in dates], "")
    found |= {name: "" for name in dates if table.foreign}
    for name in named:
        column = table.columns[name].drop_null()
        if type_of(column.type) == "integer" and (unit := likely_unit(column.to_numpy())):
            found[name] = unit
    return found


def _forms(name: str) -> list[str]:
    """A table's name, also as one of its rows is called."""
    plain, ends = _plain(name), {"ies": "y", "es": "", "s": ""}
    return [plain, *(plain.removesuffix(end) + one for end, one in ends.items() if plain.endswith(end))]


def _names(column: str, table: _Found) -> bool:
    """True if the name of a column is that of a table, or ends with it."""
    if table.key and _plain(table.key) not in ("id", "key", "uuid") and _plain(table.key) == _plain(column):
        return True
    base = _plain(_base(column) or column)
    return any(base == form or (len(form) > 2 and base.endswith(form)) for form in _forms(table.name))


def _base(name: str) -> str:
    """The name without its end: user of user_id, userId and userID; "" of id."""
    return re.sub(r"(?i)_?(id|key|uuid|no|number)$", "", name) if _ID.search(name) else name


def _relation(column: str) -> str:
    return re.sub("_{2,}", "_", _base(column) or column).strip("_") or "of"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _text(value: str) -> str:
    is_literal = '"' in value and value.isprintable() and "'" not in value
    return f"'{value}'" if is_literal else json.dumps(value, ensure_ascii=False)


def _name(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)
