"""Rows of columns in stores that keep texts or values by name: texts to write, and absent values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from hopline.errors import FeatureStoreError
from hopline.features.base import ColumnRow, FeatureGroup
from hopline.graph.cell_text import read_text
from hopline.graph.list_columns import list_of, lists_of, with_places


def absent_is_null(options: Mapping[str, str], wrong: Callable[[str], Exception]) -> bool:
    """The option `absent` of a URL: True if a value that a row lacks is null. Raises: that of `wrong`."""
    given = options.get("absent", "error")
    if given not in ("error", "null"):
        raise wrong(f"absent must be 'error' or 'null', not {given!r}")
    return given == "null"


def kinds_of(group: FeatureGroup) -> dict[str, str]:
    """Columns of a row and their types; its lists, by name, are "codes" or "vector"."""
    lists = lists_of(group.feature_names).items()
    return group.columns | {
        name: "vector" if columns[0] == f"{name}_0" else "codes" for name, columns in lists
    }


def value_of(kind: str, text: str) -> Any:
    """A text as a value of a column, or as a list. Raises: ValueError: it is no value of the type."""
    return list_of(text) if kind in ("codes", "vector") else read_text(kind, text)


def rows_of(
    group: FeatureGroup, found: Iterable[ColumnRow], absent_is_null: bool = False
) -> list[ColumnRow]:
    """Rows with the columns of their lists, as requests have them; a wrong list is the row's problem."""
    lists, nothing = lists_of(group.feature_names), dict.fromkeys(group.columns if absent_is_null else ())
    rows: list[ColumnRow] = []
    for row in found:
        try:
            rows.append({**nothing, **with_places(row, lists)} if isinstance(row, Mapping) else row)
        except ValueError as error:
            rows.append(f"column {error}")
    return rows


def text_of(kind: str, value: Any) -> str:
    """A value of a column that is not null, as a text that `read_text` reads."""
    if kind == "boolean":
        return "true" if value else "false"
    if kind in ("float", "integer"):
        return repr(float(value) if kind == "float" else int(value))
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    return str(value)


def is_null(value: Any) -> bool:
    """True for None, and for NaN and NaT, which frames have in its place."""
    return value is None or bool(value != value)


def no_null_text(group: FeatureGroup, name: str, kind: str) -> FeatureStoreError:
    """The error for a null that a store of texts cannot tell from an empty text."""
    return FeatureStoreError(
        f"group {group.name!r}: column {name!r} is {kind} and has a null, which is a missing field here; "
        "add ?absent=null to the URL, for writers and readers"
    )
