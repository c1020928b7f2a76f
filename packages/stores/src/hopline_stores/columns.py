"""Rows of columns in stores that keep texts or values by name: their forms, and what an absent value is."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

from hopline.errors import FeatureStoreError
from hopline.features.base import FeatureGroup

_INTEGER = re.compile(r"-?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BOOLEANS = {"true": True, "True": True, "1": True, "false": False, "False": False, "0": False}


def absent_is_null(options: Mapping[str, str], wrong: Callable[[str], Exception]) -> bool:
    """The option `absent` of a URL: True if a value that a row lacks is null. Raises: that of `wrong`."""
    given = options.get("absent", "error")
    if given not in ("error", "null"):
        raise wrong(f"absent must be 'error' or 'null', not {given!r}")
    return given == "null"


def value_of(kind: str, text: str) -> Any:
    """A text as a value of a column, None for "" in a column of another type than text.

    A text that is not of the type is returned unchanged: who decodes the row refuses it.
    """
    if kind in ("text", "timestamp") or not text:
        return text if text or kind == "text" else None
    if kind == "boolean":
        return _BOOLEANS.get(text, text)
    return number_of(text)


def number_of(text: str) -> Any:
    """A number in decimal as an int, or else as a float; another text unchanged."""
    if _INTEGER.fullmatch(text) and len(text) < 40:
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text


def text_of(value: Any) -> str:
    """A value that is not null as a text that `value_of` reads."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


def is_null(value: Any) -> bool:
    """True for None, and for NaN and NaT, which frames have in its place."""
    return value is None or bool(value != value)


def no_null_text(group: FeatureGroup, name: str, kind: str) -> FeatureStoreError:
    """The error for a null that a store of texts cannot tell from an empty text."""
    return FeatureStoreError(
        f"group {group.name!r}: column {name!r} is {kind} and has a null, which is a missing field here; "
        "add ?absent=null to the URL, for writers and readers"
    )
